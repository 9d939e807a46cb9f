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
"""Bloom: rows per head [q k v], ALiBi built once for all heads, a norm behind the embedding, a tied head."""
import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.layers import Embedding, LayerNorm, causal_mask

POSITIONS = 64


def alibi_slopes(heads):
    """Slopes of a power of two of heads (arXiv 2108.12409)."""
    return 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))


class BloomAttention(nn.Cell):
    """Multi-head attention with one fused projection."""

    def __init__(self, config):
        super().__init__()
        self.hidden_size = config.hidden_size
        self.num_heads = config.n_head
        self.head_dim = self.hidden_size // self.num_heads
        self.inv_norm_factor = self.head_dim ** -0.5
        self.query_key_value = nn.Dense(self.hidden_size, 3 * self.hidden_size)
        self.dense = nn.Dense(self.hidden_size, self.hidden_size)

    def construct(self, hidden_states, alibi, mask):
        """Attention over `[b, s, h]`, with alibi `[n, 1, s]`."""
        batch, length, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).reshape((batch, length, self.num_heads, 3, self.head_dim))
        query, key, value = (fused[..., part, :].transpose((0, 2, 1, 3)) for part in range(3))
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.inv_norm_factor + alibi + mask
        context = ops.matmul(ops.softmax(scores, -1), value).transpose((0, 2, 1, 3))
        return self.dense(context.reshape((batch, length, self.num_heads * self.head_dim)))


class BloomMLP(nn.Cell):
    """Feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.dense_h_to_4h = nn.Dense(config.hidden_size, 4 * config.hidden_size)
        self.dense_4h_to_h = nn.Dense(4 * config.hidden_size, config.hidden_size)

    def construct(self, hidden_states):
        """down(gelu(up))."""
        return self.dense_4h_to_h(ops.gelu(self.dense_h_to_4h(hidden_states), approximate="tanh"))


class BloomBlock(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.self_attention = BloomAttention(config)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mlp = BloomMLP(config)

    def construct(self, hidden_states, alibi, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.self_attention(self.input_layernorm(hidden_states), alibi, mask)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class BloomModel(nn.Cell):
    """Embedding and its norm, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.n_head
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.word_embeddings_layernorm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.h = nn.CellList([BloomBlock(config) for _ in range(config.n_layer)])
        self.ln_f = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.slopes = Tensor(alibi_slopes(self.num_heads), mindspore.float32)
        self.positions = Tensor(np.arange(POSITIONS), mindspore.float32)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        alibi = self.slopes.reshape((self.num_heads, 1, 1)) * self.positions[:length].reshape((1, 1, length))
        hidden_states = self.word_embeddings_layernorm(self.word_embeddings(input_ids))
        for block in self.h:
            hidden_states = block(hidden_states, alibi, self.mask[:length, :length])
        return self.ln_f(hidden_states)


class BloomForCausalLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = BloomModel(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.transformer.word_embeddings.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.transformer(input_ids))
