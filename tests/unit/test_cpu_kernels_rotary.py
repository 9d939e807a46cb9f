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
"""Rotary position embedding on CPU, against its formula."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops import auto_generate

from cpu_kernels_checks import check, check_half, numbers


def rotated(x, cos, sin, mode):
    if mode == 0:
        first, second = np.split(x, 2, -1)
        turned = np.concatenate([-second, first], -1)
    else:
        turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


@pytest.mark.parametrize("mode", [0, 1])
def test_primitive_and_function(mode):
    for function in (auto_generate.gen_ops_prim.RotaryPositionEmbedding(), ops.rotary_position_embedding):
        check(lambda x, cos, sin, function=function: function(x, cos, sin, mode),
              lambda x, cos, sin: rotated(x, cos, sin, mode), numbers(3, 2, 2, 4), numbers(3, 1, 1, 4),
              numbers(3, 1, 1, 4))


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(dtype):
    check_half(ops.rotary_position_embedding, lambda x, cos, sin: rotated(x, cos, sin, 0), numbers(2, 1, 1, 4),
               numbers(2, 1, 1, 4), numbers(2, 1, 1, 4), dtype=dtype)


def test_other_modes_are_refused():
    x = Tensor(numbers(2, 1, 1, 4))
    with pytest.raises(NotImplementedError, match="mode 2"):
        ops.rotary_position_embedding(x, x, x, 2)


def test_meta_tensors_reach_the_original():
    with ms.DeviceCtx("meta"):
        x = Tensor(numbers(2, 1, 1, 64))
        assert auto_generate.gen_ops_prim.RotaryPositionEmbedding()(x, x, x).device == "meta"
