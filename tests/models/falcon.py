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
"""Falcon's later decoder: rows per kv group [q·R k v], two norms side by side, a tied head."""
from mindspore import nn, ops

from tests.models.layers import Embedding, LayerNorm, attend, causal_mask, repeat_heads, rotary_tables, rotate

POSITIONS = 64


class FalconAttention(nn.Cell):
    """Grouped-query attention with one fused projection."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.hidden_size // self.num_heads
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.query_key_value = nn.Dense(config.hidden_size, width, has_bias=False)
        self.dense = nn.Dense(config.hidden_size, config.hidden_size, has_bias=False)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query, key, value = self._split_heads(self.query_key_value(hidden_states))
        query, key, value = (x.transpose((0, 2, 1, 3)) for x in (query, key, value))
        groups = self.num_heads // self.num_kv_heads
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        context = attend(query, repeat_heads(key, groups), repeat_heads(value, groups), mask, self.head_dim ** -0.5)
        context = context.transpose((0, 2, 1, 3))
        return self.dense(context.reshape((batch, length, self.num_heads * self.head_dim)))

    def _split_heads(self, fused_qkv):
        batch, length, _ = fused_qkv.shape
        groups = self.num_heads // self.num_kv_heads
        qkv = fused_qkv.reshape((batch, length, -1, groups + 2, self.head_dim))
        query = qkv[:, :, :, :-2].reshape((batch, length, -1, self.head_dim))
        return query, qkv[:, :, :, -2], qkv[:, :, :, -1]


class FalconMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.dense_h_to_4h = nn.Dense(config.hidden_size, config.ffn_hidden_size, has_bias=False)
        self.dense_4h_to_h = nn.Dense(config.ffn_hidden_size, config.hidden_size, has_bias=False)

    def construct(self, x):
        """down(gelu(up))."""
        return self.dense_4h_to_h(ops.gelu(self.dense_h_to_4h(x)))


class FalconDecoderLayer(nn.Cell):
    """Parallel block."""

    def __init__(self, config):
        super().__init__()
        self.self_attention = FalconAttention(config)
        self.mlp = FalconMLP(config)
        self.ln_attn = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.ln_mlp = LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def construct(self, hidden_states, cos, sin, mask):
        """x + attention(ln_attn(x)) + mlp(ln_mlp(x))."""
        attention = self.self_attention(self.ln_attn(hidden_states), cos, sin, mask)
        output = self.mlp(self.ln_mlp(hidden_states))
        output = output + attention
        return output + hidden_states


class FalconModel(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.CellList([FalconDecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.ln_f = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        size = config.hidden_size // config.num_attention_heads
        self.cos, self.sin = rotary_tables(POSITIONS, size, config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.word_embeddings(input_ids)
        for block in self.h:
            hidden_states = block(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.ln_f(hidden_states)


class FalconForCausalLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = FalconModel(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.transformer.word_embeddings.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.transformer(input_ids))
