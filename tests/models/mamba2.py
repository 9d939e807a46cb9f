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
"""Mamba-2: a gated state-space layer whose heads share B and C by groups, and a norm over its whole inner width."""
import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tests.models.layers import Embedding, RMSNorm, silu


class GatedRMSNorm(nn.Cell):
    """Root mean square norm of x silu(gate)."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(size, np.float32)), name="weight")
        self.variance_epsilon = eps

    def construct(self, hidden_states, gate=None):
        """Normalised gated states."""
        if gate is not None:
            hidden_states = hidden_states * silu(gate)
        variance = ops.mean(hidden_states * hidden_states, -1, keep_dims=True)
        return self.weight * (hidden_states * ops.rsqrt(variance + self.variance_epsilon))


class Mamba2Mixer(nn.Cell):
    """Rows of the input projection: gate, x, B, C, one step size a head."""

    def __init__(self, config):
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.ssm_state_size, self.n_groups = config.state_size, config.n_groups
        self.conv_kernel_size = config.conv_kernel
        self.intermediate_size = config.num_heads * config.head_dim
        self.conv_dim = self.intermediate_size + 2 * self.n_groups * self.ssm_state_size
        self.in_proj = nn.Dense(config.hidden_size, self.intermediate_size + self.conv_dim + self.num_heads,
                                has_bias=False)
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, self.conv_kernel_size, pad_mode="pad",
                                padding=self.conv_kernel_size - 1, group=self.conv_dim, has_bias=True)
        self.dt_bias = Parameter(Tensor(np.ones(self.num_heads, np.float32)), name="dt_bias")
        self.A_log = Parameter(Tensor(np.zeros(self.num_heads, np.float32)), name="A_log")
        self.D = Parameter(Tensor(np.ones(self.num_heads, np.float32)), name="D")
        self.norm = GatedRMSNorm(self.intermediate_size, config.layer_norm_epsilon)
        self.out_proj = nn.Dense(self.intermediate_size, config.hidden_size, has_bias=False)

    def construct(self, hidden_states):
        """The layer's output `[batch, sequence, hidden]`."""
        batch, length, _ = hidden_states.shape
        projected = self.in_proj(hidden_states)
        gate = projected[..., :self.intermediate_size]
        mixed = projected[..., self.intermediate_size:self.intermediate_size + self.conv_dim]
        step = projected[..., self.intermediate_size + self.conv_dim:]
        mixed = silu(self.conv1d(mixed.transpose((0, 2, 1)))[..., :length].transpose((0, 2, 1)))
        shared = self.n_groups * self.ssm_state_size
        x = mixed[..., :self.intermediate_size].reshape((batch, length, self.num_heads, self.head_dim))
        b = self._by_head(mixed[..., self.intermediate_size:self.intermediate_size + shared])
        c = self._by_head(mixed[..., self.intermediate_size + shared:])
        step = ops.log(1 + ops.exp(step + self.dt_bias))
        lower = Tensor(np.tril(np.ones((length, length))), mindspore.float32)
        reached = ops.matmul(lower, -step * ops.exp(self.A_log)).transpose((0, 2, 1))
        decay = ops.exp((reached.expand_dims(-1) - reached.expand_dims(-2)) * lower) * lower
        weights = decay * ops.matmul(c.transpose((0, 2, 1, 3)), b.transpose((0, 2, 3, 1)))
        y = ops.matmul(weights, (x * step.expand_dims(-1)).transpose((0, 2, 1, 3))).transpose((0, 2, 1, 3))
        y = y + x * self.D.reshape((1, 1, -1, 1))
        return self.out_proj(self.norm(y.reshape((batch, length, -1)), gate))

    def _by_head(self, x):
        x = x.reshape((x.shape[0], x.shape[1], self.n_groups, self.ssm_state_size))
        return ops.repeat_elements(x, self.num_heads // self.n_groups, 2)


class Mamba2Block(nn.Cell):
    """Norm, mixer, residual."""

    def __init__(self, config):
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = Mamba2Mixer(config)

    def construct(self, hidden_states):
        """x + mixer(norm(x))."""
        return hidden_states + self.mixer(self.norm(hidden_states))


class Mamba2Model(nn.Cell):
    """Embedding, blocks, final norm."""

    def __init__(self, config):
        super().__init__()
        self.embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([Mamba2Block(config) for _ in range(config.num_hidden_layers)])
        self.norm_f = RMSNorm(config.hidden_size, config.layer_norm_epsilon)

    def construct(self, input_ids):
        """States of every position."""
        hidden_states = self.embeddings(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.norm_f(hidden_states)


class Mamba2ForCausalLM(nn.Cell):
    """Model and head; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.backbone = Mamba2Model(config)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)

    def construct(self, input_ids):
        """Logits of every position."""
        return self.lm_head(self.backbone(input_ids))
