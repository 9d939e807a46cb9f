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
"""The edges of a sharded region: what happens to an activation on its way in or out, and to its gradient on the way
back.

The backward of an edge depends on what follows it, which is why edges with the same forward have different names.
"""
from typing import NamedTuple, Optional, Tuple, Union

import mindspore as ms
from mindspore import nn
from mindspore.common._grad_function import _Function

from hyper_parallel.core.collectives import local
from hyper_parallel.core.collectives.counter import ACTIVATION
from hyper_parallel.core.collectives.functional import make
from hyper_parallel.core.collectives.groups import Group


class Edge(NamedTuple):
    """Forward and backward of a transition, as names of steps."""

    forward: str
    backward: str


ENTER_REPLICATED = "enter_replicated"
IDENTITY = "identity"
GATHER_SEQUENCE = "gather_sequence"
REDUCE = "reduce"
REDUCE_SCATTER_SEQUENCE = "reduce_scatter_sequence"
REDUCE_FOR_LOCAL_MATH = "reduce_for_local_math"
GATHER_FOR_REPLICATED = "gather_for_replicated"
SLICE = "slice"
LEAVE_REPLICATED = "leave_replicated"
TERMINAL_GATHER = "terminal_gather"
TERMINAL_REPLICATED = "terminal_replicated"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_REDUCE = "all_reduce"
SLICE_ADJOINT = "slice_adjoint"
ZERO_PAD = "zero_pad"
ALL_TO_ALL = "all_to_all"

EDGES = {
    # For a loss that every rank of the group computes, with sense 1.
    ENTER_REPLICATED: Edge("identity", "all_reduce"),                  # Replicate -> sharded weights
    IDENTITY: Edge("identity", "identity"),                            # Replicate -> weights left whole
    GATHER_SEQUENCE: Edge("all_gather", "reduce_scatter"),             # Shard(seq) -> Replicate, entry
    REDUCE: Edge("all_reduce", "identity"),                            # Partial -> Replicate, exit
    REDUCE_SCATTER_SEQUENCE: Edge("reduce_scatter", "all_gather"),     # Partial -> Shard(seq), exit
    REDUCE_FOR_LOCAL_MATH: Edge("all_reduce", "all_reduce"),           # Partial -> Replicate, then rank-local math
    GATHER_FOR_REPLICATED: Edge("all_gather", "slice"),                # Shard -> Replicate, then a replicated consumer
    SLICE: Edge("slice", "all_gather"),                                # Replicate -> Shard
    # A result that every rank of a region computes alike (router logits, an auxiliary loss): its gradient is whole on
    # every rank, and the region sums what its ranks contribute.
    LEAVE_REPLICATED: Edge("identity", "share"),
    # The last edge before MindFormers' loss, whose backward starts with 1 / (dp * tp).
    TERMINAL_GATHER: Edge("all_gather", "reduce_scatter"),
    TERMINAL_REPLICATED: Edge("identity", "scale"),
    # True adjoints: the gradient of each rank's output is a summand of the whole.
    ALL_GATHER: Edge("all_gather", "reduce_scatter"),
    REDUCE_SCATTER: Edge("reduce_scatter", "all_gather"),
    ALL_REDUCE: Edge("all_reduce", "all_reduce"),
    SLICE_ADJOINT: Edge("slice", "zero_pad"),
    ZERO_PAD: Edge("zero_pad", "slice"),
    ALL_TO_ALL: Edge("all_to_all", "all_to_all"),
}
"""Every transition by name. Along `dim`: all_gather, reduce_scatter, slice, zero_pad, all_to_all."""

_LOCAL = {"slice": local.make_slice, "zero_pad": local.make_zero_pad}
_ALONG_DIM = ("all_gather", "reduce_scatter", "slice", "zero_pad")


