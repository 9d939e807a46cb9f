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
"""A tensor on a mesh in numpy: all ranks' parts of a whole, and the whole of all ranks' parts."""
import itertools

import numpy as np

from hyper_parallel.core.dtensor.placement_state import chunk
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard


def summands(whole, op, count, seed):
    """Arrays whose reduction is the whole."""
    rng = np.random.default_rng(seed)
    if op in ("max", "min"):
        lower = [whole - np.sign(0.5 - (op == "min")) * rng.uniform(0.5, 1,
        whole.shape) * (rng.random(whole.shape) < 0.5)
                 for _ in range(count)]
        lower[seed % count] = whole
        return [part.astype(whole.dtype) for part in lower]
    parts = [rng.normal(size=whole.shape).astype(whole.dtype) for _ in range(count - 1)]
    return [*parts, (whole * (count if op == "avg" else 1) - sum(parts)).astype(whole.dtype)]


def parts_of(whole, placements, mesh_shape, seed=0):
    """`{coordinate: part}` of all ranks; a Partial's summands are random."""
    found = {(): whole}
    for axis, (placement, size) in enumerate(zip(placements, mesh_shape)):
        cut = {}
        for place, array in found.items():
            if isinstance(placement, Shard):
                bounds = [chunk(array.shape[placement.dim], size, index) for index in range(size)]
                pieces = [np.take(array, range(start, start + rows), placement.dim) for start, rows in bounds]
            elif isinstance(placement, Partial):
                pieces = summands(array, placement.op, size, seed + 13 * axis)
            else:
                pieces = [array] * size
            cut.update({(*place, index): piece for index, piece in enumerate(pieces)})
        found = cut
    return found


def whole_of(parts, placements, mesh_shape):
    """The inverse; replicas are compared."""
    for axis in reversed(range(len(mesh_shape))):
        joined = {}
        for place in itertools.product(*(range(size) for size in mesh_shape[:axis])):
            pieces = [parts[(*place, index)] for index in range(mesh_shape[axis])]
            placement = placements[axis]
            if isinstance(placement, Shard):
                joined[place] = np.concatenate(pieces, placement.dim)
            elif isinstance(placement, Partial):
                reduce = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}[placement.op]
                joined[place] = reduce(np.stack(pieces), axis=0)
            else:
                for piece in pieces[1:]:
                    np.testing.assert_allclose(piece, pieces[0], rtol=1e-4, atol=1e-5)
                joined[place] = pieces[0]
        parts = joined
    return parts[()]


def adjoint(placements):
    """How the gradient of a tensor lies when the locals of all ranks are the variables."""
    swap = {Replicate: Partial("sum"), Partial: Replicate()}
    return tuple(swap.get(type(placement), placement) for placement in placements)


def combinations(arrays, mesh_shape, ops=("sum",), limit=None, seed=0):
    """All placements of all arrays on all axes, or `limit` of them; only floats are Partial."""
    choices = []
    for array in arrays:
        partial = [Partial(op) for op in ops] if array.dtype.kind == "f" else []
        each = [Replicate(), *partial, *(Shard(dim) for dim in range(array.ndim))]
        placed = [placements for placements in itertools.product(each, repeat=len(mesh_shape))
                  if _divides(array.shape, placements, mesh_shape)]
        choices.append(placed)
    count = int(np.prod([len(placed) for placed in choices]))
    if limit is None or count <= limit:
        return list(itertools.product(*choices))
    rng = np.random.default_rng(seed)
    return [tuple(placed[rng.integers(len(placed))] for placed in choices) for _ in range(limit)]


def _divides(shape, placements, mesh_shape):
    for dim, size in enumerate(shape):
        parts = int(np.prod([ranks for placement, ranks in zip(placements, mesh_shape) if placement == Shard(dim)]))
        if size % parts:
            return False
    return True
