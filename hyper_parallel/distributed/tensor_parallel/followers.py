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
"""What follows a weight: its bias, the factors of its adapters, the scales of its blocks."""
import fnmatch
from dataclasses import replace
from typing import Optional

from hyper_parallel.distributed.inventory import ParameterRecord
from hyper_parallel.distributed.tensor_parallel import parts, side_tensors
from hyper_parallel.distributed.tensor_parallel.decisions import Decision, Undecided
from hyper_parallel.distributed.tensor_parallel.ledger import Ledger
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings
from hyper_parallel.distributed.tensor_parallel.units import Unit


class Followers:
    """Labels what goes along with a decided weight.

    Args:
        around: the model's units.
        ledger: where decisions are written.
    """

    def __init__(self, around: Surroundings, ledger: Ledger):
        self._around = around
        self._ledger = ledger

    def label(self):
        """Biases of units first, then tensors that stand beside weights."""
        for unit in self._around.units:
            self._label_extras(unit)
        self._label_side_tensors()

    def _label_extras(self, unit: Unit):
        decision = self._ledger.decisions.get(unit.main.path)
        for record in unit.extras:
            if self._rule_for(record, decision):
                continue
            if decision is None:
                blocked = self._ledger.undecided.get(unit.main.path)
                self._ledger.undecided[record.path] = Undecided(
                    record.path, record.shape, f"its weight {unit.main.path!r} is not decided",
                    blocked.candidates if blocked else ())
                continue
            role = ParamRole.BIAS if decision.role is ParamRole.ROWWISE else decision.role
            self._ledger.decisions[record.path] = replace(
                decision, role=role, reasons=(f"bias of {unit.main.path} ({decision.role.name})",), rejected=(),
                is_bias=True, of=unit.main.path)

    def _rule_for(self, record: ParameterRecord, decision: Optional[Decision]) -> bool:
        for rule in self._ledger.rules:
            if fnmatch.fnmatchcase(record.path, rule.match):
                self._ledger.used.add(rule.match)
                part = parts.PART_OF_ROLE.get(rule.role) or (decision.part if decision else parts.OTHER)
                self._ledger.decisions[record.path] = Decision(
                    rule.role, part, decision.region if decision else record.owner, (f"user rule '{rule.match}'",),
                    is_bias=True, of="")
                return True
        return False

    def _label_side_tensors(self):
        for path, record in self._around.inventory.parameters.items():
            if path in self._ledger.decisions or path in self._ledger.undecided:
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
                self._ledger.undecided[path] = Undecided(path, record.shape, why)

    def _label_adapter(self, record: ParameterRecord, adapter):
        base = next((self._around.by_path[path] for path in (adapter.base, f"{adapter.base}.base_layer")
                     if path in self._around.by_path), None)
        decision = self._ledger.decisions.get(base.main.path) if base else None
        if decision is None:
            self._ledger.undecided[record.path] = Undecided(record.path, record.shape,
                                                     f"the linear {adapter.base!r} that it adapts is not decided")
            return
        is_row = decision.part in parts.ROW_PARTS
        is_cut = decision.role not in (ParamRole.REPLICATED, ParamRole.MOE_GATE, ParamRole.SKIP)
        follows = is_cut and ((adapter.factor == "a") == is_row if decision.part != parts.TOKENS
                              else adapter.factor == "a")
        role = decision.role if follows and (adapter.factor != "m" or not is_row) else ParamRole.REPLICATED
        if adapter.factor == "m":
            role = decision.role if is_cut and not is_row else ParamRole.REPLICATED
        self._ledger.decisions[record.path] = replace(
            decision, role=role, part=decision.part if role is not ParamRole.REPLICATED else parts.OTHER,
            reasons=(f"factor {adapter.factor.upper()} of an adapter of {base.main.path} ({decision.role.name})",),
            rejected=(), of=base.main.path, factor=adapter.factor, transposed=False,
            region=decision.region if decision.part != parts.OTHER else "")

    def _label_scale(self, record: ParameterRecord):
        unit = self._around.by_path.get(record.owner)
        decision = self._ledger.decisions.get(unit.main.path) if unit else None
        if decision is None or unit is None:
            self._ledger.undecided[record.path] = Undecided(record.path, record.shape,
                                                            "the weight that it scales is not decided")
            return
        block = side_tensors.scale_block(unit.shape, record.shape, self._around.facts.quantised_block)
        if block is None and record.leaf not in ("k_scale", "v_scale", "input_scale"):
            self._ledger.undecided[record.path] = Undecided(
                record.path, record.shape, f"its shape fits no block of the weight {list(unit.shape)}")
            return
        self._ledger.decisions[record.path] = replace(decision, reasons=(
            f"scales of {unit.main.path} ({decision.role.name}), one for {list(block or unit.shape)}",), rejected=(),
                                               of=unit.main.path, factor="scale")
