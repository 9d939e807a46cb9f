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
"""Two meshes over the same ranks, told in the axes of a third one that is fine enough for both.

`(4,)` and `(2, 2)` over ranks 0 to 3 meet in `(2, 2)`: the one axis is two axes there. A sub-mesh such as `mesh["tp"]`
stands for all its parallel copies, so that it covers the ranks of its root, and is whole along the axes left out.
"""
import functools
import math
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_state import State, divides

Axes = Tuple[Tuple[int, ...], ...]


class CommonMesh(NamedTuple):
    """A mesh fine enough for two others.

    Attributes:
        mesh: the common one.
        first: per axis of the first mesh, the axes of the common one that it consists of, outer first.
        second: the same for the second mesh.
    """

    mesh: DeviceMesh
    first: Axes
    second: Axes


@functools.lru_cache(maxsize=1024)
def common_mesh(first: DeviceMesh, second: DeviceMesh) -> Optional[CommonMesh]:
    """The coarsest mesh that is fine enough for both; None where there is none.

    Examples:
        >>> grid = DeviceMesh("npu", (2, 2), ("dp", "tp"))
        >>> common_mesh(grid["tp"], grid)
        CommonMesh(mesh=DeviceMesh(dp=2, tp=2; npu ranks 0,1,2,3), first=((1,),), second=((0,), (1,)))
    """
    if first is second:
        own = tuple((axis,) for axis in range(first.ndim))
        return CommonMesh(first, own, own)
    if ranks_of(first) != ranks_of(second):
        return None
    # a root covers its ranks at once, whichever sub-meshes these are
    base = next((mesh for mesh in (first, second) if covers_at_once(mesh)), first.root_mesh)
    position = {rank: place[1] for rank, place in base._places.items()}
    strides = [_strides(mesh, position) for mesh in (first, second)]
    if None in strides:
        return None
    intervals = [[(stride, stride * size) for stride, size in zip(found, mesh.mesh_shape)]
                 for found, mesh in zip(strides, (first, second))]
    marks = sorted({1, len(position)}.union(*(pair for spans in intervals for pair in spans)))
    if any(after % before for before, after in zip(marks, marks[1:])):
        return None
    cells = [(low, high) for low, high in zip(marks, marks[1:])][::-1]
    shape = tuple(high // low for low, high in cells)
    axes = [tuple(tuple(axis for axis, (low, high) in enumerate(cells) if start <= low and high <= stop)
                  for start, stop in spans) for spans in intervals]
    mesh = next((mesh for mesh in (base, first, second) if covers_at_once(mesh) and mesh.mesh_shape == shape
                 and mesh._copies == base._copies), None)
    return CommonMesh(mesh or DeviceMesh(base.device_type, shape, rank_list=base._copies[0]), *axes)


def ranks_of(mesh: DeviceMesh) -> frozenset:
    """Every rank that the mesh covers, over all its copies."""
    return frozenset(mesh._places)


def covers_at_once(mesh: DeviceMesh) -> bool:
    """True for a mesh without parallel copies."""
    return len(mesh._copies) == 1


def _strides(mesh: DeviceMesh, position: Dict[int, int]) -> Optional[Sequence[int]]:
    """How far apart, in the base mesh's row-major order, neighbours on each axis are; None where that varies."""
    steps = [math.prod(mesh.mesh_shape[axis + 1:]) for axis in range(mesh.ndim)]
    ranks = mesh._copies[0]
    strides = [position[ranks[step]] - position[ranks[0]] if size > 1 else 1
               for step, size in zip(steps, mesh.mesh_shape)]
    for copy in mesh._copies:
        for index, rank in enumerate(copy):
            expected = sum(stride * coordinate for stride, coordinate in zip(strides, mesh._unravel(index)))
            if position[rank] - position[copy[0]] != expected:
                return None
    return strides if min(strides) > 0 else None


def refine_state(state: State, shape: Sequence[int], mesh: DeviceMesh, common: DeviceMesh,
                 axes: Axes) -> Optional[State]:
    """A state on `mesh`, told on the common mesh; None where uneven chunks would not be the same.

    Args:
        state: on `mesh`.
        shape: of the whole tensor.
        mesh: the mesh of the state.
        common: the finer mesh.
        axes: per axis of `mesh`, the axes of the common mesh that it consists of.
    """
    cuts = []
    for size, order in zip(shape, state.cuts):
        if any(len(axes[axis]) > 1 for axis in order) and not divides(size, order, mesh.mesh_shape):
            return None
        cuts.append(tuple(fine for axis in order for fine in axes[axis]))
    pending = [None] * common.ndim
    for axis, op in enumerate(state.pending):
        for fine in axes[axis]:
            pending[fine] = op
    return State(tuple(cuts), tuple(pending))
