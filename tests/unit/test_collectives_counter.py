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
"""The counter: bytes by the ring formulas, filters, nesting; and the plain collectives on groups of one."""
import json
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from hyper_parallel.core.collectives import counter, functional
from hyper_parallel.core.collectives.counter import Collective, count_collectives, counted
from hyper_parallel.core.collectives.groups import Group, axis_of, name_axis
from hyper_parallel.core.collectives.transitions import Transition

QUAD, ALONE = Group("quad", (0, 1, 2, 3), 2), Group("hp_0", (0,), 0)


def called(kind, dtype=ms.float32, shape=(4, 8), **labels):
    """The record of one collective."""
    with count_collectives() as record:
        counted(lambda x: x, kind, QUAD, **labels)(Tensor(np.ones(shape), dtype))
    only, = record
    return only


@pytest.mark.parametrize("kind, local, full, wire", [
    ("all_reduce", 128, 128, 2 * 3 / 4 * 128),
    ("all_gather", 128, 512, 3 / 4 * 512),
    ("reduce_scatter", 32, 128, 3 / 4 * 128),
    ("all_to_all", 128, 512, 3 / 4 * 128),
    ("broadcast", 128, 128, 3 / 4 * 128),
    ("barrier", 128, 128, 0),
])
def test_ring_bytes(kind, local, full, wire):
    """Per rank, of a float32 tensor of 32 elements on 4 ranks."""
    item = called(kind)
    assert (item.local_bytes, item.full_bytes, item.wire_bytes) == (local, full, wire)
    assert (item.kind, item.group, item.size) == (kind, "quad", 4)
    assert (item.purpose, item.phase) == ("activation", "forward")


@pytest.mark.parametrize("dtype, size", [(ms.float16, 2), (ms.bfloat16, 2), (ms.int64, 8), (ms.bool_, 1)])
def test_bytes_of_the_tensors_own_dtype(dtype, size):
    """Not of the float that carries it."""
    assert called("all_reduce", dtype).full_bytes == 32 * size
    assert called("all_reduce", dtype, shape=()).full_bytes == size


def test_filters_and_totals():
    """By kind, group, purpose and phase."""
    record = counter.CollectiveRecord([
        Collective("all_reduce", "tp", 2, 100, 100), Collective("all_reduce", "tp", 2, 100, 100, phase="backward"),
        Collective("all_gather", "dp", 4, 10, 40), Collective("all_reduce", "tp", 2, 8, 8, "parameter_gradient")])
    assert record.counts() == {"all_reduce": 3, "all_gather": 1} and len(record) == 4
    assert record.counts(purpose="activation", group="tp") == {"all_reduce": 2}
    assert record.count("all_reduce") == 3 and record.count("all_reduce", phase="backward") == 1
    assert record.wire_bytes(group="tp", purpose="activation") == 200
    assert record.wire_bytes() == 200 + 30 + 8
    assert record.select(purpose="parameter_gradient") == record.collectives[3:]
    record.clear()
    assert len(record) == 0 and record.counts() == {}


def test_nested_blocks_and_none():
    """The outer block sees what the inner one sees; outside nobody counts."""
    run = counted(lambda x: x * 2, "all_reduce", QUAD, "parameter_gradient", "backward")
    x = Tensor([1.0])
    with count_collectives() as outer:
        run(x)
        with count_collectives() as inner:
            assert run(x).asnumpy() == [2.0]
        run(x)
    run(x)
    assert (len(outer), len(inner)) == (3, 1) and not counter._COUNTING
    assert inner.collectives[0].purpose == "parameter_gradient"
    with pytest.raises(KeyError), count_collectives():
        raise KeyError
    assert not counter._COUNTING and not counter._RECORDS


def test_axis_and_module_of_a_collective():
    """The axis by which the group was asked for; a view's name does not replace it; paths take in what is below."""
    name_axis(QUAD, "tp")
    name_axis(QUAD, "flat", is_view=True)
    name_axis(Group("other", (0, 1), 0), "view", is_view=True)
    assert (axis_of("quad"), axis_of("other"), axis_of("hp_7-9")) == ("tp", "view", "")
    with count_collectives() as record:
        for where in ("layers.1.attn", "layers.10", ""):
            counted(lambda x: x, "all_reduce", QUAD, where=where)(Tensor(np.ones(2), ms.float32))
    assert [item.axis for item in record] == ["tp"] * 3
    assert record.count(where="layers.1") == record.count(where="layers.1.attn") == 1
    assert record.count(where="layers") == record.count(where="layers", axis="tp") == 2
    assert record.count(where="") == 1 and record.count(axis="dp") == 0


