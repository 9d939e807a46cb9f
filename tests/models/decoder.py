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
"""A decoder as model code is usually written: cached head counts, views, a plain mask, no thought of parallelism."""
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn

from tests.models.layers import (
    Embedding, RMSNorm, attend, causal_mask, no_rotation, repeat_heads, rotary_tables, rotate, silu)

POSITIONS = 64


@dataclass
class DecoderConfig:
    """Sizes, by the names that Hugging Face configurations use."""

    vocab_size: int = 32
    hidden_size: int = 16
    intermediate_size: int = 24
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_hidden_layers: int = 2
    head_dim: int = 4
    qk_norm: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    rms_norm_eps: float = 1e-6
    rotary: bool = True
    rope_theta: float = 10000.0


def head_size(config):
    """Width of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class Attention(nn.Cell):
    """Grouped-query attention with rotary embedding and, as in Qwen3, a norm on each head's query and key."""

    def __init__(self, config):
        super().__init__()
        hidden, size, bias = config.hidden_size, head_size(config), getattr(config, "attention_bias", False)
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = size
        self.q_proj = nn.Dense(hidden, self.num_heads * size, has_bias=bias)
        self.k_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=bias)
        self.v_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=bias)
        self.o_proj = nn.Dense(self.num_heads * size, hidden, has_bias=bias)
        self.qk_norm = getattr(config, "qk_norm", False)
        if self.qk_norm:
            self.q_norm = RMSNorm(size, config.rms_norm_eps)
            self.k_norm = RMSNorm(size, config.rms_norm_eps)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[batch, sequence, hidden]`."""
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states).reshape((batch, length, self.num_heads, self.head_dim))
        key = self.k_proj(hidden_states).reshape((batch, length, self.num_key_value_heads, self.head_dim))
        value = self.v_proj(hidden_states).reshape((batch, length, self.num_key_value_heads, self.head_dim))
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query = rotate(query.transpose((0, 2, 1, 3)), cos, sin)
        key = rotate(key.transpose((0, 2, 1, 3)), cos, sin)
        key = repeat_heads(key, self.num_key_value_groups)
        value = repeat_heads(value.transpose((0, 2, 1, 3)), self.num_key_value_groups)
        context = attend(query, key, value, mask, self.head_dim ** -0.5)
        context = context.transpose((0, 2, 1, 3)).reshape((batch, length, self.num_heads * self.head_dim))
        return self.o_proj(context)


class MLP(nn.Cell):
    """Gated feed-forward layer."""

    def __init__(self, config, intermediate_size=None):
        super().__init__()
        bias = getattr(config, "attention_bias", False)
        width = intermediate_size or config.intermediate_size
        self.gate_proj = nn.Dense(config.hidden_size, width, has_bias=bias)
        self.up_proj = nn.Dense(config.hidden_size, width, has_bias=bias)
        self.down_proj = nn.Dense(width, config.hidden_size, has_bias=bias)

    def construct(self, x):
        """down(silu(gate) * up)."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Cell):
    """Pre-norm transformer block."""

    def __init__(self, config, self_attn=None, mlp=None):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = self_attn or Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp or MLP(config)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Backbone(nn.Cell):
    """Embedding, blocks and final norm; rotary tables and the mask are plain buffers.

    Args:
        config: sizes.
        layers: blocks, called with states, cosines, sines and mask.
        embedding: class of the embedding.
        rotary: cosines and sines by position; None for those of whole heads at the configuration's base.
    """

    def __init__(self, config, layers, embedding=Embedding, rotary=None):
        super().__init__()
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.cos, self.sin = rotary or rotary_tables(POSITIONS, head_size(config), config.rope_theta)
        self.mask = causal_mask(POSITIONS)

    def construct(self, input_ids):
        """States `[batch, sequence, hidden]` of every position."""
        return self.states_of(input_ids)

    def states_of(self, input_ids):
        """The forward without the head."""
        length = input_ids.shape[1]
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.norm(hidden_states)


class Decoder(Backbone):
    """Everything on one level, the embedding MindSpore's own; returns logits `[batch, sequence, vocabulary]`."""

    def __init__(self, config):
        super().__init__(config, [Block(config) for _ in range(config.num_hidden_layers)], nn.Embedding,
                         None if config.rotary else no_rotation(POSITIONS, config.head_dim))
        self.config = config
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.embedding_table

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.states_of(input_ids))


class CausalLM(nn.Cell):
    """A model and its head, as Hugging Face nests them; returns logits `[batch, sequence, vocabulary]`."""

    def __init__(self, config, model):
        super().__init__()
        self.config = config
        self.model = model
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.model(input_ids))


def randomize(cell, seed=0):
    """Weights of unit scale from numpy, the same on every rank; norms too, so that a wrong norm gradient shows."""
    generator = np.random.default_rng(seed)
    for path, parameter in cell.parameters_and_names():
        fan_in = parameter.shape[-1] if parameter.ndim > 1 else 16
        values = generator.standard_normal(parameter.shape) / fan_in ** 0.5 + (parameter.ndim == 1)
        parameter.set_data(Tensor(values.astype(np.float32)))
    return cell
