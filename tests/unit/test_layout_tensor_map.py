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
"""Layouts: tensor maps in MindSpore's convention, shapes, and what checkpoint tools read."""
import copy
import itertools

import mindspore as ms
import numpy as np
import pytest

from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.layout import Layout, _infer_slice_area_by_rank
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard


@pytest.fixture(name="mesh")
def _mesh():
    return init_device_mesh("npu", (2, 2, 4), mesh_dim_names=("replicate", "fsdp", "tp"))


@pytest.mark.parametrize("placements, tensor_map, words", [
    ((Replicate(), Replicate(), Replicate()), (-1, -1), ("None", "None")),
    ((Replicate(), Replicate(), Shard(0)), (0, -1), ("tp", "None")),
    ((Shard(1), Replicate(), Shard(0)), (0, 2), ("tp", "replicate")),
    ((Replicate(), Shard(0), Shard(-1)), (1, 0), ("fsdp", "tp")),
    ((Replicate(), Shard(0), Shard(0)), ((1, 0), -1), (("fsdp", "tp"), "None")),
    ((Shard(1), Shard(1), Shard(1)), (-1, (2, 1, 0)), ("None", ("replicate", "fsdp", "tp"))),
    ((Partial(), Replicate(), Shard(1)), (-1, 0), ("None", "tp")),
])
def test_tensor_map_is_mindspores(mesh, placements, tensor_map, words):
    """The same map as mindspore.Layout makes of the same axes; a dim cut twice has a tuple."""
    layout = Layout(mesh, placements, 2)
    theirs = ms.Layout((2, 2, 4), ("replicate", "fsdp", "tp"), rank_list=list(range(16)))(*words)
    assert layout.tensor_map == tensor_map == tuple(theirs.to_dict()["tensor_map"])
    assert layout.to_dict().keys() == theirs.to_dict().keys()
    ours = layout.to_dict()
    assert all(tuple(ours[key]) == tuple(theirs.to_dict()[key]) for key in ("device_matrix", "alias_name", "rank_list"))
    assert ours["interleaved_parallel"] is False


def test_outer_axis_can_be_chosen(mesh):
    """FSDP inside a dim that TP cut: the TP axis is the outer one, though it is later in the mesh."""
    layout = Layout(mesh, {"fsdp": Shard(0), "tp": Shard(0)}, 2, shard_order=("tp",))
    assert layout.tensor_map == ((0, 1), -1)
    whole = np.arange(16)
    rank = mesh.get_rank_list_along_axis("fsdp", rank=3)[1]
    (begin, end), _ = _infer_slice_area_by_rank((2, 2, 4), layout.tensor_map, rank, (16, 3))
    np.testing.assert_array_equal(whole[begin:end], np.split(np.split(whole, 4)[3], 2)[1])
    with pytest.raises(ValueError, match="no axis 'ep'"):
        Layout(mesh, {}, 2, shard_order=("ep",))


def test_members(mesh):
    """What MindFormers reads."""
    layout = Layout(mesh, (Replicate(), Shard(-2), Shard(-1)), 2)
    assert layout.placements == layout.alias_placements == (Replicate(), Shard(0), Shard(1))
    assert (layout.mesh, layout.mesh_shape, layout.alias_name) == (mesh, (2, 2, 4), ("replicate", "fsdp", "tp"))
    assert layout.rank_list == tuple(range(16))
    assert layout.get_global_shape((3, 5)) == (6, 20) and layout.get_local_shape((6, 20)) == (3, 5)
    assert layout.repeat_num() == 2
    assert Layout(mesh, (Partial(), Replicate(), Shard(0)), 1).repeat_num() == 2


