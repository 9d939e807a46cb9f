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
"""The cheapest way from one layout to another: a shortest path over placement states.

Pure Python: plans for any mesh without a process group. A step works on one axis, or on several as if they were one
(a joint all-reduce of two axes of 2 sends 3/2 N where two all-reduces send 2 N). What a step costs is what a rank puts
on the wire in the ring algorithm, with t ranks, N the full tensor of the group and L its local part::

    all_gather      Shard(d) -> Replicate     (t-1)/t N     d must be cut by the axis last (innermost)
    reduce_scatter  Partial  -> Shard(d)      (t-1)/t N     sum and avg
    all_reduce      Partial  -> Replicate   2 (t-1)/t N
    all_to_all      Shard(d) -> Shard(e)      (t-1)/t L
    slice           Replicate -> Shard(d)     nothing
    to_partial      Replicate -> Partial      nothing: the first rank keeps the value, the others hold zeros
    zero_pad        Shard(d) -> Partial(sum)  nothing

The last two only where the goal has a reduction pending on the axis: on the way, zeros that are added would cost memory
and the sign of zero, however few bytes they save. An axis that replicates before and after takes no part unless asked
to: sharing a reduction over tp among idle dp ranks can save bytes, but puts them on another, often slower, network, and
relies on dp ranks that really hold the same.
"""
import functools
import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.placement_state import (
    Shape, State, divides, local_shape, placements_of, state_of)
from hyper_parallel.core.dtensor.placement_types import Placement

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


class Step(NamedTuple):
    """One collective, or one thing that a rank does alone.

    Attributes:
        kind: see the head of this file.
        axes: the mesh axes that it runs over, outer first; several count as one.
        dim: the dim that is gathered, scattered, sliced or padded; the dim that all_to_all gathers. None without one.
        to_dim: the dim that all_to_all cuts.
        op: the reduction.
    """

    kind: str
    axes: Tuple[int, ...]
    dim: Optional[int] = None
    to_dim: Optional[int] = None
    op: Optional[str] = None

    @property
    def is_collective(self) -> bool:
        """True when ranks talk to each other."""
        return self.kind in COLLECTIVES


@dataclass(frozen=True)
class RedistributePlan:
    """Steps from one layout to another.

    Attributes:
        shape: of the whole tensor.
        mesh_shape: ranks along each axis.
        states: before the first step, between the steps, after the last one.
        steps: in order.
        wire: per step, elements that a rank sends, times the ranks of the mesh (so that it is whole).
    """

    shape: Shape
    mesh_shape: Tuple[int, ...]
    states: Tuple[State, ...]
    steps: Tuple[Step, ...]
    wire: Tuple[int, ...]

    @property
    def placements(self) -> Tuple[Tuple[Placement, ...], ...]:
        """`states`, spelled as placements."""
        return tuple(placements_of(state, self.mesh_shape) for state in self.states)

    def wire_bytes(self, itemsize: int) -> float:
        """What one rank sends, in bytes."""
        return sum(self.wire) * itemsize / math.prod(self.mesh_shape)


def find_plan(shape: Sequence[int], mesh_shape: Sequence[int], src: Sequence[Placement], dst: Sequence[Placement],
              joint: bool = True, use_idle_axes: bool = False) -> RedistributePlan:
    """The plan that sends the fewest bytes; of equals the one with the fewest collectives, then the fewest steps.

    Args:
        shape: of the whole tensor.
        mesh_shape: ranks along each axis.
        src: placements before, one per axis in mesh order, dims not negative.
        dst: placements after.
        joint: steps may take several axes as one; needs ranks that ascend in row-major order.
        use_idle_axes: axes that replicate before and after may take part.

    Examples:
        >>> find_plan((8, 8), (4,), (Shard(0),), (Shard(1),)).steps
        (Step(kind='all_to_all', axes=(0,), dim=0, to_dim=1, op=None),)
    """
    start, goal = (state_of(item, mesh_shape, len(shape)) for item in (src, dst))
    return plan_states(shape, mesh_shape, start, goal, joint, use_idle_axes)


def plan_states(shape: Sequence[int], mesh_shape: Sequence[int], start: State, goal: State, joint: bool = True,
                use_idle_axes: bool = False) -> RedistributePlan:
    """`find_plan` between states."""
    shape, mesh_shape = tuple(shape), tuple(mesh_shape)
    return _shortest(shape, mesh_shape, _without_trivial_axes(start, mesh_shape),
                     _without_trivial_axes(goal, mesh_shape), joint, use_idle_axes)


def _without_trivial_axes(state: State, mesh_shape) -> State:
    """An axis of one rank neither cuts nor leaves anything pending."""
    return State(tuple(tuple(axis for axis in order if mesh_shape[axis] > 1) for order in state.cuts),
                 tuple(op if size > 1 else None for op, size in zip(state.pending, mesh_shape)))


