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
from typing import Callable, Optional

from mindspore import nn, ops

from hyper_parallel.distributed import edges, held_bias

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

    return edges.replace_construct(cell, construct)


def bias_after_reduction(cell) -> Undo:
    """Hold back the bias of a row linear, so that the hook after its reduction adds it once.

    Raises:
        ValueError: nobody knows how the class leaves its bias out, or it computes something after the bias.
    """
    if getattr(cell, "activation", None) is not None:
        raise ValueError(f"{type(cell).__name__} applies an activation behind a bias that has to be added after the "
                         "reduction: move the activation out of the linear, or keep the module whole")
    return held_bias.hold_back(cell)


class _Bias(nn.Cell):
    """Adds a share of a bias: 1.0, or 0.0 where another rank adds it, so that its gradient is zero here."""

    def __init__(self, share: float):
        super().__init__(auto_prefix=False)
        self.share = share

    def construct(self, x, bias):
        """x plus the share of the bias."""
        bias = ops.cast(bias, x.dtype)
        return x + (bias if self.share == 1.0 else bias * self.share)


def add_bias_last(cell, path: str, share: Optional[float] = None) -> Undo:
    """Add the bias that was held back to the Cell's result, behind the exit edge that was put there before.

    Args:
        cell: the row linear.
        path: of it.
        share: what this rank adds of it; None adds it as it is.
    """
    add = _Bias(1.0 if share is None else share)
    forward = cell.construct

    # the bias is read from `cell` or `self`: the compiler takes functions that differ in their closures for one
    def add_bias(cell, args, output):
        return add(output, cell.bias)

    def construct(self, *args, **kwargs):
        return add(forward(*args, **kwargs), self.bias)

    if edges.is_listed(path):
        return edges.replace_construct(cell, construct)
    return cell.register_forward_hook(add_bias).remove
