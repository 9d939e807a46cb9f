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
"""Splits on CPU: pieces as numpy makes them, and right gradients when those arrive strided."""
import numpy as np
import pytest

from mindspore import Tensor, mint

from cpu_kernels_checks import check, numbers


@pytest.mark.parametrize("size, dim", [(2, 1), (3, 1), (1, 0), (2, -1), (9, 0)])
def test_split_into_pieces_of_one_size(size, dim):
    check(lambda a: mint.split(a, size, dim),
          lambda a: np.split(a, range(size, a.shape[dim], size), dim), numbers(2, 4))


@pytest.mark.parametrize("sizes, dim", [((1, 3), 1), ([2, 1, 1], -1), ((2,), 0)])
def test_split_into_listed_sizes(sizes, dim):
    check(lambda a: mint.split(a, sizes, dim), lambda a: np.split(a, np.cumsum(sizes)[:-1], dim), numbers(2, 4))


def test_split_of_three_dims_whose_pieces_are_reshaped():
    """The fused query-key-value of an attention layer: split the last dim, then reshape every piece."""
    def pieces(a):
        return [mint.reshape(piece, (3, -1)) for piece in mint.split(a, (4, 2, 2), dim=2)]
    check(pieces, lambda a: [piece.reshape(3, -1) for piece in np.split(a, (4, 6), 2)], numbers(3, 2, 8))


def test_split_rejects_what_does_not_fit():
    tensor = Tensor(numbers(2, 4))
    with pytest.raises(ValueError, match="sum to 3, but dim 1 of the tensor has size 4"):
        mint.split(tensor, (1, 2), 1)
    with pytest.raises(ValueError, match="positive"):
        mint.split(tensor, 0, 1)
    with pytest.raises(ValueError, match="dim 2 is out of range"):
        mint.split(tensor, 1, 2)
    with pytest.raises(TypeError, match="str"):
        mint.split(tensor, "1", 0)


@pytest.mark.parametrize("dim, index", [(0, 1), (1, -1), (-1, 0)])
def test_select(dim, index):
    check(lambda a: mint.select(a, dim, index), lambda a: np.take(a, index, dim), numbers(2, 3))


@pytest.mark.parametrize("dim", [0, 1])
def test_unbind(dim):
    check(lambda a: mint.unbind(a, dim), lambda a: list(np.moveaxis(a, dim, 0)), numbers(2, 3))
