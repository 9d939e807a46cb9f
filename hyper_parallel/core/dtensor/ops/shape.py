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
"""Operators that change the shape: sizes among their arguments are the whole's and become this rank's."""
import math

from hyper_parallel.core.dtensor.ops.common import alone, together
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import MOVES, Spec, aligned_labels, axis_of, dims_of, own_labels


def numbers(arguments):
    """A shape that was given as `(2, 3)` or as `2, 3`."""
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        arguments = arguments[0]
    return tuple(int(number) for number in arguments)


def _moved(x, labels, out, **more):
    return Spec({x: labels}, [out], partial=alone(MOVES, x), **more)


def _groups(source, target):
    """Pairs of lists of dims whose sizes have the same product, smallest first; dims of size 1 belong to none.

    Examples:
        >>> _groups((2, 3, 4), (6, 1, 4))
        [([0, 1], [0]), ([2], [2])]
    """
    left = [dim for dim, size in enumerate(source) if size != 1]
    right = [dim for dim, size in enumerate(target) if size != 1]
    groups = []
    while left and right:
        ours, theirs = [left.pop(0)], [right.pop(0)]
        here, there = source[ours[0]], target[theirs[0]]
        while here != there:
            if here < there:
                ours.append(left.pop(0))
                here *= source[ours[-1]]
            else:
                theirs.append(right.pop(0))
                there *= target[theirs[-1]]
        groups.append((ours, theirs))
    return groups


def reshaped(x, shape):
    """Dims that merge or split together share the label of their first dim: only the outer one may be cut."""
    labels, out, divides = [None] * x.ndim, [None] * len(shape), {}
    for ours, theirs in _groups(x.shape, shape) if 0 not in x.shape else ():
        label = labels[ours[0]] = out[theirs[0]] = ours[0]
        if len(ours) > 1 or len(theirs) > 1:
            divides[label] = math.gcd(x.shape[ours[0]], shape[theirs[0]])
    return _moved(x, tuple(labels), tuple(out), divides=divides, shapes=[shape],
                  rest=lambda cut: (cut.shape(out, shape),))


@rule("Reshape", "View", "ReshapeView")
def reshape(x, *shape):
    """`-1` is inferred."""
    shape = list(numbers(shape))
    if -1 in shape:
        known = -math.prod(shape)
        if known <= 0 or x.numel % known:
            raise ValueError(f"a tensor of shape {x.shape} cannot become {tuple(shape)}")
        shape[shape.index(-1)] = x.numel // known
    if math.prod(shape) != x.numel:
        raise ValueError(f"a tensor of shape {x.shape} cannot become {tuple(shape)}")
    return reshaped(x, tuple(shape))


@rule("FlattenExt")
def flatten(input, start_dim=0, end_dim=-1):
    """Dims from `start_dim` to `end_dim` become one."""
    if input.ndim == 0:
        return reshaped(input, (1,))
    first, last = axis_of(start_dim, input.ndim), axis_of(end_dim, input.ndim)
    shape = (*input.shape[:first], math.prod(input.shape[first:last + 1]), *input.shape[last + 1:])
    spec = reshaped(input, shape)
    spec.rest = None
    return spec


@rule("Transpose", "DeprecatedTranspose", "Permute", "TransposeView")
def permute(x, *order):
    """Dims in the order given."""
    labels = own_labels(x)
    return _moved(x, labels, tuple(labels[axis_of(dim, x.ndim)] for dim in numbers(order)))


@rule("TransposeExtView", "TransposeExt", "SwapAxes")
def transpose(x, dim0, dim1):
    """Two dims swapped."""
    out = list(own_labels(x))
    first, second = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
    out[first], out[second] = out[second], out[first]
    return _moved(x, own_labels(x), tuple(out))


@rule("T")
def transpose_matrix(x):
    """Dims in reverse."""
    return _moved(x, own_labels(x), own_labels(x)[::-1])


@rule("ExpandDims", "ExpandDimsView", "Unsqueeze", "UnsqueezeView")
def unsqueeze(x, dim):
    """A new dim of size 1."""
    dim = axis_of(dim, x.ndim + 1)
    labels = own_labels(x)
    return _moved(x, labels, (*labels[:dim], None, *labels[dim:]))


