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
"""Qwen2: biases on query, key and value only; its experts have a shared one with a gate of its own."""
from mindspore import nn, ops

from tests.models.decoder import MLP, Attention, Backbone, Block, CausalLM
from tests.models.moe import mix


class Qwen2Attention(Attention):
    """Grouped-query attention with biased inputs."""

    def __init__(self, config):
        super().__init__(config)
        hidden, size = config.hidden_size, self.head_dim
        self.q_proj = nn.Dense(hidden, self.num_heads * size)
        self.k_proj = nn.Dense(hidden, self.num_key_value_heads * size)
        self.v_proj = nn.Dense(hidden, self.num_key_value_heads * size)


class Qwen2MoeSparseMoeBlock(nn.Cell):
    """Routed experts, and one that every token goes through in its own measure."""

    def __init__(self, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Dense(config.hidden_size, config.num_experts, has_bias=False)
        self.experts = nn.CellList([MLP(config, config.moe_intermediate_size) for _ in range(config.num_experts)])
        self.shared_expert = MLP(config, config.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Dense(config.hidden_size, 1, has_bias=False)

    def construct(self, hidden_states):
        """Routed and shared output, `[b, s, h]`."""
        batch, length, width = hidden_states.shape
        hidden_states = hidden_states.reshape((-1, width))
        weights, chosen = ops.topk(ops.softmax(self.gate(hidden_states), -1), self.top_k)
        output = mix(self.experts, hidden_states, weights, chosen)
        shared = ops.sigmoid(self.shared_expert_gate(hidden_states)) * self.shared_expert(hidden_states)
        return (output + shared).reshape((batch, length, width))


def qwen2(config):
    """The model of a configuration."""
    layers = [Block(config, Qwen2Attention(config)) for _ in range(config.num_hidden_layers)]
    return CausalLM(config, Backbone(config, layers))


def qwen2_moe(config):
    """The model of a configuration."""
    layers = [Block(config, Qwen2Attention(config), Qwen2MoeSparseMoeBlock(config))
              for _ in range(config.num_hidden_layers)]
    return CausalLM(config, Backbone(config, layers))
