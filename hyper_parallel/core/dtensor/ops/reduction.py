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
"""Reductions: a cut dim that is reduced away leaves the reduction over the ranks pending."""
from hyper_parallel.core.dtensor.ops.common import alone, along, pointwise
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import LINEAR, Spec, axis_of, dims_of, own_labels


def reduce_dims(x, dims, keepdim, op, passes):
    """Reduces `dims`; `op` is what is pending when one of them is cut, None when they have to be whole."""
    dims = dims_of(dims, x.ndim)
    labels = own_labels(x)
    out = tuple(None if dim in dims else dim for dim in range(x.ndim) if keepdim or dim not in dims)
    # A mean of means is the mean only when all parts are equal.
    divides = {dim: x.shape[dim] for dim in dims} if op == "avg" else {}
    return Spec({x: labels}, [out], reduces={dim: op for dim in dims} if op else None, whole=() if op else dims,
                partial=alone(passes, x), divides=divides)


@rule("SumExt")
def reduce_sum(input, dim=None, keepdim=False, dtype=None):
    """Linear."""
    del dtype
    return reduce_dims(input, dim, keepdim, "sum", LINEAR)


@rule("ReduceSum")
def reduce_sum_legacy(x, axis=(), keep_dims=False, skip_mode=False):
    """With `skip_mode`, no axis means no reduction."""
    dims = axis if not skip_mode or axis not in ((), None) else ()
    if dims == () and skip_mode:
        return along(x, linear=True)
    return reduce_dims(x, dims, keep_dims, "sum", LINEAR)


@rule("MeanExt")
def mean(input, dim=None, keepdim=False, dtype=None):
    """Linear."""
    del dtype
    return reduce_dims(input, dim, keepdim, "avg", LINEAR)


@rule("ReduceMean")
def mean_legacy(x, axis=(), keep_dims=False):
    """Linear."""
    return reduce_dims(x, axis, keep_dims, "avg", LINEAR)


@rule("ReduceMax", "AMax", "Amax")
def reduce_max(x, axis=(), keep_dims=False):
    """The maximum of maxima."""
    return reduce_dims(x, axis, keep_dims, "max", ("max",))


@rule("ReduceMin", "AMin", "Amin")
def reduce_min(x, axis=(), keep_dims=False):
    """The minimum of minima."""
    return reduce_dims(x, axis, keep_dims, "min", ("min",))


@rule("Max")
def max_all(input):
    """Over all dims."""
    return reduce_dims(input, None, False, "max", ("max",))


@rule("Min")
def min_all(input):
    """Over all dims."""
    return reduce_dims(input, None, False, "min", ("min",))


def _extreme_method(x, op, axis, keepdims, initial, where, return_indices):
    if initial is not None or where is not True:
        return None
    if return_indices:
        return extreme_with_index(x, axis, keepdims)
    return reduce_dims(x, axis, keepdims, op, (op,))


@rule("DeprecatedMax")
def max_method(x, axis=None, keepdims=False, initial=None, where=True, return_indices=False):
    """`Tensor.max` with numpy's arguments."""
    return _extreme_method(x, "max", axis, keepdims, initial, where, return_indices)


@rule("DeprecatedMin")
def min_method(x, axis=None, keepdims=False, initial=None, where=True, return_indices=False):
    """`Tensor.min` with numpy's arguments."""
    return _extreme_method(x, "min", axis, keepdims, initial, where, return_indices)


@rule("MaxDim", "MinDim", "ArgMaxWithValue", "ArgMinWithValue", "MedianDim")
def extreme_with_index(x, dim=0, keepdim=False, *, axis=None, keep_dims=None):
    """`(value, index)`; an index counts from the start of the whole, so the dim stays whole."""
    return along(x, dim if axis is None else axis, results=2, kept=keepdim if keep_dims is None else keep_dims)


@rule("ArgMaxExt", "ArgMinExt", "DeprecatedArgmax", "DeprecatedArgmin")
def index_of_extreme(input, dim=None, keepdim=False):
    """Index along a whole dim; without a dim, into the flattened tensor."""
    if dim is None:
        return Spec({input: (None,) * input.ndim}, [()])
    return along(input, dim, kept=keepdim)


