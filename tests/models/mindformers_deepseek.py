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
"""A tiny dense DeepSeek-V3 of MindFormers: latent attention, a gated MLP."""
from tests.models import mindformers_qwen3 as qwen3

SIZES = {
    "model_type": "deepseek_v3", "architectures": "DeepseekV3ForCausalLM", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": None, "n_routed_experts": 4,
    "n_shared_experts": 1, "moe_intermediate_size": 16, "moe_grouped_gemm": True, "qk_layernorm": True, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    # every layer is dense
    "first_k_dense_replace": 2, "num_nextn_predict_layers": 0,
}


def config(**changes):
    """A MindFormers PyNative training configuration; `changes` go into the section `model`."""
    made = qwen3.config(**{**SIZES, **changes})
    made["model"] = {key: value for key, value in made["model"].items() if key != "head_dim"}
    return made


def build(**changes):
    """The model on the meta device, as MindFormers' trainer builds it."""
    return qwen3.build_on_meta(config(**changes))
