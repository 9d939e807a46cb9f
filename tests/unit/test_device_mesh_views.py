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
"""Sub-meshes, flattened and unflattened meshes, and how MindFormers uses them."""
import pytest

from hyper_parallel.core.dtensor.device_mesh import init_device_mesh


@pytest.fixture(name="mesh")
def _mesh():
    return init_device_mesh("npu", (2, 3, 4), mesh_dim_names=("pp", "dp", "tp"))


def test_one_axis(mesh):
    """The sub-mesh stands for all its copies; its ranks are those of the copy with the current rank."""
    tp = mesh["tp"]
    assert (tp.mesh_shape, tp.mesh_dim_names, tp.rank_list) == ((4,), ("tp",), (0, 1, 2, 3))
    assert tp.get_rank_list_along_axis("tp", rank=18) == [16, 17, 18, 19]
    assert tp.get_coordinate(18) == (2,)
    assert tp.root_mesh is mesh and mesh["tp"] is tp and tp["tp"] is tp


def test_several_axes_in_any_order(mesh):
    """All axes in order is the mesh itself."""
    assert mesh["pp", "tp"].rank_list == (0, 1, 2, 3, 12, 13, 14, 15)
    assert mesh["tp", "pp"].rank_list == (0, 12, 1, 13, 2, 14, 3, 15)
    assert mesh["pp", "dp", "tp"] is mesh
    assert mesh["pp", "tp"]["tp"] is mesh["tp"]


@pytest.mark.parametrize("names", [(), ("dp", "dp"), 0, ("dp", 1)])
def test_other_indices_are_refused(mesh, names):
    """Names only, each once."""
    with pytest.raises(ValueError, match="indexed by axis names, each once, got .*: valid axes are pp, dp, tp"):
        mesh[names]  # pylint: disable=pointless-statement


def test_flatten_is_known_to_the_root(mesh):
    """By name, from the root and from every mesh cut out of it; the latest counts."""
    flat = mesh["dp", "tp"]._flatten("stage")
    assert flat.rank_list == tuple(range(12)) and flat.mesh_dim_names == ("stage",)
    assert mesh["stage"] is flat and mesh["pp"]["stage"] is flat and flat.root_mesh is mesh
    other = mesh["pp", "dp"]._flatten("stage")
    assert mesh["stage"] is other is not flat
    with pytest.raises(ValueError, match="the root mesh has an axis of that name"):
        mesh["dp", "tp"]._flatten("pp")


def test_unflatten_keeps_ranks_and_root():
    """An axis in the middle, by name or index."""
    world = init_device_mesh("npu", (3, 8), mesh_dim_names=("pp", "rest"))
    split = world._unflatten("rest", (2, 4), ("dp", "tp"))
    assert (split.mesh_shape, split.mesh_dim_names) == ((3, 2, 4), ("pp", "dp", "tp"))
    assert split.rank_list == world.rank_list and split.root_mesh is world
    assert world._unflatten(-1, (2, 4), ("dp", "tp")) is split
    for sizes in ((2, 3), (), (0, 8)):
        with pytest.raises(ValueError, match="axis 'rest' of size 8 cannot be split into"):
            world._unflatten(1, sizes, ("dp", "tp"))
    with pytest.raises(ValueError, match="backend_override names axis 'cp': the new axes are dp, tp"):
        world._unflatten(1, (2, 4), ("dp", "tp"), backend_override={"cp": "fake"})


def test_the_meshes_of_mindformers():
    """Three views of one world, whose equal axes are one object, and the flattened loss mesh."""
    world = init_device_mesh("npu", (8,), mesh_dim_names=("world",))
    fake = {"cp": "fake", "batch": "fake"}
    data = world._unflatten(0, (2, 2, 1, 2), ("pp", "batch", "cp", "tp"), backend_override=fake)
    dense = world._unflatten(0, (2, 1, 2, 2), ("pp", "dp_replicate", "fsdp", "tp"))
    sparse = world._unflatten(0, (2, 1, 1, 4), ("pp", "dp_replicate", "efsdp", "ep"))
    loss = data["batch", "cp"]._flatten("loss_mesh")
    assert data["tp"] is dense["tp"] and data["pp"] is dense["pp"] is sparse["pp"]
    assert (data["pp"].size(), sparse["ep"].size(), loss.size()) == (2, 4, 2)
    assert world["loss_mesh"] is loss and loss.get_rank_list_along_axis(0, rank=5) == [5, 7]
    assert sparse["ep"].get_rank_list_along_axis("ep", rank=6) == [4, 5, 6, 7]
    joint = dense["dp_replicate", "fsdp", "tp"]
    assert joint.rank_list == (0, 1, 2, 3) and joint.root_mesh is world
    assert joint.size("dp_replicate") == 1


def test_thousands_of_ranks():
    """A mesh of 16,384 ranks and its sub-meshes, in one process."""
    mesh = init_device_mesh("npu", (16, 128, 8), mesh_dim_names=("pp", "dp", "tp"))
    assert mesh["tp"].get_rank_list_along_axis("tp", rank=16383) == list(range(16376, 16384))
    assert mesh["pp", "tp"].get_coordinate(16383) == (15, 7)
