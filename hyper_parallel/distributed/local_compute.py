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
"""Replacements for a module's forward where edges around it are not enough; found by the name that a plan carries."""
import types
from typing import Callable, Dict

from mindspore import ops

Undo = Callable[[], None]


def vocabulary_parallel_embedding(cell, rows: int, first_row: int) -> Undo:
    """Look up the ids that fall into this rank's rows; others give zeros, so that the sum over ranks is the lookup.

    Args:
        cell: an embedding whose forward takes ids first.
        rows: rows of the local table.
        first_row: first row of the whole table that the local table holds.

    Returns:
        What undoes it.
    """
    look_up = cell.construct
    # Neither number is 0: GRAPH_MODE folds a subtraction of 0, so that the first rank's graph would differ from the
    # others', and ranks whose graphs differ can issue their collectives in different orders.
    above = first_row + 1

    def construct(self, ids, *rest):
        shifted = (ids + 1) - above
        inside = ops.logical_and(shifted >= 0, shifted < rows)
        found = look_up(shifted * ops.cast(inside, shifted.dtype), *rest)
        return found * ops.cast(ops.expand_dims(inside, -1), found.dtype)

    return _replace_construct(cell, construct)


def bias_after_reduction(cell) -> Undo:
    """Hold back the bias of a row linear, so that the hook after its reduction adds it once.

    Raises:
        ValueError: the class has no switch that leaves its bias out, or computes something after the bias.
    """
    if getattr(cell, "activation", None) is not None:
        raise ValueError(f"{type(cell).__name__} applies an activation behind a bias that has to be added after the "
                         "reduction: move the activation out of the linear, or keep the module whole")
    if getattr(cell, "has_bias", None) is not True:
        raise ValueError(f"cannot hold back the bias of a {type(cell).__name__}: it has no attribute has_bias; use "
                         "nn.Dense, or keep the module whole with auto_tp_config.overrides")
    cell.has_bias = False

    def undo():
        cell.has_bias = True

    return undo


def hook_bias(cell):
    """Add the Cell's bias to its result, after the exit edge that was hooked before."""

    def add_bias(cell, args, output):
        return output + ops.cast(cell.bias, output.dtype)

    return cell.register_forward_hook(add_bias)


def _replace_construct(cell, construct) -> Undo:
    cell.construct = types.MethodType(construct, cell)

    def undo():
        del cell.construct

    return undo


REGISTRY: Dict[str, Callable] = {
    "vocabulary_parallel_embedding": vocabulary_parallel_embedding,
    "bias_after_reduction": bias_after_reduction,
}
