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
"""Propagation rules: how an operator on distributed tensors becomes the same operator on each rank's parts."""
from hyper_parallel.core.dtensor.ops import (  # noqa: F401  pylint: disable=unused-import
    attention, creation, elementwise, embedding, indexing, inplace, matmul, normalization, random, reduction, shape)
from hyper_parallel.core.dtensor.ops.propagate import propagate
from hyper_parallel.core.dtensor.ops.registry import RULES, find_rule, rule
from hyper_parallel.core.dtensor.ops.spec import Operand, Spec

__all__ = ["Operand", "RULES", "Spec", "find_rule", "propagate", "rule"]
