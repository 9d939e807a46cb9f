# Copyright 2026 The hyper_parallel authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What the user said: options, rules and overrides, read from YAML or Python, and never silently unused."""
import difflib
import fnmatch
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.placement_types import Placement, parse_placement
from hyper_parallel.distributed.tensor_parallel.evidence import RoleRule, nearest, read_rules

_OVERRIDE_KEYS = ("match", "replicate", "fused_layout", "placement", "tp_divide_attrs")
_UNKNOWN = ("error", "replicate")


@dataclass(frozen=True)
class Override:
    """A word about the parameters whose full dotted path, or whose linear's, a glob matches.

    Args:
        match: a path or glob; `tp_divide_attrs` matches modules, everything else parameters.
        replicate: keep them whole on every rank.
        fused_layout: arrangement of a fused weight's rows.
        placement: where the parameter lies, for example `shard(0)`.
        tp_divide_attrs: int attributes of the module that the tp size divides; empty says that no further one is.
    """

    match: str
    replicate: bool = False
    fused_layout: Optional[str] = None
    placement: Optional[str] = None
    tp_divide_attrs: Optional[Tuple[str, ...]] = None


class Overrides:
    """The overrides of one plan, with a record of which were used. The first that matches wins.

    Args:
        entries: `{match: GLOB, replicate: true}`, `{match: GLOB, fused_layout: NAME}`, `{match: GLOB, placement:
            shard(0)}` or `{match: MODULE GLOB, tp_divide_attrs: [name]}`; or a mapping `{GLOB: replicate}`. Not
            modified.

    Raises:
        ValueError: an unknown key (the nearest known one is named) or a missing `match`.
    """

    def __init__(self, entries: Sequence = ()):
        if isinstance(entries, Mapping):
            entries = [_from_pair(match, said) for match, said in entries.items()]
        self._entries = tuple(_read_override(entry) for entry in entries or ())
        self._matchers = [re.compile(fnmatch.translate(entry.match)).match for entry in self._entries]
        self._used = set()

    def __len__(self):
        return len(self._entries)

    def marks(self, path: str) -> Tuple[int, ...]:
        """Which overrides match a path: parameters that differ here are planned apart."""
        owner = path.rpartition(".")[0]
        return tuple(at for at, match in enumerate(self._matchers) if match(path) or match(owner))

    def replicates(self, path: str) -> Optional[str]:
        """The override that keeps the parameter whole, or None."""
        return self._first(path, lambda entry: entry.replicate and entry.match)

    def fused_layout(self, path: str) -> Optional[str]:
        """The layout that the user gave for a fused weight, or None."""
        return self._first(path, lambda entry: entry.fused_layout)

    def placement(self, path: str) -> Optional[Tuple[str, Placement]]:
        """(the override, the placement) that the user gave for a parameter, or None."""
        return self._first(path, lambda entry: entry.placement and (entry.match, parse_placement(entry.placement)))

    def tp_divide_attrs(self, module: str) -> Optional[Tuple[str, ...]]:
        """Attributes of a module that the user wants divided; None where he says nothing."""
        said = self._first(module, lambda entry: None if entry.tp_divide_attrs is None else (entry.tp_divide_attrs,))
        return None if said is None else said[0]

    def _first(self, path, value):
        owner = path.rpartition(".")[0]
        for entry, match in zip(self._entries, self._matchers):
            if match(path) or match(owner):
                found = value(entry)
                if found:
                    self._used.add(entry)
                    return found
        return None

    @staticmethod
    def _matches(entry: Override, path: str) -> bool:
        return fnmatch.fnmatchcase(path, entry.match) or fnmatch.fnmatchcase(path.rpartition(".")[0], entry.match)

    def check_all_used(self, paths):
        """Every override must have decided something.

        Raises:
            ValueError: one matched nothing; the nearest names are given, or the glob that reaches into a module.
        """
        for entry in self._entries:
            if entry in self._used:
                continue
            matched = [path for path in paths if self._matches(entry, path)]
            if matched:
                raise ValueError(f"auto_tp_config.overrides: {entry.match!r} matches {matched[0]!r}"
                                 f"{f' and {len(matched) - 1} more' if len(matched) > 1 else ''}, but "
                                 f"{_WHY_UNUSED.get(_word_of(entry), 'an entry above it has already decided')}")
            inside = next((path for path in paths if any(
                fnmatch.fnmatchcase(module, entry.match) for module in _modules_around(path))), None)
            hint = f"it matches a module, not the parameters in it: write {entry.match + '.*'!r}" if inside and \
                entry.tp_divide_attrs is None else f"nearest: {', '.join(nearest(entry.match, paths))}"
            raise ValueError(f"auto_tp_config.overrides: {entry.match!r} decides no parameter; {hint}")


