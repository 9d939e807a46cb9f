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
"""A tensor of which every rank holds a part: local storage, the mesh, and a placement per axis."""
import copy
import math
from typing import Optional, Sequence, Tuple

from mindspore import Parameter, Tensor, ops

from hyper_parallel.core.dtensor import dfunction
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dfunction import DFunction
from hyper_parallel.core.dtensor.dispatch import SkipDTensorDispatch, bind, dispatch
from hyper_parallel.core.dtensor.dispatch_hooks import get_item, hooks, set_item
from hyper_parallel.core.dtensor.gather import shard_whole
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.part import detached_copy, filled, normalized, whole_shape
from hyper_parallel.core.dtensor.placement_types import Partial, Placement, Replicate
from hyper_parallel.core.dtensor.redistribute import redistribute, to_local_with_gradient, whole_of
from hyper_parallel.core.dtensor.slice_map import SliceMap

__all__ = ["DFunction", "DTensor", "SkipDTensorDispatch", "distribute_tensor"]


def _check_unchanged(dtensor, mesh, placements):
    """A DTensor is shared as it lies; something else that is said about it is a mistake."""
    said = None if placements is None else normalized(placements, dtensor._mesh, dtensor._local.ndim)
    if mesh not in (None, dtensor._mesh) or said not in (None, dtensor._placements):
        raise ValueError(f"{dtensor!r} already lies on a mesh: use redistribute({placements}) to change how, or "
                         "to_local() for its part")


