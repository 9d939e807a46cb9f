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
"""What a DTensor asks about its part: placements in order, the shape of the whole, a copy, a constant."""
from typing import Sequence, Tuple, Union

import mindspore
from mindspore import Tensor, ops

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_state import local_shape as part_shape, shard_orders
from hyper_parallel.core.dtensor.placement_types import Placement, Shard


def normalized(placements: Sequence[Placement], mesh: DeviceMesh, ndim: int) -> Tuple[Placement, ...]:
    """The placements with dims that are not negative.

    Raises:
        ValueError: not one placement per axis, or a dim that the tensor has not; the message names axis and dim.
    """
    placements = tuple(placements)
    if len(placements) != mesh.ndim or not all(isinstance(item, Placement) for item in placements):
        raise ValueError(f"{len(placements)} placements {placements} for a mesh of {mesh.ndim} axes "
                         f"{mesh.mesh_dim_names}: give one placement per axis")
    found = []
    for axis, item in zip(mesh.mesh_dim_names, placements):
        try:
            found.append(item.normalize(ndim) if isinstance(item, Shard) else item)
        except ValueError as error:
            raise ValueError(f"axis {axis!r}: {error}") from None
    return tuple(found)


def whole_shape(part, mesh, placements, shape) -> Tuple[int, ...]:
    """The shape of the whole, from a rank's part or as said; the said one is checked against the part."""
    if shape is None:
        whole = list(part)
        for axis, placement in enumerate(placements):
            if isinstance(placement, Shard):
                whole[placement.dim] *= mesh.mesh_shape[axis]
        return tuple(whole)
    shape, coordinate = tuple(shape), mesh.get_coordinate()
    if coordinate is not None:
        cuts = shard_orders(placements, mesh.mesh_shape, len(shape), mesh.mesh_dim_names)
        expected = part_shape(shape, cuts, mesh.mesh_shape, coordinate)
        if tuple(part) != expected:
            raise ValueError(f"a part of shape {tuple(part)} at {dict(zip(mesh.mesh_dim_names, coordinate))} of a "
                             f"tensor of shape {shape} with {placements}: the part there has shape {expected}")
    return shape


def detached_copy(local: Tensor) -> Tensor:
    """The same numbers in memory of their own, with no gradient."""
    return ops.stop_gradient(local) if local.is_meta else Tensor(local.asnumpy().copy(), local.dtype)


def filled(local: Tensor, value: Union[int, float]) -> Tensor:
    """A tensor like `local` of one number; on the meta device only the shape."""
    if local.is_meta:
        with mindspore.DeviceCtx("meta"):
            return mindspore.mint.empty(tuple(local.shape), dtype=local.dtype)
    return ops.full(tuple(local.shape), value, dtype=local.dtype)
