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
"""RMS norm and layer norm on CPU, against their formulas."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint, ops

from cpu_kernels_checks import check, check_half, close, numbers

EPSILON = 1e-3


def rms(x, gamma):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gamma


def layer(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + EPSILON) * weight + bias


def test_rms_norm():
    check(lambda x, gamma: ops.rms_norm(x, gamma, EPSILON)[0], rms, numbers(3, 2, 4), numbers(4))


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_norms_in_half_precision(dtype):
    check_half(lambda x, gamma: ops.rms_norm(x, gamma, EPSILON)[0], rms, numbers(3, 4), numbers(4), dtype=dtype)
    check_half(lambda x, weight, bias: mint.nn.functional.layer_norm(x, (4,), weight, bias, EPSILON), layer,
               numbers(3, 4), numbers(4), numbers(4), dtype=dtype)


def test_rms_norm_returns_the_reciprocal_root_in_float32():
    x = numbers(3, 2, 4)
    y, rstd = ops.rms_norm(Tensor(x).astype(ms.float16), Tensor(numbers(2, 4)))
    assert y.dtype == ms.float16 and rstd.dtype == ms.float32 and rstd.shape == (3, 1, 1)
    close(rstd, 1 / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-6), 1e-3)


def test_layer_norm():
    check(lambda x, weight, bias: mint.nn.functional.layer_norm(x, (4,), weight, bias, EPSILON), layer,
          numbers(3, 2, 4), numbers(4), numbers(4))


def test_layer_norm_takes_a_number_and_no_weights():
    check(lambda x: mint.nn.functional.layer_norm(x, 4, eps=EPSILON), lambda x: layer(x, 1, 0), numbers(3, 4))
    check(lambda x: mint.nn.functional.layer_norm(x, [2, 2], None, None, EPSILON),
          lambda x: layer(x.reshape(3, 4), 1, 0).reshape(3, 2, 2), numbers(3, 2, 2))
