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
"""Phi-3: packed [Q|K|V] and packed halves [G|U]; attention by an operator that is built with the number of heads."""
from mindspore import nn, ops

from tests.models.decoder import Backbone, Block, CausalLM
from tests.models.layers import DotProductAttention, repeat_heads, rotate, silu


class Phi3Attention(nn.Cell):
    """Grouped-query attention."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = config.hidden_size // self.num_heads
        width = (self.num_heads + 2 * self.num_key_value_heads) * self.head_dim
        self.qkv_proj = nn.Dense(config.hidden_size, width, has_bias=False)
        self.o_proj = nn.Dense(self.num_heads * self.head_dim, config.hidden_size, has_bias=False)
        self.core_attention = DotProductAttention(self.num_heads, self.head_dim)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        qkv = self.qkv_proj(hidden_states)
        query_end = self.num_heads * self.head_dim
        key_end = query_end + self.num_key_value_heads * self.head_dim
        query = rotate(self._heads(qkv[..., :query_end]), cos, sin)
        key = repeat_heads(rotate(self._heads(qkv[..., query_end:key_end]), cos, sin), self.num_key_value_groups)
        value = repeat_heads(self._heads(qkv[..., key_end:]), self.num_key_value_groups)
        return self.o_proj(self.core_attention(self._packed(query), self._packed(key), self._packed(value), mask))

    def _heads(self, x):
        return x.reshape((x.shape[0], x.shape[1], -1, self.head_dim)).transpose((0, 2, 1, 3))

    def _packed(self, x):
        return x.transpose((0, 2, 1, 3)).reshape((x.shape[0], x.shape[2], -1))


class Phi3MLP(nn.Cell):
    """Gated feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.gate_up_proj = nn.Dense(config.hidden_size, 2 * config.intermediate_size, has_bias=False)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)

    def construct(self, hidden_states):
        """down(silu(gate) * up)."""
        gate, up = ops.chunk(self.gate_up_proj(hidden_states), 2, axis=-1)
        return self.down_proj(silu(gate) * up)


def phi3(config):
    """The model of a configuration."""
    layers = [Block(config, Phi3Attention(config), Phi3MLP(config)) for _ in range(config.num_hidden_layers)]
    return CausalLM(config, Backbone(config, layers))
