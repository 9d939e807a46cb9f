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
"""Slices, selections and indices: a dim that they touch stays whole,
unless the rows that a rank lacks count as zeros."""
from mindspore import Tensor, ops

from hyper_parallel.core.dtensor.ops.common import alone, tensors
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import LINEAR, MOVES, Operand, Passing, Spec, axis_of, own_labels


def _kept(x, dims):
    """One operand whose `dims` are worked on."""
    labels = own_labels(x, dims)
    return Spec({x: labels}, [labels], partial=alone(MOVES, x))


@rule("NarrowView", "Narrow")
def narrow(x, dim, start, length):
    """A range of a dim."""
    dim = axis_of(dim, x.ndim)
    # The whole range is no cut at all, but its length among the arguments is the whole's.
    if start == 0 and length == x.shape[dim]:
        labels = own_labels(x)
        return Spec({x: labels}, [labels], partial=alone(MOVES, x), rest=lambda cut: (dim, 0, cut.area(dim)[1]))
    return _kept(x, (dim,))


@rule("SliceExt", "SliceExtView")
def slice_step(x, dim, start, end, step=1):
    """A range of a dim with a step."""
    del start, end, step
    return _kept(x, (axis_of(dim, x.ndim),))


@rule("SelectExtView", "SelectExt")
def select(x, dim, index):
    """One row of a dim, which is gone."""
    del index
    dim = axis_of(dim, x.ndim)
    labels = own_labels(x, (dim,))
    return Spec({x: labels}, [labels[:dim] + labels[dim + 1:]], partial=alone(MOVES, x))


@rule("Slice")
def slice_box(x, begin, size):
    """A range of every dim; `-1` runs to the end."""
    whole = [first == 0 and length in (-1, full) for first, length, full in zip(begin, size, x.shape)]
    labels = tuple(dim if whole[dim] else None for dim in range(x.ndim))
    sizes = tuple(full - first if length == -1 else length for first, length, full in zip(begin, size, x.shape))
    return Spec({x: labels}, [labels], partial=alone(MOVES, x),
                rest=lambda cut: (begin, cut.shape(labels, sizes)))


@rule("StridedSlice")
def strided_slice(x, begin, end, strides=None, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0,
                  shrink_axis_mask=0):
    """Ranges of the first dims with steps; a dim in `shrink_axis_mask` is gone.

    The masks of an ellipsis and of new dims are not covered: MindSpore's CPU kernel gives wrong values for them.
    """
    if ellipsis_mask or new_axis_mask:
        return None
    strides = strides or (1,) * len(begin)

    def gone(dim):
        return dim < len(begin) and bool(shrink_axis_mask >> dim & 1)

    def full(dim):
        if dim >= len(begin):
            return True
        return (not gone(dim) and strides[dim] == 1 and (begin[dim] == 0 or begin_mask >> dim & 1)
                and (end[dim] >= x.shape[dim] or end_mask >> dim & 1))

    labels = tuple(dim if full(dim) else None for dim in range(x.ndim))
    out = tuple(label for dim, label in enumerate(labels) if not gone(dim))

    def replace(cut):
        return {2: tuple(cut.area(dim)[1] if labels[dim] is not None else stop for dim, stop in enumerate(end))}

    return Spec({x: labels}, [out], partial=alone(MOVES, x), replace=replace)


def masked_rows(label, index, first_dim, size):
    """What a rank does with indices into a dim of which it holds some rows: the others give zeros, and add up.

    Args:
        label: of the dim that is cut.
        index: position of the indices among the arguments.
        first_dim: the result's dim where the indices' own dims begin; None where both have the same shape.
        size: of the whole dim.
    """
    def compute(cut):
        if cut.parts(label) == 1:
            return None
        start, rows = cut.area(label)

        def run(func, args, kwargs):
            args = list(args)
            indices = args[index]
            local = ops.sub(ops.select(ops.less(indices, 0), ops.add(indices, size), indices), start)
            inside = ops.logical_and(ops.greater_equal(local, 0), ops.less(local, rows))
            args[index] = ops.mul(local, ops.cast(inside, local.dtype))
            found = func(*args, **kwargs)
            if first_dim is not None:
                after = found.ndim - first_dim - inside.ndim
                inside = inside.reshape((1,) * first_dim + tuple(inside.shape) + (1,) * after)
            return ops.mul(found, ops.cast(inside, found.dtype))
        return run

    return compute


