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
"""Collectives made from the two that MindSpore's CPU backend has on any group.

Those are an all-reduce (sum and maximum of float32 are used here) and the list form of all-gather. Every function
takes and returns plain tensors, has the gradient of the collective it stands for, and blocks: wall-clock times say
nothing about an accelerator's.
"""
from typing import List, Optional, Sequence

import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.common import dtype as mstype
from mindspore.common._grad_function import _Function
from mindspore.mint import distributed as dist

REDUCE_OPS = ("sum", "max", "min", "prod", "avg")

# Taken at import, before anything is replaced.
_all_reduce_in_place = dist.all_reduce
_all_gather_list = dist.all_gather


def _gather_list(tensor: Tensor, group) -> List[Tensor]:
    """The tensor of every rank of the group; all of one shape."""
    tensor = ops.stop_gradient(tensor).contiguous()
    wire_type = mstype.int32 if tensor.dtype == mstype.bool_ else tensor.dtype
    parts = [mint.zeros(tensor.shape, dtype=wire_type) for _ in range(dist.get_world_size(group))]
    _all_gather_list(parts, tensor.astype(wire_type), group)
    return [part.astype(tensor.dtype) for part in parts]


def _reduce(tensor: Tensor, op: str, group) -> Tensor:
    if op not in REDUCE_OPS:
        raise ValueError(f"The reduction must be one of {', '.join(REDUCE_OPS)}, but got {op!r}.")
    if op in ("sum", "max") and tensor.dtype == mstype.float32:
        out = mint.mul(ops.stop_gradient(tensor), 1.0)
        _all_reduce_in_place(out, op, group)
        return out
    parts = _gather_list(tensor, group)
    if op == "avg":
        return mint.div(_reduce(tensor, "sum", group), len(parts)).astype(tensor.dtype)
    combine = {"sum": mint.add, "max": mint.maximum, "min": mint.minimum, "prod": mint.mul}[op]
    out = parts[0]
    for part in parts[1:]:
        out = combine(out, part)
    return out.astype(tensor.dtype)


def _own_chunk(tensor: Tensor, group) -> Tensor:
    """This rank's part of `tensor`, cut along dim 0 into one part a rank."""
    size = dist.get_world_size(group)
    if tensor.shape[0] % size:
        raise ValueError(f"Dim 0 of size {tensor.shape[0]} cannot be cut into {size} equal parts.")
    length = tensor.shape[0] // size
    return mint.narrow(tensor, 0, dist.get_rank(group) * length, length).contiguous()


def _exchange(tensor: Tensor, send_sizes: Sequence[int], group) -> Tensor:
    """Sends `send_sizes[r]` rows of `tensor` to rank r, in order; returns the rows received, by rank.

    Everybody gathers everything and keeps its own part: the backend has nothing narrower.
    """
    me = dist.get_rank(group)
    sizes = np.stack([row.asnumpy() for row in _gather_list(Tensor(np.array(send_sizes, np.int32)), group)])
    most = int(sizes.sum(1).max())
    if most == 0:
        return mint.zeros(tensor.shape, dtype=tensor.dtype)
    missing = most - tensor.shape[0]
    if missing:
        filler = mint.zeros((missing, *tensor.shape[1:]), dtype=tensor.dtype)
        tensor = mint.cat([tensor, filler], 0) if tensor.shape[0] else filler
    received = []
    for sender, rows in enumerate(_gather_list(tensor, group)):
        length = int(sizes[sender, me])
        if length:
            received.append(mint.narrow(rows, 0, int(sizes[sender, :me].sum()), length))
    return mint.cat(received, 0) if received else mint.zeros((0, *tensor.shape[1:]), dtype=tensor.dtype)


