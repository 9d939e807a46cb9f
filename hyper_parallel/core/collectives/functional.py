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
"""Collectives on a `Group`, not differentiable. A group of size 1 gives back the tensor itself.

Examples:
    >>> group = mesh.get_group("tp")
    >>> whole = all_gather(part, 0, group)
"""
import functools
import importlib
from typing import Callable

import mindspore as ms
from mindspore import Tensor, ops

from hyper_parallel.core.collectives.counter import ACTIVATION, counted
from hyper_parallel.core.collectives.groups import Group
from hyper_parallel.core.collectives.naming import name_late_errors, start

REDUCTIONS = ("sum", "max", "min", "avg")


def all_reduce(x: Tensor, group: Group, op: str = "sum", *, purpose: str = ACTIVATION) -> Tensor:
    """The reduction of all ranks' tensors, on every rank.

    Args:
        x: the same shape and dtype on every rank.
        group: the group.
        op: "sum", "max", "min", or "avg" for floats.
        purpose: what the counter files it under.

    Raises:
        ValueError: an unknown reduction, or the average of integers.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"all_reduce cannot {op!r}: valid reductions are {', '.join(REDUCTIONS)}")
    if op == "avg" and not x.is_floating_point():
        raise ValueError(f"all_reduce(op='avg') of a tensor of {x.dtype}: only floats have an average")
    return _run(x, group, "all_reduce", op, purpose=purpose)


def all_gather(x: Tensor, dim: int, group: Group, *, purpose: str = ACTIVATION) -> Tensor:
    """The parts of all ranks, concatenated along `dim` in rank order; all parts have one shape."""
    return _run(x, group, "all_gather", dim, purpose=purpose)


def reduce_scatter(x: Tensor, dim: int, group: Group, *, purpose: str = ACTIVATION) -> Tensor:
    """This rank's slice along `dim` of the sum over all ranks.

    Raises:
        ValueError: the dim does not divide by the size of the group.
    """
    return _run(x, group, "reduce_scatter", dim, purpose=purpose)


def all_to_all(x: Tensor, split_dim: int, concat_dim: int, group: Group, *, purpose: str = ACTIVATION) -> Tensor:
    """Piece i of `split_dim` goes to rank i; the received pieces are concatenated along `concat_dim` in rank order.

    Raises:
        ValueError: the dim to split does not divide by the size of the group.
    """
    return _run(x, group, "all_to_all", split_dim % x.ndim, concat_dim % x.ndim, purpose=purpose)


def broadcast(x: Tensor, source: int, group: Group, *, purpose: str = ACTIVATION) -> Tensor:
    """The tensor of member number `source` (a position in `group.ranks`, not a global rank); all have its shape.

    Raises:
        ValueError: the group has no such member.
    """
    if not 0 <= source < group.size:
        raise ValueError(f"broadcast from member {source} of {group!r}: valid members are 0 to {group.size - 1}")
    return _run(x, group, "broadcast", source, purpose=purpose)


def barrier(group: Group) -> None:
    """Returns when every member has called it."""
    if group.size > 1:
        reduce = make("barrier", group)
        start(lambda: reduce(ms.Tensor([0.0], ms.float32)).asnumpy(), (), "barrier", group)


def _run(x, group, kind, *arguments, purpose):
    if not isinstance(group, Group):
        raise ValueError(f"{kind} takes a Group, as mesh.get_group(axis) gives, got {group!r}")
    if group.size == 1:
        return x
    return make(kind, group, *arguments, purpose=purpose)(ops.stop_gradient(x))


@functools.lru_cache(maxsize=None)
def make(kind: str, group: Group, *arguments, purpose: str = ACTIVATION, phase: str = "forward",
         where: str = "") -> Callable:
    """A collective as a function of one tensor that counts itself and compiles; made once, for groups of two and more.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast" or "barrier".
        group: the group.
        *arguments: the reduction, the dim or dims, or the source.
        purpose: what the counter files it under.
        phase: "forward" or "backward", for the counter.
        where: path of the module whose collective it is, for the counter; functions that differ in it share the
            backend's.
    """
    if where:
        shared = make(kind, group, *arguments, purpose=purpose, phase=phase, where="")
        return counted(shared.run, kind, group, purpose, phase, where)
    backend = load_backend()
    name_late_errors()
    if kind == "barrier":
        run = backend.make_all_reduce(group, "sum")
    elif arguments == ("avg",):
        run = _average(backend.make_all_reduce(group, "sum"), group.size)
    else:
        run = getattr(backend, f"make_{kind}")(group, *arguments)
    return counted(run, kind, group, purpose, phase)


def _average(total, size):
    def run(x):
        return total(x) / size

    return run


def load_backend():
    """The backend's module of MindSpore's device target; the other one is not imported."""
    name = "hccl" if ms.get_context("device_target") == "Ascend" else "mccl"
    return importlib.import_module(f"hyper_parallel.core.collectives.backend_{name}")
