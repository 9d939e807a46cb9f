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
"""Methods that write into their tensor on CPU: the tensor itself changes, views included, and gradients flow."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, mint

from hyper_parallel.platform.cpu_kernels.memory import is_view, own_memory
from cpu_kernels_checks import FORMS, check, close, numbers

OTHER = numbers(3, 4) + 3

METHODS = {
    "add_": (lambda a: a.add_(Tensor(OTHER)), lambda a: a + OTHER),
    "add_ number": (lambda a: a.add_(1.5), lambda a: a + 1.5),
    "add_ alpha": (lambda a: a.add_(Tensor(OTHER), alpha=2), lambda a: a + 2 * OTHER),
    "add_ broadcast": (lambda a: a.add_(Tensor(OTHER[:1])), lambda a: a + OTHER[:1]),
    "sub_": (lambda a: a.sub_(Tensor(OTHER)), lambda a: a - OTHER),
    "sub_ number": (lambda a: a.sub_(2, alpha=3), lambda a: a - 6),
    "mul_": (lambda a: a.mul_(Tensor(OTHER)), lambda a: a * OTHER),
    "mul_ number": (lambda a: a.mul_(0.5), lambda a: a * 0.5),
    "div_": (lambda a: a.div_(Tensor(OTHER)), lambda a: a / OTHER),
    "div_ number": (lambda a: a.div_(4.0), lambda a: a / 4),
    "exp_": (lambda a: a.exp_(), np.exp),
    "zero_": (lambda a: a.zero_(), lambda a: a * 0),
    "fill_ number": (lambda a: a.fill_(2), lambda a: a * 0 + 2),
    "fill_ tensor": (lambda a: a.fill_(Tensor(2.5)), lambda a: a * 0 + 2.5),
    "copy_": (lambda a: a.copy_(Tensor(OTHER)), lambda a: a * 0 + OTHER),
    "copy_ broadcast": (lambda a: a.copy_(Tensor(OTHER[0])), lambda a: a * 0 + OTHER[0]),
    "scatter_ number": (lambda a: a.scatter_(1, Tensor([[0], [3], [1]]), 1), lambda a: scattered(a, 1)),
    "scatter_ tensor": (lambda a: a.scatter_(1, Tensor([[0], [3], [1]]), Tensor(OTHER[:, :1])),
                        lambda a: scattered(a, OTHER[:, :1])),
}


def scattered(a, values):
    """numpy's answer to the two scatters."""
    result = a.copy()
    np.put_along_axis(result, np.array([[0], [3], [1]]), values, 1)
    return result


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_the_tensor_itself_changes(name, form):
    method, formula = METHODS[name]
    start = numbers(3, 4)
    tensor = FORMS[form](start)
    result = method(tensor)
    close(tensor, formula(start.astype(np.float64)), 1e-5)
    close(result, formula(start.astype(np.float64)), 1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_gradients(name):
    method, formula = METHODS[name]
    check(lambda a: method(mint.mul(a, 1.0)), formula, numbers(3, 4))


def test_gradient_of_the_other_operand():
    check(lambda a, b: mint.mul(a, 1.0).mul_(b), lambda a, b: a * b, numbers(3, 4), numbers(3, 4))
    check(lambda a, b: mint.mul(a, 1.0).copy_(b), lambda a, b: a * 0 + b, numbers(3, 4), numbers(3, 4))


def test_augmented_assignment_changes_the_tensor():
    tensor = alias = Tensor(numbers(2, 2))
    start = tensor.asnumpy().copy()
    tensor += 1
    tensor *= Tensor(OTHER[:2, :2])
    tensor -= 2
    tensor /= 4
    assert tensor is alias
    close(alias, ((start + 1) * OTHER[:2, :2] - 2) / 4, 1e-6)


@pytest.mark.parametrize("mode, rounding", [("floor", np.floor), ("trunc", np.trunc)])
def test_division_with_rounding(mode, rounding):
    start = numbers(3, 4) * 5
    tensor = Tensor(start)
    tensor.div_(2.0, rounding_mode=mode)
    close(tensor, rounding(start / 2), 0)
    with pytest.raises(ValueError, match="'up'"):
        tensor.div_(2.0, rounding_mode="up")


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16, ms.int32, ms.int64, ms.bool_])
def test_dtypes(dtype):
    tensor = mint.ones((2, 3), dtype=dtype)
    tensor.zero_()
    close(tensor, np.zeros((2, 3)), 0)
    tensor.fill_(1)
    tensor.scatter_(1, Tensor([[0], [2]]), False)
    assert tensor.dtype == dtype
    close(tensor, [[0, 1, 1], [1, 1, 0]], 0)
    tensor.copy_(Tensor(np.ones((2, 3), np.float32)))
    assert tensor.dtype == dtype
    close(tensor, np.ones((2, 3)), 0)


def test_scatter_takes_value_by_keyword():
    tensor = mint.zeros((2, 2))
    tensor.scatter_(1, Tensor([[0], [1]]), value=3.0)
    np.testing.assert_array_equal(tensor.asnumpy(), [[3, 0], [0, 3]])


def test_parameters():
    parameter = Parameter(Tensor(numbers(2, 2)), name="w")
    parameter.fill_(1.0)
    parameter.add_(Tensor(np.ones((2, 2), np.float32)))
    np.testing.assert_array_equal(parameter.asnumpy(), [[2, 2], [2, 2]])


def test_a_written_view_leaves_its_base_alone():
    """The documented limit: a view gets memory of its own."""
    base = Tensor(np.zeros((4, 3), np.float32))
    view = mint.transpose(base, 0, 1)
    view.add_(1.0)
    assert not is_view(view)
    np.testing.assert_array_equal(view.asnumpy(), np.ones((3, 4)))
    np.testing.assert_array_equal(base.asnumpy(), np.zeros((4, 3)))


def test_views_are_recognised():
    whole = Tensor(numbers(4, 3))
    views = [mint.transpose(whole, 0, 1), mint.narrow(whole, 0, 0, 2), mint.narrow(whole, 0, 1, 2),
             mint.narrow(whole, 1, 1, 2)]
    assert all(is_view(view) for view in views)
    assert not is_view(whole) and not is_view(mint.reshape(whole, (3, 4)))
    for view in views:
        copy = own_memory(view)
        assert not is_view(copy)
        np.testing.assert_array_equal(copy.asnumpy(), view.asnumpy())
    assert own_memory(whole) is whole
