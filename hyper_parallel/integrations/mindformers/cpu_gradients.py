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
"""On a CPU, gradients are made contiguous before micro-batches add up: MindSpore adds strided ones wrongly there."""
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.platform.cpu_kernels.gradients import fix_gradient


def make_gradients_contiguous(models):
    """Hook every trainable parameter of the models; `fully_shard` has hooked those that it covers."""
    for model in models:
        for parameter in model.trainable_params():
            if not isinstance(parameter, DTensor):
                fix_gradient(parameter)
