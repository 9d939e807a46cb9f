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
"""Operators in bfloat16 on CPU against numpy on the rounded numbers, and the matrix product without a kernel."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint

from cpu_kernels_checks import check, check_half, close, numbers

F = mint.nn.functional
INDEX = np.array([[0, 1], [2, 0]])
MASK = np.array([[True, False, True], [False, True, True]])


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def positive(*shape):
    return np.abs(numbers(*shape)) + 0.5


PRODUCTS = {
    "matmul": (mint.matmul, (3, 4), (4, 2)),
    "matmul of three dims": (mint.matmul, (2, 3, 4), (4, 2)),
    "Tensor.matmul": (lambda a, b: a.matmul(b), (3, 4), (4, 2)),
    "@": (lambda a, b: a @ b, (3, 4), (4, 2)),
    "bmm": (mint.bmm, (2, 3, 4), (2, 4, 2)),
    "mm": (mint.mm, (3, 4), (4, 2)),
    "Tensor.mm": (lambda a, b: a.mm(b), (3, 4), (4, 2)),
}
UNARY = {
    "softmax": (lambda x: F.softmax(x, -1), softmax),
    "mint.softmax": (lambda x: mint.softmax(x, dim=-1), softmax),
    "silu": (F.silu, lambda x: x / (1 + np.exp(-x))),
    "sigmoid": (mint.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "relu": (F.relu, lambda x: np.maximum(x, 0)),
    "exp": (mint.exp, np.exp),
    "log": (mint.log, np.log),
    "cos": (mint.cos, np.cos),
    "sin": (mint.sin, np.sin),
    "tanh": (mint.tanh, np.tanh),
    "sqrt": (mint.sqrt, np.sqrt),
    "rsqrt": (mint.rsqrt, lambda x: 1 / np.sqrt(x)),
    "square": (mint.square, np.square),
    "pow": (lambda x: mint.pow(x, 3), lambda x: x ** 3),
    "sum": (lambda x: x.sum(dim=1), lambda x: x.sum(1)),
    "mean": (lambda x: mint.mean(x, -1, True), lambda x: x.mean(-1, keepdims=True)),
    "max": (lambda x: mint.max(x, 1)[0], lambda x: x.max(1)),
    "amax": (lambda x: mint.amax(x, dim=(0, 1)), np.max),
    "gather": (lambda x: mint.gather(x, 1, Tensor(INDEX)), lambda x: np.take_along_axis(x, INDEX, 1)),
    "tile": (lambda x: mint.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1))),
    "clamp": (lambda x: mint.clamp(x, 0.7, max=1.0), lambda x: np.clip(x, 0.7, 1.0)),
    "where": (lambda x: mint.where(Tensor(MASK), x, x * 2), lambda x: np.where(MASK, x, x * 2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    function, left, right = PRODUCTS[name]
    check_half(function, np.matmul, numbers(*left), numbers(*right), dtype=ms.bfloat16)
    check(function, np.matmul, numbers(*left), numbers(*right))


def test_linear():
    check_half(F.linear, lambda x, weight, bias: x @ weight.T + bias, numbers(3, 4), numbers(2, 4), numbers(2),
               dtype=ms.bfloat16)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    function, formula = UNARY[name]
    check_half(function, formula, positive(2, 3), dtype=ms.bfloat16)


@pytest.mark.parametrize("function, formula", [
    (mint.add, np.add), (mint.sub, np.subtract), (mint.mul, np.multiply), (mint.div, np.divide)])
def test_arithmetic_that_broadcasts(function, formula):
    check_half(function, formula, positive(3, 4), positive(4), dtype=ms.bfloat16)
    check_half(function, formula, positive(3, 4), positive(3, 4), dtype=ms.bfloat16)


ROWS = np.array([2, 0, 2])


def test_indexing():
    check_half(lambda x: x[Tensor(ROWS)], lambda x: x[ROWS], numbers(3, 4), dtype=ms.bfloat16)
    check_half(lambda x: x[Tensor(ROWS), 1:3], lambda x: x[ROWS, 1:3], numbers(3, 4), dtype=ms.bfloat16)
    check_half(lambda x: x[1:, 0], lambda x: x[1:, 0], numbers(3, 4), dtype=ms.bfloat16)


def test_assignment():
    """Expert outputs are put back in token order by `whole[order] = rows`."""
    order = np.array([1, 2, 0])

    def put(index, numpy_index):
        def function(rows):
            whole = mint.zeros((3, 4), dtype=ms.bfloat16)
            whole[index] = rows
            return whole

        def formula(rows):
            whole = np.zeros((3, 4))
            whole[numpy_index] = rows
            return whole
        return function, formula
    for index in (Tensor(order), slice(0, 3)):
        function, formula = put(index, order if isinstance(index, Tensor) else index)
        check_half(function, formula, numbers(3, 4), dtype=ms.bfloat16)
    whole = mint.zeros((3, 4), dtype=ms.bfloat16)
    whole[Tensor(order[:1])] = 2.0
    close(whole, np.eye(3)[1][:, None] * np.full(4, 2.0), 0)


def test_indices_stay_indices():
    values, positions = mint.max(Tensor(np.array([[1, 3, 2]], np.float32)).astype(ms.bfloat16), 1)
    assert values.dtype == ms.bfloat16 and positions.dtype == ms.int64
    assert positions.asnumpy().tolist() == [1]


def test_float32_among_the_arguments_gives_float32():
    half, whole = Tensor(numbers(2, 3)).astype(ms.bfloat16), Tensor(numbers(3))
    result = mint.mul(half, whole)
    assert result.dtype == ms.float32
    close(result, half.astype(ms.float32).asnumpy() * whole.asnumpy(), 1e-6)
