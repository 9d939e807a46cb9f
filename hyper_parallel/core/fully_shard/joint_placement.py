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
"""Where a parameter lies once it is cut over a data axis too: tensor parallelism outside, the shard axis inside."""
from typing import NamedTuple, Optional, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.placement_state import chunk
from hyper_parallel.core.dtensor.placement_types import Placement, Shard
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.core.shard.part_record import PartRecord


class JointPlacement(NamedTuple):
    """How the stored DTensor of a parameter lies.

    Attributes:
        mesh: data axes and tensor-parallel axes together: it covers all ranks that hold the parameter.
        placements: one per axis.
        slice_map: record of the parts where placements cannot say it, or None.
        shape: of the whole.
        dim: the dim that the shard axis cuts, None where it is kept whole.
    """

    mesh: DeviceMesh
    placements: Tuple[Placement, ...]
    slice_map: Optional[SliceMap]
    shape: Tuple[int, ...]
    dim: Optional[int]


def dim_to_cut(shape, wanted: int, ranks: int, uneven: bool) -> Optional[int]:
    """The dim that the shard axis cuts; None where a rank would be left without a row.

    Args:
        shape: of the gathered tensor.
        wanted: the dim that was asked for.
        ranks: size of the axis.
        uneven: the last part may be shorter.

    Raises:
        ValueError: the tensor has not that dim.

    Examples:
        >>> dim_to_cut((8, 4), 0, 2, True), dim_to_cut((5,), 0, 4, True), dim_to_cut((), 0, 2, True)
        (0, None, None)
    """
    if ranks == 1 or not shape:
        return None
    dim = Shard(wanted).normalize(len(shape)).dim
    has_rows = chunk(shape[dim], ranks, ranks - 1)[1] > 0
    return dim if has_rows and (uneven or shape[dim] % ranks == 0) else None


def join(mesh: DeviceMesh, part: Optional[PartRecord], shape, whole, wanted: Optional[int]) -> JointPlacement:
    """The placement of a parameter over a data mesh and whatever cuts it already.

    Args:
        mesh: `(shard,)` or `(replicate, shard)` axes.
        part: how the parameter lies before, None where every rank holds it whole.
        shape: of what this rank holds before.
        whole: of the whole parameter.
        wanted: the dim to cut; None cuts none.
    """
    axis = mesh.mesh_dim_names[-1]
    is_part = part is not None and tuple(shape) != tuple(whole)
    dim = None if wanted is None else dim_to_cut(shape, wanted, mesh.size(axis), uneven=not is_part)
    named, joint, outside = {}, mesh, ()
    if part is not None:
        named.update(zip(part.mesh.mesh_dim_names, part.placements))
        outside = tuple(name for name in named if name not in mesh.mesh_dim_names)
        joint = part.mesh if len(outside) < part.mesh.ndim else DeviceMesh.concatenate([mesh, part.mesh])
    if dim is not None:
        named[axis] = Shard(dim)
    slice_map = None if part is None else part.slice_map
    if slice_map is not None and dim is not None:
        slice_map = slice_map.then(dim, mesh.size(axis), axis)
    layout = Layout(joint, named, len(shape), shard_order=outside + (axis,))
    return JointPlacement(joint, layout.placements, slice_map, tuple(whole), dim)
