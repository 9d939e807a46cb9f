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
"""The contract of every boundary, written from its template: parameters, edges, local computation, collectives."""
from typing import Dict, Mapping, Tuple

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard
from hyper_parallel.distributed import latent_query
from hyper_parallel.distributed.boundaries import REGION_KINDS, Boundary
from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.overrides import Overrides, PlanOptions
from hyper_parallel.distributed.parallel_blocks import begins_the_sequence
from hyper_parallel.distributed.placements import Filled
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec
from hyper_parallel.distributed.tensor_parallel import parts, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

_WHOLE: NamedPlacement = {AXIS: Replicate()}
_LOCAL: NamedPlacement = {AXIS: Shard(-1)}
_ATTENTIONS = (templates.ATTENTION, templates.CROSS_ATTENTION, templates.LATENT_ATTENTION)
HEADS = "heads"  # a module whose head counts become local, and whose edges are at the weights inside of it
_COUNTED = (templates.ATTENTION, templates.LATENT_ATTENTION, templates.CROSS_ATTENTION, templates.MLP, templates.MOE,
            templates.STATE_SPACE, templates.SHARDED_NORM, templates.INNER_ROW, templates.EMBEDDING, templates.LM_HEAD,
            templates.PARALLEL_BLOCK, templates.FIRST_PARALLEL_BLOCK, templates.BLOCK_ENTRY, templates.FINAL_NORM)