def test_from_any_layout_to_a_replicated_one(mesh):
    """The steps of MindFormers' Muon on a deep copy."""
    layout = Layout(mesh, (Partial(), Shard(0), Shard(1)), 2)
    whole = copy.deepcopy(layout)
    assert whole == layout and whole.mesh is mesh
    whole.set_placements([Replicate(), Partial(), Replicate()])
    assert whole.placement_to_tensor_map(2) == (-1, -1)
    whole.reset_partial()
    assert whole.placements == (Replicate(),) * 3 and whole.repeat_num() == 16
    assert layout.placements == (Partial(), Shard(0), Shard(1)) and layout != whole
    whole.set_placements({"tp": Shard(1)})
    assert whole.tensor_map == (-1, 0)


def test_number_of_dims_may_come_later(mesh):
    """Negative dims wait for it."""
    layout = Layout(mesh, (Replicate(), Replicate(), Shard(-1)))
    with pytest.raises(ValueError, match="has no tensor map yet"):
        layout.tensor_map  # pylint: disable=pointless-statement
    assert layout.get_global_shape((2, 3, 4)) == (2, 3, 16)
    assert layout.placements[2] == Shard(2)
    with pytest.raises(ValueError, match="of a tensor of 3 dims, got a shape of 2 dims"):
        layout.get_global_shape((2, 3))


def test_refusals_and_repr(mesh):
    """Both numbers, and the axes."""
    for placements in ((Shard(0),), (Shard(0), Replicate(), "shard(0)")):
        with pytest.raises(ValueError, match="axes replicate, fsdp, tp needs 3 placements"):
            Layout(mesh, placements, 2)
    with pytest.raises(ValueError, match="valid dims are -2 to 1"):
        Layout(mesh, (Shard(2), Replicate(), Replicate()), 2)
    with pytest.raises(ValueError, match="dim 0 of size 6 does not divide by the 4 ranks"):
        Layout(mesh, {"tp": Shard(0)}, 1).get_local_shape((6,))
    assert repr(Layout(mesh["tp"], (Shard(0),), 1)) == "Layout(tp: Shard(dim=0); tensor_map (0,))"
    assert Layout(mesh["tp"], (Shard(0),), 1) != "Layout"
    with pytest.raises(TypeError):
        hash(Layout(mesh["tp"], (Shard(0),), 1))


@pytest.mark.parametrize("tensor_map", [(-1, -1), (2, 0), ((1, 0), -1), ((0, 1), 2), (-1, (2, 1, 0)), ([1, 0], 2)])
def test_slices_cover_the_whole_evenly(tensor_map):
    """Every element is held by as many ranks as there are copies, outer axes vary slowest."""
    mesh_shape, full = (2, 2, 4), (16, 32)
    held = np.zeros(full, int)
    for rank in range(16):
        area = _infer_slice_area_by_rank(mesh_shape, tensor_map, rank, full)
        held[tuple(slice(begin, end) for begin, end in area)] += 1
    cuts = [axis for entry in tensor_map for axis in (entry if isinstance(entry, (tuple, list)) else (entry,))]
    copies = np.prod([size for axis, size in enumerate(mesh_shape) if 2 - axis not in cuts], dtype=int)
    assert (held == copies).all()


def test_slice_of_one_rank():
    """Row-major position, axes counted from the last."""
    mesh_shape = (2, 3)
    for outer, inner in itertools.product(range(2), range(3)):
        rank = 3 * outer + inner
        assert _infer_slice_area_by_rank(mesh_shape, (1, 0), rank, (4, 6)) == [(2 * outer, 2 * outer + 2),
                                                                              (2 * inner, 2 * inner + 2)]
        assert _infer_slice_area_by_rank(mesh_shape, ((0, 1),), rank, (6,)) == [(2 * inner + outer,
                                                                                2 * inner + outer + 1)]


@pytest.mark.parametrize("arguments, message", [
    (((2,), (0,), 2, (4,)), "rank_id 2 is not a position"),
    (((2,), (0,), 0, (4, 4)), "does not fit a tensor of shape"),
    (((2,), (0,), 0, (3,)), "dim 0 of size 3 does not divide by the 2 ranks"),
])
def test_slice_refusals(arguments, message):
    """What cannot be a slice."""
    with pytest.raises(ValueError, match=message):
        _infer_slice_area_by_rank(*arguments)