def test_table_and_data():
    """Rows by path, axis, kind, purpose and phase; layers that differ by number are one row of the table."""
    record = counter.CollectiveRecord([
        Collective("all_gather", "g", 4, 10, 40, axis="tp", where=f"model.layers.{layer}.mlp") for layer in (0, 0, 11)])
    record.collectives.append(Collective("all_reduce", "hp_1-2", 2, 1000, 1000, "parameter_gradient", "backward"))
    data = json.loads(json.dumps(record.to_dict()))
    assert data["by_kind"] == {"all_gather": 3, "all_reduce": 1} and data["by_axis"] == {"tp": 3, "hp_1-2": 1}
    assert (data["count"], data["bytes"], data["wire_bytes"]) == (4, 1120, 1090)
    assert [(row["where"], row["count"]) for row in data["rows"]] == [
        ("model.layers.0.mlp", 2), ("model.layers.11.mlp", 1), ("", 1)]
    folded = record.rows(fold=True)
    assert folded[0] == {"where": "model.layers.*.mlp", "axis": "tp", "kind": "all_gather", "purpose": "activation",
                         "phase": "forward", "count": 3, "bytes": 120, "wire_bytes": 90}
    lines = str(record).split("\n")
    assert "4 collectives, 1,090 bytes sent by this rank" in lines[0]
    assert any("model.layers.*.mlp" in line and " 120 " in line for line in lines) and max(map(len, lines)) <= 140
    assert len(record.table(fold=False).rows) == 3


def test_labelled_functions_share_the_backends(monkeypatch):
    """One function of the backend for all modules; each counts under its own path, forward and backward."""
    made = []

    def make_all_reduce(group, op):
        made.append((group, op))
        return lambda x: x
    monkeypatch.setattr(functional, "load_backend", lambda: types.SimpleNamespace(make_all_reduce=make_all_reduce))
    functional.make.cache_clear()
    edges = [Transition("reduce_for_local_math", QUAD, where=where) for where in ("a", "b")]
    with count_collectives() as record:
        for edge in edges:
            grad = ms.grad(lambda x, edge=edge: edge(x).sum())(Tensor([1.0]))
            assert grad.asnumpy() == [1.0]
    functional.make.cache_clear()
    assert [(item.where, item.phase) for item in record] == [
        ("a", "forward"), ("a", "backward"), ("b", "forward"), ("b", "backward")]
    assert len(made) == 2, made


def test_a_compiled_call_is_not_counted():
    """And computes the same."""
    def double(x):
        return x * 2
    run = ms.jit(counted(double, "all_reduce", QUAD))
    with count_collectives() as record:
        assert run(Tensor([1.0])).asnumpy() == [2.0]
    assert len(record) == 0
    assert counter._Note().__infer__()["value"] == 0


def test_groups_of_one_are_the_identity():
    """The tensor itself, uncounted, without a communication world."""
    x = Tensor(np.ones((2, 2), np.float32))
    with count_collectives() as record:
        for result in (functional.all_reduce(x, ALONE), functional.all_reduce(x, ALONE, "max"),
                       functional.all_gather(x, 0, ALONE), functional.reduce_scatter(x, 1, ALONE),
                       functional.all_to_all(x, 0, 1, ALONE), functional.broadcast(x, 0, ALONE)):
            assert result is x
        functional.barrier(ALONE)
    assert len(record) == 0


def test_wrong_arguments():
    """With the valid ones in the message."""
    x = Tensor(np.ones((2, 2), np.float32))
    for call, message in (
            (lambda: functional.all_reduce(x, ALONE, "prod"), "'prod': valid reductions are sum, max, min, avg"),
            (lambda: functional.all_reduce(x.astype(ms.int32), ALONE, "avg"), "avg.* of a tensor of Int32"),
            (lambda: functional.broadcast(x, 1, ALONE), "from member 1 of .*: valid members are 0 to 0"),
            (lambda: functional.all_gather(x, 0, "hp_0"), "all_gather takes a Group, .* got 'hp_0'")):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("target, module", [("Ascend", "backend_hccl"), ("CPU", "backend_mccl")])
def test_backend_follows_the_device_target(monkeypatch, target, module):
    """Not the mesh's device type."""
    monkeypatch.setattr(functional.ms, "get_context", {"device_target": target}.get)
    assert functional.load_backend().__name__.endswith(module)
