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
"""Widths as a witness: a row weight reads what the column weights beside it put out, or the names are wrong."""
from dataclasses import replace
from typing import Dict, List, Tuple

from hyper_parallel.distributed.tensor_parallel import parts, structure
from hyper_parallel.distributed.tensor_parallel.decisions import Decision, same_cut
from hyper_parallel.distributed.tensor_parallel.ledger import Ledger
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings, block_of
from hyper_parallel.distributed.tensor_parallel.units import Unit


class WidthWitness:
    """Holds what names say against what shapes say.

    Args:
        around: the model's units.
        ledger: where decisions are corrected or taken back.
    """

    def __init__(self, around: Surroundings, ledger: Ledger):
        self._around = around
        self._ledger = ledger

    def check(self):
        """Row weights and the column weights that feed them must have the same width; names that contradict lose."""
        by_scope: Dict[Tuple[str, bool], List[Unit]] = {}
        for unit in self._around.units:
            decision = self._ledger.decisions.get(unit.main.path)
            if decision is not None and decision.part in parts.MLP_PARTS and unit.dims >= 2 and \
                    "rule" not in decision.reasons[0]:
                by_scope.setdefault(unit.scope, []).append(unit)
        for scope, group in by_scope.items():
            self._check_feed_forward(scope, group)
        for unit in self._around.units:
            decision = self._ledger.decisions.get(unit.main.path)
            if decision is not None and decision.part in (parts.UP, parts.GATE, parts.GATE_UP) and \
                    unit.dims >= 2 and "rule" not in decision.reasons[0]:
                self._find_fused(unit, decision)
        by_scope = {}
        for unit in self._around.units:
            decision = self._ledger.decisions.get(unit.main.path)
            if decision is not None and decision.part in parts.ATTENTION_PARTS and unit.dims == 2 and \
                    decision.role is not ParamRole.SPECIAL and "rule" not in decision.reasons[0]:
                by_scope.setdefault(unit.scope, []).append(unit)
        for scope, group in by_scope.items():
            self._check_attention(scope, group)

    def _check_feed_forward(self, scope: str, group: List[Unit]):
        downs = [unit for unit in group if self._ledger.decisions[unit.main.path].part == parts.DOWN]
        columns = [unit for unit in group if self._ledger.decisions[unit.main.path].part in (parts.GATE, parts.UP,
                                                                                      parts.GATE_UP)]
        if len(downs) == 1 and columns:
            width = self._ledger.sizes(downs[0])[1]
            fitting = (width,) if len(columns) > 1 else (width, 2 * width)
            if all(self._ledger.sizes(unit)[0] in fitting for unit in columns):
                return
        elif len(downs) < 2 or not columns and len(downs) != 1:
            return
        if len(downs) == 1 and not columns:
            return
        if any(unit.dims != 2 for unit in group):
            bad = True
        else:
            verdict = structure.solve(group, self._around.facts_of(group[0]), self._around.width(group[0]), False,
                                      expert=True)
            bad = not verdict.parts
        for unit in group:
            old = self._ledger.decisions.pop(unit.main.path)
            why = f"the names say {old.part}, the shapes do not"
            if bad:
                self._ledger.give_up(unit, why)
            else:
                part = verdict.parts[unit.path]
                self._ledger.decide(unit, part, verdict.reason, role=self._around.container_role(unit, part),
                             rejected=(f"{old.reasons[0]} says {old.part}",) if not same_cut(part, old.part) else ())

    def _find_fused(self, unit: Unit, decision: Decision):
        """A column weight twice as wide as its row weight reads is gate and up in one; one as wide as that is not."""
        is_expert = self._around.is_expert(unit)
        in_experts = decision.role in (ParamRole.MOE_EXPERT, ParamRole.SHARED_EXPERT)
        around = self._around.by_scope[unit.scope] if is_expert else self._around.by_block[block_of(unit)]
        siblings = [other for other in around if other.dims == unit.dims and other is not unit
                    and other.main.path in self._ledger.decisions
                    and self._ledger.decisions[other.main.path].part in parts.MLP_PARTS
                    and self._ledger.decisions[other.main.path].role in (
                        decision.role, decision.role if in_experts else ParamRole.ROWWISE)]
        siblings = [other for other in siblings if other.scope == unit.scope] or siblings
        downs = [other for other in siblings if self._ledger.decisions[other.main.path].part == parts.DOWN]
        if len(downs) != 1 or any(self._ledger.decisions[other.main.path].part in (parts.GATE, parts.UP, parts.GATE_UP)
                                  for other in siblings):
            return
        rows, width = self._ledger.sizes(unit)[0], self._ledger.sizes(downs[0])[1]
        if rows == 2 * width and decision.part != parts.GATE_UP:
            part, role, why = parts.GATE_UP, ParamRole.FUSED_GATE_UP, f"twice as wide as {downs[0].name} reads"
        elif rows == width and decision.part == parts.GATE_UP:
            part, role, why = parts.UP, ParamRole.COLWISE, f"as wide as {downs[0].name} reads: no gate in it"
        else:
            return
        self._ledger.decisions[unit.main.path] = replace(
            decision, part=part, role=decision.role if in_experts else role, reasons=decision.reasons + (why,))

    def _check_attention(self, scope: str, group: List[Unit]):
        by_part = {}
        for unit in group:
            by_part.setdefault(self._ledger.decisions[unit.main.path].part, []).append(unit)
        out = by_part.get(parts.ATTENTION_OUT, [])
        query, key, value = (by_part.get(part, []) for part in (parts.QUERY, parts.KEY, parts.VALUE))
        if len(out) != 1 or len(query) != 1 or parts.KEY_VALUE in by_part or parts.LATENT in by_part:
            return
        width = self._ledger.sizes(out[0])[1]
        fits = self._ledger.sizes(query[0])[0] in (width, 2 * width) and all(
            width % self._ledger.sizes(unit)[0] == 0 or self._ledger.sizes(unit)[0] == width for unit in key[:1])
        if fits:
            return
        if len(key) == len(value) == 1 and self._ledger.sizes(key[0])[0] != self._ledger.sizes(value[0])[0]:
            return  # value heads of another width than key heads
        for unit in group:
            old = self._ledger.decisions.pop(unit.main.path)
            self._ledger.give_up(unit, f"the name says {old.part}, but the widths around it "
                                f"({self._shape_words(group)}) do not make an attention")

    @staticmethod
    def _shape_words(group: List[Unit]) -> str:
        return ", ".join(f"{unit.name} {list(unit.shape)}" for unit in group)
