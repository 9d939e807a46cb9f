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
"""How one kind of call runs on this rank: made once from the operator's rule, then kept."""
import itertools
from typing import Any, Dict, List, Optional, Sequence

from mindspore import Tensor
from mindspore._c_expression import NoFallbackGuard

from hyper_parallel.core.dtensor.ops import find_rule
from hyper_parallel.core.dtensor.ops.propagate import CannotStay, propagate
from hyper_parallel.core.dtensor.ops.registry import apply_rule
from hyper_parallel.core.dtensor.ops.spec import Cut, Operand, Spec
from hyper_parallel.core.dtensor.placement_types import Replicate, Shard

CACHE_LIMIT = 16384


class Lay:
    """How a DTensor lies, as one object that is equal only to itself: cheap to hash, kept on the DTensor."""

    __slots__ = ("mesh", "placements", "shape", "slice_map", "dtype")

    def __init__(self, mesh, placements, shape, slice_map, dtype):
        self.mesh, self.placements, self.shape, self.slice_map, self.dtype = mesh, placements, shape, slice_map, dtype


_lays: Dict[tuple, Lay] = {}


def lay_of(dtensor) -> Lay:
    """The one `Lay` of a DTensor's kind, remembered on it."""
    facts = (dtensor._mesh, dtensor._placements, dtensor._whole, dtensor._slice_map, dtensor._local.dtype)
    key = (*facts[:3], id(facts[3]), facts[4])
    lay = _lays.get(key)
    if lay is None:
        if len(_lays) >= CACHE_LIMIT:
            _lays.clear()
        lay = _lays[key] = Lay(*facts)
    dtensor._lay = lay
    return lay


class Plan:
    """One kind of call.

    Attributes:
        direct (bool): the locals go into the operator (with `rest` after the first), and one DTensor comes out;
            `template` then holds its attributes but for the local part.
    """

    def __init__(self, spec: Spec, mesh, decided, cut: Cut, dtensor_class, hooks):
        self._spec, self._mesh, self._results, self._cut = spec, mesh, decided.results, cut
        self._dtensor, self._hooks = dtensor_class, hooks
        self.direct, self.template = False, None
        self._moves: List[tuple] = []
        self._compute = spec.compute(cut) if spec.compute else None
        changed = bool(cut.labels)
        self.rest = spec.rest(cut) if spec.rest and changed else None
        self._replace = spec.replace(cut) if spec.replace and changed else None
        self._templates: Dict[int, dict] = {}

    def moves(self, operands: Sequence[Operand], targets: Sequence[tuple]) -> None:
        """Notes which operands have to be brought to other placements first; an axis of one rank moves nothing."""
        sizes = self._mesh.mesh_shape
        self._moves = [(operand.index, operand.plain, target) for operand, target in zip(operands, targets)
                       if any(size > 1 and here != there
                              for size, here, there in zip(sizes, operand.placements, target))]

    def run(self, func, head, args, kwargs, tensors):
        """Carries the call out; `tensors` are those among the arguments, in order."""
        dtensor = self._dtensor
        feed, source = list(tensors), None
        for index, plain, target in self._moves:
            tensor = feed[index]
            if plain:
                tensor = dtensor.from_local(tensor, self._mesh, (Replicate(),) * self._mesh.ndim)
            feed[index] = tensor.redistribute(self._mesh, target)
        for tensor in tensors:
            if isinstance(tensor, dtensor):
                source = tensor
        locals_ = [tensor._local if isinstance(tensor, dtensor) else tensor for tensor in feed]
        feed = iter(locals_)
        local_args = [_localize(arg, feed) for arg in args]
        local_kwargs = {name: _localize(value, feed) for name, value in kwargs.items()}
        if self.rest is not None:
            local_args, local_kwargs = [local_args[0], *self.rest], {}
        for place, value in (self._replace or {}).items():
            (local_kwargs if place in local_kwargs else local_args)[place] = value
        call = _legacy(func, head) if head else func
        with NoFallbackGuard():
            if self._compute is not None:
                result = self._compute(call, local_args, local_kwargs)
            else:
                result = call(*local_args, **local_kwargs)
        if self._spec.inplace:
            return tensors[0]
        if isinstance(result, Tensor):
            made = self.label(result, source, locals_)
            if not head and not kwargs and self.template is None and not self._spec.by_value:
                self._simplify(made, tensors, args)
            return made
        return _rebuild(result, itertools.count(), lambda local, number: self.label(local, source, locals_, number))

    def _simplify(self, made, tensors, args):
        """Takes the fast path from now on, where nothing but the operator itself has to run."""
        nested = len(tensors) != sum(isinstance(arg, Tensor) for arg in args)
        self.template = {name: value for name, value in made.__dict__.items() if name not in ("_local", "_hooks")}
        self.direct = not (nested or self._moves or self._compute or self._replace)

    def label(self, local, source, operands, number=0):
        """A result as a DTensor.

        Args:
            local: the operator's result on this rank.
            source: a DTensor among the operands.
            operands: what went into the operator; a result that is one of them stays what it is.
            number: the result's position among those that the operator returns.
        """
        template = self._templates.get(number)
        if template is None:
            made = self._first(local, number)
            lay_of(made)
            if self._spec.by_value:
                made._hooks = source._hooks or self._hooks()
                return made
            self._templates[number] = {name: value for name, value in made.__dict__.items()
                                       if name not in ("_local", "_hooks")}
        elif type(local) is Tensor and all(local is not operand for operand in operands):
            # Not a new object around it: that would wait for the operator.
            made = local
            made.__class__ = self._dtensor
            made.__dict__.update(template)
        else:
            local = local._local if isinstance(local, self._dtensor) else local
            made = Tensor._make_subclass(self._dtensor, local)
            made.__dict__.update(template)
            made._local = local
        made._hooks = source._hooks or self._hooks()
        return made

    def _first(self, local, number):
        number = min(number, len(self._results) - 1)
        placements, labels = self._results[number], self._spec.outputs[number]
        shape = list(local.shape)
        for placement in placements:
            if isinstance(placement, Shard):
                dim = placement.dim
                given = self._spec.shapes[number][dim] if self._spec.shapes else None
                shape[dim] = self._spec.sizes()[labels[dim]] if given is None else given
        return self._dtensor._of(local, self._mesh, placements, tuple(shape))


