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
"""The edges of a parallel block: 1/tp of the residual stream on every rank, whole for its readers, one reduction."""
from typing import Sequence

from mindspore import nn

from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.distributed import edges, local_compute
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

RESIDUAL_IN_SHARES, WHOLE_FROM_SHARE, BIAS_ON_FIRST_RANK = "residual_in_shares", "whole_from_share", \
    "bias_on_first_rank"
LOCAL_COMPUTE = (RESIDUAL_IN_SHARES, WHOLE_FROM_SHARE, BIAS_ON_FIRST_RANK)


def install(module, path: str, spec: ModuleShardingSpec, arguments: Sequence[str], group, rank: int) -> edges.Undo:
    """Put at the edges what the spec's local computation asks for; its exit, if it has one, is put there by the caller.

    Args:
        module: the boundary's Cell.
        path: of it.
        spec: its contract, with one of `LOCAL_COMPUTE`.
        arguments: names of the arguments of its forward.
        group: the ranks of the axis.
        rank: this rank's place in it.

    Returns:
        What undoes it.
    """
    if spec.local_compute_fn == BIAS_ON_FIRST_RANK:
        return local_compute.add_bias_last(module, path, 1.0 if rank == 0 else 0.0)
    (name,) = spec.in_dst
    if spec.local_compute_fn == WHOLE_FROM_SHARE:
        return edges.enter_through(module, path, [(_Scale(float(group.size)), name, arguments.index(name))])
    # the residual stream and what its readers see are partial: their gradients are summed together
    enter = edges.entry_transition(spec.in_src[name], {AXIS: Replicate()}, group, True, path)
    return edges.enter_through(module, path, [(_InShares(enter, group.size), name, arguments.index(name))])


class _Scale(nn.Cell):
    """Multiplies by a number; exact where it is a power of two."""

    def __init__(self, factor: float):
        super().__init__(auto_prefix=False)
        self.factor = factor

    def construct(self, x):
        """x times the factor."""
        return x * self.factor


class _InShares(nn.Cell):
    """The entry of a region, and then 1/ranks of what entered."""

    def __init__(self, enter: nn.Cell, ranks: int):
        super().__init__(auto_prefix=False)
        self.enter, self.factor = enter, 1.0 / ranks

    def construct(self, x):
        """This rank's share of x."""
        return self.enter(x) * self.factor
