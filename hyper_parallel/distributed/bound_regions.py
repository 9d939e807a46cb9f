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
"""A region's contract meets the forward as it is written: where activations enter, and what follows the row weight.

A plan draws a region's edges around its module. That is right when the module does nothing but meet its weights. Where
its source shows more (a residual or a norm inside of it, query, key and value as arguments of their own), the edges move
to the weights, with the same collectives.
"""
import dataclasses
from typing import Any, Dict, Mapping, Optional, Tuple

from hyper_parallel.distributed.forward_flow import COLUMN, ROW, TABLE, Flow, Unreadable, read_flow
from hyper_parallel.distributed.forward_values import LOCAL, PARTIAL
from hyper_parallel.distributed.inventory import IN_OUT, Inventory
from hyper_parallel.distributed.inventory import TABLE as TABLE_LAYOUT
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

HEADS = "heads"
_PARALLEL = (templates.PARALLEL_ATTENTION, templates.PARALLEL_MLP)  # their edges are those of the block around them
_READ = (templates.ATTENTION, HEADS, templates.CROSS_ATTENTION, templates.LATENT_ATTENTION, templates.MLP)


def fit_regions(plan: ShardingPlan, inventory: Inventory, modules: Mapping
                ) -> Tuple[ShardingPlan, Dict[str, Flow]]:
    """The plan with its regions' edges where these Cells need them, and how their forwards run where that can be read.

    Args:
        plan: with argument names bound.
        inventory: the Cell's.
        modules: `{path: Cell}`.

    Raises:
        ValueError: what a region does with its input or its result fits no edges; says what, and the ways out.
    """
    fitter = _Fitter(plan, inventory, modules)
    for path, spec in plan.boundaries.items():
        if spec.semantic_role in _READ + _PARALLEL + (templates.MOE,):
            fitter.fit(path, spec)
    fitted = dataclasses.replace(plan, boundaries=fitter.boundaries, parameters=fitter.parameters,
                                 expected=fitter.expected)
    return fitted, fitter.flows


