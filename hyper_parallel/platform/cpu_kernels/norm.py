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
"""Normalisations: computed in float32, returned in the dtype of the input."""
from mindspore import mint

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.numeric import as_float32


@operator("RmsNorm", "mindspore.ops:rms_norm", "mindspore.ops.auto_generate:rms_norm")
def rms_norm(x, gamma, epsilon=1e-6):
    """`(y, rstd)`: `rstd` is float32 and keeps the normalised dims with size 1."""
    dims = tuple(range(x.ndim - gamma.ndim, x.ndim))
    wide = as_float32(x)
    rstd = mint.rsqrt(mint.mean(mint.mul(wide, wide), dims, True) + epsilon)
    y = mint.mul(mint.mul(wide, rstd), as_float32(gamma))
    return y.astype(x.dtype), rstd


@operator("LayerNormExt")
def layer_norm_operator(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = as_float32(input)
    centred = wide - mint.mean(wide, dims, True)
    out = centred * mint.rsqrt(mint.mean(mint.mul(centred, centred), dims, True) + eps)
    if weight is not None:
        out = out * as_float32(weight)
    if bias is not None:
        out = out + as_float32(bias)
    return out.astype(input.dtype)


@replaces("mindspore.mint.nn.functional:layer_norm")
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """`normalized_shape` is an integer or a tuple of the trailing dims' sizes."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return layer_norm_operator.dispatch(input, shape, weight, bias, eps)
