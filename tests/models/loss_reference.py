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
"""Cross entropy and its gradient in numpy float64."""
import numpy as np

IGNORED = -100


def reference(logits, labels, smoothing=0.0, z_loss=0.0, weight=None, reduction="mean"):
    """(loss, gradient of the summed loss) of whole logits `[N, V]`, in float64."""
    x, size = logits.astype(np.float64), logits.shape[1]
    weight = np.ones(size) if weight is None else np.asarray(weight, np.float64)
    counts = labels != IGNORED
    safe = np.where(counts, labels, 0)
    top = x.max(1)
    lse = np.log(np.exp(x - top[:, None]).sum(1)) + top
    soft, hot = np.exp(x - lse[:, None]), np.eye(size)[safe]
    own = weight[safe] * (1 - smoothing)
    loss = own * (lse - (x * hot).sum(1)) + smoothing / size * (weight.sum() * lse - x @ weight) + z_loss * lse ** 2
    gradient = (own + smoothing / size * weight.sum() + 2 * z_loss * lse)[:, None] * soft - own[:, None] * hot \
        - smoothing / size * weight
    scale = {"mean": 1 / (weight[safe] * counts).sum(), "sum": 1.0, "none": 1.0}[reduction]
    loss, gradient = loss * counts * scale, gradient * counts[:, None] * scale
    return (loss if reduction == "none" else loss.sum()), gradient


def drawn(size, tokens=6, seed=3):
    """Logits of large spread, and labels of which one is ignored and the first and last class occur."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, size, tokens).astype(np.int32)
    labels[:3] = [0, size - 1, IGNORED]
    return (20 * generator.standard_normal((tokens, size))).astype(np.float32), labels
