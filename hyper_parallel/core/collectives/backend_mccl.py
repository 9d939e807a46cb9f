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
"""Collectives on CPU, where MindSpore's mccl has little more than a sum of floats.

Every maker returns a function of one tensor. For float32, float16 and what float32 represents exactly, the function is
an AllReduce and shape operators, so that it also compiles (mindspore.jit, GRAPH_MODE) on any group: a rank that has
nothing to say in a place adds -0.0, which leaves every float as it is, the sign of zero included. The other dtypes
(int32, int64, float64) run in PyNative only.
"""
import functools

import mindspore as ms
from mindspore import ops

from hyper_parallel.core.collectives.local import check_divides, make_slice
from hyper_parallel.core.collectives.naming import start

_FLOAT32_HOLDS = (ms.bfloat16, ms.bool_, ms.int8, ms.uint8, ms.int16)
_MINT_SUMS = (ms.int32, ms.int64)
_neg, _zeros_like = ops.Neg(), ops.ZerosLike()


class _AllReduce(ops.AllReduce):
    """AllReduce whose errors name the collective that it carries out; the compiler sees a plain AllReduce."""

    substitute_name = "AllReduce"

    def __init__(self, kind, group):
        super().__init__(group=group.name)
        self._naming = (kind, group)

    def __call__(self, x):
        return start(super().__call__, (x,), *self._naming)


class _PyNativeOnly(ops.PrimitiveWithInfer):
    """A Python function that the compiler does not look into, and refuses only where a graph really needs it."""

    def __init__(self, kind, group, function):
        super().__init__(kind)
        self._naming, self._function = (kind, group), function

    def __call__(self, x):
        return start(self._function, (x,), *self._naming)

    def __infer__(self, x):
        kind, group = self._naming
        raise NotImplementedError(f"{kind} over group {group.name} of a tensor of {x['dtype']}: in a compiled graph on "
                                  f"CPU, collectives of float32, float16 and bfloat16 are supported")


def make_all_reduce(group, op):
    """Sum, max or min over the group; max and min gather first."""
    if op != "sum":
        return _make_extremum(group, op)
    reduce = _AllReduce("all_reduce", group)
    sum_any = _PyNativeOnly("all_reduce", group, functools.partial(_sum_any, group=group))

    def run(x):
        if x.dtype == ms.float32 or x.dtype == ms.float16:
            return reduce(x)
        if x.dtype == ms.bfloat16:
            return ops.cast(reduce(ops.cast(x, ms.float32)), ms.bfloat16)
        return sum_any(x)

    return run


def _make_extremum(group, op):
    gather = make_all_gather(group, 0, "all_reduce")
    choose = ops.ReduceMax() if op == "max" else ops.ReduceMin()

    def run(x):
        gathered = gather(ops.expand_dims(x, 0))
        if x.dtype in _FLOAT32_HOLDS:
            return ops.cast(choose(ops.cast(gathered, ms.float32), 0), x.dtype)
        return choose(gathered, 0)

    return run


def make_all_gather(group, dim, kind="all_gather"):
    """The parts of all ranks, concatenated along `dim` in rank order."""
    reduce = _AllReduce(kind, group)
    gather_any = _PyNativeOnly(kind, group, functools.partial(_gather_any, group=group, dim=dim))
    # Flags, because a concat in which x stands in another place on each rank is another graph on each rank, and graphs
    # that differ can issue their collectives in different orders.
    is_mine = tuple(ms.Tensor([member == group.index]) for member in range(group.size))

    def place(x):
        nothing = _neg(_zeros_like(x))
        return reduce(ops.concat(tuple(ops.select(ops.broadcast_to(mine, x.shape), x, nothing) for mine in is_mine), dim))

    def run(x):
        if x.dtype == ms.float32 or x.dtype == ms.float16:
            return place(x)
        if x.dtype in _FLOAT32_HOLDS:
            return ops.cast(place(ops.cast(x, ms.float32)), x.dtype)
        return gather_any(x)

    return run


def make_reduce_scatter(group, dim):
    """This rank's slice along `dim` of the sum over the group."""
    reduce, cut = make_all_reduce(group, "sum"), make_slice(group, dim)

    def run(x):
        return cut(reduce(x))

    return run


def make_all_to_all(group, split_dim, concat_dim):
    """Piece i of `split_dim` goes to rank i; the received pieces are concatenated along `concat_dim`."""
    if split_dim == concat_dim:
        return _make_exchange(group, split_dim)
    gather, cut = make_all_gather(group, concat_dim, "all_to_all"), make_slice(group, split_dim)

    def run(x):
        return cut(gather(x))

    return run


def _make_exchange(group, dim):
    """All-to-all within one dim, which is taken for two for the time being: [n] -> [size, n / size]."""
    outer, inner = (dim, dim + 1) if dim >= 0 else (dim - 1, dim)
    gather, cut, size = make_all_gather(group, inner, "all_to_all"), make_slice(group, outer), group.size

    def run(x):
        shape, axis = x.shape, dim if dim >= 0 else dim + x.ndim
        pieces = ops.reshape(x, shape[:axis] + (size, check_divides(shape, axis, size)) + shape[axis + 1:])
        return ops.reshape(cut(gather(pieces)), shape)

    return run


def make_broadcast(group, source):
    """What the group's member number `source` has."""
    gather, silent = make_all_gather(group, 0, "broadcast"), group.index != source
    reduce = _AllReduce("broadcast", group)

    def say(x):
        return reduce(_neg(_zeros_like(x)) if silent else x)

    def run(x):
        if x.dtype == ms.float32 or x.dtype == ms.float16:
            return say(x)
        if x.dtype in _FLOAT32_HOLDS:
            return ops.cast(say(ops.cast(x, ms.float32)), x.dtype)
        return gather(ops.expand_dims(x, 0))[source]

    return run


def _gather_any(x, group, dim):
    received = [ops.zeros(x.shape, x.dtype) for _ in group.ranks]
    ms.mint.distributed.all_gather(received, x.contiguous(), group=group.name)
    return ops.concat(received, dim)


def _sum_any(x, group):
    """In the arithmetic of the dtype: integers wrap around, the sum of booleans is their "or"."""
    if x.dtype in _FLOAT32_HOLDS:
        return ops.cast(_sum_any(ops.cast(x, ms.int32), group), x.dtype)
    if x.dtype in _MINT_SUMS:
        total = x.copy()
        ms.mint.distributed.all_reduce(total, group=group.name)
        return total
    return ops.reduce_sum(_gather_any(ops.expand_dims(x, 0), group, 0), 0)
