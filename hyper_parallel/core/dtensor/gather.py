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
"""Between the whole and the parts: cutting a tensor by placements, and collecting a DTensor's parts again."""
import mindspore
from mindspore import Tensor

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.dtensor.placement_types import Partial, Shard


def shard_whole(tensor: Tensor, mesh, placements) -> Tensor:
    """This rank's part of a whole tensor; later axes cut what earlier ones left.

    Raises:
        ValueError: an axis does not divide the dim, or a placement is Partial.
    """
    shape, starts = list(tensor.shape), [0] * tensor.ndim
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            raise ValueError(f"a whole tensor cannot become {placement!r} on axis {mesh.mesh_dim_names[axis]!r}: "
                             "use Shard or Replicate")
        if isinstance(placement, Shard):
            size, dim = mesh.size(axis), placement.dim
            if shape[dim] % size:
                raise ValueError(f"dim {dim} of size {shape[dim]} (whole {tuple(tensor.shape)}) is not divisible by "
                                 f"axis {mesh.mesh_dim_names[axis]!r} of size {size}")
            shape[dim] //= size
            starts[dim] += mesh.get_local_rank(axis) * shape[dim]
    if tensor.is_meta:
        with mindspore.DeviceCtx("meta"):
            return mindspore.mint.empty(tuple(shape), dtype=tensor.dtype)
    slices = tuple(slice(start, start + size) for start, size in zip(starts, shape))
    return Tensor(tensor.asnumpy()[slices].copy(), tensor.dtype)


def gather_whole(dtensor) -> Tensor:
    """The whole of a DTensor, on every rank."""
    mesh, whole = dtensor.device_mesh, dtensor.to_local()
    slice_map = dtensor.slice_map
    mapped = {cut.axis: cut for cut in slice_map.cuts} if slice_map is not None else {}
    # inner axes cut last, so they are undone first
    for axis in reversed(range(mesh.ndim)):
        placement, name = dtensor.placements[axis], mesh.mesh_dim_names[axis]
        if name in mapped:
            continue
        if isinstance(placement, Partial):
            whole = functional.all_reduce(whole, mesh.get_group(axis), placement.op)
        elif isinstance(placement, Shard):
            whole = functional.all_gather(whole, placement.dim, mesh.get_group(axis))
    if not mapped:
        return whole
    assert len(mapped) == 1, f"one mapped axis at a time, got {sorted(mapped)}"
    (name, _), = mapped.items()
    group = mesh.get_group(name)
    stacked = functional.all_gather(whole.reshape((1,) + tuple(whole.shape)), 0, group).asnumpy()
    return Tensor(slice_map.unshard(list(stacked)), whole.dtype)
