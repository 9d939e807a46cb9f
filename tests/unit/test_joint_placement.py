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
"""Where a parameter lies once the shard axis cuts it too; the judge is a numpy array cut by hand."""
import numpy as np
import pytest

from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.gather import local_slices
from hyper_parallel.core.dtensor.placement_types import Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.slice_map import Section, SliceMap
from hyper_parallel.core.fully_shard.joint_placement import dim_to_cut, join
from hyper_parallel.core.shard.part_record import PartRecord


@pytest.fixture(name="dense")
def dense_mesh():
    """The mesh that MindFormers makes out of a flat one: two replicas of two shards of two tensor-parallel ranks."""
    world = init_device_mesh("npu", (8,), mesh_dim_names=("world",))
    return world._unflatten(0, (1, 2, 2, 2), ("pp", "dp_replicate", "fsdp", "tp"))


def test_a_parameter_of_a_tensor_parallel_submesh_moves_to_the_joint_mesh(dense):
    tp = PartRecord(dense["tp"], (Shard(0),), (8, 4))
    place = join(dense["dp_replicate", "fsdp"], tp, (4, 4), (8, 4), 0)
    assert place.mesh.mesh_dim_names == ("dp_replicate", "fsdp", "tp") and place.mesh.size() == 8
    assert place.placements == (Replicate(), StridedShard(0, 2), Shard(0))
    assert (place.shape, place.dim, place.slice_map) == ((8, 4), 0, None)
    assert local_slices((8, 4), place.mesh, place.placements) == (slice(0, 2), slice(0, 4))
    assert join(dense["fsdp"], tp, (4, 4), (8, 4), 0).mesh.mesh_dim_names == ("fsdp", "tp")


def test_other_dims_and_kept_parameters(dense):
    rows = PartRecord(dense["tp"], (Shard(1),), (8, 4))
    assert join(dense["dp_replicate", "fsdp"], rows, (8, 2), (8, 4), 0).placements == (Replicate(), Shard(0), Shard(1))
    kept = join(dense["dp_replicate", "fsdp"], rows, (8, 2), (8, 4), None)
    assert kept.placements == (Replicate(), Replicate(), Shard(1)) and kept.dim is None
    whole = join(dense["fsdp"], None, (8, 4), (8, 4), 1)
    assert whole.placements == (Shard(1),) and whole.mesh is dense["fsdp"]


def test_a_part_that_only_a_slice_map_describes_is_cut_once_more(dense):
    fused = SliceMap.sectioned((12, 4), 0, 2, (Section(4), Section(8)), "tp")
    place = join(dense["fsdp"], PartRecord(dense["tp"], (Shard(0),), (12, 4), fused), (6, 4), (12, 4), 0)
    assert place.slice_map.axes == ("tp", "fsdp") and place.slice_map.local_shape() == (3, 4)
    array = np.arange(48).reshape(12, 4)
    mine = np.concatenate([array[2:4], array[8:12]])[3:]
    assert np.array_equal(place.slice_map.shard(array, {"tp": 1, "fsdp": 1}), mine)


@pytest.mark.parametrize("shape, wanted, ranks, uneven, dim", [
    ((8, 4), 0, 2, False, 0), ((7, 4), 0, 2, True, 0), ((7, 4), 0, 2, False, None), ((7, 4), -1, 2, False, 1),
    ((5,), 0, 4, True, None), ((), 0, 2, True, None), ((8,), 0, 1, True, None), ((1,), 0, 2, True, None)])
def test_the_dim_that_can_be_cut(shape, wanted, ranks, uneven, dim):
    assert dim_to_cut(shape, wanted, ranks, uneven) == dim
    with pytest.raises(ValueError):
        dim_to_cut((4, 4), 2, 2, True)