class BoundarySpecs:
    """Writes the specs of one plan.

    Args:
        inventory: the model.
        decisions: what each parameter is.
        boundaries: which module owns its contract.
        filled: the parameters' placements.
        options: the switches.
        overrides: the user's words.
    """

    def __init__(self, inventory: Inventory, decisions: Mapping[str, Decision], boundaries: Mapping[str, Boundary],
                 filled: Filled, options: PlanOptions, overrides: Overrides):
        self._inventory = inventory
        self._decisions = decisions
        self._boundaries = boundaries
        self._filled = filled
        self._options = options
        self._overrides = overrides
        self._adapter = find_adapter(inventory.facts)
        self._specs: Dict[str, ModuleShardingSpec] = {}

    def build(self) -> Dict[str, ModuleShardingSpec]:
        """`{module path: spec}`."""
        for boundary in self._boundaries.values():
            members = {path: self._filled.parameters[path] for path in boundary.members}
            template = templates.template_of(boundary.kind, self._options.sequence_parallel, self._options.sequence_dim)
            if not any(spec.slice_map.cuts for spec in members.values()):
                self._whole_region(boundary, template)
            elif boundary.is_split:
                self._split_region(boundary, members, template)
            else:
                self._region(boundary, members, template)
        for path in self._filled.sharded_norms:
            self._sharded_norm(path)
        for path, spec in self._specs.items():
            attrs = self._overrides.tp_divide_attrs(path)
            if attrs is not None:
                spec.tp_divide_attrs = attrs
        return self._specs

    def _edges(self, boundary: Boundary, template) -> Tuple[Dict[str, NamedPlacement], Dict[str, NamedPlacement]]:
        source, target = {templates.HIDDEN: template.enter_from}, {templates.HIDDEN: template.enter_as}
        if boundary.kind == templates.CROSS_ATTENTION:
            source[templates.ENCODER_STATES], target[templates.ENCODER_STATES] = _WHOLE, _WHOLE
        return source, target

    def _region(self, boundary: Boundary, members: Mapping[str, ParameterSpec], template):
        source, target = self._edges(boundary, template)
        spec = ModuleShardingSpec(
            params={_relative(path, boundary.path): dict(member.placement) for path, member in members.items()},
            in_src=source, in_dst=target, out_src=template.leave_as, out_dst=template.leave_to,
            semantic_role=boundary.kind)
        if boundary.kind == templates.EMBEDDING:
            spec.in_src = spec.in_dst = {}
            spec.local_compute_fn = "vocabulary_parallel_embedding"
        elif boundary.kind == templates.LM_HEAD:
            spec.out_size = next(member.shape[0] for member in members.values() if member.slice_map.cuts)
            if self._options.loss_parallel:
                spec.out_dst = dict(_LOCAL)
        self._name_special(boundary, spec)
        self._specs[boundary.path] = spec
        for path, member in members.items():
            decision = self._decisions[path]
            if member.role == ParamRole.BIAS.name:
                # the reduction moves to the linear that owns the bias, so that the bias is added once, after it
                self._specs[path.rpartition(".")[0]] = ModuleShardingSpec(
                    params={path.rpartition(".")[2]: dict(_WHOLE)}, in_src={}, in_dst={}, out_src=template.leave_as,
                    out_dst=template.leave_to, local_compute_fn="bias_after_reduction",
                    semantic_role=templates.ROW_LINEAR)
                spec.out_src = template.leave_to
            elif decision.part == parts.STATE_SMALL and not decision.is_bias:
                inner = templates.template_of(templates.INNER_ROW, False, self._options.sequence_dim)
                self._specs[path.rpartition(".")[0]] = ModuleShardingSpec(
                    params={path.rpartition(".")[2]: dict(member.placement)}, in_src={}, in_dst={},
                    out_src=inner.leave_as, out_dst=inner.leave_to, semantic_role=templates.INNER_ROW)

    def _name_special(self, boundary: Boundary, spec: ModuleShardingSpec):
        """What the module's own forward cannot do with local weights."""
        if boundary.kind in _ATTENTIONS:
            spec.head_arguments = dict(self._adapter.head_arguments or {}) if self._inventory.facts.alibi is not False \
                and self._adapter.head_arguments and boundary.kind == templates.ATTENTION and \
                self._inventory.facts.tower is None and self._has_slopes() else None
            kinds = {self._decisions[path].part for path in boundary.members}
            if boundary.kind == templates.LATENT_ATTENTION and parts.QUERY not in kinds:
                self._queries_beside_latent(boundary, spec)
        elif boundary.kind == templates.STATE_SPACE:
            spec.local_compute_fn = "state_space_local"

    def _queries_beside_latent(self, boundary: Boundary, spec: ModuleShardingSpec):
        """The projection to the latent holds the queries too, and a rank goes on with its own."""
        heads = self._filled.heads[boundary.path]
        joint = next(path for path in boundary.members if self._decisions[path].part == parts.LATENT
                     and not self._decisions[path].is_bias)
        linear = _relative(joint.rpartition(".")[0], boundary.path)
        spec.local_compute_fn = latent_query.LOCAL_COMPUTE
        spec.local_compute_arguments = {"linear": linear, "query_rows": heads.heads * heads.head_dim}

    def _has_slopes(self) -> bool:
        return self._inventory.facts.alibi is True or self._inventory.facts.model_type in ("bloom", "mpt")

    def _split_region(self, boundary: Boundary, members: Mapping[str, ParameterSpec], template):
        source, target = self._edges(boundary, template)
        for at, entry in enumerate(boundary.entries):
            held = {_relative(path, entry): dict(member.placement) for path, member in members.items()
                    if path.startswith(f"{entry}.") and not any(path.startswith(f"{row}.") for row in boundary.exits)}
            is_single = f"{entry}.weight" in members
            self._specs[entry] = ModuleShardingSpec(
                params=held, in_src={templates.HIDDEN: source[templates.HIDDEN]} if is_single else dict(source),
                in_dst={templates.HIDDEN: target[templates.HIDDEN]} if is_single else dict(target),
                out_src=dict(_LOCAL), out_dst=dict(_LOCAL),
                semantic_role=boundary.kind if at == 0 else f"{boundary.kind}_entry")
        for row in boundary.exits:
            held = {_relative(path, row): dict(member.placement) for path, member in members.items()
                    if path.startswith(f"{row}.")}
            has_bias = any(member.role == ParamRole.BIAS.name for path, member in members.items()
                           if path.startswith(f"{row}."))
            self._specs[row] = ModuleShardingSpec(
                params=held, in_src={}, in_dst={}, out_src=template.leave_as, out_dst=template.leave_to,
                local_compute_fn="bias_after_reduction" if has_bias else None, semantic_role=templates.ROW_LINEAR)
        if boundary.kind in _ATTENTIONS and len(boundary.entries) > 1 and boundary.path not in self._specs:
            self._specs[boundary.path] = ModuleShardingSpec(
                params={_relative(path, boundary.path): dict(member.placement) for path, member in members.items()},
                in_src={}, in_dst={}, semantic_role=HEADS)

    def _whole_region(self, boundary: Boundary, template):
        """A region that an override keeps whole computes the same on every rank: its edges only leave and enter the
        sequence's parts, if there are any."""
        if boundary.kind not in REGION_KINDS or not self._options.sequence_parallel:
            return
        if boundary.is_split:
            return  # its linears work on the sequence's part as they are
        self._specs[boundary.path] = ModuleShardingSpec(
            params={}, in_src={templates.HIDDEN: template.enter_from}, in_dst={templates.HIDDEN: dict(_WHOLE)},
            out_src=dict(_WHOLE), out_dst=template.leave_to, semantic_role=f"whole_{boundary.kind}")

    def _sharded_norm(self, path: str):
        owner, _, leaf = path.rpartition(".")
        template = templates.template_of(templates.SHARDED_NORM, False, self._options.sequence_dim)
        members = {other: spec for other, spec in self._filled.parameters.items() if other.startswith(f"{owner}.")}
        self._specs[owner] = ModuleShardingSpec(
            params={_relative(other, owner): dict(spec.placement) for other, spec in members.items()}, in_src={},
            in_dst={}, out_src=template.leave_as, out_dst=template.leave_to, local_compute_fn="norm_over_cut_dim",
            semantic_role=templates.SHARDED_NORM)
        assert leaf


