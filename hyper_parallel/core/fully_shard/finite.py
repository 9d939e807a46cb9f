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
"""Whether a step may be taken: a gradient that is no number anywhere is known everywhere."""
import mindspore
from mindspore import mint, ops
from mindspore.graph.api import _no_grad

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.groups import get_group, world_exists, world_size
from hyper_parallel.core.dtensor.dtensor import DTensor


def gradients_are_finite(cell) -> bool:
    """Whether no rank holds a NaN or an infinity in any gradient; every rank of the job gets the same answer.

    Call it after the backward and before the optimizer, on all ranks, to skip a step on all of them or on none.

    Args:
        cell (Cell): with trained parameters, sharded or not.

    Examples:
        >>> loss.backward()
        >>> if hp.gradients_are_finite(model):
        ...     optimizer([parameter.main_grad for parameter in model.trainable_params()])
        >>> model.zero_grad()
    """
    wrong = 0
    with _no_grad():
        for parameter in cell.trainable_params():
            gradient = parameter._grad
            if isinstance(parameter, DTensor):
                gradient = parameter.grad if parameter.main_gradient is None else parameter.main_grad
                gradient = None if gradient is None else gradient.to_local()
            if gradient is not None:
                wrong = wrong + mint.sum(ops.cast(mint.logical_not(mint.isfinite(gradient)), mindspore.float32))
        wrong = mindspore.Tensor(wrong, mindspore.float32).reshape((1,))
        if world_exists():
            wrong = functional.all_reduce(wrong, get_group(tuple(range(world_size()))), purpose="check")
    return wrong.asnumpy().item() == 0
