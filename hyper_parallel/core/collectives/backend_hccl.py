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
"""Collectives on Ascend: MindSpore's own operators on hccl groups, in every mode.

Every maker returns a function of one tensor. HCCL gathers and scatters along dim 0 only; other dims are moved there.
"""
import mindspore as ms
from mindspore import ops

from hyper_parallel.core.collectives.local import check_divides
from hyper_parallel.core.collectives.naming import start

_AS_INT32 = (ms.bool_, ms.uint8)


def _named(primitive, kind, group):
    """The primitive, with errors that name the collective; the compiler sees the primitive as it is."""
    base = type(primitive)

    class Named(base):
        """The primitive under its own name."""

        substitute_name = base.__name__

        def __call__(self, *inputs):
            return start(super().__call__, inputs, kind, group)

    primitive.__class__ = Named
    return primitive


def make_all_reduce(group, op):
    """Sum, max or min over the group."""
    reduce = _named(ops.AllReduce(op, group.name), "all_reduce", group)

    def run(x):
        if x.dtype in _AS_INT32:
            return ops.cast(reduce(ops.cast(x, ms.int32)), x.dtype)
        return reduce(x)

    return run


def make_all_gather(group, dim):
    """The parts of all ranks, concatenated along `dim` in rank order."""
    gather = _named(ops.AllGather(group.name), "all_gather", group)

    def run(x):
        gathered = gather(x)
        if dim == 0 or dim == -x.ndim:
            return gathered
        return ops.concat(ops.split(gathered, x.shape[0], 0), dim)

    return run


def make_reduce_scatter(group, dim):
    """This rank's slice along `dim` of the sum over the group."""
    scatter, size = _named(ops.ReduceScatter(ops.ReduceOp.SUM, group.name), "reduce_scatter", group), group.size

    def run(x):
        axis = dim if dim >= 0 else dim + x.ndim
        length = check_divides(x.shape, axis, size)
        return scatter(x if axis == 0 else ops.concat(ops.split(x, length, axis), 0))

    return run


def make_all_to_all(group, split_dim, concat_dim):
    """Piece i of `split_dim` goes to rank i; the received pieces are concatenated along `concat_dim`."""
    exchange, size = _named(ops.AlltoAllV(group.name), "all_to_all", group), group.size

    def run(x):
        axis = split_dim if split_dim >= 0 else split_dim + x.ndim
        pieces = ops.split(x, check_divides(x.shape, axis, size), axis)
        counts = (pieces[0].size,) * size
        received = exchange(ops.reshape(ops.concat(pieces, 0), (-1,)), counts, counts)
        received = ops.reshape(received, (size * pieces[0].shape[0],) + pieces[0].shape[1:])
        return ops.concat(ops.split(received, pieces[0].shape[0], 0), concat_dim)

    return run


def make_broadcast(group, source):
    """What the group's member number `source` has; the primitive counts ranks within the group."""
    broadcast = _named(ops.Broadcast(source, group.name), "broadcast", group)

    def run(x):
        return broadcast((x,))[0]

    return run
