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
"""Slice maps from placements and back, and what has to travel from one map to another.

A map has a cut per axis, in the order in which the axes cut; placements say the same on a mesh. With the two maps of a
tensor, before and after, every rank can fetch exactly what it needs: nobody gathers the whole::

    tp 2 → tp 4, rows ABCDEFGH     before  ABCD / EFGH      after  AB / CD / EF / GH
    transfers to rank 1 of 4       rows 2:4 of rank 0's part → rows 0:2 of mine
"""
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_state import State, placements_of, shard_orders
from hyper_parallel.core.dtensor.placement_types import Partial, Placement, Shard
from hyper_parallel.core.dtensor.slice_map import SliceMap, Slices


def from_placements(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement],
                    pad: bool = False) -> SliceMap:
    """The slice map that placements on a mesh describe.

    Args:
        shape: of the whole.
        mesh: the mesh; its axis names become those of the cuts.
        placements: Shard, StridedShard or Replicate per axis, in mesh order.
        pad: where one axis does not divide its dim, every rank's part gets the size of the first one's, padded at the
            end; the pieces are those of uneven chunks.

    Raises:
        ValueError: a placement is Partial; an axis does not divide its dim and `pad` is False, or several axes cut that
            dim (chunks of padded chunks are not the uneven chunks of `distribute_tensor`).

    Examples:
        >>> mesh = DeviceMesh("npu", (2, 4), ("fsdp", "tp"))
        >>> from_placements((16, 4), mesh, (StridedShard(0, 4), Shard(0))).axes
        ('tp', 'fsdp')
    """
    shape, names = tuple(shape), mesh.mesh_dim_names
    for axis, placement in zip(names, placements):
        if isinstance(placement, Partial):
            raise ValueError(f"axis {axis!r} is {placement!r}: the parts of a pending reduction are no slices of the "
                             "whole")
    placements = tuple(item.normalize(len(shape)) if isinstance(item, Shard) else item for item in placements)
    slice_map = SliceMap.whole(shape)
    for dim, order in enumerate(shard_orders(placements, mesh.mesh_shape, len(shape), names)):
        for axis in order:
            size, rows = mesh.mesh_shape[axis], slice_map.local_shape()[dim]
            if rows % size and (not pad or len(order) > 1):
                hint = "" if len(order) > 1 else ": pass pad=True for uneven parts"
                raise ValueError(f"axis {names[axis]!r} of size {size} does not divide dim {dim} of size {shape[dim]} "
                                 f"({rows} rows there){hint}")
            if size > 1:
                slice_map = slice_map.then(dim, size, names[axis], pad=pad)
    return slice_map


def to_placements(slice_map: SliceMap, mesh: DeviceMesh) -> Tuple[Placement, ...]:
    """The inverse of `from_placements`, for maps of equal chunks.

    Raises:
        ValueError: the map has sections, copies or padding, which placements cannot say, or names no axis of the mesh.
    """
    cuts: List[List[int]] = [[] for _ in slice_map.shape]
    for cut in slice_map.cuts:
        if len(cut.sections) > 1 or cut.has_padding or any(section.copies > 1 for section in cut.sections):
            raise ValueError(f"a map of {cut.describe()} over axis {cut.axis!r} cannot be said by placements: its "
                             "parts are not equal chunks")
        axis = mesh.axis_index(cut.axis)
        if mesh.mesh_shape[axis] != cut.parts:
            raise ValueError(f"axis {cut.axis!r} has {mesh.mesh_shape[axis]} ranks on {mesh!r}, the map cuts in "
                             f"{cut.parts}")
        cuts[cut.dim].append(axis)
    return placements_of(State(tuple(map(tuple, cuts)), (None,) * mesh.ndim), mesh.mesh_shape)


class Transfer(NamedTuple):
    """Elements that go from one rank of a map to one rank of another.

    Attributes:
        rank: of the map before, `{axis: coordinate}`.
        source: slices of that rank's part.
        target: slices of the receiving rank's part.
    """

    rank: Dict[str, int]
    source: Slices
    target: Slices


def transfers(before: SliceMap, after: SliceMap, rank: Optional[Mapping[str, int]] = None) -> List[Transfer]:
    """What a rank of `after` has to fetch, and from which ranks of `before`; each element once.

    Of copies the first holder gives. Padding is nobody's: it is not listed.

    Args:
        before: the map in which the parts lie.
        after: the map in which they shall lie, of the same whole; any sections, copies and axes.
        rank: of `after`, as in `SliceMap.pieces`.

    Raises:
        ValueError: the maps are not of the same shape.
    """
    return [Transfer(giver, source, target) for giver in before.ranks()
            for source, target in before.intersect(after, giver, rank, once=True)]
