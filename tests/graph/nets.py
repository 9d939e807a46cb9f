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
"""Small networks as they are written for graph mode: Cells hold their operators, so that each can have a strategy."""
import math

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

HIDDEN, HEADS, FFN, VOCABULARY, LENGTH, EXPERTS = 32, 8, 64, 64, 8, 4


class Config:
    """What the planner looks up."""

    vocab_size, hidden_size, intermediate_size, num_attention_heads = VOCABULARY, HIDDEN, FFN, HEADS
    num_hidden_layers, seq_length = 1, LENGTH

    def __init__(self, kv_heads, **changes):
        self.num_key_value_heads = kv_heads
        vars(self).update(changes)


class RMSNorm(nn.Cell):
    """Root mean square norm of held primitives."""

    def __init__(self, size):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(size, np.float32)), name="weight")
        self.square, self.mean, self.rsqrt = ops.Square(), ops.ReduceMean(keep_dims=True), ops.Rsqrt()
        self.add, self.scale, self.weigh = ops.Add(), ops.Mul(), ops.Mul()

    def construct(self, x):
        """x / rms(x) * weight."""
        return self.weigh(self.scale(x, self.rsqrt(self.add(self.mean(self.square(x), -1), 1e-6))), self.weight)


class Attention(nn.Cell):
    """Grouped-query attention; rotary positions and norms on heads as asked for."""

    def __init__(self, kv_heads, bias, rotary, head_norm, causal):
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = HEADS, kv_heads, HIDDEN // HEADS
        self.groups = HEADS // kv_heads
        self.q_proj = nn.Dense(HIDDEN, HIDDEN, has_bias=bias)
        self.k_proj = nn.Dense(HIDDEN, kv_heads * self.head_dim, has_bias=bias)
        self.v_proj = nn.Dense(HIDDEN, kv_heads * self.head_dim, has_bias=bias)
        self.o_proj = nn.Dense(HIDDEN, HIDDEN, has_bias=bias)
        self.head_norm, self.rotary = head_norm, rotary
        if head_norm:
            self.q_norm, self.k_norm = RMSNorm(self.head_dim), RMSNorm(self.head_dim)
        if rotary:
            self.rotate_q, self.rotate_k = Rotary(self.head_dim), Rotary(self.head_dim)
        self.reshape = ops.Reshape()
        self.transpose_q, self.transpose_k = ops.Transpose(), ops.Transpose()
        self.transpose_v, self.transpose_back = ops.Transpose(), ops.Transpose()
        self.expand_k, self.expand_v, self.tile_k, self.tile_v = (ops.ExpandDims(), ops.ExpandDims(), ops.Tile(),
                                                                  ops.Tile())
        self.scores, self.context = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.add_mask, self.softmax = ops.Mul(), ops.Add(), ops.Softmax(-1)
        hidden = np.triu(np.full((LENGTH, LENGTH), -1e4, np.float32), 1) * causal
        self.mask = Tensor(hidden[None, None])

    def construct(self, hidden_states):
        """Attention over `[batch, sequence, hidden]`."""
        batch, length, _ = hidden_states.shape
        query = self.reshape(self.q_proj(hidden_states), (batch, length, self.num_heads, self.head_dim))
        key = self.reshape(self.k_proj(hidden_states), (batch, length, self.num_key_value_heads, self.head_dim))
        value = self.reshape(self.v_proj(hidden_states), (batch, length, self.num_key_value_heads, self.head_dim))
        if self.head_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query = self.transpose_q(query, (0, 2, 1, 3))
        key, value = self.transpose_k(key, (0, 2, 1, 3)), self.transpose_v(value, (0, 2, 1, 3))
        if self.rotary:
            query, key = self.rotate_q(query), self.rotate_k(key)
        if self.groups > 1:
            whole = (batch, self.num_heads, length, self.head_dim)
            key = self.reshape(self.tile_k(self.expand_k(key, 2), (1, 1, self.groups, 1, 1)), whole)
            value = self.reshape(self.tile_v(self.expand_v(value, 2), (1, 1, self.groups, 1, 1)), whole)
        scores = self.scale(self.scores(query, key), 1 / math.sqrt(self.head_dim))
        context = self.context(self.softmax(self.add_mask(scores, self.mask)), value)
        context = self.reshape(self.transpose_back(context, (0, 2, 1, 3)), (batch, length, -1))
        return self.o_proj(context)


class Rotary(nn.Cell):
    """Rotary positions for `[batch, heads, sequence, head size]`."""

    def __init__(self, size):
        super().__init__()
        angles = np.outer(np.arange(LENGTH), 100.0 ** (-np.arange(0, size, 2) / size)).repeat(2, -1)[None, None]
        self.cos, self.sin = Tensor(np.cos(angles), mindspore.float32), Tensor(np.sin(angles), mindspore.float32)
        self.split, self.negate, self.join = ops.Split(-1, 2), ops.Neg(), ops.Concat(-1)
        self.by_cos, self.by_sin, self.add = ops.Mul(), ops.Mul(), ops.Add()

    def construct(self, x):
        """x cos + (-second half, first half) sin."""
        first, second = self.split(x)
        return self.add(self.by_cos(x, self.cos), self.by_sin(self.join((self.negate(second), first)), self.sin))


