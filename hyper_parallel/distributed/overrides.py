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
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from hyper_parallel.distributed.tensor_parallel.evidence import RoleRule, nearest, read_rules

_OVERRIDE_KEYS = ("match", "replicate", "fused_layout")
_UNKNOWN = ("error", "replicate")


@dataclass(frozen=True)
class Override:
    """A word about the parameters that a glob on their dotted paths matches.

    Args:
        match: a path or glob.
        replicate: keep them whole on every rank.
        fused_layout: arrangement of a fused weight's rows.
    """

    match: str
    replicate: bool = False
    fused_layout: Optional[str] = None


class Overrides:
    """The overrides of one plan, with a record of which were used.

    Args:
        entries: `{match: GLOB, replicate: true}` or `{match: GLOB, fused_layout: NAME}`; not modified.

    Raises:
        ValueError: an unknown key (the nearest known one is named) or a missing `match`.
    """

    def __init__(self, entries: Sequence = ()):
        self._entries = tuple(_read_override(entry) for entry in entries or ())
        self._used = set()

    def replicates(self, path: str) -> Optional[str]:
        """The override that keeps the parameter whole, or None."""
        return self._first(path, lambda entry: entry.replicate and entry.match)

    def fused_layout(self, path: str) -> Optional[str]:
        """The layout that the user gave for a fused weight, or None."""
        return self._first(path, lambda entry: entry.fused_layout)

    def _first(self, path, value):
        for entry in self._entries:
            if fnmatch.fnmatchcase(path, entry.match) or fnmatch.fnmatchcase(path.rpartition(".")[0], entry.match):
                found = value(entry)
                if found:
                    self._used.add(entry)
                    return found
        return None

    def check_all_used(self, paths):
        """Every override must have decided something.

        Raises:
            ValueError: one matched nothing; the nearest names are given.
        """
        for entry in self._entries:
            if entry not in self._used:
                raise ValueError(f"auto_tp_config.overrides: {entry.match!r} decides no parameter; nearest: "
                                 f"{', '.join(nearest(entry.match, paths))}")


def _read_override(entry) -> Override:
    if isinstance(entry, Override):
        return entry
    if not isinstance(entry, Mapping) or "match" not in entry:
        raise ValueError(f"auto_tp_config.overrides: each entry is {{match: GLOB, …}}, got {entry!r}")
    for key in entry:
        check_key(key, _OVERRIDE_KEYS, "auto_tp_config.overrides")
    override = Override(**entry)
    if not isinstance(override.replicate, bool):
        raise ValueError(f"auto_tp_config.overrides: replicate of {override.match!r} is {override.replicate!r}: "
                         "write true or false")
    if not override.replicate and override.fused_layout is None:
        raise ValueError(f"auto_tp_config.overrides: {override.match!r} says nothing: give replicate or fused_layout")
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
        if self.loss_parallel:
            raise ValueError("auto_tp_config.loss_parallel: the vocabulary-parallel loss is not available in this "
                             "version; set it to false")

    def to_dict(self) -> Dict[str, Any]:
        """Plain data."""
        return asdict(self)


def read_user_words(rules, overrides) -> Tuple[Tuple[RoleRule, ...], Overrides]:
    """Rules and overrides, checked."""
    return read_rules(rules), Overrides(overrides)