def gathered(x, index, dim, index_position=1):
    """`x [a V b], index [i...] -> [a i... b]`: rows of dim V; where V is cut, each rank gives its rows and zeros."""
    dim = axis_of(dim, x.ndim)
    labels = own_labels(x)
    chosen = tuple(("index", position) for position in range(index.ndim))
    return Spec({x: labels, index: chosen}, [(*labels[:dim], *chosen, *labels[dim + 1:])], reduces={dim: "sum"},
                partial=[Passing(LINEAR, (x,))],
                compute=masked_rows(dim, index_position, dim, x.shape[dim]))


@rule("Gather", "DeprecatedGather")
def gather(params, indices, axis, batch_dims=0):
    """Rows of a table: `params [B a V b], indices [B i] -> [B a i b]`; with batch dims B, V stays whole."""
    if not isinstance(indices, Operand):
        return None
    if not batch_dims:
        return gathered(params, indices, axis)
    axis, batch = axis_of(axis, params.ndim), axis_of(batch_dims, indices.ndim + 1)
    labels = own_labels(params, (axis,))
    chosen = (*labels[:batch], *(("index", position) for position in range(indices.ndim - batch)))
    return Spec({params: labels, indices: chosen}, [(*labels[:axis], *chosen[batch:], *labels[axis + 1:])],
                partial=[Passing(LINEAR, (params,))])


@rule("IndexSelect")
def index_select(input, dim, index):
    """Rows of a dim."""
    return gathered(input, index, dim, index_position=2)


@rule("GatherD")
def gather_elements(x, dim, index):
    """`out[i][j] = x[index[i][j]][j]`: dims of equal size are cut together; where `dim` is cut, summands remain."""
    dim = axis_of(dim, x.ndim)
    labels = tuple(other if other == dim or index.shape[other] == x.shape[other] else None for other in range(x.ndim))
    chosen = tuple("index" if other == dim else labels[other] for other in range(x.ndim))
    return Spec({x: labels, index: chosen}, [chosen], reduces={dim: "sum"}, partial=alone(LINEAR, x),
                compute=masked_rows(dim, 2, None, x.shape[dim]))


@rule("Scatter", "ScatterAddExt", "ScatterValue")
def scatter(x, dim, index, src, *others, **named):
    """Writes along a whole dim; the other dims are cut together where their sizes are equal."""
    del others, named
    dim = axis_of(dim, x.ndim)
    operands = tensors(x, index, src)
    labels = tuple(None if other == dim or any(operand.shape[other] != x.shape[other] for operand in operands)
                   else other for other in range(x.ndim))
    return Spec({operand: labels for operand in operands}, [labels])


@rule("IndexAddExt")
def index_add(x, dim, index, source, alpha=1):
    """Adds rows of `source` to rows of a whole dim; the other dims are cut together. Linear in both tensors."""
    del alpha
    labels = own_labels(x, (axis_of(dim, x.ndim),))
    return Spec({x: labels, index: (None,) * index.ndim, source: labels}, [labels],
                partial=[Passing(LINEAR, (x, source))])


@rule("OneHot", "OneHotExt")
def one_hot(indices, num_classes, on_value=1, off_value=0, axis=-1):
    """A new dim, which is whole."""
    del num_classes, on_value, off_value
    axis = axis_of(axis, indices.ndim + 1)
    labels = own_labels(indices)
    return Spec({indices: labels}, [(*labels[:axis], None, *labels[axis:])])


