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
"""Decoders whose blocks add attention and MLP to their input: with one norm for both (GPT-J), or one each (NeoX)."""
from mindspore import nn

from tests.models.decoder import MLP, Attention, Decoder, DecoderConfig, RMSNorm, randomize


class OneNormBlock(nn.Cell):
    """x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)

    def construct(self, hidden_states, cos, sin, mask):
        """Both read one norm."""
        residual = hidden_states
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, cos, sin, mask)
        return attended + self.mlp(normed) + residual


class TwoNormsBlock(nn.Cell):
    """x + attention(norm(x)) + mlp(other_norm(x))."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(p=0.0)

    def construct(self, hidden_states, cos, sin, mask):
        """Each reads its own norm."""
        attended = self.dropout(self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask))
        hidden_states = hidden_states + attended + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states


def parallel_decoder(block=OneNormBlock, **sizes):
    """A decoder of such blocks with numpy weights, equal on all ranks."""
    config = DecoderConfig(**{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4,
                              "intermediate_size": 24, **sizes})
    cell = Decoder(config)
    cell.layers = nn.CellList([block(config) for _ in range(config.num_hidden_layers)])
    return randomize(cell)
