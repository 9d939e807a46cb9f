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
"""The first call that MindFormers' trainer makes into this package."""


def enable_mindspore_backward_compat():
    """Prepare MindSpore and MindFormers for a training run; called once by MindFormers' `Trainer` before its config.

    `Tensor.backward` works in the MindSpore versions that this package supports, so nothing has to be done for it.
    The call is where the `parallel_config.auto_tp` switch attaches itself, and where the kernels that a CPU lacks
    are supplied once the device is known.
    """
    from hyper_parallel.integrations.mindformers.install import install
    from hyper_parallel.platform import cpu_kernels
    cpu_kernels.maybe_install()
    install()
