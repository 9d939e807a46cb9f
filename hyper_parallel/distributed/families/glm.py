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
"""ChatGLM and GLM: `query_key_value` is `[Q|K|V]` (the first ChatGLM keeps it head by head), gate and up are halves."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec
from hyper_parallel.distributed.model_facts import ModelFacts


def _layout(facts: ModelFacts):
    if facts.model_type != "chatglm":
        return "sections"
    return "sections" if facts.kv_heads and facts.multi_query is not False else "per_head"


ADAPTERS = (
    ModelAdapterSpec(("chatglm", "glm2", "glm3"), ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
                     qkv_layout=_layout, gate_up_layout="halves"),
    ModelAdapterSpec(("glm", "glm4", "glm4v", "glm4_moe", "glm4v_moe"), ("Glm4ForCausalLM", "GlmForCausalLM"),
                     qkv_layout="sections", gate_up_layout="halves"),
)
