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
"""A plan meets the real Cell: names, argument names and head counts are checked, and written into a bound copy."""
import dataclasses
from typing import Dict

from hyper_parallel.core.dtensor.placement_types import Shard
from hyper_parallel.distributed import latent_query
from hyper_parallel.distributed.auxiliary_loss import find_auxiliary_losses
from hyper_parallel.distributed.bound_regions import fit_regions
from hyper_parallel.distributed.forward_reads import check_own_loss, check_tables, local_head_sizes
from hyper_parallel.distributed.head_slice import find_head_arguments
from hyper_parallel.distributed.inventory import Inventory, ModuleRecord, take_inventory
from hyper_parallel.distributed.local_sizes import find_local_sizes
from hyper_parallel.distributed.overrides import PlanOptions
from hyper_parallel.distributed.parallel_blocks import check_flows
from hyper_parallel.distributed.residual_flow import flows_of
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.sharded_norm import identify_norm
from hyper_parallel.distributed.state_space_local import find_state_sizes
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.evidence import nearest
from hyper_parallel.distributed.tensor_parallel.head_count import build_tp_local_attr_plan
from hyper_parallel.distributed.tensor_parallel.head_count_facts import cut_projections


def bind(plan: ShardingPlan, cell) -> ShardingPlan:
    """A copy of the plan that speaks of this Cell; the given plan is not changed.

    Args:
        plan: made from a Cell, a folder or a record with the same parameter names.
        cell (Cell): with whole parameters, real or meta.

    Raises:
        ValueError: a parameter or module is missing or has another shape, an argument that the plan names is not in the
            forward's signature, or a cached head count cannot be divided.
    """
    inventory = take_inventory(cell)
    _check_parameters(plan, inventory)
    options = PlanOptions(**plan.options) if plan.options else PlanOptions(tp=plan.tp)
    modules = dict(cell.cells_and_names())
    boundaries = {}
    for path, spec in plan.boundaries.items():
        if path not in inventory.modules:
            raise ValueError(f"the plan has a boundary {path!r}, which the Cell has not; nearest: "
                             f"{', '.join(nearest(path, inventory.modules))}")
        record = inventory.modules[path]
        in_heads = find_head_arguments(spec.head_arguments or {}, record.arguments) if path in plan.heads else None
        bound = dataclasses.replace(spec, head_arguments=in_heads or None,
                                    in_src=_arguments(spec.in_src, record, path),
                                    in_dst=_arguments(spec.in_dst, record, path))
        if path in plan.heads:
            bound._tp_local_attr_plan = build_tp_local_attr_plan(
                modules[path], head_view(bound, modules[path]), path, plan.tp, tuple(plan.mesh_axes),
                kv_replication=options.kv_replication)
        if spec.local_compute_fn == "norm_over_cut_dim":
            bound.local_compute_arguments = identify_norm(modules[path], path, len(record.arguments))
        boundaries[path] = bound
    boundaries.update(find_auxiliary_losses(boundaries, inventory))
    bound_plan, flows = fit_regions(dataclasses.replace(plan, boundaries=boundaries, bound=True), inventory, modules)
    local_sizes = find_local_sizes(bound_plan, inventory, modules)
    for path in [path for path in plan.heads if path in boundaries]:
        spec = bound_plan.boundaries[path]
        sizes = local_head_sizes(path, modules[path], plan.heads[path], plan.tp, spec._tp_local_attr_plan, spec,
                                 flows.get(path))
        local_sizes.setdefault(path, {}).update(sizes)
        if spec.local_compute_fn == latent_query.LOCAL_COMPUTE:
            rows = spec.local_compute_arguments["query_rows"]
            local_sizes[path].update({name: local for name, local in latent_query.find_query_size(
                path, modules[path], rows, plan.tp).items() if name not in (spec.tp_divide_attrs or ())})
    for path, spec in bound_plan.boundaries.items():
        if spec.local_compute_fn == "state_space_local":
            members = [plan.parameters[f"{path}.{name}" if path else name] for name in spec.params]
            local_sizes[path] = find_state_sizes(path, members, inventory, modules)
    for path, sizes in local_sizes.items():
        bound_plan.boundaries[path].local_sizes = sizes or None
    check_tables(bound_plan, modules)
    check_flows(boundaries, flows_of(cell))
    if options.loss_parallel:
        check_own_loss(bound_plan, modules)
    return bound_plan


_CANONICAL_PROJECTIONS = {f"{name}.weight": {"tp": Shard(0)} for name in ("q_proj", "k_proj", "v_proj")}


def head_view(spec: ModuleShardingSpec, module) -> ModuleShardingSpec:
    """The boundary as the head counts' own rules can read it: they know projections by their names, and the plan knows
    that this attention is cut by heads whatever its weights are called."""
    if cut_projections(spec, ("tp",), module):
        return spec
    return dataclasses.replace(spec, params=dict(_CANONICAL_PROJECTIONS))


def _check_parameters(plan: ShardingPlan, inventory: Inventory):
    missing = [path for path in plan.parameters if path not in inventory.parameters]
    extra = [path for path in inventory.parameters if path not in plan.parameters]
    if missing:
        raise ValueError(f"the plan has a parameter {missing[0]!r}, which the Cell has not; nearest: "
                         f"{', '.join(nearest(missing[0], inventory.parameters))}")
    if extra:
        raise ValueError(f"the Cell has a parameter {extra[0]!r}, which the plan has not; nearest: "
                         f"{', '.join(nearest(extra[0], plan.parameters))}. Plan again from this Cell")
    for path, spec in plan.parameters.items():
        shape = inventory.parameters[path].shape
        if shape != spec.shape:
            raise ValueError(f"{path!r} has shape {list(shape)} in the Cell and {list(spec.shape)} in the plan")


_ENCODER_ARGUMENTS = ("key_value_states", "encoder_hidden_states", "encoder_states", "encoder_output",
                      "encoder_outputs", "memory", "context", "kv_states", "cross_attention_states")


def _arguments(edges: Dict, record: ModuleRecord, path: str) -> Dict:
    """Edges keyed by the Cell's own argument names. The templates speak of `hidden_states`, which is the first argument
    wherever the Cell calls it otherwise, and of `key_value_states`, which goes by several names; a name that a user
    wrote must be there."""
    if not edges:
        return edges
    renamed = {}
    for name, placement in edges.items():
        if name not in record.arguments:
            if name == templates.ENCODER_STATES:
                found = next((other for other in _ENCODER_ARGUMENTS if other in record.arguments), None)
            else:
                found = record.arguments[0] if name == templates.HIDDEN and record.arguments else None
            if found is None:
                raise ValueError(f"{path!r} ({record.class_name}) has no argument {name!r}; its arguments: "
                                 f"{', '.join(record.arguments) or 'none'}")
            name = found
        renamed[name] = placement
    return renamed
