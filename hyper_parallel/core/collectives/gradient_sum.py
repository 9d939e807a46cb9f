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
"""Sums a parameter's gradient over a group: the parameter is replicated, but each rank sees only part of its use."""
import mindspore as ms
from mindspore import Parameter, ops

from hyper_parallel.core.collectives.counter import PARAMETER_GRADIENT
from hyper_parallel.core.collectives.functional import make
from hyper_parallel.core.collectives.groups import Group


class _NothingToRemove:
    """The handle of a hook that was not needed."""

    def remove(self):
        """Does nothing."""


def sum_gradient_over(param: Parameter, group: Group, where: str = ""):
    """Hooks an all-reduce in float32 onto the parameter's gradient; once a backward, however often the weight is used.

    Works in PyNative, mindspore.jit and GRAPH_MODE. A group of size 1 needs no hook.

    Args:
        param: a parameter that every rank of the group holds whole.
        group: the group, as `mesh.get_group(axis)` gives.
        where: path of the module that has the parameter, for the counter.

    Returns:
        A handle; `remove()` takes the hook off. A graph that was compiled with the hook keeps it.

    Examples:
        >>> handle = sum_gradient_over(layer.q_norm.gamma, mesh.get_group("tp"))
        >>> handle.remove()
    """
    if group.size == 1:
        return _NothingToRemove()
    reduce = make("all_reduce", group, "sum", purpose=PARAMETER_GRADIENT, phase="backward", where=where)

    def hook(gradient):
        return ops.cast(reduce(ops.cast(gradient, ms.float32)), gradient.dtype)

    return param.register_hook(hook)
