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
"""A judge of plans without any framework: decoders in numpy, rank by rank with local weights, partial results summed.

Names of shapes: s tokens, h hidden, n local heads, d head size.
"""
import json
import math
from pathlib import Path
from typing import Callable, Dict, List

import numpy as np
from safetensors.numpy import load_file

from hyper_parallel.distributed.planner import plan


def silu(x):
    """x sigmoid(x)."""
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    """GELU by tanh."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def gelu(x):
    """GELU by the error function."""
    scaled = x / np.sqrt(2)
    return 0.5 * x * (1 + (scaled.erf() if hasattr(scaled, "erf") else np.vectorize(math.erf)(scaled)))


def relu(x):
    """max(x, 0)."""
    return np.maximum(x, 0)


def softmax(x):
    """Over the last dim."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight, eps):
    """Root mean square norm."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    """Mean and variance norm."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + (0 if bias is None else bias)


def rotate(x_snd, base, width):
    """Rotary embedding of the first `width` elements of every head, halves."""
    half = width // 2
    angles = np.arange(x_snd.shape[0])[:, None] * base ** (-np.arange(half) * 2.0 / width)[None]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x_snd[..., :half], x_snd[..., half:width]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x_snd[..., width:]], -1)


def slopes_of(heads):
    """ALiBi slopes of a power of two of heads."""
    return 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))


class Ranks:
    """Local weights of every rank of a planned folder.

    Args:
        folder: with config.json, model.safetensors and reference.npz.
        tp: size of the axis.
        **options: as for `plan`.
    """

    def __init__(self, folder: Path, tp: int, **options):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.plan = plan(folder, tp=tp, **options)
        self.tp = tp
        whole = {name: array.astype(np.float64) for name, array in load_file(str(folder / "model.safetensors")).items()}
        self.local: List[Dict[str, np.ndarray]] = [
            {name: self.plan.shard(name, array, rank) for name, array in whole.items()} for rank in range(tp)]

    def get(self, rank: int, name: str):
        """A local tensor, or None."""
        return self.local[rank].get(name)

    def linear(self, rank: int, name: str, x, transposed: bool = False):
        """x W on one rank, and the bias where it is cut with the rows; that of a row linear waits."""
        weight = self.get(rank, f"{name}.weight")
        y = x @ (weight if transposed else weight.T)
        spec = self.plan.parameters.get(f"{name}.bias")
        return y if spec is None or spec.role == "BIAS" else y + self.get(rank, f"{name}.bias")

    def reduce(self, part: Callable[[int], np.ndarray], row: str):
        """The sum over the ranks, and the row linear's bias once."""
        total = sum(part(rank) for rank in range(self.tp))
        bias = self.get(0, f"{row}.bias")
        return total if bias is None else total + bias

    def embed(self, name: str, ids):
        """Each rank looks up the ids that fall into its rows; the sum is the lookup."""
        total = 0
        for rank in range(self.tp):
            table = self.get(rank, name)
            shifted = ids - rank * table.shape[0]
            inside = (shifted >= 0) & (shifted < table.shape[0])
            total = total + table[np.where(inside, shifted, 0)] * inside[:, None]
        return total

    def logits(self, name: str, x, vocabulary: int):
        """Local columns side by side, without the padding."""
        found = [x @ self.get(rank, f"{name}.weight").T + (0 if self.get(rank, f"{name}.bias") is None else
                                                         self.get(rank, f"{name}.bias")) for rank in range(self.tp)]
        return np.concatenate(found, -1)[:, :vocabulary]


def attend(q_snd, k_snd, v_snd, scale, bias=None, softcap=None):
    """Causal grouped attention of local heads, `[s, n·d]`."""
    repeat = q_snd.shape[1] // k_snd.shape[1]
    k_snd, v_snd = np.repeat(k_snd, repeat, 1), np.repeat(v_snd, repeat, 1)
    scores = np.einsum("snd,tnd->nst", q_snd, k_snd) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = scores + np.triu(np.full(scores.shape[1:], -1e30), 1)
    return np.einsum("nst,tnd->snd", softmax(scores), v_snd).reshape(q_snd.shape[0], -1)


def heads_of(x, size):
    """`[s, n·d]` by heads."""
    return x.reshape(x.shape[0], -1, size)


def alibi(ranks: Ranks, rank: int, length: int, heads: int):
    """This rank's slopes times key positions."""
    local = heads // ranks.tp
    return slopes_of(heads)[rank * local:(rank + 1) * local, None, None] * np.arange(length)[None, None, :]
