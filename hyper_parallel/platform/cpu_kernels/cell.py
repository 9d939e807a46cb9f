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
"""`Cell.to_empty`: without a device it leaves the parameters on meta when the target is CPU."""
import functools

from mindspore.common.device import get_current_device

from hyper_parallel.platform.cpu_kernels.dispatch import REPLACEMENTS, Replacement


def _to_empty(original):
    @functools.wraps(original)
    def to_empty(self, *, device=None, recurse=True):
        if device is None and get_current_device()[0] == "CPU":
            device = "CPU"
        return original(self, device=device, recurse=recurse)
    return to_empty


REPLACEMENTS.append(Replacement(("mindspore.nn:Cell.to_empty",), _to_empty))
