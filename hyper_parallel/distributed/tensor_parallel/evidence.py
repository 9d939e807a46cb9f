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
"""What each parameter is, decided by evidence: the user, the family, structure, anchored names, the bias's owner.

A name is believed only as a whole segment (`conv_proj` is not `o_proj`), only in its place (`dense` below attention),
and only where the shapes around it agree. Nothing is guessed: what no evidence decides is refused with the candidates
named, or replicated when asked.
"""
import difflib
import fnmatch
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.tensor_parallel import parts, side_tensors, structure, words
from hyper_parallel.distributed.tensor_parallel.param_role import ParameterClassifier, ParamRole
from hyper_parallel.distributed.tensor_parallel.units import Unit, build_units
from hyper_parallel.distributed.tensor_parallel.words import part_of_segment  # noqa: F401 re-exported

_FLOATS = ("float", "f16", "f32", "f64", "bf16", "bfloat", "half", "double", "f8", "e4m3", "e5m2")
_MAX_LISTED = 8
_BLOCK = re.compile(r"(?:.*?\.)?\d+\.")


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
    """A word about parameters: glob on the dotted path, and the role (and part) they have."""

    match: str
    role: ParamRole
    part: Optional[str] = None


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


class EvidenceClassifier:
    """Roles of all parameters of an inventory.

    Args:
        inventory: the model.
        rules: user rules, first match wins over all other evidence.
        unknown: "error" refuses what nothing decides; "replicate" leaves it whole.
        ordered: the inventory lists modules in the order of registration; None looks for itself.
    """

    def __init__(self, inventory: Inventory, rules: Sequence[RoleRule] = (), unknown: str = "error",
                 ordered: Optional[bool] = None):
        self._inventory = inventory
        self._facts = inventory.facts
        self._adapter = find_adapter(inventory.facts)
        self._rules = rules
        self._unknown = unknown
        self._ordered = ordered
        self._used = set()
        self._biases_of_stacks: List[Unit] = []
        self._decisions: Dict[str, Decision] = {}
        self._undecided: Dict[str, Undecided] = {}

    def classify(self) -> Dict[str, Decision]:
        """Every parameter's decision, in the inventory's order.

        Raises:
            ValueError: parameters that nothing decides, or a rule that matches nothing.
        """
        decisions, undecided = self.classify_all()
        if undecided:
            raise ValueError(refusal(list(undecided.values())))
        return decisions

    def classify_all(self) -> Tuple[Dict[str, Decision], Dict[str, Undecided]]:
        """What is decided, and what is not; nothing is raised for the latter.

        Raises:
            ValueError: a rule matches nothing.
        """
        self._units = build_units(self._inventory.parameters)
        self._by_path = {unit.path: unit for unit in self._units}
        self._by_scope: Dict[str, List[Unit]] = {}
        self._by_block: Dict[str, List[Unit]] = {}
        for unit in self._units:
            self._by_scope.setdefault(unit.scope, []).append(unit)
            self._by_block.setdefault(_block_of(unit), []).append(unit)
        self._hidden = self._find_hidden()
        self._expert_scopes = self._find_expert_scopes()
        self._state_scopes = self._find_state_scopes()
        self._block_roots = self._find_block_roots()
        if self._ordered is None:
            self._ordered = is_registration_order(self._inventory)
        open_units = [unit for unit in self._units if not self._label(unit)]
        self._solve_structure(open_units)
        self._check_regions()
        self._label_stack_biases()
        for unit in self._units:
            self._label_extras(unit)
        self._label_side_tensors()
        self._check_rules_used()
        return ({path: self._decisions[path] for path in self._inventory.parameters if path in self._decisions},
                {path: self._undecided[path] for path in self._inventory.parameters if path in self._undecided})

    # facts about the whole

    def _find_hidden(self) -> Optional[int]:
        """Width of the residual stream: configured, or the length that most norms have."""
        if self._facts.hidden_size:
            return self._facts.hidden_size
        lengths = Counter(unit.shape[0] for unit in self._units if unit.dims == 1 and unit.name != "bias")
        columns = Counter(unit.shape[1] for unit in self._units if unit.dims == 2)
        both = {length: count for length, count in lengths.items() if length in columns}
        return max(both, key=both.get) if both else (columns.most_common(1)[0][0] if columns else None)

    def _width(self, unit: Unit) -> Optional[int]:
        tower = words.vision_segment(unit.segments)
        if tower is not None and self._facts.tower is not None:
            return self._facts.tower.hidden_size
        return self._hidden

    def _facts_of(self, unit: Unit):
        return self._inventory.facts_of(unit.path)

    def _find_block_roots(self) -> Tuple[str, ...]:
        """The containers of numbered blocks, largest first: `model.layers`. A block holds at least three matrices."""
        matrices: Counter = Counter()
        for unit in self._units:
            numbers = unit.number_segments
            if numbers and unit.dims >= 2:
                matrices[tuple(unit.path.split(".")[:numbers[0] + 1])] += 1
        roots: Counter = Counter()
        for block, count in matrices.items():
            if count >= 3:
                roots[".".join(block[:-1])] += count
        return tuple(root for root, _ in roots.most_common())

    def _find_expert_scopes(self) -> Dict[str, str]:
        """`{scope of an expert's weights: why}` for experts that only structure shows: as many numbered modules of one
        make as the configuration has experts, below a block."""
        experts = self._facts.experts
        found: Dict[str, str] = {}
        if not experts or experts < 2:
            return found
        members: Dict[str, Dict[str, set]] = {}
        for unit in self._units:
            numbers = unit.number_segments
            if len(numbers) < 2:
                continue
            split = unit.path.split(".")
            container = ".".join(split[:numbers[-1]])
            members.setdefault(container, {}).setdefault(split[numbers[-1]], set()).add(
                (".".join(split[numbers[-1] + 1:]), unit.shape))
        for container, by_number in members.items():
            makes = {frozenset(make) for make in by_number.values()}
            if len(by_number) == experts and len(makes) == 1:
                found[container] = f"{experts} numbered modules of one make are the experts"
        return found

    def _find_state_scopes(self) -> Dict[str, str]:
        """Scopes of state-space, gated-delta and short-convolution layers: who has a depthwise convolution or decay."""
        found = {}
        for unit in self._units:
            if unit.name in ("a_log", "time_decay", "time_first"):
                found[unit.scope] = f"'{unit.name}' beside it"
            elif unit.dims >= 3 and unit.shape[1] == 1 and unit.shape[-1] <= 16 and unit.shape[0] > 1 and \
                    words.vision_segment(unit.segments) is None and unit.number_segments:
                found.setdefault(unit.scope, f"depthwise convolution '{unit.name}' beside it")
        for unit in self._units:  # RWKV's channel mixing has no decay of its own
            if unit.name.startswith("time_mix_") and unit.scope not in found:
                found[unit.scope] = f"'{unit.name}' beside it"
        return found

    # one unit at a time

    def _decide(self, unit: Unit, part: str, *reasons: str, role: Optional[ParamRole] = None, region: str = None,
                rejected: Tuple[str, ...] = ()) -> bool:
        transposed, why = self._transposed(unit)
        stacked = self._stacked(unit)
        self._decisions[unit.main.path] = Decision(
            role or parts.ROLE_OF_PART[part], part, unit.scope if region is None else region,
            tuple(reason for reason in reasons + (why,) if reason), rejected, transposed, stacked)
        return True

    def _transposed(self, unit: Unit) -> Tuple[bool, str]:
        if unit.dims < 2:
            return False, ""
        glob = next((glob for glob in self._adapter.in_out if fnmatch.fnmatchcase(unit.main.path, glob)), None)
        if glob and unit.main.layout is None:
            return True, f"family {self._facts.model_type} stores it [in, out]"
        stored = unit.stored_in_out()
        if stored is not None:
            return stored, ""
        if unit.dims == 2 and self._adapter.in_out and unit.extras and not self._stands_outside(unit) and \
                unit.shape[0] == unit.shape[1] and not self._adapter.stacked:
            return True, f"family {self._facts.model_type} stores its linears [in, out]"
        if unit.dims == 2 and unit.name in ("weight1", "weight2"):
            return True, "experts one below the other, [in, out]"
        if unit.dims == 3 and unit.shape[0] > 1 and unit.shape[1] > 1:
            hidden = self._width(unit)
            part = self._name_part(unit)[0]
            if hidden in unit.shape[1:] and unit.shape[1] != unit.shape[2] and part is not None:
                reads_hidden = part not in parts.ROW_PARTS
                return (unit.shape[1] == hidden) == reads_hidden, ""
            return unit.is_bare, ""
        return False, ""

    def _stacked(self, unit: Unit) -> int:
        if unit.dims != 2 or not unit.is_bare:
            return 1
        experts = self._facts.experts
        if any(fnmatch.fnmatchcase(unit.main.path, glob) for glob in self._adapter.stacked) or (
                unit.name in ("weight1", "weight2") and self._is_expert(unit)):
            return experts or 1
        return 1

    def _label(self, unit: Unit) -> bool:
        """True when the unit needs no structure."""
        record = unit.main
        if side_tensors.adapter_of(record.path) or side_tensors.is_scale(record) or side_tensors.packed_leaf(record):
            return True
        return (self._by_rule(unit) or self._by_family(unit) or self._by_buffer(unit) or self._by_state(unit)
                or self._by_class(unit) or self._by_dims(unit) or self._by_name(unit))

    def _by_rule(self, unit: Unit) -> bool:
        for rule in self._rules:
            if fnmatch.fnmatchcase(unit.main.path, rule.match):
                self._used.add(rule.match)
                named = self._name_part(unit)[0]
                part = parts.PART_OF_ROLE.get(rule.role) or (named if named else _default_part(rule.role, unit))
                return self._decide(unit, part, f"user rule '{rule.match}'", role=rule.role,
                                    rejected=self._plain_witness(unit, rule.role))
        return False

    def _plain_witness(self, unit: Unit, role: ParamRole) -> Tuple[str, ...]:
        plain = ParameterClassifier().classify_param(unit.main.path)
        return () if plain in (role, ParamRole.SKIP) else (f"the name alone says {plain.name}",)

    def _by_family(self, unit: Unit) -> bool:
        for entry in self._adapter.sharding_rules:
            if fnmatch.fnmatchcase(unit.main.path, entry[0]):
                part = entry[2] if len(entry) > 2 else parts.PART_OF_ROLE.get(entry[1]) or \
                    self._name_part(unit)[0] or _default_part(entry[1], unit)
                return self._decide(unit, part, f"family {self._facts.model_type}: '{entry[0]}'", role=entry[1])
        for glob, reason in self._adapter.whole:
            if any(fnmatch.fnmatchcase(prefix, glob) for prefix in _ancestors(unit.path)) and unit.dims >= 1 and \
                    not words.is_norm(unit.name) and words.is_buffer(unit.segments) is None:
                special = words.side_state(unit.segments) or unit.name == "attn_sink"
                return self._decide(unit, parts.OTHER, f"family {self._facts.model_type}: {reason}",
                                    role=ParamRole.SPECIAL if special else ParamRole.REPLICATED)
        return False

    def _by_buffer(self, unit: Unit) -> bool:
        word = words.is_buffer(unit.segments)
        if word and (unit.is_bare or word in ("rotary_emb",)):
            return self._decide(unit, parts.OTHER, f"'{word}' is a buffer", role=ParamRole.SKIP)
        dtype = unit.main.dtype.lower()
        if not any(word in dtype for word in _FLOATS) and unit.dims <= 1:
            return self._decide(unit, parts.OTHER, f"{unit.main.dtype} numbers are no weight", role=ParamRole.SKIP)
        if unit.is_bare and unit.name == "bias" and unit.dims >= 3:
            return self._decide(unit, parts.OTHER, "a mask, by its dims", role=ParamRole.SKIP)
        if words.side_state(unit.segments) and not words.is_norm(unit.name):
            return self._decide(unit, parts.OTHER, f"'{words.side_state(unit.segments)}' has a handler of its own",
                                role=ParamRole.SPECIAL)
        return False

    def _by_state(self, unit: Unit) -> bool:
        scope = next((scope for scope in _ancestors(unit.path)[1:] if scope in self._state_scopes), None)
        if scope is None:
            return False
        why = self._state_scopes[scope]
        name = unit.name
        if name.startswith("time_"):
            return self._decide(unit, parts.STATE_MIX if "mix" in name else parts.STATE_VECTOR, f"'{name}'")
        if any(member.startswith(f"{scope}.time_mix_") or member.startswith(f"{scope}.time_decay")
               for member in self._by_path):
            return self._rwkv(unit, scope, why)
        below = [other for other in self._by_block[_block_of(unit)] if other.path.startswith(f"{scope}.")]
        matrices = [other for other in below if other.dims == 2]
        outs = [other for other in matrices if other.name in ("out_proj", "o_proj", "output")] or [
            other for other in matrices if other.shape[0] == self._hidden and other.shape[1] != self._hidden] or [
                other for other in matrices if other.shape[0] == self._hidden]
        inner = outs[0].shape[1] if len(outs) == 1 else None
        if outs and unit is outs[0]:
            return self._decide(unit, parts.STATE_OUT, why, f"'{name}' leads out of it", region=scope)
        if unit.dims == 1 and not unit.is_bare:
            if inner is not None and unit.shape[0] == inner:
                return self._decide(unit, parts.STATE_NORM, why, "a norm over the inner width, which is cut",
                                    region=scope)
            return self._decide(unit, parts.NORM_SCALE, "one dim, alone in its module", region=scope)
        if unit.dims >= 3:
            return self._decide(unit, parts.STATE_CONV, why, region=scope)
        if unit.is_bare:
            return self._decide(unit, parts.STATE_VECTOR, why, region=scope)
        if name in ("x_proj", "dt_proj", "bcdt_proj"):
            return self._decide(unit, parts.STATE_STEP if name == "dt_proj" else parts.STATE_SMALL, why, region=scope)
        if unit.dims != 2 or inner is None:
            return False
        if name.startswith("in_proj") or self._name_part(unit)[0] is None and unit.shape[1] == self._hidden:
            return self._decide(unit, parts.STATE_IN, why, f"'{name}' leads into it", region=scope)
        return False

    def _rwkv(self, unit: Unit, scope: str, why: str) -> bool:
        names = {other.name for other in self._units if other.scope == scope}
        if "output" in names:
            part = {"key": parts.UP, "value": parts.UP, "receptance": parts.UP, "gate": parts.UP,
                    "output": parts.DOWN}.get(unit.name)
        else:
            part = {"key": parts.UP, "value": parts.DOWN, "receptance": parts.CHANNEL_GATE}.get(unit.name)
        return part is not None and self._decide(unit, part, why, f"'{unit.name}' of time or channel mixing")

    def _by_class(self, unit: Unit) -> bool:
        record = unit.main
        if unit.dims == 1 and record.is_norm_owned:
            return self._decide(unit, parts.NORM_SCALE, f"owner is a {record.owner_class}", region=record.owner)
        if record.is_table:
            vocabulary = self._facts_of(unit).vocab_size
            named = self._name_part(unit)[0]
            if named == parts.HEAD_TABLE:
                return False
            if named == parts.TOKENS and (vocabulary is None or record.shape[0] >= vocabulary) or \
                    record.shape[0] == vocabulary:
                return self._decide(unit, parts.TOKENS, f"owner is a {record.owner_class or 'table'}",
                                    f"{record.shape[0]} rows are the vocabulary", region=record.owner)
            return self._decide(unit, parts.OTHER, f"owner is a {record.owner_class or 'table'}",
                                f"{record.shape[0]} rows are not the vocabulary", region=record.owner)
        return False

    def _by_dims(self, unit: Unit) -> bool:
        """Norms, vectors, stems and tables, which the number of dims and the owner tell."""
        name, dims = unit.name, unit.dims
        owner = _owner_name(unit)
        if dims <= 2 and words.is_norm(owner) and (dims == 1 or unit.shape[0] < unit.shape[1] * 64):
            if dims == 1 or not any(word in owner for word in ("proj", "linear")):
                return self._decide(unit, parts.NORM_SCALE, f"owner segment '{owner}'", region=unit.path)
        if dims <= 1:
            return self._vector(unit, name)
        if words.is_table(unit.segments) or words.is_table(unit.segments + ("",)):
            return self._decide(unit, parts.OTHER, "position, type or patch table")
        if dims >= 3 and not self._is_expert(unit) and not self._is_expert_shape(unit):
            if unit.is_bare and dims == 3 and self._facts.experts is None and self._name_part(unit)[0] in parts.MLP_PARTS:
                return False
            if self._stands_outside(unit) or words.vision_segment(unit.segments) is not None:
                return self._decide(unit, parts.OTHER, f"{dims} dims, outside of every block: a stem")
            return False
        whole = words.is_whole_by_name(unit.segments)
        named = self._name_part(unit)[0]
        if whole and named not in (parts.HEAD, parts.TOKENS) and (
                words.place_of(unit.segments) is None or whole in ("multi_modal_projector", "merger", "mm_projector",
                                                                   "vision_adapter", "connector", "projector")) and \
                self._stands_outside(unit):
            return self._decide(unit, parts.OTHER, f"'{whole}' is a task head or a projector")
        if unit.shape[0] == 1 and not unit.is_bare and named is None and self._stands_outside(unit):
            return self._decide(unit, parts.OTHER, "one row: a value head")
        if named == parts.OTHER:
            return self._decide(unit, parts.OTHER, f"'{'.'.join(unit.segments[-2:])}' stands before the output head")
        return False

    def _vector(self, unit: Unit, name: str) -> bool:
        part, why = self._name_part(unit)
        if part == parts.HEAD_VECTOR:
            return self._decide(unit, part, why)
        if part == parts.ROUTER:
            return self._decide(unit, part, why)
        if part == parts.HEAD and unit.is_bare:
            return self._decide(unit, part, why, region=unit.scope)
        if unit.dims == 0 or unit.shape[0] == 1:
            return self._decide(unit, parts.OTHER, "one number")
        if words.is_layer_scale(name) or words.is_table(unit.segments):
            return self._decide(unit, parts.OTHER, f"'{name}' is as wide as the residual stream")
        if not unit.is_bare and unit.shape[0] in self._norm_lengths(unit):
            return self._decide(unit, parts.NORM_SCALE, "one dim, alone in its module", region=unit.path)
        if words.is_whole_by_name(unit.segments):
            return self._decide(unit, parts.OTHER, f"'{words.is_whole_by_name(unit.segments)}' is whole")
        facts = self._facts_of(unit)
        if unit.is_bare and unit.shape[0] == facts.heads and unit.shape[0] not in (
                facts.head_dim, facts.experts, self._width(unit)) and self._has_matrices_beside(unit):
            return self._decide(unit, parts.HEAD_VECTOR, f"one number for each of {facts.heads} heads")
        if unit.is_bare and unit.name != "bias" and self._stands_outside(unit):
            return self._decide(unit, parts.OTHER, "one dim, outside of every block: whole everywhere is exact")
        return False

    def _has_matrices_beside(self, unit: Unit) -> bool:
        return sum(other.dims == 2 and not other.is_bare for other in self._by_scope[unit.scope]) >= 2 or any(
            other.scope == f"{unit.scope}.{other.path[len(unit.scope) + 1:].split('.')[0]}" and other.dims == 2
            for other in self._by_block[_block_of(unit)] if other.path.startswith(f"{unit.scope}."))

    def _norm_lengths(self, unit: Unit) -> set:
        facts = self._facts_of(unit)
        lengths = {self._width(unit), facts.head_dim, facts.q_lora_rank, facts.kv_lora_rank, facts.qk_rope_head_dim}
        if facts.heads and facts.head_dim:
            lengths |= {facts.heads * facts.head_dim, (facts.kv_heads or facts.heads) * facts.head_dim}
        return lengths - {None} or {unit.shape[0]}

    def _stands_outside(self, unit: Unit) -> bool:
        return not any(unit.path.startswith(f"{root}.") and unit.number_segments for root in self._block_roots)

    def _name_part(self, unit: Unit) -> Tuple[Optional[str], str]:
        part, why = words.part_of(unit.segments)
        if part is None and unit.name in ("gate", "router") and self._has_experts_beside(unit):
            return parts.ROUTER, f"'{unit.name}' beside experts"
        if part is None and len(unit.segments) > 1 and unit.segments[-2] in ("gate", "router") and \
                self._has_experts_beside(unit, up=2):
            return parts.ROUTER, f"'{unit.segments[-2]}' beside experts"
        if unit.is_bare and unit.name in ("weight1", "weight2") and any(map(words.is_experts, unit.segments)):
            return (parts.GATE_UP if unit.name == "weight1" else parts.DOWN), f"'{unit.name}' of grouped experts"
        if part == parts.ROUTER and unit.dims == 2 and unit.shape[0] == 1 and unit.name != "e_score_correction_bias":
            return parts.SCALAR_GATE, "one row"
        return part, why

    def _has_experts_beside(self, unit: Unit, up: int = 1) -> bool:
        scope = unit.path.rsplit(".", up)[0]
        return any(other.path.startswith(f"{scope}.") and (any(map(words.is_experts, other.segments))
                                                           or self._is_structural_expert(other)
                                                           or self._is_expert_shape(other)) and other is not unit
                   for other in self._by_block[_block_of(unit)]) or any(
                       container.startswith(f"{scope}.") for container in self._expert_scopes)

    def _is_structural_expert(self, unit: Unit) -> bool:
        numbers = unit.number_segments
        return len(numbers) > 1 and ".".join(unit.path.split(".")[:numbers[-1]]) in self._expert_scopes

    def _is_expert(self, unit: Unit) -> bool:
        for segment in reversed(unit.segments):
            if words.is_shared(segment):
                return False
            if words.is_experts(segment):
                return True
        return self._is_structural_expert(unit) or self._is_expert_shape(unit)

    def _is_expert_shape(self, unit: Unit) -> bool:
        """A 3-D weight with one matrix per expert."""
        return unit.dims == 3 and unit.shape[0] == (self._facts.experts or -1) and min(unit.shape[1:]) > 1

    def _is_shared(self, unit: Unit) -> bool:
        if any(map(words.is_shared, unit.segments)):
            return True
        return False

    def _by_name(self, unit: Unit) -> bool:
        part, why = self._name_part(unit)
        if part is None:
            return False
        facts = self._facts_of(unit)
        rows, columns = (unit.shape[-2:] if unit.dims >= 2 else (unit.shape[0], None))
        if part == parts.TOKENS:
            if unit.dims != 2 or (facts.vocab_size and rows < facts.vocab_size):
                return False
            return self._decide(unit, part, why, region=unit.main.owner)
        if part == parts.HEAD:
            if facts.vocab_size and rows < facts.vocab_size:
                return False
            return self._decide(unit, part, why, region=unit.main.owner)
        if part == parts.HEAD_TABLE:
            if facts.heads and unit.dims == 2 and facts.heads not in unit.shape:
                return False
            return self._decide(unit, part, why)
        if unit.dims == 1 and part not in (parts.ROUTER, parts.HEAD_VECTOR):
            return False
        if part == parts.ROUTER and unit.dims == 2 and self._is_expert(unit) and unit.name == "gate":
            part, why = parts.GATE, "'gate' inside an expert"
        if part == parts.ROUTER and facts.experts and unit.dims == 2 and facts.experts not in unit.shape:
            return False
        if part in (parts.SCALAR_GATE,) and unit.dims == 2 and rows != 1:
            return False
        if part == parts.QKV and self._is_latent_scope(unit):
            return self._decide(unit, parts.LATENT, why, "projections up from a latent beside it")
        role = self._container_role(unit, part)
        if unit.dims == 3 and role is None and part not in (parts.OTHER,):
            return False
        return self._decide(unit, part, why, role=role)

    def _is_latent_scope(self, unit: Unit) -> bool:
        if self._facts.kv_lora_rank and not words.vision_segment(unit.segments):
            return True
        return any(other.name in ("linear_kvb", "kv_b_proj", "linear_kv_up_proj", "wkv_b")
                   for other in self._by_scope[unit.scope])

    def _container_role(self, unit: Unit, part: str) -> Optional[ParamRole]:
        if part not in parts.MLP_PARTS:
            return None
        if self._is_shared(unit):
            return ParamRole.SHARED_EXPERT
        is_stack = unit.dims == 3 and words.place_of(unit.segments) == words.FEED_FORWARD
        return ParamRole.MOE_EXPERT if is_stack or self._is_expert(unit) else None

    # groups of units

    def _solve_structure(self, open_units: List[Unit]):
        self._solve_vocabulary([unit for unit in open_units if unit.dims == 2])
        self._solve_singles([unit for unit in open_units if unit.main.path not in self._decisions])
        remaining = [unit for unit in open_units if unit.main.path not in self._decisions]
        waiting = {unit.path: unit for unit in remaining if self._can_be_linear(unit)
                   and not self._stands_outside(unit) and unit not in self._biases_of_stacks
                   and not any(scope in self._state_scopes for scope in _ancestors(unit.path)[1:])}
        verdicts: Dict[str, structure.Verdict] = {}
        scopes = {scope for unit in waiting.values() for scope in _ancestors(unit.scope)}
        for scope in sorted(scopes, key=lambda scope: -scope.count(".")):
            own = [unit for unit in waiting.values() if unit.scope == scope]
            if own:
                self._solve_group(scope, own, waiting, verdicts)
            below = [unit for unit in waiting.values() if unit.path.startswith(f"{scope}.")]
            if len(below) > len(own) and _block_of(below[0]) in _ancestors(scope):
                self._solve_group(scope, below, waiting, verdicts)
        for unit in remaining:
            if unit.main.path not in self._decisions and unit.main.path not in self._undecided:
                verdict = verdicts.get(unit.path)
                self._give_up(unit, verdict.reason if verdict else "no rule, structure or name decides it",
                              verdict.candidates if verdict else ())

    def _can_be_linear(self, unit: Unit) -> bool:
        """One side of it is the residual stream or a latent."""
        widths = {self._width(unit), self._facts.q_lora_rank, self._facts.kv_lora_rank} - {None}
        is_matrix = unit.dims == 2 or (unit.dims == 3 and self._is_expert(unit))
        return is_matrix and (not widths or bool(widths & set(unit.shape[-2:]))) and min(unit.shape[-2:]) > 1

    def _solve_group(self, scope: str, inside: List[Unit], waiting: Dict[str, Unit], verdicts):
        named = [unit for unit in self._by_scope.get(scope, ()) if unit.dims == inside[0].dims
                 and unit.main.path in self._decisions
                 and self._decisions[unit.main.path].part in parts.ATTENTION_PARTS + parts.MLP_PARTS]
        position = {path: at for at, path in enumerate(self._inventory.parameters)}
        group = sorted(named + inside, key=lambda unit: position[unit.main.path])
        first = inside[0]
        verdict = structure.solve(group, self._facts_of(first), self._width(first), bool(self._ordered),
                                  expert=self._is_expert(first) or self._is_shared(first))
        doubtful = self._doubtful_expert(first, verdict)
        if doubtful:
            verdict = structure.Verdict({}, doubtful)
        for unit in inside:
            if unit.path not in verdicts or verdict.candidates:
                verdicts[unit.path] = verdict
        if not verdict.parts:
            return
        clash = [unit for unit in named if unit.path in verdict.parts and not _same_cut(verdict.parts[unit.path],
                                                         self._decisions[unit.main.path].part)]
        if clash:
            for unit in inside:
                verdicts[unit.path] = structure.Verdict({}, f"the shapes contradict the name of {clash[0].path!r}")
            return
        for unit in inside:
            if unit.path not in verdict.parts:
                continue
            part = verdict.parts[unit.path]
            role = self._container_role(unit, part) or (
                ParamRole.SHARED_EXPERT if part in parts.MLP_PARTS and self._stands_beside_experts(unit) else None)
            self._decide(unit, part, verdict.reason, role=role)
            if unit.dims == 3:
                decision = self._decisions[unit.main.path]
                self._decisions[unit.main.path] = replace(decision, transposed=structure.experts_in_out(
                    unit, part, self._width(unit)))
            del waiting[unit.path]

    def _doubtful_expert(self, unit: Unit, verdict: structure.Verdict) -> str:
        """Why a feed-forward layer of a model with experts may be one of them, or ""."""
        facts = self._facts
        if not facts.experts or not verdict.parts or not set(verdict.parts.values()) <= set(parts.MLP_PARTS) or \
                self._is_expert(unit) or self._is_shared(unit) or self._stands_beside_experts(unit):
            return ""
        if len(unit.number_segments) > 1:
            return f"a numbered module below a block, but not one of {facts.experts} experts of one make"
        down = next((path for path, part in verdict.parts.items() if part == parts.DOWN), None)
        width = max(self._by_path[down].shape[-2:]) if down else None
        narrow = min(self._by_path[down].shape[-2:]) if down else None
        sizes = {facts.expert_ffn_size, facts.shared_ffn_size} - {None, facts.ffn_size}
        if sizes & {width, narrow}:
            return "as wide as an expert, but no experts are seen beside it"
        return ""

    def _stands_beside_experts(self, unit: Unit) -> bool:
        """A feed-forward layer inside the module that holds the experts."""
        above = unit.scope.rpartition(".")[0]
        return any(container.startswith(f"{above}.") and container.count(".") <= unit.scope.count(".")
                   for container in self._expert_scopes) and bool(above) and \
            any(".".join(container.split(".")[:-1]) == above for container in self._expert_scopes)

    def _solve_vocabulary(self, open_units: List[Unit]):
        tables = [unit for unit in self._units if unit.dims == 2 and self._decisions.get(
            unit.main.path) is not None and self._decisions[unit.main.path].part == parts.TOKENS]
        heads = [unit for unit in self._units if self._decisions.get(unit.main.path) is not None
                 and self._decisions[unit.main.path].part == parts.HEAD]
        vocabulary = self._facts.vocab_size or (tables[0].shape[0] if len(tables) == 1 else None)
        fitting = [unit for unit in open_units if unit.shape[0] == vocabulary and self._stands_outside(unit)]
        if not fitting:
            return
        rows = f"{vocabulary} rows are the vocabulary"
        if len(fitting) == 1 and tables:
            self._decide(fitting[0], parts.HEAD, rows, "the table is another", region=fitting[0].path)
        elif len(fitting) == 1:
            self._decide(fitting[0], parts.TOKENS, rows, "nothing else has them", region=fitting[0].path)
        elif len(fitting) == 2 and not tables and not heads:
            self._solve_table_and_head(fitting, rows)

    def _solve_table_and_head(self, fitting: List[Unit], rows: str):
        root = (self._block_roots[0] if self._block_roots else "").rpartition(".")[0]
        inside = [unit for unit in fitting if root and unit.path.startswith(f"{root}.")]
        if len(inside) == 1:
            table, why = inside[0], f"it stands beside the blocks in '{root}', the other outside"
        elif self._ordered:
            table, why = fitting[0], "registered first"
        else:
            for unit in fitting:
                self._give_up(unit, f"{rows}, and so are another's", ("embedding", "output head"))
            return
        for unit in fitting:
            self._decide(unit, parts.TOKENS if unit is table else parts.HEAD, rows, why, region=unit.path)

    def _solve_singles(self, open_units: List[Unit]):
        """Routers, scalar gates and tables, which their own shapes tell."""
        facts = self._facts
        for unit in open_units:
            hidden = self._width(unit)
            if unit.dims != 2 or unit.main.path in self._undecided:
                continue
            rows, columns = unit.shape
            if unit.is_bare and rows == facts.experts and self._stack_bias(unit):
                continue
            if self._stands_outside(unit) and not unit.number_segments:
                positions = [size for size in (facts.positions, facts.source_positions, facts.token_types) if size]
                if any(rows in (size, size + 2) for size in positions) and columns == hidden and rows != hidden:
                    self._decide(unit, parts.OTHER, f"{rows} rows are the positions or types that the configuration gives")
            elif facts.relative_buckets and facts.heads and set(unit.shape) == {facts.relative_buckets, facts.heads}:
                self._decide(unit, parts.HEAD_TABLE, f"{rows} rows are the buckets, {columns} columns the heads")
            elif facts.experts and rows == facts.experts and columns == hidden and not unit.is_bare and \
                    self._has_experts_beside(unit):
                self._decide(unit, parts.ROUTER, f"{rows} rows are the experts, beside them")
            elif rows == 1 and columns == hidden and self._has_experts_beside(unit):
                self._decide(unit, parts.SCALAR_GATE, "one row beside experts")

    def _stack_bias(self, unit: Unit) -> bool:
        """A bare `[experts, n]` beside stacks of experts is the bias of the one that puts out n."""
        self._biases_of_stacks.append(unit)
        return True

    def _label_stack_biases(self):
        for unit in self._biases_of_stacks:
            stacks = [other for other in self._by_scope[unit.scope] if other.dims == 3
                      and other.main.path in self._decisions
                      and self._sizes(other)[0] == unit.shape[1]]
            if len(stacks) == 1:
                base = self._decisions[stacks[0].main.path]
                self._decisions[unit.main.path] = replace(
                    base, reasons=(f"{unit.shape[1]} columns are what {stacks[0].main.path} puts out",), rejected=(),
                    is_bias=True, of=stacks[0].main.path)
                self._undecided.pop(unit.main.path, None)
            elif unit.main.path not in self._decisions:
                self._give_up(unit, f"{unit.shape[0]} rows are the experts, but {len(stacks)} stacks put out "
                                    f"{unit.shape[1]} columns")

    # what names say against what shapes say

    def _check_regions(self):
        """Row weights and the column weights that feed them must have the same width; names that contradict lose."""
        by_scope: Dict[Tuple[str, bool], List[Unit]] = {}
        for unit in self._units:
            decision = self._decisions.get(unit.main.path)
            if decision is not None and decision.part in parts.MLP_PARTS and unit.dims >= 2 and \
                    "rule" not in decision.reasons[0]:
                by_scope.setdefault(unit.scope, []).append(unit)
        for scope, group in by_scope.items():
            self._check_feed_forward(scope, group)
        for unit in self._units:
            decision = self._decisions.get(unit.main.path)
            if decision is not None and decision.part in (parts.UP, parts.GATE) and unit.dims >= 2:
                self._find_fused(unit, decision)
        by_scope = {}
        for unit in self._units:
            decision = self._decisions.get(unit.main.path)
            if decision is not None and decision.part in parts.ATTENTION_PARTS and unit.dims == 2 and \
                    decision.role is not ParamRole.SPECIAL and "rule" not in decision.reasons[0]:
                by_scope.setdefault(unit.scope, []).append(unit)
        for scope, group in by_scope.items():
            self._check_attention(scope, group)

    def _sizes(self, unit: Unit) -> Tuple[int, int]:
        """(out, in) of one expert or of the whole weight."""
        decision = self._decisions[unit.main.path]
        first, second = unit.shape[-2:]
        if decision.stacked > 1:
            first = first // decision.stacked
        return (second, first) if decision.transposed else (first, second)

    def _check_feed_forward(self, scope: str, group: List[Unit]):
        downs = [unit for unit in group if self._decisions[unit.main.path].part == parts.DOWN]
        columns = [unit for unit in group if self._decisions[unit.main.path].part in (parts.GATE, parts.UP,
                                                                                      parts.GATE_UP)]
        if len(downs) == 1 and columns:
            width = self._sizes(downs[0])[1]
            if all(self._sizes(unit)[0] in (width, 2 * width) for unit in columns):
                return
        elif len(downs) < 2 or not columns and len(downs) != 1:
            return
        if len(downs) == 1 and not columns:
            return
        if any(unit.dims != 2 for unit in group):
            bad = True
        else:
            verdict = structure.solve(group, self._facts_of(group[0]), self._width(group[0]), False, expert=True)
            bad = not verdict.parts
        for unit in group:
            old = self._decisions.pop(unit.main.path)
            why = f"the names say {old.part}, the shapes do not"
            if bad:
                self._give_up(unit, why)
            else:
                part = verdict.parts[unit.path]
                self._decide(unit, part, verdict.reason, role=self._container_role(unit, part),
                             rejected=(f"{old.reasons[0]} says {old.part}",) if not _same_cut(part, old.part) else ())

    def _find_fused(self, unit: Unit, decision: Decision):
        """A column weight twice as wide as its row weight reads is gate and up in one."""
        around = self._by_scope[unit.scope] if self._is_expert(unit) else self._by_block[_block_of(unit)]
        siblings = [other for other in around if other.dims == unit.dims and other is not unit
                    and other.main.path in self._decisions
                    and self._decisions[other.main.path].part in parts.MLP_PARTS
                    and self._decisions[other.main.path].role in (
                        decision.role, ParamRole.ROWWISE if decision.role is ParamRole.COLWISE else decision.role)]
        siblings = [other for other in siblings if other.scope == unit.scope] or siblings
        downs = [other for other in siblings if self._decisions[other.main.path].part == parts.DOWN]
        if len(downs) != 1 or any(self._decisions[other.main.path].part in (parts.GATE, parts.UP, parts.GATE_UP)
                                  for other in siblings):
            return
        if self._sizes(unit)[0] == 2 * self._sizes(downs[0])[1]:
            role = decision.role if decision.role in (ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT) else \
                ParamRole.FUSED_GATE_UP
            self._decisions[unit.main.path] = replace(
                decision, part=parts.GATE_UP, role=role,
                reasons=decision.reasons + (f"twice as wide as {downs[0].name} reads",))

    def _check_attention(self, scope: str, group: List[Unit]):
        by_part = {}
        for unit in group:
            by_part.setdefault(self._decisions[unit.main.path].part, []).append(unit)
        out = by_part.get(parts.ATTENTION_OUT, [])
        query, key, value = (by_part.get(part, []) for part in (parts.QUERY, parts.KEY, parts.VALUE))
        if len(out) != 1 or len(query) != 1 or parts.KEY_VALUE in by_part or parts.LATENT in by_part:
            return
        width = self._sizes(out[0])[1]
        fits = self._sizes(query[0])[0] in (width, 2 * width) and all(
            width % self._sizes(unit)[0] == 0 or self._sizes(unit)[0] == width for unit in key[:1])
        if fits:
            return
        if len(key) == len(value) == 1 and self._sizes(key[0])[0] != self._sizes(value[0])[0]:
            return  # value heads of another width than key heads
        for unit in group:
            old = self._decisions.pop(unit.main.path)
            self._give_up(unit, f"the name says {old.part}, but the widths around it ({self._shape_words(group)}) do not "
                                "make an attention")

    @staticmethod
    def _shape_words(group: List[Unit]) -> str:
        return ", ".join(f"{unit.name} {list(unit.shape)}" for unit in group)

    # what goes along

    def _label_extras(self, unit: Unit):
        decision = self._decisions.get(unit.main.path)
        for record in unit.extras:
            if self._rule_for(record, decision):
                continue
            if decision is None:
                blocked = self._undecided.get(unit.main.path)
                self._undecided[record.path] = Undecided(
                    record.path, record.shape, f"its weight {unit.main.path!r} is not decided",
                    blocked.candidates if blocked else ())
                continue
            role = ParamRole.BIAS if decision.role is ParamRole.ROWWISE else decision.role
            self._decisions[record.path] = replace(
                decision, role=role, reasons=(f"bias of {unit.main.path} ({decision.role.name})",), rejected=(),
                is_bias=True, of=unit.main.path)

    def _rule_for(self, record: ParameterRecord, decision: Optional[Decision]) -> bool:
        for rule in self._rules:
            if fnmatch.fnmatchcase(record.path, rule.match):
                self._used.add(rule.match)
                part = parts.PART_OF_ROLE.get(rule.role) or (decision.part if decision else parts.OTHER)
                self._decisions[record.path] = Decision(
                    rule.role, part, decision.region if decision else record.owner, (f"user rule '{rule.match}'",),
                    is_bias=True, of="")
                return True
        return False

    def _label_side_tensors(self):
        for path, record in self._inventory.parameters.items():
            if path in self._decisions or path in self._undecided:
                continue
            if self._rule_for(record, None):
                continue
            adapter = side_tensors.adapter_of(path)
            if adapter:
                self._label_adapter(record, adapter)
            elif side_tensors.is_scale(record):
                self._label_scale(record)
            else:
                word = side_tensors.packed_leaf(record)
                why = f"'{word}' is a packed weight, whose layout this version does not cut" if word else \
                    "no rule, structure or name decides it"
                self._undecided[path] = Undecided(path, record.shape, why)

    def _label_adapter(self, record: ParameterRecord, adapter):
        base = next((self._by_path[path] for path in (adapter.base, f"{adapter.base}.base_layer")
                     if path in self._by_path), None)
        decision = self._decisions.get(base.main.path) if base else None
        if decision is None:
            self._undecided[record.path] = Undecided(record.path, record.shape,
                                                     f"the linear {adapter.base!r} that it adapts is not decided")
            return
        is_row = decision.part in parts.ROW_PARTS
        is_cut = decision.role not in (ParamRole.REPLICATED, ParamRole.MOE_GATE, ParamRole.SKIP)
        follows = is_cut and ((adapter.factor == "a") == is_row if decision.part != parts.TOKENS
                              else adapter.factor == "a")
        role = decision.role if follows and (adapter.factor != "m" or not is_row) else ParamRole.REPLICATED
        if adapter.factor == "m":
            role = decision.role if is_cut and not is_row else ParamRole.REPLICATED
        self._decisions[record.path] = replace(
            decision, role=role, part=decision.part if role is not ParamRole.REPLICATED else parts.OTHER,
            reasons=(f"factor {adapter.factor.upper()} of an adapter of {base.main.path} ({decision.role.name})",),
            rejected=(), of=base.main.path, factor=adapter.factor, transposed=False,
            region=decision.region if decision.part != parts.OTHER else "")

    def _label_scale(self, record: ParameterRecord):
        unit = self._by_path.get(record.owner)
        decision = self._decisions.get(unit.main.path) if unit else None
        if decision is None or unit is None:
            self._undecided[record.path] = Undecided(record.path, record.shape, "the weight that it scales is not decided")
            return
        block = side_tensors.scale_block(unit.shape, record.shape, self._facts.quantised_block)
        if block is None and record.leaf not in ("k_scale", "v_scale", "input_scale"):
            self._undecided[record.path] = Undecided(
                record.path, record.shape, f"its shape fits no block of the weight {list(unit.shape)}")
            return
        self._decisions[record.path] = replace(decision, reasons=(
            f"scales of {unit.main.path} ({decision.role.name}), one for {list(block or unit.shape)}",), rejected=(),
                                               of=unit.main.path, factor="scale")

    # the end

    def _give_up(self, unit: Unit, why: str, candidates: Tuple[str, ...] = ()):
        self._undecided[unit.main.path] = Undecided(unit.main.path, unit.shape, why, candidates, unit.main.owner_class)

    def _check_rules_used(self):
        unused = [rule.match for rule in self._rules if rule.match not in self._used]
        if unused:
            raise ValueError(f"auto_tp_config.rules: {unused[0]!r} matches no parameter; nearest: "
                             f"{', '.join(nearest(unused[0], self._inventory.parameters))}")
        if self._unknown != "replicate":
            return
        for path, undecided in self._undecided.items():
            self._decisions[path] = Decision(ParamRole.REPLICATED, parts.OTHER, path.rpartition(".")[0],
                                             ("auto_tp_config.unknown: replicate",), (undecided.why,))
        self._undecided.clear()


