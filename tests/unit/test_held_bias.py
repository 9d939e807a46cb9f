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
"""Linears without their bias, against numpy: a bias that stays in is added once per rank, without a word."""
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from hyper_parallel.distributed.held_bias import hold_back
from tests.models.layers import Conv1D

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((2, 3)).astype(np.float32)


def with_weights(cell):
    """Random weight and bias; the cell, x W and b."""
    weight = GENERATOR.standard_normal(cell.weight.shape).astype(np.float32)
    bias = GENERATOR.standard_normal(cell.bias.shape).astype(np.float32)
    cell.weight.set_data(Tensor(weight))
    cell.bias.set_data(Tensor(bias))
    return cell, X @ (weight.T if weight.shape == (4, 3) else weight), bias


@pytest.mark.parametrize("build", [lambda: nn.Dense(3, 4), lambda: mint.nn.Linear(3, 4), lambda: Conv1D(4, 3)])
def test_the_bias_is_held_back_and_comes_back(build):
    cell, product, bias = with_weights(build())
    undo = hold_back(cell)
    assert np.allclose(cell(Tensor(X)).asnumpy(), product, atol=1e-6)
    undo()
    assert np.allclose(cell(Tensor(X)).asnumpy(), product + bias, atol=1e-6)


def test_a_forward_that_adds_its_bias_whatever_has_bias_says_is_refused():
    class Stubborn(nn.Cell):
        """Names the switch in its description only."""

        def __init__(self):
            super().__init__()
            self.has_bias = True
            self.weight = Parameter(Tensor(np.ones((4, 3), np.float32)), name="weight")
            self.bias = Parameter(Tensor(np.ones(4, np.float32)), name="bias")

        def construct(self, x):
            """x W + b."""
            return ops.matmul(x, self.weight.T) + self.bias

        def extend_repr(self):
            """Description."""
            return f"has_bias={self.has_bias}"

    with pytest.raises(ValueError, match="cannot hold back the bias of a Stubborn: its forward does not ask"):
        hold_back(Stubborn())
