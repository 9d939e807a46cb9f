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
"""Mixtral and Qwen3 MoE: a router over experts that are feed-forward layers of their own."""
from mindspore import nn, ops

from tests.models.decoder import MLP, Attention, Backbone, Block, CausalLM
from tests.models.layers import RMSNorm, silu


def mix(experts, hidden_states, weights, chosen):
    """The sum of the experts' outputs, each times its weight where a token has chosen it.

    Args:
        experts: feed-forward Cells.
        hidden_states: `[tokens, hidden]`.
        weights: `[tokens, k]`.
        chosen: `[tokens, k]`, indices of experts.
    """
    output = ops.zeros_like(hidden_states)
    for index, expert in enumerate(experts):
        share = ops.sum(weights * (chosen == index).astype(weights.dtype), -1, keepdim=True)
        output = output + share * expert(hidden_states)
    return output


class SparseMoeBlock(nn.Cell):
    """Router with softmax before the choice.

    Args:
        config: sizes.
        experts: feed-forward Cells.
        normalise: the chosen weights sum to one.
    """

    def __init__(self, config, experts, normalise):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.normalise = normalise
        self.gate = nn.Dense(config.hidden_size, len(experts), has_bias=False)
        self.experts = nn.CellList(experts)

    def construct(self, hidden_states):
        """The chosen experts' output, `[b, s, h]`."""
        batch, length, width = hidden_states.shape
        hidden_states = hidden_states.reshape((-1, width))
        weights, chosen = ops.topk(ops.softmax(self.gate(hidden_states), -1), self.top_k)
        if self.normalise:
            weights = weights / ops.sum(weights, -1, keepdim=True)
        return mix(self.experts, hidden_states, weights, chosen).reshape((batch, length, width))


class MixtralExpert(nn.Cell):
    """Gated feed-forward layer by Mixtral's names."""

    def __init__(self, config):
        super().__init__()
        self.w1 = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.w2 = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)
        self.w3 = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)

    def construct(self, hidden_states):
        """w2(silu(w1) * w3)."""
        return self.w2(silu(self.w1(hidden_states)) * self.w3(hidden_states))


class MixtralDecoderLayer(nn.Cell):
    """Pre-norm block with experts."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.block_sparse_moe = SparseMoeBlock(
            config, [MixtralExpert(config) for _ in range(config.num_local_experts)], True)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual experts."""
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        return hidden_states + self.block_sparse_moe(self.post_attention_layernorm(hidden_states))


def mixtral(config):
    """The model of a configuration."""
    return CausalLM(config, Backbone(config, [MixtralDecoderLayer(config) for _ in range(config.num_hidden_layers)]))


def qwen3_moe(config):
    """The model of a configuration."""
    config.qk_norm = True

    def block():
        experts = [MLP(config, config.moe_intermediate_size) for _ in range(config.num_experts)]
        return Block(config, Attention(config), SparseMoeBlock(config, experts, config.norm_topk_prob))

    return CausalLM(config, Backbone(config, [block() for _ in range(config.num_hidden_layers)]))
