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
"""New DTensors: the values are those of the plain constructor on the whole shape, whatever the mesh.

Each takes the shape of the *whole*. A constant costs only the part's memory; random numbers are drawn for the whole on
every rank, from the same seed, and each rank keeps its part, so that a weight does not depend on how it is cut.

Examples:
    >>> weight = randn((128, 64), mesh, (Shard(0),))
    >>> weight.local_shape
    (32, 64)
"""
from typing import Optional, Sequence, Union

import mindspore
from mindspore import mint, ops

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.gather import local_slices, shard_whole
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.placement_types import Partial, Placement, Replicate

Size = Union[int, Sequence[int]]
Placements = Optional[Sequence[Placement]]


def zeros(size: Size, device_mesh: DeviceMesh, placements: Placements = None, *, dtype=mindspore.float32) -> DTensor:
    """Zeros. Placements default to Replicate on every axis; a pending reduction of zeros is allowed."""
    return _constant(0, size, device_mesh, placements, dtype)


def ones(size: Size, device_mesh: DeviceMesh, placements: Placements = None, *, dtype=mindspore.float32) -> DTensor:
    """Ones; not for a pending sum."""
    return _constant(1, size, device_mesh, placements, dtype)


def full(size: Size, fill_value, device_mesh: DeviceMesh, placements: Placements = None, *,
         dtype=mindspore.float32) -> DTensor:
    """`fill_value` everywhere; not for a pending sum.

    Raises:
        ValueError: the placements do not fit the shape or the mesh, or a sum is pending.
    """
    return _constant(fill_value, size, device_mesh, placements, dtype)


def empty(size: Size, device_mesh: DeviceMesh, placements: Placements = None, *, dtype=mindspore.float32) -> DTensor:
    """Memory as it comes; inside `mindspore.DeviceCtx("meta")` no memory at all."""
    size, placements, part = _part(size, device_mesh, placements)
    return DTensor.from_local(mint.empty(part, dtype=dtype), device_mesh, placements, shape=size)


def rand(size: Size, device_mesh: DeviceMesh, placements: Placements = None, *, generator=None,
         dtype=mindspore.float32) -> DTensor:
    """Uniform numbers in [0, 1): the part of what `mint.rand` would draw for the whole."""
    return _drawn(mint.rand, size, device_mesh, placements, generator, dtype)


def randn(size: Size, device_mesh: DeviceMesh, placements: Placements = None, *, generator=None,
          dtype=mindspore.float32) -> DTensor:
    """Normal numbers: the part of what `mint.randn` would draw for the whole.

    Args:
        size: of the whole.
        device_mesh: the mesh.
        placements: Shard, StridedShard or Replicate per axis; None means Replicate on every axis.
        generator (mindspore.Generator): None means MindSpore's own, which `mindspore.manual_seed` seeds; it has to be
            in the same state on all ranks, and moves on alike.
        dtype: a floating dtype.

    Raises:
        ValueError: the placements do not fit the shape or the mesh, or one is Partial.
    """
    return _drawn(mint.randn, size, device_mesh, placements, generator, dtype)


def _part(size, mesh, placements):
    """The shape of the whole, normalised placements, and the shape of this rank's part."""
    size = (size,) if isinstance(size, int) else tuple(size)
    placements = (Replicate(),) * mesh.ndim if placements is None else placements
    placements = Layout(mesh, placements, len(size)).placements
    slices = local_slices(size, mesh, placements)
    return size, placements, (0,) * len(size) if slices is None else tuple(piece.stop - piece.start for piece in slices)


def _constant(value, size, mesh, placements, dtype):
    size, placements, part = _part(size, mesh, placements)
    for axis, placement in zip(mesh.mesh_dim_names, placements):
        if placement == Partial("sum") and value:
            raise ValueError(f"{placement!r} on axis {axis!r}: {value} on every rank would add up to something else; "
                             "use zeros, or another placement")
    return DTensor.from_local(ops.full(part, value, dtype=dtype), mesh, placements, shape=size)


def _drawn(draw, size, mesh, placements, generator, dtype):
    size, placements, _ = _part(size, mesh, placements)
    # in float32 and cast afterwards: the same numbers in every dtype
    whole = draw(*size, generator=generator, dtype=mindspore.float32)
    return DTensor.from_local(shard_whole(whole, mesh, placements).astype(dtype), mesh, placements, shape=size)
