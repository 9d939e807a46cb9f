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
"""Data-parallel sharding: who holds which part of parameters, gradients and optimizer state."""
from hyper_parallel.core.fully_shard.api import HSDPModule, MixedPrecisionPolicy, fully_shard
from hyper_parallel.core.fully_shard.finite import gradients_are_finite
from hyper_parallel.core.fully_shard.utils import CPUOffloadPolicy, OffloadPolicy

__all__ = ["CPUOffloadPolicy", "HSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard",
           "gradients_are_finite"]
