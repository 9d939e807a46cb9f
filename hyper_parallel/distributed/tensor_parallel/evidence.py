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
import fnmatch
from typing import Callable, Dict, Optional, Sequence, Tuple

from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.tensor_parallel import parts, side_tensors, words
from hyper_parallel.distributed.tensor_parallel.decisions import (  # re-exported: the classifier's data
    Decision, RoleRule, Undecided, check_dims, default_part, nearest, read_rules, refusal)
from hyper_parallel.distributed.tensor_parallel.followers import Followers
from hyper_parallel.distributed.tensor_parallel.group_witness import GroupWitness
from hyper_parallel.distributed.tensor_parallel.ledger import Ledger
from hyper_parallel.distributed.tensor_parallel.param_role import ParameterClassifier, ParamRole
from hyper_parallel.distributed.tensor_parallel.registration_order import is_registration_order
from hyper_parallel.distributed.tensor_parallel.stack_orientation import orient_square_stacks
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings, ancestors, block_of, owner_name
from hyper_parallel.distributed.tensor_parallel.units import Unit
from hyper_parallel.distributed.tensor_parallel.width_witness import WidthWitness
from hyper_parallel.distributed.tensor_parallel.words import part_of_segment

__all__ = ["Decision", "EvidenceClassifier", "RoleRule", "Undecided", "is_registration_order", "nearest",
           "part_of_segment", "read_rules", "refusal"]

