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
"""Tensors side by side in one flat tensor, so that a unit's collective is one."""
from typing import List, Sequence

from mindspore import Tensor, mint, ops


def as_dtype(tensor: Tensor, dtype) -> Tensor:
    """The tensor in another dtype; itself where it has it already."""
    return tensor if tensor.dtype == dtype else ops.cast(tensor, dtype)


def own_memory(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it looks at a part of a larger one's memory."""
    return tensor if tensor.untyped_storage().size() == tensor.nbytes else tensor.copy()


def padded(flat: Tensor, elements: int) -> Tensor:
    """A flat tensor with zeros up to this many elements."""
    missing = elements - flat.size
    return mint.cat((flat, mint.zeros((missing,), dtype=flat.dtype))) if missing else flat


def joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """All of them along `dim`; the inverse is `apart`.

    Examples:
        >>> joined([Tensor([1, 2]), Tensor([3])])
        Tensor([1, 2, 3])
    """
    return tensors[0] if len(tensors) == 1 else mint.cat(list(tensors), dim)


def apart(flat: Tensor, lengths: Sequence[int], dim: int = 0) -> List[Tensor]:
    """Pieces of these lengths along `dim`, as views."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(mint.narrow(flat, dim, start, length))
        start += length
    return pieces
