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
"""What judges an operator on parts: the same operator on the whole, forward and backward, on one device.

Shared by the test that simulates the ranks in one process and the one that runs on ranks.
"""
from typing import List, NamedTuple, Optional

import mindspore
import numpy as np
from mindspore import Tensor

from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward
from tests.models.op_cases import Case


class Expected(NamedTuple):
    """An operator's results on the whole.

    Attributes:
        results: as numpy arrays.
        seeds: where the backward starts, per result; None for a result that has no gradient.
        gradients: of the inputs; zeros where none arrived.
    """

    results: List[np.ndarray]
    seeds: List[Optional[np.ndarray]]
    gradients: List[np.ndarray]


def prepare() -> None:
    """Makes MindSpore fit for thousands of tiny operators on CPU, each read back at once.

    Without the hand-over between threads they take a fifth of the time.
    """
    mindspore.runtime.launch_blocking()
    cpu_kernels.maybe_install()
    enable_backward()


def leaf(array: np.ndarray) -> Tensor:
    """A tensor that gets a gradient, if it is a float."""
    made = Tensor(np.ascontiguousarray(array))
    if array.dtype.kind == "f":
        made._requires_grad = True
    return made


def used(tensor: Tensor) -> Tensor:
    """The leaf as an operand.

    Two leaves cannot be the operands of one sum: MindSpore clones the gradient that they share, and the CPU has no
    kernel for it.
    """
    return tensor * 1 if tensor._requires_grad else tensor


def listed(result) -> list:
    """The results of an operator as a list."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def backward(outputs, seeds) -> None:
    """Runs the backward from all outputs that have a seed, at once; outputs are plain tensors."""
    total = None
    for output, seed in zip(outputs, seeds):
        if seed is not None:
            term = (output * Tensor(np.ascontiguousarray(seed))).sum()
            total = term if total is None else total + term
    total.backward()


def gradient_of(tensor: Tensor) -> np.ndarray:
    """Its gradient, zeros if none arrived."""
    return np.zeros(tensor.shape, np.float32) if tensor._grad is None else tensor._grad.asnumpy()


def reference(case: Case) -> Expected:
    """The operator on the whole."""
    leaves = [leaf(array) for array in case.arrays]
    outputs = listed(case.function(*map(used, leaves)))
    arrays = [output.asnumpy() for output in outputs]
    seeds = [np.random.default_rng(number).normal(size=array.shape).astype(np.float32)
             if case.gradient and array.dtype.kind == "f" else None for number, array in enumerate(arrays)]
    if case.gradient:
        backward(outputs, seeds)
    return Expected(arrays, seeds, [gradient_of(tensor) for tensor in leaves])


def check_result(found: np.ndarray, expected: np.ndarray, close: float, words: str) -> None:
    """Raises an AssertionError with `words` where a result is not the operator's on the whole."""
    close = max(close, 1e-4)
    np.testing.assert_allclose(found, expected, rtol=close, atol=close, err_msg=words)


def check_gradient(found: np.ndarray, expected: np.ndarray, words: str) -> None:
    """As `check_result`, for the gradient of an input."""
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4, err_msg=words)