@functools.lru_cache(maxsize=8192)
def _shortest(shape, mesh_shape, start, goal, joint, use_idle_axes) -> RedistributePlan:
    """Dijkstra: the states are few, thousands on a mesh of three axes."""
    usable = tuple(size > 1 and (use_idle_axes or not (start.replicates(axis) and goal.replicates(axis)))
                   for axis, size in enumerate(mesh_shape))
    best, came_from, done = {start: (0, 0, 0)}, {}, set()
    queue, ticket = [((0, 0, 0), 0, start)], itertools.count(1)
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        if state == goal:
            break
        for step, following, wire in neighbours(shape, mesh_shape, state, goal, joint, usable):
            reached = (cost[0] + wire, cost[1] + step.is_collective, cost[2] + 1)
            if following not in done and reached < best.get(following, (math.inf,)):
                best[following], came_from[following] = reached, (state, step, wire)
                heapq.heappush(queue, (reached, next(ticket), following))
    states, steps, wires = [goal], [], []
    while states[-1] != start:
        previous, step, wire = came_from[states[-1]]
        states.append(previous)
        steps.append(step)
        wires.append(wire)
    return RedistributePlan(shape, mesh_shape, tuple(reversed(states)), tuple(reversed(steps)), tuple(reversed(wires)))


def neighbours(shape, mesh_shape, state: State, goal: State, joint: bool,
               usable: Sequence[bool]) -> Iterator[Tuple[Step, State, int]]:
    """Every step from a state over the usable axes, the state after it, and its cost as in `RedistributePlan.wire`."""
    ranks, part = math.prod(mesh_shape), local_shape(shape, state.cuts, mesh_shape)
    elements = math.prod(part)

    def padded(dim, parts):
        """Elements of the local part with `dim` rounded up to whole pieces."""
        return elements // part[dim] * (-(-part[dim] // parts) * parts) if part[dim] else 0

    for dim, order in enumerate(state.cuts):
        for axes in _innermost_runs(shape[dim], order, mesh_shape, joint):
            size = math.prod(mesh_shape[axis] for axis in axes)
            freed = _set_cut(state, dim, order[:len(order) - len(axes)])
            yield Step("all_gather", axes, dim), freed, elements * (size - 1) * ranks
            for other, outer in enumerate(state.cuts):
                if other != dim and _fits(shape[other], outer + axes, axes, mesh_shape):
                    yield (Step("all_to_all", axes, dim, other), _set_cut(freed, other, outer + axes),
                           padded(other, size) * (size - 1) * ranks // size)
            if len(axes) == 1 and goal.pending[axes[0]] == "sum":
                yield Step("zero_pad", axes, dim, op="sum"), _set_pending(freed, axes, "sum"), 0
    for op, axes in _pending_sets(state, joint):
        size = math.prod(mesh_shape[axis] for axis in axes)
        reduced = _set_pending(state, axes, None)
        yield Step("all_reduce", axes, op=op), reduced, 2 * elements * (size - 1) * ranks // size
        for dim, order in enumerate(state.cuts):
            if op in ("sum", "avg") and _fits(shape[dim], order + axes, axes, mesh_shape):
                yield (Step("reduce_scatter", axes, dim, op=op), _set_cut(reduced, dim, order + axes),
                       padded(dim, size) * (size - 1) * ranks // size)
    for axis in range(len(mesh_shape)):
        if not usable[axis] or not state.replicates(axis):
            continue
        op = goal.pending[axis]
        if op is not None:
            yield Step("to_partial", (axis,), op=op), _set_pending(state, (axis,), op), 0
        for dim, order in enumerate(state.cuts):
            yield Step("slice", (axis,), dim), _set_cut(state, dim, order + (axis,)), 0


def _innermost_runs(size, order, mesh_shape, joint):
    """The axes that cut a dim last: one, or several whose ranks ascend together and whose pieces are equal."""
    yield from (order[-1:],) if order else ()
    for count in range(2, len(order) + 1 if joint and divides(size, order, mesh_shape) else 0):
        axes = order[-count:]
        if axes[0] > axes[1]:
            return
        yield axes


def _fits(size, order, axes, mesh_shape):
    """Several axes as one cut a dim only into equal pieces: uneven chunks of chunks are not the chunks of the whole."""
    return len(axes) == 1 or divides(size, order, mesh_shape)


def _pending_sets(state, joint):
    for op in sorted({op for op in state.pending if op is not None}):
        waiting = [axis for axis, pending in enumerate(state.pending) if pending == op]
        for count in range(1, len(waiting) + 1 if joint else 2):
            yield from ((op, axes) for axes in itertools.combinations(waiting, count))


def _set_cut(state, dim, order):
    return State(state.cuts[:dim] + (tuple(order),) + state.cuts[dim + 1:], state.pending)


def _set_pending(state, axes, op):
    return State(state.cuts, tuple(op if axis in axes else old for axis, old in enumerate(state.pending)))
