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
"""Communication groups: one per rank set, created when first asked for, and only by its members.

Creating a group involves nobody but its members (MindSpore refuses it to others), and returns before the others have
joined; so ranks may create their groups at different times and in different orders.
"""
import hashlib
import sys
from typing import Dict, Optional, Sequence, Tuple


class Group(str):
    """A communication group as this rank sees it. It *is* the group's name, so MindSpore's own functions take it.

    A group of size 1 has no counterpart in MindSpore; every collective of this package is the identity on it. It is
    never None, because None means the whole world to MindSpore.

    Attributes:
        name (str): the name under which MindSpore knows the group.
        ranks (tuple[int]): the members' global ranks, ascending.
        size (int): the number of members.
        index (int): the position of this rank in `ranks`.

    Examples:
        >>> Group("hp_4-5", (4, 5), 1)
        Group('hp_4-5', ranks=(4, 5), index=1)
    """

    __slots__ = ("name", "ranks", "size", "index")

    def __new__(cls, name: str, ranks: Sequence[int], index: int):
        self = super().__new__(cls, name)
        for key, value in (("name", str(name)), ("ranks", tuple(ranks)), ("size", len(ranks)), ("index", index)):
            object.__setattr__(self, key, value)
        assert 0 <= index < self.size
        return self

    def __setattr__(self, key, value):
        raise AttributeError(f"a Group is frozen: {key} cannot be set")

    def __reduce__(self):
        return Group, (self.name, self.ranks, self.index)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        return f"Group({self.name!r}, ranks={self.ranks}, index={self.index})"


_GROUPS: Dict[Tuple[int, ...], Group] = {}
_AXES: Dict[str, str] = {}
_SPELLED_OUT = 8


def world_exists() -> bool:
    """True once `mindspore.communication.init()` has run in this process."""
    communication = sys.modules.get("mindspore.communication")
    return communication is not None and communication.GlobalComm.INITED


def current_rank() -> int:
    """This process's global rank; a process without a communication world counts as rank 0."""
    return sys.modules["mindspore.communication"].get_rank() if world_exists() else 0


def world_size() -> Optional[int]:
    """The number of ranks of the communication world, None without one."""
    return sys.modules["mindspore.communication"].get_group_size() if world_exists() else None


def group_name(ranks: Sequence[int]) -> str:
    """The name of the group of these ranks: a function of the ranks alone, so that members agree without talking.

    Examples:
        >>> group_name((0, 2))
        'hp_0-2'
    """
    spelled = "-".join(map(str, ranks))
    if len(ranks) <= _SPELLED_OUT:
        return f"hp_{spelled}"
    digest = hashlib.sha256(spelled.encode()).hexdigest()[:16]
    return f"hp_{ranks[0]}_to_{ranks[-1]}_size_{len(ranks)}_{digest}"


def get_group(ranks: Sequence[int]) -> Group:
    """The group of these ranks; created by the first call that needs it, shared by all later ones.

    Args:
        ranks: ascending global ranks, this rank among them. One rank makes no MindSpore group; all ranks of the world
            give the world group.

    Raises:
        ValueError: the ranks are not ascending, not all in the world, or this rank is not among them.
        RuntimeError: there is no communication world yet, or MindSpore cannot create the group.
    """
    ranks = tuple(ranks)
    found = _GROUPS.get(ranks)
    if found is not None:
        return found
    if any(left >= right for left, right in zip(ranks, ranks[1:])):
        raise ValueError(f"the ranks of a communication group must be ascending, got {ranks}: its collectives order "
                         f"their pieces by rank")
    if len(ranks) == 1:
        _GROUPS[ranks] = Group(group_name(ranks), ranks, 0)
        return _GROUPS[ranks]
    if not world_exists():
        raise RuntimeError(f"a group of ranks {ranks} needs a communication world: call "
                           f"mindspore.communication.init() first, in a job started by msrun")
    if ranks[-1] >= world_size():
        raise ValueError(f"a group of ranks {ranks} does not fit a world of {world_size()} ranks")
    if current_rank() not in ranks:
        raise ValueError(f"rank {current_rank()} is not a member of the group of ranks {ranks}")
    _GROUPS[ranks] = Group(_create(ranks), ranks, ranks.index(current_rank()))
    return _GROUPS[ranks]


def name_axis(group: Group, axis: str, is_view: bool = False) -> Group:
    """Remembers the mesh axis by which a group was asked for; several axes may have the same ranks, the latest counts.

    Args:
        group: the group.
        axis: the axis' name.
        is_view: a flattened or split axis, whose name does not replace one that is there.
    """
    if is_view:
        _AXES.setdefault(group.name, axis)
    else:
        _AXES[group.name] = axis
    return group


def axis_of(name: str) -> str:
    """The mesh axis by which the group of this name was asked for, "" when it was made of ranks.

    Examples:
        >>> axis_of(mesh.get_group("tp").name)
        'tp'
    """
    return _AXES.get(name, "")


def _create(ranks):
    communication = sys.modules["mindspore.communication"]
    if len(ranks) == world_size():
        return communication.GlobalComm.WORLD_COMM_GROUP
    name = group_name(ranks)
    try:
        communication.create_group(name, list(ranks))
    except RuntimeError as error:
        raise RuntimeError(f"cannot create the communication group {name} of ranks {ranks}: {error}") from error
    return name
