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
"""Log-softmax and cross entropy, computed in float32."""
from mindspore import mint, ops
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.numeric import as_float32

REDUCTIONS = ("none", "mean", "sum")


@operator("LogSoftmaxExt")
def log_softmax_operator(input, dim=None, dtype=None):
    if dim is None:
        # The rule of the public function: dim 0 for 0, 1 and 3 dims, dim 1 otherwise.
        dim = 0 if input.ndim in (0, 1, 3) else 1
    wide = as_float32(input if dtype is None else input.astype(dtype))
    shifted = mint.sub(wide, ops.stop_gradient(mint.max(wide, dim, True)[0]))
    out = mint.sub(shifted, mint.log(mint.sum(mint.exp(shifted), dim, True)))
    return out.astype(dtype or input.dtype)


@replaces("mindspore.mint.nn.functional:log_softmax")
def log_softmax(input, dim=None, *, dtype=None):
    return log_softmax_operator.dispatch(input, dim, dtype)


def _reduced(losses, reduction, weight_sum):
    if reduction == "none":
        return losses
    total = mint.sum(losses)
    return total if reduction == "sum" else mint.div(total, weight_sum)


@replaces("mindspore.mint.nn.functional:cross_entropy")
def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """Classes lie along dim 1 (dim 0 of a vector); `target` holds class numbers, or probabilities like `input`.

    `mean` divides by the summed weights of the targets that count, and by their number without weights; with
    probabilities it divides by the number of rows.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, but got {reduction!r}.")
    class_dim = 0 if input.ndim == 1 else 1
    classes = input.shape[class_dim]
    logs = log_softmax_operator.dispatch(as_float32(input), class_dim)
    shape = [1] * input.ndim
    shape[class_dim] = classes
    weights = mint.ones(shape) if weight is None else mint.reshape(as_float32(weight), shape)
    weighted = mint.neg(mint.mul(logs, weights))

    if target.shape == input.shape:
        probabilities = as_float32(target) * (1 - label_smoothing) + label_smoothing / classes
        losses = mint.sum(mint.mul(weighted, probabilities), class_dim)
        return _reduced(losses, reduction, float(max(losses.size, 1))).astype(input.dtype)

    counted = mint.not_equal(target, ignore_index)
    index = mint.unsqueeze(mint.where(counted, target, mint.zeros((), dtype=target.dtype)), class_dim)
    counted = counted.astype(mstype.float32)
    losses = mint.squeeze(mint.gather(weighted, class_dim, index), class_dim)
    if label_smoothing:
        losses = losses * (1 - label_smoothing) + mint.sum(weighted, class_dim) * (label_smoothing / classes)
    losses = mint.mul(losses, counted)
    row_weights = mint.squeeze(mint.gather(weights.broadcast_to(input.shape), class_dim, index), class_dim)
    return _reduced(losses, reduction, mint.sum(mint.mul(row_weights, counted))).astype(input.dtype)
