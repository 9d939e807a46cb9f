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
"""OLMo2's attention: norms over the whole width of queries and keys, before they are cut into heads."""
from tests.models.decoder import Attention, Backbone, Block, CausalLM
from tests.models.layers import RMSNorm, attend, repeat_heads, rotate


class WideNormAttention(Attention):
    """Grouped-query attention; the norms see all heads at once."""

    def __init__(self, config, norm):
        super().__init__(config)
        self.q_norm = norm(self.num_heads * self.head_dim, config.rms_norm_eps)
        self.k_norm = norm(self.num_key_value_heads * self.head_dim, config.rms_norm_eps)

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[batch, sequence, hidden]`."""
        batch, length, _ = hidden_states.shape
        shape = (batch, length, -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states)).reshape(shape).transpose((0, 2, 1, 3))
        key = self.k_norm(self.k_proj(hidden_states)).reshape(shape).transpose((0, 2, 1, 3))
        value = self.v_proj(hidden_states).reshape(shape).transpose((0, 2, 1, 3))
        key = repeat_heads(rotate(key, cos, sin), self.num_key_value_groups)
        value = repeat_heads(value, self.num_key_value_groups)
        context = attend(rotate(query, cos, sin), key, value, mask, self.head_dim ** -0.5)
        return self.o_proj(context.transpose((0, 2, 1, 3)).reshape((batch, length, -1)))


def wide_norm_decoder(config, norm=RMSNorm):
    """The model of a configuration.

    Args:
        config: sizes.
        norm: class of the norms, called with width and epsilon.
    """
    layers = [Block(config, WideNormAttention(config, norm)) for _ in range(config.num_hidden_layers)]
    return CausalLM(config, Backbone(config, layers))
