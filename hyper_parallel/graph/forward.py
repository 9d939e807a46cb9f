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
"""One forward of a Cell without values: every primitive that a Cell holds is seen with its operands' layouts."""
import contextlib
import inspect
import math
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import mindspore
from mindspore import Parameter, Tensor, nn
from mindspore.ops import Primitive

from hyper_parallel.core.dtensor.ops.spec import Operand
from hyper_parallel.core.dtensor.placement_state import shard_orders
from hyper_parallel.core.dtensor.placement_types import Replicate, Shard
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel.templates import AXIS
from hyper_parallel.graph.traced import Recorder, Traced, whole

TensorLayout = Tuple[Tuple[str, ...], ...]
"""Per dim, the mesh axes that cut it, outermost first."""
# Without a word on the result, MindSpore scatters the sum of these over the tokens and gathers it again.
_SCATTERS = ("Gather",)


class Call(NamedTuple):
    """One call of a primitive that a Cell holds.

    Args:
        path: the Cell's path and the attribute's name.
        operator: the primitive's name.
        inputs: a TensorLayout for each tensor, those of a tuple opened, and None for a number.
        output: where a sum is scattered; None leaves it to the operator.
        reason: why no strategy follows; None if one does.
    """

    path: str
    operator: str
    inputs: Tuple[Optional[TensorLayout], ...]
    output: Optional[TensorLayout] = None
    reason: Optional[str] = None


