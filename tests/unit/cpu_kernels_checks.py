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
"""Comparison of an operator with a numpy formula: values, and gradients by central differences of the formula.

The differences are taken of the formula in float64, so their own error is far below float32's.
"""
import numpy as np

import mindspore as ms
from mindspore import Tensor, mint

from hyper_parallel.platform import cpu_kernels

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
# Kernels made in the background now and then fail to initialise on a busy machine, and errors surface late.
ms.runtime.launch_blocking()
cpu_kernels.install()

STEP = 1e-5
generator = np.random.default_rng(7)


def numbers(*shape):
    """float32 numbers around 0."""
    return generator.normal(size=shape).astype(np.float32)


def as_tuple(result):
    """A single result as a tuple of one."""
    return result if isinstance(result, (tuple, list)) else (result,)


def transposed_view(array):
    """A tensor with the values of `array` whose memory holds its transpose."""
    dims = tuple(range(array.ndim))[::-1]
    return mint.permute(Tensor(np.ascontiguousarray(array.transpose(dims))), dims)


def leading_part(array):
    """A tensor with the values of `array` that is the first half of a larger one."""
    return mint.narrow(Tensor(np.concatenate([array, array + 1])), 0, 0, array.shape[0])


FORMS = {"contiguous": Tensor, "transposed": transposed_view, "leading part": leading_part}


def weighted_sum(results, weights, strided):
    """sum(weights * result) over all results; the gradient of a result arrives transposed if `strided`."""
    total = 0
    for result, weight in zip(as_tuple(results), weights):
        if strided and result.ndim > 1:
            result, weight = mint.permute(result, tuple(range(result.ndim))[::-1]), np.ascontiguousarray(weight.T)
        total = total + mint.sum(mint.mul(result, Tensor(weight)))
    return total


def numeric_gradients(formula, arrays, weights):
    """Central differences of sum(weights * formula(arrays)) by every element of every array."""
    wide = [array.astype(np.float64) for array in arrays]

    def value():
        return sum((weight * result).sum() for weight, result in zip(weights, as_tuple(formula(*wide))))
    gradients = []
    for array in wide:
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + STEP
            above = value()
            array[place] = kept - STEP
            gradient[place] = (above - value()) / (2 * STEP)
            array[place] = kept
        gradients.append(gradient)
    return gradients


def close(measured, expected, tolerance):
    """Largest error below `tolerance`, relative to the largest expected number."""
    measured = measured.astype(ms.float32).asnumpy() if isinstance(measured, Tensor) else measured
    expected = np.asarray(expected)
    assert measured.shape == expected.shape
    assert np.abs(measured - expected).max(initial=0) <= tolerance * max(1.0, np.abs(expected).max(initial=0))


def check(function, formula, *arrays, tolerance=2e-5):
    """`function` of tensors against `formula` of arrays: values and gradients by all arguments, in all memory forms."""
    expected = as_tuple(formula(*[array.astype(np.float64) for array in arrays]))
    weights = [numbers(*np.shape(result)) for result in expected]
    gradients = numeric_gradients(formula, arrays, weights)
    positions = tuple(range(len(arrays)))
    for form in FORMS.values():
        tensors = [form(array) for array in arrays]
        for measured, result in zip(as_tuple(function(*tensors)), expected):
            assert measured.dtype == ms.float32
            close(measured, result, tolerance)
        for strided in (False, True):
            def loss(*inputs, strided=strided):
                return weighted_sum(function(*inputs), weights, strided)
            for measured, gradient in zip(as_tuple(ms.grad(loss, positions)(*tensors)), gradients):
                close(measured, gradient, tolerance)


def check_half(function, formula, *arrays, dtype, tolerance=2e-2):
    """The same in half precision: result and gradients have the dtype and the values of the formula."""
    halves = [Tensor(array).astype(dtype) for array in arrays]
    rounded = [half.astype(ms.float32).asnumpy() for half in halves]
    expected = as_tuple(formula(*[array.astype(np.float64) for array in rounded]))
    weights = [numbers(*np.shape(result)) for result in expected]
    gradients = numeric_gradients(formula, rounded, weights)

    def loss(*inputs):
        return weighted_sum([result.astype(ms.float32) for result in as_tuple(function(*inputs))], weights, False)
    for measured, result in zip(as_tuple(function(*halves)), expected):
        assert measured.dtype == dtype
        close(measured, result, tolerance)
    for measured, gradient in zip(as_tuple(ms.grad(loss, tuple(range(len(arrays))))(*halves)), gradients):
        assert measured.dtype == dtype
        close(measured, gradient, tolerance)