_WHY_UNUSED = {
    "fused_layout": "none of it is a fused weight whose layout is open: give fused_layout to the weight itself (a bias "
                    "follows the rows of its weight), or remove the entry",
    "tp_divide_attrs": "attributes belong to modules: match the attention or the other module that has a boundary",
}


def _word_of(entry: Override) -> str:
    return next((key for key in ("fused_layout", "tp_divide_attrs") if getattr(entry, key) is not None), "")


def _modules_around(path: str) -> Tuple[str, ...]:
    split = path.split(".")
    return tuple(".".join(split[:count]) for count in range(1, len(split)))


def _from_pair(match: str, said) -> Dict[str, Any]:
    if said == "replicate":
        return {"match": match, "replicate": True}
    if isinstance(said, str):
        return {"match": match, "placement": said}
    if isinstance(said, Mapping):
        return {"match": match, **said}
    raise ValueError(f"auto_tp_config.overrides: {match!r}: write replicate, a placement such as shard(0), or a "
                     f"mapping; got {said!r}")


def _read_override(entry) -> Override:
    if isinstance(entry, Override):
        return entry
    if not isinstance(entry, Mapping) or "match" not in entry:
        raise ValueError(f"auto_tp_config.overrides: each entry is {{match: GLOB, …}}, got {entry!r}")
    for key in entry:
        check_key(key, _OVERRIDE_KEYS, "auto_tp_config.overrides")
    said = dict(entry)
    attrs = said.get("tp_divide_attrs")
    if isinstance(attrs, str) or not (attrs is None or isinstance(attrs, Sequence)):
        raise ValueError(f"auto_tp_config.overrides: tp_divide_attrs of {said['match']!r} is {attrs!r}: write a list "
                         "of attribute names")
    said["tp_divide_attrs"] = None if attrs is None else tuple(attrs)
    override = Override(**said)
    if not isinstance(override.replicate, bool):
        raise ValueError(f"auto_tp_config.overrides: replicate of {override.match!r} is {override.replicate!r}: "
                         "write true or false")
    if override.placement is not None:
        try:
            placement = parse_placement(override.placement)
        except ValueError as error:
            raise ValueError(f"auto_tp_config.overrides: placement of {override.match!r}: {error}") from error
        if placement.is_partial():
            raise ValueError(f"auto_tp_config.overrides: placement of {override.match!r} is {override.placement!r}: a "
                             "parameter is cut or whole, never partial")
        if not placement.is_shard():
            override = replace(override, placement=None, replicate=True)
    if not (override.replicate or override.fused_layout or override.placement or
            override.tp_divide_attrs is not None):
        raise ValueError(f"auto_tp_config.overrides: {override.match!r} says nothing: give replicate, fused_layout, "
                         "placement or tp_divide_attrs")
    return override


def check_key(key: str, known: Sequence[str], where: str):
    """Refuse a key that does not exist, naming the nearest that does.

    Raises:
        ValueError: the key is not known.
    """
    if key not in known:
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown key {key!r} in {where}{meant} Known keys: {', '.join(known)}")


@dataclass(frozen=True)
class PlanOptions:
    """The switches of a plan; `auto_tp_config` in YAML.

    Args:
        tp: size of the tensor-parallel axis.
        sequence_parallel: cut activations between regions along the sequence.
        loss_parallel: keep the logits cut over the vocabulary for the loss.
        kv_replication: copy kv heads where there are fewer than ranks; False refuses such a size.
        vocab_padding: pad a vocabulary that tp does not divide; False refuses it.
        unknown: "error" refuses a parameter that nothing decides; "replicate" keeps it whole.
        sequence_dim: dim of the sequence in an activation.
    """

    tp: int = 1
    sequence_parallel: bool = False
    loss_parallel: bool = False
    kv_replication: bool = True
    vocab_padding: bool = True
    unknown: str = "error"
    sequence_dim: int = 1

    def __post_init__(self):
        if isinstance(self.tp, bool) or not isinstance(self.tp, int) or self.tp < 1:
            raise ValueError(f"tp (parallel_config.model_parallel) is {self.tp!r}: it must be a positive integer")
        if self.unknown not in _UNKNOWN:
            raise ValueError(f"auto_tp_config.unknown is {self.unknown!r}: valid are {', '.join(_UNKNOWN)}")
        for name in ("sequence_parallel", "loss_parallel", "kv_replication", "vocab_padding"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"auto_tp_config.{name} is {getattr(self, name)!r}: write true or false")

    def to_dict(self) -> Dict[str, Any]:
        """Plain data."""
        return asdict(self)


def read_user_words(rules, overrides) -> Tuple[Tuple[RoleRule, ...], Overrides]:
    """Rules and overrides, checked."""
    return read_rules(rules), Overrides(overrides)