class Transition(nn.Cell):
    """One edge: a function of one tensor with an explicit backward, in PyNative, mindspore.jit and GRAPH_MODE.

    On a group of size 1 every transition is the identity, forward and backward.

    Args:
        kind (str): a key of `EDGES`.
        group (Group): the group, as `mesh.get_group(axis)` gives.
        dim (int | tuple[int, int], optional): the tensor's dim along which to gather, scatter, slice or pad; for
            `all_to_all` the pair (dim to split, dim to concatenate). None for transitions without one.
        purpose (str): what the counter files it under.
        where (str): path of the boundary whose edge it is, for the counter.

    Raises:
        ValueError: an unknown kind, or a dim is missing, superfluous or of the wrong form.

    Examples:
        >>> exit_edge = Transition("reduce", mesh.get_group("tp"))
        >>> y = exit_edge(partial)
    """

    def __init__(self, kind: str, group: Group, dim: Optional[Union[int, Tuple[int, int]]] = None, *,
                 purpose: str = ACTIVATION, where: str = ""):
        super().__init__(auto_prefix=False)
        if kind not in EDGES:
            raise ValueError(f"no transition is called {kind!r}: valid ones are {', '.join(EDGES)}")
        _check_dim(kind, dim)
        if not isinstance(group, Group):
            raise ValueError(f"transition {kind} takes a Group, as mesh.get_group(axis) gives, got {group!r}")
        self.kind, self.group_name, self.dim = kind, group.name, dim
        edge = EDGES[kind]
        back = tuple(reversed(dim)) if kind == ALL_TO_ALL else dim
        self._run_forward = _make_step(edge.forward, group, dim, purpose, "forward")
        self._run_backward = _make_step(edge.backward, group, back, purpose, "backward")
        # The compiler, which does not count, gets functions that all edges of a kind share: it reads each once.
        self._pynative = (_make_step(edge.forward, group, dim, purpose, "forward", where),
                          _make_step(edge.backward, group, back, purpose, "backward", where))

    def __call__(self, x):
        if ms.get_context("mode") == ms.PYNATIVE_MODE:
            return _PyNativeEdge.apply(x, *self._pynative)
        return super().__call__(x)

    def construct(self, x):
        """The forward of the edge, as the compiler reads it."""
        return self._run_forward(x)

    def bprop(self, x, out, dout):
        """The backward of the edge, as the compiler reads it."""
        return (self._run_backward(dout),)

    def extend_repr(self):
        """What the Cell's repr says."""
        edge, along = EDGES[self.kind], "" if self.dim is None else f", dim={self.dim}"
        return f"{self.kind}: {edge.forward} / {edge.backward}, group={self.group_name}{along}"


class _PyNativeEdge(_Function):
    """The same edge in PyNative. A Cell's bprop keeps input and output alive until the backward, which needs neither:
    at the exit of a region that is a whole activation."""

    @staticmethod
    def forward(ctx, x, run_forward, run_backward):
        """The forward of the edge."""
        ctx.run_backward = run_backward
        return run_forward(x)

    @staticmethod
    def backward(ctx, dout):
        """The backward of the edge; the two functions have no gradient."""
        return ctx.run_backward(dout), None, None


def _check_dim(kind, dim):
    if kind == ALL_TO_ALL:
        if not (isinstance(dim, tuple) and len(dim) == 2 and (dim[0] < 0) == (dim[1] < 0)):
            raise ValueError(f"transition {kind} takes dim=(dim to split, dim to concatenate), both counted from the "
                             f"front or both from the end, got {dim!r}")
        return
    needed = any(step in _ALONG_DIM for step in EDGES[kind])
    if needed != isinstance(dim, int) or not (needed or dim is None):
        raise ValueError(f"transition {kind} takes {'an int' if needed else 'no'} dim, got {dim!r}")


def _make_step(step, group, dim, purpose, phase, where=""):
    if group.size == 1 or step == "identity":
        return local.identity
    if step == "scale":
        return local.make_scale(group)
    if step == "share":
        return local.make_share(group)
    if step in _LOCAL:
        return _LOCAL[step](group, dim)
    if step == "all_reduce":
        arguments = ("sum",)
    else:
        arguments = dim if step == "all_to_all" else (dim,)
    return make(step, group, *arguments, purpose=purpose, phase=phase, where=where)
