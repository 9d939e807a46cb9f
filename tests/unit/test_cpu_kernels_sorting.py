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
"""Sorting, top-k, cumulative sums and histograms on CPU, against numpy."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint

from cpu_kernels_checks import check, check_half, close, numbers, transposed_view

TIES = np.array([[2, 1, 2, 0, 1], [0, 0, 3, 3, 0]], np.float32)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dim, descending):
    def formula(a):
        ascending = np.sort(a, dim)
        return np.flip(ascending, dim) if descending else ascending
    check(lambda a: mint.sort(a, dim=dim, descending=descending)[0], formula, numbers(3, 4))


def test_equal_elements_keep_their_order_in_both_directions():
    for dtype in (ms.float32, ms.int32, ms.int64, ms.bfloat16):
        tensor = transposed_view(TIES).astype(dtype)
        ascending = mint.argsort(tensor, stable=True)
        assert ascending.dtype == ms.int64
        np.testing.assert_array_equal(ascending.asnumpy(), [[3, 1, 4, 0, 2], [0, 1, 4, 2, 3]])
        np.testing.assert_array_equal(mint.argsort(tensor, descending=True).asnumpy(),
                                      [[0, 2, 1, 4, 3], [2, 3, 0, 1, 4]])
        values, positions = mint.sort(tensor, dim=1)
        assert values.dtype == dtype and positions.dtype == ms.int64
        close(values, np.sort(TIES, 1), 0)
        np.testing.assert_array_equal(positions.asnumpy(), ascending.asnumpy())


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dim, largest):
    def formula(a):
        return np.take(np.flip(np.sort(a, dim), dim) if largest else np.sort(a, dim), range(2), dim)
    check(lambda a: mint.topk(a, k=2, dim=dim, largest=largest, sorted=False)[0], formula, numbers(3, 4))


def test_topk_positions_and_limits():
    values, positions = mint.topk(Tensor(TIES), 3)
    assert positions.dtype == ms.int64
    np.testing.assert_array_equal(positions.asnumpy(), [[0, 2, 1], [2, 3, 0]])
    np.testing.assert_array_equal(values.asnumpy(), [[2, 2, 1], [3, 3, 0]])
    with pytest.raises(ValueError, match="k is 6, but dim 1 has only 5"):
        mint.topk(Tensor(TIES), 6)
    with pytest.raises(ValueError, match="dim 2 is out of range"):
        mint.topk(Tensor(TIES), 1, 2)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(dtype):
    check_half(lambda a: mint.sort(a)[0], lambda a: np.sort(a), numbers(3, 4), dtype=dtype)
    check_half(lambda a: mint.cumsum(a, 1), lambda a: np.cumsum(a, 1), numbers(3, 4), dtype=dtype)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cumsum(dim):
    check(lambda a: mint.cumsum(a, dim), lambda a: np.cumsum(a, dim), numbers(3, 4))


def test_cumsum_dtypes():
    counts = Tensor(np.array([1, 0, 2], np.int32))
    assert mint.cumsum(counts, 0).dtype == ms.int64
    assert mint.cumsum(counts, dim=0, dtype=ms.int32).dtype == ms.int32
    result = mint.cumsum(counts.astype(ms.float32), dim=0, dtype=ms.int64)
    assert result.dtype == ms.int64
    np.testing.assert_array_equal(result.asnumpy(), [1, 1, 3])
    np.testing.assert_array_equal(mint.cumsum(Tensor([True, True]), 0).asnumpy(), [1, 2])


@pytest.mark.parametrize("dtype", [ms.int32, ms.int64, ms.float32])
def test_histc_counts_experts(dtype):
    """A router counts tokens with bins = max = the number of experts: expert e falls into bin e."""
    experts = np.array([[0, 3, 3], [1, 0, 3]])
    result = mint.histc(transposed_view(experts.astype(np.float32)).astype(dtype), bins=4, min=0, max=4)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.asnumpy(), [2, 1, 0, 3])


def test_histc_range():
    values = Tensor(np.array([-5, 0, 1, 2, 4, 9], np.float32))
    np.testing.assert_array_equal(mint.histc(values, 2, 0, 4).asnumpy(), [2, 2])
    np.testing.assert_array_equal(mint.histc(values, 2).asnumpy(), [3, 3])
    np.testing.assert_array_equal(mint.histc(Tensor(np.array([3, 3], np.float32)), 2).asnumpy(), [0, 2])
    np.testing.assert_array_equal(mint.histc(mint.zeros((0,)), 2).asnumpy(), [0, 0])