def _legacy(func, head):
    return lambda *args, **kwargs: func(*head, tuple(args), **kwargs)


def _localize(value, feed):
    """The argument with the next tensors of `feed` in place of its own."""
    if isinstance(value, Tensor):
        return next(feed)
    if isinstance(value, (list, tuple)):
        return type(value)(_localize(item, feed) for item in value)
    return value


def _rebuild(result, numbers, make):
    if isinstance(result, Tensor):
        return make(result, next(numbers))
    if isinstance(result, (list, tuple)):
        return type(result)(_rebuild(item, numbers, make) for item in result)
    return result


def make_plan(name: str, args, kwargs, tensors, primitive, dtensor_class, hooks=None) -> Plan:
    """Asks the rule.

    Args:
        name: of the operator.
        args: its arguments.
        kwargs: its keyword arguments.
        tensors: those among the arguments, in order.
        primitive: of a legacy operator, else None.
        dtensor_class: DTensor.
        hooks: gives what a DTensor holds on to.

    Raises:
        NotImplementedError: no rule for these arguments.
        ValueError: DTensors on different meshes.
    """
    distributed = [tensor for tensor in tensors if isinstance(tensor, dtensor_class)]
    mesh = distributed[0]._mesh
    for tensor in distributed:
        if tensor._mesh is not mesh:
            raise ValueError(f"operator {name} got DTensors on different meshes, {mesh!r} and {tensor._mesh!r}: bring "
                             "them to one mesh with redistribute(mesh, placements)")
        if tensor._slice_map is not None:
            raise NotImplementedError(f"operator {name} on {describe(tensor)}: its slice map holds parts that placements "
                                      "cannot describe; use to_local() or redistribute(placements=...)")
    operands = [_operand(index, tensor, mesh, dtensor_class) for index, tensor in enumerate(tensors)]
    spec = spec_of_call(name, args, kwargs, operands, primitive)
    if spec is None:
        raise _no_rule(name, tensors)
    try:
        decided = propagate(spec, operands, mesh.mesh_shape)
    except CannotStay:
        raise NotImplementedError(
            f"operator {name} writes into {describe(tensors[0])} and cannot with {_others(tensors)}: redistribute the "
            "first tensor to placements in which it can be written, or write to its to_local()") from None
    cut = decided.cut(spec, mesh.mesh_shape, mesh.get_coordinate() or (0,) * mesh.ndim)
    plan = Plan(spec, mesh, decided, cut, dtensor_class, hooks)
    plan.moves(operands, decided.targets)
    return plan


def _operand(index, tensor, mesh, dtensor_class):
    if isinstance(tensor, dtensor_class):
        return Operand(index, tensor._whole, tensor._placements, False, tensor._local.dtype)
    return Operand(index, tensor.shape, (Replicate(),) * mesh.ndim, True, tensor.dtype)


def spec_of_call(name: str, args, kwargs, operands: Sequence[Operand], primitive=None) -> Optional[Spec]:
    """What the rule of an operator says of a call; None where there is none, and something is not replicated.

    Args:
        name: of the operator.
        args: its arguments.
        kwargs: its keyword arguments.
        operands: one for each tensor among the arguments, in order.
        primitive: of a legacy operator, else None.
    """
    if find_rule(name) is not None:
        feed = iter(operands)
        seen = [_localize_operand(arg, feed) for arg in args]
        spec = apply_rule(name, seen, {key: _localize_operand(value, feed) for key, value in kwargs.items()}, primitive)
        if spec is not None:
            return spec
    if all(isinstance(placement, Replicate) for operand in operands for placement in operand.placements):
        # Every rank computes the same from the same.
        return Spec({}, [None], inplace=name.startswith("Inplace"))
    return None


def _localize_operand(value, feed) -> Any:
    if isinstance(value, Tensor):
        return next(feed)
    if isinstance(value, (list, tuple)):
        return type(value)(_localize_operand(item, feed) for item in value)
    return value


def describe(tensor) -> str:
    """A tensor in a message: shape and placements by axis."""
    if not hasattr(tensor, "_placements"):
        return f"a plain tensor of shape {tuple(tensor.shape)}"
    placed = ", ".join(f"{axis}: {placement!r}"
                       for axis, placement in zip(tensor._mesh.mesh_dim_names, tensor._placements))
    return f"a DTensor of shape {tuple(tensor._whole)} ({placed})"


def _others(tensors):
    return ", ".join(describe(tensor) for tensor in tensors[1:]) or "its other arguments"


def _no_rule(name, tensors):
    described = "; ".join(f"argument {number}: {describe(tensor)}" for number, tensor in enumerate(tensors))
    return NotImplementedError(
        f"operator {name} has no propagation rule for {described}. Redistribute the DTensors to Replicate first "
        "(x.redistribute(placements=(Replicate(), ...))), work on the parts (to_local()), or add a rule: see "
        "docs/dtensor.md.")
