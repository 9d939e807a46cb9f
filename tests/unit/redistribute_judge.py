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
"""Judges of redistribution plans: every rank's array in numpy, and all layouts of a small mesh by brute force.

Written from the definitions, without the planner's own code: a state is a plain tuple of one word per axis.
"""
import itertools
import math

import numpy as np

from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard

REDUCE = {"sum": np.add.reduce, "avg": lambda parts: np.add.reduce(parts) / len(parts), "max": np.maximum.reduce,
          "min": np.minimum.reduce}


def all_placements(axes, dims, ops=("sum",)):
    """Every combination of Replicate, Partial and Shard on so many axes, in mesh order."""
    words = [Replicate(), *(Partial(op) for op in ops), *(Shard(dim) for dim in range(dims))]
    return list(itertools.product(words, repeat=axes))


def all_layouts(axes, dims, ops=("sum",)):
    """Every `(pending, cuts)`: as `all_placements`, and every order in which several axes cut one dim."""
    found = []
    for words in itertools.product(["R", *ops, *range(dims)], repeat=axes):
        groups = [[axis for axis in range(axes) if words[axis] == dim and not isinstance(words[axis], str)]
                  for dim in range(dims)]
        pending = tuple(word if word in ops else None for word in words)
        found += [(pending, cuts) for cuts in itertools.product(*(itertools.permutations(group) for group in groups))]
    return found


def spell(layout, mesh_shape):
    """A layout of `all_layouts` as placements."""
    pending, cuts = layout
    placements = [Replicate() if op is None else Partial(op) for op in pending]
    for dim, order in enumerate(cuts):
        for place, axis in enumerate(order):
            factor = math.prod(mesh_shape[other] for other in order[:place] if other > axis)
            placements[axis] = Shard(dim) if factor == 1 else StridedShard(dim, factor)
    return tuple(placements)


