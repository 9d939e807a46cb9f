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
"""A tensor on a mesh, in MindSpore's words: device matrix, tensor map, alias names."""
import copy
import math
from typing import Dict, List, Optional, Sequence, Tuple, Union

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_state import State, placements_of, shard_orders
from hyper_parallel.core.dtensor.placement_types import (NamedPlacement, Partial, Placement, Replicate, Shard,
                                                         resolve_placements)

TensorMapEntry = Union[int, Tuple[int, ...]]


class Layout:
    """Placements on a mesh, and the tensor map that follows from them.

    A tensor map has an entry per dim: -1 when the dim is not cut, else the cutting axis, counted from the mesh's last
    axis (MindSpore's convention); a dim cut by several axes has a tuple, the outer axis first. The placements say the
    same: `StridedShard` on an axis that cuts after later axes of the mesh.

    Args:
        mesh (DeviceMesh): the mesh.
        placements: one placement per axis in mesh order, or `{axis name: placement}`.
        ndim (int, optional): the number of dims of the tensor; None means that it is not known yet, and
            `placement_to_tensor_map` will tell.
        shard_order (Sequence[str], optional): axis names, outermost first: which axis is the outer one where several
            cut one dim. Axes that are not named follow in mesh order. None means what the placements say: mesh order,
            but for a `StridedShard`.

    Raises:
        ValueError: not one placement per axis, a placement of a dim that the tensor has not, or a `StridedShard` whose
            factor no order gives.

    Examples:
        >>> mesh = DeviceMesh("npu", (2, 4), ("fsdp", "tp"))
        >>> Layout(mesh, (Shard(0), Shard(-1)), ndim=2).tensor_map
        (1, 0)
        >>> inside = Layout(mesh, (Shard(0), Shard(0)), ndim=2, shard_order=("tp", "fsdp"))
        >>> inside.tensor_map, inside.placements
        (((0, 1), -1), (StridedShard(dim=0, split_factor=4), Shard(dim=0)))
    """

    def __init__(self, mesh: DeviceMesh, placements: Union[Sequence[Placement], NamedPlacement],
                 ndim: Optional[int] = None, *, shard_order: Optional[Sequence[str]] = None):
        self._mesh = mesh
        order = [mesh.axis_index(axis) for axis in shard_order or ()]
        if len(set(order)) < len(order):
            raise ValueError(f"shard_order {tuple(shard_order)} names an axis twice")
        self._order = tuple(order + [axis for axis in range(mesh.ndim) if axis not in order]) if order else None
        self._tensor_map = None
        self.set_placements(placements)
        if ndim is not None:
            self.placement_to_tensor_map(ndim)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh."""
        return self._mesh

    @property
    def placements(self) -> Tuple[Placement, ...]:
        """One placement per axis, in mesh order; dims are not negative once the number of dims is known."""
        return self._placements

    @property
    def alias_placements(self) -> Tuple[Placement, ...]:
        """The same as `placements`: the name under which MindFormers hands them to `DTensor.from_local`."""
        return self._placements

    @property
    def alias_name(self) -> Tuple[str, ...]:
        """The mesh's axis names."""
        return self._mesh.mesh_dim_names

    @property
    def mesh_shape(self) -> Tuple[int, ...]:
        """The mesh's shape, MindSpore's device matrix."""
        return self._mesh.mesh_shape

    @property
    def rank_list(self) -> Tuple[int, ...]:
        """The mesh's ranks in row-major order."""
        return self._mesh.rank_list

    @property
    def tensor_map(self) -> Tuple[TensorMapEntry, ...]:
        """The tensor map.

        Raises:
            ValueError: the number of dims is not known yet.
        """
        if self._tensor_map is None:
            raise ValueError(f"{self!r} has no tensor map yet: call placement_to_tensor_map(ndim)")
        return self._tensor_map

    def set_placements(self, placements: Union[Sequence[Placement], NamedPlacement]) -> None:
        """Replaces the placements; the tensor map follows at once when the number of dims is known.

        Raises:
            ValueError: not one placement per axis, or a placement of a dim that the tensor has not.
        """
        if isinstance(placements, dict):
            placements = resolve_placements(placements, self.alias_name)
        placements = tuple(placements)
        if len(placements) != self._mesh.ndim or not all(isinstance(item, Placement) for item in placements):
            raise ValueError(f"a mesh with axes {', '.join(self.alias_name)} needs {self._mesh.ndim} placements, "
                             f"got {placements}")
        self._placements = placements
        if self._tensor_map is not None:
            self.placement_to_tensor_map(len(self._tensor_map))

    def placement_to_tensor_map(self, ndim: int) -> Tuple[TensorMapEntry, ...]:
        """Tells the number of dims, and returns the tensor map.

        Raises:
            ValueError: a placement cuts a dim that the tensor has not.
        """
        named = zip(self.alias_name, self._placements)
        self._placements = tuple(_normalized(item, ndim, axis) for axis, item in named)
        if self._order is None:
            cuts = shard_orders(self._placements, self.mesh_shape, ndim, self.alias_name)
        else:
            cuts = [[] for _ in range(ndim)]
            for axis in self._order:
                if isinstance(self._placements[axis], Shard):
                    cuts[self._placements[axis].dim].append(axis)
            pending = tuple(item.op if isinstance(item, Partial) else None for item in self._placements)
            self._placements = placements_of(State(tuple(map(tuple, cuts)), pending), self.mesh_shape)
        last = self._mesh.ndim - 1
        self._tensor_map = tuple(-1 if not axes else last - axes[0] if len(axes) == 1
                                 else tuple(last - axis for axis in axes) for axes in cuts)
        return self._tensor_map

    @property
    def shard_orders(self) -> Tuple[Tuple[str, ...], ...]:
        """Per dim, the names of the axes that cut it, the outer axis first."""
        names, ndim = self.alias_name, self._mesh.ndim
        return tuple(tuple(names[axis] for axis in _axes(entry, ndim)) for entry in self.tensor_map)

    @classmethod
    def from_tensor_map(cls, mesh: DeviceMesh, tensor_map: Sequence[TensorMapEntry]) -> "Layout":
        """The layout of a tensor map on a mesh; axes that the map leaves out replicate.

        Raises:
            ValueError: an entry is no axis of the mesh, or an axis cuts twice.

        Examples:
            >>> Layout.from_tensor_map(DeviceMesh("npu", (2, 4), ("fsdp", "tp")), ((0, 1), -1)).shard_orders
            (('tp', 'fsdp'), ())
        """
        cuts, used = [], []
        for dim, entry in enumerate(tensor_map):
            entries = entry if isinstance(entry, (tuple, list)) else (entry,)
            wrong = [axis for axis in entries if axis != -1 and not 0 <= axis < mesh.ndim]
            if wrong:
                raise ValueError(f"tensor_map {tuple(tensor_map)}: dim {dim} names axis {wrong[0]}; on a mesh with "
                                 f"axes {', '.join(mesh.mesh_dim_names)} valid entries are -1 (not cut) and 0 (the "
                                 f"last axis) to {mesh.ndim - 1} (the first)")
            cuts.append(tuple(_axes(entry, mesh.ndim)))
            used += cuts[-1]
        twice = [axis for axis in used if used.count(axis) > 1]
        if twice:
            raise ValueError(f"tensor_map {tuple(tensor_map)}: axis {mesh.mesh_dim_names[twice[0]]!r} cuts twice")
        placements = [Replicate()] * mesh.ndim
        for dim, order in enumerate(cuts):
            for axis in order:
                placements[axis] = Shard(dim)
        return cls(mesh, placements, len(cuts), shard_order=[mesh.mesh_dim_names[axis] for axis in used])

    @classmethod
    def from_mindspore(cls, layout, device_type: str = "npu") -> "Layout":
        """The layout that a `mindspore.parallel.Layout`, called with a tensor map, describes.

        Raises:
            ValueError: the MindSpore layout has no tensor map, or cuts virtually (`interleaved_parallel`).
        """
        if layout._tensor_map is None:
            raise ValueError("a mindspore.parallel.Layout has a tensor map once it is called: layout('dp', 'None')")
        facts = layout.to_dict()
        if facts["interleaved_parallel"]:
            raise ValueError("interleaved_parallel cuts a tensor within one rank; placements cannot say it")
        mesh = DeviceMesh(device_type, facts["device_matrix"], facts["alias_name"], facts["rank_list"])
        return cls.from_tensor_map(mesh, facts["tensor_map"])

    def to_mindspore(self):
        """The same layout as a `mindspore.parallel.Layout`.

        Raises:
            ValueError: a reduction is pending, which a tensor map cannot say.
        """
        from mindspore.parallel import Layout as MindSporeLayout  # pylint: disable=import-outside-toplevel
        pending = [axis for axis, item in zip(self.alias_name, self._placements) if isinstance(item, Partial)]
        if pending:
            placement = self._placements[self.alias_name.index(pending[0])]
            raise ValueError(f"axis {pending[0]!r} is {placement!r}: a tensor map can say Shard and Replicate only")
        words = [order[0] if len(order) == 1 else order or "None" for order in self.shard_orders]
        return MindSporeLayout(self.mesh_shape, self.alias_name, list(self.rank_list))(*words)

    def reset_partial(self) -> None:
        """Declares every pending reduction done: Partial becomes Replicate."""
        self._placements = tuple(Replicate() if isinstance(item, Partial) else item for item in self._placements)

    def get_global_shape(self, local_shape: Sequence[int]) -> Tuple[int, ...]:
        """The shape of the whole tensor of which every rank holds an equal part of `local_shape`."""
        return tuple(size * parts for size, parts in zip(local_shape, self._parts(len(local_shape))))

    def get_local_shape(self, global_shape: Sequence[int]) -> Tuple[int, ...]:
        """The inverse of `get_global_shape`.

        Raises:
            ValueError: a dim does not divide by the ranks that cut it; for uneven parts see
                `placement_state.local_shape`.
        """
        parts = self._parts(len(global_shape))
        return tuple(_divide(size, count, dim) for dim, (size, count) in enumerate(zip(global_shape, parts)))

    def repeat_num(self) -> int:
        """How many ranks hold each element: the product of the sizes of the axes that replicate."""
        sizes = zip(self._mesh.mesh_shape, self._placements)
        return math.prod(size for size, placement in sizes if isinstance(placement, Replicate))

    def to_dict(self) -> Dict[str, object]:
        """The layout as MindSpore's checkpoint tools read it."""
        return {"device_matrix": self.mesh_shape, "tensor_map": self.tensor_map, "interleaved_parallel": False,
                "alias_name": self.alias_name, "rank_list": list(self.rank_list)}

    def _parts(self, ndim):
        if self._tensor_map is None:
            self.placement_to_tensor_map(ndim)
        if len(self._tensor_map) != ndim:
            raise ValueError(f"{self!r} is of a tensor of {len(self._tensor_map)} dims, got a shape of {ndim} dims")
        return [math.prod(self.mesh_shape[axis] for axis in _axes(entry, len(self.mesh_shape)))
                for entry in self._tensor_map]

    def __eq__(self, other):
        if not isinstance(other, Layout):
            return NotImplemented
        return (self._mesh is other._mesh and self._placements == other._placements
                and self._tensor_map == other._tensor_map)

    __hash__ = None

    def __deepcopy__(self, memo):
        return copy.copy(self)

    def __repr__(self):
        placed = ", ".join(f"{axis}: {placement!r}" for axis, placement in zip(self.alias_name, self._placements))
        known = "" if self._tensor_map is None else f"; tensor_map {self._tensor_map}"
        return f"Layout({placed}{known})"


