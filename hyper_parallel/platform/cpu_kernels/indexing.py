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
"""Gathers and scatters along one dim."""
from mindspore import mint, ops

from hyper_parallel.platform.cpu_kernels.dispatch import operator
from hyper_parallel.platform.cpu_kernels.numeric import as_float32, positive_dim


@operator("ScatterAddExt", "mindspore.mint:scatter_add", "mindspore:Tensor.scatter_add")
def scatter_add(input, dim, index, src):
    """`src` may be larger than `index`; what lies beyond is not read."""
    dim = positive_dim(dim, input.ndim)
    for axis, size in enumerate(index.shape):
        if src.shape[axis] != size:
            src = mint.narrow(src, axis, 0, size)
    return ops.tensor_scatter_elements(as_float32(input), index, as_float32(src), dim, "add").astype(input.dtype)


@operator("Embedding", "mindspore.mint.nn.functional:embedding")
def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False):
    """Rows of `weight`; those that equal `padding_idx` are returned but get no gradient.

    Raises:
        NotImplementedError: for `max_norm` and `scale_grad_by_freq`.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embedding on CPU takes neither max_norm nor scale_grad_by_freq.")
    rows = ops.gather(as_float32(weight), input, 0).astype(weight.dtype)
    if padding_idx is None:
        return rows
    padding_idx = positive_dim(padding_idx, weight.shape[0])
    padded = mint.unsqueeze(mint.not_equal(input, padding_idx), -1).astype(rows.dtype)
    return mint.add(mint.mul(rows, padded), mint.mul(ops.stop_gradient(rows), mint.sub(1, padded)))
