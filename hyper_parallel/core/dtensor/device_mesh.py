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
"""The device mesh: ranks arranged along named axes.

A mesh has *axes* (`dp`, `tp`, ...), a tensor has *dims*. Everything but communication works in a process that has no
process group: shapes, names, rank lists and the coordinates of any rank.
"""
import itertools
import math
from typing import Dict, List, Optional, Sequence, Tuple, Union

from hyper_parallel.core.collectives.groups import Group, current_rank, get_group, name_axis, world_exists

Axis = Union[int, str]


class DeviceMesh:
    """Ranks on named axes; a sub-mesh is the same object on every rank and stands for all its parallel copies.

    Equal meshes are one object, so `is`, `==` and dictionary keys agree. A sub-mesh such as `mesh["tp"]` covers the
    ranks once per position on the axes that it leaves out; `rank_list` is the copy that holds the current rank.
    Groups are created lazily, one per set of ranks. A process without a communication world counts as rank 0.

    Args:
        device_type (str): "npu", "Ascend" or "cpu"; kept, but the collectives follow MindSpore's device target.
        mesh_shape (tuple[int]): ranks along each axis.
        mesh_dim_names (tuple[str], optional): the axes' names; None names them axis0, axis1, ...
        rank_list (tuple[int], optional): the ranks in row-major order; None means 0, 1, ...

    Raises:
        ValueError: shape, names and ranks do not fit each other.

    Examples:
        >>> mesh = DeviceMesh("npu", (2, 4), mesh_dim_names=("dp", "tp"))
        >>> mesh.get_coordinate(rank=6), mesh.get_rank_list_along_axis("dp", rank=6)
        ((1, 2), [2, 6])
    """

    _meshes: Dict[tuple, "DeviceMesh"] = {}

    def __new__(cls, device_type: str, mesh_shape: Sequence[int], mesh_dim_names: Optional[Sequence[str]] = None,
                rank_list: Optional[Sequence[int]] = None):
        mesh_shape = (mesh_shape,) if isinstance(mesh_shape, int) else tuple(int(size) for size in mesh_shape)
        if not mesh_shape or min(mesh_shape) < 1:
            raise ValueError(f"mesh_shape {mesh_shape}: a mesh has at least one axis, and every axis at least one rank")
        names = tuple(mesh_dim_names) if mesh_dim_names else tuple(f"axis{i}" for i in range(len(mesh_shape)))
        ranks = tuple(range(math.prod(mesh_shape))) if rank_list is None else tuple(int(rank) for rank in rank_list)
        if len(ranks) != math.prod(mesh_shape) or len(set(ranks)) != len(ranks) or min(ranks) < 0:
            raise ValueError(f"mesh_shape {mesh_shape} needs {math.prod(mesh_shape)} different ranks, got {ranks}")
        return cls._intern(device_type, mesh_shape, names, (ranks,), None)

    @classmethod
    def _intern(cls, device_type, mesh_shape, names, copies, root):
        """The one mesh with these values. `copies` are its rank lists: one for a root, several for a sub-mesh."""
        if len(names) != len(mesh_shape) or len(set(names)) != len(names):
            raise ValueError(f"mesh_shape {mesh_shape} needs {len(mesh_shape)} different axis names, got {names}")
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"axis names are non-empty strings, got {names}")
        key = (device_type, mesh_shape, names, copies, root)
        mesh = cls._meshes.get(key)
        if mesh is None:
            mesh = super().__new__(cls)
            mesh._device_type, mesh._shape, mesh._names, mesh._copies = device_type, mesh_shape, names, copies
            mesh._root = root
            mesh._flattened = {}
            mesh._places = {rank: (copy, position) for copy in copies for position, rank in enumerate(copy)}
            cls._meshes[key] = mesh
        return mesh

    @property
    def device_type(self) -> str:
        """The device type that the mesh was made with."""
        return self._device_type

    @property
    def mesh_shape(self) -> Tuple[int, ...]:
        """Ranks along each axis."""
        return self._shape

    @property
    def mesh_dim_names(self) -> Tuple[str, ...]:
        """The axes' names, outermost first."""
        return self._names

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def root_mesh(self) -> "DeviceMesh":
        """The mesh that this one was cut out of; a mesh that was not cut is its own root."""
        return self._root or self

    @property
    def rank_list(self) -> Tuple[int, ...]:
        """The ranks in row-major order; of a sub-mesh, those of the copy that holds the current rank.

        Raises:
            ValueError: the current rank is in none of the copies.
        """
        return self._copies[0] if len(self._copies) == 1 else self._place(None)[0]

    def size(self, dim: Optional[Axis] = None) -> int:
        """Ranks along axis `dim` (a name or an index), of the whole mesh for None."""
        return math.prod(self._shape) if dim is None else self._shape[self.axis_index(dim)]

    def axis_index(self, axis: Axis) -> int:
        """The position of an axis that is given by name or by (possibly negative) index.

        Raises:
            ValueError: the mesh has no such axis.
        """
        if isinstance(axis, str) and axis in self._names:
            return self._names.index(axis)
        if isinstance(axis, int) and not isinstance(axis, bool) and -self.ndim <= axis < self.ndim:
            return axis % self.ndim
        raise ValueError(f"the mesh has no axis {axis!r}: valid axes are {', '.join(self._names)} "
                         f"or {-self.ndim} to {self.ndim - 1}")

    def get_coordinate(self, rank: Optional[int] = None) -> Optional[Tuple[int, ...]]:
        """The position of `rank` on every axis, None when it is not in the mesh.

        Args:
            rank: a global rank; None means the current one.
        """
        place = self._places.get(current_rank() if rank is None else rank)
        return None if place is None else self._unravel(place[1])

    def get_local_rank(self, dim: Optional[Axis] = None) -> int:
        """The current rank's position on axis `dim`; None is valid for a mesh of one axis.

        Raises:
            ValueError: no such axis, or the current rank is not in the mesh.
        """
        return self._unravel(self._place(None)[1])[self._only_axis(dim)]

    def get_rank_list_along_axis(self, axis: Axis, rank: Optional[int] = None) -> List[int]:
        """The ranks that share all of `rank`'s coordinates but the one on `axis`, in the axis' order.

        Args:
            axis: a name or an index.
            rank: a global rank; None means the current one.

        Raises:
            ValueError: no such axis, or the rank is not in the mesh.
        """
        index = self.axis_index(axis)
        ranks, position = self._place(rank)
        stride = math.prod(self._shape[index + 1:])
        first = position - self._unravel(position)[index] * stride
        return [ranks[first + step * stride] for step in range(self._shape[index])]

    def get_group(self, dim: Optional[Axis] = None) -> Group:
        """The current rank's communication group along axis `dim`.

        An axis of size 1 gives a `Group` of size 1, on which collectives do nothing and for which none is created.

        Args:
            dim: an axis by name or index, or the name of a flattened mesh; None is valid for a mesh of one axis.

        Raises:
            ValueError: no such axis, or the current rank is not in the mesh.
            RuntimeError: the axis has several ranks and there is no communication world.
        """
        flattened = self.root_mesh._flattened
        if isinstance(dim, str) and dim not in self._names and dim in flattened:
            return flattened[dim].get_group()
        index = self._only_axis(dim)
        name = self._names[index]
        return name_axis(get_group(self.get_rank_list_along_axis(index)), name, name not in self.root_mesh._names)

    def __getitem__(self, names: Union[str, Tuple[str, ...]]) -> "DeviceMesh":
        """The sub-mesh of the named axes, in the order given, or the flattened mesh of that name.

        Raises:
            ValueError: an unknown axis, or one that is named twice.
        """
        names = (names,) if isinstance(names, (str, int)) else tuple(names)
        if names == self._names:
            return self
        flattened = self.root_mesh._flattened
        if len(names) == 1 and names[0] not in self._names and names[0] in flattened:
            return flattened[names[0]]
        if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"a mesh is indexed by axis names, each once, got {names}: "
                             f"valid axes are {', '.join(self._names)}")
        kept = [self.axis_index(name) for name in names]
        left_out = [index for index in range(self.ndim) if index not in kept]
        strides = [math.prod(self._shape[index + 1:]) for index in range(self.ndim)]

        def offsets(axes):
            ranges = [range(0, self._shape[index] * strides[index], strides[index]) for index in axes]
            return [sum(steps) for steps in itertools.product(*ranges)]

        # Sorted, so that the same axis cut out of two views of one root is one object.
        copies = tuple(sorted(tuple(ranks[start + step] for step in offsets(kept))
                              for ranks in self._copies for start in offsets(left_out)))
        return self._intern(self._device_type, tuple(self._shape[index] for index in kept), names, copies,
                            self.root_mesh)

    def _flatten(self, mesh_dim_name: str) -> "DeviceMesh":
        """All axes in one, under a new name that the root mesh knows from then on (the latest mesh of a name counts).

        Raises:
            ValueError: the name is already an axis of the root mesh.
        """
        if mesh_dim_name in self.root_mesh._names and mesh_dim_name not in self._names:
            raise ValueError(f"cannot flatten {', '.join(self._names)} into {mesh_dim_name!r}: "
                             f"the root mesh has an axis of that name")
        flat = self._intern(self._device_type, (self.size(),), (mesh_dim_name,), self._copies, self.root_mesh)
        self.root_mesh._flattened[mesh_dim_name] = flat
        return flat

    def flatten(self, mesh_dim_name: str) -> "DeviceMesh":
        """All axes in one: the public name of `_flatten`, which PyTorch and MindFormers use."""
        return self._flatten(mesh_dim_name)

    def unflatten(self, dim: Axis, mesh_sizes: Sequence[int], mesh_dim_names: Sequence[str]) -> "DeviceMesh":
        """One axis split into several: the public name of `_unflatten`."""
        return self._unflatten(dim, mesh_sizes, mesh_dim_names)

    @staticmethod
    def concatenate(meshes: Sequence["DeviceMesh"]) -> "DeviceMesh":
        """Sub-meshes of one root side by side: a mesh of all their axes, in the order given.

        Unlike `root["dp", "tp"]` it takes flattened and unflattened axes too.

        Raises:
            ValueError: the meshes have different roots, share an axis or a name, or their axes overlap in ranks.

        Examples:
            >>> grid = DeviceMesh("npu", (2, 2, 2), ("dp", "cp", "tp"))
            >>> DeviceMesh.concatenate([grid["dp", "cp"]._flatten("data"), grid["tp"]])
            DeviceMesh(data=4, tp=2; npu ranks 0,1,2,3,4,5,6,7)
        """
        meshes = tuple(meshes)
        if not meshes or any(mesh.root_mesh is not meshes[0].root_mesh for mesh in meshes):
            raise ValueError("concatenate takes sub-meshes of one root mesh, got "
                             f"{', '.join(map(repr, meshes)) or 'none'}")
        root = meshes[0].root_mesh
        names = tuple(name for mesh in meshes for name in mesh._names)
        shape = tuple(size for mesh in meshes for size in mesh._shape)
        if names == root._names and shape == root._shape:
            return root
        order = root._copies[0]
        position = {rank: index for index, rank in enumerate(order)}
        # how far each rank of a mesh's first copy lies from the copy's first rank, in the root's order
        spans = [[position[rank] - position[mesh._copies[0][0]] for rank in mesh._copies[0]] for mesh in meshes]
        offsets = [sum(steps) for steps in itertools.product(*spans)]
        copies, covered = [], set()
        for start in range(len(order)):
            if start in covered:
                continue
            copy = [start + offset for offset in offsets]
            if max(copy) >= len(order) or len(set(copy)) < len(copy) or covered.intersection(copy):
                raise ValueError(f"concatenate: the axes {', '.join(names)} overlap in ranks: "
                                 f"{', '.join(map(repr, meshes))}")
            covered.update(copy)
            copies.append(tuple(order[index] for index in copy))
        return DeviceMesh._intern(root._device_type, shape, names, tuple(sorted(copies)), root)

    def _unflatten(self, dim: Axis, mesh_sizes: Sequence[int], mesh_dim_names: Sequence[str],
                   backend_override: Optional[Dict[str, object]] = None) -> "DeviceMesh":
        """The same ranks with one axis split into several.

        Args:
            dim: the axis to split, by name or index.
            mesh_sizes: the sizes of the new axes, outermost first.
            mesh_dim_names: their names.
            backend_override: `{new axis: backend}`, accepted and checked; groups are lazy, so a "fake" axis on which
                nobody communicates never gets one.

        Raises:
            ValueError: the sizes do not multiply to the axis' size, or the override names no new axis.
        """
        index = self.axis_index(dim)
        sizes, names = tuple(int(size) for size in mesh_sizes), tuple(mesh_dim_names)
        if not sizes or min(sizes) < 1 or math.prod(sizes) != self._shape[index]:
            raise ValueError(f"axis {self._names[index]!r} of size {self._shape[index]} cannot be split into {sizes}")
        unknown = [name for name in backend_override or {} if name not in names]
        if unknown:
            raise ValueError(f"backend_override names axis {unknown[0]!r}: the new axes are {', '.join(names)}")
        return self._intern(self._device_type, self._shape[:index] + sizes + self._shape[index + 1:],
                            self._names[:index] + names + self._names[index + 1:], self._copies, self.root_mesh)

    def _only_axis(self, axis):
        if axis is None and self.ndim > 1:
            raise ValueError(f"the mesh has {self.ndim} axes: name one of {', '.join(self._names)}")
        return 0 if axis is None else self.axis_index(axis)

    def _place(self, rank):
        number = current_rank() if rank is None else rank
        if number not in self._places:
            world = "" if rank is not None or world_exists() else ", the current one without a communication world,"
            raise ValueError(f"rank {number}{world} is not in {self!r}")
        return self._places[number]

    def _unravel(self, position):
        coordinate = []
        for size in reversed(self._shape):
            position, here = divmod(position, size)
            coordinate.append(here)
        return tuple(reversed(coordinate))

    def __reduce__(self):
        return DeviceMesh._intern, (self._device_type, self._shape, self._names, self._copies, self._root)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        axes = ", ".join(f"{name}={size}" for name, size in zip(self._names, self._shape))
        copies = self._copies if len(self._copies) <= 4 else self._copies[:3] + ("...",)
        ranks = " | ".join(copy if isinstance(copy, str) else _spell(copy) for copy in copies)
        return f"DeviceMesh({axes}; {self._device_type} ranks {ranks})"


def _spell(ranks):
    shown = list(ranks) if len(ranks) <= 16 else list(ranks[:8]) + ["..."] + list(ranks[-2:])
    return ",".join(map(str, shown))


def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Optional[Sequence[str]] = None,
                     rank_list: Optional[Sequence[int]] = None) -> DeviceMesh:
    """The mesh of this shape; see `DeviceMesh` for the arguments. Creates no communication group.

    Examples:
        >>> init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
        DeviceMesh(tp=2; npu ranks 0,1 | 2,3)
    """
    return DeviceMesh(device_type, mesh_shape, mesh_dim_names, rank_list)
