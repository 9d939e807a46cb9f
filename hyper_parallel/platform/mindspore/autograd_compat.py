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
"""`loss.backward()` and `parameter.grad` in PyNative mode, and the first call that MindFormers' trainer makes here."""
from typing import Optional

from mindspore import Tensor, mint
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor


def enable_mindspore_backward_compat():
    """Prepare MindSpore and MindFormers for a training run; called once by MindFormers' `Trainer` before its config.

    Supplies `Tensor.backward` and `Tensor.grad`, which MindSpore 2.10 has under private names only, and records
    operators for the backward from here on. The call is also where the `parallel_config.auto_tp` switch attaches
    itself, and where the kernels that a CPU lacks are supplied once the device is known.
    """
    from hyper_parallel.integrations.mindformers.install import install
    from hyper_parallel.platform import cpu_kernels
    cpu_kernels.maybe_install()
    enable_backward()
    install()


def enable_backward():
    """Give tensors `backward` and `grad`, where this MindSpore has none, and record operators from here on."""
    if not hasattr(Tensor, "backward"):
        Tensor.backward = backward
    if not hasattr(Tensor, "grad"):
        Tensor.grad = property(_get_grad, _set_grad)
    _pynative_executor.set_grad_flag(True)


def backward(self, gradient: Optional[Tensor] = None, retain_graph: bool = False, create_graph: bool = False):
    """Add the gradients of this tensor with respect to all leaves to their `grad`.

    Args:
        gradient: the gradient to start with, of this tensor's number of elements; 1 where it is left out.
        retain_graph: keep the graph for another backward.
        create_graph: record the backward itself.

    Raises:
        ValueError: `gradient` has another number of elements.
    """
    if gradient is None:
        gradient = mint.ones(tuple(self.shape), dtype=self.dtype)
    if gradient.size != self.size:
        raise ValueError(f"backward of a tensor of shape {tuple(self.shape)} starts with a gradient of {self.size} "
                         f"elements, got shape {tuple(gradient.shape)}")
    run_backward((self,), (gradient.reshape(tuple(self.shape)).astype(self.dtype),), retain_graph, create_graph, ())


def _get_grad(self):
    return self._grad


def _set_grad(self, value):
    self._grad = value