def heads_by_module(boundaries: Mapping[str, Boundary], filled: Filled) -> Dict[str, HeadGeometry]:
    """Head geometry by the module whose counts become local."""
    found = {}
    for key, boundary in boundaries.items():
        if boundary.path in filled.heads:
            module = boundary.entries[0] if boundary.is_split and len(boundary.entries) == 1 else boundary.path
            found[module if boundary.is_split else key] = filled.heads[boundary.path]
    return found


def add_sequence_edges(specs: Dict[str, ModuleShardingSpec], first_block: str, final_norm: str, options: PlanOptions):
    """Sequence parallel begins before the first block and ends after the final norm."""
    for path, kind in ((first_block, templates.BLOCK_ENTRY), (final_norm, templates.FINAL_NORM)):
        template = templates.template_of(kind, options.sequence_parallel, options.sequence_dim)
        enters = kind == templates.BLOCK_ENTRY
        if enters and path in specs and specs[path].semantic_role == templates.PARALLEL_BLOCK:
            specs[path] = begins_the_sequence(specs[path])
            continue
        specs[path] = ModuleShardingSpec(
            params={}, in_src={templates.HIDDEN: template.enter_from} if enters else {},
            in_dst={templates.HIDDEN: template.enter_as} if enters else {},
            out_src=template.leave_as, out_dst=template.leave_to, semantic_role=kind)


def expected_collectives(specs: Mapping[str, ModuleShardingSpec], options: PlanOptions
                         ) -> Dict[str, Dict[str, Dict[str, int]]]:
    """`{kind: {"forward": {collective: count}, "backward": …}}` of the kinds that the plan holds."""
    kinds = {spec.semantic_role for spec in specs.values()}
    found: Dict[str, Dict[str, Dict[str, int]]] = {}
    for kind in _COUNTED:
        if kind in kinds:
            template = templates.template_of(kind, options.sequence_parallel, options.sequence_dim)
            found[kind] = {"forward": dict(template.forward), "backward": dict(template.backward)}
            if kind == templates.LM_HEAD and options.loss_parallel:
                found[kind]["forward"] = {}
            if f"{kind}_entry" in kinds:
                found[f"{kind}_entry"] = {"forward": {}, "backward": dict(template.backward)}
    for kind in kinds & {f"whole_{region}" for region in templates.REGIONS}:
        # the sequence is gathered on the way in and cut on the way out; backwards the other way round
        found[kind] = {"forward": {"all_gather": 1}, "backward": {"all_gather": 1}}
    return found


def _relative(path: str, module: str) -> str:
    return path[len(module) + 1:] if module and path.startswith(f"{module}.") else path
