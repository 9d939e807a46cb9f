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
"""The gradient that the optimizer reads: accumulated over micro-batches, reduced over the data axes."""
from typing import Optional

import mindspore
from mindspore import Parameter


class MainGradient:
    """Float32 gradient of one parameter, complete when it is read.

    What backward passes leave at the leaf goes through the unit: over the shard axis after every backward (or once, see
    `HSDPModule.set_requires_gradient_sync`), over the other data axes when it is read. Nothing is reduced twice.

    Args:
        unit (Unit): the parameters that are reduced together.
        leaf (Parameter): what the forward uses.
    """

    def __init__(self, unit, leaf: Parameter):
        self.unit = unit
        self.leaf = leaf
        self._pending = None
        self._reduced = None

    def add(self, part: mindspore.Tensor):
        """A float32 summand, reduced over the shard axis but not over the others."""
        self._pending = part if self._pending is None else self._pending + part

    def take_pending(self) -> Optional[mindspore.Tensor]:
        """What has been added and not been reduced over the other axes, which the caller does now."""
        pending, self._pending = self._pending, None
        return pending

    def put(self, reduced: mindspore.Tensor):
        """A complete summand."""
        self._reduced = reduced if self._reduced is None else self._reduced + reduced

    def read(self) -> Optional[mindspore.Tensor]:
        """The reduced gradient of this rank's part, or None before any backward. All ranks read in the same order."""
        self.unit.finish_gradients()
        return self._reduced

    def clear(self):
        """Forget everything, for the next step."""
        self._pending = self._reduced = None
        self.leaf._grad = None
