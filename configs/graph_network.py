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
"""A network of one's own for MindFormers' graph mode, without a word about parallelism: see docs/graph_mode.md.

Its Cells hold their operators, as strategies need it; which strategy each gets follows from the plan.
"""
import math

import numpy as np
from mindformers.models.configuration_utils import PretrainedConfig
from mindformers.models.modeling_utils import PreTrainedModel
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import Parameter, Tensor, nn, ops


@MindFormerRegister.register(MindFormerModuleType.CONFIG)
class OwnDecoderConfig(PretrainedConfig):
    """Sizes, by the names that Hugging Face configurations use."""

    model_type = "own_decoder"

    def __init__(self, vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
                 num_attention_heads=8, num_key_value_heads=8, seq_length=128, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.seq_length = num_key_value_heads, seq_length


class RMSNorm(nn.Cell):
    """Root mean square norm over the last dim."""

    def __init__(self, size):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(size, np.float32)), name="weight")
        self.square, self.mean, self.rsqrt = ops.Square(), ops.ReduceMean(keep_dims=True), ops.Rsqrt()
        self.add, self.scale, self.weigh = ops.Add(), ops.Mul(), ops.Mul()

    def construct(self, x):
        """x / rms(x) * weight."""
        return self.weigh(self.scale(x, self.rsqrt(self.add(self.mean(self.square(x), -1), 1e-6))), self.weight)


class Attention(nn.Cell):
    """Causal attention; one operator for each use, so that each can have its own strategy."""

    def __init__(self, config):
        super().__init__()
        hidden = config.hidden_size
        self.num_heads, self.head_dim = config.num_attention_heads, hidden // config.num_attention_heads
        self.q_proj = nn.Dense(hidden, hidden, has_bias=False)
        self.k_proj = nn.Dense(hidden, hidden, has_bias=False)
        self.v_proj = nn.Dense(hidden, hidden, has_bias=False)
        self.o_proj = nn.Dense(hidden, hidden, has_bias=False)
        self.reshape = ops.Reshape()
        self.transpose_q, self.transpose_k = ops.Transpose(), ops.Transpose()
        self.transpose_v, self.transpose_back = ops.Transpose(), ops.Transpose()
        self.scores, self.context = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.add_mask, self.softmax = ops.Mul(), ops.Add(), ops.Softmax(-1)
        self.mask = Tensor(np.triu(np.full((config.seq_length,) * 2, -1e4, np.float32), 1)[None, None])

    def construct(self, hidden_states):
        """Of `[batch, sequence, hidden]`."""
        batch, length, hidden = hidden_states.shape
        heads = (batch, length, self.num_heads, self.head_dim)
        query = self.transpose_q(self.reshape(self.q_proj(hidden_states), heads), (0, 2, 1, 3))
        key = self.transpose_k(self.reshape(self.k_proj(hidden_states), heads), (0, 2, 1, 3))
        value = self.transpose_v(self.reshape(self.v_proj(hidden_states), heads), (0, 2, 1, 3))
        scores = self.add_mask(self.scale(self.scores(query, key), 1 / math.sqrt(self.head_dim)), self.mask)
        context = self.transpose_back(self.context(self.softmax(scores), value), (0, 2, 1, 3))
        return self.o_proj(self.reshape(context, (batch, length, hidden)))


class MLP(nn.Cell):
    """down(silu(gate) * up)."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.up_proj = nn.Dense(config.hidden_size, config.intermediate_size, has_bias=False)
        self.down_proj = nn.Dense(config.intermediate_size, config.hidden_size, has_bias=False)
        self.sigmoid, self.swish, self.gated = ops.Sigmoid(), ops.Mul(), ops.Mul()

    def construct(self, x):
        """Of `[batch, sequence, hidden]`."""
        gate = self.gate_proj(x)
        return self.down_proj(self.gated(self.swish(gate, self.sigmoid(gate)), self.up_proj(x)))


class Block(nn.Cell):
    """Pre-norm transformer block."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size)
        self.mlp = MLP(config)
        self.add_attention, self.add_mlp = ops.Add(), ops.Add()

    def construct(self, hidden_states):
        """Residual attention, then residual MLP."""
        hidden_states = self.add_attention(hidden_states, self.self_attn(self.input_layernorm(hidden_states)))
        return self.add_mlp(hidden_states, self.mlp(self.post_attention_layernorm(hidden_states)))


@MindFormerRegister.register(MindFormerModuleType.MODELS)
class OwnDecoderForCausalLM(PreTrainedModel):
    """Embedding, blocks, norm, head and loss."""

    config_class = OwnDecoderConfig
    base_model_prefix = "own_decoder"

    def __init__(self, config):
        super().__init__(config, auto_prefix=True)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size)
        self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, has_bias=False)
        self.reshape = ops.Reshape()

    def construct(self, input_ids, labels):
        """The mean loss of `labels` `[batch, sequence]`, the tokens that follow `input_ids`."""
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        logits = self.lm_head(self.norm(hidden_states))
        return ops.cross_entropy(self.reshape(logits, (-1, logits.shape[-1])), self.reshape(labels, (-1,)))
