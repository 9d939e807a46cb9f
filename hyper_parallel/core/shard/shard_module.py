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
"""Replace a Cell's parameters by Parameters that are DTensors."""
from hyper_parallel.core.collectives.gradient_sum import sum_gradient_over
from hyper_parallel.core.dtensor.dtensor import DTensor, distribute_tensor
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.shard.sharding_plan import ShardingPlan

def shard_module(module, device_mesh: DeviceMesh, sharding_plan: ShardingPlan):
    """Distribute the named parameters of a Cell in place, and return the Cell.

    Operators then dispatch on them, and what each rank's backward gives a replicated parameter is a summand of its
    gradient: the summands are added over every axis that replicates it, once a backward.

    Args:
        module (Cell): real or meta parameters.
        device_mesh: the mesh.
        sharding_plan: placements by parameter path relative to `module`.

    Raises:
        ValueError: a name is not a parameter of the module.
    """
    owners = {f"{path}.{name}" if path else name: (cell, name)
              for path, cell in module.cells_and_names() for name in cell._params}
    for path, placements in sharding_plan.plan.items():
        if path not in owners:
            raise ValueError(f"the plan names {path!r}, which is not a parameter of {type(module).__name__}; "
                             f"its parameters: {', '.join(owners)}")
        cell, name = owners[path]
        parameter = cell._params[name]
        if parameter is not None and not isinstance(parameter, DTensor):
            stored = cell._params[name] = distribute_tensor(parameter, device_mesh, placements)
            sum_replicated_gradient(stored)
    return module


def sum_replicated_gradient(parameter):
    """Add the summands of a DTensor parameter's gradient over every axis that replicates it; once, however often asked.

    Args:
        parameter: on which operators dispatch.
    """
    if parameter._gradient_is_summed or not parameter.requires_grad:
        return
    parameter._gradient_is_summed = True
    for axis, placement in enumerate(parameter.placements):
        if placement.is_replicate():
            sum_gradient_over(parameter.to_local(), parameter.device_mesh.get_group(axis))
