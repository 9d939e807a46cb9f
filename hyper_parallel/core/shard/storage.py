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
"""`Cell.to_empty` and `Cell.to` for Cells whose parameters are DTensors."""
import functools

from mindspore import nn

from hyper_parallel.core.dtensor.dispatch import SkipDTensorDispatch


def let_cells_move_local_parts():
    """`Cell.to_empty` and `Cell.to` compute each parameter's new data with an operator; for a stored DTensor that is
    new data for the local part."""
    if hasattr(nn.Cell._apply, "_hyper_parallel"):
        return
    original = nn.Cell._apply

    @functools.wraps(original)
    def apply_to_local_parts(self, fn, recurse=True):
        with SkipDTensorDispatch():
            return original(self, fn, recurse)

    apply_to_local_parts._hyper_parallel = True
    nn.Cell._apply = apply_to_local_parts
