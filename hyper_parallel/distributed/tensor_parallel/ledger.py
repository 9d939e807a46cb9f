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
"""The record of decisions while witnesses are heard."""
import fnmatch
from typing import Dict, Optional, Sequence, Tuple

from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.decisions import Decision, RoleRule, Undecided, nearest
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings
from hyper_parallel.distributed.tensor_parallel.units import Unit


class Ledger:
    """Decisions by parameter, and what could not be decided.

    Args:
        around: the model's units.
        rules: user rules.
    """

    def __init__(self, around: Surroundings, rules: Sequence[RoleRule]):
        self._around = around
        self.rules = rules
        self.used = set()
        self.decisions: Dict[str, Decision] = {}
        self.undecided: Dict[str, Undecided] = {}

    def part(self, unit: Unit) -> Optional[str]:
        """The part that is decided, or None."""
        decision = self.decisions.get(unit.main.path)
        return None if decision is None else decision.part

    def decide(self, unit: Unit, part: str, *reasons: str, role: Optional[ParamRole] = None, region: str = None,
                rejected: Tuple[str, ...] = ()) -> bool:
        """Write a decision about a unit\'s weight; returns True."""
        transposed, why = self._transposed(unit)
        stacked = self._stacked(unit)
        self.decisions[unit.main.path] = Decision(
            role or parts.ROLE_OF_PART[part], part, unit.scope if region is None else region,
            tuple(reason for reason in reasons + (why,) if reason), rejected, transposed, stacked)
        return True

    def _transposed(self, unit: Unit) -> Tuple[bool, str]:
        if unit.dims < 2:
            return False, ""
        glob = next((glob for glob in self._around.adapter.in_out if fnmatch.fnmatchcase(unit.main.path, glob)), None)
        if glob and unit.main.layout is None:
            return True, f"family {self._around.facts.model_type} stores it [in, out]"
        stored = unit.stored_in_out()
        if stored is not None:
            return stored, ""
        if unit.dims == 2 and self._around.adapter.linears_in_out and not unit.is_bare and \
                not self._around.stands_outside(unit):
            return True, f"family {self._around.facts.model_type} stores its linears [in, out]"
        if unit.dims == 2 and unit.name in ("weight1", "weight2"):
            return True, "experts one below the other, [in, out]"
        if unit.dims == 3 and unit.shape[0] > 1 and unit.shape[1] > 1:
            hidden = self._around.width(unit)
            part = self._around.name_part(unit)[0]
            if hidden in unit.shape[1:] and unit.shape[1] != unit.shape[2] and part is not None:
                reads_hidden = part not in parts.ROW_PARTS
                return (unit.shape[1] == hidden) == reads_hidden, ""
            return unit.is_bare, ""
        return False, ""

    def _stacked(self, unit: Unit) -> int:
        if unit.dims != 2 or not unit.is_bare:
            return 1
        experts = self._around.facts.experts
        if any(fnmatch.fnmatchcase(unit.main.path, glob) for glob in self._around.adapter.stacked) or (
                unit.name in ("weight1", "weight2") and self._around.is_expert(unit)):
            return experts or 1
        return 1

    def sizes(self, unit: Unit) -> Tuple[int, int]:
        """(out, in) of one expert or of the whole weight."""
        decision = self.decisions[unit.main.path]
        first, second = unit.shape[-2:]
        if decision.stacked > 1:
            first = first // decision.stacked
        return (second, first) if decision.transposed else (first, second)

    def give_up(self, unit: Unit, why: str, candidates: Tuple[str, ...] = ()):
        """Nothing decides this unit."""
        self.undecided[unit.main.path] = Undecided(unit.main.path, unit.shape, why, candidates, unit.main.owner_class)

    def check_rules_used(self):
        """Every rule must have decided something.

        Raises:
            ValueError: one matches nothing; the nearest names are given.
        """
        unused = [rule.match for rule in self.rules if rule.match not in self.used]
        if unused:
            raise ValueError(f"auto_tp_config.rules: {unused[0]!r} matches no parameter; nearest: "
                             f"{', '.join(nearest(unused[0], self._around.inventory.parameters))}")

    def replicate_undecided(self):
        """What nothing decides stays whole, as the user asked."""
        for path, undecided in self.undecided.items():
            self.decisions[path] = Decision(ParamRole.REPLICATED, parts.OTHER, path.rpartition(".")[0],
                                            ("auto_tp_config.unknown: replicate",), (undecided.why,))
        self.undecided.clear()
