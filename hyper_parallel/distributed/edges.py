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
"""What carries a boundary's transitions, in PyNative, mindspore.jit and GRAPH_MODE alike.

The compiler calls no hooks of a Cell that stands in a list (`layers.0`), so that there the forward itself is replaced.
"""
import types
from typing import Callable, Optional, Sequence, Tuple

from mindspore import Tensor, nn

from hyper_parallel.core.collectives import transitions
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

Undo = Callable[[], None]


def _on_axis(named: Optional[NamedPlacement]):
    return (named or {}).get(AXIS, Replicate())


def entry_transition(source: NamedPlacement, target: NamedPlacement, group, has_cut_weights: bool, where: str = ""):
    """The transition of an argument on its way into a boundary; None where nothing happens, forward or backward.

    Args:
        source: layout in which it arrives.
        target: layout that the body wants.
        group: the ranks of the axis.
        has_cut_weights: the body multiplies it by cut weights, so that its gradient is partial.
        where: the boundary's path.
    """
    arrives, wanted = _on_axis(source), _on_axis(target)
    if isinstance(wanted, Replicate):
        if isinstance(arrives, Shard):
            kind = transitions.GATHER_SEQUENCE if has_cut_weights else transitions.GATHER_FOR_REPLICATED
            return Transition(kind, group, arrives.dim, where=where)
        return Transition(transitions.ENTER_REPLICATED, group, where=where) if has_cut_weights else None
    if isinstance(arrives, Replicate):
        return Transition(transitions.SLICE, group, wanted.dim, where=where)
    assert arrives == wanted, f"no entry from {arrives} to {wanted}"
    return None


def exit_transition(source: NamedPlacement, target: NamedPlacement, group, where: str = "",
                    then_local_math: bool = False):
    """The transition of a result on its way out of the boundary at path `where`; None where nothing happens.

    Args:
        source: layout of what the body computes.
        target: layout in which it leaves.
        group: the ranks of the axis.
        where: the boundary's path.
        then_local_math: what follows works on this rank's part of the model (inside a region), so that the gradients
            that come back are partial.
    """
    has, leaves = _on_axis(source), _on_axis(target)
    if has == leaves:
        return None
    if has.is_partial():
        if isinstance(leaves, Shard):
            return Transition(transitions.REDUCE_SCATTER_SEQUENCE, group, leaves.dim, where=where)
        kind = transitions.REDUCE_FOR_LOCAL_MATH if then_local_math else transitions.REDUCE
        return Transition(kind, group, where=where)
    if isinstance(has, Shard):
        assert isinstance(leaves, Replicate), f"no exit from {has} to {leaves}"
        return Transition(transitions.GATHER_FOR_REPLICATED, group, has.dim, where=where)
    return Transition(transitions.SLICE, group, leaves.dim, where=where)


Entry = Tuple[nn.Cell, str, int]
"""(edge, name of the argument, its position)."""


def hook_entries(cell, entries: Sequence[Entry]):
    """Let arguments pass through edges before the Cell's forward sees them, however the caller passes them.

    An argument that the caller leaves out, or that is None, stays so. In PyNative, arguments that are one tensor (the
    query, key and value of `attention(x, x, x)`) pass once, so that their gradients are reduced together.
    """
    entries = tuple(entries)

    # GRAPH_MODE hands keyword arguments over by position and without `kwargs`; PyNative with them
    def enter(cell, args, kwargs=None):
        if kwargs is None:
            changed = args
            for edge, _, at in entries:
                if at < len(changed) and changed[at] is not None:
                    changed = changed[:at] + (edge(changed[at]),) + changed[at + 1:]
            return changed
        return _enter_once_each(entries, args, kwargs)

    return cell.register_forward_pre_hook(enter, with_kwargs=True)


def _enter_once_each(entries: Sequence[Entry], args, kwargs):
    """The arguments after their edges; one tensor under several names passes the first of its edges only."""
    args, kwargs, passed = list(args), dict(kwargs), []
    for edge, name, at in entries:
        given = args[at] if at < len(args) else kwargs.get(name)
        if given is None:
            continue
        result = next((result for before, result in passed if before is given), None)
        if result is None:
            result = edge(given)
            passed.append((given, result))
        if at < len(args):
            args[at] = result
        else:
            kwargs[name] = result
    return tuple(args), kwargs


def hook_exit(cell, edge, out_size: Optional[int] = None, others=None):
    """Let the Cell's result, or the first of several, pass through `edge`.

    Args:
        cell: the boundary's module.
        edge: the transition.
        out_size: columns to keep of the last dim, where the vocabulary is padded.
        others: the transition of the tensors behind the first result; None leaves them.
    """

    def leave(cell, args, output):
        return _leave(output, edge, others)

    def leave_unpadded(cell, args, output):
        if isinstance(output, tuple):
            return (edge(output[0])[..., :out_size],) + output[1:]
        return edge(output)[..., :out_size]

    return cell.register_forward_hook(leave if out_size is None else leave_unpadded)


def _leave(output, edge, others):
    if not isinstance(output, tuple):
        return edge(output)
    left = (edge(output[0]),)
    if others is None:
        return left + output[1:]
    for result in output[1:]:
        left = left + (others(result) if isinstance(result, Tensor) else result,)
    return left


def enter_through(cell, path: str, entries: Sequence[Entry]) -> Undo:
    """`hook_entries`, or another forward for a Cell in a list.

    Returns:
        What undoes it; several at one Cell are undone in the reverse order.
    """
    if not is_listed(path):
        return hook_entries(cell, entries).remove
    forward, entries = cell.construct, tuple(entries)

    def construct(self, *args, **kwargs):
        changed, named = args, dict(kwargs)
        for edge, name, at in entries:
            if at < len(changed):
                if changed[at] is not None:
                    changed = changed[:at] + (edge(changed[at]),) + changed[at + 1:]
            elif name in named and named[name] is not None:
                named[name] = edge(named[name])
        return forward(*changed, **named)

    return replace_construct(cell, construct)


def leave_through(cell, path: str, edge, out_size: Optional[int] = None, others=None) -> Undo:
    """`hook_exit`, or another forward for a Cell in a list.

    Returns:
        What undoes it; several at one Cell are undone in the reverse order.
    """
    if not is_listed(path):
        return hook_exit(cell, edge, out_size, others).remove
    assert out_size is None, f"{path}: an output head in a list"
    forward = cell.construct

    def construct(self, *args, **kwargs):
        return _leave(forward(*args, **kwargs), edge, others)

    return replace_construct(cell, construct)


def is_listed(path: str) -> bool:
    """The module at the path stands in a list, where the compiler calls no hooks."""
    return path.rpartition(".")[2].isdigit()


def replace_construct(cell, construct) -> Undo:
    """Give one Cell another forward.

    Returns:
        What brings the one before back.
    """
    before = vars(cell).get("construct")
    cell.construct = types.MethodType(construct, cell)

    def undo():
        del cell.construct
        if before is not None:
            cell.construct = before

    return undo