@rule("Squeeze", "SqueezeView", "SqueezeExt", "SqueezeExtView")
def squeeze(x, axis=None, *others, primitive=None):
    """Dims of size 1 go; a cut dim of which this rank holds one row stays."""
    given = (axis, *others) if others else axis
    if primitive is not None and axis is None:
        given = getattr(primitive, "axis", None)
    gone = {dim for dim in dims_of(given, x.ndim) if x.shape[dim] == 1}
    labels = own_labels(x)
    out = tuple(label for dim, label in enumerate(labels) if dim not in gone)

    def compute(cut):
        if not cut.labels:
            return None

        def run(func, args, kwargs):
            del func, kwargs
            kept = tuple(size for dim, size in enumerate(args[0].shape) if dim not in gone)
            return args[0].reshape(kept)
        return run

    return _moved(x, labels, out, compute=compute)


@rule("BroadcastTo", "BroadcastToView", "ExpandAs", "Expand", "ExpandView")
def expand(x, *shape):
    """Dims of size 1 are repeated; `-1` keeps a dim."""
    if len(shape) == 1 and hasattr(shape[0], "placements"):
        shape = shape[0].shape
    shape = numbers(shape)
    offset = len(shape) - x.ndim
    shape = tuple(x.shape[dim - offset] if size == -1 else size for dim, size in enumerate(shape))
    labels = aligned_labels(x, shape)
    out = (None,) * offset + labels
    return _moved(x, labels, out, rest=lambda cut: (cut.shape(out, shape),))


@rule("Tile", "Repeat")
def tile(x, *repeats):
    """Dims that are repeated stay whole."""
    repeats = numbers(repeats)
    repeats = (1,) * (x.ndim - len(repeats)) + repeats
    offset = len(repeats) - x.ndim
    labels = tuple(dim if repeats[offset + dim] == 1 else None for dim in range(x.ndim))
    return _moved(x, labels, (None,) * offset + labels)


@rule("RepeatInterleaveInt")
def repeat_interleave(x, repeats, dim=None, output_size=None):
    """The repeated dim stays whole."""
    del repeats, output_size
    if dim is None:
        return _moved(x, (None,) * x.ndim, (None,))
    labels = own_labels(x, (axis_of(dim, x.ndim),))
    return _moved(x, labels, labels)


def _pieces(x, dim):
    labels = own_labels(x, (axis_of(dim, x.ndim),))
    return _moved(x, labels, labels)


@rule("SplitTensorView", "SplitTensor", "SplitWithSizeView", "SplitWithSize", "ChunkView", "Chunk")
def split(x, sizes, dim=0):
    """The dim that is split stays whole."""
    del sizes
    return _pieces(x, dim)


@rule("Split")
def split_legacy(x, axis=0, output_num=1):
    """The dim that is split stays whole."""
    del output_num
    return _pieces(x, axis)


@rule("UnstackExtView", "Unstack", "UnstackExt")
def unbind(x, dim=0, *others, primitive=None):
    """A result for each position of a whole dim."""
    del others
    dim = axis_of(getattr(primitive, "axis", dim), x.ndim)
    labels = own_labels(x, (dim,))
    return _moved(x, labels, labels[:dim] + labels[dim + 1:])


def _joined(operands, labels, out):
    return Spec({operand: labels for operand in operands}, [out], partial=together(MOVES, *operands))


@rule("Concat", "Cat")
def concat(operands, axis=0):
    """The dim along which they are joined stays whole."""
    labels = own_labels(operands[0], (axis_of(axis, operands[0].ndim),))
    return _joined(operands, labels, labels)


@rule("StackExt", "Stack")
def stack(operands, dim=0, *, primitive=None):
    """A new dim, which is whole."""
    dim = axis_of(getattr(primitive, "axis", dim), operands[0].ndim + 1)
    labels = own_labels(operands[0])
    return _joined(operands, labels, (*labels[:dim], None, *labels[dim:]))


@rule("ReverseV2", "Flip")
def flip(x, axis):
    """The reversed dims stay whole."""
    labels = own_labels(x, dims_of(axis, x.ndim))
    return _moved(x, labels, labels)


@rule("Roll")
def roll(x, shifts, dims=None):
    """The rolled dims stay whole."""
    del shifts
    labels = own_labels(x, dims_of(dims, x.ndim))
    return _moved(x, labels, labels)


@rule("Triu", "TriuExt", "Tril", "TrilExt")
def triangle(x, diagonal=0):
    """Rows and columns stay whole."""
    del diagonal
    labels = own_labels(x, (x.ndim - 2, x.ndim - 1))
    return _moved(x, labels, labels)


@rule("ConstantPadND", "PadV3")
def pad(x, padding, *others, **named):
    """Padded dims stay whole; a pad value is no summand."""
    del others, named
    dims = [x.ndim - 1 - position // 2 for position, size in enumerate(padding) if size]
    labels = own_labels(x, dims)
    return Spec({x: labels}, [labels])
