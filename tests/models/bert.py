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
"""BERT with its masked-language head: biases everywhere, norms behind the residuals, a tied decoder with a bias."""
import numpy as np
from mindspore import Tensor, nn, ops

from tests.models.layers import Embedding, LayerNorm, zeros


class BertEmbeddings(nn.Cell):
    """Words, positions and token types."""

    def __init__(self, config):
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.position_ids = Tensor(np.arange(config.max_position_embeddings, dtype=np.int32)[None])

    def construct(self, input_ids):
        """States of a text of one type."""
        length = input_ids.shape[1]
        words = self.word_embeddings(input_ids)
        types = self.token_type_embeddings(ops.zeros_like(input_ids))
        return self.LayerNorm(words + types + self.position_embeddings(self.position_ids[:, :length]))


class BertSelfAttention(nn.Cell):
    """Heads without the output projection."""

    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Dense(config.hidden_size, self.all_head_size)
        self.key = nn.Dense(config.hidden_size, self.all_head_size)
        self.value = nn.Dense(config.hidden_size, self.all_head_size)

    def construct(self, hidden_states):
        """Context `[b, s, n d]`."""
        query = self._heads(self.query(hidden_states))
        key, value = self._heads(self.key(hidden_states)), self._heads(self.value(hidden_states))
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) / self.attention_head_size ** 0.5
        context = ops.matmul(ops.softmax(scores, -1), value).transpose((0, 2, 1, 3))
        return context.reshape(context.shape[:-2] + (self.all_head_size,))

    def _heads(self, x):
        return x.reshape(x.shape[:-1] + (self.num_attention_heads, self.attention_head_size)).transpose((0, 2, 1, 3))


class BertOutput(nn.Cell):
    """Projection, residual, norm; behind the heads and behind the feed-forward layer."""

    def __init__(self, in_features, config):
        super().__init__()
        self.dense = nn.Dense(in_features, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def construct(self, hidden_states, input_tensor):
        """norm(projection + residual)."""
        return self.LayerNorm(self.dense(hidden_states) + input_tensor)


class BertAttention(nn.Cell):
    """Heads and output."""

    def __init__(self, config):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def construct(self, hidden_states):
        """Attention with its residual and norm."""
        return self.output(self.self(hidden_states), hidden_states)


class BertIntermediate(nn.Cell):
    """First half of the feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Dense(config.hidden_size, config.intermediate_size)

    def construct(self, hidden_states):
        """gelu(up)."""
        return ops.gelu(self.dense(hidden_states))


class BertLayer(nn.Cell):
    """Block."""

    def __init__(self, config):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def construct(self, hidden_states):
        """Attention, then feed-forward layer."""
        attention = self.attention(hidden_states)
        return self.output(self.intermediate(attention), attention)


class BertEncoder(nn.Cell):
    """Blocks."""

    def __init__(self, config):
        super().__init__()
        self.layer = nn.CellList([BertLayer(config) for _ in range(config.num_hidden_layers)])

    def construct(self, hidden_states):
        """All blocks."""
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return hidden_states


class BertModel(nn.Cell):
    """Embeddings and encoder."""

    def __init__(self, config):
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)

    def construct(self, input_ids):
        """States of every position."""
        return self.encoder(self.embeddings(input_ids))


class BertPredictionHeadTransform(nn.Cell):
    """Dense, gelu, norm."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Dense(config.hidden_size, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def construct(self, hidden_states):
        """norm(gelu(dense))."""
        return self.LayerNorm(ops.gelu(self.dense(hidden_states)))


class BertLMPredictionHead(nn.Cell):
    """Transform and decoder; the decoder's bias is the head's own parameter."""

    def __init__(self, config):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Dense(config.hidden_size, config.vocab_size)
        self.bias = zeros(config.vocab_size)
        self.decoder.bias = self.bias

    def construct(self, hidden_states):
        """Logits of every position."""
        return self.decoder(self.transform(hidden_states))


class BertOnlyMLMHead(nn.Cell):
    """The level that names the head `predictions`."""

    def __init__(self, config):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)

    def construct(self, sequence_output):
        """Logits of every position."""
        return self.predictions(sequence_output)


class BertForMaskedLM(nn.Cell):
    """Model and head on one table; returns logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.cls = BertOnlyMLMHead(config)
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def construct(self, input_ids):
        """Logits of every position."""
        return self.cls(self.bert(input_ids))
