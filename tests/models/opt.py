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
"""OPT: learned positions with an offset, relu, feed-forward layers without a module of their own, a tied head."""
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.layers import Embedding, LayerNorm, causal_mask

POSITIONS = 64
EPS = 1e-5


class OPTLearnedPositionalEmbedding(Embedding):
    """The first two rows belong to no position."""

    def __init__(self, rows, width):
        self.offset = 2
        super().__init__(rows + 2, width)

    def construct(self, positions):
        """Rows of the positions."""
        return super().construct(positions + self.offset)


class OPTAttention(nn.Cell):
    """Multi-head attention; heads and batch are one dim inside."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Dense(embed_dim, embed_dim)
        self.v_proj = nn.Dense(embed_dim, embed_dim)
        self.q_proj = nn.Dense(embed_dim, embed_dim)
        self.out_proj = nn.Dense(embed_dim, embed_dim)

    def construct(self, hidden_states, attention_mask):
        """Attention over `[b, s, h]`."""
        batch, length = hidden_states.shape[:2]
        query = self._shape(self.q_proj(hidden_states) * self.scaling, length, batch)
        key = self._shape(self.k_proj(hidden_states), length, batch)
        value = self._shape(self.v_proj(hidden_states), length, batch)
        weights = ops.softmax(ops.bmm(query, key.transpose((0, 2, 1))) + attention_mask, -1)
        context = ops.bmm(weights, value).reshape((batch, self.num_heads, length, self.head_dim))
        return self.out_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))

    def _shape(self, x, length, batch):
        x = x.reshape((batch, length, self.num_heads, self.head_dim)).transpose((0, 2, 1, 3))
        return x.reshape((batch * self.num_heads, length, self.head_dim))


class OPTDecoderLayer(nn.Cell):
    """Pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.hidden_size
        self.self_attn = OPTAttention(self.embed_dim, config.num_attention_heads)
        self.self_attn_layer_norm = LayerNorm(self.embed_dim, EPS)
        self.fc1 = nn.Dense(self.embed_dim, config.ffn_dim)
        self.fc2 = nn.Dense(config.ffn_dim, self.embed_dim)
        self.final_layer_norm = LayerNorm(self.embed_dim, EPS)

    def construct(self, hidden_states, attention_mask):
        """Residual attention, then residual feed-forward layer."""
        residual = hidden_states
        hidden_states = residual + self.self_attn(self.self_attn_layer_norm(hidden_states), attention_mask)
        residual = hidden_states
        return residual + self.fc2(ops.relu(self.fc1(self.final_layer_norm(hidden_states))))


class OPTDecoder(nn.Cell):
    """Tables, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.word_embed_proj_dim)
        self.embed_positions = OPTLearnedPositionalEmbedding(config.max_position_embeddings, config.hidden_size)
        self.final_layer_norm = LayerNorm(config.hidden_size, EPS)
        self.layers = nn.CellList([OPTDecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.positions = Tensor(np.arange(POSITIONS, dtype=np.int32))
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States of every position."""
        length = input_ids.shape[1]
        hidden_states = self.embed_tokens(input_ids) + self.embed_positions(self.positions[:length])
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.mask[:length, :length])
        return self.final_layer_norm(hidden_states)


class OPTModel(nn.Cell):
    """The level that names the decoder."""

    def __init__(self, config):
        super().__init__()
        self.decoder = OPTDecoder(config)

    def construct(self, input_ids):
        """States of every position."""
        return self.decoder(input_ids)


class OPTForCausalLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = OPTModel(config)
        self.lm_head = nn.Dense(config.word_embed_proj_dim, config.vocab_size, has_bias=False)
        self.lm_head.weight = self.model.decoder.embed_tokens.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.model(input_ids))
