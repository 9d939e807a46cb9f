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
"""Activation recomputation and swapping: the names that MindFormers imports."""
from enum import Enum

from hyper_parallel.core.later_tiers import refuse

__all__ = ["CheckpointPolicy", "SwapManager", "checkpoint_wrapper", "swap_wrapper"]


class CheckpointPolicy(Enum):
    """What happens to an operator's output between forward and backward."""

    MUST_SAVE = "must_save"
    MUST_RECOMPUTE = "must_recompute"
    MUST_SWAP = "must_swap"


def checkpoint_wrapper(*_, **__):
    """Recompute a Cell's activations in the backward pass."""
    refuse("activation recomputation", "recompute.mode and recompute_comm.enable")


def swap_wrapper(*_, **__):
    """Move a Cell's activations to host memory between forward and backward."""
    refuse("activation swapping", "swap.enable")


class SwapManager:
    """Order in which swapped activations come back."""

    def __init__(self, *_, **__):
        refuse("activation swapping", "swap.enable")
