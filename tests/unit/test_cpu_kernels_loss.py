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
"""Log-softmax and cross entropy on CPU, against their formulas."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, mint

from cpu_kernels_checks import check, check_half, close, numbers

F = mint.nn.functional
TARGET = np.array([2, 0, -100, 1])
WEIGHT = np.array([0.5, 2.0, 1.0], np.float32)


def log_softmax(x, dim=-1):
    shifted = x - x.max(dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


def cross_entropy(logits, target, weight, smoothing, reduction):
    """By the definition, one row at a time; logits [rows, classes]."""
    logs, classes = log_softmax(logits, 1), logits.shape[1]
    losses, weights = [], []
    for row, label in zip(logs, target):
        counts = label != -100
        losses.append(counts * (-(1 - smoothing) * weight[label if counts else 0] * row[label if counts else 0]
                                - smoothing / classes * (weight * row).sum()))
        weights.append(counts * weight[label if counts else 0])
    return {"none": np.array(losses), "sum": np.sum(losses), "mean": np.sum(losses) / np.sum(weights)}[reduction]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_log_softmax(dim):
    check(lambda x: F.log_softmax(x, dim), lambda x: log_softmax(x, dim), numbers(2, 3, 4) * 3)


def test_log_softmax_without_a_dim():
    for shape, dim in (((4,), 0), ((3, 4), 1), ((2, 3, 4), 0)):
        check(F.log_softmax, lambda x, dim=dim: log_softmax(x, dim), numbers(*shape))


def test_log_softmax_dtypes_and_large_numbers():
    for dtype in (ms.float16, ms.bfloat16):
        check_half(lambda x: F.log_softmax(x, -1), log_softmax, numbers(2, 3), dtype=dtype)
    assert F.log_softmax(Tensor(numbers(2, 3)).astype(ms.float16), -1, dtype=ms.float32).dtype == ms.float32
    close(F.log_softmax(Tensor(np.array([1e4, 0.0], np.float32)), 0), [0, -1e4], 0)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_class_numbers(reduction, weighted, smoothing):
    weight = WEIGHT if weighted else np.ones(3, np.float32)
    check(lambda x: F.cross_entropy(x, Tensor(TARGET), Tensor(weight) if weighted else None, reduction=reduction,
                                    label_smoothing=smoothing),
          lambda x: cross_entropy(x, TARGET, weight, smoothing, reduction), numbers(4, 3))


def test_cross_entropy_takes_another_ignored_number_and_int32():
    logits = numbers(4, 3)
    result = F.cross_entropy(Tensor(logits), Tensor(np.array([2, 0, 1, 1], np.int32)), ignore_index=1)
    close(result, cross_entropy(logits, [2, 0, -100, -100], np.ones(3), 0, "mean"), 1e-5)


def test_cross_entropy_with_more_dims_and_with_one():
    target = np.array([[2, 0], [1, -100]])

    def formula(x):
        return cross_entropy(np.moveaxis(x, 1, -1).reshape(-1, 3), target.reshape(-1), np.ones(3), 0, "mean")
    check(lambda x: F.cross_entropy(x, Tensor(target)), formula, numbers(2, 3, 2))
    check(lambda x: F.cross_entropy(x, Tensor(1)), lambda x: -log_softmax(x)[1], numbers(3))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_of_probabilities(reduction):
    target = np.abs(numbers(4, 3))
    target /= target.sum(1, keepdims=True)

    def formula(x):
        losses = -(log_softmax(x, 1) * (target * 0.9 + 0.1 / 3) * WEIGHT).sum(1)
        return {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]
    check(lambda x: F.cross_entropy(x, Tensor(target), Tensor(WEIGHT), reduction=reduction, label_smoothing=0.1),
          formula, numbers(4, 3))


def test_cross_entropy_in_half_precision():
    for dtype in (ms.float16, ms.bfloat16):
        check_half(lambda x: F.cross_entropy(x, Tensor(TARGET)),
                   lambda x: cross_entropy(x, TARGET, np.ones(3), 0, "mean"), numbers(4, 3), dtype=dtype)


def test_cross_entropy_refuses_an_unknown_reduction():
    with pytest.raises(ValueError, match="'median'"):
        F.cross_entropy(Tensor(numbers(4, 3)), Tensor(TARGET), reduction="median")