@rule("GetItem")
def getitem(x, index):
    """`x[index]`, as numpy has it: whole slices keep a dim, and a cut dim can only be kept.

    A boolean tensor has to be whole, and so have the dims that it covers: then all ranks take the same rows.

    Raises:
        NotImplementedError: a boolean tensor together with numbers or other tensors.
    """
    index = index if isinstance(index, tuple) else (index,)
    used = sum(_covered(item) for item in index)
    masks = [item for item in index if _is_mask(item)]
    if masks and len(index) > 1 + sum(isinstance(item, (slice, SliceKey)) or item in (None, Ellipsis)
                                      for item in index if not isinstance(item, Operand)):
        raise NotImplementedError("a boolean tensor that indexes beside numbers or other tensors: index one after the "
                                  "other, or use masked_fill or where")
    if Ellipsis not in [item for item in index if not isinstance(item, Operand)]:
        index = (*index, Ellipsis)
    labels, out, operands, places = [], [], [], []
    for item in index:
        if item is None:
            out.append(None)
        elif item is Ellipsis:
            rest = range(len(labels), len(labels) + x.ndim - used)
            out.extend(rest)
            labels.extend(rest)
        elif isinstance(item, (slice, SliceKey)):
            whole = _is_whole(item, x.shape[len(labels)])
            out.append(len(labels) if whole else None)
            labels.append(len(labels) if whole else None)
        elif _is_mask(item):
            labels.extend([None] * item.ndim)
            out.append(None)
        elif isinstance(item, Operand):
            operands.append(item)
            places.append(len(out))
            labels.append(None)
        else:
            labels.append(None)
            if operands or any(isinstance(other, Operand) for other in index):
                places.append(len(out))
    inputs = {x: tuple(labels)}
    if operands:
        _check_adjacent(places)
        ndim = max(operand.ndim for operand in operands)
        shape = tuple(max(((1,) * (ndim - operand.ndim) + operand.shape)[dim] for operand in operands)
                      for dim in range(ndim))
        for operand in operands:
            offset = ndim - operand.ndim
            inputs[operand] = tuple(("index", offset + dim) if size == shape[offset + dim] else None
                                    for dim, size in enumerate(operand.shape))
        out[places[0]:places[0]] = [("index", dim) for dim in range(ndim)]
    return Spec(inputs, [tuple(out)], partial=alone(MOVES, x), by_value=bool(masks))


def _is_mask(item):
    return isinstance(item, Operand) and "ool" in str(item.dtype)


def _covered(item):
    """How many dims an item of an index takes up."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _check_adjacent(places):
    if len(set(places)) > 1:
        raise NotImplementedError("integer tensors that index dims with others between them: index one dim at a time")


class SliceKey:
    """A slice that can be hashed."""

    __slots__ = ("start", "stop", "step")

    def __init__(self, item: slice):
        self.start, self.stop, self.step = item.start, item.stop, item.step

    def __hash__(self):
        return hash((self.start, self.stop, self.step))

    def __eq__(self, other):
        return (isinstance(other, SliceKey)
                and (self.start, self.stop, self.step) == (other.start, other.stop, other.step))


def _is_whole(item, size):
    return item.start in (None, 0) and (item.stop is None or item.stop >= size) and item.step in (None, 1)


class GetItem:
    """Indexing as an operator: MindSpore dispatches `x[i]` to nobody."""

    name = "GetItem"

    def __call__(self, x, index):
        return Tensor.__getitem__(x, index)


@rule("SetItem")
def setitem(x, index, value):
    """`x[index] = value`: the tensor stays as it lies, and the value is brought to it."""
    spec = getitem(x, index)
    out = spec.outputs[0]
    spec.inplace, spec.partial = True, ()
    if isinstance(value, Operand):
        offset = len(out) - value.ndim
        sizes = spec.sizes()
        spec.inputs[value] = tuple(
            label if label is not None and sizes.get(label) == size else None
            for label, size in zip(out[max(offset, 0):], value.shape[max(-offset, 0):]))
        spec.inputs[value] = (None,) * max(-offset, 0) + spec.inputs[value]
    return spec


class SetItem:
    """Assignment to an index as an operator."""

    name = "SetItem"

    def __call__(self, x, index, value):
        return Tensor.__setitem__(x, index, value)
