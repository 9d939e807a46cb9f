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
"""Random numbers by simulated ranks: weights that do not depend on the mesh, shards that differ, dropout of parts."""
import itertools

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint

from hyper_parallel.core.dtensor import creation, device_mesh, dispatch
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Replicate, Shard
from hyper_parallel.core.dtensor.random import STRIDE, part_number, parts_differ
from hyper_parallel.core.dtensor.slice_map import Section, SliceMap
from hyper_parallel.distributed import local_parameter
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.platform import cpu_kernels

GRID = DeviceMesh("npu", (2, 2), ("dp", "tp"))
RANKS = range(4)
ONES = np.ones((16, 16), np.float32)


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    cpu_kernels.maybe_install()
    yield
    cpu_kernels.uninstall()


@pytest.fixture(name="rank")
def _rank(monkeypatch):
    """Makes this process any rank."""
    def become(number):
        monkeypatch.setattr(device_mesh, "current_rank", lambda: number)
        dispatch.clear_cache()
    yield become
    dispatch.clear_cache()


def mask():
    """What a dropout keeps, as numpy."""
    return mint.nn.functional.dropout(Tensor(ONES), 0.5, True).asnumpy() > 0


def equal(results):
    """Pairs of ranks with the same result."""
    return {pair for pair in itertools.combinations(range(len(results)), 2)
            if np.array_equal(results[pair[0]], results[pair[1]])}


def drawn(slice_map, coordinate):
    """A parameter of which this rank keeps its part, filled by its own initialiser."""
    parameter = Parameter(Tensor(np.zeros(slice_map.shape, np.float32)), name="weight")
    local_parameter.cut(parameter, ParameterSpec("weight", slice_map.shape, "float32", "COLWISE", {}, slice_map),
                        coordinate)
    mindspore.manual_seed(3)
    return parameter.normal_(0.0, 0.02).asnumpy()


def test_a_parameter_is_the_same_at_tp_1_2_and_4():
    """Plain, fused with copies, and padded; no two ranks hold equal shards but for copies."""
    mindspore.manual_seed(3)
    whole = mint.empty((24, 6)).normal_(0.0, 0.02).asnumpy()
    for tp in (1, 2, 4):
        plain = SliceMap.plain((24, 6), 0, tp)
        columns = SliceMap.plain((24, 6), 1, tp, pad=True)
        fused = SliceMap.sectioned((24, 6), 0, tp, (Section(16, unit=2), Section(8, unit=2)))
        for slice_map in (plain, columns, fused):
            parts = [drawn(slice_map, coordinate) for coordinate in range(tp)]
            np.testing.assert_array_equal(slice_map.unshard(parts), whole)
            assert not equal(parts)


@pytest.mark.parametrize("placements", [(Replicate(), Shard(0)), (Shard(1), Shard(0)), (Shard(0), Shard(0))])
@pytest.mark.parametrize("create, plain", [(creation.randn, mint.randn), (creation.rand, mint.rand)])
def test_a_new_dtensor_is_the_same_on_every_mesh(rank, placements, create, plain):
    """The whole of one device, cut; ranks hold equal shards only where the placements say that they are replicas."""
    mindspore.manual_seed(4)
    whole = plain(8, 6).asnumpy()
    parts = []
    for number in RANKS:
        rank(number)
        mindspore.manual_seed(4)
        parts.append(create((8, 6), GRID, placements).to_local().asnumpy())
        height, width = parts[-1].shape
        assert any(np.array_equal(parts[-1], whole[row:row + height, column:column + width])
                   for row in range(8) for column in range(6))
    assert equal(parts) == ({(0, 2), (1, 3)} if Replicate() in placements else set())


@pytest.mark.parametrize("placements, same", [
    ((Replicate(), Replicate()), 6), ((Replicate(), Shard(0)), 2), ((Shard(0), Replicate()), 2),
    ((Shard(0), Shard(1)), 0)])
def test_dropout_of_dtensors(rank, placements, same):
    """Equal on replicas, different on parts."""
    masks = []
    for number in RANKS:
        rank(number)
        mindspore.manual_seed(5)
        masks.append(mint.nn.functional.dropout(DTensor.from_local(Tensor(ONES), GRID, placements), 0.5).to_local()
                     .asnumpy())
    assert len(equal(masks)) == same


@pytest.mark.parametrize("axes, same", [((), 6), (("tp",), 2), (("dp",), 2), (("tp", "dp"), 0)])
def test_dropout_of_local_parts(rank, axes, same):
    """The same as on DTensors; before and after the block ranks agree."""
    before, inside, after, dispatched = [], [], [], []
    for number in RANKS:
        rank(number)
        mindspore.manual_seed(5)
        before.append(mask())
        with parts_differ(GRID, axes):
            inside.append(mask())
        after.append(mask())
        placements = tuple(Shard(0) if axis in axes else Replicate() for axis in GRID.mesh_dim_names)
        mindspore.manual_seed(5)
        mask()
        dispatched.append(mint.nn.functional.dropout(DTensor.from_local(Tensor(ONES), GRID, placements), 0.5).to_local()
                          .asnumpy() > 0)
    assert len(equal(inside)) == same
    assert len(equal(before)) == len(equal(after)) == 6
    assert not np.array_equal(before[0], after[0]) and not np.array_equal(inside[0], after[0])
    np.testing.assert_array_equal(inside, dispatched)


def test_nested_blocks_are_parts_of_parts(rank):
    """All four ranks differ in the inner block, and ranks of one outer part agree outside of it."""
    inner, outer = [], []
    for number in RANKS:
        rank(number)
        mindspore.manual_seed(5)
        with parts_differ(GRID, ("dp",)):
            with parts_differ(GRID, ("tp",)):
                inner.append(mask())
            outer.append(mask())
        assert mindspore.initial_seed() == 5
    assert not equal(inner) and equal(outer) == {(0, 1), (2, 3)}


def test_state_after_the_block(rank):
    """Restored after an error; a seed that is set inside stays; a generator of one's own is left to itself."""
    rank(3)
    mindspore.manual_seed(2 ** 63 - 1)
    with pytest.raises(KeyError), parts_differ(GRID):
        assert mindspore.initial_seed() == -2 ** 63 + STRIDE - 1
        raise KeyError
    assert mindspore.initial_seed() == 2 ** 63 - 1
    with parts_differ(GRID):
        mindspore.manual_seed(11)
    assert mindspore.initial_seed() == 11
    own = mindspore.Generator().manual_seed(7)
    with parts_differ(GRID, ("dp", "tp"), own):
        assert (own.initial_seed(), mindspore.initial_seed()) == (7 + 3 * STRIDE, 11)
    assert own.initial_seed() == 7


def test_part_numbers(rank):
    """In mesh order, whatever the order of the names; what the mesh has not is refused."""
    assert [part_number(GRID, ("tp", "dp"), number) for number in RANKS] == [0, 1, 2, 3]
    assert [part_number(GRID, ("dp",), number) for number in RANKS] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="no axis 'cp'"), parts_differ(GRID, ("cp",)):
        pass
    with pytest.raises(ValueError, match="rank 9 is not in"):
        part_number(GRID, ("tp",), 9)
    rank(9)
    with pytest.raises(ValueError, match="current one.* is not in"), parts_differ(GRID):
        pass