def rows_of(size, order, mesh_shape, coordinate):
    """The rows of a dim that a rank holds: chunks of ceil(size / ranks), of what the outer axes left."""
    rows = np.arange(size)
    for axis in order:
        length = -(-len(rows) // mesh_shape[axis])
        rows = rows[coordinate[axis] * length:(coordinate[axis] + 1) * length]
    return rows


def part(array, cuts, mesh_shape, coordinate):
    """A rank's part of an array."""
    for dim, order in enumerate(cuts):
        array = np.take(array, rows_of(array.shape[dim], order, mesh_shape, coordinate), dim)
    return array


class World:
    """Every rank's array, as numpy.

    Args:
        layout: `(pending, cuts)`.
        summands: for pending reductions, one whole array per combination of coordinates on the axes with one.
    """

    def __init__(self, shape, mesh_shape, layout, seed=0):
        self.shape, self.mesh_shape = shape, mesh_shape
        self.ranks = list(itertools.product(*map(range, mesh_shape)))
        pending, cuts = layout
        random = np.random.default_rng(seed)
        wholes = {}
        for rank in self.ranks:
            key = tuple(rank[axis] for axis, op in enumerate(pending) if op)
            wholes.setdefault(key, random.integers(-8, 8, shape).astype(np.float64))
        self.arrays = {rank: part(wholes[tuple(rank[axis] for axis, op in enumerate(pending) if op)], cuts, mesh_shape,
                                  rank) for rank in self.ranks}

    def group(self, rank, axes):
        """The ranks that differ from `rank` on these axes only, the first axis slowest."""
        for coordinates in itertools.product(*(range(self.mesh_shape[axis]) for axis in axes)):
            other = list(rank)
            for axis, coordinate in zip(axes, coordinates):
                other[axis] = coordinate
            yield tuple(other)

    def run(self, step):
        """One step of a plan, on all ranks."""
        def pieces(array, dim, group):
            length = -(-array.shape[dim] // len(group))
            return [np.take(array, range(min(index * length, array.shape[dim]),
                                         min((index + 1) * length, array.shape[dim])), dim)
                    for index in range(len(group))]

        after = {}
        for rank in self.ranks:
            group = list(self.group(rank, step.axes))
            own, mine = group.index(rank), self.arrays[rank]
            others = [self.arrays[other] for other in group]
            if step.kind == "all_gather":
                after[rank] = np.concatenate(others, step.dim)
            elif step.kind == "all_reduce":
                after[rank] = REDUCE[step.op](others)
            elif step.kind == "reduce_scatter":
                after[rank] = pieces(REDUCE[step.op](others), step.dim, group)[own]
            elif step.kind == "all_to_all":
                after[rank] = np.concatenate([pieces(other, step.to_dim, group)[own] for other in others], step.dim)
            elif step.kind == "slice":
                after[rank] = pieces(mine, step.dim, group)[own]
            elif step.kind == "to_partial":
                after[rank] = mine if own == 0 or step.op != "sum" else np.zeros_like(mine)
            else:
                assert step.kind == "zero_pad"
                after[rank] = np.concatenate([other if index == own else np.zeros_like(other)
                                              for index, other in enumerate(others)], step.dim)
        self.arrays = after

    def whole(self, layout):
        """The tensor that the arrays stand for in a layout; copies are compared on the way."""
        pending, cuts = layout
        whole = None
        waiting = [axis for axis, op in enumerate(pending) if op]
        holders = {}
        for rank in self.ranks:
            holders.setdefault(tuple(rank[axis] for axis in waiting), []).append(rank)
        wholes = {}
        for key, ranks in holders.items():
            whole = np.full(self.shape, np.nan)
            for rank in ranks:
                place = np.ix_(*(rows_of(size, order, self.mesh_shape, rank) for size, order in zip(self.shape, cuts)))
                held = whole[place]
                assert held.shape == self.arrays[rank].shape, (rank, held.shape, self.arrays[rank].shape)
                assert np.all(np.isnan(held) | (held == self.arrays[rank])), rank
                whole[place] = self.arrays[rank]
            assert not np.isnan(whole).any()
            wholes[key] = whole
        for place in reversed(range(len(waiting))):
            reduce, size = REDUCE[pending[waiting[place]]], self.mesh_shape[waiting[place]]
            wholes = {key: reduce([wholes[key + (coordinate,)] for coordinate in range(size)])
                      for key in {key[:place] for key in wholes}}
        return wholes[()]


def brute_force(shape, mesh_shape, layouts, joint=True, use_idle_axes=False):
    """Fewest bytes (elements times ranks) between every two layouts, by closing all single steps under min-plus.

    A value becomes a pending reduction only on axes where the goal has one, and an axis that replicates at both ends is
    not cut on the way unless idle axes may be used: hence one closure per set of such axes.
    """
    number, axes = len(layouts), range(len(mesh_shape))
    single = np.zeros((number, number))
    made_pending, cut = np.zeros((2, number, number, len(mesh_shape)), bool)
    for one, before in enumerate(layouts):
        for other, after in enumerate(layouts):
            if one != other:
                single[one, other] = _single_step(shape, mesh_shape, before, after, joint)
                made_pending[one, other] = [bool(new) and new != old for old, new in zip(before[0], after[0])]
                cut[one, other] = [_where(axis, *before) == "R" != _where(axis, *after) for axis in axes]
    pending = np.array([[bool(op) for op in layout[0]] for layout in layouts])
    idle = np.array([[_where(axis, *layout) == "R" for axis in axes] for layout in layouts])
    idle = (idle[:, None] & idle[None]) & (not use_idle_axes)
    best = np.full((number, number), np.inf)
    for waiting in {tuple(row) for row in pending}:
        for resting in {tuple(row) for row in idle.reshape(-1, len(mesh_shape))}:
            forbidden = (made_pending & ~np.array(waiting)).any(-1) | (cut & np.array(resting)).any(-1)
            costs = np.where(forbidden, np.inf, single)
            for middle in range(number):
                costs = np.minimum(costs, costs[:, middle, None] + costs[None, middle])
            asked = (pending == waiting).all(-1)[None] & (idle == resting).all(-1)
            best[asked] = costs[asked]
    return best


def _single_step(shape, mesh_shape, before, after, joint):
    """What one step between two layouts costs, infinite when no single step leads from one to the other."""
    (pending, cuts), (pending_after, cuts_after) = before, after
    was = [_where(axis, pending, cuts) for axis in range(len(mesh_shape))]
    now = [_where(axis, pending_after, cuts_after) for axis in range(len(mesh_shape))]
    moved = tuple(axis for axis in range(len(mesh_shape)) if was[axis] != now[axis])
    if len({was[axis] for axis in moved}) != 1 or len({now[axis] for axis in moved}) != 1:
        return np.inf
    (source,), (target,) = {was[axis] for axis in moved}, {now[axis] for axis in moved}
    if len(moved) > 1 and not joint:
        return np.inf
    kept = tuple(tuple(axis for axis in order if axis not in moved) for order in cuts)
    size, ranks = math.prod(mesh_shape[axis] for axis in moved), math.prod(mesh_shape)
    extents = [math.prod(mesh_shape[axis] for axis in order) for order in (*cuts, *cuts_after)]
    for dim, order in enumerate(cuts):
        if source == dim and (order[len(kept[dim]):] != moved or kept[dim] != order[:len(kept[dim])]):
            return np.inf
        if source != dim and kept[dim] != order or target != dim and cuts_after[dim] != kept[dim]:
            return np.inf
        if target == dim and cuts_after[dim] != kept[dim] + moved:
            return np.inf
        uneven = shape[dim] % extents[dim] and source == dim or shape[dim] % extents[len(cuts) + dim] and target == dim
        if len(moved) > 1 and uneven:
            return np.inf
    largest = [len(rows_of(rows, order, mesh_shape, (0,) * len(mesh_shape))) for rows, order in zip(shape, cuts)]
    if isinstance(target, int):
        largest[target] = -(-largest[target] // size) * size
    local = math.prod(largest)
    if isinstance(source, int):
        if target == "R":
            return local * (size - 1) * ranks
        if isinstance(target, int):
            return local * (size - 1) / size * ranks
        return 0 if target == "sum" and len(moved) == 1 else np.inf
    if source == "R":
        return 0 if len(moved) == 1 else np.inf
    if target == "R":
        return 2 * local * (size - 1) / size * ranks
    if isinstance(target, int) and source in ("sum", "avg"):
        return local * (size - 1) / size * ranks
    return np.inf


def _where(axis, pending, cuts):
    """What an axis does: "R", a reduction, or the dim that it cuts."""
    if pending[axis]:
        return pending[axis]
    return next((dim for dim, order in enumerate(cuts) if axis in order), "R")
