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
"""What a propagation rule says: a name for every dim of an operator's operands and results,
and what may be done along it.

Dims that are cut together have one *label*, as in an einsum::

    MatMulExt   x [b m k]  w [k n]  ->  [b m n]       k is summed: cutting it leaves a Partial result

A label can be any hashable; None is a dim that is never cut. The engine (`propagate`) reads the placements off the
labels,
one mesh axis at a time, so that a rule never speaks of meshes.
"""
import math
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.placement_state import chunk, shard_orders
from hyper_parallel.core.dtensor.placement_types import Placement, Replicate, Shard, StridedShard

Labels = Tuple[Optional[Hashable], ...]

LINEAR = ("sum", "avg")
"""Reductions that commute with a linear operator."""
MOVES = ("sum", "avg", "max", "min")
"""Reductions that commute with an operator which only moves elements."""


class Operand:
    """A tensor argument, as a rule sees it.

    Attributes:
        index (int): its position among the operator's tensors, lists opened.
        shape (tuple[int]): of the whole.
        placements (tuple[Placement]): one per mesh axis; a plain tensor is replicated.
        plain (bool): not a DTensor.
        dtype: MindSpore's.
    """

    __slots__ = ("index", "shape", "placements", "plain", "dtype")

    def __init__(self, index: int, shape: Sequence[int], placements: Sequence[Placement] = (), plain: bool = False,
                 dtype: Any = None):
        self.index, self.shape, self.placements = index, tuple(shape), tuple(placements)
        self.plain, self.dtype = plain, dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements of the whole."""
        return math.prod(self.shape)


class Passing(NamedTuple):
    """Partial operands that an operator lets through.

    Attributes:
        ops: the reductions for which it holds.
        operands: are Partial together while every other operand is replicated.
        result: "same" keeps the reduction pending, "replicate" says that the result does not depend on the values.
    """

    ops: Tuple[str, ...]
    operands: Tuple[Operand, ...]
    result: str = "same"


class Spec:
    """What a rule returns.

    Args:
        inputs: labels of each operand; one that is left out has to be whole on every axis.
        outputs: labels of each result; None for a result that is the same on every rank. A result beyond the last is
        like
            the last.
        reduces: `{label: op}` for labels that no result has: cutting them leaves `Partial(op)`.
        whole: labels that may not be cut.
        divides: `{label: n}`: the number of parts has to divide n. Where a label's dims differ in size (reshape), n is
            their greatest common divisor.
        partial: what passes while it is Partial.
        shapes: of the whole results, where they do not follow from the labels.
        rest: `rest(cut)` gives the arguments after the first on this rank, when something is cut (local sizes).
        replace: `replace(cut)` gives `{position or keyword: value}` on this rank, when something is cut.
        compute: `compute(cut)` gives None or `run(func, args, kwargs)`, what this rank does in place of `func`.
        inplace: the operator writes into its first operand, which therefore stays as it lies, and is the result.
        by_value: the results' shapes depend on the operands' values, alike on all ranks.
    """

    __slots__ = ("inputs", "outputs", "reduces", "whole", "divides", "partial", "shapes", "rest", "replace", "compute",
                 "inplace", "by_value")

    def __init__(self, inputs: Dict[Operand, Labels], outputs: Sequence[Optional[Labels]], *,
                 reduces: Optional[Dict[Hashable, str]] = None, whole: Sequence[Hashable] = (),
                 divides: Optional[Dict[Hashable, int]] = None, partial: Sequence[Passing] = (),
                 shapes: Optional[Sequence[Tuple[int, ...]]] = None, rest: Optional[Callable] = None,
                 replace: Optional[Callable] = None, compute: Optional[Callable] = None, inplace: bool = False,
                 by_value: bool = False):
        self.inputs = {operand: tuple(labels) for operand, labels in inputs.items()}
        self.outputs = [None if labels is None else tuple(labels) for labels in outputs]
        self.reduces, self.whole, self.divides = reduces or {}, frozenset(whole), divides or {}
        self.partial, self.shapes = tuple(partial), shapes
        self.rest, self.replace, self.compute, self.inplace, self.by_value = rest, replace, compute, inplace, by_value
        for operand, labels in self.inputs.items():
            assert len(labels) == operand.ndim, (operand.shape, labels)

    def sizes(self) -> Dict[Hashable, int]:
        """The size of each label's dim in the operands."""
        return {label: size for operand, labels in self.inputs.items()
                for label, size in zip(labels, operand.shape) if label is not None}

    def cuttable(self) -> set:
        """The labels that an axis may cut: in a result, or reduced away."""
        seen = {label for labels in self.outputs if labels for label in labels} | set(self.reduces)
        return seen - self.whole - {None}


