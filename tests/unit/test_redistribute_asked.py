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
"""States, explanations, meshes with common axes, and operator lists: what can be asked without a process group."""
import math

import pytest

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.mesh_relation import common_mesh, refine_state
from hyper_parallel.core.dtensor.placement_state import State, chunk, local_shape, placements_of, shard_orders, state_of
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.redistribute_explain import explain_redistribute
from hyper_parallel.core.dtensor.redistribute_infer import RedistributionOperatorInfer

R, P, S = Replicate(), Partial(), Shard
GRID = DeviceMesh("npu", (2, 4), ("dp", "tp"))


def test_explained_in_a_table():
    text = str(explain_redistribute(Layout(GRID, (R, S(0))), (R, S(1)), shape=(8, 8)))
    assert text.splitlines() == [
        "(8, 8) x 4 bytes: dp: Replicate(), tp: Shard(dim=0) -> dp: Replicate(), tp: Shard(dim=1)",
        "  step        over  what                     bytes sent  then",
        "  all_to_all  tp    gather dim 0, cut dim 1          48  Replicate(), Shard(dim=1)",
        "1 collectives, 48 bytes sent by each rank"]


def test_explained_as_data():
    told = explain_redistribute(Layout(GRID, (P, S(0))), (S(1), S(0)), shape=(8, 8), itemsize=2)
    assert (told.collectives, told.wire_bytes) == (1, 16)
    assert told.to_dict()["steps"] == [{"kind": "reduce_scatter", "axes": ["dp"], "what": "dim 1, sum",
                                        "wire_bytes": 16, "placements": ["Shard(dim=1)", "Shard(dim=0)"]}]


def test_nothing_to_explain():
    assert "nothing to do" in str(explain_redistribute(Layout(GRID, (R, S(-1))), Layout(GRID, (R, S(1))), shape=(8, 8)))


def test_explaining_needs_a_shape():
    with pytest.raises(ValueError, match="shape"):
        explain_redistribute(Layout(GRID, (R, R)), (R, S(0)))


def test_explained_between_meshes():
    pair = DeviceMesh("npu", (2,), ("pair",), (3, 4))
    up = explain_redistribute(Layout(pair, (S(0),)), Layout(GRID, (R, S(0))), shape=(8, 8))
    assert [step.kind for step in up.steps] == ["all_gather", "broadcast", "slice"]
    assert up.steps[1].wire_bytes == 64 * 4 * 7 / 8 and up.collectives == 2
    down = explain_redistribute(Layout(GRID, (R, S(0))), Layout(pair, (S(0),)), shape=(8, 8))
    assert [step.kind for step in down.steps] == ["all_gather", "drop", "slice"]


def test_a_plan_for_thousands_of_ranks_without_a_world():
    mesh = DeviceMesh("npu", (64, 8, 8), ("dp", "cp", "tp"))
    assert explain_redistribute(Layout(mesh, (R, R, P)), (R, R, S(0)), shape=(4096, 4096)).collectives == 1


@pytest.mark.parametrize("first, second, shape, axes", [
    (GRID, GRID, (2, 4), (((0,), (1,)), ((0,), (1,)))),
    (GRID["tp"], GRID, (2, 4), (((1,),), ((0,), (1,)))),
    (GRID["tp", "dp"], GRID["dp"], (4, 2), (((0,), (1,)), ((1,),))),
    (DeviceMesh("npu", (8,), ("all",)), GRID, (2, 4), (((0, 1),), ((0,), (1,)))),
    (DeviceMesh("npu", (4, 2), ("a", "b")), GRID, (2, 2, 2), (((0, 1), (2,)), ((0,), (1, 2)))),
])
def test_common_mesh(first, second, shape, axes):
    common = common_mesh(first, second)
    assert common.mesh.mesh_shape == shape and (common.first, common.second) == axes


def test_no_common_mesh():
    assert common_mesh(DeviceMesh("npu", (2, 3)), DeviceMesh("npu", (3, 2))) is None
    assert common_mesh(DeviceMesh("npu", (2,)), DeviceMesh("npu", (4,))) is None
    assert common_mesh(DeviceMesh("npu", (4,)), DeviceMesh("npu", (4,), rank_list=(0, 2, 1, 3))) is None


