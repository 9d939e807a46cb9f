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
"""What is decided about a parameter, what is not, and what the user said about it."""
import difflib
import fnmatch
from dataclasses import dataclass
from typing import Dict, Mapping, Sequence, Tuple

from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.param_role import ParameterClassifier, ParamRole
from hyper_parallel.distributed.tensor_parallel.units import Unit

_MAX_LISTED = 8


@dataclass(frozen=True)
class Decision:
    """What a parameter is, and why.

    Args:
        role: the role.
        part: what it does inside its region.
        region: path of the module around it; boundaries are drawn from it.
        reasons: the evidence, strongest first.
        rejected: what else was possible and why it lost.
        transposed: the last dim is the output, `[in, out]`.
        stacked: so many experts lie one below the other in a 2-D weight.
        is_bias: it is added to the output of the weight that `of` names.
        of: path of the weight whose layout it follows; "" for a weight.
        factor: which factor of a low-rank adapter it is (`a`, `b`, `m`), or "scale" for the scales of a packed weight.
    """

    role: ParamRole
    part: str
    region: str
    reasons: Tuple[str, ...]
    rejected: Tuple[str, ...] = ()
    transposed: bool = False
    stacked: int = 1
    is_bias: bool = False
    of: str = ""
    factor: str = ""


@dataclass(frozen=True)
class Undecided:
    """A parameter that no evidence decides.

    Args:
        path: of the parameter.
        shape: its shape.
        why: what was tried.
        candidates: readings that the evidence allows.
        owner_class: class of the module that holds it, where it is known.
    """

    path: str
    shape: Tuple[int, ...]
    why: str
    candidates: Tuple[str, ...] = ()
    owner_class: str = ""

    def describe(self) -> str:
        """One sentence."""
        allowed = f" Candidates: {'; '.join(self.candidates)}." if self.candidates else ""
        of = f" of a {self.owner_class}" if self.owner_class else ""
        return f"cannot decide what {self.path!r} {list(self.shape)}{of} is ({self.why}).{allowed}"


@dataclass(frozen=True)
class RoleRule:
    """A word about parameters: glob on the dotted path of a parameter or of its linear, and the role they have."""

    match: str
    role: ParamRole

    def matches(self, path: str) -> bool:
        """The rule speaks of this parameter."""
        return fnmatch.fnmatchcase(path, self.match) or fnmatch.fnmatchcase(path.rpartition(".")[0], self.match)


_VECTORS = (ParamRole.NORM, ParamRole.BIAS)
_MATRICES = (ParamRole.COLWISE, ParamRole.ROWWISE, ParamRole.FUSED_QKV, ParamRole.FUSED_GATE_UP, ParamRole.EMBED,
             ParamRole.LM_HEAD, ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT)


def check_dims(rule: RoleRule, unit: Unit):
    """A rule gives vectors and matrices the roles that they can have.

    Raises:
        ValueError: names the rule, the parameter and its shape.
    """
    is_weight = unit.main.leaf in ("weight", "embedding_table")
    wrong = "one dim" if rule.role in _VECTORS and unit.dims > 1 and is_weight else \
        "two dims or more" if rule.role in _MATRICES and unit.dims < 2 and is_weight else None
    if wrong:
        raise ValueError(f"auto_tp_config.rules: {rule.match!r} says {rule.role.name}, a role of parameters of {wrong},"
                         f" but {unit.main.path!r} has shape {list(unit.main.shape)}; narrow the rule's match, or say "
                         "another role")


def read_rules(rules: Sequence) -> Tuple[RoleRule, ...]:
    """Rules from YAML (`{match: "*.adapter.down.weight", role: ROWWISE}`) or already read.

    Raises:
        ValueError: a key is missing or the role is not one of the fourteen.
    """
    read = []
    for rule in rules or ():
        if isinstance(rule, RoleRule):
            read.append(rule)
            continue
        if not isinstance(rule, Mapping) or set(rule) != {"match", "role"}:
            raise ValueError(f"auto_tp_config.rules: each rule is {{match: GLOB, role: ROLE}}, got {rule!r}")
        role = rule["role"] if isinstance(rule["role"], ParamRole) else ParamRole.__members__.get(
            str(rule["role"]).upper())
        if role is None:
            raise ValueError(f"auto_tp_config.rules: {rule['role']!r} is no role; roles are "
                             f"{', '.join(ParamRole.__members__)}")
        read.append(RoleRule(str(rule["match"]), role))
    return tuple(read)


def refusal(undecided: Sequence[Undecided]) -> str:
    """The message about what nothing decides: what, why, candidates and the ways out."""
    first = undecided[0]
    plain = ParameterClassifier().classify_param(first.path)
    hint = f" Its name alone would say {plain.name}." if plain is not ParamRole.SKIP else ""
    more = [one.path for one in undecided[1:_MAX_LISTED]]
    others = f" Likewise {len(undecided) - 1} more: {', '.join(map(repr, more))}" + (
        ", …." if len(undecided) > _MAX_LISTED else ".") if more else ""
    return (f"{first.describe()}{hint}{others} Say it with auto_tp_config.rules: "
            f"[{{match: \"{first.path}\", role: ROLE}}] (roles: {', '.join(ParamRole.__members__)}), or set "
            "auto_tp_config.unknown: replicate")


def same_cut(part: str, other: str) -> bool:
    """Two parts that are cut alike: q, k and v, or gate and up."""
    column = (parts.QUERY, parts.KEY, parts.VALUE)
    feed = (parts.GATE, parts.UP)
    return part == other or (part in column and other in column) or (part in feed and other in feed)


def default_part(role: ParamRole, unit: Unit) -> str:
    """The part of a parameter of which only the role is said."""
    if role in (ParamRole.COLWISE, ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT):
        return parts.UP
    return {ParamRole.ROWWISE: parts.DOWN}.get(role, parts.OTHER)


def nearest(pattern: str, names, count: int = 3) -> Tuple[str, ...]:
    """The names closest to a pattern that matched nothing, for error messages. A glob that begins with `*.` is compared
    with the ends of names.

    Examples:
        >>> nearest("*.q_prj.weight", ["model.norm.weight", "model.layers.0.attn.q_proj.weight"], 1)
        ('model.layers.0.attn.q_proj.weight',)
    """
    core = pattern[2:] if pattern.startswith("*.") else pattern
    length = core.count(".") + 1 if core is not pattern else None
    by_end: Dict[str, str] = {}
    for name in names:
        by_end.setdefault(".".join(name.split(".")[-length:]) if length else name, name)
    return tuple(by_end[end] for end in difflib.get_close_matches(core, list(by_end), n=count, cutoff=0.0))
