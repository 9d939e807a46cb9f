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
"""GPT-2: Conv1D `[in, out]`, fused [Q|K|V], learned positions, a tied head."""
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.layers import Conv1D, Embedding, LayerNorm, attend, causal_mask


class GPT2Attention(nn.Cell):
    """Multi-head attention with one fused projection."""

    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.n_embd
        self.num_heads = config.n_head
        self.head_dim = self.embed_dim // self.num_heads
        self.split_size = self.embed_dim
        self.c_attn = Conv1D(3 * self.embed_dim, self.embed_dim)
        self.c_proj = Conv1D(self.embed_dim, self.embed_dim)

    def construct(self, hidden_states, mask):
        """Attention over `[b, s, h]`."""
        query, key, value = ops.split(self.c_attn(hidden_states), self.split_size, axis=2)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)
        context = attend(query, key, value, mask, self.head_dim ** -0.5)
        context = context.transpose((0, 2, 1, 3))
        return self.c_proj(context.reshape(context.shape[:-2] + (self.num_heads * self.head_dim,)))

    def _split_heads(self, x):
        return x.reshape(x.shape[:-1] + (self.num_heads, self.head_dim)).transpose((0, 2, 1, 3))


class GPT2MLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = Conv1D(4 * config.n_embd, config.n_embd)
        self.c_proj = Conv1D(config.n_embd, 4 * config.n_embd)

    def construct(self, hidden_states):
        """proj(gelu(fc))."""
        return self.c_proj(ops.gelu(self.c_fc(hidden_states), approximate="tanh"))


class GPT2Block(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPT2Attention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def construct(self, hidden_states, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states), mask)
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class GPT2Model(nn.Cell):
    """Tables, blocks, final norm.

    Args:
        config: sizes.
        block: class of the blocks.
    """

    def __init__(self, config, block=GPT2Block):
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.n_positions, config.n_embd)
        self.h = nn.CellList([block(config) for _ in range(config.n_layer)])
        self.ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.positions = Tensor(np.arange(config.n_positions, dtype=np.int32))
        self.mask = causal_mask(config.n_positions)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.wte(input_ids) + self.wpe(self.positions[:length])
        for block in self.h:
            hidden_states = block(hidden_states, self.mask[:length, :length])
        return self.ln_f(hidden_states)


class GPT2LMHeadModel(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config, block=GPT2Block):
        super().__init__()
        self.config = config
        self.transformer = GPT2Model(config, block)
        self.lm_head = nn.Dense(config.n_embd, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.transformer(input_ids))