def test_uneven_chunks_are_not_refined():
    line = DeviceMesh("npu", (8,), ("all",))
    common = common_mesh(line, GRID)
    cut = State(((0,),), (None,))
    assert refine_state(cut, (8,), line, common.mesh, common.first) == State(((0, 1),), (None, None))
    assert refine_state(cut, (9,), line, common.mesh, common.first) is None
    assert refine_state(State(((),), ("sum",)), (9,), line, common.mesh, common.first).pending == ("sum", "sum")


@pytest.mark.parametrize("placements, cuts", [
    ((S(0), S(0), S(0)), ((0, 1, 2),)), ((StridedShard(0, 6), S(0), S(0)), ((1, 2, 0),)),
    ((StridedShard(0, 2), S(0), R), ((1, 0),)), ((StridedShard(0, 6), StridedShard(0, 3), S(0)), ((2, 1, 0),)),
])
def test_orders_of_nested_cuts(placements, cuts):
    assert shard_orders(placements, (4, 2, 3), 1) == cuts
    assert placements_of(state_of(placements, (4, 2, 3), 1), (4, 2, 3)) == placements


def test_a_factor_that_no_order_gives():
    with pytest.raises(ValueError, match="axis 'dp': the later axes that cut dim 0 lie outside it with factors 1, 4"):
        shard_orders((StridedShard(0, 2), S(0)), GRID.mesh_shape, 1, GRID.mesh_dim_names)


@pytest.mark.parametrize("size, parts", [(5, 4), (8, 4), (1, 3), (0, 2), (7, 7)])
def test_chunks_cover_the_size_once(size, parts):
    pieces = [chunk(size, parts, index) for index in range(parts)]
    assert [row for start, rows in pieces for row in range(start, start + rows)] == list(range(size))
    assert pieces[0][1] == math.ceil(size / parts) == local_shape((size,), ((0,),), (parts,))[0]


@pytest.mark.parametrize("build, text", [
    (lambda: StridedShard(0, 1), "split_factor of 2 or more"), (lambda: StridedShard(0, True), "split_factor"),
    (lambda: StridedShard("0", 2), "int dim"), (lambda: StridedShard(3, 2).normalize(2), "valid dims are -2 to 1"),
])
def test_strided_shards_are_checked(build, text):
    with pytest.raises(ValueError, match=text):
        build()


def test_strided_shards_are_placements():
    placement = StridedShard(-1, 4)
    assert placement.normalize(3) == StridedShard(2, 4) != S(2)
    assert placement.is_shard() and placement.is_shard(-1) and repr(placement) == "StridedShard(dim=-1, split_factor=4)"


def test_operator_lists():
    inferrer = RedistributionOperatorInfer(dev_mat=(2, 4), in_tensor_map=[0, -1], out_tensor_map=[-1, -1])
    assert inferrer.infer_ops_list(13, range(8, 16)) == [("all_concat", (0, 4, (12, 13, 14, 15)))]
    joint = RedistributionOperatorInfer((2, 2), [(1, 0), -1], [-1, -1])
    assert joint.infer_ops_list(2, (0, 1, 2, 3)) == [("all_concat", (0, 4, (0, 1, 2, 3)))]
    # tp outside, fsdp inside: one after the other
    nested = RedistributionOperatorInfer((2, 2), [(0, 1), -1], [-1, -1])
    assert nested.infer_ops_list(1, (0, 1, 2, 3)) == [("all_concat", (0, 2, (1, 3))), ("all_concat", (0, 2, (0, 1)))]
    assert RedistributionOperatorInfer((4,), [-1, -1], [0, -1]).infer_ops_list(1, range(4)) == [
        ("all_split", (0, 4, (0, 1, 2, 3)))]
    assert RedistributionOperatorInfer((4,), [0, -1], [-1, 0]).infer_ops_list(1, range(4)) == [
        ("all_to_all", (1, 0, 4, (0, 1, 2, 3)))]
    assert RedistributionOperatorInfer((4,), [0, -1], [0, -1]).infer_ops_list(1, range(4)) == []


def test_operator_lists_are_checked():
    with pytest.raises(ValueError, match="same length"):
        RedistributionOperatorInfer((4,), [0], [0, -1])
    with pytest.raises(ValueError, match="rank 7"):
        RedistributionOperatorInfer((4,), [0], [-1]).infer_ops_list(7, range(4))
