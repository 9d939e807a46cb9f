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
"""Tensors made from nothing or in the likeness of another: ranges, constants, stacks, copies, triangles."""
import numpy as np
from mindspore import Tensor, mint
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.memory import write_into
from hyper_parallel.platform.cpu_kernels.numeric import HALF_TYPES, as_float32


def _number(value):
    return value.asnumpy().item() if isinstance(value, Tensor) else value


@replaces("mindspore.mint:arange")
def arange(start=0, end=None, step=1, *, dtype=None):
    """Int64 if all three bounds are integers, float32 otherwise, unless `dtype` says so."""
    if end is None:
        start, end = 0, start
    bounds = [_number(bound) for bound in (start, end, step)]
    if dtype is None:
        dtype = mstype.int64 if all(isinstance(bound, int) for bound in bounds) else mstype.float32
    # float64 on the host, so that a long float range does not collect rounding errors.
    return Tensor(np.arange(*bounds), dtype=dtype)


@replaces("mindspore.mint:full")
def full(size, fill_value, *, dtype=None):
    """Integers give int64, bools bool, floats float32, unless `dtype` says so."""
    size = (size,) if isinstance(size, int) else tuple(size)
    value = _number(fill_value)
    if dtype is None:
        dtype = {bool: mstype.bool_, int: mstype.int64}.get(type(value), mstype.float32)
    return Tensor(np.full(size, value), dtype=dtype)


@operator("FullLike")
def full_like_operator(input, fill_value, dtype=None):
    return full(input.shape, fill_value, dtype=dtype or input.dtype)


@replaces("mindspore.mint:full_like")
def full_like(input, fill_value, *, dtype=None):
    return full_like_operator.dispatch(input, fill_value, dtype)


@operator("ZerosLikeExt")
def zeros_like_operator(input, dtype=None):
    return mint.zeros(input.shape, dtype=dtype or input.dtype)


@replaces("mindspore.mint:zeros_like")
def zeros_like(input, *, dtype=None):
    return zeros_like_operator.dispatch(input, dtype)


@operator("OnesLikeExt")
def ones_like_operator(input, dtype=None):
    return mint.ones(input.shape, dtype=dtype or input.dtype)


@replaces("mindspore.mint:ones_like")
def ones_like(input, *, dtype=None):
    return ones_like_operator.dispatch(input, dtype)


@operator("Clone", "mindspore.mint:clone", "mindspore:Tensor.clone")
def clone(input):
    return write_into(mint.empty_like(input), input)


@operator("StackExt", "mindspore.mint:stack")
def stack(tensors, dim=0):
    return mint.cat([mint.unsqueeze(tensor, dim) for tensor in tensors], dim)


@operator("Outer", "mindspore.mint:outer")
def outer(input, vec2):
    return mint.mul(mint.unsqueeze(input, 1), mint.unsqueeze(vec2, 0))


@operator("TrilExt", "mindspore.mint:tril")
def tril(input, diagonal=0):
    rows, columns = input.shape[-2:]
    below = Tensor(np.tri(rows, columns, diagonal, dtype=bool))
    zero = mint.zeros((), dtype=mstype.float32 if input.dtype in HALF_TYPES else input.dtype)
    return mint.where(below, as_float32(input), zero).astype(input.dtype)
