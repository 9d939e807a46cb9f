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
"""The contract of each kind of boundary: layouts at its edges, and the collectives they cost.

The expected collectives are stated once here, and tests hold the counted ones against them.
"""
from dataclasses import dataclass
from typing import Dict

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Partial, Replicate, Shard

AXIS = "tp"
"""The mesh axis that plans cut over."""
ATTENTION, MLP, NORM, EMBEDDING, LM_HEAD = "attention", "mlp", "norm", "embedding", "lm_head"
BLOCK_ENTRY, FINAL_NORM = "block_entry", "final_norm"
CROSS_ATTENTION, MOE, STATE_SPACE = "cross_attention", "moe", "state_space"
ROW_LINEAR, SHARDED_NORM, INNER_ROW = "row_linear", "sharded_norm", "inner_row"
LATENT_ATTENTION = "latent_attention"
PARALLEL_BLOCK, FIRST_PARALLEL_BLOCK = "parallel_block", "first_parallel_block"
PARALLEL_ATTENTION, PARALLEL_MLP, RESIDUAL_READER = "parallel_attention", "parallel_mlp", "residual_reader"
FIRST_ENTRY = "first_entry"  # a column weight that carries the entry of the region around it
AUXILIARY_LOSS = "auxiliary_loss"  # a module inside of a mixture that adds a loss's gradient
REGIONS = (ATTENTION, LATENT_ATTENTION, MLP, MOE, STATE_SPACE, CROSS_ATTENTION)
HIDDEN, ENCODER_STATES = "hidden_states", "key_value_states"


@dataclass(frozen=True)
class ShardingTemplate:
    """Edges of one kind of boundary on the tensor-parallel axis.

    Args:
        enter_from: layout in which the first argument arrives.
        enter_as: layout that the body wants.
        leave_as: layout of what the body computes.
        leave_to: layout in which the result leaves.
        forward: collectives of one forward, `{kind: count}`.
        backward: collectives of one backward.
    """

    enter_from: NamedPlacement
    enter_as: NamedPlacement
    leave_as: NamedPlacement
    leave_to: NamedPlacement
    forward: Dict[str, int]
    backward: Dict[str, int]


_WHOLE: NamedPlacement = {AXIS: Replicate()}
_PARTIAL: NamedPlacement = {AXIS: Partial()}


def template_of(kind: str, sequence_parallel: bool, sequence_dim: int) -> ShardingTemplate:
    """The template of a kind of boundary, with or without sequence parallel.

    Args:
        kind: one of the module's constants.
        sequence_parallel: activations between regions are cut along the sequence.
        sequence_dim: dim of the sequence in an activation (0 in MindFormers, 1 elsewhere).
    """
    cut: NamedPlacement = {AXIS: Shard(sequence_dim)}
    if kind == CROSS_ATTENTION:
        # both the decoder's and the encoder's states meet cut weights, so both gradients are summed
        return ShardingTemplate(_WHOLE, _WHOLE, _PARTIAL, _WHOLE, {"all_reduce": 1}, {"all_reduce": 2})
    if kind == SHARDED_NORM:
        # the mean square over the cut dim: one number per token and rank, summed forward and backward
        return ShardingTemplate({AXIS: Shard(-1)}, {AXIS: Shard(-1)}, {AXIS: Shard(-1)}, {AXIS: Shard(-1)},
                                {"all_reduce": 1}, {"all_reduce": 1})
    if kind == INNER_ROW:
        return ShardingTemplate(_WHOLE, _WHOLE, _PARTIAL, _WHOLE, {"all_reduce": 1}, {"all_reduce": 1})
    if kind in REGIONS:
        if sequence_parallel:
            return ShardingTemplate(cut, _WHOLE, _PARTIAL, cut, {"all_gather": 1, "reduce_scatter": 1},
                                    {"all_gather": 1, "reduce_scatter": 1})
        return ShardingTemplate(_WHOLE, _WHOLE, _PARTIAL, _WHOLE, {"all_reduce": 1}, {"all_reduce": 1})
    if kind in (PARALLEL_BLOCK, FIRST_PARALLEL_BLOCK):
        # every rank holds 1/tp of the residual stream: added to the branches' partial sums, one reduction gives all
        gathers = sequence_parallel and kind == PARALLEL_BLOCK
        out, back = ("reduce_scatter", "all_gather") if sequence_parallel else ("all_reduce", None)
        entry = {"reduce_scatter": 1} if gathers else {"all_reduce": 1}
        return ShardingTemplate(cut if gathers else _WHOLE, _PARTIAL, _PARTIAL, cut if sequence_parallel else _WHOLE,
                                {**({"all_gather": 1} if gathers else {}), out: 1},
                                {**({back: 1} if back else {}), **entry})
    if kind == RESIDUAL_READER:
        return ShardingTemplate(_PARTIAL, _WHOLE, _WHOLE, _WHOLE, {}, {})
    if kind == EMBEDDING:
        return ShardingTemplate(_WHOLE, _WHOLE, _PARTIAL, _WHOLE, {"all_reduce": 1}, {})
    if kind == LM_HEAD:
        return ShardingTemplate(_WHOLE, _WHOLE, {AXIS: Shard(-1)}, _WHOLE, {"all_gather": 1}, {"all_reduce": 1})
    between = cut if sequence_parallel else _WHOLE
    if kind == BLOCK_ENTRY:
        return ShardingTemplate(_WHOLE, between, between, between, {}, {"all_gather": 1} if sequence_parallel else {})
    if kind == FINAL_NORM:
        return ShardingTemplate(between, between, between, _WHOLE, {"all_gather": 1} if sequence_parallel else {}, {})
    assert kind == NORM, f"no template for {kind}"
    return ShardingTemplate(between, between, between, between, {}, {})
