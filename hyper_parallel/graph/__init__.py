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
"""Plans for MindSpore's graph mode: Layouts on operators instead of local weights and hooks."""
from hyper_parallel.graph.strategies import GraphStrategies, OperatorStrategy, to_mindspore_strategies

__all__ = ["GraphStrategies", "OperatorStrategy", "to_mindspore_strategies"]
