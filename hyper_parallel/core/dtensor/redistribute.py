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
"""Carrying out a redistribution plan on local tensors, forward and backward.

A whole plan is one autograd function. The backward runs the adjoint of every step, last step first: the locals of all
ranks are the variables, so that all_gather answers to reduce_scatter, all_reduce to all_reduce, slice to zero_pad and
all_to_all to all_to_all. Uneven pieces travel padded to the size of the first rank's.
"""
import functools
import math
from typing import Callable, NamedTuple

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.common._grad_function import _Function

from hyper_parallel.core.collectives.functional import make
from hyper_parallel.core.collectives.groups import current_rank, get_group, name_axis
from hyper_parallel.core.dtensor.gather import gather_mapped
from hyper_parallel.core.dtensor.placement_state import chunk, local_shape, shard_orders
from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.core.dtensor.redistribute_plan import RedistributePlan, Step
from hyper_parallel.core.dtensor.redistribute_route import find_route


class Carrier(NamedTuple):
    """One step on this rank: `forward(x) -> y`, and `backward(gradient of y, x, y) -> gradient of x`."""

    forward: Callable
    backward: Callable
    needs_values: bool = False


def resize(x: Tensor, dim: int, begin: int, rows: int) -> Tensor:
    """Rows `begin` to `begin + rows` of `dim`, zeros where `x` has none; copied, never a view."""
    have = x.shape[dim]
    if begin == 0 and rows == have:
        return x
    if rows == 0:
        return _zeros(x, dim, 0)
    first, last = max(begin, 0), min(begin + rows, have)
    pieces = []
    if begin < 0:
        pieces.append(_zeros(x, dim, min(-begin, rows)))
    if first < last:
        if last - first == have:
            pieces.append(x)
        else:
            starts = tuple(first if other == dim else 0 for other in range(x.ndim))
            pieces.append(ops.slice(x, starts, x.shape[:dim] + (last - first,) + x.shape[dim + 1:]))
    if begin + rows > have:
        pieces.append(_zeros(x, dim, min(begin + rows - have, rows)))
    return pieces[0] if len(pieces) == 1 else ops.concat(pieces, dim)


def _zeros(x, dim, rows):
    return ops.zeros(x.shape[:dim] + (rows,) + x.shape[dim + 1:], x.dtype)


def axes_group(mesh, axes):
    """This rank's group over several axes of a mesh, as if they were one."""
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    names = tuple(mesh.mesh_dim_names[axis] for axis in axes)
    return name_axis(get_group(mesh[names].rank_list), "+".join(names), is_view=True)


@functools.lru_cache(maxsize=4096)
def carriers(plan: RedistributePlan, mesh) -> tuple:
    """The steps of a plan as functions, on this rank of the mesh (of which `plan.mesh_shape` is the shape)."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"this rank is not in {mesh!r} and cannot redistribute on it")
    return tuple(_carrier(step, axes_group(mesh, step.axes),
                          local_shape(plan.shape, before.cuts, plan.mesh_shape, coordinate),
                          local_shape(plan.shape, after.cuts, plan.mesh_shape, coordinate))
                 for step, before, after in zip(plan.steps, plan.states, plan.states[1:]))


def _carrier(step: Step, group, before, after) -> Carrier:
    """`before` and `after` are this rank's local shapes."""
    return _MAKERS[step.kind](step, group, before, after)


def _collective(kind, group, *arguments, phase):
    """As `functional.make`, but nothing at all where no rank of the group has an element to send."""
    run = make(kind, group, *arguments, phase=phase)

    def call(x):
        return x if 0 in x.shape else run(x)

    return call


