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
"""Selections, scatters and repetitions on CPU, against numpy."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint

from cpu_kernels_checks import check, check_half, close, numbers

F = mint.nn.functional
INDEX = np.array([[0, 2], [2, 2], [1, 0]])


def added(target, index, source):
    """numpy's scatter-add along dim 1."""
    result = target.copy()
    rows, columns = np.indices(index.shape)
    del columns
    np.add.at(result, (rows, index), source[:index.shape[0], :index.shape[1]])
    return result


def placed(target, index, source):
    """numpy's scatter along dim 1."""
    result = np.array(target)
    np.put_along_axis(result, index, source, 1)
    return result


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_index_select(dim):
    index = Tensor([2, 0, 2])
    check(lambda a: mint.index_select(a, dim, index), lambda a: np.take(a, [2, 0, 2], dim), numbers(3, 4))


def test_scatter_add():
    for function in (mint.scatter_add, lambda a, *rest: a.scatter_add(*rest)):
        check(lambda a, b, function=function: function(a, 1, Tensor(INDEX), b),
              lambda a, b: added(a, INDEX, b), numbers(3, 4), numbers(3, 2))


def test_scatter_add_reads_only_as_much_as_the_index_covers():
    check(lambda a, b: mint.scatter_add(a, -1, Tensor(INDEX[:2, :1]), b),
          lambda a, b: added(a, INDEX[:2, :1], b), numbers(3, 4), numbers(3, 2))


def test_scatter_add_of_integers():
    result = mint.scatter_add(mint.zeros((3, 4), dtype=ms.int64), 1, Tensor(INDEX), mint.ones((3, 2), dtype=ms.int64))
    assert result.dtype == ms.int64
    np.testing.assert_array_equal(result.asnumpy(), added(np.zeros((3, 4)), INDEX, np.ones((3, 2))))


def test_scatter():
    different = np.array([[0, 2], [2, 1], [1, 0]])
    check(lambda a, b: mint.scatter(a, 1, Tensor(different), b), lambda a, b: placed(a, different, b),
          numbers(3, 4), numbers(3, 2))
    check(lambda a: mint.scatter(a, 1, Tensor(different), 0), lambda a: placed(a, different, 0), numbers(3, 4))


@pytest.mark.parametrize("dtype", [ms.bool_, ms.int32, ms.int64, ms.float16, ms.bfloat16])
def test_scatter_of_a_number_into_any_dtype(dtype):
    result = mint.scatter(mint.zeros((3, 4), dtype=dtype), 1, Tensor(INDEX), 1)
    assert result.dtype == dtype
    close(result, placed(np.zeros((3, 4)), INDEX, 1), 0)


def test_index_add_writes_into_its_tensor():
    start, rows = numbers(3, 4), numbers(2, 4)
    target = Tensor(start)
    target.index_add_(0, Tensor([2, 2]), Tensor(rows))
    expected = start.copy()
    expected[2] += rows.sum(0)
    close(target, expected, 1e-6)
    target.index_add_(0, Tensor([0]), Tensor(rows[:1]), alpha=2)
    expected[0] += 2 * rows[0]
    close(target, expected, 1e-6)


def test_index_add_gradient():
    def added_rows(a, b):
        return mint.mul(a, 1.0).index_add_(0, Tensor([2, 0]), b)

    def formula(a, b):
        result = a.copy()
        result[[2, 0]] += b
        return result
    check(added_rows, formula, numbers(3, 4), numbers(2, 4))


def test_embedding():
    tokens = np.array([[0, 3], [3, 1]])
    check(lambda table: F.embedding(Tensor(tokens), table), lambda table: table[tokens], numbers(4, 3))
    check_half(lambda table: F.embedding(Tensor(tokens), table), lambda table: table[tokens], numbers(4, 3),
               dtype=ms.bfloat16)


def test_embedding_gives_the_padding_row_no_gradient():
    tokens = Tensor(np.array([[0, 3], [3, 1]]))
    table = Tensor(numbers(4, 3))

    def total(table, padding):
        return mint.sum(F.embedding(tokens, table, padding_idx=padding))
    for padding in (3, -1):
        gradient = ms.grad(total)(table, padding).asnumpy()
        np.testing.assert_array_equal(gradient, np.array([[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]]))
        close(F.embedding(tokens, table, padding_idx=padding), table.asnumpy()[tokens.asnumpy()], 0)


def test_embedding_refuses_what_it_does_not_do():
    with pytest.raises(NotImplementedError, match="max_norm"):
        F.embedding(Tensor([0]), Tensor(numbers(2, 2)), max_norm=1.0)


def test_repeat_interleave():
    check(lambda a: mint.repeat_interleave(a, 2, 1), lambda a: np.repeat(a, 2, 1), numbers(3, 2))
    check(lambda a: mint.repeat_interleave(a, 2), lambda a: np.repeat(a, 2), numbers(3, 2))
    check(lambda a: mint.repeat_interleave(a, Tensor([1, 0, 2]), dim=0), lambda a: np.repeat(a, [1, 0, 2], 0),
          numbers(3, 2))
    check(lambda a: mint.repeat_interleave(a, [1, 0, 2], 0), lambda a: np.repeat(a, [1, 0, 2], 0), numbers(3, 2))


@pytest.mark.parametrize("shifts, dims", [(1, 0), (-1, 1), (5, -1), ((1, -1), (0, 1)), (0, 0), (2, None)])
def test_roll(shifts, dims):
    check(lambda a: mint.roll(a, shifts, dims), lambda a: np.roll(a, shifts, dims), numbers(3, 4))


def test_roll_of_nothing():
    assert mint.roll(mint.zeros((0, 2)), 1, 0).shape == (0, 2)
