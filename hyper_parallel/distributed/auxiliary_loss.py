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
"""Auxiliary losses that begin their backward inside a mixture: a module passes the scores on and adds a loss's gradient.

Every rank computes such a loss alike, inside a region whose ranks' gradients are summed, so that each may contribute
1/tp of it. A host whose backward starts with 1/tp on every rank scales its auxiliary losses alike, and nothing is added.
"""
from typing import Dict, Mapping

from hyper_parallel.core.collectives import transitions
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.distributed import edges
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

_ARGUMENTS = ("aux_loss", "auxiliary_loss", "balance_loss", "load_balancing_loss")


def find_auxiliary_losses(boundaries: Mapping[str, ModuleShardingSpec], inventory: Inventory
                          ) -> Dict[str, ModuleShardingSpec]:
    """Boundaries of the modules inside of cut mixtures that take an auxiliary loss as an argument.

    Args:
        boundaries: of the plan.
        inventory: the Cell's.
    """
    mixtures = [path for path, spec in boundaries.items() if spec.semantic_role == templates.MOE]
    whole = {AXIS: Replicate()}
    found = {}
    for path, record in inventory.modules.items():
        names = [name for name in record.arguments if name in _ARGUMENTS]
        if names and any(path.startswith(f"{mixture}.") for mixture in mixtures):
            found[path] = ModuleShardingSpec(params={}, in_src={name: whole for name in names},
                                             in_dst={name: whole for name in names},
                                             semantic_role=templates.AUXILIARY_LOSS)
    return found


def share_auxiliary_loss(module, path: str, spec: ModuleShardingSpec, arguments, group) -> edges.Undo:
    """Let this rank contribute its share of the losses' gradients.

    Args:
        module (Cell): takes the losses as arguments.
        path: of it.
        spec: its boundary.
        arguments: names of its forward's arguments.
        group: the ranks of the axis.

    Returns:
        What undoes it.
    """
    share = Transition(transitions.LEAVE_REPLICATED, group, where=path)
    return edges.enter_through(module, path, [(share, name, arguments.index(name)) for name in spec.in_dst])
