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
"""A one-layer decoder with a fused qkv weight, biases and a norm on queries, which also compiles (GRAPH_MODE)."""
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.decoder import RMSNorm, randomize

HEADS, SIZE, HIDDEN, FFN, LENGTH = 4, 4, 16, 24, 6
# q of all heads, then k, then v: what the forward does
RIGHT_LAYOUT = {"match": "attn.qkv.*", "fused_layout": "sections"}
MASK = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))


class Attention(nn.Cell):
    """Attention whose q, k and v come out of one linear."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.head_dim = HEADS, SIZE
        self.qkv = nn.Dense(HIDDEN, 3 * HEADS * SIZE)
        self.q_norm = RMSNorm(SIZE, 1e-6)
        self.out_proj = nn.Dense(HEADS * SIZE, HIDDEN)

    def construct(self, hidden_states):
        """Attention over `[batch, sequence, hidden]`."""
        batch, length, _ = hidden_states.shape
        query, key, value = ops.chunk(self.qkv(hidden_states), 3, -1)
        heads = (batch, length, self.num_heads, -1)
        query = ops.transpose(self.q_norm(ops.reshape(query, heads)), (0, 2, 1, 3))
        key = ops.transpose(ops.reshape(key, heads), (0, 2, 3, 1))
        value = ops.transpose(ops.reshape(value, heads), (0, 2, 1, 3))
        scores = ops.matmul(query, key) / self.head_dim ** 0.5 + MASK[:length, :length]
        context = ops.transpose(ops.matmul(ops.softmax(scores, -1), value), (0, 2, 1, 3))
        return self.out_proj(ops.reshape(context, (batch, length, -1)))


class MLP(nn.Cell):
    """Plain feed-forward layer with biases."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(HIDDEN, FFN)
        self.fc2 = nn.Dense(FFN, HIDDEN)

    def construct(self, x):
        """fc2(sigmoid(fc1))."""
        return self.fc2(ops.sigmoid(self.fc1(x)))


class FusedDecoder(nn.Cell):
    """Embedding, attention, MLP, norm and head; returns logits `[batch, sequence, vocabulary]`."""

    def __init__(self, vocabulary=32, head_bias=False):
        super().__init__()
        self.config = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "head_dim": SIZE, "vocab_size": vocabulary,
                       "intermediate_size": FFN}
        self.embed_tokens = nn.Embedding(vocabulary, HIDDEN)
        self.attn_norm = RMSNorm(HIDDEN, 1e-6)
        self.attn = Attention()
        self.mlp_norm = RMSNorm(HIDDEN, 1e-6)
        self.mlp = MLP()
        self.norm = RMSNorm(HIDDEN, 1e-6)
        self.lm_head = nn.Dense(HIDDEN, vocabulary, has_bias=head_bias)

    def construct(self, input_ids):
        """Logits of every position."""
        hidden_states = self.embed_tokens(input_ids)
        hidden_states = hidden_states + self.attn(self.attn_norm(hidden_states))
        hidden_states = hidden_states + self.mlp(self.mlp_norm(hidden_states))
        return self.lm_head(self.norm(hidden_states))


def fused_decoder(**sizes):
    """With numpy weights, equal on every rank."""
    return randomize(FusedDecoder(**sizes))


def token_ids(vocabulary=32, batch=2, length=LENGTH, seed=7):
    """Token ids, equal on all ranks."""
    return Tensor(np.random.default_rng(seed).integers(0, vocabulary, (batch, length)).astype(np.int32))
