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
"""Where a sharded module keeps what it does not use at the moment."""
from dataclasses import dataclass

from mindspore import Tensor, get_context


@dataclass(frozen=True)
class OffloadPolicy:
    """Parameters and gradients stay on the device."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Each rank's parts of parameters and main gradients are kept in host memory; what is gathered is on the device.

    Args:
        pin_memory: host memory is page-locked.
    """

    pin_memory: bool = True


def to_host(tensor: Tensor) -> Tensor:
    """The tensor in host memory; the tensor itself where it is there, or has no memory."""
    return tensor if tensor.is_meta or tensor.device.startswith("CPU") else tensor.to("CPU")


def to_device(tensor: Tensor) -> Tensor:
    """The tensor on the device that computes."""
    target = get_context("device_target")
    return tensor if target == "CPU" or not tensor.device.startswith("CPU") else tensor.to(target)
