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
"""`to_mindspore_strategies`: the plan as Layouts on the operators that a Cell holds, for MindSpore's graph mode."""
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mindspore.parallel import Layout

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.distributed.checks import check_mesh
from hyper_parallel.distributed.json_file import write_json
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.graph.forward import Call, Forward, TensorLayout, inputs_of
from hyper_parallel.graph.refusals import refuse_inexpressible

# MindSpore infers a strategy for these from their neighbours and takes none.
_INFERRED = ("Reshape", "Shape", "TensorShape", "Depend", "StopGradient", "Rank", "DType")
# Numbers among the operands of these become tensors, so that a strategy has an (empty) entry for them.
_PROMOTES = ("Add", "Sub", "Mul", "Div", "RealDiv", "FloorDiv", "Maximum", "Minimum", "Pow", "Equal", "NotEqual",
             "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr")


class OperatorStrategy(NamedTuple):
    """The strategy of one primitive.

    Args:
        path: the Cell's path and the attribute's name.
        operator: the primitive's name.
        inputs: per tensor operand, per dim, the mesh axes that cut it.
        output: the same of the result, where it is not what follows from the inputs; else None.
    """

    path: str
    operator: str
    inputs: Tuple[TensorLayout, ...]
    output: Optional[TensorLayout] = None


