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
"""MPT: fused [Q|K|V], ALiBi, no biases at all: norms without one too; a tied head."""
import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.bloom import alibi_slopes
from tests.models.layers import Embedding, causal_mask, ones


class LayerNormWithoutBias(nn.Cell):
    """Mean and variance norm over the last dim."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = ones(size)
        self.eps = eps

    def construct(self, x):
        """Normalised x."""
        x = x - ops.mean(x, -1, keep_dims=True)
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * self.weight


class MptAttention(nn.Cell):
    """Multi-head attention with one fused projection."""

    def __init__(self, config):
        super().__init__()
        self.hidden_size = config.d_model
        self.n_heads = config.n_heads
        self.head_dim = self.hidden_size // self.n_heads
        self.softmax_scale = self.head_dim ** -0.5
        self.Wqkv = nn.Dense(self.hidden_size, 3 * self.hidden_size, has_bias=False)
        self.out_proj = nn.Dense(self.hidden_size, self.hidden_size, has_bias=False)

    def construct(self, hidden_states, position_bias, attention_mask):
        """Attention over `[b, s, h]`, with the bias `[n, 1, s]` of all heads."""
        batch, length = hidden_states.shape[:2]
        query, key, value = ops.chunk(self.Wqkv(hidden_states), 3, axis=2)
        query = query.reshape((batch, length, self.n_heads, self.head_dim)).transpose((0, 2, 1, 3))
        key = key.reshape((batch, length, self.n_heads, self.head_dim)).transpose((0, 2, 1, 3))
        value = value.reshape((batch, length, self.n_heads, self.head_dim)).transpose((0, 2, 1, 3))
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.softmax_scale
        scores = scores + position_bias + attention_mask
        context = ops.matmul(ops.softmax(scores, -1), value)
        return self.out_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))


class MptMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        width = config.expansion_ratio * config.d_model
        self.up_proj = nn.Dense(config.d_model, width, has_bias=False)
        self.down_proj = nn.Dense(width, config.d_model, has_bias=False)

    def construct(self, hidden_states):
        """down(gelu(up))."""
        return self.down_proj(ops.gelu(self.up_proj(hidden_states)))


class MptBlock(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.norm_1 = LayerNormWithoutBias(config.d_model, config.layer_norm_epsilon)
        self.attn = MptAttention(config)
        self.norm_2 = LayerNormWithoutBias(config.d_model, config.layer_norm_epsilon)
        self.ffn = MptMLP(config)

    def construct(self, hidden_states, position_bias, attention_mask):
        """Residual attention, then residual feed-forward layer."""
        hidden_states = hidden_states + self.attn(self.norm_1(hidden_states), position_bias, attention_mask)
        return hidden_states + self.ffn(self.norm_2(hidden_states))


class MptModel(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.n_heads
        self.wte = Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.CellList([MptBlock(config) for _ in range(config.n_layers)])
        self.norm_f = LayerNormWithoutBias(config.d_model, config.layer_norm_epsilon)
        slopes = alibi_slopes(config.n_heads)[:, None, None]
        self.alibi = Tensor(slopes * np.arange(1 - config.max_seq_len, 1)[None, None], mindspore.float32)
        self.mask = causal_mask(config.max_seq_len)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.wte(input_ids)
        alibi = self.alibi[:, :, -length:]
        for block in self.blocks:
            hidden_states = block(hidden_states, alibi, self.mask[:length, :length])
        return self.norm_f(hidden_states)


class MptForCausalLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = MptModel(config)
        self.lm_head = nn.Dense(config.d_model, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.transformer(input_ids))
