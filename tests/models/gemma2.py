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
"""Gemma 2: norms on both sides of each branch, soft-capped scores and logits, a scaled and tied embedding."""
from mindspore import nn, ops

from tests.models.layers import Embedding, causal_mask, ones, repeat_heads, rotary_tables, rotate

POSITIONS = 64


class Gemma2RMSNorm(nn.Cell):
    """Root mean square norm, its weight around zero."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = ones(size)
        self.eps = eps

    def construct(self, x):
        """Normalised x."""
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * (1.0 + self.weight)


class Gemma2Attention(nn.Cell):
    """Grouped-query attention with soft-capped scores."""

    def __init__(self, config):
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = size
        self.scaling = config.query_pre_attn_scalar ** -0.5
        self.softcap = config.attn_logit_softcapping
        self.q_proj = nn.Dense(hidden, self.num_heads * size, has_bias=False)
        self.k_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=False)
        self.v_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=False)
        self.o_proj = nn.Dense(self.num_heads * size, hidden, has_bias=False)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query, key, value = (x.reshape((batch, length, -1, self.head_dim)).transpose((0, 2, 1, 3)) for x in (
            self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = repeat_heads(key, self.num_key_value_groups), repeat_heads(value, self.num_key_value_groups)
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.scaling
        scores = ops.tanh(scores / self.softcap) * self.softcap + mask
        context = ops.matmul(ops.softmax(scores, -1), value)
        return self.o_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))


class Gemma2MLP(nn.Cell):
    """Gated feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.up_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)

    def construct(self, x):
        """down(gelu(gate) * up)."""
        return self.down_proj(ops.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Gemma2DecoderLayer(nn.Cell):
    """Block with norms before and after each branch."""

    def __init__(self, config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Gemma2Attention(config)
        self.mlp = Gemma2MLP(config)
        self.input_layernorm = Gemma2RMSNorm(size, eps)
        self.post_attention_layernorm = Gemma2RMSNorm(size, eps)
        self.pre_feedforward_layernorm = Gemma2RMSNorm(size, eps)
        self.post_feedforward_layernorm = Gemma2RMSNorm(size, eps)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual MLP."""
        attention = self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        hidden_states = hidden_states + self.post_attention_layernorm(attention)
        output = self.mlp(self.pre_feedforward_layernorm(hidden_states))
        return hidden_states + self.post_feedforward_layernorm(output)


class Gemma2Model(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([Gemma2DecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = Gemma2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.normalizer = config.hidden_size ** 0.5
        self.cos, self.sin = rotary_tables(POSITIONS, config.head_dim, config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.embed_tokens(input_ids) * self.normalizer
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.norm(hidden_states)


class Gemma2ForCausalLM(nn.Cell):
    """Model and head on one table; returns soft-capped logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.final_logit_softcapping = config.final_logit_softcapping
        self.model = Gemma2Model(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def construct(self, input_ids):
        """Logits of every position."""
        logits = self.lm_head(self.model(input_ids))
        return ops.tanh(logits / self.final_logit_softcapping) * self.final_logit_softcapping
