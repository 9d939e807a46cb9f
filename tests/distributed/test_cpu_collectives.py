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
"""The CPU collectives against numpy, on every rank of an msrun job of two or more."""
import functools

import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint
from mindspore.communication import comm_func as functional
from mindspore.mint import distributed as dist
from mindspore.ops.function import comm_func

from hyper_parallel.platform import cpu_kernels

if not dist.is_initialized() or dist.get_world_size() < 2:
    pytest.skip("needs an msrun job of at least two ranks", allow_module_level=True)

RANK, SIZE = dist.get_rank(), dist.get_world_size()


@pytest.fixture(autouse=True, scope="module")
def _stand_ins():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cpu_kernels.install()
    was_in_place = comm_func.is_inplace_func("all_reduce")
    comm_func.set_comm_ops_inplace(False)
    yield
    comm_func.set_comm_ops_inplace(was_in_place)


def of_rank(rank, shape=(2 * SIZE, 3)):
    """The numbers of one rank, known to all."""
    return np.random.default_rng(rank).normal(size=shape).astype(np.float32)


ALL = [of_rank(rank) for rank in range(SIZE)]
WEIGHTS = [of_rank(100 + rank) for rank in range(SIZE)]


@functools.lru_cache(maxsize=None)
def pair_group():
    """A group of this rank and its neighbour, and the ranks in it; only its members make it."""
    if SIZE % 2:
        pytest.skip("needs an even number of ranks")
    first = RANK - RANK % 2
    return dist.new_group([first, first + 1]), [first, first + 1]


REDUCTIONS = {"sum": lambda parts: sum(parts), "max": lambda parts: np.maximum.reduce(parts),
              "min": lambda parts: np.minimum.reduce(parts), "prod": lambda parts: np.multiply.reduce(parts),
              "avg": lambda parts: sum(parts) / len(parts)}


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_all_reduce_forward(op):
    out, handle = comm_func.all_reduce(Tensor(ALL[RANK]), op)
    assert handle is None
    np.testing.assert_allclose(out.asnumpy(), REDUCTIONS[op](ALL), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [ms.int8, ms.int32, ms.int64, ms.float16, ms.bfloat16, ms.bool_])
