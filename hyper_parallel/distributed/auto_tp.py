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
"""Plan, bind and apply in one call."""
from hyper_parallel.distributed.applier import apply
from hyper_parallel.distributed.planner import plan


def auto_tp(cell, mesh, **options):
    """Make the Cell tensor parallel on a mesh: plan it for the size of the mesh's `tp` axis, and apply the plan.

    Args:
        cell (Cell): whole parameters, equal on all ranks.
        mesh (DeviceMesh): with an axis named `tp`.
        **options: as for `plan`.

    Returns:
        The cell, sharded in place.

    Raises:
        ValueError: the mesh has no axis `tp`, or planning refuses the model.

    Examples:
        >>> hp.auto_tp(model, hp.init_device_mesh("npu", (2,), mesh_dim_names=("tp",)))
    """
    if "tp" not in (mesh.mesh_dim_names or ()):
        raise ValueError(f"auto_tp cuts over the axis 'tp', but the mesh's axes are {mesh.mesh_dim_names}: name one of "
                         "them 'tp'")
    return apply(cell, plan(cell, tp=mesh.size("tp"), **options), mesh)
