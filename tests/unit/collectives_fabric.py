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
"""Several ranks in one process, for the backends' functions of one tensor.

A rank's function runs up to its collective, which takes down what the rank hands in; when all have done so, they run
again and get the results. So what a backend does before and after MindSpore's operators is tested, for every rank.
"""
import numpy as np
from mindspore import Tensor

from hyper_parallel.core.collectives.groups import Group


class _HandedIn(Exception):
    """Ends a rank's first run."""


class Fabric:
    """The ranks' meeting place. `groups[i]` is the group as member i sees it, under a name of its own: what is made for
    a group is cached by its name."""

    def __init__(self, size):
        self.groups = [Group(f"fabric{index}", tuple(range(size)), index) for index in range(size)]
        self._member, self._handed_in = None, {}

    def meet(self, mathematics, inputs):
        """Called by a stand-in of a collective: the mathematics maps the list of all inputs to the list of outputs."""
        if len(self._handed_in) < len(self.groups):
            self._handed_in[self._member] = inputs
            raise _HandedIn
        return mathematics([self._handed_in[member] for member in range(len(self.groups))])[self._member]

    def run(self, make, arrays):
        """Every member's `make(group)(its array)`, as numpy arrays."""
        self._handed_in = {}
        functions = [make(group) for group in self.groups]
        results = []
        for second in (False, True):
            for self._member, function in enumerate(functions):
                try:
                    results.append(function(Tensor(arrays[self._member])).asnumpy())
                    assert second
                except _HandedIn:
                    assert not second
        return results


def as_tensors(arrays):
    """Tensors of a list of arrays."""
    return [Tensor(np.ascontiguousarray(array)) for array in arrays]
