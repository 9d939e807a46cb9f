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
"""The mesh by itself, in a process without a process group."""
import copy
import pickle

import pytest

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh, init_device_mesh


@pytest.fixture(name="mesh")
def _mesh():
    return init_device_mesh("npu", (2, 3, 4), mesh_dim_names=("pp", "dp", "tp"))


def test_members(mesh):
    """Shape, names, sizes by name and index, ranks in row-major order."""
    assert (mesh.ndim, mesh.mesh_shape, mesh.mesh_dim_names) == (3, (2, 3, 4), ("pp", "dp", "tp"))
    assert (mesh.size(), mesh.size("dp"), mesh.size(0), mesh.size(-1)) == (24, 3, 2, 4)
    assert mesh.rank_list == tuple(range(24))
    assert mesh.device_type == "npu" and mesh.root_mesh is mesh


@pytest.mark.parametrize("rank, coordinate", [(0, (0, 0, 0)), (7, (0, 1, 3)), (23, (1, 2, 3)), (24, None)])
def test_coordinates_of_any_rank(mesh, rank, coordinate):
    """None for a rank outside."""
    assert mesh.get_coordinate(rank) == coordinate
    assert mesh.get_coordinate(rank=rank) == coordinate


def test_rank_lists_along_an_axis(mesh):
    """All ranks that differ in one coordinate only."""
    assert mesh.get_rank_list_along_axis("tp", rank=7) == [4, 5, 6, 7]
    assert mesh.get_rank_list_along_axis("dp", rank=7) == [3, 7, 11]
    assert mesh.get_rank_list_along_axis(0, rank=7) == [7, 19]


def test_without_a_world_the_process_is_rank_0(mesh):
    """A single process can plan."""
    assert mesh.get_coordinate() == (0, 0, 0)
    assert mesh.get_local_rank("tp") == 0
    assert mesh.get_rank_list_along_axis("pp") == [0, 12]
    elsewhere = init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"), rank_list=(4, 5, 6, 7))
    assert elsewhere.get_coordinate() is None and elsewhere.get_coordinate(6) == (1, 0)
    assert elsewhere.rank_list == (4, 5, 6, 7)
    for ask in (lambda: elsewhere.get_local_rank("tp"), lambda: elsewhere["tp"].rank_list):
        with pytest.raises(ValueError, match="rank 0, the current one without a communication world, is not in"):
            ask()


def test_given_ranks():
    """Any order of any ranks."""
    mesh = init_device_mesh("cpu", [2, 2], mesh_dim_names=["dp", "tp"], rank_list=[5, 3, 8, 1])
    assert mesh.rank_list == (5, 3, 8, 1)
    assert mesh.get_coordinate(8) == (1, 0)
    assert mesh.get_rank_list_along_axis("dp", rank=1) == [3, 1]


def test_equal_meshes_are_one_object(mesh):
    """Identity is equality: also for copies and pickles, and for dictionary keys."""
    assert DeviceMesh("npu", (2, 3, 4), ("pp", "dp", "tp"), range(24)) is mesh
    assert copy.copy(mesh) is mesh and copy.deepcopy({"mesh": mesh})["mesh"] is mesh
    assert pickle.loads(pickle.dumps(mesh["dp"])) is mesh["dp"]
    assert {mesh: 1}[init_device_mesh("npu", (2, 3, 4), mesh_dim_names=("pp", "dp", "tp"))] == 1
    others = (init_device_mesh("npu", (2, 3, 4)), init_device_mesh("cpu", (2, 3, 4), mesh_dim_names=("pp", "dp", "tp")),
              init_device_mesh("npu", (2, 3, 4), mesh_dim_names=("pp", "dp", "cp")))
    assert all(other != mesh for other in others)


def test_axes_without_names_get_some():
    """An int is a mesh of one axis."""
    assert init_device_mesh("npu", (2, 3)).mesh_dim_names == ("axis0", "axis1")
    assert init_device_mesh("npu", 3).mesh_shape == (3,)


def test_repr_shows_axes_and_ranks():
    """Short for large meshes."""
    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert repr(mesh) == "DeviceMesh(dp=2, tp=2; npu ranks 0,1,2,3)"
    assert repr(mesh["dp"]) == "DeviceMesh(dp=2; npu ranks 0,2 | 1,3)"
    large = init_device_mesh("npu", (64, 64), mesh_dim_names=("dp", "tp"))
    assert repr(large) == "DeviceMesh(dp=64, tp=64; npu ranks 0,1,2,3,4,5,6,7,...,4094,4095)"
    assert len(repr(large["tp"])) < 200


@pytest.mark.parametrize("shape, names, ranks, message", [
    ((), None, None, "at least one axis"),
    ((2, 0), None, None, "at least one rank"),
    ((2, 2), ("a",), None, r"needs 2 different axis names, got \('a',\)"),
    ((2, 2), ("a", "a"), None, "needs 2 different axis names"),
    ((2, 2), ("a", ""), None, "non-empty strings"),
    ((2, 2), ("a", 1), None, "non-empty strings"),
    ((2, 2), ("a", "b"), (0, 1, 2), r"needs 4 different ranks, got \(0, 1, 2\)"),
    ((2, 2), ("a", "b"), (0, 1, 2, 2), "needs 4 different ranks"),
    ((2, 1), ("a", "b"), (0, -1), "needs 2 different ranks"),
])
def test_what_does_not_fit_is_refused(shape, names, ranks, message):
    """Both numbers in the message."""
    with pytest.raises(ValueError, match=message):
        init_device_mesh("npu", shape, mesh_dim_names=names, rank_list=ranks)


@pytest.mark.parametrize("ask", [lambda mesh: mesh.size("ep"), lambda mesh: mesh.size(3), lambda mesh: mesh.size(-4),
                                 lambda mesh: mesh.size(True), lambda mesh: mesh["ep"], lambda mesh: mesh["dp", "ep"],
                                 lambda mesh: mesh.get_rank_list_along_axis("ep"), lambda mesh: mesh.get_group("ep"),
                                 lambda mesh: mesh.get_local_rank("ep")])
def test_unknown_axis_names_the_valid_ones(mesh, ask):
    """Everywhere the same message."""
    with pytest.raises(ValueError, match="has no axis .*: valid axes are pp, dp, tp or -3 to 2"):
        ask(mesh)


def test_which_axis_has_to_be_said(mesh):
    """A mesh of one axis needs no name."""
    for ask in (mesh.get_group, mesh.get_local_rank):
        with pytest.raises(ValueError, match="3 axes: name one of pp, dp, tp"):
            ask()
    assert mesh["tp"].get_local_rank() == 0
    with pytest.raises(ValueError, match="rank 24 is not in"):
        mesh.get_rank_list_along_axis("tp", rank=24)