_FLOATS = ("float", "f16", "f32", "f64", "bf16", "bfloat", "half", "double", "f8", "e4m3", "e5m2")


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
        self._around = Surroundings(inventory)
        self._ledger = Ledger(self._around, rules)
        self._unknown = unknown
        self._ordered = is_registration_order(inventory) if ordered is None else ordered

    def classify(self, kept_whole: Callable[[str], Optional[str]] = lambda path: None) -> Dict[str, Decision]:
        """Every parameter's decision, in the inventory's order.

        Args:
            kept_whole: the user's override that keeps a path whole, or None; such a parameter need not be understood.

        Raises:
            ValueError: parameters that nothing decides, or a rule that matches nothing.
        """
        decisions, undecided = self.classify_all()
        for path in list(undecided):
            override = kept_whole(path)
            if override:
                del undecided[path]
                decisions[path] = Decision(ParamRole.REPLICATED, parts.OTHER, "", (f"kept whole by '{override}'",))
        if undecided:
            raise ValueError(refusal(list(undecided.values())))
        return {path: decisions[path] for path in self._around.inventory.parameters}

    def classify_all(self) -> Tuple[Dict[str, Decision], Dict[str, Undecided]]:
        """What is decided, and what is not; nothing is raised for the latter.

        Raises:
            ValueError: a rule matches nothing.
        """
        ledger = self._ledger
        open_units = [unit for unit in self._around.units if not self._label(unit)]
        groups = GroupWitness(self._around, ledger, self._ordered)
        groups.solve(open_units)
        WidthWitness(self._around, ledger).check()
        orient_square_stacks(self._around, ledger)
        groups.label_stack_biases()
        Followers(self._around, ledger).label()
        ledger.check_rules_used()
        if self._unknown == "replicate":
            ledger.replicate_undecided()
        order = self._around.inventory.parameters
        return ({path: ledger.decisions[path] for path in order if path in ledger.decisions},
                {path: ledger.undecided[path] for path in order if path in ledger.undecided})

    def _label(self, unit: Unit) -> bool:
        """True when the unit needs no structure."""
        record = unit.main
        if side_tensors.adapter_of(record.path) or side_tensors.is_scale(record) or side_tensors.packed_leaf(record):
            return True
        return (self._by_rule(unit) or self._by_family(unit) or self._by_buffer(unit) or self._by_state(unit)
                or self._by_class(unit) or self._by_dims(unit) or self._by_name(unit))

    def _by_rule(self, unit: Unit) -> bool:
        for rule in self._ledger.rules:
            if rule.matches(unit.main.path):
                self._ledger.used.add(rule.match)
                check_dims(rule, unit)
                named = self._around.name_part(unit)[0]
                agrees = named is not None and parts.ROLE_OF_PART[named] is rule.role
                expert = rule.role in (ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT) and named is not None
                part = parts.PART_OF_ROLE.get(rule.role) or (
                    named if agrees or expert else default_part(rule.role, unit))
                return self._ledger.decide(unit, part, f"user rule '{rule.match}'", role=rule.role,
                                    rejected=self._plain_witness(unit, rule.role))
        return False

    def _plain_witness(self, unit: Unit, role: ParamRole) -> Tuple[str, ...]:
        plain = ParameterClassifier().classify_param(unit.main.path)
        return () if plain in (role, ParamRole.SKIP) else (f"the name alone says {plain.name}",)

    def _by_family(self, unit: Unit) -> bool:
        for entry in self._around.adapter.sharding_rules:
            if fnmatch.fnmatchcase(unit.main.path, entry[0]):
                part = entry[2] if len(entry) > 2 else parts.PART_OF_ROLE.get(entry[1]) or \
                    self._around.name_part(unit)[0] or default_part(entry[1], unit)
                why = f"family {self._around.facts.model_type}: '{entry[0]}'"
                return self._ledger.decide(unit, part, why, role=entry[1])
        for glob, reason in self._around.adapter.whole:
            if any(fnmatch.fnmatchcase(prefix, glob) for prefix in ancestors(unit.path)) and unit.dims >= 1 and \
                    not words.is_norm(unit.name) and words.is_buffer(unit.segments) is None:
                special = words.side_state(unit.segments) or unit.name == "attn_sink"
                return self._ledger.decide(unit, parts.OTHER, f"family {self._around.facts.model_type}: {reason}",
                                    role=ParamRole.SPECIAL if special else ParamRole.REPLICATED)
        return False

    def _by_buffer(self, unit: Unit) -> bool:
        word = words.is_buffer(unit.segments)
        if word and (unit.is_bare or word in ("rotary_emb",)):
            return self._ledger.decide(unit, parts.OTHER, f"'{word}' is a buffer", role=ParamRole.SKIP)
        dtype = unit.main.dtype.lower()
        if not any(word in dtype for word in _FLOATS) and unit.dims <= 1:
            return self._ledger.decide(unit, parts.OTHER, f"{unit.main.dtype} numbers are no weight",
                                       role=ParamRole.SKIP)
        if unit.is_bare and unit.name == "bias" and unit.dims >= 3:
            return self._ledger.decide(unit, parts.OTHER, "a mask, by its dims", role=ParamRole.SKIP)
        if words.side_state(unit.segments) and not words.is_norm(unit.name):
            why = f"'{words.side_state(unit.segments)}' has a handler of its own"
            return self._ledger.decide(unit, parts.OTHER, why, role=ParamRole.SPECIAL)
        return False

    def _by_state(self, unit: Unit) -> bool:
        scope = next((scope for scope in ancestors(unit.path)[1:] if scope in self._around.state_scopes), None)
        if scope is None:
            return False
        why = self._around.state_scopes[scope]
        name = unit.name
        if name.startswith("time_"):
            return self._ledger.decide(unit, parts.STATE_MIX if "mix" in name else parts.STATE_VECTOR, f"'{name}'")
        if any(member.startswith(f"{scope}.time_mix_") or member.startswith(f"{scope}.time_decay")
               for member in self._around.by_path):
            return self._rwkv(unit, scope, why)
        below = [other for other in self._around.by_block[block_of(unit)] if other.path.startswith(f"{scope}.")]
        matrices, hidden = [other for other in below if other.dims == 2], self._around.hidden
        outs = [other for other in matrices if other.name in ("out_proj", "o_proj", "output")] or [
            other for other in matrices if other.shape[0] == hidden != other.shape[1]] or [
                other for other in matrices if other.shape[0] == hidden]
        inner = outs[0].shape[1] if len(outs) == 1 else None
        if outs and unit is outs[0]:
            return self._ledger.decide(unit, parts.STATE_OUT, why, f"'{name}' leads out of it", region=scope)
        if unit.dims == 1 and not unit.is_bare:
            if inner is not None and unit.shape[0] == inner:
                return self._ledger.decide(unit, parts.STATE_NORM, why, "a norm over the inner width, which is cut",
                                    region=scope)
            return self._ledger.decide(unit, parts.NORM_SCALE, "one dim, alone in its module", region=scope)
        if unit.dims >= 3:
            return self._ledger.decide(unit, parts.STATE_CONV, why, region=scope)
        if unit.is_bare:
            return self._ledger.decide(unit, parts.STATE_VECTOR, why, region=scope)
        if name in ("x_proj", "dt_proj", "bcdt_proj"):
            part = parts.STATE_STEP if name == "dt_proj" else parts.STATE_SMALL
            return self._ledger.decide(unit, part, why, region=scope)
        if unit.dims != 2 or inner is None:
            return False
        if name.startswith("in_proj") or self._around.name_part(unit)[0] is None and unit.shape[1] == hidden:
            return self._ledger.decide(unit, parts.STATE_IN, why, f"'{name}' leads into it", region=scope)
        return False

    def _rwkv(self, unit: Unit, scope: str, why: str) -> bool:
        names = {other.name for other in self._around.units if other.scope == scope}
        if "output" in names:
            part = {"key": parts.UP, "value": parts.UP, "receptance": parts.UP, "gate": parts.UP,
                    "output": parts.DOWN}.get(unit.name)
        else:
            part = {"key": parts.UP, "value": parts.DOWN, "receptance": parts.CHANNEL_GATE}.get(unit.name)
        return part is not None and self._ledger.decide(unit, part, why, f"'{unit.name}' of time or channel mixing")

    def _by_class(self, unit: Unit) -> bool:
        record = unit.main
        if unit.dims == 1 and record.is_norm_owned:
            return self._ledger.decide(unit, parts.NORM_SCALE, f"owner is a {record.owner_class}", region=record.owner)
        if record.is_table:
            vocabulary = self._around.facts_of(unit).vocab_size
            named = self._around.name_part(unit)[0]
            if named == parts.HEAD_TABLE:
                return False
            if named == parts.TOKENS and (vocabulary is None or record.shape[0] >= vocabulary) or \
                    record.shape[0] == vocabulary:
                return self._ledger.decide(unit, parts.TOKENS, f"owner is a {record.owner_class or 'table'}",
                                    f"{record.shape[0]} rows are the vocabulary", region=record.owner)
            return self._ledger.decide(unit, parts.OTHER, f"owner is a {record.owner_class or 'table'}",
                                f"{record.shape[0]} rows are not the vocabulary", region=record.owner)
        return False

    def _by_dims(self, unit: Unit) -> bool:
        """Norms, vectors, stems and tables, which the number of dims and the owner tell."""
        name, dims = unit.name, unit.dims
        owner = owner_name(unit)
        if dims <= 2 and words.is_norm(owner) and (dims == 1 or unit.shape[0] < unit.shape[1] * 64):
            if dims == 1 or not any(word in owner for word in ("proj", "linear")):
                return self._ledger.decide(unit, parts.NORM_SCALE, f"owner segment '{owner}'", region=unit.path)
        if dims <= 1:
            return self._vector(unit, name)
        if words.is_table(unit.segments) or words.is_table(unit.segments + ("",)):
            return self._ledger.decide(unit, parts.OTHER, "position, type or patch table")
        if dims >= 3 and not self._around.is_expert(unit) and not self._around.is_expert_shape(unit):
            if unit.is_bare and dims == 3 and self._around.facts.experts is None and \
                    self._around.name_part(unit)[0] in parts.MLP_PARTS:
                return False
            if self._around.stands_outside(unit) or words.vision_segment(unit.segments) is not None:
                return self._ledger.decide(unit, parts.OTHER, f"{dims} dims, outside of every block: a stem")
            return False
        whole = words.is_whole_by_name(unit.segments)
        named = self._around.name_part(unit)[0]
        if whole and named not in (parts.HEAD, parts.TOKENS) and (
                words.place_of(unit.segments) is None or whole in ("multi_modal_projector", "merger", "mm_projector",
                                                                   "vision_adapter", "connector", "projector")) and \
                self._around.stands_outside(unit):
            return self._ledger.decide(unit, parts.OTHER, f"'{whole}' is a task head or a projector")
        if unit.shape[0] == 1 and not unit.is_bare and named is None and self._around.stands_outside(unit):
            return self._ledger.decide(unit, parts.OTHER, "one row: a value head")
        if named == parts.OTHER:
            return self._ledger.decide(unit, parts.OTHER,
                                       f"'{'.'.join(unit.segments[-2:])}' stands before the output head")
        return False

    def _vector(self, unit: Unit, name: str) -> bool:
        part, why = self._around.name_part(unit)
        if part == parts.HEAD_VECTOR:
            return self._ledger.decide(unit, part, why)
        if part == parts.ROUTER:
            return self._ledger.decide(unit, part, why)
        if part == parts.HEAD and unit.is_bare:
            return self._ledger.decide(unit, part, why, region=unit.scope)
        if unit.dims == 0 or unit.shape[0] == 1:
            return self._ledger.decide(unit, parts.OTHER, "one number")
        if words.is_layer_scale(name) or words.is_table(unit.segments):
            return self._ledger.decide(unit, parts.OTHER, f"'{name}' is as wide as the residual stream")
        if not unit.is_bare and unit.shape[0] in self._around.norm_lengths(unit):
            return self._ledger.decide(unit, parts.NORM_SCALE, "one dim, alone in its module", region=unit.path)
        if words.is_whole_by_name(unit.segments):
            return self._ledger.decide(unit, parts.OTHER, f"'{words.is_whole_by_name(unit.segments)}' is whole")
        facts = self._around.facts_of(unit)
        if unit.is_bare and unit.shape[0] == facts.heads and unit.shape[0] not in (
                facts.head_dim, facts.experts, self._around.width(unit)) and self._around.has_matrices_beside(unit):
            return self._ledger.decide(unit, parts.HEAD_VECTOR, f"one number for each of {facts.heads} heads")
        if unit.is_bare and unit.name != "bias" and self._around.stands_outside(unit):
            return self._ledger.decide(unit, parts.OTHER, "one dim, outside of every block: whole everywhere is exact")
        return False

    def _by_name(self, unit: Unit) -> bool:
        part, why = self._around.name_part(unit)
        if part is None:
            return False
        facts = self._around.facts_of(unit)
        rows, columns = (unit.shape[-2:] if unit.dims >= 2 else (unit.shape[0], None))
        if part == parts.TOKENS:
            if unit.dims != 2 or (facts.vocab_size and rows < facts.vocab_size):
                return False
            return self._ledger.decide(unit, part, why, region=unit.main.owner)
        if part == parts.HEAD:
            if facts.vocab_size and rows < facts.vocab_size:
                return False
            return self._ledger.decide(unit, part, why, region=unit.main.owner)
        if part == parts.HEAD_TABLE:
            if facts.heads and unit.dims == 2 and facts.heads not in unit.shape:
                return False
            return self._ledger.decide(unit, part, why)
        if unit.dims == 1 and part not in (parts.ROUTER, parts.HEAD_VECTOR):
            return False
        if part == parts.ROUTER and unit.dims == 2 and self._around.is_expert(unit) and unit.name == "gate":
            part, why = parts.GATE, "'gate' inside an expert"
        if part == parts.ROUTER and facts.experts and unit.dims == 2 and facts.experts not in unit.shape:
            return False
        if part in (parts.SCALAR_GATE,) and unit.dims == 2 and rows != 1:
            return False
        if part == parts.QKV and self._around.is_latent_scope(unit):
            return self._ledger.decide(unit, parts.LATENT, why, "projections up from a latent beside it")
        role = self._around.container_role(unit, part)
        if unit.dims == 3 and role is None and part not in (parts.OTHER,):
            return False
        return self._ledger.decide(unit, part, why, role=role)
