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
"""From a model to a written plan: roles, boundaries, templates, placements, checks."""
from typing import Any, Dict, Mapping, Sequence

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate
from hyper_parallel.distributed.boundaries import Boundary, find_boundaries, split_blocks
from hyper_parallel.distributed.checks import check_coverage, validate_model_compatibility
from hyper_parallel.distributed.inventory import Inventory, take_inventory
from hyper_parallel.distributed.overrides import Overrides, PlanOptions, read_user_words
from hyper_parallel.distributed.placements import AXIS, Filled, PlacementFiller
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.evidence import EvidenceClassifier
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

__all__ = ["ShardingPlanner", "plan", "validate_model_compatibility"]

_WHOLE: NamedPlacement = {AXIS: Replicate()}


class ShardingPlanner:
    """Plans one model after another with the same options.

    Args:
        options: the switches.
        rules: role rules, `{match: GLOB, role: ROLE}`.
        overrides: `{match: GLOB, replicate: true}` or `{match: GLOB, fused_layout: NAME}`.

    Examples:
        >>> ShardingPlanner(PlanOptions(tp=2)).plan("checkpoints/llama").parameters["lm_head.weight"].role
        'LM_HEAD'
    """

    def __init__(self, options: PlanOptions = PlanOptions(), rules: Sequence = (), overrides: Sequence = ()):
        self._options = options
        self._rules, self._override_entries = rules, overrides

    def plan(self, model: Any, config: Any = None) -> ShardingPlan:
        """Decide from names, shapes and configuration; no forward is looked at.

        Args:
            model: a Cell, a folder, a JSON record or an Inventory.
            config: configuration to use instead of the model's own.

        Raises:
            ValueError: something cannot be decided or cannot be cut; see the message.
        """
        inventory = take_inventory(model, config)
        rules, overrides = read_user_words(self._rules, self._override_entries)
        decisions = EvidenceClassifier(inventory, rules, self._options.unknown).classify()
        boundaries = find_boundaries(inventory, decisions)
        blocks, outside = split_blocks(inventory, boundaries)
        final_norm = self._final_norm(blocks, outside) if self._options.sequence_parallel else None
        on_sequence = blocks + [final_norm] if final_norm is not None else ()
        filled = PlacementFiller(inventory, decisions, boundaries, self._options, overrides, on_sequence).fill()
        overrides.check_all_used(inventory.parameters)
        specs = self._boundary_specs(boundaries, filled)
        if final_norm is not None and self._options.tp > 1:
            self._add_sequence_edges(specs, blocks[0], final_norm)
        check_coverage(inventory, filled.parameters)
        return ShardingPlan(
            {AXIS: self._options.tp}, specs, filled.parameters,
            {path: (heads.heads, heads.kv_heads, heads.head_dim) for path, heads in filled.heads.items()},
            self._options.to_dict(), self._options.sequence_dim, self._expected(specs),
            notes=_notes(filled.parameters.values()))

    def finalize(self, sharding_plan: ShardingPlan, cell) -> ShardingPlan:
        """Bind a plan to a Cell; see `ShardingPlan.bind`."""
        return sharding_plan.bind(cell)

    def _template(self, kind: str) -> templates.ShardingTemplate:
        return templates.template_of(kind, self._options.sequence_parallel, self._options.sequence_dim)

    def _boundary_specs(self, boundaries: Mapping[str, Boundary], filled: Filled) -> Dict[str, ModuleShardingSpec]:
        specs: Dict[str, ModuleShardingSpec] = {}
        if self._options.tp == 1:
            return specs
        for boundary in boundaries.values():
            members = {path: filled.parameters[path] for path in boundary.members}
            cut = {path: spec for path, spec in members.items() if spec.slice_map.cuts}
            template = self._template(boundary.kind)
            if not cut:
                specs.update(self._whole_region(boundary, template))
                continue
            spec = ModuleShardingSpec(
                params={_relative(path, boundary.path): dict(member.placement) for path, member in members.items()},
                in_src={templates.HIDDEN: template.enter_from}, in_dst={templates.HIDDEN: template.enter_as},
                out_src=template.leave_as, out_dst=template.leave_to, semantic_role=boundary.kind)
            if boundary.kind == templates.EMBEDDING:
                spec.in_src = spec.in_dst = {}
                spec.local_compute_fn = "vocabulary_parallel_embedding"
            if boundary.kind == templates.LM_HEAD:
                spec.out_size = next(iter(cut.values())).shape[0]
            specs[boundary.path] = spec
            for path, member in members.items():
                if member.role == ParamRole.BIAS.name:
                    # the reduction moves to the linear that owns the bias, so that the bias is added once, after it
                    specs[path.rpartition(".")[0]] = ModuleShardingSpec(
                        params={path.rpartition(".")[2]: dict(_WHOLE)}, in_src={}, in_dst={}, out_src=spec.out_src,
                        out_dst=template.leave_to, local_compute_fn="bias_after_reduction", semantic_role="row_linear")
                    spec.out_src = template.leave_to
        return specs

    def _whole_region(self, boundary: Boundary, template) -> Dict[str, ModuleShardingSpec]:
        """A region that an override keeps whole computes the same on every rank: its edges only leave and enter the
        sequence's parts, if there are any."""
        if boundary.kind not in (templates.ATTENTION, templates.MLP) or not self._options.sequence_parallel:
            return {}
        return {boundary.path: ModuleShardingSpec(
            params={}, in_src={templates.HIDDEN: template.enter_from}, in_dst={templates.HIDDEN: dict(_WHOLE)},
            out_src=dict(_WHOLE), out_dst=template.leave_to, semantic_role=f"whole_{boundary.kind}")}

    def _add_sequence_edges(self, specs: Dict[str, ModuleShardingSpec], first_block: str, final_norm: str):
        for path, kind in ((first_block, templates.BLOCK_ENTRY), (final_norm, templates.FINAL_NORM)):
            template = self._template(kind)
            enters = kind == templates.BLOCK_ENTRY
            specs[path] = ModuleShardingSpec(
                params={}, in_src={templates.HIDDEN: template.enter_from} if enters else {},
                in_dst={templates.HIDDEN: template.enter_as} if enters else {},
                out_src=template.leave_as, out_dst=template.leave_to, semantic_role=kind)

    @staticmethod
    def _final_norm(blocks, outside) -> str:
        if not blocks or len(outside) != 1:
            raise ValueError(
                "sequence_parallel: the activations are cut from the first block to the one norm after the last block; "
                f"found {len(blocks)} blocks and {len(outside)} norms outside of them ({', '.join(outside) or 'none'}). "
                "Set use_seq_parallel: false")
        return outside[0]

    def _expected(self, specs: Mapping[str, ModuleShardingSpec]) -> Dict[str, Dict[str, Dict[str, int]]]:
        kinds = {spec.semantic_role for spec in specs.values()}
        known = (templates.ATTENTION, templates.MLP, templates.EMBEDDING, templates.LM_HEAD, templates.BLOCK_ENTRY,
                 templates.FINAL_NORM)
        return {kind: {"forward": self._template(kind).forward, "backward": self._template(kind).backward}
                for kind in known if kind in kinds}