@rule("Argmax", "Argmin", "ArgMax", "ArgMin")
def index_of_extreme_legacy(x, axis=-1, *others):
    """Without the dim."""
    del others
    return along(x, axis, kept=False)


@rule("ProdExt")
def prod(input, dim=None, keepdim=False, dtype=None):
    """A product is not among the pending reductions: the dims stay whole."""
    del dtype
    return reduce_dims(input, dim, keepdim, None, ())


@rule("ReduceProd", "ReduceAll", "ReduceAny", "LogSumExp")
def reduce_whole(x, axis=(), keep_dims=False):
    """The dims stay whole."""
    return reduce_dims(x, axis, keep_dims, None, ())


@rule("All", "Any", "AllExt", "AnyExt")
def reduce_logical(x, dim=None, keepdim=False):
    """The dims stay whole."""
    return reduce_dims(x, dim, keepdim, None, ())


@rule("Var", "Std")
def spread(input, dim=None, correction=1, keepdim=False):
    """The dims stay whole."""
    del correction
    return reduce_dims(input, dim, keepdim, None, ())


@rule("DeprecatedVar", "DeprecatedStd")
def spread_method(x, axis=None, ddof=0, keepdims=False):
    """`Tensor.var` and `Tensor.std` with numpy's arguments."""
    return spread(x, axis, ddof, keepdims)


@rule("MSELossExt", "L1LossExt")
def loss_of_difference(input, target, reduction="mean"):
    """`reduction` of the element-wise loss: none (0), mean (1) or sum (2). Nothing passes while it is Partial."""
    kind = {"none": 0, "mean": 1, "sum": 2}.get(reduction, reduction)
    spec = pointwise(input, target)
    if kind == 0:
        return spec
    (out,), op = spec.outputs, "avg" if kind == 1 else "sum"
    sizes = spec.sizes()
    return Spec(spec.inputs, [()], reduces=dict.fromkeys(out, op), divides=sizes if op == "avg" else {})


@rule("VarMean", "StdMean")
def spread_and_mean(input, dim=None, correction=1, keepdim=False):
    """The dims stay whole."""
    spec = spread(input, dim, correction, keepdim)
    spec.outputs.append(spec.outputs[0])
    return spec


@rule("LinalgVectorNorm")
def vector_norm(x, ord=2.0, dim=None, keepdim=False, dtype=None):
    """The dims stay whole."""
    del ord, dtype
    return reduce_dims(x, dim, keepdim, None, ())


@rule("Norm")
def norm(input, p=2.0, dim=None, keepdim=False, dtype=None):
    """The dims stay whole."""
    del p, dtype
    return reduce_dims(input, dim, keepdim, None, ())


@rule("CountNonZero")
def count_nonzero(x, dim=None):
    """Counts add up."""
    return reduce_dims(x, dim, False, "sum", ())


@rule("CumsumExt")
def cumsum(input, dim, dtype=None):
    """A running sum runs over a whole dim; linear."""
    del dtype
    return along(input, dim, linear=True)


@rule("CumSum")
def cumsum_legacy(input, axis, exclusive=False, reverse=False):
    """A running sum runs over a whole dim; linear."""
    del exclusive, reverse
    return along(input, axis, linear=True)


@rule("Cummax", "Cummin", "CumminExt")
def running_extreme(input, dim):
    """`(value, index)` along a whole dim."""
    return along(input, dim, results=2)


@rule("TopkExt", "TopK")
def topk(input, k, dim=-1, largest=True, sorted=True):
    """`(values, indices)` along a whole dim."""
    del k, largest, sorted
    return along(input, dim, results=2)


@rule("SortExt")
def sort(input, dim=-1, descending=False, stable=False):
    """`(values, indices)` along a whole dim."""
    del descending, stable
    return along(input, dim, results=2)


@rule("ArgSort")
def argsort(input, dim=-1, descending=False, stable=False):
    """Indices along a whole dim."""
    del descending, stable
    return along(input, dim)


@rule("Sort")
def sort_legacy(x, *, primitive=None):
    """The dim is an attribute of the primitive."""
    return along(x, axis_of(primitive.axis if hasattr(primitive, "axis") else primitive.attrs["axis"], x.ndim),
                 results=2)
