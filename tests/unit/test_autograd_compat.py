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
"""`backward` and `grad` on MindSpore's tensors, as MindFormers' trainer calls them."""
import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops

from hyper_parallel.platform.mindspore.autograd_compat import enable_backward


@pytest.fixture(autouse=True)
def _enabled():
    enable_backward()


def test_backward_adds_to_grad_and_none_forgets():
    weight = Parameter(Tensor(np.array([[1.0, 2.0]], np.float32)), name="weight")
    for expected in ([[3.0, 5.0]], [[6.0, 10.0]]):
        ops.sum(weight * Tensor(np.array([[3.0, 5.0]], np.float32))).backward()
        assert weight.grad.asnumpy().tolist() == expected
    weight.grad = None
    assert weight.grad is None


def test_backward_starts_with_a_one_element_gradient_of_another_shape():
    weight = Parameter(Tensor(np.array([2.0], np.float32)), name="weight")
    ops.sum(weight * weight).backward(Tensor([0.25], mindspore.float32))
    assert weight.grad.asnumpy().tolist() == [1.0]


def test_backward_of_a_vector_takes_a_gradient_of_its_size():
    weight = Parameter(Tensor(np.array([2.0, 3.0], np.float32)), name="weight")
    (weight * 1.0).backward(Tensor([5.0, 7.0], mindspore.float32))
    assert weight.grad.asnumpy().tolist() == [5.0, 7.0]
    with pytest.raises(ValueError, match="2 elements, got shape"):
        (weight * 1.0).backward(Tensor([1.0, 2.0, 3.0], mindspore.float32))
