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
"""How a tensor lies on a whole mesh, as plain data: which axes cut each dim in which order, and what is pending.

Pure Python: shapes, axes and numbers, no MindSpore, no process group. *Chunks* follow one rule everywhere: n ranks cut
a size s into pieces of ceil(s / n) from the front, so the last ranks may hold less, or nothing::

    5 rows on 4 ranks   AA BB C -
"""
import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.placement_types import Partial, Placement, Replicate, Shard, StridedShard

Shape = Tuple[int, ...]


class State(NamedTuple):
    """Placements without their spelling.

    Attributes:
        cuts: per tensor dim, the axes that cut it, the outer axis first.
        pending: per mesh axis, the reduction that is still to be done, or None.
    """

    cuts: Tuple[Tuple[int, ...], ...]
    pending: Tuple[Optional[str], ...]

    def replicates(self, axis: int) -> bool:
        """True when the axis neither cuts nor leaves anything pending."""
        return self.pending[axis] is None and not any(axis in order for order in self.cuts)


def shard_orders(placements: Sequence[Placement], mesh_shape: Sequence[int], ndim: int,
                 names: Optional[Sequence[str]] = None) -> Tuple[Tuple[int, ...], ...]:
    """Per dim, the axes that cut it, the outer axis first.

    Args:
        placements: one per axis, in mesh order; dims not negative.
        mesh_shape: ranks along each axis.
        ndim: dims of the tensor.
        names: the axes' names, for the message.

    Raises:
        ValueError: a `StridedShard` whose split factor no order of the later axes gives.

    Examples:
        >>> shard_orders((StridedShard(0, 4), Shard(0)), (2, 4), 2)
        ((1, 0), ())
    """
    cuts: List[List[int]] = [[] for _ in range(ndim)]
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        if not isinstance(placement, Shard):
            continue
        order, factor = cuts[placement.dim], getattr(placement, "split_factor", 1)
        outside = [math.prod(mesh_shape[other] for other in order[:count]) for count in range(len(order) + 1)]
        if factor not in outside:
            name = names[axis] if names else axis
            raise ValueError(f"{placement!r} on axis {name!r}: the later axes that cut dim {placement.dim} lie outside "
                             f"it with factors {', '.join(map(str, sorted(set(outside))))} (1 is a plain Shard)")
        order.insert(outside.index(factor), axis)
    return tuple(map(tuple, cuts))


def state_of(placements: Sequence[Placement], mesh_shape: Sequence[int], ndim: int,
             names: Optional[Sequence[str]] = None) -> State:
    """The state that placements spell; see `shard_orders` for the arguments."""
    return State(shard_orders(placements, mesh_shape, ndim, names),
                 tuple(item.op if isinstance(item, Partial) else None for item in placements))


def placements_of(state: State, mesh_shape: Sequence[int]) -> Tuple[Placement, ...]:
    """The inverse of `state_of`.

    Examples:
        >>> placements_of(State(((1, 0), ()), (None, None)), (2, 4))
        (StridedShard(dim=0, split_factor=4), Shard(dim=0))
    """
    found = [Replicate() if op is None else Partial(op) for op in state.pending]
    for dim, order in enumerate(state.cuts):
        for position, axis in enumerate(order):
            factor = math.prod(mesh_shape[other] for other in order[:position] if other > axis)
            found[axis] = Shard(dim) if factor == 1 else StridedShard(dim, factor)
    return tuple(found)


def chunk(size: int, parts: int, index: int) -> Tuple[int, int]:
    """`(first row, rows)` of piece `index` of a size that `parts` ranks cut.

    Examples:
        >>> [chunk(5, 4, index) for index in range(4)]
        [(0, 2), (2, 2), (4, 1), (5, 0)]
    """
    length = -(-size // parts)
    start = min(index * length, size)
    return start, min(length, size - start)


def local_area(shape: Sequence[int], cuts: Sequence[Sequence[int]], mesh_shape: Sequence[int],
               coordinate: Sequence[int]) -> Tuple[Tuple[int, int], ...]:
    """`(first row, rows)` per dim of the part that the rank at `coordinate` holds.

    Examples:
        >>> local_area((8, 4), ((1, 0), ()), (2, 2), (0, 1))
        ((4, 2), (0, 4))
    """
    area = []
    for size, order in zip(shape, cuts):
        start = 0
        for axis in order:
            offset, size = chunk(size, mesh_shape[axis], coordinate[axis])
            start += offset
        area.append((start, size))
    return tuple(area)


def local_shape(shape: Sequence[int], cuts: Sequence[Sequence[int]], mesh_shape: Sequence[int],
                coordinate: Optional[Sequence[int]] = None) -> Shape:
    """The shape of the part at `coordinate`; None means the first rank, whose part is the largest."""
    coordinate = (0,) * len(mesh_shape) if coordinate is None else coordinate
    return tuple(rows for _, rows in local_area(shape, cuts, mesh_shape, coordinate))


def divides(size: int, order: Sequence[int], mesh_shape: Sequence[int]) -> bool:
    """True when the axes cut a size into equal pieces."""
    return size % math.prod(mesh_shape[axis] for axis in order) == 0
