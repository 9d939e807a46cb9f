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
"""Splits whose kernels exist but whose backward is wrong or fails.

`mint.split` writes each piece's gradient into the whole as if it were contiguous: a transposed or otherwise strided
gradient arrives permuted, and nothing raises. `mint.unbind` and `mint.select` raise in the backward. `mint.narrow` is
right in all of these cases, so the pieces are narrows.
"""
from mindspore import mint

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.numeric import positive_dim


@operator("SplitWithSizeView")
def split_with_sizes(tensor, sizes, dim=0):
    dim = positive_dim(dim, tensor.ndim)
    if sum(sizes) != tensor.shape[dim]:
        raise ValueError(f"The split sizes {tuple(sizes)} sum to {sum(sizes)}, but dim {dim} of the tensor has size "
                         f"{tensor.shape[dim]}.")
    pieces, start = [], 0
    for size in sizes:
        pieces.append(mint.narrow(tensor, dim, start, size))
        start += size
    return tuple(pieces)


@operator("SplitTensorView")
def split_by_size(tensor, split_size, dim=0):
    dim = positive_dim(dim, tensor.ndim)
    if split_size <= 0:
        raise ValueError(f"The split size must be positive, but got {split_size}.")
    length = tensor.shape[dim]
    return split_with_sizes(tensor, [min(split_size, length - start) for start in range(0, length, split_size)], dim)


@replaces("mindspore.mint:split")
def split(tensor, split_size_or_sections, dim=0):
    """Pieces of `split_size_or_sections` each (the last may be smaller), or of the sizes it lists."""
    if isinstance(split_size_or_sections, int):
        return split_by_size.dispatch(tensor, split_size_or_sections, dim)
    if isinstance(split_size_or_sections, (list, tuple)):
        return split_with_sizes.dispatch(tensor, split_size_or_sections, dim)
    raise TypeError(f"split_size_or_sections must be an int or a list or tuple of ints, but got "
                    f"{type(split_size_or_sections).__name__}.")


@operator("SelectExtView", "mindspore.mint:select")
def select(input, dim, index):
    dim = positive_dim(dim, input.ndim)
    index = index + input.shape[dim] if index < 0 else index
    return mint.squeeze(mint.narrow(input, dim, index, 1), dim)


@operator("UnstackExtView", "mindspore.mint:unbind")
def unbind(input, dim=0):
    return tuple(select(input, dim, index) for index in range(input.shape[dim]))
