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
"""Ranges, constants, stacks, copies and triangles on CPU, against numpy."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint

from cpu_kernels_checks import check, check_half, numbers, transposed_view

HALVES = [ms.float16, ms.bfloat16]


@pytest.mark.parametrize("bounds", [(5,), (1, 7), (1, 7, 2), (7, 1, -2), (0,)])
def test_integer_ranges(bounds):
    result = mint.arange(*bounds)
    assert result.dtype == ms.int64
    np.testing.assert_array_equal(result.asnumpy(), np.arange(*bounds))


def test_float_ranges_and_dtypes():
    assert mint.arange(0, 1, 0.25).dtype == ms.float32
    np.testing.assert_array_equal(mint.arange(0, 1, 0.25).asnumpy(), np.arange(0, 1, 0.25))
    assert mint.arange(4, dtype=ms.float32).dtype == ms.float32
    assert mint.arange(4, dtype=ms.bfloat16).dtype == ms.bfloat16
    np.testing.assert_array_equal(mint.arange(Tensor(3)).asnumpy(), [0, 1, 2])


@pytest.mark.parametrize("value, dtype", [(2, ms.int64), (2.5, ms.float32), (True, ms.bool_), (-np.inf, ms.float32)])
def test_full_infers_the_dtype(value, dtype):
    result = mint.full((2, 3), value)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.asnumpy(), np.full((2, 3), value))


def test_full_takes_a_dtype_a_tensor_and_a_single_size():
    assert mint.full([2], 3, dtype=ms.bfloat16).dtype == ms.bfloat16
    np.testing.assert_array_equal(mint.full((2,), Tensor(3.5)).asnumpy(), [3.5, 3.5])
    assert mint.full(2, 1).shape == (2,)


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16, ms.int32, ms.int64, ms.bool_])
def test_likenesses(dtype):
    model = transposed_view(numbers(2, 3)).astype(dtype)
    for function, value in ((mint.zeros_like, 0), (mint.ones_like, 1)):
        result = function(model)
        assert result.dtype == dtype and result.shape == (2, 3)
        np.testing.assert_array_equal(result.astype(ms.float32).asnumpy(), np.full((2, 3), value))
        assert function(model, dtype=ms.int64).dtype == ms.int64
    result = mint.full_like(model, 1)
    assert result.dtype == dtype
    assert mint.full_like(model, 2, dtype=ms.float32).asnumpy().tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_stack(dim):
    check(lambda a, b: mint.stack([a, b], dim), lambda a, b: np.stack([a, b], dim), numbers(2, 3), numbers(2, 3))


def test_stack_of_a_tuple_in_half_precision():
    for dtype in HALVES:
        check_half(lambda a, b: mint.stack((a, b), dim=1), lambda a, b: np.stack([a, b], 1), numbers(2), numbers(2),
                   dtype=dtype)


def test_outer():
    check(mint.outer, np.outer, numbers(3), numbers(4))


def test_clone_has_the_values_the_gradient_and_its_own_memory():
    check(mint.clone, lambda a: a * 1, numbers(2, 3))
    check(lambda a: a.clone(), lambda a: a * 1, numbers(2, 3))
    original = Tensor(numbers(2, 2))
    kept = original.asnumpy().copy()
    copy = original.clone()
    copy.zero_()
    np.testing.assert_array_equal(original.asnumpy(), kept)
    assert Tensor([True, False]).clone().dtype == ms.bool_


@pytest.mark.parametrize("diagonal", [-1, 0, 2])
def test_tril(diagonal):
    check(lambda a: mint.tril(a, diagonal), lambda a: np.tril(a, diagonal), numbers(2, 3, 4))


def test_tril_keeps_dtypes_and_hides_what_is_not_a_number():
    for dtype in HALVES:
        check_half(mint.tril, np.tril, numbers(3, 3), dtype=dtype)
    triangle = mint.tril(Tensor(np.full((2, 2), np.inf, np.float32)))
    assert triangle.asnumpy().tolist() == [[np.inf, 0], [np.inf, np.inf]]
    assert mint.tril(Tensor(np.ones((2, 2), np.int32))).dtype == ms.int32
