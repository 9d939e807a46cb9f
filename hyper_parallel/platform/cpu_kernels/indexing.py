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
"""Selections, scatters and repetitions along one dim."""
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.creation import full
from hyper_parallel.platform.cpu_kernels.dispatch import CpuOperator, operator, replaces
from hyper_parallel.platform.cpu_kernels.memory import write_into
from hyper_parallel.platform.cpu_kernels.numeric import as_float32, positive_dim


@operator("IndexSelect", "mindspore.mint:index_select")
def index_select(input, dim, index):
    return ops.gather(as_float32(input), index, positive_dim(dim, input.ndim)).astype(input.dtype)


def scattered(input, dim, index, src):
    """`input` with the elements that `index` names along `dim` replaced by `src`, a number or a tensor."""
    if not isinstance(src, Tensor):
        # The kernel for a number takes no integer, whatever the dtype of the tensor.
        src = full(index.shape, src, dtype=input.dtype)
    return _scatter(as_float32(input), dim, index, as_float32(src)).astype(input.dtype)


_scatter = mint.scatter
_scatter_value = CpuOperator("ScatterValue", scattered)
_scatter_tensor = CpuOperator("Scatter", scattered)


@replaces("mindspore.mint:scatter")
def scatter(input, dim, index, src):
    return (_scatter_tensor if isinstance(src, Tensor) else _scatter_value).dispatch(input, dim, index, src)


@operator("ScatterAddExt", "mindspore.mint:scatter_add", "mindspore:Tensor.scatter_add")
def scatter_add(input, dim, index, src):
    """`src` may be larger than `index`; what lies beyond is not read."""
    dim = positive_dim(dim, input.ndim)
    for axis, size in enumerate(index.shape):
        if src.shape[axis] != size:
            src = mint.narrow(src, axis, 0, size)
    return ops.tensor_scatter_elements(as_float32(input), index, as_float32(src), dim, "add").astype(input.dtype)


@operator("InplaceIndexAddExt", "mindspore:Tensor.index_add_")
def index_add_(input, dim, index, source, alpha=1):
    dim = positive_dim(dim, input.ndim)
    shape = [1] * input.ndim
    shape[dim] = -1
    index = mint.reshape(index, shape).broadcast_to(source.shape)
    return write_into(input, scatter_add(input, dim, index, source if alpha == 1 else source * alpha))


@operator("Embedding", "mindspore.mint.nn.functional:embedding")
def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False):
    """Rows of `weight`; those that equal `padding_idx` are returned but get no gradient.

    Raises:
        NotImplementedError: for `max_norm` and `scale_grad_by_freq`.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embedding on CPU takes neither max_norm nor scale_grad_by_freq.")
    rows = index_select(weight, 0, input)
    if padding_idx is None:
        return rows
    padded = mint.unsqueeze(mint.eq(input, positive_dim(padding_idx, weight.shape[0])), -1)
    return mint.where(padded, as_float32(ops.stop_gradient(rows)), as_float32(rows)).astype(rows.dtype)


def _repeated(input, repeats, dim):
    if dim is None:
        input, dim = mint.reshape(input, (-1,)), 0
    counts = repeats.asnumpy() if isinstance(repeats, Tensor) else repeats
    positions = np.repeat(np.arange(input.shape[dim]), counts)
    return index_select(input, dim, Tensor(positions, mstype.int64))


@operator("RepeatInterleaveInt")
def repeat_interleave_by_number(input, repeats, dim=None, output_size=None):
    return _repeated(input, repeats, dim)


@operator("RepeatInterleaveTensor")
def repeat_interleave_by_tensor(input, repeats, dim=None, output_size=None):
    return _repeated(input, repeats, dim)


@replaces("mindspore.mint:repeat_interleave")
def repeat_interleave(input, repeats, dim=None, *, output_size=None):
    """`repeats` is a number or a tensor or list with one number an element; without `dim` the input is flattened."""
    if isinstance(repeats, int):
        return repeat_interleave_by_number.dispatch(input, repeats, dim, output_size)
    repeats = repeats if isinstance(repeats, Tensor) else Tensor(np.array(repeats), mstype.int64)
    return repeat_interleave_by_tensor.dispatch(input, repeats, dim, output_size)


@operator("Roll", "mindspore.mint:roll")
def roll(input, shifts, dims=None):
    """Without `dims` the tensor is rolled as if flat."""
    if dims is None:
        return mint.reshape(roll(mint.reshape(input, (-1,)), shifts, 0), input.shape)
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    rolled = input
    for shift, dim in zip(shifts, dims):
        length = rolled.shape[dim]
        cut = -shift % length if length else 0
        if cut:
            rolled = mint.cat([mint.narrow(rolled, dim, cut, length - cut), mint.narrow(rolled, dim, 0, cut)], dim)
    return rolled
