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
"""Layouts both ways: placements, tensor maps, MindSpore's own Layout; every order of nested cuts; placements in words."""
import itertools

import mindspore as ms
import pytest

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.layout import Layout, _infer_slice_area_by_rank
from hyper_parallel.core.dtensor.placement_state import local_area, shard_orders
from hyper_parallel.core.dtensor.placement_types import (Partial, Replicate, Shard, StridedShard, format_placement,
                                                         parse_placement, resolve_placements)

R, P, S = Replicate(), Partial(), Shard
MESH = DeviceMesh("npu", (2, 3, 4), ("dp", "cp", "tp"))
MAPS = [entries for entries in itertools.product((-1, 0, 1, 2, (2, 1), (1, 2), (0, 2), (0, 1, 2), (2, 0, 1)), repeat=2)
        if len(flat := [axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,))
                        if axis != -1]) == len(set(flat))]


@pytest.mark.parametrize("tensor_map", MAPS)
def test_tensor_map_both_ways(tensor_map):
    """Through placements and through MindSpore's Layout; every rank's area is the one that the placements say."""
    layout = Layout.from_tensor_map(MESH, tensor_map)
    assert layout.tensor_map == tensor_map
    assert Layout(MESH, layout.placements, 2).tensor_map == tensor_map
    theirs = layout.to_mindspore()
    assert isinstance(theirs, ms.Layout) and theirs.to_dict()["tensor_map"] == tensor_map
    back = Layout.from_mindspore(theirs)
    assert back == layout and back.mesh is MESH
    cuts = shard_orders(layout.placements, MESH.mesh_shape, 2)
    for rank in range(24):
        area = local_area((24, 48), cuts, MESH.mesh_shape, MESH.get_coordinate(rank))
        assert _infer_slice_area_by_rank(MESH.mesh_shape, tensor_map, rank, (24, 48)) == [
            (start, start + rows) for start, rows in area]


@pytest.mark.parametrize("tensor_map, text", [
    ((3, -1), "dim 0 names axis 3; on a mesh with axes dp, cp, tp valid entries are -1"),
    ((0, (1, 0)), "axis 'tp' cuts twice"), (((1, 1), -1), "axis 'cp' cuts twice")])
def test_wrong_tensor_maps(tensor_map, text):
    with pytest.raises(ValueError, match=text):
        Layout.from_tensor_map(MESH, tensor_map)


def test_what_mindspore_cannot_say_or_has_not_said():
    with pytest.raises(ValueError, match="axis 'cp' is Partial"):
        Layout(MESH, (R, P, S(0)), 1).to_mindspore()
    with pytest.raises(ValueError, match="once it is called"):
        Layout.from_mindspore(ms.Layout((2, 2), ("dp", "tp")))
    with pytest.raises(ValueError, match="interleaved_parallel"):
        Layout.from_mindspore(ms.Layout((2, 2), ("dp", "interleaved_parallel"))("dp", "None"))


def test_the_order_is_in_the_placements():
    """What MindFormers hands from one DTensor to the next keeps the order."""
    layout = Layout(MESH, (S(0), R, S(-2)), 2, shard_order=("tp", "dp"))
    assert layout.alias_placements == (StridedShard(0, 4), R, S(0))
    assert layout.shard_orders == (("tp", "dp"), ())
    assert Layout(MESH, layout.alias_placements, 2) == layout
    layout.set_placements((S(1), R, S(1)))
    assert layout.tensor_map == (-1, (0, 2))


def test_an_axis_of_one_rank_keeps_its_place():
    mesh = DeviceMesh("npu", (2, 1), ("fsdp", "tp"))
    assert Layout.from_tensor_map(mesh, ((0, 1), -1)).tensor_map == ((0, 1), -1)


@pytest.mark.parametrize("build, text", [
    (lambda: Layout(MESH, (R, S(2), R), 2), "axis 'cp': Shard\\(dim=2\\) on a tensor of 2 dims"),
    (lambda: Layout(MESH, (R, R, R), shard_order=("tp", "tp")), "names an axis twice"),
    (lambda: Layout(MESH, (StridedShard(0, 3), R, S(0)), 1), "axis 'dp'.*factors 1, 4"),
])
def test_refusals_name_axis_and_dim(build, text):
    with pytest.raises(ValueError, match=text):
        build()


@pytest.mark.parametrize("text, placement", [
    ("shard(0, split_factor=4)", StridedShard(0, 4)), ("StridedShard(dim=-1, split_factor=2)", StridedShard(-1, 2)),
    ("shard(1)", S(1)), ("partial(max)", Partial("max")), ("Replicate()", R)])
def test_words(text, placement):
    assert parse_placement(text) == placement and parse_placement(format_placement(placement)) == placement
    assert parse_placement(repr(placement)) == placement


def test_wrong_words():
    for text in ("shard(0, split_factor=1)", "shard(0, 4)", "strided(0)"):
        with pytest.raises(ValueError, match="split_factor=N"):
            parse_placement(text)


def test_questions_to_a_placement():
    assert (R.is_replicate(), P.is_partial(), S(1).is_shard(1), S(1).is_shard(0), P.is_shard()) == (
        True, True, True, False, False)
    assert parse_placement(S(0)) == S(0) and format_placement(R) == "replicate"
    assert resolve_placements(None, ("dp", "tp")) == [R, R]
    with pytest.raises(ValueError, match="'ep', but the mesh's axes are dp, tp"):
        resolve_placements({"ep": S(0)}, ("dp", "tp"))
    with pytest.raises(ValueError, match="valid reductions are sum, avg, max, min"):
        Partial("prod")