class _Fitter:
    """Collects the changes of one plan."""

    def __init__(self, plan: ShardingPlan, inventory: Inventory, modules: Mapping):
        self._inventory, self._modules = inventory, modules
        self.boundaries: Dict[str, ModuleShardingSpec] = dict(plan.boundaries)
        self.parameters: Dict[str, ParameterSpec] = dict(plan.parameters)
        self.expected = dict(plan.expected)
        self._is_on_sequence = bool(plan.options.get("sequence_parallel"))
        self._sequence_dim = plan.sequence_dim
        self._kinds: Dict[str, Optional[str]] = {}
        self._whole_below: Dict[str, bool] = {}
        self._known: Dict[Any, Flow] = {}
        self.flows: Dict[str, Flow] = {}
        for record in plan.parameters.values():
            kind = self._kind_of_weight(record)
            if kind is not None:
                self._kinds[record.path.rpartition(".")[0]] = kind

    def _kind_of_weight(self, spec: ParameterSpec) -> Optional[str]:
        if len(spec.shape) != 2 or not spec.slice_map.cuts or spec.first_rank_only:
            return None
        layout, dim = self._inventory.parameters[spec.path].layout, spec.slice_map.cuts[0].dim
        if layout == TABLE_LAYOUT:
            return TABLE
        return COLUMN if (dim == 0) != (layout == IN_OUT) else ROW

    def fit(self, path: str, spec: ModuleShardingSpec):
        """One region."""
        if path in self._kinds or not spec.in_dst and not spec.params:
            return  # the column weight itself, or nothing is cut
        try:
            flow = self._flow(path)
        except Unreadable:
            return
        self.flows[path] = flow
        if spec.semantic_role == templates.MOE:
            self._check_mixture(path, flow)
            return
        spec = dataclasses.replace(spec)
        if spec.semantic_role not in _PARALLEL:
            self._enter_everywhere(spec, flow)
            self._leave_at_row(path, spec, flow)
        if spec.semantic_role not in _PARALLEL and PARTIAL in flow.result and set(spec.in_dst or ()) & flow.result:
            self._enter_at_columns(path, spec, flow)
        self._drop_locally(spec, flow)
        self.boundaries[path] = spec

    def _flow(self, path: str) -> Flow:
        cell, prefix = self._modules[path], f"{path}." if path else ""
        names = [(name, type(module), self._kinds.get(prefix + name if name else path), _switches(module))
                 for name, module in cell.cells_and_names()]
        key = (type(cell), tuple(names))
        if key not in self._known:
            self._known[key] = read_flow(cell, lambda name: self._kinds.get(prefix + name if name else path))
        return self._known[key]

    def _check_mixture(self, path: str, flow: Flow):
        """A mixture's result leaves once, for all of its experts: nothing else can be in it."""
        name = type(self._modules[path]).__name__
        if flow.added:
            raise ValueError(
                f"{path!r} ({name}): line {min(flow.added)} of its forward adds its input to the experts' results, which "
                "every rank would do: add the residual around the module, or keep it whole with "
                f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
        losses = sorted(one for one in flow.kept if any(word in one for word in ("loss", "logits", "aux")))
        if losses:
            raise ValueError(
                f"{path!r} ({name}): its forward keeps self.{losses[0]} for later, past the region's edges, so that its "
                "gradient would count once for every rank: let it return the value beside its result, or keep the "
                f"module whole with auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")

    @staticmethod
    def _enter_everywhere(spec: ModuleShardingSpec, flow: Flow):
        """Arguments beside the planned ones that meet column weights enter alike."""
        more = sorted(flow.reaches_columns - set(spec.in_dst or ()))
        if more and spec.in_dst:
            first = next(iter(spec.in_dst))
            spec.in_src = {**spec.in_src, **{name: spec.in_src[first] for name in more}}
            spec.in_dst = {**spec.in_dst, **{name: spec.in_dst[first] for name in more}}

    def _leave_at_row(self, path: str, spec: ModuleShardingSpec, flow: Flow):
        """What follows the row weight and does not commute with the sum over the ranks comes after it."""
        if _reduces(spec) and flow.why_not_linear:
            if len(flow.rows) != 1:
                raise ValueError(
                    f"{path!r} goes on computing with its row weight's result ({flow.why_not_linear}), which has to be "
                    "summed over the ranks first, and its source does not say plainly which module gives it: call the "
                    "module in the forward itself, or keep it whole with auto_tp_config.overrides: "
                    f"[{{match: \"{path}.*\", replicate: true}}]")
            row = f"{path}.{flow.rows[0]}" if path else flow.rows[0]
            self.boundaries.setdefault(row, ModuleShardingSpec(
                params={}, in_src={}, in_dst={}, out_src=spec.out_src, out_dst=spec.out_dst,
                semantic_role=templates.ROW_LINEAR))
            spec.out_src = spec.out_dst
        if not self._is_on_sequence and all(_reduces(self.boundaries.get(f"{path}.{row}" if path else row))
                                            for row in flow.rows):
            self._gradients_are_whole(path, flow.after_row)

    def _enter_at_columns(self, path: str, spec: ModuleShardingSpec, flow: Flow):
        """The region's input also goes past its weights: its gradient is whole there, so the edge is at the weights."""
        columns = {module[len(path) + 1 if path else 0:] for module, kind in self._kinds.items()
                   if kind == COLUMN and (module.startswith(f"{path}.") or not path)}
        if self._is_on_sequence or spec.semantic_role == templates.LATENT_ATTENTION or set(flow.columns) != columns:
            raise ValueError(
                f"{path!r} ({type(self._modules[path]).__name__}) uses its own input beside its weights (a residual "
                "inside of it), which this version plans for plain attention and feed-forward layers that call their "
                "linears themselves, without sequence parallelism: add the residual around the module, or set "
                "use_seq_parallel: false, or keep it whole with auto_tp_config.overrides: "
                f"[{{match: \"{path}.*\", replicate: true}}]")
        first = next(iter(spec.in_dst))
        source, target = spec.in_src[first], spec.in_dst[first]
        for at, name in enumerate(flow.columns):
            column = f"{path}.{name}" if path else name
            argument = self._inventory.modules[column].arguments[0]
            cut = {leaf[len(name) + 1:]: placement for leaf, placement in (spec.params or {}).items()
                   if leaf.startswith(f"{name}.")}
            self.boundaries[column] = ModuleShardingSpec(
                params=cut, in_src={argument: source}, in_dst={argument: target},
                semantic_role=templates.FIRST_ENTRY if at == 0 else f"{spec.semantic_role}_entry")
        if len(flow.columns) > 1:
            template = templates.template_of(spec.semantic_role, False, self._sequence_dim)
            self.expected[f"{spec.semantic_role}_entry"] = {"forward": {}, "backward": {
                kind: 1 for kind in template.backward}}
        spec.in_src, spec.in_dst = {}, {}
        self._gradients_are_whole(path, flow.before_columns)

    def _gradients_are_whole(self, path: str, relative: Any):
        """Whole parameters outside of the edges are used alike on every rank."""
        for name in relative:
            full = f"{path}.{name}" if path else name
            for parameter in [one for one in self._below(full) if self.parameters[one].grad_sum_axes]:
                self.parameters[parameter] = self.parameters[parameter]._replace(grad_sum_axes=())

    def _below(self, path: str) -> Tuple[str, ...]:
        if path in self.parameters:
            return (path,)
        leaves = self._modules[path].parameters_and_names() if path in self._modules else ()
        return tuple(f"{path}.{name}" for name, _ in leaves if f"{path}.{name}" in self.parameters)

    @staticmethod
    def _drop_locally(spec: ModuleShardingSpec, flow: Flow):
        """Dropout on this rank's heads or columns draws numbers of its own."""
        local = tuple(sorted(name for name, tags in flow.dropouts.items() if LOCAL in tags and PARTIAL not in tags))
        spec.local_dropouts = local or None
        if flow.loose_dropouts:
            spec.local_window = {"opens": tuple(flow.columns), "closes": tuple(flow.rows)}


def _reduces(spec: Optional[ModuleShardingSpec]) -> bool:
    """Results are summed over the ranks on their way out."""
    source, target = ((named or {}).get(AXIS) for named in (spec.out_src, spec.out_dst)) if spec else (None, None)
    return source is not None and source.is_partial() and not (target is not None and target.is_partial())


def _switches(module) -> Tuple:
    """Plain attributes that can decide which way a forward goes."""
    return tuple((name, value) for name, value in vars(module).items() if not name.startswith("_")
                 and isinstance(value, (bool, type(None)))) + tuple(
                     (name, value) for name, value in vars(module).items()
                     if isinstance(value, str) and not name.startswith("_") and name != "param_prefix")
