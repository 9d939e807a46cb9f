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
"""Layers that the models share, by the parameter names of Hugging Face checkpoints (`weight`, `bias`).

Shapes in names of comments: b batch, s sequence, n heads, d head size.
"""
import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def ones(*shape):
    """A parameter before weights are loaded."""
    return Parameter(Tensor(np.ones(shape, np.float32)), name="weight")


def zeros(*shape):
    """A bias before weights are loaded."""
    return Parameter(Tensor(np.zeros(shape, np.float32)), name="bias")


class RMSNorm(nn.Cell):
    """Root mean square norm over the last dim."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = ones(size)
        self.eps = eps

    def construct(self, x):
        """Normalised x."""
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * self.weight


class LayerNorm(nn.Cell):
    """Mean and variance norm over the last dim."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = ones(size)
        self.bias = zeros(size)
        self.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)

    def construct(self, x):
        """Normalised x."""
        return self.layer_norm(x, self.weight, self.bias)[0]


class Embedding(nn.Cell):
    """Rows of a table."""

    def __init__(self, rows, width):
        super().__init__()
        self.weight = ones(rows, width)

    def construct(self, input_ids):
        """The rows of the ids."""
        return ops.gather(self.weight, input_ids, 0)


class Conv1D(nn.Cell):
    """GPT-2's linear: the weight is `[in, out]`."""

    def __init__(self, out_features, in_features):
        super().__init__()
        self.nf = out_features
        self.weight = ones(in_features, out_features)
        self.bias = zeros(out_features)

    def construct(self, x):
        """x W + b."""
        return ops.matmul(x, self.weight) + self.bias


def causal_mask(length):
    """Additive mask `[length, length]`."""
    return Tensor(np.triu(np.full((length, length), -1e9), 1), mindspore.float32)


def rotary_tables(length, size, theta):
    """Cosines and sines `[length, size]`, halves side by side."""
    angles = np.outer(np.arange(length), float(theta) ** (-np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], -1)
    return Tensor(np.cos(angles), mindspore.float32), Tensor(np.sin(angles), mindspore.float32)


def no_rotation(length, size):
    """The tables of no rotation."""
    return Tensor(np.ones((length, size)), mindspore.float32), Tensor(np.zeros((length, size)), mindspore.float32)


def rotate(x, cos, sin):
    """Rotary embedding of x `[b, n, s, d]`."""
    half = x.shape[-1] // 2
    return x * cos + ops.concat((-x[..., half:], x[..., :half]), -1) * sin


def repeat_heads(x, times):
    """Each kv head of `[b, n, s, d]` for `times` query heads."""
    return ops.repeat_elements(x, times, 1)


def attend(query, key, value, mask, scale):
    """softmax(query key^T scale + mask) value, `[b, n, s, d]`."""
    scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * scale + mask
    return ops.matmul(ops.softmax(scores, -1), value)


class DotProductAttention(nn.Cell):
    """Attention of packed `[b, s, n d]` inputs, with the signature of fused kernels: it keeps the number of heads."""

    def __init__(self, head_num, head_dim):
        super().__init__()
        self.head_num = head_num
        self.scale = head_dim ** -0.5

    def construct(self, query, key, value, mask):
        """Context `[b, s, n d]`."""
        batch, length, width = query.shape
        shape = (batch, length, self.head_num, width // self.head_num)
        query, key, value = (x.reshape(shape).transpose((0, 2, 1, 3)) for x in (query, key, value))
        return attend(query, key, value, mask, self.scale).transpose((0, 2, 1, 3)).reshape((batch, length, width))


def silu(x):
    """x sigmoid(x)."""
    return x * ops.sigmoid(x)