def test_all_reduce_dtypes(dtype):
    out, _ = functional.all_reduce(Tensor(np.array([RANK, 1]), ms.int32).astype(dtype))
    assert out.dtype == dtype
    total = np.array([SIZE * (SIZE - 1) // 2, SIZE])
    np.testing.assert_array_equal(out.astype(ms.float32).asnumpy(), total > 0 if dtype == ms.bool_ else total)


def test_all_reduce_rejects_an_unknown_reduction():
    with pytest.raises(ValueError, match="'median'"):
        comm_func.all_reduce(Tensor(ALL[RANK]), "median")


def gradient(function, weights):
    """The gradient of `sum(weights * function(x))` at this rank's numbers, through a transposed view."""
    def loss(tensor):
        out = mint.transpose(function(tensor), 0, 1)
        return mint.sum(mint.mul(out, Tensor(np.ascontiguousarray(weights.T))))
    return ms.grad(loss)(Tensor(ALL[RANK])).asnumpy()


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_all_reduce_gradient(op):
    measured = gradient(lambda tensor: comm_func.all_reduce(tensor, op)[0], WEIGHTS[RANK])
    np.testing.assert_allclose(measured, REDUCTIONS[op](WEIGHTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["max", "min", "prod"])
def test_all_reduce_gradient_of_extremes_and_products(op):
    measured = gradient(lambda tensor: comm_func.all_reduce(tensor, op)[0], WEIGHTS[RANK])
    out = REDUCTIONS[op](ALL)
    share = out / ALL[RANK] if op == "prod" else (out == ALL[RANK])
    np.testing.assert_allclose(measured, sum(WEIGHTS) * share, rtol=1e-4, atol=1e-5)


def test_all_reduce_on_a_subgroup():
    group, ranks = pair_group()
    out, _ = comm_func.all_reduce(Tensor(ALL[RANK]), "sum", group)
    np.testing.assert_allclose(out.asnumpy(), sum(ALL[rank] for rank in ranks), rtol=1e-5, atol=1e-6)


def test_all_gather():
    out, _ = comm_func.all_gather_into_tensor(None, Tensor(ALL[RANK]))
    np.testing.assert_array_equal(out.asnumpy(), np.concatenate(ALL))
    out, _ = functional.all_gather_into_tensor(Tensor(ALL[RANK]))
    np.testing.assert_array_equal(out.asnumpy(), np.concatenate(ALL))


def test_all_gather_of_a_transposed_tensor():
    out, _ = comm_func.all_gather_into_tensor(None, mint.transpose(Tensor(ALL[RANK]), 0, 1))
    np.testing.assert_array_equal(out.asnumpy(), np.concatenate([part.T for part in ALL]))


def test_all_gather_gradient():
    whole = [of_rank(200 + rank, (2 * SIZE * SIZE, 3)) for rank in range(SIZE)]
    measured = gradient(lambda tensor: comm_func.all_gather_into_tensor(None, tensor)[0], whole[RANK])
    expected = sum(whole)[RANK * 2 * SIZE:(RANK + 1) * 2 * SIZE]
    np.testing.assert_allclose(measured, expected, rtol=1e-5, atol=1e-6)


def test_reduce_scatter():
    expected = sum(ALL)[RANK * 2:RANK * 2 + 2]
    out, _ = comm_func.reduce_scatter_tensor(None, Tensor(ALL[RANK]))
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    out, _ = functional.reduce_scatter_tensor(Tensor(ALL[RANK]))
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_scatter_gradient(op):
    parts = [of_rank(300 + rank, (2, 3)) for rank in range(SIZE)]
    measured = gradient(lambda tensor: comm_func.reduce_scatter_tensor(None, tensor, op)[0], parts[RANK])
    np.testing.assert_allclose(measured, np.concatenate(parts) / (SIZE if op == "avg" else 1), rtol=1e-5, atol=1e-6)


def test_reduce_scatter_gradient_of_a_maximum_is_refused():
    with pytest.raises(NotImplementedError, match="'max'"):
        gradient(lambda tensor: comm_func.reduce_scatter_tensor(None, tensor, "max")[0], of_rank(1, (2, 3)))


def test_uneven_dim_0_is_refused():
    odd = Tensor(np.zeros((SIZE + 1, 2), np.float32))
    with pytest.raises(ValueError, match="equal parts"):
        comm_func.reduce_scatter_tensor(None, odd)
    with pytest.raises(ValueError, match="equal parts"):
        comm_func.all_to_all_single(None, odd)
    with pytest.raises(ValueError, match="sum to"):
        comm_func.all_to_all_single(None, odd, None, [1] * SIZE)


def sizes_from(sender):
    """How many rows a rank sends to each rank: uneven, some of them none."""
    return [(sender + receiver) % 3 for receiver in range(SIZE)]


def test_all_to_all_single_with_uneven_sizes():
    send, receive = sizes_from(RANK), [sizes_from(sender)[RANK] for sender in range(SIZE)]
    rows = [of_rank(400 + rank, (sum(sizes_from(rank)), 2)) for rank in range(SIZE)]
    out, _ = comm_func.all_to_all_single(None, Tensor(rows[RANK]), receive, send)
    expected = np.concatenate([rows[sender][sum(sizes_from(sender)[:RANK]):][:sizes_from(sender)[RANK]]
                               for sender in range(SIZE)])
    np.testing.assert_array_equal(out.asnumpy(), expected)

    weights = [of_rank(500 + rank, (sum(sizes_from(other)[rank] for other in range(SIZE)), 2))
               for rank in range(SIZE)]

    def loss(tensor):
        return mint.sum(mint.mul(comm_func.all_to_all_single(None, tensor, receive, send)[0], Tensor(weights[RANK])))
    measured = ms.grad(loss)(Tensor(rows[RANK])).asnumpy()
    starts = [sum(sizes_from(other)[receiver] for other in range(RANK)) for receiver in range(SIZE)]
    back = np.concatenate([weights[receiver][starts[receiver]:][:send[receiver]] for receiver in range(SIZE)])
    np.testing.assert_array_equal(measured, back)


def test_all_to_all_single_with_nothing_to_send():
    none = [0] * SIZE
    out, _ = comm_func.all_to_all_single(None, mint.zeros((0, 2)), none, none)
    assert out.shape == (0, 2)


def test_all_to_all_single_where_one_rank_gets_nothing():
    send = [0] + [1] * (SIZE - 1)
    receive = [0] * SIZE if RANK == 0 else [1] * SIZE
    out, _ = comm_func.all_to_all_single(None, Tensor(ALL[RANK][:SIZE - 1]), receive, send)
    assert out.shape == (0 if RANK == 0 else SIZE, 3)


def test_all_to_all_of_lists():
    inputs = [Tensor(np.full((2, 2), 10 * RANK + receiver, np.float32)) for receiver in range(SIZE)]
    outputs = [mint.zeros((2, 2)) for _ in range(SIZE)]
    received, _ = comm_func.all_to_all(outputs, inputs)
    for sender, tensor in enumerate(received):
        np.testing.assert_array_equal(tensor.asnumpy(), np.full((2, 2), 10 * sender + RANK))
    received, _ = comm_func.all_to_all([(4,)] * SIZE, inputs)
    assert all(tensor.shape == (4,) for tensor in received)


def test_in_place_forms_write_and_return_a_handle():
    comm_func.set_comm_ops_inplace(True)
    try:
        tensor = Tensor(ALL[RANK])
        assert comm_func.all_reduce(tensor) is None
        np.testing.assert_allclose(tensor.asnumpy(), sum(ALL), rtol=1e-5, atol=1e-6)
        outputs = [mint.zeros((1,)) for _ in range(SIZE)]
        comm_func.all_to_all(outputs, [mint.ones((1,)) * RANK for _ in range(SIZE)])
        assert [int(output.asnumpy()[0]) for output in outputs] == list(range(SIZE))
    finally:
        comm_func.set_comm_ops_inplace(False)


def test_mint_distributed():
    tensor = Tensor(ALL[RANK])
    dist.all_reduce(tensor, "min")
    np.testing.assert_array_equal(tensor.asnumpy(), np.minimum.reduce(ALL))
    gathered = mint.zeros((2 * SIZE * SIZE, 3))
    handle = dist.all_gather_into_tensor(gathered, Tensor(ALL[RANK]), async_op=True)
    handle.wait()
    np.testing.assert_array_equal(gathered.asnumpy(), np.concatenate(ALL))
    part = mint.zeros((2, 3))
    dist.reduce_scatter_tensor(part, Tensor(ALL[RANK]))
    np.testing.assert_allclose(part.asnumpy(), sum(ALL)[2 * RANK:2 * RANK + 2], rtol=1e-5, atol=1e-6)
    exchanged = mint.zeros((2 * SIZE, 3))
    dist.all_to_all_single(exchanged, Tensor(ALL[RANK]))
    np.testing.assert_array_equal(exchanged.asnumpy(),
                                  np.concatenate([part[2 * RANK:2 * RANK + 2] for part in ALL]))
    outputs = [mint.zeros((1,)) for _ in range(SIZE)]
    dist.all_to_all(outputs, [mint.ones((1,)) * RANK for _ in range(SIZE)])
    assert [int(output.asnumpy()[0]) for output in outputs] == list(range(SIZE))


def test_barriers_return():
    assert dist.barrier() is None
    comm_func.barrier()
    functional.barrier()


def test_broadcast_object_list():
    objects = [{"rank": RANK}, RANK]
    dist.broadcast_object_list(objects, src=SIZE - 1)
    assert objects == [{"rank": SIZE - 1}, SIZE - 1]
    group, ranks = pair_group()
    objects = [RANK]
    dist.broadcast_object_list(objects, src=ranks[1], group=group)
    assert objects == [ranks[1]]


def test_init_process_group_joins_the_running_world():
    dist.init_process_group(world_size=SIZE)
    assert dist.get_world_size() == SIZE
    with pytest.raises(ValueError, match="world_size"):
        dist.init_process_group(world_size=SIZE + 1)
