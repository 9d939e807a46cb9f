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


@dataclass(frozen=True)
class OffloadPolicy:
    """Parameters and gradients stay on the device."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters and gradients wait in host memory; refused in this version (`parallelism.cpu_offload`).

    Args:
        pin_memory: host memory is page-locked.
    """

    pin_memory: bool = True
