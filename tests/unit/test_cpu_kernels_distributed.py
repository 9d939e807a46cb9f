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
"""Collectives on CPU in a world that is played in one process; tests/distributed runs them on real ranks.

The played world has two ranks, of which this process is the second; the first one holds what `peer` says.
"""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint
from mindspore.communication import comm_func as functional
from mindspore.mint import distributed as dist
from mindspore.ops.function import comm_func

from hyper_parallel.platform.cpu_kernels import collectives
from cpu_kernels_checks import check, close, numbers, transposed_view

SIZE, RANK = 2, 1


def peer(array):
    """What the other rank holds where this one holds `array`."""
    return array * 2


@pytest.fixture(autouse=True)
def world(monkeypatch):
    def gather(parts, tensor, group=None):
        assert group in (None, "pair")
        mine = tensor.asnumpy() if tensor.dtype != ms.bfloat16 else tensor.astype(ms.float32).asnumpy()
        # The sizes of an exchange are the same on both ranks, numbers are not.
        theirs = mine if tensor.dtype == ms.int32 and tensor.shape == (SIZE,) else peer(mine)
        for part, values in zip(parts, (theirs, mine)):
            part.copy_(Tensor(values).astype(tensor.dtype))

    def reduce(tensor, op, group=None):
        assert tensor.dtype == ms.float32 and op in ("sum", "max")
        mine = tensor.asnumpy()
        tensor.copy_(Tensor(mine + peer(mine) if op == "sum" else np.maximum(mine, peer(mine))))
    monkeypatch.setattr(collectives, "_all_gather_list", gather)
    monkeypatch.setattr(collectives, "_all_reduce_in_place", reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: SIZE)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: RANK)
    was_in_place = comm_func.is_inplace_func("all_reduce")
    comm_func.set_comm_ops_inplace(False)
    yield
    comm_func.set_comm_ops_inplace(was_in_place)


@pytest.mark.parametrize("op, formula", [("sum", lambda a: 3 * a), ("avg", lambda a: 1.5 * a)])
def test_all_reduce(op, formula):
    """The gradient is the reduction of the gradients, here 3 or 1.5 times this rank's: the formula is linear."""
    check(lambda a: comm_func.all_reduce(a, op)[0], formula, numbers(2, 3))


@pytest.mark.parametrize("op, factor", [("max", np.maximum), ("min", np.minimum), ("prod", np.multiply)])
def test_all_reduce_values(op, factor):
    array = numbers(2, 3)
    close(comm_func.all_reduce(transposed_view(array), op, "pair")[0], factor(array, peer(array)), 1e-6)


def gradient(function, array):
    return ms.grad(lambda tensor: mint.sum(function(tensor)))(Tensor(array)).asnumpy()


def test_all_reduce_gradients_of_extremes_and_products():
    """The gradients of both ranks sum to 3; with max this rank's value wins where it is negative, with min above."""
    array = np.array([-1.0, 2.0], np.float32)
    for op, expected in (("max", [3, 0]), ("min", [0, 3]), ("prod", 3 * peer(array))):
        close(gradient(lambda tensor, op=op: comm_func.all_reduce(tensor, op)[0], array), expected, 1e-6)


@pytest.mark.parametrize("dtype", [ms.int8, ms.int32, ms.int64, ms.float16, ms.bfloat16])
def test_all_reduce_of_other_dtypes(dtype):
    tensor = Tensor(np.array([1, 2, 3])).astype(dtype)
    result, handle = functional.all_reduce(tensor)
    assert result.dtype == dtype and handle is None
    close(result, [3, 6, 9], 0)


def test_all_reduce_of_bools():
    result, _ = functional.all_reduce(Tensor([True, False]), "max")
    assert result.dtype == ms.bool_ and result.asnumpy().tolist() == [True, False]


def test_unknown_reductions_are_refused():
    with pytest.raises(ValueError, match="one of sum, max, min, prod, avg, but got 'median'"):
        comm_func.all_reduce(Tensor([1.0]), "median")


def test_all_gather():
    array = numbers(2, 3)
    expected = np.concatenate([peer(array), array])
    close(comm_func.all_gather_into_tensor(None, transposed_view(array))[0], expected, 0)
    close(functional.all_gather_into_tensor(Tensor(array))[0], expected, 0)
    # The gradients of both ranks for this rank's part: 1 here, 2 there.
    close(gradient(lambda tensor: comm_func.all_gather_into_tensor(None, tensor)[0], array), np.full((2, 3), 3), 0)


def test_reduce_scatter():
    array = numbers(4, 3)
    close(comm_func.reduce_scatter_tensor(None, Tensor(array))[0], 3 * array[2:], 1e-6)
    close(functional.reduce_scatter_tensor(Tensor(array), "max")[0], np.maximum(array, peer(array))[2:], 1e-6)
    # Part 0's gradient comes from the other rank, which has twice this one's.
    both = np.repeat([[2.0], [1.0]], 2, 0).repeat(3, 1)
    close(gradient(lambda tensor: comm_func.reduce_scatter_tensor(None, tensor)[0], array), both, 1e-6)
    close(gradient(lambda tensor: comm_func.reduce_scatter_tensor(None, tensor, "avg")[0], array), both / 2, 1e-6)
    with pytest.raises(NotImplementedError, match="'max'"):
        gradient(lambda tensor: comm_func.reduce_scatter_tensor(None, tensor, "max")[0], array)
    with pytest.raises(ValueError, match="size 3 cannot be cut into 2"):
        comm_func.reduce_scatter_tensor(None, Tensor(array[:3]))