class Forward:
    """Follows a Cell's forward.

    Args:
        cell: the model; it is left as it was.
        plan: for it, bound or not.
        mesh: with the plan's axes.
    """

    def __init__(self, cell, plan: ShardingPlan, mesh):
        self._cell, self._plan, self._mesh = cell, plan, mesh
        self._paths = {id(module): path for path, module in cell.cells_and_names()}
        self._arguments = {path: record.arguments for path, record in take_inventory(cell).modules.items()}
        self._owners = {id(primitive): f"{path}.{name}" if path else name for path, module in cell.cells_and_names()
                        for name, primitive in module._primitives.items() if primitive is not None}
        self._primitives = {id(primitive): primitive for _, module in cell.cells_and_names()
                            for primitive in module._primitives.values() if primitive is not None}
        self._tp = list(mesh.mesh_dim_names).index(AXIS) if AXIS in mesh.mesh_dim_names else None
        self._data = [axis for axis in mesh.mesh_dim_names if axis != AXIS]
        self._current: List[Primitive] = []
        self._scatter: List[bool] = [False]
        self.calls: List[Call] = []
        self.inputs: List[TensorLayout] = []

    def run(self, inputs: Sequence[Tensor]):
        """Follow the forward on tensors whose first dim is the batch; only shapes and dtypes are looked at.

        Raises:
            ValueError: the forward cannot be followed; the message says where.
        """
        traced = [Traced.of(whole(one.shape, one.dtype), self._batch(one.shape)) for one in inputs]
        self.inputs = [self._layout(one.ndim, one._placements) for one in traced]
        with self._substituted(), Recorder(self._mesh, self._note, self._resolve):
            try:
                self._call(self._cell, *traced)
            except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError, IndexError) as error:
                raise ValueError(
                    f"the forward of {type(self._cell).__name__} cannot be followed without values "
                    f"({str(error).splitlines()[0]}); it was given "
                    f"{', '.join(str(tuple(one.shape)) for one in inputs)}: pass inputs=(Tensor or shape, ...) of the "
                    "sizes that it expects, and keep control flow independent of values") from error

    def _batch(self, shape):
        parts = 1
        for axis in self._data:
            parts *= self._mesh.size(axis)
        divides = bool(shape) and shape[0] % parts == 0 and shape[0] > 1
        return [Shard(0) if name != AXIS and divides else Replicate() for name in self._mesh.mesh_dim_names]

    def _layout(self, ndim, placements) -> TensorLayout:
        names = self._mesh.mesh_dim_names
        return tuple(tuple(names[axis] for axis in order)
                     for order in shard_orders(placements, self._mesh.mesh_shape, ndim))

    @contextlib.contextmanager
    def _substituted(self):
        """Parameters and constants without values, Cells that run their forward, primitives that say who they are."""
        kept = []
        for path, module in self._cell.cells_and_names():
            for name, parameter in module._params.items():
                if isinstance(parameter, Parameter):
                    kept.append((module._params, name, parameter))
                    module._params[name] = self._parameter(f"{path}.{name}" if path else name, parameter)
            for name, constant in list(vars(module).items()):
                if isinstance(constant, Tensor):
                    kept.append((vars(module), name, constant))
                    replicated = [Replicate()] * self._mesh.ndim
                    vars(module)[name] = Traced.of(whole(constant.shape, constant.dtype), replicated)
        classes = {type(primitive): type(primitive).__call__ for primitive in self._primitives.values()}
        own_call = nn.Cell.__call__
        try:
            nn.Cell.__call__ = lambda cell, *args, **kwargs: self._call(cell, *args, **kwargs)
            for kind, original in classes.items():
                kind.__call__ = self._announced(original)
            yield
        finally:
            nn.Cell.__call__ = own_call
            for kind, original in classes.items():
                kind.__call__ = original
            for holder, name, tensor in kept:
                holder[name] = tensor

    def _announced(self, original):
        def call(primitive, *args, **kwargs):
            self._current.append(primitive)
            try:
                return original(primitive, *args, **kwargs)
            finally:
                self._current.pop()
        return call

    def _parameter(self, path, parameter):
        spec = self._plan._parameter(path)
        placements = [spec.placement.get(axis, Replicate()) for axis in self._mesh.mesh_dim_names]
        return Traced.of(whole(parameter.shape, parameter.dtype), placements)

    def _call(self, cell, *args, **kwargs):
        path = self._paths.get(id(cell))
        spec = self._plan.boundaries.get(path) if path is not None else None
        if spec is None:
            return cell.construct(*args, **kwargs)
        args, kwargs = self._entered(spec, self._arguments[path], args, kwargs)
        if spec.out_src or spec.out_dst:
            self._scatter.append(bool(spec.out_src and spec.out_src[AXIS].is_partial()
                                      and isinstance(spec.out_dst[AXIS], Shard)))
        output = cell.construct(*args, **kwargs)
        if spec.out_src or spec.out_dst:
            self._scatter.pop()
        return self._left(spec, output)

    def _entered(self, spec: ModuleShardingSpec, names, args, kwargs):
        args = list(args)
        for name, named in (spec.in_dst or {}).items():
            # a plan that is not bound calls the first argument by its template's name
            at = names.index(name) if name in names else 0
            if name in kwargs:
                kwargs[name] = self._on_tp(kwargs[name], named[AXIS])
            elif at < len(args):
                args[at] = self._on_tp(args[at], named[AXIS])
        return args, kwargs

    def _left(self, spec: ModuleShardingSpec, output):
        """Only where the sequence is cut: whatever else leaves a region is as its operators left it."""
        if not spec.out_dst or not isinstance(spec.out_dst[AXIS], Shard) or not self._plan.options["sequence_parallel"]:
            return output
        if isinstance(output, tuple):
            return (self._on_tp(output[0], spec.out_dst[AXIS]), *output[1:])
        return self._on_tp(output, spec.out_dst[AXIS])

    def _on_tp(self, tensor, placement):
        placements = list(tensor._placements)
        placements[self._tp] = placement
        return tensor.placed(placements)

    def _resolve(self, shape):
        """A sum is scattered over the sequence, or over the tokens where both dims are one; else everybody has it."""
        if not self._scatter[-1]:
            return Replicate()
        return Shard(0 if len(shape) == 2 else self._plan.sequence_dim)

    def _note(self, name, arguments, decided, has_rule, shape):
        if not self._current or id(self._current[-1]) not in self._owners or self._current[-1].name != name:
            return
        path = self._owners[id(self._current[-1])]
        reason = None if has_rule else f"{name} has no propagation rule for these operands"
        inputs = tuple(layout for one in arguments for layout in self._express(one, decided))
        output = None
        if any(one.is_partial() for one in decided.results[0]) and (self._scatter[-1] or name in _SCATTERS):
            placed = [self._resolve(shape) if one.is_partial() else one for one in decided.results[0]]
            output = self._layout(len(shape), placed)
        self.calls.append(Call(path, name, inputs, output, reason))

    def _express(self, argument, decided):
        """Layouts of an argument: one of a tensor, one for each of a tuple of tensors, None for a number."""
        if isinstance(argument, Operand):
            return [self._layout(argument.ndim, decided.targets[argument.index])]
        if isinstance(argument, (tuple, list)):
            return [layout for one in argument if isinstance(one, Operand) for layout in self._express(one, decided)]
        return [None] if isinstance(argument, (int, float)) else []


def inputs_of(cell, mesh, given: Optional[Sequence] = None) -> List[Tensor]:
    """What the forward is followed with: the user's tensors or shapes, else token ids of one sequence a data rank, as
    many times as the forward has arguments without a default (labels look like ids)."""
    if given is not None:
        return [one if isinstance(one, Tensor) else whole(one, mindspore.int32) for one in given]
    config: Any = getattr(cell, "config", None)
    length = next((getattr(config, key) for key in ("seq_length", "max_position_embeddings")
                   if isinstance(getattr(config, key, None), int)), 16)
    batch = math.prod(mesh.size(axis) for axis in mesh.mesh_dim_names if axis != AXIS)
    asked = [one for one in inspect.signature(cell.construct).parameters.values()
             if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [whole((batch, length), mindspore.int32) for _ in asked]
