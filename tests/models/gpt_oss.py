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
"""gpt-oss: a sink per head, biases in all projections, stacks of experts `[experts, in, out]` with biases, YaRN."""
import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tests.models.decoder import POSITIONS, Backbone, Block, CausalLM
from tests.models.layers import ones, repeat_heads, rotate, zeros


def yarn_tables(config):
    """Cosines and sines `[positions, head size]` (arXiv 2309.00071)."""
    scaling, size = config.rope_scaling, config.head_dim
    plain = config.rope_theta ** (-np.arange(0, size, 2) / size)

    def dim_of(turns):
        reach = scaling["original_max_position_embeddings"] / (turns * 2 * np.pi)
        return size * np.log(reach) / (2 * np.log(config.rope_theta))

    low, high = max(dim_of(scaling["beta_fast"]), 0), min(dim_of(scaling["beta_slow"]), size - 1)
    keep = 1 - np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
    angles = np.outer(np.arange(POSITIONS), plain / scaling["factor"] * (1 - keep) + plain * keep)
    angles = np.concatenate([angles, angles], -1)
    stretch = 0.1 * np.log(scaling["factor"]) + 1
    return (Tensor(np.cos(angles) * stretch, mindspore.float32), Tensor(np.sin(angles) * stretch, mindspore.float32))


class GptOssAttention(nn.Cell):
    """Grouped-query attention; each head may attend to nothing."""

    def __init__(self, config):
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.num_heads = config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.head_dim = size
        self.q_proj = nn.Dense(hidden, config.num_attention_heads * size)
        self.k_proj = nn.Dense(hidden, config.num_key_value_heads * size)
        self.v_proj = nn.Dense(hidden, config.num_key_value_heads * size)
        self.o_proj = nn.Dense(config.num_attention_heads * size, hidden)
        self.sinks = Parameter(Tensor(np.zeros(config.num_attention_heads, np.float32)), name="sinks")

    def construct(self, hidden_states, cos, sin, mask):
        """Attention over `[b, s, h]`."""
        batch, length, _ = hidden_states.shape
        shape = (batch, length, -1, self.head_dim)
        query = rotate(self.q_proj(hidden_states).reshape(shape).transpose((0, 2, 1, 3)), cos, sin)
        key = rotate(self.k_proj(hidden_states).reshape(shape).transpose((0, 2, 1, 3)), cos, sin)
        value = self.v_proj(hidden_states).reshape(shape).transpose((0, 2, 1, 3))
        key, value = repeat_heads(key, self.num_key_value_groups), repeat_heads(value, self.num_key_value_groups)
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.head_dim ** -0.5 + mask
        sinks = ops.broadcast_to(self.sinks.reshape((1, -1, 1, 1)), (batch, self.num_heads, length, 1))
        shares = ops.softmax(ops.concat((scores, sinks), -1), -1)[..., :-1]
        return self.o_proj(ops.matmul(shares, value).transpose((0, 2, 1, 3)).reshape((batch, length, -1)))


class GptOssTopKRouter(nn.Cell):
    """Softmax after the choice."""

    def __init__(self, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.num_experts = config.num_local_experts
        self.weight = ones(config.num_local_experts, config.hidden_size)
        self.bias = zeros(config.num_local_experts)

    def construct(self, hidden_states):
        """Weights of all experts `[tokens, experts]`, zero where not chosen."""
        values, chosen = ops.topk(ops.matmul(hidden_states, self.weight.T) + self.bias, self.top_k)
        return ops.sum(ops.softmax(values, -1).expand_dims(-1)
                       * ops.one_hot(chosen, self.num_experts).astype(values.dtype), 1)


class GptOssExperts(nn.Cell):
    """All experts at once; columns of gate and up alternate."""

    def __init__(self, config):
        super().__init__()
        experts, hidden, width = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.alpha = 1.702
        self.limit = 7.0
        self.gate_up_proj = ones(experts, hidden, 2 * width)
        self.gate_up_proj_bias = zeros(experts, 2 * width)
        self.down_proj = ones(experts, width, hidden)
        self.down_proj_bias = zeros(experts, hidden)

    def construct(self, hidden_states, routing_weights):
        """Mixed output `[tokens, h]` of tokens `[tokens, h]` with weights `[tokens, experts]`."""
        gate_up = ops.matmul(hidden_states.expand_dims(0), self.gate_up_proj) + self.gate_up_proj_bias.expand_dims(1)
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate, up = ops.clamp(gate, max=self.limit), ops.clamp(up, -self.limit, self.limit)
        gated = (up + 1) * gate * ops.sigmoid(gate * self.alpha)
        output = ops.matmul(gated, self.down_proj) + self.down_proj_bias.expand_dims(1)
        return ops.sum(output * routing_weights.T.expand_dims(-1), 0)


class GptOssMLP(nn.Cell):
    """Router and experts."""

    def __init__(self, config):
        super().__init__()
        self.router = GptOssTopKRouter(config)
        self.experts = GptOssExperts(config)

    def construct(self, hidden_states):
        """The chosen experts' output, `[b, s, h]`."""
        shape = hidden_states.shape
        tokens = hidden_states.reshape((-1, shape[-1]))
        return self.experts(tokens, self.router(tokens)).reshape(shape)


def gpt_oss(config):
    """The model of a configuration."""
    layers = [Block(config, GptOssAttention(config), GptOssMLP(config)) for _ in range(config.num_hidden_layers)]
    return CausalLM(config, Backbone(config, layers, rotary=yarn_tables(config)))