def test_all_to_all_single():
    array = numbers(4, 3)
    out, _ = comm_func.all_to_all_single(None, Tensor(array))
    close(out, np.concatenate([peer(array)[2:], array[2:]]), 0)
    with pytest.raises(ValueError, match="size 3 cannot be cut into 2"):
        comm_func.all_to_all_single(None, Tensor(array[:3]))
    with pytest.raises(ValueError, match="sum to 3, but dim 0 has size 4"):
        comm_func.all_to_all_single(None, Tensor(array), [1, 2], [1, 2])


def test_all_to_all_with_sizes_and_padding(monkeypatch):
    """The other rank's sizes are twice these (as everything of it): it sends 2 and 4 rows."""
    rows = numbers(3, 2)
    sent = numbers(6, 2)

    def gather(parts, tensor, group=None):
        mine = tensor.asnumpy()
        parts[0].copy_(Tensor(peer(mine) if tensor.dtype == ms.int32 else sent))
        parts[1].copy_(tensor)
    monkeypatch.setattr(collectives, "_all_gather_list", gather)
    out, _ = comm_func.all_to_all_single(None, Tensor(rows), output_split_sizes=[4, 2], input_split_sizes=[1, 2])
    close(out, np.concatenate([sent[2:], rows[1:]]), 0)


def test_all_to_all_of_nothing():
    out, _ = comm_func.all_to_all_single(None, mint.zeros((0, 2)), [0, 0], [0, 0])
    assert out.shape == (0, 2)


def test_all_to_all_gradient():
    array = numbers(4, 3)
    measured = gradient(lambda tensor: mint.mul(comm_func.all_to_all_single(None, tensor)[0], Tensor(array)), array)
    close(measured, np.concatenate([peer(array)[2:], array[2:]]), 1e-6)


def test_all_to_all_of_lists():
    inputs = [Tensor(np.full((2, 2), value, np.float32)) for value in (1, 2)]
    received, _ = comm_func.all_to_all([mint.zeros((2, 2)), mint.zeros((2, 2))], inputs)
    assert [int(tensor.asnumpy()[0, 0]) for tensor in received] == [4, 2]
    received, _ = comm_func.all_to_all([(4,), (4,)], inputs)
    assert [tensor.shape for tensor in received] == [(4,), (4,)]


def test_in_place_forms():
    comm_func.set_comm_ops_inplace(True)
    array = numbers(4, 3)
    tensor = Tensor(array)
    assert comm_func.all_reduce(tensor) is None
    close(tensor, 3 * array, 1e-6)
    comm_func.all_reduce(tensor, async_op=True).wait()
    outputs = [mint.zeros((1,)), mint.zeros((1,))]
    comm_func.all_to_all(outputs, [mint.ones((1,)), mint.ones((1,)) * 2])
    assert [int(output.asnumpy()[0]) for output in outputs] == [4, 2]


def test_mint_distributed():
    array = numbers(4, 3)
    tensor = Tensor(array)
    dist.all_reduce(tensor, "min")
    close(tensor, np.minimum(array, peer(array)), 1e-6)
    gathered, part, exchanged = mint.zeros((8, 3)), mint.zeros((2, 3)), mint.zeros((4, 3))
    assert dist.all_gather_into_tensor(gathered, Tensor(array)) is None
    dist.reduce_scatter_tensor(part, Tensor(array))
    dist.all_to_all_single(exchanged, Tensor(array))
    close(gathered, np.concatenate([peer(array), array]), 0)
    close(part, 3 * array[2:], 1e-6)
    close(exchanged, np.concatenate([peer(array)[2:], array[2:]]), 0)
    outputs = [mint.zeros((1,)), mint.zeros((1,))]
    dist.all_to_all(outputs, [mint.ones((1,)), mint.ones((1,)) * 2])
    assert [int(output.asnumpy()[0]) for output in outputs] == [4, 2]


def test_barriers():
    assert dist.barrier() is None
    assert comm_func.barrier() is None
    assert functional.barrier() is None


def test_broadcast_object_list(monkeypatch):
    def gather_objects(gathered, objects, group=None):
        gathered[:] = [["theirs"], objects]
    monkeypatch.setattr(dist, "all_gather_object", gather_objects)
    monkeypatch.setattr(dist, "get_group_rank", lambda group, rank: rank - 4)
    objects = ["ours"]
    dist.broadcast_object_list(objects, src=1)
    assert objects == ["ours"]
    dist.broadcast_object_list(objects, src=4, group="pair")
    assert objects == ["theirs"]


@pytest.mark.parametrize("running", [True, False])
def test_init_process_group(monkeypatch, running):
    started = []
    monkeypatch.setattr(dist, "is_initialized", lambda: running)
    monkeypatch.setattr(ms.communication, "init", lambda: started.append(True))
    assert dist.init_process_group() is None
    dist.init_process_group(backend="hccl", world_size=SIZE)
    assert len(started) == (0 if running else 2)
    with pytest.raises(ValueError, match="world_size is 3, but the launcher started 2"):
        comm_func.init_process_group(world_size=3)
