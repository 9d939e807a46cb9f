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
"""Parallel blocks, `x + attention(norm(x)) + mlp(norm(x))`: one reduction each way instead of one per region.

Every rank takes 1/tp of the residual stream into the block, and its readers (the norms) multiply it back. Attention and
MLP leave partial sums, so that what the block adds up on each rank is a summand of its whole result, the residual
stream included: one reduction at its end, and one of the gradient at its beginning.
"""
from dataclasses import replace
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Partial, Replicate
from hyper_parallel.distributed.boundaries import Boundary
from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.overrides import PlanOptions
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec
from hyper_parallel.distributed.residual_flow import ParallelFlow
from hyper_parallel.distributed.tensor_parallel import templates, words
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

_WHOLE: NamedPlacement = {AXIS: Replicate()}
_PARTIAL: NamedPlacement = {AXIS: Partial()}
FlowOf = Callable[[str], Optional[ParallelFlow]]


class ParallelBlock(NamedTuple):
    """A block whose attention and MLP share their edges.

    Args:
        path: of the block.
        attention: path of its attention.
        mlp: path of its MLP.
        readers: paths of the modules that read the residual stream.
    """

    path: str
    attention: str
    mlp: str
    readers: Tuple[str, ...]


def find_parallel_blocks(inventory: Inventory, decisions: Mapping[str, Decision], boundaries: Mapping[str, Boundary],
                         specs: Mapping[str, ModuleShardingSpec], flow_of: Optional[FlowOf]) -> List[ParallelBlock]:
    """The blocks of which a Cell's source, or without a Cell the configuration and the family, say that they are so.

    Args:
        inventory: the model.
        decisions: what each parameter is.
        boundaries: the regions.
        specs: their contracts; a region that is kept whole has none, and then its block shares nothing.
        flow_of: `{block path: how its forward uses the residual stream}` of a Cell; None without one.
    """
    held: Dict[str, Dict[str, List[str]]] = {}
    for path, boundary in boundaries.items():
        block, _, child = path.rpartition(".")
        if boundary.kind in (templates.ATTENTION, templates.MLP) and not boundary.is_split and child and path in specs \
                and specs[path].semantic_role == boundary.kind:
            held.setdefault(block, {}).setdefault(boundary.kind, []).append(path)
    found = []
    for block, regions in held.items():
        attentions, mlps = regions.get(templates.ATTENTION, []), regions.get(templates.MLP, [])
        if len(attentions) != 1 or len(mlps) != 1 or not block.rpartition(".")[2].isdigit():
            continue
        if flow_of is None and not _is_said(inventory, block):
            continue
        others = [path for path in boundaries if path.startswith(f"{block}.") and path not in attentions + mlps]
        readers = _norms(decisions, block) if flow_of is None else _readers(flow_of(block), block, attentions + mlps)
        if readers and not others:
            found.append(ParallelBlock(block, attentions[0], mlps[0], readers))
    return found


def _is_said(inventory: Inventory, block: str) -> bool:
    """A tower beside the language model has a configuration of its own, or says nothing."""
    if words.vision_segment(block.lower().split(".")) is not None and inventory.facts.tower is None:
        return False
    facts = inventory.facts_of(block)
    return find_adapter(facts).parallel_block if facts.parallel_block is None else facts.parallel_block


def _norms(decisions: Mapping[str, Decision], block: str) -> Tuple[str, ...]:
    owners = dict.fromkeys(path.rpartition(".")[0] for path, decision in decisions.items()
                           if decision.role is ParamRole.NORM)
    norms = tuple(owner for owner in owners if owner.rpartition(".")[0] == block)
    return norms if len(norms) in (1, 2) else ()


def _readers(flow: Optional[ParallelFlow], block: str, regions: List[str]) -> Tuple[str, ...]:
    if flow is None or {f"{block}.{child}" for child in flow.branches} != set(regions):
        return ()
    return tuple(sorted(f"{block}.{child}" for child in flow.readers))


def share_edges(blocks: List[ParallelBlock], specs: Dict[str, ModuleShardingSpec],
                parameters: Dict[str, ParameterSpec], options: PlanOptions):
    """Move the edges of attention and MLP to their block, in the specs and the parameters of a plan.

    Args:
        blocks: what `find_parallel_blocks` found.
        specs: changed in place.
        parameters: changed in place: norms and row biases work on partial values, so that their gradients are summed.
        options: the switches.
    """
    template = templates.template_of(templates.PARALLEL_BLOCK, options.sequence_parallel, options.sequence_dim)
    for block in blocks:
        specs[block.path] = ModuleShardingSpec(
            params={}, in_src={templates.HIDDEN: template.enter_from}, in_dst={templates.HIDDEN: template.enter_as},
            out_src=template.leave_as, out_dst=template.leave_to, local_compute_fn="residual_in_shares",
            semantic_role=templates.PARALLEL_BLOCK)
        for path, kind in ((block.attention, templates.PARALLEL_ATTENTION), (block.mlp, templates.PARALLEL_MLP)):
            specs[path] = replace(specs[path], in_src={}, in_dst={}, out_src=dict(_PARTIAL), out_dst=dict(_PARTIAL),
                                  semantic_role=kind)
            for row, spec in specs.items():
                if spec.local_compute_fn == "bias_after_reduction" and row.startswith(f"{path}."):
                    specs[row] = replace(spec, out_src=dict(_PARTIAL), out_dst=dict(_PARTIAL),
                                         local_compute_fn="bias_on_first_rank")
        for reader in block.readers:
            specs[reader] = ModuleShardingSpec(
                params={}, in_src={templates.HIDDEN: dict(_PARTIAL)}, in_dst={templates.HIDDEN: dict(_WHOLE)},
                out_src=dict(_WHOLE), out_dst=dict(_WHOLE), local_compute_fn="whole_from_share",
                semantic_role=templates.RESIDUAL_READER)
        for path, spec in parameters.items():
            if path.startswith(f"{block.path}.") and not spec.slice_map.cuts and spec.role != ParamRole.SKIP.name:
                parameters[path] = spec._replace(grad_sum_axes=(AXIS,))


def begins_the_sequence(spec: ModuleShardingSpec) -> ModuleShardingSpec:
    """The first block under sequence parallel: the embedding's result arrives whole, so that nothing is gathered."""
    return replace(spec, in_src={templates.HIDDEN: dict(_WHOLE)}, semantic_role=templates.FIRST_PARALLEL_BLOCK)


def check_flows(boundaries: Mapping[str, ModuleShardingSpec], flow_of: FlowOf):
    """A plan of parallel blocks fits a Cell only where its forward is plainly of that form.

    Raises:
        ValueError: names the block.
    """
    children: Dict[str, List[str]] = {}
    for path in boundaries:
        children.setdefault(path.rpartition(".")[0], []).append(path)
    for path, spec in boundaries.items():
        if spec.local_compute_fn != "residual_in_shares":
            continue
        regions = [child for child in children[path] if boundaries[child].semantic_role in (
            templates.PARALLEL_ATTENTION, templates.PARALLEL_MLP)]
        readers = tuple(sorted(child for child in children[path]
                               if boundaries[child].semantic_role == templates.RESIDUAL_READER))
        if _readers(flow_of(path), path, regions) != readers:
            raise ValueError(
                f"the plan lets attention and MLP of {path!r} share one reduction, but the source of its forward is "
                "not plainly x + attention(norm(x)) + mlp(norm(x)): plan again from this Cell, hp.plan(cell, tp=…), and "
                "each keeps its own")
