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
"""Starcoder 2: Llama's attention with biases, LayerNorm, an MLP without a gate, a tied head."""
from mindspore import nn, ops

from tests.models.decoder import Attention
from tests.models.layers import Embedding, LayerNorm, causal_mask, rotary_tables

POSITIONS = 64


class Starcoder2MLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Dense(config.hidden_size, config.intermediate_size)
        self.c_proj = nn.Dense(config.intermediate_size, config.hidden_size)

    def construct(self, hidden_states):
        """proj(gelu(fc))."""
        return self.c_proj(ops.gelu(self.c_fc(hidden_states), approximate="tanh"))


class Starcoder2DecoderLayer(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Starcoder2MLP(config)
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_epsilon)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_epsilon)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Starcoder2Model(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([Starcoder2DecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = LayerNorm(config.hidden_size, config.norm_epsilon)
        self.cos, self.sin = rotary_tables(POSITIONS, config.hidden_size // config.num_attention_heads,
                                           config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.norm(hidden_states)


class Starcoder2ForCausalLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        config.attention_bias = config.use_bias
        self.config = config
        self.model = Starcoder2Model(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.model(input_ids))
