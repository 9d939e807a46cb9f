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
"""From the placements that operands have to the placements in which an operator can work, one mesh axis at a time.

On each axis an operator has a handful of *ways*: everything replicated; one label cut; one group of Partial operands
passed through. Only ways that some operand already suggests are considered: a dim is cut only if an operand is cut
along
it. Among them the one that moves the fewest bytes is taken; slicing a replicated operand moves none.
"""
from typing import Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.ops.spec import Cut, Operand, Passing, Spec, shard_of
from hyper_parallel.core.dtensor.placement_types import Partial, Placement, Replicate, Shard

_REPLICATE = Replicate()
# Enough to prefer a way without slices, never enough to prefer a collective.
_SLICE = 1e-6


class Way(NamedTuple):
    """How the operator works on one axis: a label is cut, or operands are passed as Partial, or all is replicated."""

    label: Optional[Hashable] = None
    factor: int = 1
    passing: Optional[Passing] = None
    op: Optional[str] = None

    def target(self, operand: Operand, labels: Optional[tuple]) -> Placement:
        """Where an operand has to lie."""
        if self.label is not None:
            if labels is not None and self.label in labels:
                return shard_of(labels.index(self.label), self.factor)
        elif self.passing is not None and operand in self.passing.operands:
            return Partial(self.op)
        return _REPLICATE

    def result(self, labels: Optional[tuple], reduces: Dict[Hashable, str]) -> Placement:
        """Where a result lies."""
        if self.label is not None:
            if labels is None:
                return _REPLICATE
            if self.label in labels:
                return shard_of(labels.index(self.label), self.factor)
            return Partial(reduces[self.label]) if self.label in reduces else _REPLICATE
        if self.passing is not None and self.passing.result == "same" and labels is not None:
            return Partial(self.op)
        return _REPLICATE


class Propagation(NamedTuple):
    """What the engine decided for one call.

    Attributes:
        targets: per operand, its placements while the operator works.
        results: per result (see `Spec.outputs`), its placements.
        ways: per mesh axis.
    """

    targets: List[Tuple[Placement, ...]]
    results: List[Tuple[Placement, ...]]
    ways: List[Way]

    def cut(self, spec: Spec, mesh_shape: Sequence[int], coordinate: Sequence[int]) -> Cut:
        """The labels' cuts, seen from the rank at `coordinate`."""
        choices = [(way.label, way.factor) if way.label is not None else None for way in self.ways]
        return Cut(choices, spec.sizes(), mesh_shape, coordinate)


class CannotStay(Exception):
    """An in-place operator would have to move the tensor that it writes into."""


def propagate(spec: Spec, operands: Sequence[Operand], mesh_shape: Sequence[int]) -> Propagation:
    """The ways in which an operator works, and what follows for its operands and results.

    Args:
        spec: what the operator's rule says.
        operands: with their placements.
        mesh_shape: ranks along each axis.

    Raises:
        CannotStay: for an in-place operator.
    """
    parts, ways = {}, []
    for axis, size in enumerate(mesh_shape):
        ways.append(_cheapest(spec, operands, axis, size, parts))
        label = ways[-1].label
        if label is not None:
            parts[label] = parts.get(label, 1) * size
    targets = [tuple(way.target(operand, spec.inputs.get(operand)) for way in ways) for operand in operands]
    results = [tuple(way.result(labels, spec.reduces) for way in ways) for labels in spec.outputs]
    return Propagation(targets, results, ways)


def _cheapest(spec, operands, axis, size, parts):
    """The way that moves the fewest bytes on one axis; of equal ones the first."""
    best, least = None, None
    for way in _ways(spec, operands, axis, size, parts):
        targets = [way.target(operand, spec.inputs.get(operand)) for operand in operands]
        if spec.inplace and targets[0] != operands[0].placements[axis]:
            continue
        cost = sum(_moved(operand.placements[axis], target, size) * operand.numel
                   for operand, target in zip(operands, targets))
        if best is None or cost < least:
            best, least = way, cost
    if best is None:
        raise CannotStay
    return best


def _ways(spec, operands, axis, size, parts):
    cuttable, seen = spec.cuttable(), set()
    for operand in operands:
        placement = operand.placements[axis]
        if not isinstance(placement, Shard) or operand not in spec.inputs:
            continue
        label, factor = spec.inputs[operand][placement.dim], getattr(placement, "split_factor", 1)
        if label not in cuttable or (label, factor) in seen:
            continue
        if spec.divides.get(label, 0) % (parts.get(label, 1) * size) == 0:
            seen.add((label, factor))
            yield Way(label=label, factor=factor)
    for passing in spec.partial:
        ops = {getattr(operand.placements[axis], "op", None) for operand in passing.operands}
        if len(ops) == 1 and ops <= set(passing.ops):
            yield Way(passing=passing, op=ops.pop())
    yield Way()


def _moved(source: Placement, target: Placement, size: int) -> float:
    """Ring bytes of one operand as a fraction of its elements."""
    if source == target or size == 1:
        return 0
    share = (size - 1) / size
    if isinstance(source, Partial):
        return share if isinstance(target, Shard) else 2 * share
    if isinstance(source, Shard):
        return share / size if isinstance(target, Shard) else share
    return _SLICE
