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
"""Activation functions and elementwise arithmetic; half precision is computed in float32."""
import math

from mindspore import Tensor, mint, ops

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.numeric import as_float32, positive_dim


@operator("GeluExt", "mindspore.mint.nn.functional:gelu")
def gelu(input, approximate="none"):
    """Exact by the error function, or with `approximate="tanh"` by the usual tanh formula."""
    wide = as_float32(input)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
        # (1 + tanh(u)) / 2; the CPU's tanh itself is only good to 1e-4.
        out = wide * mint.sigmoid(2 * inner)
    elif approximate == "none":
        out = 0.5 * wide * (1 + mint.erf(wide / math.sqrt(2)))
    else:
        raise ValueError(f"approximate must be 'none' or 'tanh', but got {approximate!r}.")
    return out.astype(input.dtype)


@operator("SoftplusExt", "mindspore.mint.nn.functional:softplus")
def softplus(input, beta=1, threshold=20):
    """`log(1 + exp(beta x)) / beta`, and x itself where `beta x` exceeds `threshold`."""
    scaled = as_float32(input) * beta
    # The stable form: exp never sees a positive number.
    smooth = mint.nn.functional.relu(scaled) + mint.log1p(mint.exp(mint.neg(mint.abs(scaled))))
    return (mint.where(scaled > threshold, scaled, smooth) / beta).astype(input.dtype)


@operator("Swiglu", "mindspore.ops:swiglu", "mindspore.ops.auto_generate:swiglu")
def swiglu(input, dim=-1):
    """`silu(first half) * second half` along `dim`."""
    dim = positive_dim(dim, input.ndim)
    if input.shape[dim] % 2:
        raise ValueError(f"swiglu halves dim {dim}, but its size {input.shape[dim]} is odd.")
    gate, linear = mint.chunk(as_float32(input), 2, dim)
    return mint.mul(mint.mul(gate, mint.sigmoid(gate)), linear).astype(input.dtype)


@operator("FloorDiv")
def floor_divide_operator(input, other):
    return ops.floor_div(input, other)


@operator("FloorDivScalar")
def floor_divide_by_number(input, other):
    return ops.floor_div(input, other)


@replaces("mindspore.mint:floor_divide")
def floor_divide(input, other):
    return (floor_divide_operator if isinstance(other, Tensor) else floor_divide_by_number).dispatch(input, other)
