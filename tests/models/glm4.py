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
"""GLM-4: norms behind the branches too, rotary pairs over half a head, packed halves; and its mixture of experts."""
from mindspore import nn, ops

from tests.models.decoder import MLP, POSITIONS, Backbone, Block, CausalLM
from tests.models.deepseek_v3 import DeepseekV3MoE, rotate_pairs
from tests.models.layers import RMSNorm, attend, repeat_heads, rotary_tables, rotate
from tests.models.phi3 import Phi3MLP


class Glm4Attention(nn.Cell):
    """Grouped-query attention; rotary embedding turns a part of each head.

    Args:
        config: sizes.
        turn: rotary embedding of pairs, or of halves.
    """

    def __init__(self, config, turn):
        super().__init__()
        hidden, bias = config.hidden_size, config.attention_bias
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.rotary_dim = int(config.head_dim * config.partial_rotary_factor)
        self.turn = turn
        self.q_proj = nn.Dense(hidden, self.num_heads * self.head_dim, has_bias=bias)
        self.k_proj = nn.Dense(hidden, self.num_kv_heads * self.head_dim, has_bias=bias)
        self.v_proj = nn.Dense(hidden, self.num_kv_heads * self.head_dim, has_bias=bias)
        self.o_proj = nn.Dense(self.num_heads * self.head_dim, hidden, has_bias=False)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states).reshape((batch, length, self.num_heads, -1)).transpose((0, 2, 1, 3))
        key = self.k_proj(hidden_states).reshape((batch, length, self.num_kv_heads, -1)).transpose((0, 2, 1, 3))
        value = self.v_proj(hidden_states).reshape((batch, length, self.num_kv_heads, -1)).transpose((0, 2, 1, 3))
        query, key = self._rotated(query, cos, sin), self._rotated(key, cos, sin)
        times = self.num_heads // self.num_kv_heads
        context = attend(query, repeat_heads(key, times), repeat_heads(value, times), mask, self.head_dim ** -0.5)
        return self.o_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))

    def _rotated(self, x, cos, sin):
        return ops.concat((self.turn(x[..., :self.rotary_dim], cos, sin), x[..., self.rotary_dim:]), -1)


class Glm4DecoderLayer(nn.Cell):
    """Block with norms before and after each branch."""

    def __init__(self, config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Glm4Attention(config, rotate_pairs)
        self.mlp = Phi3MLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.post_self_attn_layernorm = RMSNorm(size, eps)
        self.post_mlp_layernorm = RMSNorm(size, eps)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual MLP."""
        attention = self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        hidden_states = hidden_states + self.post_self_attn_layernorm(attention)
        return hidden_states + self.post_mlp_layernorm(self.mlp(self.post_attention_layernorm(hidden_states)))


def _model(config, layers):
    rotary = rotary_tables(POSITIONS, int(config.head_dim * config.partial_rotary_factor), config.rope_theta)
    return CausalLM(config, Backbone(config, layers, rotary=rotary))


def glm4(config):
    """The model of a configuration."""
    return _model(config, [Glm4DecoderLayer(config) for _ in range(config.num_hidden_layers)])


def glm4_moe(config):
    """The model of a configuration."""
    return _model(config, [Block(config, Glm4Attention(config, rotate), DeepseekV3MoE(config)
                                 if layer >= config.first_k_dense_replace else MLP(config))
                           for layer in range(config.num_hidden_layers)])
