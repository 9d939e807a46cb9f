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
"""T5: encoder and decoder on one embedding, a learned bias per head and distance, cross-attention, its own head."""
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.layers import Embedding, RMSNorm, causal_mask

POSITIONS = 64


def distance_buckets(bidirectional, count, reach):
    """Bucket of each (query, key) pair of positions, `[positions, positions]`; far distances share buckets."""
    distance = np.arange(POSITIONS)[None] - np.arange(POSITIONS)[:, None]
    if bidirectional:
        count //= 2
        first = (distance > 0) * count
        distance = np.abs(distance)
    else:
        first = 0
        distance = -np.minimum(distance, 0)
    exact = count // 2
    far = exact + (np.log(np.maximum(distance, 1) / exact) / np.log(reach / exact) * (count - exact)).astype(np.int32)
    return Tensor((first + np.where(distance < exact, distance, np.minimum(far, count - 1))).astype(np.int32))


class T5Attention(nn.Cell):
    """Attention without scale; the first of a stack computes the position bias of all."""

    def __init__(self, config, is_decoder=False, has_relative_attention_bias=False):
        super().__init__()
        self.key_value_proj_dim = config.d_kv
        self.n_heads = config.num_heads
        self.inner_dim = self.n_heads * self.key_value_proj_dim
        self.q = nn.Dense(config.d_model, self.inner_dim, has_bias=False)
        self.k = nn.Dense(config.d_model, self.inner_dim, has_bias=False)
        self.v = nn.Dense(config.d_model, self.inner_dim, has_bias=False)
        self.o = nn.Dense(self.inner_dim, config.d_model, has_bias=False)
        self.has_relative_attention_bias = has_relative_attention_bias
        if has_relative_attention_bias:
            self.relative_attention_bias = Embedding(config.relative_attention_num_buckets, self.n_heads)
            self.buckets = distance_buckets(not is_decoder, config.relative_attention_num_buckets,
                                            config.relative_attention_max_distance)

    def construct(self, hidden_states, mask=None, key_value_states=None, position_bias=None):
        """Output `[b, s, h]`, and the bias `[1, n, s, s]` that was added to the scores, or None."""
        states = hidden_states if key_value_states is None else key_value_states
        query, key = self._heads(self.q(hidden_states)), self._heads(self.k(states))
        value = self._heads(self.v(states))
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = self._compute_bias(hidden_states.shape[1])
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2)))
        if position_bias is not None:
            scores = scores + position_bias
        if mask is not None:
            scores = scores + mask
        context = ops.matmul(ops.softmax(scores, -1), value).transpose((0, 2, 1, 3))
        return self.o(context.reshape((context.shape[0], -1, self.inner_dim))), position_bias

    def _heads(self, x):
        return x.reshape((x.shape[0], -1, self.n_heads, self.key_value_proj_dim)).transpose((0, 2, 1, 3))

    def _compute_bias(self, length):
        return self.relative_attention_bias(self.buckets[:length, :length]).transpose((2, 0, 1)).expand_dims(0)


class T5LayerSelfAttention(nn.Cell):
    """Norm, attention, residual."""

    def __init__(self, config, is_decoder, has_relative_attention_bias):
        super().__init__()
        self.SelfAttention = T5Attention(config, is_decoder, has_relative_attention_bias)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def construct(self, hidden_states, mask=None, position_bias=None):
        """States and position bias."""
        output, position_bias = self.SelfAttention(self.layer_norm(hidden_states), mask, None, position_bias)
        return hidden_states + output, position_bias


class T5LayerCrossAttention(nn.Cell):
    """Norm, attention to the encoder's states, residual."""

    def __init__(self, config):
        super().__init__()
        self.EncDecAttention = T5Attention(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def construct(self, hidden_states, key_value_states):
        """States."""
        output, _ = self.EncDecAttention(self.layer_norm(hidden_states), key_value_states=key_value_states)
        return hidden_states + output


class T5DenseGatedActDense(nn.Cell):
    """Gated feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.wi_0 = nn.Dense(config.d_model, config.d_ff, has_bias=False)
        self.wi_1 = nn.Dense(config.d_model, config.d_ff, has_bias=False)
        self.wo = nn.Dense(config.d_ff, config.d_model, has_bias=False)

    def construct(self, hidden_states):
        """wo(gelu(wi_0) * wi_1)."""
        return self.wo(ops.gelu(self.wi_0(hidden_states), approximate="tanh") * self.wi_1(hidden_states))


class T5LayerFF(nn.Cell):
    """Norm, feed-forward layer, residual."""

    def __init__(self, config):
        super().__init__()
        self.DenseReluDense = T5DenseGatedActDense(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def construct(self, hidden_states):
        """States."""
        return hidden_states + self.DenseReluDense(self.layer_norm(hidden_states))


class T5Block(nn.Cell):
    """Self-attention, in a decoder cross-attention, feed-forward layer."""

    def __init__(self, config, is_decoder, has_relative_attention_bias):
        super().__init__()
        self.is_decoder = is_decoder
        layers = [T5LayerSelfAttention(config, is_decoder, has_relative_attention_bias)]
        if is_decoder:
            layers.append(T5LayerCrossAttention(config))
        self.layer = nn.CellList(layers + [T5LayerFF(config)])

    def construct(self, hidden_states, mask=None, position_bias=None, encoder_hidden_states=None):
        """States and position bias."""
        hidden_states, position_bias = self.layer[0](hidden_states, mask, position_bias)
        if self.is_decoder:
            hidden_states = self.layer[1](hidden_states, encoder_hidden_states)
        return self.layer[-1](hidden_states), position_bias


class T5Stack(nn.Cell):
    """Blocks and final norm."""

    def __init__(self, config, layers, is_decoder):
        super().__init__()
        self.is_decoder = is_decoder
        self.block = nn.CellList([T5Block(config, is_decoder, index == 0) for index in range(layers)])
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.mask = causal_mask(POSITIONS)

    def construct(self, hidden_states, encoder_hidden_states=None):
        """States of every position."""
        length = hidden_states.shape[1]
        mask = self.mask[:length, :length] if self.is_decoder else None
        position_bias = None
        for block in self.block:
            hidden_states, position_bias = block(hidden_states, mask, position_bias, encoder_hidden_states)
        return self.final_layer_norm(hidden_states)


class T5ForConditionalGeneration(nn.Cell):
    """Encoder, decoder and head; returns the decoder's logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.shared = Embedding(config.vocab_size, config.d_model)
        self.encoder = T5Stack(config, config.num_layers, False)
        self.decoder = T5Stack(config, config.num_decoder_layers, True)
        self.lm_head = nn.Dense(config.d_model, config.vocab_size, has_bias=False)

    def construct(self, input_ids, decoder_input_ids):
        """Logits of every position of the decoder."""
        encoder_hidden_states = self.encoder(self.shared(input_ids))
        return self.lm_head(self.decoder(self.shared(decoder_input_ids), encoder_hidden_states))