class GatedMLP(nn.Cell):
    """down(silu(gate) * up)."""

    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Dense(HIDDEN, FFN, has_bias=False)
        self.up_proj = nn.Dense(HIDDEN, FFN, has_bias=False)
        self.down_proj = nn.Dense(FFN, HIDDEN, has_bias=False)
        self.sigmoid, self.swish, self.gated = ops.Sigmoid(), ops.Mul(), ops.Mul()

    def construct(self, x):
        """Of `[..., hidden]`."""
        gate = self.gate_proj(x)
        return self.down_proj(self.gated(self.swish(gate, self.sigmoid(gate)), self.up_proj(x)))


class PlainMLP(nn.Cell):
    """proj(gelu(fc)), with biases."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(HIDDEN, FFN)
        self.proj = nn.Dense(FFN, HIDDEN)
        self.gelu = ops.GeLU()

    def construct(self, x):
        """Of `[..., hidden]`."""
        return self.proj(self.gelu(self.fc(x)))


class SparseMLP(nn.Cell):
    """Every expert sees every token, and the router weighs their results."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Dense(HIDDEN, EXPERTS, has_bias=False)
        self.experts = nn.CellList([GatedMLP() for _ in range(EXPERTS)])
        self.softmax, self.split = ops.Softmax(-1), ops.Split(-1, EXPERTS)
        self.weigh = [ops.Mul() for _ in range(EXPERTS)]
        self.weigh_0, self.weigh_1, self.weigh_2, self.weigh_3 = self.weigh
        self.add_1, self.add_2, self.add_3 = ops.Add(), ops.Add(), ops.Add()

    def construct(self, x):
        """Of `[batch, sequence, hidden]`."""
        shares = self.split(self.softmax(self.gate(x)))
        result = self.weigh_0(self.experts[0](x), shares[0])
        result = self.add_1(result, self.weigh_1(self.experts[1](x), shares[1]))
        result = self.add_2(result, self.weigh_2(self.experts[2](x), shares[2]))
        return self.add_3(result, self.weigh_3(self.experts[3](x), shares[3]))


class Block(nn.Cell):
    """A residual attention, then a residual MLP, normed before or after."""

    def __init__(self, kv_heads, norm, mlp, bias, rotary, head_norm, causal, norm_first):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn = Attention(kv_heads, bias, rotary, head_norm, causal)
        self.mlp = mlp()
        self.add_attention, self.add_mlp = ops.Add(), ops.Add()
        self.norm_first = norm_first

    def construct(self, hidden_states):
        """Of `[batch, sequence, hidden]`."""
        if self.norm_first:
            hidden_states = self.add_attention(hidden_states, self.self_attn(self.input_layernorm(hidden_states)))
            return self.add_mlp(hidden_states, self.mlp(self.post_attention_layernorm(hidden_states)))
        hidden_states = self.input_layernorm(self.add_attention(hidden_states, self.self_attn(hidden_states)))
        return self.post_attention_layernorm(self.add_mlp(hidden_states, self.mlp(hidden_states)))


class Net(nn.Cell):
    """Embedding, blocks, norm and head; logits `[batch, sequence, vocabulary]`."""

    def __init__(self, config, norm, mlp, *, layers=1, bias=False, rotary=True, head_norm=False, causal=True,
                 norm_first=True, positions=False, tied=False):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, HIDDEN)
        self.positions = positions
        if positions:
            self.embed_positions = nn.Embedding(LENGTH, HIDDEN)
            self.places = Tensor(np.arange(LENGTH, dtype=np.int32)[None])
            self.add_positions = ops.Add()
        kv_heads = config.num_key_value_heads
        self.layers = nn.CellList([Block(kv_heads, norm, mlp, bias, rotary, head_norm, causal, norm_first)
                                   for _ in range(layers)])
        self.norm = norm()
        self.lm_head = nn.Dense(HIDDEN, config.vocab_size, has_bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.embedding_table

    def construct(self, input_ids):
        """Logits of `[batch, sequence]`."""
        hidden_states = self.embed_tokens(input_ids)
        if self.positions:
            hidden_states = self.add_positions(hidden_states, self.embed_positions(self.places))
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.lm_head(self.norm(hidden_states))


def _rms():
    return RMSNorm(HIDDEN)


def _layer():
    return nn.LayerNorm((HIDDEN,))


def build(shape, layers=1):
    """A network by the family whose shape it has."""
    kinds = {
        "llama": lambda: Net(Config(HEADS), _rms, GatedMLP, layers=layers),
        "qwen3": lambda: Net(Config(HEADS), _rms, GatedMLP, layers=layers, head_norm=True, tied=True),
        "gpt2": lambda: Net(Config(HEADS), _layer, PlainMLP, layers=layers, bias=True, rotary=False, positions=True,
                            tied=True),
        "bert": lambda: Net(Config(HEADS), _layer, PlainMLP, layers=layers, bias=True, rotary=False, positions=True,
                            causal=False, norm_first=False),
        "moe": lambda: Net(Config(HEADS, num_experts=EXPERTS), _rms, SparseMLP, layers=layers),
        "grouped": lambda: Net(Config(4), _rms, GatedMLP, layers=layers, head_norm=True),
    }
    return kinds[shape]()


SHAPES = ("llama", "qwen3", "gpt2", "bert", "moe")
