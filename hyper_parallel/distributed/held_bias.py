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
"""Linears computed without their bias, which is added later, once.

How a class leaves its bias out is known for three kinds: those whose forward asks `self.has_bias` (`nn.Dense`),
`mint.nn.Linear`, whose forward takes its bias whatever `has_bias` says, and GPT-2's `Conv1D`, y = x W + b with W
`[in, out]`.
"""
from typing import Callable

from mindspore import mint, ops

from hyper_parallel.distributed import edges
from hyper_parallel.distributed.forward_reads import chains_of


def hold_back(cell) -> Callable[[], None]:
    """Make a linear give x W instead of x W + b.

    Args:
        cell: owns `weight` and `bias`.

    Returns:
        What undoes it.

    Raises:
        ValueError: nobody knows how its class leaves the bias out.
    """
    forward = _forward_without_bias(cell)
    if forward is not None:
        return edges.replace_construct(cell, forward)
    if getattr(cell, "has_bias", None) is not True or ("has_bias",) not in chains_of(type(cell).construct):
        raise ValueError(f"cannot hold back the bias of a {type(cell).__name__}: its forward does not ask "
                         "self.has_bias, and it is neither a mint.nn.Linear nor a Conv1D; use nn.Dense, or keep the "
                         "module whole with auto_tp_config.overrides")
    cell.has_bias = False

    def undo():
        cell.has_bias = True

    return undo


def _forward_without_bias(cell):
    if type(cell) is mint.nn.Linear:
        return _linear
    if type(cell).__name__ == "Conv1D" and cell.weight.ndim == 2:
        return _conv1d
    return None


def _linear(self, x):
    return self.dense(x, self.weight, None)


def _conv1d(self, x):
    return ops.matmul(x, self.weight)
