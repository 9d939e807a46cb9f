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
"""Two silent gradient bugs of MindSpore's CPU build: a hook against one, and a measurement of both.

* `mint.split` is wrong in the backward as soon as a piece's gradient is strided; `split` in this package replaces it.
* A gradient that arrives at a parameter as a transposed view is right as long as `.grad` is empty. When it is *added*
  to a gradient that is already there (micro-batches, one backward after another), its memory is read in storage
  order: the values come out permuted. The matrix products of a linear layer make such gradients for every
  `x @ weight.T`. `fix_gradient` makes each gradient contiguous before it is added.
"""
from typing import Dict

import numpy as np
import mindspore
from mindspore import Parameter, Tensor, mint
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor


def contiguous_gradient(gradient):
    """The gradient with its values in storage order; the hook that `fix_gradient` registers."""
    return gradient.contiguous()


def fix_gradient(parameter: Parameter):
    """Makes every gradient of `parameter` contiguous before MindSpore accumulates it; returns the hook's handle."""
    return parameter.register_hook(contiguous_gradient)


def _relative_error(measured: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(measured - expected) / np.linalg.norm(expected))


def _split_error(split, values: np.ndarray, weights: np.ndarray) -> float:
    """Error of the gradient of sum(weights * cat(pieces transposed)), which is `weights.T` in closed form."""
    def loss(tensor):
        pieces = [mint.transpose(piece, 0, 1) for piece in split(tensor, values.shape[1] // 2, 1)]
        return mint.sum(mint.mul(mint.cat(pieces, 0), Tensor(weights)))
    return _relative_error(mindspore.grad(loss)(Tensor(values)).asnumpy(), weights.T)


def _accumulation_error(values: np.ndarray, weights: np.ndarray, with_hook: bool) -> float:
    """Error of the gradient of `weights` after two backward passes through `values @ weights.T`."""
    parameter = Parameter(Tensor(weights), name="probe")
    if with_hook:
        fix_gradient(parameter)
    # `mindspore.grad` leaves recording switched off.
    _pynative_executor.set_grad_flag(True)
    for _ in range(2):
        out = mint.sum(mint.matmul(Tensor(values), mint.transpose(parameter, 0, 1)))
        run_backward((out,), (Tensor(1.0, out.dtype),), False, False, ())
    expected = 2 * np.broadcast_to(values.sum(0), weights.shape)
    return _relative_error(parameter._grad.asnumpy(), expected)  # pylint: disable=protected-access


def probe_gradient_bugs() -> Dict[str, float]:
    """Relative errors of the two gradients, as MindSpore computes them now and with the remedy of this package.

    Returns:
        Dict[str, float]: `split`, `split_replaced`, `accumulation`, `accumulation_hooked`. An error near 1e-7 is
        right, one near 1 is wrong.
    """
    from hyper_parallel.platform.cpu_kernels.split import split as replaced  # pylint: disable=import-outside-toplevel
    generator = np.random.default_rng(0)
    values = generator.normal(size=(6, 4)).astype(np.float32)
    weights = generator.normal(size=(4, 6)).astype(np.float32)
    inputs = generator.normal(size=(5, 6)).astype(np.float32)
    original = getattr(mint.split, "__wrapped__", mint.split)
    recorded = _pynative_executor.grad_flag()
    try:
        return {
            "split": _split_error(original, values, weights),
            "split_replaced": _split_error(replaced, values, weights),
            "accumulation": _accumulation_error(inputs, weights, False),
            "accumulation_hooked": _accumulation_error(inputs, weights, True),
        }
    finally:
        _pynative_executor.set_grad_flag(recorded)