@dataclass
class GraphStrategies:
    """What `to_mindspore_strategies` decided: plain data, and the means to set it on a Cell.

    Args:
        mesh_shape: ranks along each axis.
        mesh_axes: names of the axes, outermost first.
        parameters: `{path: per dim, the axes that cut it}`.
        operators: strategies by path.
        inputs: layout of each input of the network.
        derived: `{path: why}` of primitives whose strategy MindSpore derives itself.
        by_parameter: names of parameters that no primitive with a strategy takes: their layout is set on them alone.
    """

    mesh_shape: Tuple[int, ...]
    mesh_axes: Tuple[str, ...]
    parameters: Dict[str, TensorLayout]
    operators: Dict[str, OperatorStrategy]
    inputs: Tuple[TensorLayout, ...]
    derived: Dict[str, str] = field(default_factory=dict)
    by_parameter: Tuple[str, ...] = ()

    def layout(self, dims: TensorLayout) -> Layout:
        """A MindSpore Layout; axes of one rank, which some operators refuse, are left out."""
        sizes = self._sizes() or dict(zip(self.mesh_axes[:1], self.mesh_shape[:1]))
        kept = [tuple(axis for axis in axes if axis in sizes) for axes in dims]
        made = Layout(tuple(sizes.values()), tuple(sizes))
        return made(*(axes if len(axes) > 1 else axes[0] if axes else "None" for axes in kept))

    def _sizes(self) -> Dict[str, int]:
        return {axis: size for axis, size in zip(self.mesh_axes, self.mesh_shape) if size > 1}

    def set_on(self, cell) -> List[str]:
        """Set every strategy on a Cell's primitives; those that have one keep it.

        Primitives that no Cell holds, as functions of `mindspore.ops` use them, get theirs by MindSpore's propagation
        from the others, in `semi_auto_parallel` too: the Cell's inputs are laid out by `Cell.shard`.

        Returns:
            Paths of the primitives that had a strategy already.
        """
        modules, kept = dict(cell.cells_and_names()), []
        for path, strategy in self.operators.items():
            owner, _, name = path.rpartition(".")
            primitive = modules[owner]._primitives[name]
            if has_strategy(primitive):
                kept.append(path)
                continue
            primitive.shard(*self._forms(strategy))
        names = dict(cell.parameters_and_names())
        plan = {names[path].name: self.layout(self.parameters[path]) for path in self.by_parameter}
        cell.shard(in_strategy=tuple(self.layout(one) for one in self.inputs), parameter_plan=plan or None)
        return kept

    def auto_parallel(self, network, mode: str = "sharding_propagation"):
        """The network inside MindSpore's `AutoParallel`, with the dataset laid out as the plan's inputs are.

        Args:
            network: the Cell that trains, or the model itself.
            mode: `sharding_propagation` or `semi_auto`.
        """
        from mindspore.parallel.auto_parallel import AutoParallel
        wrapped = AutoParallel(network, mode)
        wrapped.dataset_strategy(tuple(self.layout(one) for one in self.inputs))
        return wrapped

    def to_dict(self) -> Dict[str, Any]:
        """Plain data for JSON: per dim an axis, "None", or a list of axes, as `Layout` takes them."""
        return {"mesh": dict(zip(self.mesh_axes, self.mesh_shape)),
                "inputs": [_named(one) for one in self.inputs],
                "parameters": {path: _named(dims) for path, dims in self.parameters.items()},
                "operators": {path: {"operator": one.operator, "inputs": [_named(dims) for dims in one.inputs],
                                     **({} if one.output is None else {"output": _named(one.output)})}
                              for path, one in self.operators.items()},
                "derived": dict(self.derived), "by_parameter": list(self.by_parameter)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GraphStrategies":
        """The inverse of `to_dict`."""
        operators = {path: OperatorStrategy(path, one["operator"], tuple(_axes(dims) for dims in one["inputs"]),
                                            _axes(one["output"]) if "output" in one else None)
                     for path, one in data["operators"].items()}
        return cls(tuple(data["mesh"].values()), tuple(data["mesh"]),
                   {path: _axes(dims) for path, dims in data["parameters"].items()}, operators,
                   tuple(_axes(one) for one in data["inputs"]), dict(data["derived"]), tuple(data["by_parameter"]))

    def save(self, file: Union[str, Path]) -> Path:
        """Write `to_dict` as JSON; folders are made."""
        return write_json(file, self.to_dict())

    @classmethod
    def load(cls, file: Union[str, Path]) -> "GraphStrategies":
        """Read what `save` wrote."""
        return cls.from_dict(json.loads(Path(file).read_text(encoding="utf-8")))

    def _forms(self, strategy: OperatorStrategy):
        """What `shard` takes for the inputs and the output.

        Numbers of parts, which every operator takes, where they say the same as Layouts: MindSpore arranges the ranks
        for them by the operands' dims, in order, and puts ranks that compute the same last.
        """
        sizes = self._sizes()
        cut = [[axis for axes in dims for axis in axes if axis in sizes] for dims in strategy.inputs]
        in_order = all(axes == sorted(axes, key=self.mesh_axes.index) for axes in cut)
        single = all(len(axes) <= 1 for dims in strategy.inputs for axes in dims)
        used = {axis for axes in cut for axis in axes}
        outermost = used == set(list(sizes)[:len(used)])
        form = self._parts if single and in_order and outermost else self.layout
        return (tuple(form(dims) for dims in strategy.inputs),
                None if strategy.output is None else (form(strategy.output),))

    def _parts(self, dims: TensorLayout) -> Tuple[int, ...]:
        return tuple(math.prod(self._sizes().get(axis, 1) for axis in axes) for axes in dims)


def has_strategy(primitive) -> bool:
    """True where somebody has called `shard` on it."""
    return any(key in primitive.attrs for key in ("in_strategy", "in_layout", "out_strategy", "out_layout"))


def _named(dims):
    return [list(axes) if len(axes) > 1 else axes[0] if axes else "None" for axes in dims]


def _axes(dims):
    return tuple(tuple(one) if isinstance(one, list) else () if one == "None" else (one,) for one in dims)


def to_mindspore_strategies(cell, plan: ShardingPlan, mesh, *, inputs: Optional[Sequence] = None,
                            set_on_cell: bool = True) -> GraphStrategies:
    """A plan as MindSpore Layouts, for `semi_auto_parallel` and sharding propagation in graph mode.

    The Cell keeps its whole parameters; MindSpore's compiler cuts them. The forward is followed once without values, on
    shapes and the plan's layouts, so that every primitive that a Cell holds gets its strategy: those of `nn.Dense`,
    `nn.Embedding`, `nn.LayerNorm`, and those of one's own Cells.

    Args:
        cell (Cell): the model, also one without initialised weights.
        plan: for it. It need not be bound: the compiler keeps the shapes of the whole, so that no head count changes.
        mesh: a DeviceMesh, or `{axis: ranks}`, outermost axis first. Axes that the plan does not cut over are data
            parallel and cut the inputs' first dim.
        inputs: tensors or shapes (of int32) that the forward takes; by default token ids of one sequence a data rank.
        set_on_cell: call `.shard()` on the primitives; False only decides.

    Returns:
        GraphStrategies: what was decided; `to_dict()` or `save(file)` to look at, `auto_parallel(network)` to compile.

    Raises:
        ValueError: a parameter that no Layout describes, a mesh that does not fit the plan, or a forward that cannot be
            followed; the message names it and the way out.

    Examples:
        >>> strategies = hp.to_mindspore_strategies(model, hp.plan(model, tp=4), {"dp": 2, "tp": 4})
        >>> net = strategies.auto_parallel(train_one_step)          # or in a `semi_auto_parallel` context, as it is
    """
    if isinstance(mesh, Mapping):
        mesh = DeviceMesh("npu", tuple(mesh.values()), tuple(mesh))
    check_mesh(plan.mesh_axes, mesh)
    refuse_inexpressible(plan)
    forward = Forward(cell, plan, mesh)
    forward.run(inputs_of(cell, mesh, inputs))
    operators, derived = _strategies(forward.calls)
    parameters = {path: _layout_of(spec) for path, spec in plan.parameters.items()}
    strategies = GraphStrategies(tuple(mesh.mesh_shape), tuple(mesh.mesh_dim_names), parameters, operators,
                                 tuple(forward.inputs), derived,
                                 _without_operator(cell, plan, operators))
    if set_on_cell:
        strategies.set_on(cell)
    return strategies


def _layout_of(spec) -> TensorLayout:
    placed = {placement.dim: axis for axis, placement in spec.placement.items() if placement.is_shard()}
    return tuple((placed[dim],) if dim in placed else () for dim in range(len(spec.shape)))


def _strategies(calls: Sequence[Call]) -> Tuple[Dict[str, OperatorStrategy], Dict[str, str]]:
    found: Dict[str, OperatorStrategy] = {}
    derived: Dict[str, str] = {}
    for call in calls:
        if call.operator in _INFERRED or call.path in derived:
            continue
        inputs = tuple(call.inputs if call.operator in _PROMOTES else (one for one in call.inputs if one is not None))
        inputs = tuple(one or () for one in inputs)
        strategy = OperatorStrategy(call.path, call.operator, inputs, call.output)
        if call.reason:
            derived[call.path] = call.reason
        elif found.setdefault(call.path, strategy) != strategy:
            derived[call.path] = f"one {call.operator} is used on tensors of different layouts: hold one for each use"
    return {path: one for path, one in found.items() if path not in derived}, derived


def _without_operator(cell, plan, operators) -> Tuple[str, ...]:
    """Cut parameters whose owner has no primitive with a strategy."""
    owners = {path.rpartition(".")[0] for path in operators}
    return tuple(path for path, _ in cell.parameters_and_names() if plan.parameters[path].slice_map.cuts
                 and path.rpartition(".")[0] not in owners)
