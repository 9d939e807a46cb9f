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
"""The Ascend backend on stand-ins of MindSpore's operators: what is moved before and after them."""
import numpy as np
import pytest
from collectives_fabric import Fabric, as_tensors
from mindspore import Tensor

from hyper_parallel.core.collectives import backend_hccl

SIZE = 4


class _Operator:
    """A primitive on the fabric."""

    fabric = None

    def __call__(self, x, *more):
        return self.fabric.meet(self.mathematics, (x, *more))

    def mathematics(self, inputs):
        """Outputs of all members from the inputs of all members."""
        raise NotImplementedError


class AllReduce(_Operator):
    """ops.AllReduce(op, group)."""

    def __init__(self, op, group):
        assert group.startswith("fabric")
        self.op = {"sum": np.sum, "max": np.max, "min": np.min}[op]

    def mathematics(self, inputs):
        return as_tensors([self.op([x.asnumpy() for x, in inputs], axis=0)] * SIZE)


class AllGather(_Operator):
    """ops.AllGather(group)."""

    def __init__(self, group):
        assert group.startswith("fabric")

    def mathematics(self, inputs):
        return as_tensors([np.concatenate([x.asnumpy() for x, in inputs])] * SIZE)


class ReduceScatter(_Operator):
    """ops.ReduceScatter(op, group)."""

    def __init__(self, op, group):
        assert op == "sum" and group.startswith("fabric")

    def mathematics(self, inputs):
        return as_tensors(np.split(sum(x.asnumpy() for x, in inputs), SIZE))


class AlltoAllV(_Operator):
    """ops.AlltoAllV(group), with equal counts."""

    def __init__(self, group):
        assert group.startswith("fabric")

    def mathematics(self, inputs):
        for x, send, receive in inputs:
            assert x.ndim == 1 and send == receive == (x.size // SIZE,) * SIZE
        return as_tensors([np.concatenate([np.split(x.asnumpy(), SIZE)[i] for x, _, _ in inputs]) for i in range(SIZE)])


class Broadcast(_Operator):
    """ops.Broadcast(root_rank, group); takes and gives tuples."""

    def __init__(self, root_rank, group):
        assert group.startswith("fabric")
        self.root = root_rank

    def mathematics(self, inputs):
        return [(inputs[self.root][0][0],)] * SIZE


@pytest.fixture(name="fabric")
def _fabric(monkeypatch):
    fabric = Fabric(SIZE)
    for operator in (AllReduce, AllGather, ReduceScatter, AlltoAllV, Broadcast):
        monkeypatch.setattr(operator, "fabric", fabric)
        monkeypatch.setattr(backend_hccl.ops, operator.__name__, operator)
    return fabric


@pytest.fixture(name="arrays")
def _arrays():
    return [np.random.default_rng(rank).integers(0, 9, (4, 8, 4)).astype(np.float32) for rank in range(SIZE)]


def check(results, wanted):
    """All ranks."""
    assert len(results) == len(wanted) == SIZE
    for result, want in zip(results, wanted):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("op, reduction", [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_all_reduce(fabric, arrays, op, reduction):
    """Directly; what HCCL has no type for goes as int32."""
    check(fabric.run(lambda group: backend_hccl.make_all_reduce(group, op), arrays), [reduction(arrays, axis=0)] * SIZE)
    small = [array.astype(np.uint8) for array in arrays]
    results = fabric.run(lambda group: backend_hccl.make_all_reduce(group, op), small)
    check(results, [reduction(arrays, axis=0)] * SIZE)
    assert results[0].dtype == np.uint8


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_gather_and_scatter_along_any_dim(fabric, arrays, dim):
    """HCCL knows dim 0 only."""
    check(fabric.run(lambda group: backend_hccl.make_all_gather(group, dim), arrays),
          [np.concatenate(arrays, dim)] * SIZE)
    check(fabric.run(lambda group: backend_hccl.make_reduce_scatter(group, dim), arrays),
          np.split(sum(arrays), SIZE, dim))


@pytest.mark.parametrize("split_dim, concat_dim", [(0, 1), (1, 0), (2, 1), (-1, -2), (0, 0), (1, 1)])
def test_all_to_all(fabric, arrays, split_dim, concat_dim):
    """Pieces travel flat."""
    wanted = [np.concatenate([np.split(array, SIZE, split_dim)[i] for array in arrays], concat_dim)
              for i in range(SIZE)]
    check(fabric.run(lambda group: backend_hccl.make_all_to_all(group, split_dim, concat_dim), arrays), wanted)


def test_broadcast(fabric, arrays):
    """By position in the group."""
    check(fabric.run(lambda group: backend_hccl.make_broadcast(group, 2), arrays), [arrays[2]] * SIZE)


def test_errors_are_named_and_the_compiler_sees_the_operator(fabric, monkeypatch):
    """The operator keeps its name; its error says which collective it was."""
    reduce = backend_hccl._named(AllReduce("sum", "fabric"), "all_reduce", fabric.groups[1])
    assert type(reduce).substitute_name == "AllReduce" and isinstance(reduce, AllReduce)

    def fail(*_):
        raise RuntimeError("time-out")
    monkeypatch.setattr(fabric, "meet", fail)
    with pytest.raises(RuntimeError, match=r"all_reduce over group fabric1 of ranks \(0, .*\), on rank 1: time-out"):
        reduce(Tensor([1.0]))