class _AllReduce(_Function):
    """Backward: the sum of the gradients; for max, min and prod only where this rank's value is the result."""

    @staticmethod
    def forward(ctx, tensor, op, group):
        out = _reduce(tensor, op, group)
        ctx.op, ctx.group, ctx.tensor, ctx.out = op, group, tensor, out
        return out

    @staticmethod
    def backward(ctx, grad):
        total = _reduce(grad, "avg" if ctx.op == "avg" else "sum", ctx.group)
        if ctx.op in ("max", "min"):
            total = mint.mul(total, mint.eq(ctx.tensor, ctx.out).astype(total.dtype))
        elif ctx.op == "prod":
            total = mint.div(mint.mul(total, ctx.out), ctx.tensor)
        return total, None, None


class _AllGather(_Function):
    """Backward: this rank's part of the summed gradients."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return mint.cat(_gather_list(tensor, group), 0)

    @staticmethod
    def backward(ctx, grad):
        return _own_chunk(_reduce(grad, "sum", ctx.group), ctx.group), None


class _ReduceScatter(_Function):
    """Backward: the gradients of all parts, side by side."""

    @staticmethod
    def forward(ctx, tensor, op, group):
        ctx.op, ctx.group = op, group
        return _own_chunk(_reduce(tensor, op, group), group)

    @staticmethod
    def backward(ctx, grad):
        if ctx.op not in ("sum", "avg"):
            raise NotImplementedError(f"The gradient of a reduce-scatter with {ctx.op!r} has no CPU stand-in; "
                                      f"supported are 'sum' and 'avg'.")
        whole = mint.cat(_gather_list(grad, ctx.group), 0)
        return (mint.div(whole, dist.get_world_size(ctx.group)) if ctx.op == "avg" else whole), None, None


class _AllToAll(_Function):
    """Backward: the exchange with the two sizes swapped."""

    @staticmethod
    def forward(ctx, tensor, send_sizes, receive_sizes, group):
        ctx.receive_sizes, ctx.group = receive_sizes, group
        return _exchange(tensor, send_sizes, group)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, ctx.receive_sizes, ctx.group), None, None, None


def all_reduce(tensor: Tensor, op: str = "sum", group: Optional[str] = None) -> Tensor:
    """The reduction over the group, on every rank; any number dtype."""
    return _AllReduce.apply(tensor, op, group)


def all_gather(tensor: Tensor, group: Optional[str] = None) -> Tensor:
    """The tensors of all ranks, side by side along dim 0."""
    return _AllGather.apply(tensor, group)


def reduce_scatter(tensor: Tensor, op: str = "sum", group: Optional[str] = None) -> Tensor:
    """This rank's part, along dim 0, of the reduction over the group."""
    return _ReduceScatter.apply(tensor, op, group)


def all_to_all(tensor: Tensor, send_sizes: Optional[Sequence[int]] = None,
               receive_sizes: Optional[Sequence[int]] = None, group: Optional[str] = None) -> Tensor:
    """Sends part r along dim 0 to rank r; returns the parts received, by sender, side by side.

    Without sizes all parts are equal.

    Raises:
        ValueError: if the parts do not add up to the tensor.
    """
    size = dist.get_world_size(group)
    if not send_sizes:
        if tensor.shape[0] % size:
            raise ValueError(f"Dim 0 of size {tensor.shape[0]} cannot be cut into {size} equal parts.")
        send_sizes = [tensor.shape[0] // size] * size
    send_sizes = [int(length) for length in send_sizes]
    receive_sizes = [int(length) for length in receive_sizes] if receive_sizes else send_sizes
    if sum(send_sizes) != tensor.shape[0]:
        raise ValueError(f"The split sizes {send_sizes} sum to {sum(send_sizes)}, but dim 0 has size "
                         f"{tensor.shape[0]}.")
    return _AllToAll.apply(tensor, send_sizes, receive_sizes, group)


def barrier(group: Optional[str] = None) -> None:
    """Returns when every rank of the group has arrived."""
    _reduce(mint.zeros((1,)), "sum", group).asnumpy()
