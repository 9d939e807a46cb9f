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
"""The two silent gradient bugs of MindSpore's CPU build, and the remedies."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, mint
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor

from hyper_parallel.platform.cpu_kernels.gradients import contiguous_gradient, fix_gradient, probe_gradient_bugs
from cpu_kernels_checks import close, numbers

RIGHT = 1e-5


@pytest.fixture(autouse=True)
def recording():
    """Operators are recorded for `run_backward`, as the trainer has it."""
    had = _pynative_executor.grad_flag()
    _pynative_executor.set_grad_flag(True)
    yield
    _pynative_executor.set_grad_flag(had)


def backward(loss):
    run_backward((loss,), (Tensor(1.0, ms.float32),), False, False, ())


def gradient_after(parameter, passes, loss):
    """What two or more backward passes leave in the parameter's gradient."""
    for _ in range(passes):
        backward(loss(parameter))
    return parameter._grad  # pylint: disable=protected-access


def linear_loss(x, weights):
    """A linear layer as MindFormers writes it; activations [S, B, H]."""
    return lambda parameter: mint.sum(mint.mul(mint.matmul(x, mint.transpose(parameter, 1, 0)), weights))


def test_micro_batches_add_up_with_the_hook():
    x, weights = numbers(5, 2, 4), numbers(5, 2, 6)
    expected = np.einsum("sbo,sbi->oi", weights, x)
    loss = linear_loss(Tensor(x), Tensor(weights))
    for passes in (1, 2, 3):
        parameter = Parameter(Tensor(numbers(6, 4)), name="w")
        handle = fix_gradient(parameter)
        close(gradient_after(parameter, passes, loss), passes * expected, RIGHT)
        handle.remove()


def test_a_weight_used_twice_fires_the_hook_and_is_right():
    x, weights = numbers(5, 2, 4), numbers(5, 2, 6)
    parameter = Parameter(Tensor(numbers(6, 4)), name="w")
    fix_gradient(parameter)
    loss = linear_loss(Tensor(x), Tensor(weights))
    close(gradient_after(parameter, 2, lambda w: loss(w) + loss(w)), 4 * np.einsum("sbo,sbi->oi", weights, x), RIGHT)


def test_gradients_that_are_parts_of_a_larger_one():
    """Two parameters concatenated: each gets a part of the whole's gradient, a view."""
    weights = numbers(4, 3)
    parameters = [Parameter(Tensor(numbers(2, 3)), name=name) for name in "ab"]
    for parameter in parameters:
        fix_gradient(parameter)
    for _ in range(2):
        backward(mint.sum(mint.mul(mint.cat(parameters, 0), Tensor(weights))))
    for parameter, expected in zip(parameters, (weights[:2], weights[2:])):
        close(parameter._grad, 2 * expected, RIGHT)  # pylint: disable=protected-access


def test_the_hook_is_a_named_function():
    assert contiguous_gradient.__name__ == "contiguous_gradient"
    strided = mint.transpose(Tensor(numbers(2, 3)), 0, 1)
    assert contiguous_gradient(strided).is_contiguous()


@pytest.mark.parametrize("recorded", [True, False])
def test_probe(recorded):
    """The remedies are right. Whether MindSpore is wrong is MindSpore's affair: both are shown as they are."""
    _pynative_executor.set_grad_flag(recorded)
    errors = probe_gradient_bugs()
    assert set(errors) == {"split", "split_replaced", "accumulation", "accumulation_hooked"}
    assert errors["split_replaced"] < RIGHT and errors["accumulation_hooked"] < RIGHT
    assert all(isinstance(error, float) for error in errors.values())
    assert _pynative_executor.grad_flag() == recorded


def test_clipping_reaches_a_strided_gradient():
    """MindFormers clips by `grad.mul_(scale)`; the gradient of a linear layer is a transposed view."""
    x, weights = numbers(5, 2, 4), numbers(5, 2, 6)
    parameter = Parameter(Tensor(numbers(6, 4)), name="w")
    gradient_after(parameter, 1, linear_loss(Tensor(x), Tensor(weights)))
    with ms.graph.api._no_grad():  # pylint: disable=protected-access
        parameter._grad.mul_(0.5)  # pylint: disable=protected-access
    close(parameter._grad, 0.5 * np.einsum("sbo,sbi->oi", weights, x), RIGHT)  # pylint: disable=protected-access
