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
"""Device services that MindFormers asks for through `get_platform()`."""
import sys
from typing import Sequence

from hyper_parallel.core.later_tiers import refuse


class Platform:
    """Services of MindSpore on this device."""

    @staticmethod
    def create_group(rank_list: Sequence[int]) -> str:
        """Name of the process group of these ranks, made when it is not there yet."""
        from hyper_parallel.core.collectives.groups import get_group
        return get_group(tuple(rank_list)).name

    @staticmethod
    def differentiable_sync_hook(*_, **__):
        """Meeting point of overlapping pipeline stages."""
        refuse("overlap of pipeline stages", "parallelism.pipeline_parallel_overlap_b_f")

    @staticmethod
    def differentiable_all_to_all_single_async(*_, **__):
        """Exchange of tokens between experts."""
        refuse("expert parallelism", "parallelism.expert_parallel")


_PLATFORM = Platform()


def get_platform() -> Platform:
    """The platform of this process; MindFormers calls it while it is imported, which is when its graph mode gets the
    switch `parallel_config.auto_tp`."""
    if "mindformers" in sys.modules:
        from hyper_parallel.integrations.mindformers.graph_mode import install
        install()
    return _PLATFORM