class DTensor(Tensor):
    """The part of a tensor that this rank holds, with what is needed to find the whole.

    `shape` is the whole's, `local_shape` this rank's. A DTensor *stores*: `to_local()` is the storage itself, and
    writing to it writes the DTensor. Where placements alone cannot say which rows a rank holds (fused sections, KV
    copies, padding), a SliceMap on one axis does.

    Args:
        local (Tensor | DTensor): this rank's part, or a DTensor to share.
        device_mesh (DeviceMesh): may be left out when `local` is a DTensor.
        placements (Sequence[Placement]): one per axis, in mesh order.
        slice_map (SliceMap): optional record of the parts; its axes are names of the mesh's axes.
        shape (Sequence[int]): of the whole; needed where the parts are uneven, otherwise it follows from `local`.

    Raises:
        ValueError: not one placement per axis, a dim that the tensor has not, or a `local` that is not this rank's part
            of `shape`.

    Examples:
        >>> weight = DTensor.from_local(local, mesh, (Replicate(), Shard(0)))
        >>> weight.shape, weight.local_shape
        ((128, 64), (64, 64))
    """

    # What keeps the gaps in MindSpore's dispatch covered; a DTensor that only stores needs none.
    _hooks = None
    # Whether somebody sums the gradient of a replicated part over its axis (`shard_module`, an applied plan).
    _gradient_is_summed = False

    def __new__(cls, local, device_mesh=None, placements=None, slice_map=None, shape=None):
        if isinstance(local, DTensor):
            _check_unchanged(local, device_mesh, placements)
            storage = local._local
            if issubclass(cls, Parameter) and not isinstance(storage, Parameter):
                # a part that came out of an operator shares its autograd record and would silently get no gradient
                storage = Parameter(storage)
            obj = Tensor._make_subclass(cls, storage)
            obj._local, obj._mesh, obj._placements = storage, local._mesh, local._placements
            obj._slice_map, obj._whole, obj._hooks = local._slice_map, local._whole, local._hooks
            obj._gradient_is_summed = local._gradient_is_summed
        else:
            placements = normalized(placements, device_mesh, local.ndim)
            obj = Tensor._make_subclass(cls, local)
            obj._local, obj._mesh, obj._placements, obj._slice_map = local, device_mesh, placements, slice_map
            if slice_map is not None:
                obj._whole = slice_map.shape
            else:
                obj._whole = whole_shape(local.shape, device_mesh, placements, shape)
        obj.main_gradient = None
        return obj

    def __init__(self, *_, **__):  # the storage is complete after __new__; Tensor's own __init__ would replace it
        pass

    def __getattr__(self, name):
        if name == "_local":
            # A result of an operator is its own storage until somebody asks for the part.
            local = self.__dict__["_local"] = Tensor._make_subclass(Tensor, self)
            return local
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __fallback__(self, func, args, kwargs=None):
        return dispatch(func, args, kwargs)

    def __getitem__(self, index):
        return get_item(self, index)

    def __setitem__(self, index, value):
        set_item(self, index, value)

    @staticmethod
    def _of(local, mesh, placements, shape) -> "DTensor":
        """A DTensor from parts that are known to fit each other: normalised placements, the shape of the whole."""
        obj = Tensor._make_subclass(DTensor, local)
        obj._local, obj._mesh, obj._placements, obj._whole = local, mesh, placements, shape
        obj._slice_map = obj.main_gradient = None
        obj._hooks = hooks()
        return obj

    @staticmethod
    def from_local(local: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement], *,
                   shape: Optional[Sequence[int]] = None) -> "DTensor":
        """The DTensor whose part on this rank is `local`; no copy, no communication. Differentiable.

        Args:
            local: this rank's part.
            device_mesh: the mesh.
            placements: one per axis, in mesh order.
            shape: of the whole; needed where the parts are uneven.
        """
        made = DTensor(local, device_mesh, placements, None, shape)
        made._hooks = hooks()
        return made

    def to_local(self, *, grad_placements: Optional[Sequence[Placement]] = None) -> Tensor:
        """This rank's part: the storage itself, not a copy. Differentiable.

        Args:
            grad_placements: how the gradient that comes back lies on the mesh, where that is not how this DTensor lies:
                a Replicate whose part enters rank-local work gets a Partial gradient, which is then reduced. With it,
                the result is not the storage. None leaves the gradient as it comes.
        """
        if grad_placements is None:
            return self._local
        return to_local_with_gradient(self, normalized(grad_placements, self._mesh, self._local.ndim))

    def full_tensor(self, *, grad_placements: Optional[Sequence[Placement]] = None) -> Tensor:
        """The whole, on every rank; gathers and reduces over every axis that needs it. Differentiable.

        Where every axis replicates it is the storage itself, not a copy.

        Args:
            grad_placements: as in `to_local`, of the whole.
        """
        whole = whole_of(self)
        return whole.to_local(grad_placements=grad_placements)

    def redistribute(self, device_mesh: Optional[DeviceMesh] = None,
                     placements: Optional[Sequence[Placement]] = None) -> "DTensor":
        """The same tensor with other placements, over the cheapest collectives; differentiable by true adjoints.

        Args:
            device_mesh: None means this one; otherwise a mesh of the same ranks, a sub-mesh, or one that this is a
                sub-mesh of. An axis that a sub-mesh leaves out counts as Replicate.
            placements: one per axis of that mesh; None means Replicate on every axis.

        Returns:
            The DTensor itself when nothing changes.

        Raises:
            ValueError: the placements do not fit the mesh or the tensor, or neither mesh contains the other.

        Examples:
            >>> x = DTensor.from_local(part, mesh, (Shard(0),)).redistribute(placements=(Shard(1),))
        """
        mesh = self._mesh if device_mesh is None else device_mesh
        if placements is None:
            placements = (Replicate(),) * mesh.ndim
        return redistribute(self, mesh, normalized(placements, mesh, self._local.ndim))

    @staticmethod
    def gradient_placements(placements: Sequence[Placement]) -> Tuple[Placement, ...]:
        """How the gradient of a value lies: as the value does, but whole on every rank where a sum is pending."""
        return tuple(Replicate() if isinstance(item, Partial) else item for item in placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh that the placements speak of."""
        return self._mesh

    @property
    def device(self) -> str:
        """Where the part is; a part that was made on the meta device and moved has left its DTensor there."""
        local = self.__dict__.get("_local")
        return Tensor.device.__get__(self) if local is None else local.device

    @property
    def placements(self) -> Tuple[Placement, ...]:
        """One placement per mesh axis, in mesh order."""
        return self._placements

    @property
    def slice_map(self) -> Optional[SliceMap]:
        """The record of the parts where placements cannot say it; None where they can."""
        return self._slice_map

    @property
    def layout(self) -> Layout:
        """The same facts in MindSpore's own terms (device matrix, tensor map)."""
        return Layout(self._mesh, self._placements, self._local.ndim)

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of the whole."""
        return self._whole

    @property
    def local_shape(self) -> Tuple[int, ...]:
        """Shape of this rank's part."""
        return tuple(self._local.shape)

    @property
    def data(self) -> Tensor:
        """The plain local tensor: MindSpore's checkpoint loader compares and fills it."""
        return self._local

    @data.setter
    def data(self, value: Tensor):
        local = value.to_local() if isinstance(value, DTensor) else value
        if tuple(local.shape) != self.local_shape:
            raise ValueError(f"data of shape {tuple(local.shape)} for a part of shape {self.local_shape} "
                             f"(whole {self.shape}): assign this rank's part")
        self._local.data = local

    def set_data(self, data, slice_shape=False):
        """Replace this rank's part by a tensor of the same local shape."""
        local = data.to_local() if isinstance(data, DTensor) else data
        if tuple(local.shape) != self.local_shape:
            raise ValueError(f"set_data got shape {tuple(local.shape)} for a part of shape {self.local_shape} "
                             f"(whole {self.shape}): pass this rank's part")
        if isinstance(self._local, Parameter):
            self._local.set_data(local, slice_shape)
        else:
            self._local.assign_value(local)
        return self

    @property
    def grad(self) -> Optional["DTensor"]:
        """The gradient of this rank's part; None before a backward.

        It lies as the tensor does, with two differences: of a part that is replicated, each rank's backward gives a
        term, so the gradient is `Partial("sum")` (unless the terms are summed already, as `shard_module` and applied
        plans do); of a pending reduction it is Replicate. A DTensor that is assigned is brought to these placements.
        """
        return self._laid_out_like(self._local._grad, self._gradient_lies())

    @grad.setter
    def grad(self, value):
        if isinstance(value, DTensor):
            lies = self._gradient_lies()
            value = (value if value.placements == lies else value.redistribute(self._mesh, lies)).to_local()
        self._local._grad = value

    def _gradient_lies(self):
        """The placements of the gradient."""
        if self._gradient_is_summed:
            return self._placements
        return tuple(Replicate() if isinstance(item, Partial) else Partial("sum") if item.is_replicate() and size > 1
                     else item for item, size in zip(self._placements, self._mesh.mesh_shape))

    @property
    def main_grad(self) -> Optional["DTensor"]:
        """The float32 gradient, reduced over the data-parallel ranks; None without `fully_shard` or a backward."""
        return None if self.main_gradient is None else self._laid_out_like(self.main_gradient.read())

    def _laid_out_like(self, local, placements=None):
        if local is None:
            return None
        made = DTensor(local, self._mesh, placements or self._placements, self._slice_map, self._whole)
        made._hooks = self._hooks
        return made

    @property
    def requires_grad(self) -> bool:
        """Whether the part is trained; setting it reaches the local Parameter that the forward uses."""
        return getattr(self._local, "requires_grad", False)

    @requires_grad.setter
    def requires_grad(self, value: bool):
        if isinstance(self._local, Parameter):
            self._local.requires_grad = value
        if self.main_gradient is not None:
            self.main_gradient.leaf.requires_grad = value
        if isinstance(self, Parameter):
            Parameter.requires_grad.fset(self, value)

    def clone(self, init="same") -> "DTensor":
        """A copy of the same layout. Of a Parameter it is a Parameter, and a new leaf; otherwise differentiable.

        Args:
            init (str | float): "same", "zeros", "ones" or a number: the values, as for a Parameter.

        Raises:
            ValueError: another word.
        """
        values = {"zeros": 0, "ones": 1}.get(init, init)
        if isinstance(values, str) and values != "same":
            raise ValueError(f"clone(init={init!r}) of a DTensor: valid are 'same', 'zeros', 'ones' or a number")
        if values != "same":
            local = filled(self._local, values)
        elif isinstance(self, Parameter):
            local = detached_copy(self._local)
        else:
            local = self._local.clone()
        return self._renewed(local)

    copy = clone

    def _renewed(self, local):
        """What this is, with another part: a DTensor, or a Parameter of the same name."""
        made = self._laid_out_like(local)
        if not isinstance(self, Parameter):
            return made
        return Parameter(made, name=self.name, requires_grad=self.requires_grad)

    def detach(self) -> "DTensor":
        """The same part without its gradient; never a Parameter."""
        return self._laid_out_like(ops.stop_gradient(self._local))

    @property
    def size(self) -> int:
        """Elements of the whole."""
        return math.prod(self._whole)

    def numel(self) -> int:
        """Elements of the whole."""
        return math.prod(self._whole)

    nelement = numel

    def asnumpy(self):
        """The whole as a numpy array; gathers like `full_tensor`."""
        return self.full_tensor().asnumpy()

    numpy = asnumpy

    def tolist(self):
        """The whole as nested lists."""
        return self.asnumpy().tolist()

    def item(self):
        """The number that a DTensor of one element stands for; a pending reduction is done first."""
        return self.asnumpy().item()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __repr__(self):
        named = zip(self._mesh.mesh_dim_names, self._placements)
        parts = ", ".join(f"{axis}: {placement!r}" for axis, placement in named)
        mapped = "" if self._slice_map is None else f", {self._slice_map.describe()}"
        name = f"name={self.name!r}, " if isinstance(self, Parameter) else ""
        return (f"{'Parameter ' if name else ''}DTensor({name}shape={self.shape}, local_shape={self.local_shape}, "
                f"dtype={self.dtype}, {parts}{mapped})")

    def __str__(self):
        return f"{self!r}, local part:\n{self._local.asnumpy()}" if not self._local.is_meta else repr(self)

    def __deepcopy__(self, memo):
        # the Cell that stores this may hold the local Parameter too; both must stay one object
        local = copy.deepcopy(self._local, memo) if isinstance(self._local, Parameter) else detached_copy(self._local)
        return self._renewed(local)

    def __copy__(self):
        made = self._renewed(self._local)
        made._gradient_is_summed = self._gradient_is_summed
        return made

    def __reduce_ex__(self, _):
        named = (self.name, self.requires_grad) if isinstance(self, Parameter) else None
        return _restored, (self._local, self._mesh, self._placements, self._slice_map, self._whole, named)


def _restored(local, mesh, placements, slice_map, shape, named):
    """The inverse of `DTensor.__reduce_ex__`."""
    made = DTensor(local, mesh, placements, slice_map, shape)
    return made if named is None else Parameter(made, name=named[0], requires_grad=named[1])


def distribute_tensor(tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Cut a whole tensor, equal on all ranks, into a DTensor; a Parameter stays a Parameter.

    Works on the meta device, where only shapes are cut. An axis that does not divide its dim gives the first ranks
    more: pieces of ceil(size / ranks) rows from the front, so 5 rows on 4 ranks are `AA BB C -`.

    Args:
        tensor: the whole.
        device_mesh: the mesh; a rank that is not in it gets an empty part.
        placements: Shard, StridedShard or Replicate per axis, in mesh order.

    Raises:
        ValueError: a placement is Partial, or names a dim that the tensor has not (the message names axis and dim).

    Examples:
        >>> weight = distribute_tensor(Tensor(np.ones((8, 4), np.float32)), mesh, (Shard(0),))
    """
    placements = normalized(placements, device_mesh, tensor.ndim)
    local = shard_whole(tensor, device_mesh, placements)
    if isinstance(tensor, Parameter):
        leaf = Parameter(local, name=tensor.name, requires_grad=tensor.requires_grad)
        return Parameter(DTensor.from_local(leaf, device_mesh, placements, shape=tensor.shape), name=tensor.name,
                         requires_grad=tensor.requires_grad)
    return DTensor.from_local(local, device_mesh, placements, shape=tensor.shape)


bind(DTensor, hooks)
dfunction.bind(DTensor)