def _all_gather(step, group, before, after):
    dim, whole = step.dim, after[step.dim]
    length = -(-whole // group.size)
    gather = _collective("all_gather", group, dim, phase="forward")
    scatter = _collective("reduce_scatter", group, dim, phase="backward")
    if not math.prod(after):
        return _nothing(before, after)

    def forward(x):
        return resize(gather(resize(x, dim, 0, length)), dim, 0, whole)

    def backward(gradient, _x, _y):
        return resize(scatter(resize(gradient, dim, 0, length * group.size)), dim, 0, before[dim])

    return Carrier(forward, backward)


def _reduce_scatter(step, group, before, after):
    dim, whole = step.dim, before[step.dim]
    length, scale = -(-whole // group.size), group.size if step.op == "avg" else 1
    scatter = _collective("reduce_scatter", group, dim, phase="forward")
    gather = _collective("all_gather", group, dim, phase="backward")
    if not math.prod(before):
        return _nothing(before, after)

    def forward(x):
        return _over(resize(scatter(resize(x, dim, 0, length * group.size)), dim, 0, after[dim]), scale)

    def backward(gradient, _x, _y):
        return resize(gather(resize(_over(gradient, scale), dim, 0, length)), dim, 0, whole)

    return Carrier(forward, backward)


def _over(x, number):
    return x if number == 1 else x / number


def _all_reduce(step, group, before, _after):
    reduce = _collective("all_reduce", group, step.op, phase="forward")
    if not math.prod(before):
        return _nothing(before, before)
    if step.op in ("sum", "avg"):
        back = _collective("all_reduce", group, step.op, phase="backward")
        return Carrier(reduce, lambda gradient, _x, _y: back(gradient))
    total = _collective("all_reduce", group, "sum", phase="backward")

    def backward(gradient, x, y):
        # Ranks that tie share the gradient evenly.
        winners = ops.cast(ops.equal(x, y), gradient.dtype)
        return winners * total(gradient) / total(winners)

    return Carrier(reduce, backward, needs_values=True)


def _all_to_all(step, group, before, after):
    gathered, cut = step.dim, step.to_dim
    piece, whole = -(-after[gathered] // group.size), -(-before[cut] // group.size)
    exchange = _collective("all_to_all", group, cut, gathered, phase="forward")
    back = _collective("all_to_all", group, gathered, cut, phase="backward")
    if not after[gathered] * before[cut] * _rest(before, (gathered, cut)):
        return _nothing(before, after)

    def forward(x):
        x = exchange(resize(resize(x, gathered, 0, piece), cut, 0, whole * group.size))
        return resize(resize(x, gathered, 0, after[gathered]), cut, 0, after[cut])

    def backward(gradient, _x, _y):
        gradient = resize(resize(gradient, cut, 0, whole), gathered, 0, piece * group.size)
        return resize(resize(back(gradient), cut, 0, before[cut]), gathered, 0, before[gathered])

    return Carrier(forward, backward)


def _rest(shape, dims):
    return math.prod(size for dim, size in enumerate(shape) if dim not in dims)


def _slice(step, group, before, after):
    dim, whole = step.dim, before[step.dim]
    start, rows = chunk(whole, group.size, group.index)
    assert rows == after[dim], (step, before, after)
    return Carrier(lambda x: resize(x, dim, start, rows), lambda gradient, _x, _y: resize(gradient, dim, -start, whole))


def _zero_pad(step, group, before, after):
    dim, whole = step.dim, after[step.dim]
    start, rows = chunk(whole, group.size, group.index)
    assert rows == before[dim], (step, before, after)
    return Carrier(lambda x: resize(x, dim, -start, whole), lambda gradient, _x, _y: resize(gradient, dim, start, rows))


def _to_partial(step, group, _before, _after):
    if step.op != "sum" or group.index == 0:
        return Carrier(lambda x: x, lambda gradient, _x, _y: gradient)
    return Carrier(ops.zeros_like, lambda gradient, _x, _y: ops.zeros_like(gradient))


def _nothing(before, after):
    """No rank of the group has an element; only the shape changes."""
    return Carrier(lambda x: ops.zeros(after, x.dtype), lambda gradient, _x, _y: ops.zeros(before, gradient.dtype))


_MAKERS = {"all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "all_reduce": _all_reduce,
           "all_to_all": _all_to_all, "slice": _slice, "zero_pad": _zero_pad, "to_partial": _to_partial}


class _Carry(_Function):
    """All steps of a plan, one autograd function."""

    @staticmethod
    def forward(ctx, x, steps):
        """The steps, first to last; values are kept only for a maximum or minimum."""
        ctx.steps, ctx.values = steps, []
        for step in steps:
            y = step.forward(x)
            ctx.values.append((x, y) if step.needs_values else (None, None))
            x = y
        return x

    @staticmethod
    def backward(ctx, gradient):
        """The adjoints, last to first."""
        for step, (x, y) in zip(reversed(ctx.steps), reversed(ctx.values)):
            gradient = step.backward(gradient, x, y)
        return gradient, None


@functools.lru_cache(maxsize=8192)
def _steps_between(shape, src_mesh, src, dst_mesh, dst) -> tuple:
    """The carriers of the route between two layouts, on this rank."""
    steps = []
    for leg in find_route(shape, src_mesh, src, dst_mesh, dst).legs:
        if leg.plan is not None:
            steps += carriers(leg.plan, leg.mesh) if leg.mesh.get_coordinate() is not None else ()
        elif leg.kind == "broadcast":
            steps.append(_broadcast(leg, shape))
        else:
            steps.append(_drop(leg, shape))
    return tuple(steps)


def _broadcast(leg, shape):
    """The whole from the first rank of a smaller mesh to all ranks of a larger one."""
    group = get_group(tuple(sorted(leg.mesh.rank_list)))
    share = make("broadcast", group, group.ranks.index(leg.ranks[0]), phase="forward")
    collect = make("all_reduce", group, "sum", phase="backward")
    member, source = group.ranks[group.index] in leg.ranks, group.ranks[group.index] == leg.ranks[0]

    def backward(gradient, x, _y):
        total = collect(gradient)
        return total if source else ops.zeros(x.shape, gradient.dtype)

    return Carrier(lambda x: share(x if member else ops.zeros(shape, x.dtype)), backward, needs_values=not source)


def _drop(leg, shape):
    """Ranks outside a smaller mesh let go of the whole."""
    if current_rank() in leg.ranks:
        return Carrier(lambda x: x, lambda gradient, _x, _y: gradient)
    return Carrier(lambda x: ops.zeros((0,) * len(shape), x.dtype),
                   lambda gradient, _x, _y: ops.zeros(shape, gradient.dtype))


def redistribute(dtensor, mesh, placements):
    """`DTensor.redistribute` with a mesh and normalised placements."""
    if mesh is dtensor._mesh and placements == dtensor._placements:
        return dtensor
    if dtensor._slice_map is not None:
        return redistribute(_unmapped(dtensor), mesh, placements)
    local, shape = dtensor._local, dtensor._whole
    if local.is_meta:
        return dtensor._of(_meta(local, shape, mesh, placements), mesh, placements, shape)
    steps = _steps_between(shape, dtensor._mesh, dtensor._placements, mesh, placements)
    if steps:
        local = _Carry.apply(local, steps)
    return dtensor._of(local, mesh, placements, shape)


def _meta(local, shape, mesh, placements):
    cuts = shard_orders(placements, mesh.mesh_shape, len(shape), mesh.mesh_dim_names)
    with ms.DeviceCtx("meta"):
        return ms.mint.empty(local_shape(shape, cuts, mesh.mesh_shape, mesh.get_coordinate()), dtype=local.dtype)


def whole_of(dtensor):
    """The DTensor with every axis replicated."""
    return redistribute(dtensor, dtensor._mesh, (Replicate(),) * dtensor._mesh.ndim)


def _unmapped(dtensor):
    """A DTensor whose parts a slice map describes, whole on the mapped axes and as it is on the others."""
    mesh, mapped = dtensor._mesh, dtensor._slice_map.axes
    placements = tuple(Replicate() if axis in mapped else placement
                       for axis, placement in zip(mesh.mesh_dim_names, dtensor._placements))
    cutting = [axis for axis, placement in zip(mesh.mesh_dim_names, placements) if placement.is_shard()]
    if cutting:
        raise NotImplementedError(f"redistribute of parts laid out as {dtensor._slice_map.describe()}: axis "
                                  f"{cutting[0]!r} cuts as well, but the slice map does not know it; supported are "
                                  "maps that name every axis that cuts (SliceMap.then)")
    whole = gather_mapped(dtensor._local, mesh, dtensor._slice_map, gather_along)
    return dtensor._of(whole, mesh, placements, tuple(whole.shape))


def gather_along(x: Tensor, dim: int, group) -> Tensor:
    """The parts of all ranks, concatenated along `dim`; the backward is a reduce-scatter."""
    if group.size == 1:
        return x
    return _Carry.apply(x, _gather_equal(group, dim))


@functools.lru_cache(maxsize=1024)
def _gather_equal(group, dim):
    gather, scatter = make("all_gather", group, dim), make("reduce_scatter", group, dim, phase="backward")
    return (Carrier(gather, lambda gradient, _x, _y: scatter(gradient)),)


class _ReceiveGradient(_Function):
    """The identity, whose gradient lies on the mesh in its own way."""

    @staticmethod
    def forward(ctx, x, steps):
        """The identity."""
        ctx.steps = steps
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        """The gradient, brought to where the value lies."""
        for step in ctx.steps:
            gradient = step.forward(gradient)
        return gradient, None


def to_local_with_gradient(dtensor, grad_placements):
    """`DTensor.to_local(grad_placements=...)`; the gradient of a Partial value is whole on every rank."""
    own = dtensor.gradient_placements(dtensor._placements)
    mesh = dtensor._mesh
    return _ReceiveGradient.apply(dtensor._local, _steps_between(dtensor._whole, mesh, grad_placements, mesh, own))
