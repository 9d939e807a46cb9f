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
from typing import Callable, Optional

from hyper_parallel.core.collectives import transitions
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard

AXIS = "tp"
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


def exit_transition(source: NamedPlacement, target: NamedPlacement, group, where: str = ""):
    """The transition of a result on its way out of the boundary at path `where`; None where nothing happens."""
    has, leaves = _on_axis(source), _on_axis(target)
    if has == leaves:
        return None
    if has.is_partial():
        if isinstance(leaves, Shard):
            return Transition(transitions.REDUCE_SCATTER_SEQUENCE, group, leaves.dim, where=where)
        return Transition(transitions.REDUCE, group, where=where)
    if isinstance(has, Shard):
        assert isinstance(leaves, Replicate), f"no exit from {has} to {leaves}"
        return Transition(transitions.GATHER_FOR_REPLICATED, group, has.dim, where=where)
    return Transition(transitions.SLICE, group, leaves.dim, where=where)


def hook_entry(cell, edge, name: str, position: int):
    """Let an argument pass through `edge` before the Cell's forward sees it, however the caller passes it."""

    # GRAPH_MODE hands keyword arguments over by position and without `kwargs`; PyNative with them
    def enter(cell, args, kwargs=None):
        if kwargs is None or len(args) > position:
            changed = args[:position] + (edge(args[position]),) + args[position + 1:]
            if kwargs is None:
                return changed
            return changed, kwargs
        changed_kwargs = dict(kwargs)
        changed_kwargs[name] = edge(kwargs[name])
        return args, changed_kwargs

    return cell.register_forward_pre_hook(enter, with_kwargs=True)


def hook_exit(cell, edge, out_size: Optional[int] = None):
    """Let the Cell's result, or the first of several, pass through `edge`.

    Args:
        cell: the boundary's module.
        edge: the transition.
        out_size: columns to keep of the last dim, where the vocabulary is padded.
    """

    def leave(cell, args, output):
        if isinstance(output, tuple):
            return (edge(output[0]),) + output[1:]
        return edge(output)

    def leave_unpadded(cell, args, output):
        if isinstance(output, tuple):
            return (edge(output[0])[..., :out_size],) + output[1:]
        return edge(output)[..., :out_size]

    return cell.register_forward_hook(leave if out_size is None else leave_unpadded)


def enter_through(cell, path: str, edge, name: str, position: int) -> Undo:
    """`hook_entry`, or another forward for a Cell in a list.

    Returns:
        What undoes it; several at one Cell are undone in the reverse order.
    """
    if not is_listed(path):
        return hook_entry(cell, edge, name, position).remove
    forward = cell.construct

    def construct(self, *args, **kwargs):
        if len(args) > position:
            return forward(*args[:position], edge(args[position]), *args[position + 1:], **kwargs)
        changed = dict(kwargs)
        changed[name] = edge(kwargs[name])
        return forward(*args, **changed)

    return replace_construct(cell, construct)


def leave_through(cell, path: str, edge, out_size: Optional[int] = None) -> Undo:
    """`hook_exit`, or another forward for a Cell in a list.

    Returns:
        What undoes it; several at one Cell are undone in the reverse order.
    """
    if not is_listed(path):
        return hook_exit(cell, edge, out_size).remove
    assert out_size is None, f"{path}: an output head in a list"
    forward = cell.construct

    def construct(self, *args, **kwargs):
        output = forward(*args, **kwargs)
        if isinstance(output, tuple):
            return (edge(output[0]),) + output[1:]
        return edge(output)

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
