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
"""Overlap of forward and backward stages: the name that MindFormers imports."""


class HookCoordinator:
    """Order of communication between overlapping stages. Without a pipeline there is nothing to order."""

    def is_enabled(self) -> bool:
        """False: no stages overlap in this version, and callers then leave their fast path alone."""
        return False