def _normalized(placement: Placement, ndim: int, axis: str) -> Placement:
    try:
        return placement.normalize(ndim) if isinstance(placement, Shard) else placement
    except ValueError as error:
        raise ValueError(f"axis {axis!r}: {error}") from None


def _axes(entry: TensorMapEntry, mesh_ndim: int) -> List[int]:
    """The cutting axes of one entry of a tensor map, as indices from the first axis on, the outer axis first."""
    return [mesh_ndim - 1 - axis for axis in (entry if isinstance(entry, (tuple, list)) else (entry,)) if axis != -1]


def _divide(size: int, parts: int, dim: int) -> int:
    if size % parts:
        raise ValueError(f"dim {dim} of size {size} does not divide by the {parts} ranks that cut it")
    return size // parts


def _infer_slice_area_by_rank(mesh_shape: Sequence[int], tensor_map: Sequence[TensorMapEntry], rank_id: int,
                              full_shape: Sequence[int]) -> List[Tuple[int, int]]:
    """Which part of the whole one rank holds.

    Args:
        mesh_shape: the mesh's shape.
        tensor_map: an entry per dim, as in `Layout`.
        rank_id: the rank's position in the layout's `rank_list`, not its global number.
        full_shape: the shape of the whole tensor.

    Returns:
        `[(begin, end), ...]`, one pair per dim.

    Raises:
        ValueError: a dim does not divide by the ranks that cut it, or the mesh has no such rank.

    Examples:
        >>> _infer_slice_area_by_rank((2, 2), (1, -1), 3, (4, 6))
        [(2, 4), (0, 6)]
    """
    if not 0 <= rank_id < math.prod(mesh_shape):
        raise ValueError(f"rank_id {rank_id} is not a position in a mesh of shape {tuple(mesh_shape)}")
    if len(tensor_map) != len(full_shape):
        raise ValueError(f"tensor_map {tuple(tensor_map)} does not fit a tensor of shape {tuple(full_shape)}")
    coordinate, rest = [], rank_id
    for size in reversed(mesh_shape):
        rest, here = divmod(rest, size)
        coordinate.insert(0, here)
    area = []
    for dim, (entry, size) in enumerate(zip(tensor_map, full_shape)):
        parts, position = 1, 0
        for axis in _axes(entry, len(mesh_shape)):
            parts, position = parts * mesh_shape[axis], position * mesh_shape[axis] + coordinate[axis]
        length = _divide(size, parts, dim)
        area.append((position * length, (position + 1) * length))
    return area
