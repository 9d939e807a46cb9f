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
"""GPT-NeoX: rows per head [q k v], rotary embedding of a part of each head, attention and MLP side by side."""
from mindspore import nn, ops

from tests.models.layers import Embedding, LayerNorm, attend, causal_mask, rotary_tables, rotate

POSITIONS = 64


class GPTNeoXAttention(nn.Cell):
    """Multi-head attention with one fused projection."""

    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.rotary_ndims = int(self.head_size * config.rotary_pct)
        self.norm_factor = self.head_size ** -0.5
        self.query_key_value = nn.Dense(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Dense(config.hidden_size, config.hidden_size)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length = hidden_states.shape[:2]
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.reshape((batch, length, self.num_attention_heads, 3 * self.head_size)).transpose((0, 2, 1, 3))
        query, key, value = ops.chunk(qkv, 3, axis=-1)
        context = attend(self._turn(query, cos, sin), self._turn(key, cos, sin), value, mask, self.norm_factor)
        return self.dense(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))

    def _turn(self, x, cos, sin):
        turned, kept = x[..., :self.rotary_ndims], x[..., self.rotary_ndims:]
        return ops.concat((rotate(turned, cos, sin), kept), -1)


class GPTNeoXMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.dense_h_to_4h = nn.Dense(config.hidden_size, config.intermediate_size)
        self.dense_4h_to_h = nn.Dense(config.intermediate_size, config.hidden_size)

    def construct(self, hidden_states):
        """down(gelu(up))."""
        return self.dense_4h_to_h(ops.gelu(self.dense_h_to_4h(hidden_states)))


class GPTNeoXLayer(nn.Cell):
    """Parallel block with a norm for each branch."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attention = GPTNeoXAttention(config)
        self.mlp = GPTNeoXMLP(config)

    def construct(self, hidden_states, cos, sin, mask):
        """x + attention(ln1(x)) + mlp(ln2(x))."""
        attention = self.attention(self.input_layernorm(hidden_states), cos, sin, mask)
        return self.mlp(self.post_attention_layernorm(hidden_states)) + attention + hidden_states


class GPTNeoXModel(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_in = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([GPTNeoXLayer(config) for _ in range(config.num_hidden_layers)])
        self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        rotary_size = int(config.hidden_size // config.num_attention_heads * config.rotary_pct)
        self.cos, self.sin = rotary_tables(POSITIONS, rotary_size, config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.embed_in(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.final_layer_norm(hidden_states)


class GPTNeoXForCausalLM(nn.Cell):
    """Model and head; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gpt_neox = GPTNeoXModel(config)
        self.embed_out = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)

    def construct(self, input_ids):
        """Logits of every position."""
        return self.embed_out(self.gpt_neox(input_ids))
