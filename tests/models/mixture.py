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
"""Qwen2-MoE: a list of experts beside a shared one behind a gate; the router's logits go out for an auxiliary loss."""
from dataclasses import dataclass

from mindspore import nn, ops

from tests.models.decoder import Attention, Backbone, Block, DecoderConfig
from tests.models.moe import mix
from tests.models.qwen2 import Qwen2MoeSparseMoeBlock


@dataclass
class MixtureConfig(DecoderConfig):
    """Sizes of a decoder whose feed-forward layers are mixtures."""

    model_type: str = "qwen2_moe"
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    num_experts: int = 4
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 12
    shared_expert_intermediate_size: int = 16


class SharedMixture(Qwen2MoeSparseMoeBlock):
    """Returns the router's logits beside the mixture."""

    def construct(self, hidden_states):
        """The mixture `[batch, sequence, hidden]`, and the router's logits `[tokens, experts]`."""
        shape = hidden_states.shape
        tokens = hidden_states.reshape((-1, shape[-1]))
        logits = self.gate(tokens)
        weights, chosen = ops.topk(ops.softmax(logits, -1), self.top_k)
        shared = ops.sigmoid(self.shared_expert_gate(tokens)) * self.shared_expert(tokens)
        return (mix(self.experts, tokens, weights, chosen) + shared).reshape(shape), logits


class MixtureBlock(Block):
    """Pre-norm block; returns the router's logits beside its result."""

    def __init__(self, config):
        super().__init__(config, Attention(config), SharedMixture(config))

    def construct(self, hidden_states, cos, sin, mask):
        """Residual attention, then residual mixture."""
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        result, logits = self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states + result, logits


class MixtureDecoder(Backbone):
    """A decoder of mixtures; adds an auxiliary loss on the routers' logits, times a factor, to its own logits."""

    def __init__(self, config, auxiliary=0.0):
        super().__init__(config, [MixtureBlock(config) for _ in range(config.num_hidden_layers)])
        self.config, self.auxiliary = config, auxiliary
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)

    def construct(self, input_ids):
        """Logits of every position."""
        length = input_ids.shape[1]
        hidden_states, loss = self.embed_tokens(input_ids), 0.0
        for layer in self.layers:
            hidden_states, logits = layer(hidden_states, self.cos[:length], self.sin[:length],
                                          self.mask[:length, :length])
            loss = loss + ops.mean(ops.square(ops.logsumexp(logits, -1)))
        return self.lm_head(self.norm(hidden_states)) + self.auxiliary * loss