def _relative(path: str, module: str) -> str:
    return path[len(module) + 1:] if module and path.startswith(f"{module}.") else path


def _notes(parameters) -> tuple:
    notes = []
    copied = [spec for spec in parameters if spec.copies > 1]
    if copied:
        notes.append(f"{len(copied)} parameters hold kv heads that {copied[0].copies} neighbouring ranks share; their "
                     "gradients are summed among those ranks")
    padded = [spec.path for spec in parameters if spec.slice_map.has_padding]
    if padded:
        notes.append(f"padded on the last ranks: {', '.join(padded)}; checkpoints stay unpadded")
    return tuple(notes)


def plan(model: Any, tp: int = 1, *, sequence_parallel: bool = False, loss_parallel: bool = False,
         kv_replication: bool = True, vocab_padding: bool = True, unknown: str = "error", rules: Sequence = (),
         overrides: Sequence = (), sequence_dim: int = 1, config: Any = None) -> ShardingPlan:
    """Plan tensor parallelism for a model. One process, no device.

    Args:
        model: a Cell (the plan is then bound to it), a folder with `config.json` and `*.safetensors`, or an inventory.
        tp: size of the tensor-parallel axis.
        sequence_parallel: cut activations between regions along the sequence.
        loss_parallel: keep the logits cut over the vocabulary; refused in this version.
        kv_replication: copy kv heads where there are fewer than ranks; False refuses.
        vocab_padding: pad a vocabulary that tp does not divide; False refuses.
        unknown: "error", or "replicate" to keep whole what nothing decides.
        rules: `{match: GLOB, role: ROLE}`.
        overrides: `{match: GLOB, replicate: true}` or `{match: GLOB, fused_layout: NAME}`.
        sequence_dim: dim of the sequence in an activation (1; 0 in MindFormers' `[S, B, H]`).
        config: configuration to use instead of the model's own.

    Returns:
        ShardingPlan: print `plan.explain()` to read it.

    Raises:
        ValueError: something cannot be decided or cannot be cut; the message names it, the numbers, the valid choices
            and the key that changes it.

    Examples:
        >>> print(hp.plan(model, tp=2).explain())
    """
    options = PlanOptions(tp, sequence_parallel, loss_parallel, kv_replication, vocab_padding, unknown, sequence_dim)
    made = ShardingPlanner(options, rules, overrides).plan(model, config)
    return made.bind(model) if hasattr(model, "cells_and_names") and not isinstance(model, Inventory) else made
