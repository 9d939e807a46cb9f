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
"""Between the whole and the parts: cutting a tensor by placements, and the whole of what a slice map describes."""
import functools

import mindspore
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.dtensor.placement_state import local_area, shard_orders
from hyper_parallel.core.dtensor.placement_types import Partial


def local_slices(shape, mesh, placements):
    """Which slices of the whole this rank holds; None where it is not in the mesh.

    Raises:
        ValueError: a `StridedShard` whose factor no order of the axes gives.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    cuts = shard_orders(placements, mesh.mesh_shape, len(shape), mesh.mesh_dim_names)
    return tuple(slice(start, start + rows) for start, rows in local_area(shape, cuts, mesh.mesh_shape, coordinate))


def shard_whole(tensor: Tensor, mesh, placements) -> Tensor:
    """This rank's part of a whole tensor, a copy; a rank outside the mesh gets an empty one.

    Raises:
        ValueError: a placement is Partial.
    """
    for axis, placement in zip(mesh.mesh_dim_names, placements):
        if isinstance(placement, Partial):
            raise ValueError(f"a whole tensor cannot become {placement!r} on axis {axis!r}: use Shard or Replicate")
    slices = local_slices(tensor.shape, mesh, placements)
    if slices is None:
        slices = (slice(0, 0),) * tensor.ndim
    if tensor.is_meta:
        with mindspore.DeviceCtx("meta"):
            return mindspore.mint.empty(tuple(piece.stop - piece.start for piece in slices), dtype=tensor.dtype)
    if tensor.dtype == mindspore.bfloat16:
        # float32 holds every bfloat16, which numpy does not know
        return Tensor(ops.cast(tensor, mindspore.float32).asnumpy()[slices].copy()).astype(tensor.dtype)
    return Tensor(tensor.asnumpy()[slices].copy(), tensor.dtype)


def gather_mapped(local: Tensor, mesh, slice_map, gather) -> Tensor:
    """The whole of parts that a slice map describes: padding dropped, of copies the first.

    Args:
        local: this rank's part.
        mesh: has the slice map's axes.
        slice_map: the record of the parts.
        gather: `gather(x, dim, group)`, a differentiable all-gather.
    """
    # a later cut cuts what the earlier ones left, so it is undone first
    for cut in reversed(slice_map.cuts):
        local = gather(local, cut.dim, mesh.get_group(cut.axis))
        rows = _rows_in_order(cut)
        if rows is not None:
            local = ops.gather(local, Tensor(rows), cut.dim)
    return local


@functools.lru_cache(maxsize=1024)
def _rows_in_order(cut):
    """Where each row of the whole lies among the ranks' rows, one rank after the other; None for rows in order."""
    rows = np.full(cut.rows, -1, np.int32)
    for coordinate in range(cut.parts):
        for run in cut.runs(coordinate):
            if run.first:
                rows[run.start:run.start + run.rows] = coordinate * cut.local_rows + run.local + np.arange(run.rows)
    assert rows.min() >= 0, cut
    in_order = len(rows) == cut.parts * cut.local_rows and bool((rows == np.arange(len(rows))).all())
    return None if in_order else rows
