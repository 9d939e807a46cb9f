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
"""Blocks as other hands write them: norm and residual inside of a layer, query, key and value as arguments, a residual
that is handed in, dropout in several places.
"""
from mindspore import nn, ops

from tests.models.decoder import Backbone, CausalLM
from tests.models.layers import LayerNorm, RMSNorm


class ThreeInputAttention(nn.Cell):
    """Attention of a query, a key and a value; dropout on its weights and on its result."""

    def __init__(self, config):
        super().__init__()
        hidden = config.hidden_size
        self.n_heads, self.d_head = config.num_attention_heads, hidden // config.num_attention_heads
        self.wq = nn.Dense(hidden, hidden, has_bias=False)
        self.wk = nn.Dense(hidden, hidden, has_bias=False)
        self.wv = nn.Dense(hidden, hidden, has_bias=False)
        self.wo = nn.Dense(hidden, hidden, has_bias=False)
        self.attn_dropout = nn.Dropout(p=config.dropout)
        self.resid_dropout = nn.Dropout(p=config.dropout)

    def construct(self, query, key, value, mask):
        """Attention over `[batch, sequence, hidden]`."""
        batch, length = query.shape[:2]
        query, key, value = (self._split(x) for x in (self.wq(query), self.wk(key), self.wv(value)))
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.d_head ** -0.5 + mask
        weights = self.attn_dropout(ops.softmax(scores, -1))
        context = ops.matmul(weights, value).transpose((0, 2, 1, 3)).reshape((batch, length, -1))
        return self.resid_dropout(self.wo(context))

    def _split(self, x):
        return x.reshape((x.shape[0], x.shape[1], self.n_heads, self.d_head)).transpose((0, 2, 1, 3))


class ResidualFeedForward(nn.Cell):
    """Norm, two linears, a scale and the residual, all inside."""

    def __init__(self, config):
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.intermediate_size = config.intermediate_size
        self.gate_up_proj = nn.Dense(config.hidden_size, 2 * config.intermediate_size, has_bias=False)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)
        self.post_norm = LayerNorm(config.hidden_size, config.rms_norm_eps)

    def construct(self, x):
        """x + post_norm(down(gate * up))."""
        gate_up = self.gate_up_proj(self.norm(x))
        gate, up = gate_up[..., :self.intermediate_size], gate_up[..., self.intermediate_size:]
        return x + self.post_norm(self.down_proj(ops.sigmoid(gate) * up))


class HandedResidualFeedForward(nn.Cell):
    """MPT's form: the residual is an argument, added inside."""

    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)
        self.dropout = config.dropout

    def construct(self, hidden_states, residual):
        """residual + down(gelu(up))."""
        y = ops.dropout(ops.gelu(self.up_proj(hidden_states)), p=self.dropout, training=self.training)
        return self.down_proj(y) + residual


class OtherBlock(nn.Cell):
    """Attention, then one feed-forward layer of each form."""

    def __init__(self, config):
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = ThreeInputAttention(config)
        self.mlp = ResidualFeedForward(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = HandedResidualFeedForward(config)

    def construct(self, hidden_states, cos, sin, mask):
        """Three sublayers."""
        normed = self.input_norm(hidden_states)
        hidden_states = self.mlp(hidden_states + self.attn(normed, normed, normed, mask))
        return self.ffn(self.ffn_norm(hidden_states), hidden_states)


def other_decoder(config):
    """The model of a configuration."""
    return CausalLM(config, Backbone(config, [OtherBlock(config) for _ in range(config.num_hidden_layers)]))
