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
"""Families whose fused gate/up weights of experts cannot be told apart by their names."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec

ADAPTERS = (
    ModelAdapterSpec(("gpt_oss",), ("GptOssForCausalLM",), gate_up_layout="interleaved",
                     in_out=("*.experts.gate_up_proj", "*.experts.down_proj")),
    ModelAdapterSpec(("llama4", "llama4_text"), ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
                     gate_up_layout="halves", in_out=("*.experts.gate_up_proj", "*.experts.down_proj")),
    ModelAdapterSpec(("granitemoe", "granitemoeshared", "granitemoehybrid", "jetmoe"),
                     ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), gate_up_layout="halves",
                     state_norm="whole"),
    # mixtures whose checkpoints hold every expert by itself, and whose modules hold all of them in one weight
    ModelAdapterSpec(("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2",
                      "olmoe", "phimoe", "ernie4_5_moe", "hunyuan_v1_moe", "jamba", "minimax", "minimax_m2", "dots1",
                      "lfm2_moe", "flex_olmo"), gate_up_layout="halves"),
)
