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
"""Gradients of parameters that several ranks hold: summed among the holders, once, and averaged over the data axes."""
from typing import Callable, Dict, List, Tuple

import mindspore
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import PARAMETER_GRADIENT
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

Step = Callable[[Tensor], Tensor]


def gradient_hook(spec: ParameterSpec, mesh, where: str):
    """A hook for `Parameter.register_hook`, or None where the local gradient is the parameter's as it is.

    Steps in order: padding that has to stay zero gets no gradient; copies are summed among the ranks that hold them;
    a gradient that is partial over an axis is summed over it; data-parallel axes are averaged over. Sums are taken in
    float32.

    Args:
        spec: the parameter's plan.
        mesh (DeviceMesh): the mesh.
        where: path of the module that holds the parameter, for the counter of collectives.
    """
    steps: List[Step] = []
    if spec.first_rank_only:
        steps.append(_drop_padding(spec, mesh.get_local_rank(AXIS)))
    if spec.copies > 1:
        steps += _sums_of_copies(spec, mesh, where)
    for axis in spec.grad_sum_axes:
        steps.append(_all_reduce(mesh.get_group(axis), "sum", where))
    for axis in mesh.mesh_dim_names:
        if axis != AXIS and mesh.size(axis) > 1:
            steps.append(_all_reduce(mesh.get_group(axis), "avg", where))
    if not steps:
        return None

    # a named function: GRAPH_MODE refuses a lambda as a hook
    def reduce_gradient(gradient):
        reduced = ops.cast(gradient, mindspore.float32)
        for step in steps:
            reduced = step(reduced)
        return ops.cast(reduced, gradient.dtype)

    return reduce_gradient


def _all_reduce(group, op: str, where: str) -> Step:
    return functional.make("all_reduce", group, op, purpose=PARAMETER_GRADIENT, phase="backward", where=where)


def _drop_padding(spec: ParameterSpec, rank: int) -> Step:
    """The values stand on the first rank alone; elsewhere they are zeros that have to stay zero."""
    padding = np.zeros(spec.local_shape, np.bool_)
    for rows in spec.slice_map.padding_rows(rank):
        padding[rows] = True
    # a tensor, not a choice made here: ranks whose graphs differ can issue their collectives in different orders
    is_padding = Tensor(padding)

    def drop(gradient):
        return ops.masked_fill(gradient, is_padding, 0.0)

    return drop


def _sums_of_copies(spec: ParameterSpec, mesh, where: str) -> List[Step]:
    """One sum for each number of holders; a weight whose rows all have the same is summed as it is."""
    rank, ranks = mesh.get_local_rank(AXIS), mesh.get_rank_list_along_axis(AXIS)
    (cut,) = spec.slice_map.cuts
    rows_of: Dict[int, List[Tuple[int, int]]] = {}
    for run in cut.runs(rank):
        rows_of.setdefault(run.copies, []).append((run.local, run.local + run.rows))
    steps = []
    for copies, rows in rows_of.items():
        if copies == 1:
            continue
        first = rank - rank % copies
        reduce = _all_reduce(get_group(tuple(ranks[first:first + copies])), "sum", where)
        steps.append(reduce if len(rows_of) == 1 else _on_rows(reduce, cut.dim, rows, cut.local_rows))
    return steps


def _on_rows(reduce: Step, dim: int, rows: List[Tuple[int, int]], total: int) -> Step:
    """The reduction on some rows of a dim; the others pass::

        Q Q K V  ->  Q Q, reduce(K V)  ->  Q Q K V
    """
    before = (slice(None),) * dim
    bounds = sorted({0, total, *(bound for pair in rows for bound in pair)})
    pieces = [((low, high), any(start <= low < stop for start, stop in rows)) for low, high in zip(bounds, bounds[1:])]

    def reduce_rows(gradient):
        parts = [gradient[before + (slice(low, high),)] for (low, high), _ in pieces]
        chosen = [part for part, (_, is_copied) in zip(parts, pieces) if is_copied]
        summed = reduce(chosen[0] if len(chosen) == 1 else ops.concat(chosen, dim))
        taken, glued = 0, []
        for part, ((low, high), is_copied) in zip(parts, pieces):
            if is_copied:
                part = summed[before + (slice(taken, taken + high - low),)]
                taken += high - low
            glued.append(part)
        return ops.concat(glued, dim)

    return reduce_rows
