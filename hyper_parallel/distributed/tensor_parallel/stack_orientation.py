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
"""How a stack of experts whose matrices are square is stored: as its siblings are, else nothing says it.

A bare weight `[experts, h, h]` reads either of its dims; gpt-oss and Llama 4 keep `[experts, in, out]`, others
`[experts, out, in]`. All weights of one container are stored alike.
"""
import fnmatch
from dataclasses import replace
from typing import List, Optional

from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.ledger import Ledger
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings, block_of
from hyper_parallel.distributed.tensor_parallel.units import Unit

_SAID_BY_NAME = ("weight1", "weight2")  # MindFormers' grouped experts are [experts, in, out]


def orient_square_stacks(around: Surroundings, ledger: Ledger):
    """Turn square stacks as their siblings stand; give up those that have none.

    Args:
        around: the model's units.
        ledger: where decisions are written.
    """
    for unit in around.units:
        decision = ledger.decisions.get(unit.main.path)
        if decision is None or decision.part not in parts.MLP_PARTS or not _is_open(unit, around):
            continue
        stored = _as_siblings(unit, around, ledger)
        if stored is None:
            del ledger.decisions[unit.main.path]
            ledger.give_up(unit, "its matrices are square, and nothing says whether they are [in, out] or [out, in]",
                           (decision.role.name,))
        else:
            ledger.decisions[unit.main.path] = replace(decision, transposed=stored)


def _is_open(unit: Unit, around: Surroundings) -> bool:
    return (unit.dims == 3 and unit.is_bare and unit.shape[1] == unit.shape[2] and unit.main.layout is None
            and unit.name not in _SAID_BY_NAME
            and not any(fnmatch.fnmatchcase(unit.main.path, glob) for glob in around.adapter.in_out))


def _as_siblings(unit: Unit, around: Surroundings, ledger: Ledger) -> Optional[bool]:
    beside: List[bool] = [
        ledger.decisions[other.main.path].transposed for other in around.by_block[block_of(unit)]
        if other.scope == unit.scope and other.dims == 3 and other.main.path in ledger.decisions
        and ledger.decisions[other.main.path].part in parts.MLP_PARTS and not _is_open(other, around)]
    return beside[0] if beside and len(set(beside)) == 1 else None
