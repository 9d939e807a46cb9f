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
"""Random numbers on ranks: one seed, the same weight, different shards, dropout by where the activation lies.

    python tests/distributed/launch.py --world 2 tests/distributed/test_random.py
"""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint

import hyper_parallel as hp
from hyper_parallel.core.collectives.functional import all_gather
from hyper_parallel.core.dtensor.creation import randn
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.placement_types import Replicate, Shard
from hyper_parallel.core.dtensor.random import parts_differ
from hyper_parallel.platform import cpu_kernels

WORLD = mindspore.communication.get_group_size()
pytestmark = pytest.mark.skipif(WORLD not in (2, 4, 8), reason="runs on 2, 4 or 8 ranks")
MESH = init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    cpu_kernels.maybe_install()


def of_all_ranks(local):
    """Every rank's tensor, as numpy arrays."""
    return list(all_gather(local.expand_dims(0), 0, MESH.get_group("tp")).asnumpy())


def all_equal(arrays):
    """All arrays are the first one."""
    return all(np.array_equal(arrays[0], other) for other in arrays[1:])


def test_weights_and_shards():
    """The whole does not depend on the placements; shards differ, replicas do not."""
    mindspore.manual_seed(21)
    whole = mint.randn(8, 8).asnumpy()
    for placement in (Shard(0), Shard(1), Replicate()):
        mindspore.manual_seed(21)
        weight = randn((8, 8), MESH, (placement,))
        np.testing.assert_array_equal(weight.full_tensor().asnumpy(), whole)
        assert all_equal(of_all_ranks(weight.to_local())) == (placement == Replicate())


def test_dropout_in_and_around_a_local_region():
    """The collectives of the comparison are counted under the mesh's axis."""
    mindspore.manual_seed(22)
    ones = Tensor(np.ones((16, 16), np.float32))
    with hp.count_collectives() as record:
        assert all_equal(of_all_ranks(mint.nn.functional.dropout(ones, 0.5, True)))
        with parts_differ(MESH):
            masks = of_all_ranks(mint.nn.functional.dropout(ones, 0.5, True))
        assert all_equal(of_all_ranks(mint.nn.functional.dropout(ones, 0.5, True)))
    assert not any(np.array_equal(masks[0], other) for other in masks[1:])
    assert record.count("all_gather", axis="tp") == len(record) == 3
