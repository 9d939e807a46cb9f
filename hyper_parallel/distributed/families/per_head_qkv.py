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
"""Families that keep `[q k v]` head by head in one weight."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec

ADAPTERS = (
    ModelAdapterSpec(("bloom",), ("BloomForCausalLM", "BloomModel"), qkv_layout="per_head",
                     head_arguments={"alibi": 0}),
    ModelAdapterSpec(("gpt_neox",), ("GPTNeoXForCausalLM", "GPTNeoXModel"), qkv_layout="per_head",
                     parallel_block=True),
    ModelAdapterSpec(("gpt_neox_japanese",), qkv_layout="per_head"),
    ModelAdapterSpec(("persimmon", "fuyu"), qkv_layout="per_head"),
)