class Cut:
    """How the chosen placements cut the labels, seen from one rank.

    Args:
        choices: per mesh axis, `(label, split factor)` or None.
        sizes: of the labels.
        mesh_shape: ranks along each axis.
        coordinate: of the rank.
    """

    def __init__(self, choices: Sequence[Optional[Tuple[Hashable, int]]], sizes: Dict[Hashable, int],
                 mesh_shape: Sequence[int], coordinate: Sequence[int]):
        self._mesh_shape, self._coordinate, self._sizes = tuple(mesh_shape), tuple(coordinate), sizes
        self._orders = {}
        for label in {choice[0] for choice in choices if choice}:
            placed = [shard_of(0, choice[1]) if choice and choice[0] == label else Replicate() for choice in choices]
            self._orders[label] = shard_orders(placed, self._mesh_shape, 1)[0]

    @property
    def labels(self) -> List[Hashable]:
        """The labels that are cut."""
        return list(self._orders)

    def parts(self, label: Hashable) -> int:
        """Into how many parts a label is cut."""
        return math.prod(self._mesh_shape[axis] for axis in self._orders.get(label, ()))

    def area(self, label: Hashable, size: Optional[int] = None) -> Tuple[int, int]:
        """`(first row, rows)` of this rank along a label; `size` where the dim differs from the operand's."""
        start, size = 0, self._sizes.get(label, size) if size is None else size
        for axis in self._orders.get(label, ()):
            offset, size = chunk(size, self._mesh_shape[axis], self._coordinate[axis])
            start += offset
        return start, size

    def index(self) -> int:
        """This rank's number among the parts that all cut labels make together."""
        number = 0
        for axis in sorted({axis for order in self._orders.values() for axis in order}):
            number = number * self._mesh_shape[axis] + self._coordinate[axis]
        return number

    def shape(self, labels: Labels, shape: Sequence[int]) -> Tuple[int, ...]:
        """The shape of this rank's part of a tensor with these labels and this shape of the whole."""
        return tuple(self.area(label, size)[1] if label is not None else size for label, size in zip(labels, shape))


def shard_of(dim: int, factor: int = 1) -> Shard:
    """`Shard`, or `StridedShard` where later axes lie outside."""
    return Shard(dim) if factor == 1 else StridedShard(dim, factor)


def axis_of(dim: int, ndim: int) -> int:
    """A dim counted from the front.

    Raises:
        ValueError: the tensor has no such dim.
    """
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise ValueError(f"dim {dim} of a tensor of {ndim} dims: valid dims are {-ndim} to {ndim - 1}")
    return dim % max(ndim, 1)


def dims_of(dims: Any, ndim: int) -> Tuple[int, ...]:
    """Dims counted from the front; None or nothing means all of them."""
    if dims is None or dims == () or dims == []:
        return tuple(range(ndim))
    return tuple(axis_of(dim, ndim) for dim in (dims if isinstance(dims, (tuple, list)) else (dims,)))


def own_labels(x: Operand, but: Sequence[int] = ()) -> Labels:
    """The dims' own numbers as labels, None for the dims in `but`."""
    return tuple(None if dim in but else dim for dim in range(x.ndim))


def broadcast_shape(*operands: Operand) -> Tuple[int, ...]:
    """The shape to which the operands broadcast."""
    ndim = max(operand.ndim for operand in operands)
    padded = [(1,) * (ndim - operand.ndim) + operand.shape for operand in operands]
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded))


def aligned_labels(x: Operand, shape: Sequence[int]) -> Labels:
    """Labels of `x` under a shape to which it broadcasts: the number of the result's dim; None where `x` is
    repeated."""
    offset = len(shape) - x.ndim
    return tuple(offset + dim if size == shape[offset + dim] else None for dim, size in enumerate(x.shape))
