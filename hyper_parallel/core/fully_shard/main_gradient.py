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
"""The gradient that the optimizer reads: accumulated over micro-batches, reduced over the data axis once a step."""
from typing import Optional

import mindspore
from mindspore import ops

from hyper_parallel.core.collectives import functional


class MainGradient:
    """Float32 gradient of one parameter, reduced over the data-parallel ranks when it is first read.

    Backward passes add to the local parameter's own `grad`. Reading moves what has gathered there into the reduced
    buffer: one reduction a step, however many micro-batches, and never a number reduced twice.

    Args:
        local (Parameter): the leaf that the forward uses.
        group (Group): the data-parallel ranks.
        reduce_op: "sum" or "avg".
    """

    def __init__(self, local, group, reduce_op: str = "avg"):
        self._local = local
        self._group = group
        self.reduce_op = reduce_op
        self._reduced = None

    def read(self) -> Optional[mindspore.Tensor]:
        """The reduced local gradient in float32, or None before any backward. All ranks read in the same order."""
        fresh = self._local._grad
        if fresh is not None:
            fresh = functional.all_reduce(ops.cast(fresh, mindspore.float32), self._group, self.reduce_op,
                                          purpose="parameter_gradient")
            self._reduced = fresh if self._reduced is None else self._reduced + fresh
            self._local._grad = None
        return self._reduced

    def clear(self):
        """Forget everything, for the next step."""
        self._reduced = None
        self._local._grad = None
