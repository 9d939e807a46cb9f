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
"""Order, cumulative sums and histograms. The order is found on the host, stably; the values are then gathered."""
import numpy as np
from mindspore import Tensor, mint
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.numeric import as_float32, positive_dim, to_host


def _order(input, dim, descending) -> np.ndarray:
    """Positions along `dim` in sorted order; equal elements keep their order, also in descending order."""
    values = to_host(input)
    if not descending:
        return np.argsort(values, dim, kind="stable")
    backwards = np.argsort(np.flip(values, dim), dim, kind="stable")
    return values.shape[dim] - 1 - np.flip(backwards, dim)


def _take(input, dim, positions):
    """`(values, positions as int64)`."""
    index = Tensor(np.ascontiguousarray(positions), mstype.int64)
    return mint.gather(as_float32(input), dim, index).astype(input.dtype), index


@operator("SortExt")
def sort_operator(input, dim=-1, descending=False, stable=False):
    dim = positive_dim(dim, input.ndim)
    return _take(input, dim, _order(input, dim, descending))


@replaces("mindspore.mint:sort")
def sort(input, *, dim=-1, descending=False, stable=False):
    """`(sorted values, their positions as int64)`; always stable."""
    return sort_operator.dispatch(input, dim, descending, stable)


@operator("ArgSort", "mindspore.mint:argsort")
def argsort(input, dim=-1, descending=False, stable=False):
    dim = positive_dim(dim, input.ndim)
    return Tensor(np.ascontiguousarray(_order(input, dim, descending)), mstype.int64)


@operator("TopkExt", "mindspore.mint:topk")
def topk(input, k, dim=-1, largest=True, sorted=True):
    """`(values, positions as int64)`; always sorted, equal elements in the order of their positions."""
    dim = positive_dim(dim, input.ndim)
    if not 0 <= k <= input.shape[dim]:
        raise ValueError(f"k is {k}, but dim {dim} has only {input.shape[dim]} elements.")
    return _take(input, dim, np.take(_order(input, dim, largest), np.arange(k), dim))


@operator("CumsumExt", "mindspore.mint:cumsum")
def cumsum(input, dim, dtype=None):
    """Sums of bools and small integers are int64, as for Ascend's kernel, unless `dtype` says so."""
    dim = positive_dim(dim, input.ndim)
    if dtype is None:
        small = (mstype.bool_, mstype.uint8, mstype.int8, mstype.int16, mstype.int32)
        dtype = mstype.int64 if input.dtype in small else input.dtype
    return as_float32(input.astype(dtype)).cumsum(dim).astype(dtype)


@operator("HistcExt", "mindspore.mint:histc")
def histc(input, bins=100, min=0, max=0):
    """Counts in `bins` equal bins, in the dtype of `input`; elements outside are ignored, `max` is in the last bin.

    With `min` and `max` both 0 the range is that of the data.
    """
    values = to_host(input).astype(np.float64).reshape(-1)
    if min == 0 and max == 0 and values.size:
        min, max = values.min(), values.max()
    if min == max:
        min, max = min - 1, max + 1
    return Tensor(np.histogram(values, bins, (min, max))[0], input.dtype)
