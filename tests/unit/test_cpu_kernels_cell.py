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
"""Delayed initialisation on CPU: a Cell built on meta, given memory, then filled, as MindFormers' trainer does it."""
import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from cpu_kernels_checks import close


class Layer(nn.Cell):
    """A linear layer with a norm whose parameters are allocated, not initialised."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(mint.empty((3, 4), dtype=ms.float32), name="weight")
        self.scale = Parameter(mint.empty(4, dtype=ms.float32), name="scale")
        self.bias = Parameter(mint.zeros((3,), dtype=ms.float32), name="bias")
        self.register_buffer("steps", mint.empty((2,), dtype=ms.float32))

    def construct(self, x):
        return mint.matmul(ops.rms_norm(x, self.scale)[0], mint.transpose(self.weight, 1, 0)) + self.bias


def test_to_empty_without_a_device_leaves_meta():
    with ms.DeviceCtx("meta"):
        cell = nn.SequentialCell(Layer(), Layer())
    assert {parameter.device for parameter in cell.get_parameters()} == {"meta"}
    names = [parameter.name for parameter in cell.get_parameters()]
    assert cell.to_empty() is cell
    assert {parameter.device for parameter in cell.get_parameters()} == {"CPU"}
    assert cell[0].steps.device == "CPU"
    assert [parameter.name for parameter in cell.get_parameters()] == names
    with ms.graph.api._no_grad():  # pylint: disable=protected-access
        for layer in cell:
            layer.weight.normal_(mean=0.0, std=0.01)
            layer.scale.fill_(1.0)
            layer.bias.zero_()
    assert 0 < cell[0].weight.asnumpy().std() < 0.05
    x = np.ones((2, 4), np.float32)
    close(cell[0](Tensor(x)), np.broadcast_to(cell[0].weight.asnumpy().sum(1), (2, 3)), 1e-5)
    gradients = ms.grad(lambda x: cell[1](cell[0](x)[:, :1].broadcast_to((2, 4))).sum(), None,
                        cell.trainable_params())(Tensor(x))
    assert all(gradient.device == "CPU" for gradient in gradients) and len(gradients) == 6


def test_an_explicit_device_and_no_recursion_are_respected():
    with ms.DeviceCtx("meta"):
        cell = nn.SequentialCell(Layer())
    cell.to_empty(device="meta")
    assert cell[0].weight.device == "meta"
    cell.to_empty(recurse=False)
    assert cell[0].weight.device == "meta"
    with ms.DeviceCtx("meta"):
        cell.to_empty()
    assert cell[0].weight.device == "meta"


def test_functions_under_the_meta_device_make_meta_tensors():
    with ms.DeviceCtx("meta"):
        source = mint.empty((2, 3), dtype=ms.float32)
        made = [mint.zeros((2,)), mint.ones((2,)), mint.arange(3), mint.full((2,), 1.0), mint.randn(2, 3),
                mint.zeros_like(source), mint.ones_like(source), mint.stack([source, source]), source.clone(),
                source.normal_(), source.zero_(), source.fill_(1.0), source.add_(1.0), source.copy_(source),
                *mint.split(source, 1, 0), ops.rms_norm(source, mint.ones((3,)))[0], mint.matmul(source, source.T)]
    assert {tensor.device for tensor in made} == {"meta"}


def test_meta_tensors_outside_the_meta_context():
    with ms.DeviceCtx("meta"):
        source = mint.empty((2, 3), dtype=ms.float32)
    made = [mint.zeros_like(source), mint.stack([source, source]), source.fill_(1.0), *mint.split(source, [1, 2], 1)]
    assert {tensor.device for tensor in made} == {"meta"}
