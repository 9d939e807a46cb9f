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
"""Activations and floor division on CPU, against their formulas."""
import math

import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint, ops

from cpu_kernels_checks import check, check_half, numbers

HALVES = [ms.float16, ms.bfloat16]
F = mint.nn.functional


def gelu_exact(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softplus(x):
    return np.logaddexp(0, x)


def swiglu(x, dim):
    gate, linear = np.split(x, 2, dim)
    return gate / (1 + np.exp(-gate)) * linear


def test_gelu():
    check(F.gelu, gelu_exact, numbers(3, 4) * 2)
    check(lambda x: F.gelu(x, approximate="tanh"), gelu_tanh, numbers(3, 4) * 2)
    with pytest.raises(ValueError, match="'cosh'"):
        F.gelu(Tensor(numbers(2)), approximate="cosh")


def test_softplus():
    check(F.softplus, softplus, numbers(3, 4) * 5)
    check(lambda x: F.softplus(x, 2, 20), lambda x: softplus(2 * x) / 2, numbers(3, 4))


def test_softplus_of_large_numbers_is_the_number():
    result = F.softplus(Tensor(np.array([-1000, 25, 1000], np.float32)))
    np.testing.assert_array_equal(result.asnumpy(), [0, 25, 1000])


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_swiglu(dim):
    check(lambda x: ops.swiglu(x, dim), lambda x: swiglu(x, dim), numbers(2, 4, 2))


def test_swiglu_refuses_an_odd_dim():
    with pytest.raises(ValueError, match="size 3 is odd"):
        ops.swiglu(Tensor(numbers(2, 3)))


@pytest.mark.parametrize("dtype", HALVES)
def test_activations_in_half_precision(dtype):
    check_half(F.gelu, gelu_exact, numbers(3, 4), dtype=dtype)
    check_half(F.softplus, softplus, numbers(3, 4), dtype=dtype)
    check_half(ops.swiglu, lambda x: swiglu(x, -1), numbers(3, 4), dtype=dtype)


def test_floor_divide():
    values = np.array([[-7, 7, 8], [0, 1, -1]])
    for kind in (np.int32, np.int64, np.float32):
        tensor = Tensor(values.astype(kind))
        for result, expected in ((mint.floor_divide(tensor, 2), values // 2),
                                 (mint.floor_divide(tensor, Tensor(np.full(3, 3, kind))), values // 3)):
            assert result.dtype == tensor.dtype
            np.testing.assert_array_equal(result.asnumpy(), expected)
