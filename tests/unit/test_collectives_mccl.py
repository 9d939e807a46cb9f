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
"""The CPU backend on a stand-in of AllReduce: every collective is a sum of floats, in any number of ranks."""
import functools

import mindspore as ms
import numpy as np
import pytest
from collectives_fabric import Fabric, as_tensors

from hyper_parallel.core.collectives import backend_mccl, functional
from hyper_parallel.core.collectives.transitions import EDGES, Transition


def add_up(inputs):
    """An all-reduce; sum() would start with 0, which turns -0.0 into 0.0."""
    return as_tensors([functools.reduce(np.add, [x.asnumpy() for x in inputs])] * len(inputs))


@pytest.fixture(name="fabric", params=(2, 3))
def _fabric(request, monkeypatch):
    fabric = Fabric(request.param)

    class _Sum:
        """Takes the place of the AllReduce primitive."""

        def __init__(self, kind, group):
            assert group in fabric.groups and kind

        def __call__(self, x):
            assert x.dtype in (ms.float32, ms.float16)
            return fabric.meet(add_up, x)

    def gather_any(x, group, dim):
        def put_together(inputs):
            return as_tensors([np.concatenate([part.asnumpy() for part in inputs], dim)] * group.size)
        return fabric.meet(put_together, x)

    monkeypatch.setattr(backend_mccl, "_AllReduce", _Sum)
    monkeypatch.setattr(backend_mccl, "_gather_any", gather_any)
    functional.make.cache_clear()
    yield fabric
    functional.make.cache_clear()


def arrays_of(fabric, dtype=np.float32):
    """One array for each rank."""
    return [np.random.default_rng(rank).integers(0, 9, (6, 12)).astype(dtype) for rank in range(len(fabric.groups))]


def check(results, wanted):
    """All ranks, bit for bit."""
    for result, want in zip(results, wanted):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("dtype", (np.float32, np.float16, np.int32, np.float64, np.int8))
def test_every_collective(fabric, dtype):
    """Against numpy, on every rank."""
    arrays, size = arrays_of(fabric, dtype), len(fabric.groups)
    for op, reduction in (("max", np.max), ("min", np.min)):
        check(fabric.run(lambda group: backend_mccl.make_all_reduce(group, op), arrays), [reduction(arrays, 0)] * size)
    for dim in (0, 1, -1):
        check(fabric.run(lambda group: backend_mccl.make_all_gather(group, dim), arrays),
              [np.concatenate(arrays, dim)] * size)
    for source in range(size):
        check(fabric.run(lambda group: backend_mccl.make_broadcast(group, source), arrays), [arrays[source]] * size)
    for split, concat in ((0, 1), (-1, -2), (1, 1), (-2, -2)):
        wanted = [np.concatenate([np.split(array, size, split)[i] for array in arrays], concat) for i in range(size)]
        check(fabric.run(lambda group: backend_mccl.make_all_to_all(group, split, concat), arrays), wanted)


def test_sums(fabric):
    """Floats by the primitive, float64 by gathering."""
    for dtype in (np.float32, np.float16, np.float64):
        arrays = arrays_of(fabric, dtype)
        check(fabric.run(lambda group: backend_mccl.make_all_reduce(group, "sum"), arrays), [sum(arrays)] * len(arrays))
    arrays = arrays_of(fabric)
    check(fabric.run(lambda group: backend_mccl.make_reduce_scatter(group, 1), arrays),
          np.split(sum(arrays), len(arrays), 1))
    check(fabric.run(lambda group: functional.make("all_reduce", group, "avg"), arrays),
          [(sum(arrays) / len(arrays)).astype(np.float32)] * len(arrays))


def test_integer_sums_by_mint(fabric, monkeypatch):
    """In the integers' own arithmetic; small ones and booleans through int32."""
    def all_reduce(x, group):
        assert x.dtype == ms.int32 and group.startswith("fabric")
        x.assign_value(fabric.meet(add_up, x))
    monkeypatch.setattr(ms.mint.distributed, "all_reduce", all_reduce)
    for dtype in (np.int32, np.int8, np.bool_):
        arrays = arrays_of(fabric, dtype)
        wanted = sum(array.astype(np.int64) for array in arrays).astype(dtype)
        check(fabric.run(lambda group: backend_mccl.make_all_reduce(group, "sum"), arrays), [wanted] * len(arrays))


def test_signed_zeros_survive(fabric):
    """A rank with nothing to say adds -0.0."""
    arrays = [np.array([-0.0, 0.0, np.inf, np.nan], np.float32)] * len(fabric.groups)
    gathered = fabric.run(lambda group: backend_mccl.make_all_gather(group, 0), arrays)[0]
    assert gathered.tobytes() == np.concatenate(arrays).tobytes()


@pytest.mark.parametrize("kind", [kind for kind in EDGES if kind != "all_to_all"])
def test_edges_on_three_ranks(fabric, kind):
    """Forward of every edge in PyNative, on a group that no power of two divides."""
    arrays, size = arrays_of(fabric), len(fabric.groups)
    along = {"all_gather", "reduce_scatter", "slice", "zero_pad"} & set(EDGES[kind])
    steps = {"identity": arrays, "all_reduce": [sum(arrays)] * size, "all_gather": [np.concatenate(arrays)] * size,
             "reduce_scatter": np.split(sum(arrays), size),
             "slice": [np.split(array, size)[i] for i, array in enumerate(arrays)],
             "zero_pad": [np.concatenate([array * (i == j) for j in range(size)]) for i, array in enumerate(arrays)]}
    forward = EDGES[kind].forward
    if forward in ("identity", "slice", "zero_pad"):
        edges = [Transition(kind, group, 0 if along else None) for group in fabric.groups]
        check([edge(ms.Tensor(array)).asnumpy() for edge, array in zip(edges, arrays)], steps[forward])
    else:
        check(fabric.run(lambda group: Transition(kind, group, 0 if along else None), arrays), steps[forward])


def test_a_graph_is_told_what_it_cannot_do(fabric):
    """The refusal of the compiler names the collective and the dtypes that work."""
    refuse = backend_mccl._PyNativeOnly("all_gather", fabric.groups[0], None).__infer__
    with pytest.raises(NotImplementedError, match="all_gather over group fabric0 of a tensor of Int32: .* float16 and"):
        refuse({"dtype": "Int32"})
