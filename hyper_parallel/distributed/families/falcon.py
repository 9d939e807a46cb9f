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
"""Falcon has three attentions: per kv group (new decoder), one kv head `[Q|k|v]`, and `[q k v]` head by head.

Kv group by kv group is all of them; the rows say which where the flags are missing."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec
from hyper_parallel.distributed.model_facts import ModelFacts


def _layout(facts: ModelFacts):
    if facts.new_decoder:
        return "per_group"
    return {True: "sections", False: "per_head"}.get(facts.multi_query, "per_group")


ADAPTERS = (ModelAdapterSpec(("falcon", "RefinedWeb", "RefinedWebModel"), ("FalconForCausalLM",), qkv_layout=_layout,
                             head_arguments={"alibi": 1}, parallel_block=True),)
