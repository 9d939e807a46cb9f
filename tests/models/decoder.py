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

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


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


class RMSNorm(nn.Cell):
    """Root mean square norm over the last dim."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(size, np.float32)), name="weight")
        self.eps = eps

    def construct(self, x):
        """Normalised x."""
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotary embedding of x `[batch, heads, sequence, head size]`."""
    half = x.shape[-1] // 2
    return x * cos + ops.concat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Cell):
    """Grouped-query attention with rotary embedding and, as in Qwen3, a norm on each head's query and key."""

    def __init__(self, config):
        super().__init__()
        hidden, size, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = size
        self.q_proj = nn.Dense(hidden, self.num_heads * size, has_bias=bias)
        self.k_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=bias)
        self.v_proj = nn.Dense(hidden, self.num_key_value_heads * size, has_bias=bias)
        self.o_proj = nn.Dense(self.num_heads * size, hidden, has_bias=bias)
        self.qk_norm = config.qk_norm
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
        key = ops.repeat_elements(key, self.num_key_value_groups, 1)
        value = ops.repeat_elements(value.transpose((0, 2, 1, 3)), self.num_key_value_groups, 1)
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) / self.head_dim ** 0.5 + mask
        context = ops.matmul(ops.softmax(scores, -1), value)
        context = context.transpose((0, 2, 1, 3)).reshape((batch, length, self.num_heads * self.head_dim))
        return self.o_proj(context)


class MLP(nn.Cell):
    """Gated feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        bias = config.attention_bias
        self.gate_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=bias)
        self.up_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=bias)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=bias)

    def construct(self, x):
        """down(silu(gate) * up)."""
        gate = self.gate_proj(x)
        return self.down_proj(gate * ops.sigmoid(gate) * self.up_proj(x))


class Block(nn.Cell):
    """Pre-norm transformer block."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual MLP."""
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Decoder(nn.Cell):
    """Embedding, blocks, final norm and head; returns logits `[batch, sequence, vocabulary]`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.embedding_table
        self.head_dim, self.rotary = config.head_dim, config.rotary

    def construct(self, input_ids):
        """Logits of every position."""
        hidden_states = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        cos, sin, mask = self._buffers_for(length)
        for layer in self.layers:
            hidden_states = layer(hidden_states, cos, sin, mask)
        return self.lm_head(self.norm(hidden_states))

    def _buffers_for(self, length):
        size = self.head_dim
        angles = np.outer(np.arange(length), self.rotary * 10000.0 ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], -1)
        mask = np.triu(np.full((length, length), -1e9), 1)
        return (Tensor(np.cos(angles), mindspore.float32), Tensor(np.sin(angles), mindspore.float32),
                Tensor(mask, mindspore.float32))


def randomize(cell, seed=0):
    """Weights of unit scale from numpy, the same on every rank; norms too, so that a wrong norm gradient shows."""
    generator = np.random.default_rng(seed)
    for path, parameter in cell.parameters_and_names():
        fan_in = parameter.shape[-1] if parameter.ndim > 1 else 16
        values = generator.standard_normal(parameter.shape) / fan_in ** 0.5 + (parameter.ndim == 1)
        parameter.set_data(Tensor(values.astype(np.float32)))
    return cell
