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
"""GPT-BigCode: GPT-2 with plain linears and one kv head for all query heads."""
from mindspore import nn, ops

from tests.models.gpt2 import GPT2LMHeadModel
from tests.models.layers import LayerNorm, attend


class GPTBigCodeAttention(nn.Cell):
    """Multi-query attention: rows [Q|k v]."""

    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.n_embd
        self.num_heads = config.n_head
        self.kv_heads = 1
        self.head_dim = self.embed_dim // self.num_heads
        self.kv_dim = self.kv_heads * self.head_dim
        self.c_attn = nn.Dense(self.embed_dim, self.embed_dim + 2 * self.kv_dim)
        self.c_proj = nn.Dense(self.embed_dim, self.embed_dim)

    def construct(self, hidden_states, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        query, key_value = ops.split(self.c_attn(hidden_states), [self.embed_dim, 2 * self.kv_dim], axis=2)
        key, value = ops.split(key_value, self.head_dim, axis=2)
        query = query.reshape((batch, length, self.num_heads, self.head_dim)).transpose((0, 2, 1, 3))
        context = attend(query, key.expand_dims(1), value.expand_dims(1), mask, self.head_dim ** -0.5)
        return self.c_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, self.embed_dim)))


class GPTBigCodeMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Dense(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Dense(4 * config.n_embd, config.n_embd)

    def construct(self, hidden_states):
        """proj(gelu(fc))."""
        return self.c_proj(ops.gelu(self.c_fc(hidden_states), approximate="tanh"))


class GPTBigCodeBlock(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPTBigCodeAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPTBigCodeMLP(config)

    def construct(self, hidden_states, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states), mask)
        return hidden_states + self.mlp(self.ln_2(hidden_states))


def gpt_bigcode(config):
    """The model of a configuration."""
    return GPT2LMHeadModel(config, GPTBigCodeBlock)
