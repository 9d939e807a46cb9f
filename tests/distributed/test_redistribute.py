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
"""Redistribution between ranks: values, gradients through autograd, counts; every rank of an msrun job of 2 or 4."""
import itertools
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from mindspore.mint import distributed as dist

from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor, distribute_tensor
from hyper_parallel.core.dtensor.placement_state import local_area, shard_orders
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.slice_layouts import kv_heads_alone, qkv_sections
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.platform import cpu_kernels

if not dist.is_initialized() or dist.get_world_size() not in (2, 4, 8):
    pytest.skip("needs an msrun job of 2, 4 or 8 ranks", allow_module_level=True)

RANK, SIZE = dist.get_rank(), dist.get_world_size()
R, P, S = Replicate(), Partial(), Shard
LINE = DeviceMesh("cpu", (SIZE,), ("tp",))
GRID = DeviceMesh("cpu", (2, SIZE // 2), ("dp", "tp"))
CUBE = DeviceMesh("cpu", (2, 2, SIZE // 4), ("dp", "cp", "tp")) if SIZE >= 4 else None
HEADS = max(4, SIZE)
MESHES = {2: (LINE,), 4: (LINE, GRID), 8: (LINE, GRID, CUBE)}[SIZE]


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cpu_kernels.maybe_install()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(np.float32)


def area(array, mesh, placements, rank=RANK):
    """What a rank holds of a whole array."""
    cuts = shard_orders(placements, mesh.mesh_shape, array.ndim)
    bounds = local_area(array.shape, cuts, mesh.mesh_shape, mesh.get_coordinate(rank))
    return array[tuple(slice(start, start + rows) for start, rows in bounds)]


def values(whole, mesh, placements, rank):
    """A rank's part; along pending axes the summands differ and add up to the whole."""
    waiting = [axis for axis, item in enumerate(placements) if isinstance(item, Partial)]
    coordinate = mesh.get_coordinate(rank)
    if not waiting:
        return area(whole, mesh, placements, rank)
    first = all(coordinate[axis] == 0 for axis in waiting)
    count = math.prod(mesh.mesh_shape[axis] for axis in waiting)
    shifted = whole + (count - 1) * 3 if first else np.full_like(whole, -3)
    return area(shifted, mesh, placements, rank)


@pytest.mark.parametrize("shape", [(8, 4), (5, 6)])
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh.ndim} axes")
def test_all_pairs(mesh, shape):
    """Placements and the whole after it, on even and uneven shapes; a sample of the pairs on several axes."""
    whole = numbers(*shape)
    pairs = list(itertools.product(itertools.product((R, P, S(0), S(1)), repeat=mesh.ndim), repeat=2))
    for src, dst in pairs[::{1: 1, 2: 11, 3: 193}[mesh.ndim]]:
        made = DTensor.from_local(Tensor(values(whole, mesh, src, RANK)), mesh, src, shape=shape)
        moved = made.redistribute(mesh, dst)
        assert moved.placements == dst and moved.shape == shape
        if P not in dst:
            np.testing.assert_array_equal(moved.to_local().asnumpy(), area(whole, mesh, dst))
        np.testing.assert_array_equal(moved.full_tensor().asnumpy(), whole)


ADJOINTS = {
    "all_gather": ((S(0),), (R,)), "reduce_scatter": ((P,), (S(1),)), "all_reduce": ((P,), (R,)),
    "slice": ((R,), (S(0),)), "all_to_all": ((S(0),), (S(1),)), "to_partial": ((R,), (P,)), "zero_pad": ((S(0),), (P,)),
}


@pytest.mark.parametrize("name", ADJOINTS)
def test_gradients_are_true_adjoints(name):
    """Against numpy, with another weight on every rank, through a Parameter and its DTensor."""
    src, dst = ADJOINTS[name]
    shape = (SIZE, 2 * SIZE)
    whole = np.zeros(shape, np.float32)
    weights = [numbers(*area(whole, LINE, dst, rank).shape, seed=rank + 1) for rank in range(SIZE)]
    stored = Parameter(DTensor(Tensor(area(whole, LINE, src) + 1), LINE, src, shape=shape), name="w")

    def loss(_):
        moved = stored.redistribute(placements=dst, device_mesh=LINE)
        return (moved.to_local() * Tensor(weights[RANK])).sum()
    gradient = ms.value_and_grad(loss, None, weights=[stored])(Tensor([0.0]))[1][0].asnumpy()
    glued = {S(0): lambda: np.concatenate(weights), S(1): lambda: np.concatenate(weights, 1), R: lambda: sum(weights)}
    expected = {"all_gather": lambda: area(sum(weights), LINE, src), "reduce_scatter": glued[S(1)],
                "all_reduce": lambda: sum(weights), "all_to_all": lambda: area(np.concatenate(weights, 1), LINE, src),
                "to_partial": lambda: weights[RANK] * (RANK == 0), "zero_pad": lambda: area(weights[RANK], LINE, src)}
    if name == "slice":
        here = np.zeros(shape, np.float32)
        here[RANK:RANK + 1] = weights[RANK]
        expected["slice"] = lambda: here
    np.testing.assert_array_equal(gradient, expected[name]())


def test_gradient_of_the_whole_and_of_the_part():
    """full_tensor: a reduce-scatter of what each rank feels; grad_placements: the gradient is brought to the value."""
    weight = Tensor(numbers(4 * SIZE, seed=RANK))
    total = sum(numbers(4 * SIZE, seed=rank) for rank in range(SIZE))

    def whole(x):
        return (DTensor.from_local(x, LINE, (S(0),)).full_tensor() * weight).sum()
    np.testing.assert_array_equal(ms.grad(whole)(Tensor(numbers(4))).asnumpy(), total[4 * RANK:4 * RANK + 4])

    def partial(x):
        return (DTensor.from_local(x, LINE, (R,)).to_local(grad_placements=(P,)) * weight).sum()
    np.testing.assert_array_equal(ms.grad(partial)(Tensor(numbers(4 * SIZE))).asnumpy(), total)


def test_a_chain_of_redistributions_is_counted_once_each():
    made = DTensor.from_local(Tensor(numbers(SIZE, 4 * SIZE)), LINE, (P,))
    with count_collectives() as record:
        made.redistribute(LINE, (S(1),)).redistribute(LINE, (S(0),)).redistribute(LINE, (S(-2),)).full_tensor()
    assert dict(record.counts()) == {"reduce_scatter": 1, "all_to_all": 1, "all_gather": 1}


@pytest.mark.skipif(SIZE < 4, reason="needs two axes of several ranks")
def test_a_step_over_two_axes_is_counted_under_both():
    """The world may have been asked for under another name before, so axes are named that nobody else has."""
    mesh = DeviceMesh("cpu", (2, 2), ("outer", "inner"), range(4))
    if RANK >= 4:
        return
    made = DTensor.from_local(Tensor(numbers(3, 2, seed=RANK)), mesh, (P, P))
    with count_collectives() as record:
        whole = made.redistribute(mesh, (R, R))
    np.testing.assert_array_equal(whole.to_local().asnumpy(), sum(numbers(3, 2, seed=rank) for rank in range(4)))
    assert [item.kind for item in record.collectives] == ["all_reduce"]
    assert SIZE == 4 or record.collectives[0].axis == "outer+inner"


@pytest.mark.parametrize("op", ["max", "min", "avg"])
def test_other_reductions(op):
    parts = [numbers(3, 2, seed=rank) for rank in range(SIZE)]
    made = DTensor.from_local(Tensor(parts[RANK]), LINE, (Partial(op),))
    expected = {"max": np.maximum.reduce, "min": np.minimum.reduce, "avg": lambda items: sum(items) / SIZE}[op](parts)
    np.testing.assert_allclose(made.full_tensor().asnumpy(), expected)
    np.testing.assert_allclose(made.redistribute(LINE, (S(0),)).full_tensor().asnumpy(), expected)


@pytest.mark.parametrize("dtype", [ms.bfloat16, ms.int32, ms.bool_])
def test_dtypes(dtype):
    whole = Tensor(np.abs(numbers(SIZE, 2 * SIZE)) % 2).astype(dtype)
    made = distribute_tensor(whole, LINE, (S(0),))
    moved = made.redistribute(LINE, (S(1),)).full_tensor()
    assert moved.dtype == dtype
    np.testing.assert_array_equal(moved.astype(ms.float32).asnumpy(), whole.astype(ms.float32).asnumpy())


@pytest.mark.skipif(SIZE != 4, reason="needs 4 ranks")
def test_strided_and_between_meshes():
    """FSDP inside tensor parallel, a flat mesh, a sub-mesh, and a mesh of two of the ranks."""
    whole = numbers(8, 4)
    made = distribute_tensor(Tensor(whole), GRID, (StridedShard(0, 2), S(0)))
    with count_collectives() as record:
        inside = made.redistribute(GRID, (R, S(0)))
    assert dict(record.counts()) == {"all_gather": 1} and record.collectives[0].size == 2
    np.testing.assert_array_equal(inside.to_local().asnumpy(), area(whole, GRID, (R, S(0))))
    np.testing.assert_array_equal(made.redistribute(LINE, (S(1),)).to_local().asnumpy(), area(whole, LINE, (S(1),)))
    with count_collectives() as record:
        sub = inside.redistribute(GRID["tp"], (S(0),))
    assert not record.collectives and sub.device_mesh is GRID["tp"] and sub.to_local() is inside.to_local()
    small = DeviceMesh("cpu", (2,), ("pair",), (1, 2))
    held = made.redistribute(small, (S(0),))
    if RANK in (1, 2):
        np.testing.assert_array_equal(held.to_local().asnumpy(), whole[4 * (RANK - 1):4 * RANK])
    else:
        assert held.local_shape == (0, 0)
    np.testing.assert_array_equal(held.redistribute(GRID, (S(0), R)).full_tensor().asnumpy(), whole)


@pytest.mark.parametrize("slice_map", [
    SliceMap.plain((5, 2), 0, SIZE, pad=True), SliceMap.of((2 * HEADS + 8, 2), qkv_sections(HEADS, 2, 2, SIZE)),
    SliceMap.of((4, 2), kv_heads_alone(HEADS, 2, 2, SIZE)), SliceMap.plain((8, 2), 0, SIZE)],
                         ids=lambda item: item.describe())
def test_parts_of_a_slice_map(slice_map):
    """The whole from sections, copies and padding, and the gradient of each part."""
    whole = numbers(*slice_map.shape) + 20
    placements = (S(0),)
    made = DTensor(Tensor(slice_map.shard(whole, RANK)), LINE, placements, slice_map)
    np.testing.assert_array_equal(made.full_tensor().asnumpy(), whole)
    assert made.redistribute(LINE, placements) is made
    np.testing.assert_array_equal(made.redistribute(LINE, (S(1),)).full_tensor().asnumpy(), whole)
    weight = numbers(*slice_map.shape, seed=3)

    def loss(x):
        return (DTensor(x, LINE, placements, slice_map).full_tensor() * Tensor(weight)).sum()
    expected = np.zeros(slice_map.local_shape(), np.float32)
    for held, own in slice_map.owned_pieces(RANK):
        expected[own] = weight[held] * SIZE
    np.testing.assert_array_equal(ms.grad(loss)(made.to_local()).asnumpy(), expected)


@pytest.mark.skipif(SIZE != 4, reason="needs 4 ranks")
def test_an_axis_that_a_slice_map_does_not_know():
    made = DTensor(Tensor(numbers(2, 1)), GRID, (S(1), S(0)), SliceMap.plain((4, 1), 0, 2))
    with pytest.raises(NotImplementedError, match="axis 'dp' cuts as well"):
        made.full_tensor()
