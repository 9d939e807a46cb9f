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
from typing import Any, Optional, Sequence

from hyper_parallel.distributed.boundaries import find_boundaries, split_blocks
from hyper_parallel.distributed.boundary_specs import (
    BoundarySpecs, add_sequence_edges, expected_collectives, heads_by_module)
from hyper_parallel.distributed.checks import check_coverage, check_edges, check_head_is_cut, validate_model_compatibility
from hyper_parallel.distributed.inventory import Inventory, take_inventory
from hyper_parallel.distributed.overrides import PlanOptions, read_user_words
from hyper_parallel.distributed.parallel_blocks import FlowOf, find_parallel_blocks, share_edges
from hyper_parallel.distributed.placements import PlacementFiller
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.residual_flow import flows_of
from hyper_parallel.distributed.repeats import expand_modules, expand_parameters, find_repeats, paused_collection
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.evidence import EvidenceClassifier
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

__all__ = ["ShardingPlanner", "plan", "validate_model_compatibility"]

_PLAIN_KINDS = (templates.ATTENTION, templates.MLP, templates.EMBEDDING, templates.LM_HEAD)


class ShardingPlanner:
    """Plans one model after another with the same options.

    Args:
        options: the switches.
        rules: role rules, `{match: GLOB, role: ROLE}`.
        overrides: `{match: GLOB, replicate: true}`, or fused_layout, placement, tp_divide_attrs; see `Overrides`.

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
        with paused_collection():
            return self._plan(take_inventory(model, config), flows_of(model))

    def _plan(self, whole: Inventory, flow_of: Optional[FlowOf]) -> ShardingPlan:
        rules, overrides = read_user_words(self._rules, self._override_entries)
        repeats = find_repeats(whole, _marks(rules, overrides))
        inventory = repeats.reduced
        decisions = EvidenceClassifier(inventory, rules, self._options.unknown).classify(overrides.replicates)
        boundaries = find_boundaries(inventory, decisions, overrides.replicates) if self._options.tp > 1 else {}
        blocks, outside = split_blocks(inventory, boundaries, decisions)
        final_norm = self._final_norm(blocks, outside) if self._options.sequence_parallel and self._options.tp > 1 \
            else None
        on_sequence = blocks + [final_norm] if final_norm is not None else ()
        filled = PlacementFiller(inventory, decisions, boundaries, self._options, overrides, on_sequence).fill()
        specs = BoundarySpecs(inventory, decisions, boundaries, filled, self._options, overrides).build() \
            if self._options.tp > 1 else {}
        share_edges(find_parallel_blocks(inventory, decisions, boundaries, specs, flow_of), specs, filled.parameters,
                    self._options)
        overrides.check_all_used(inventory.parameters)
        check_coverage(inventory, filled.parameters, specs)
        check_edges(specs)
        notes = _notes(filled.parameters, boundaries.values(), repeats.counts())
        parameters = expand_parameters(repeats, filled.parameters)
        specs = expand_modules(repeats, specs)
        if final_norm is not None:
            add_sequence_edges(specs, blocks[0], final_norm, self._options)
        if self._options.loss_parallel and self._options.tp > 1:
            check_head_is_cut(specs)
        heads = {specs_path: (one.heads, one.kv_heads, one.head_dim)
                 for specs_path, one in expand_modules(repeats, heads_by_module(boundaries, filled)).items()}
        return ShardingPlan({AXIS: self._options.tp}, specs, parameters, heads, self._options.to_dict(),
                            self._options.sequence_dim, expected_collectives(specs, self._options),
                            notes=notes)

    def finalize(self, sharding_plan: ShardingPlan, cell) -> ShardingPlan:
        """Bind a plan to a Cell; see `ShardingPlan.bind`."""
        return sharding_plan.bind(cell)

    @staticmethod
    def _final_norm(blocks, outside) -> str:
        if not blocks or len(outside) != 1:
            raise ValueError(
                "sequence_parallel: the activations are cut from the first block to the one norm after the last block; "
                f"this model has {len(outside)} norms outside of its blocks ({', '.join(outside) or 'none'})"
                f"{'' if blocks else ' and no blocks'}. Set use_seq_parallel: false")
        return outside[0]


def _marks(rules, overrides):
    """What the user's words say of a path; None where there are none."""
    if not rules and not len(overrides):
        return None
    return lambda path: (overrides.marks(path), tuple(at for at, rule in enumerate(rules) if rule.matches(path)))


def _notes(parameters, boundaries, counts) -> tuple:
    """What a reader should know.

    Args:
        parameters: of the reduced model.
        boundaries: of the reduced model.
        counts: how many parameters each stands for.
    """
    notes = []
    copied = [spec for spec in parameters.values() if spec.copies > 1]
    if copied:
        notes.append(f"{sum(counts[spec.path] for spec in copied)} parameters hold rows that {copied[0].copies} "
                     "neighbouring ranks share; their gradients are summed among those ranks")
    padded = [spec.path for spec in parameters.values() if spec.slice_map.has_padding and not spec.first_rank_only]
    if padded:
        notes.append(f"padded on the last ranks: {', '.join(padded)}; checkpoints stay unpadded")
    first = sum(counts[spec.path] for spec in parameters.values() if spec.first_rank_only)
    if first:
        notes.append(f"{first} biases are added before a reduction: the first rank keeps them, the others hold zeros "
                     "that have to stay zero")
    kinds = sorted({boundary.kind for boundary in boundaries} - set(_PLAIN_KINDS))
    if kinds:
        notes.append(f"holds {', '.join(kinds)}")
    return tuple(notes)


def plan(model: Any, tp: int = 1, *, sequence_parallel: bool = False, loss_parallel: bool = False,
         kv_replication: bool = True, vocab_padding: bool = True, unknown: str = "error", rules: Sequence = (),
         overrides: Sequence = (), sequence_dim: int = 1, config: Any = None) -> ShardingPlan:
    """Plan tensor parallelism for a model. One process, no device.

    Args:
        model: a Cell (the plan is then bound to it), a folder with `config.json` and `*.safetensors`, or an inventory.
        tp: size of the tensor-parallel axis.
        sequence_parallel: cut activations between regions along the sequence.
        loss_parallel: the model returns its logits cut over the vocabulary, for `VocabParallelCrossEntropy`.
        kv_replication: copy kv heads where there are fewer than ranks; False refuses.
        vocab_padding: pad a vocabulary that tp does not divide; False refuses.
        unknown: "error", or "replicate" to keep whole what nothing decides.
        rules: `{match: GLOB, role: ROLE}`.
        overrides: `{match: GLOB, replicate: true}`, or fused_layout, placement, tp_divide_attrs.
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
