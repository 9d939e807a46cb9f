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
"""Phi: attention and MLP side by side behind one norm, rotary embedding of half a head, a head with a bias."""
from mindspore import nn, ops

from tests.models.layers import (
    Embedding, LayerNorm, attend, causal_mask, repeat_heads, rotary_tables, rotate)

POSITIONS = 64


class PhiAttention(nn.Cell):
    """Grouped-query attention."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.rotary_ndims = int(self.head_dim * config.partial_rotary_factor)
        self.q_proj = nn.Dense(config.hidden_size, self.num_heads * self.head_dim)
        self.k_proj = nn.Dense(config.hidden_size, self.num_key_value_heads * self.head_dim)
        self.v_proj = nn.Dense(config.hidden_size, self.num_key_value_heads * self.head_dim)
        self.dense = nn.Dense(self.num_heads * self.head_dim, config.hidden_size)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states).reshape((batch, length, self.num_heads, self.head_dim))
        key = self.k_proj(hidden_states).reshape((batch, length, self.num_key_value_heads, self.head_dim))
        value = self.v_proj(hidden_states).reshape((batch, length, self.num_key_value_heads, self.head_dim))
        query, key, value = (x.transpose((0, 2, 1, 3)) for x in (query, key, value))
        query, key = self._turn(query, cos, sin), self._turn(key, cos, sin)
        context = attend(query, repeat_heads(key, self.num_key_value_groups),
                         repeat_heads(value, self.num_key_value_groups), mask, self.head_dim ** -0.5)
        return self.dense(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))

    def _turn(self, x, cos, sin):
        return ops.concat((rotate(x[..., :self.rotary_ndims], cos, sin), x[..., self.rotary_ndims:]), -1)


class PhiMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.fc1 = nn.Dense(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Dense(config.intermediate_size, config.hidden_size)

    def construct(self, hidden_states):
        """fc2(gelu(fc1))."""
        return self.fc2(ops.gelu(self.fc1(hidden_states), approximate="tanh"))


class PhiDecoderLayer(nn.Cell):
    """Parallel block with one norm."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = PhiAttention(config)
        self.mlp = PhiMLP(config)
        self.input_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def construct(self, hidden_states, cos, sin, mask):
        """x + attention(norm(x)) + mlp(norm(x))."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attn_outputs = self.self_attn(hidden_states, cos, sin, mask)
        return attn_outputs + self.mlp(hidden_states) + residual


class PhiModel(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([PhiDecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.final_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        size = config.hidden_size // config.num_attention_heads
        self.cos, self.sin = rotary_tables(POSITIONS, int(size * config.partial_rotary_factor), config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.final_layernorm(hidden_states)


class PhiForCausalLM(nn.Cell):
    """Model and head; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = PhiModel(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size)

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.model(input_ids))