def refusal(undecided: Sequence[Undecided]) -> str:
    """The message about what nothing decides: what, why, candidates and the ways out."""
    first = undecided[0]
    plain = ParameterClassifier().classify_param(first.path)
    hint = f" Its name alone would say {plain.name}." if plain is not ParamRole.SKIP else ""
    more = [one.path for one in undecided[1:_MAX_LISTED]]
    others = f" Likewise {len(undecided) - 1} more: {', '.join(map(repr, more))}" + (
        ", …." if len(undecided) > _MAX_LISTED else ".") if more else ""
    return (f"{first.describe()}{hint}{others} Say it with auto_tp_config.rules: [{{match: \"{first.path}\", role: ROLE}}] "
            f"(roles: {', '.join(ParamRole.__members__)}), or set auto_tp_config.unknown: replicate")


def is_registration_order(inventory: Inventory) -> bool:
    """Are the parameters listed as their modules registered them?

    Files list them by name. There a bias stands before its weight; without biases registration shows in the outline: the
    vocabulary's table before the blocks and before other tables beside it, nothing of its size but the head after the
    blocks, and all of a block's attention before its feed-forward layer.
    """
    if inventory.modules:
        return True
    paths = list(inventory.parameters)
    position = {path: at for at, path in enumerate(paths)}
    biased = [(position[path], position[f"{path[:-4]}weight"]) for path in paths
              if path.endswith(".bias") and f"{path[:-4]}weight" in position]
    if biased:
        return all(weight < bias for bias, weight in biased)
    vocabulary = inventory.facts.vocab_size
    tables = [at for at, path in enumerate(paths) if len(inventory.parameters[path].shape) == 2
              and inventory.parameters[path].shape[0] == vocabulary]
    if not tables:
        return False
    blocks = [at for at, path in enumerate(paths) if _BLOCK.search(path) and at > tables[0]]
    if not blocks or any(at < blocks[0] for at in tables[1:]) or any(
            _BLOCK.match(paths[at]).group(0).rpartition(".")[0].rpartition(".")[0] ==
            _BLOCK.match(paths[blocks[0]]).group(0).rpartition(".")[0].rpartition(".")[0]
            for at in range(tables[0]) if _BLOCK.match(paths[at])):
        return False
    block = _BLOCK.match(paths[blocks[0]]).group(0)
    shapes = [inventory.parameters[path].shape for path in paths if path.startswith(block)]
    return _attention_comes_first([shape for shape in shapes if len(shape) == 2], inventory.facts)


