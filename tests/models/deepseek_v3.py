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
"""DeepSeek-V3: multi-head latent attention, sigmoid routing with a correction bias, shared experts."""
from mindspore import nn, ops

from tests.models.decoder import MLP, POSITIONS, Backbone, Block, CausalLM
from tests.models.layers import RMSNorm, attend, ones, rotary_tables, rotate, zeros
from tests.models.moe import mix


def rotate_pairs(x, cos, sin):
    """Rotary embedding of x `[b, n, s, d]` whose pairs stand next to each other; the result holds halves."""
    batch, heads, length, size = x.shape
    x = x.reshape((batch, heads, length, size // 2, 2)).transpose((0, 1, 2, 4, 3))
    return rotate(x.reshape((batch, heads, length, size)), cos, sin)


class DeepseekV3Attention(nn.Cell):
    """Queries, and keys and values, through latents; one rotary key for all heads."""

    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.num_heads = config.num_attention_heads
        self.kv_lora_rank = config.kv_lora_rank
        self.qk_nope_head_dim = config.qk_nope_head_dim
        self.qk_rope_head_dim = config.qk_rope_head_dim
        self.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        self.v_head_dim = config.v_head_dim
        self.scaling = self.qk_head_dim ** -0.5
        self.q_a_proj = nn.Dense(hidden, config.q_lora_rank, has_bias=False)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, eps)
        self.q_b_proj = nn.Dense(config.q_lora_rank, self.num_heads * self.qk_head_dim, has_bias=False)
        self.kv_a_proj_with_mqa = nn.Dense(hidden, self.kv_lora_rank + self.qk_rope_head_dim, has_bias=False)
        self.kv_a_layernorm = RMSNorm(self.kv_lora_rank, eps)
        self.kv_b_proj = nn.Dense(self.kv_lora_rank, self.num_heads * (self.qk_nope_head_dim + self.v_head_dim),
                                  has_bias=False)
        self.o_proj = nn.Dense(self.num_heads * self.v_head_dim, hidden, has_bias=False)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        query = query.reshape((batch, length, -1, self.qk_head_dim)).transpose((0, 2, 1, 3))
        joint = self.kv_a_proj_with_mqa(hidden_states)
        latent, key_rotary = joint[..., :self.kv_lora_rank], joint[..., self.kv_lora_rank:]
        key_value = self.kv_b_proj(self.kv_a_layernorm(latent))
        key_value = key_value.reshape((batch, length, -1, self.qk_nope_head_dim + self.v_head_dim))
        key_value = key_value.transpose((0, 2, 1, 3))
        key, value = key_value[..., :self.qk_nope_head_dim], key_value[..., self.qk_nope_head_dim:]
        key_rotary = rotate_pairs(key_rotary.reshape((batch, 1, length, self.qk_rope_head_dim)), cos, sin)
        key_rotary = ops.broadcast_to(key_rotary, (batch, self.num_heads, length, self.qk_rope_head_dim))
        query_rotary = rotate_pairs(query[..., self.qk_nope_head_dim:], cos, sin)
        query = ops.concat((query[..., :self.qk_nope_head_dim], query_rotary), -1)
        context = attend(query, ops.concat((key, key_rotary), -1), value, mask, self.scaling)
        return self.o_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, self.num_heads * self.v_head_dim)))


class DeepseekV3TopkRouter(nn.Cell):
    """Sigmoid scores; a bias that no gradient trains takes part in the choice only."""

    def __init__(self, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.scale = config.routed_scaling_factor
        self.weight = ones(config.n_routed_experts, config.hidden_size)
        self.e_score_correction_bias = zeros(config.n_routed_experts)
        self.e_score_correction_bias.requires_grad = False

    def construct(self, hidden_states):
        """Weights and chosen experts, `[tokens, k]` each."""
        scores = ops.sigmoid(ops.matmul(hidden_states, self.weight.T))
        _, chosen = ops.topk(ops.stop_gradient(scores) + self.e_score_correction_bias, self.top_k)
        weights = ops.gather_elements(scores, 1, chosen)
        return weights / ops.sum(weights, -1, keepdim=True) * self.scale, chosen


class DeepseekV3MoE(nn.Cell):
    """Routed experts and those that every token goes through."""

    def __init__(self, config):
        super().__init__()
        width = config.moe_intermediate_size
        self.experts = nn.CellList([MLP(config, width) for _ in range(config.n_routed_experts)])
        self.gate = DeepseekV3TopkRouter(config)
        self.shared_experts = MLP(config, width * config.n_shared_experts)

    def construct(self, hidden_states):
        """Routed and shared output, `[b, s, h]`."""
        shape = hidden_states.shape
        tokens = hidden_states.reshape((-1, shape[-1]))
        weights, chosen = self.gate(tokens)
        return mix(self.experts, tokens, weights, chosen).reshape(shape) + self.shared_experts(hidden_states)


def deepseek_v3(config):
    """The model of a configuration."""
    layers = [Block(config, DeepseekV3Attention(config),
                    DeepseekV3MoE(config) if layer >= config.first_k_dense_replace else MLP(config))
              for layer in range(config.num_hidden_layers)]
    rotary = rotary_tables(POSITIONS, config.qk_rope_head_dim, config.rope_theta)
    return CausalLM(config, Backbone(config, layers, rotary=rotary))
