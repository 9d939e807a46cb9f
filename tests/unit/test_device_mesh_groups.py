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
"""Groups: who is asked to make them, when, and under which name; MindSpore's communication is a stand-in here."""
import copy
import pickle
import types

import pytest

from hyper_parallel.core.collectives import groups
from hyper_parallel.core.collectives.groups import Group, get_group, group_name
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh


@pytest.fixture(name="world")
def _world(monkeypatch):
    """A communication world of 8 ranks seen by rank 5; the groups made are listed in `made`."""
    world = types.SimpleNamespace(made=[], rank=5)
    world.GlobalComm = types.SimpleNamespace(INITED=True, WORLD_COMM_GROUP="mccl_world_group")
    world.get_rank, world.get_group_size = (lambda: world.rank), (lambda: 8)
    world.create_group = lambda name, ranks: world.made.append((name, ranks))
    monkeypatch.setitem(groups.sys.modules, "mindspore.communication", world)
    monkeypatch.setattr(groups, "_GROUPS", {})
    return world


@pytest.fixture(name="mesh")
def _mesh():
    return init_device_mesh("npu", (2, 4, 1), mesh_dim_names=("dp", "tp", "cp"))


def test_one_group_per_rank_set_made_when_asked_for(world, mesh):
    """Through whatever mesh the ranks are reached."""
    assert not world.made
    group = mesh.get_group("tp")
    assert (group.name, group.ranks, group.size, group.index) == ("hp_4-5-6-7", (4, 5, 6, 7), 4, 1)
    assert mesh["tp"].get_group() is group is mesh.get_group(1)
    assert mesh["tp", "cp"]._flatten("tp_cp").get_group() is group
    assert mesh.get_group("tp_cp") is group
    assert world.made == [("hp_4-5-6-7", [4, 5, 6, 7])]
    mesh.get_group("dp")
    assert world.made[1:] == [("hp_1-5", [1, 5])]


def test_size_1_and_the_world_make_nothing(world, mesh):
    """A group of one is a marker; all ranks are MindSpore's world group."""
    alone = mesh.get_group("cp")
    assert (alone.size, alone.index, alone.ranks) == (1, 0, (5,))
    everyone = init_device_mesh("npu", (8,), mesh_dim_names=("world",)).get_group()
    assert everyone == everyone.name == "mccl_world_group" and everyone.index == 5
    assert not world.made


def test_current_rank_is_asked_lazily(world, mesh):
    """A mesh made before the world exists follows it."""
    assert mesh["tp"].rank_list == (4, 5, 6, 7) and mesh.get_local_rank("dp") == 1
    world.rank = 2
    assert mesh["tp"].rank_list == (0, 1, 2, 3) and mesh.get_coordinate() == (0, 2, 0)


def test_refusals(world, mesh):
    """Before MindSpore is asked."""
    for ranks, message in (((5, 4), "must be ascending"), ((5, 5), "must be ascending"),
                           ((5, 8), "does not fit a world of 8 ranks"), ((1, 2), "rank 5 is not a member")):
        with pytest.raises(ValueError, match=message):
            get_group(ranks)
    with pytest.raises(ValueError, match="must be ascending"):
        mesh["tp", "dp"]._flatten("crossed").get_group()
    assert not world.made


def test_mindspores_error_names_the_group(world, mesh):
    """And is of the same type."""
    def refuse(name, ranks):
        raise RuntimeError("no luck")
    world.create_group = refuse
    with pytest.raises(RuntimeError, match=r"cannot create the communication group hp_1-5 of ranks \(1, 5\): no luck"):
        mesh.get_group("dp")


def test_without_a_world_only_groups_of_one(monkeypatch, mesh):
    """The message says what to do."""
    monkeypatch.setattr(groups, "world_exists", lambda: False)
    monkeypatch.setattr(groups, "_GROUPS", {})
    assert mesh.get_group("cp").size == 1 and groups.world_size() is None
    with pytest.raises(RuntimeError, match=r"call mindspore.communication.init\(\) first"):
        mesh.get_group("tp")


def test_names_are_short_and_different():
    """Spelled out for few ranks, else the ends, the size and a digest."""
    assert group_name((0, 2)) == "hp_0-2"
    many, others = group_name(tuple(range(64))), group_name(tuple(range(63)) + (64,))
    assert many.startswith("hp_0_to_63_size_64_") and len(many) < 60 and many != others


def test_a_group_is_a_frozen_name():
    """Equal to its name, the same after copying and pickling."""
    group = Group("hp_0-2", (0, 2), 1)
    assert group == "hp_0-2" and isinstance(group, str) and group.index == 1
    assert copy.deepcopy([group])[0] is group is copy.copy(group)
    restored = pickle.loads(pickle.dumps(group))
    assert restored == group and restored.ranks == (0, 2) and restored.index == 1
    assert repr(group) == "Group('hp_0-2', ranks=(0, 2), index=1)"
    with pytest.raises(AttributeError, match="frozen"):
        group.size = 3