def _attention_comes_first(shapes: List[Tuple[int, ...]], facts) -> bool:
    """In a block's matrices, those of a feed-forward layer's width come last."""
    heads_width = facts.heads * facts.head_dim if facts.heads and facts.head_dim else None
    kv_width = facts.kv_heads * facts.head_dim if facts.kv_heads and facts.head_dim else None
    certain = [(at, shape) for at, shape in enumerate(shapes) if kv_width not in shape and min(shape) > 1]
    wide = [at for at, shape in certain if _is_feed_forward(shape, facts, heads_width) or facts.experts in shape]
    narrow = [at for at, shape in certain if at not in wide]
    return bool(wide) and bool(narrow) and max(narrow) < min(wide)


def _is_feed_forward(shape, facts, heads_width) -> bool:
    others = [size for size in shape if size != facts.hidden_size]
    return any(size in others or 2 * size in others for size in facts.ffn_sizes + (4 * (facts.hidden_size or 0),)
               if size and size not in (heads_width,))


def _same_cut(part: str, other: str) -> bool:
    column = (parts.QUERY, parts.KEY, parts.VALUE)
    feed = (parts.GATE, parts.UP)
    return part == other or (part in column and other in column) or (part in feed and other in feed)


def _default_part(role: ParamRole, unit: Unit) -> str:
    """The part of a parameter of which only the role is said."""
    if role in (ParamRole.COLWISE, ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT):
        return parts.UP
    return {ParamRole.ROWWISE: parts.DOWN}.get(role, parts.OTHER)


def _owner_name(unit: Unit) -> str:
    """The last segment that is no number: `norms.0` is named by `norms`."""
    return next((segment for segment in reversed(unit.segments) if not segment.isdigit()), "")


def _ancestors(path: str) -> List[str]:
    """The path and every module around it, innermost first."""
    found = []
    while path:
        found.append(path)
        path = path.rpartition(".")[0]
    return found


def _block_of(unit: Unit) -> str:
    """Path of the block around a unit, by the first number in its path."""
    numbers = unit.number_segments
    return ".".join(unit.path.split(".")[:numbers[0] + 1]) if numbers else ""


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
