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
"""Families whose fused qkv weight is `[Q|K|V]`."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec

ADAPTERS = (
    ModelAdapterSpec(("mpt",), ("MptForCausalLM",), qkv_layout="sections", head_arguments={"position_bias": 0}),
    ModelAdapterSpec(("baichuan",), ("BaichuanForCausalLM",), qkv_layout="sections"),
    ModelAdapterSpec(("phi3", "phi4_multimodal", "phi3_v", "phi4mm"), ("Phi3ForCausalLM",), qkv_layout="sections",
                     gate_up_layout="halves"),
    ModelAdapterSpec(("phi-msft", "mixformer-sequential"), qkv_layout="sections", parallel_block=True),
    ModelAdapterSpec(("modernbert", "modernbert-decoder"), qkv_layout="sections", gate_up_layout="halves"),
    ModelAdapterSpec(tuple(f"{family}{part}" for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
                           for part in ("", "_vision")), qkv_layout="sections",
                     gate_up_layout="halves"),
    ModelAdapterSpec(("vit", "beit", "dinov2", "eva", "blip", "blip-2", "instructblip", "intern_vit_6b",
                      "chatglm_vision", "glm4v_vision", "glm4v_moe_vision"), qkv_layout="sections"),
)
