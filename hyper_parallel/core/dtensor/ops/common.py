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
"""Specs that many operators share."""
from typing import Callable, Optional, Sequence

from hyper_parallel.core.dtensor.ops.spec import (LINEAR, MOVES, Operand, Passing, Spec, aligned_labels, axis_of,
                                                  broadcast_shape, own_labels)


def tensors(*arguments) -> list:
    """The operands among the arguments."""
    return [argument for argument in arguments if isinstance(argument, Operand)]


def pointwise(*operands: Operand, partial: Sequence[Passing] = (), inplace: bool = False,
              compute: Optional[Callable] = None) -> Spec:
    """Element by element, with broadcasting: `[a b], [b] -> [a b]`."""
    shape = operands[0].shape if inplace else broadcast_shape(*operands)
    labels = {operand: aligned_labels(operand, shape) for operand in operands}
    return Spec(labels, [tuple(range(len(shape)))], partial=partial, inplace=inplace, compute=compute)


def alone(ops: Sequence[str], *operands: Operand) -> list:
    """Partial passes in any one of the operands: the operator is linear in each."""
    return [Passing(tuple(ops), (operand,)) for operand in operands]


def together(ops: Sequence[str], *operands: Operand) -> list:
    """Partial passes when all of the operands are: the operator is linear in all of them at once."""
    return [Passing(tuple(ops), tuple(operands))]


def along(x: Operand, *dims: int, linear: bool = False, moves: bool = False, results: int = 1,
          kept: bool = True) -> Spec:
    """One operand, worked on along `dims`, which stay whole; every other dim may be cut.

    Args:
        x: the operand.
        dims: the dims that stay whole.
        linear: whether sums pass.
        moves: whether the operator only moves elements.
        results: how many results.
        kept: whether the results have the dims.
    """
    whole = [axis_of(dim, x.ndim) for dim in dims]
    labels = own_labels(x, whole)
    out = labels if kept else tuple(label for dim, label in enumerate(labels) if dim not in whole)
    partial = alone(MOVES if moves else LINEAR, x) if linear or moves else ()
    return Spec({x: labels}, [out] * results, partial=partial)
