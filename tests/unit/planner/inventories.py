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
"""Models as names, shapes and configurations, for tests that need no device and no other folder."""
import csv
import json
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, Tuple

HERE = Path(__file__).resolve().parent
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "intermediate_size": 128, "vocab_size": 128}
_MORE = {"chatglm": {"multi_query_group_num": 2}, "rwkv": {}, "llama_lora": {"model_type": "llama"},
         "llama_classifier": {"model_type": "llama"},
         "deepseek_v2_lite": {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16},
         "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1},
         "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1},
         "vit": {"num_key_value_heads": 4}, "granitemoehybrid": {"shared_intermediate_size": 128},
         "qwen2_5_vl": {"vision_config": {"hidden_size": 64, "num_heads": 4, "model_type": "qwen2_5_vl"}}}


def shape(text: str) -> List[int]:
    """`64x32` as numbers; `scalar` as none."""
    return [] if text == "scalar" else [int(size) for size in text.split("x")]


def record(parameters: Dict, **config) -> Dict:
    """An inventory of `{name: shape}`, with the usual sizes unless said otherwise."""
    return {"config": {**SIZES, **config}, "parameters": {name: {"shape": list(size)} for name, size in
                                                          parameters.items()}}


@lru_cache(maxsize=None)
def folders() -> Dict[str, Dict]:
    """The 25 small models."""
    return {name: {"config": data["config"], "parameters": {path: {"shape": shape(text)}
                                                            for path, text in data["parameters"].items()}}
            for name, data in json.loads((HERE / "model_inventories.json").read_text(encoding="utf-8")).items()}


@lru_cache(maxsize=None)
def mindformers() -> Dict[Tuple[str, str], Dict]:
    """MindFormers' own models, by (generation, name)."""
    data = json.loads((HERE / "mindformers_inventories.json").read_text(encoding="utf-8"))
    found = {}
    for generation, models in data.items():
        for name, parameters in models.items():
            config = dict(SIZES, num_experts=4, moe_intermediate_size=32)
            if "deepseek_v3" in name or name == "telechat3_moe":
                config.update(q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
            if name in ("deepseek_v4", "glm2"):
                config["model_type"] = name
            found[generation, name] = {"config": config, "parameters": {
                path: {"shape": shape(text)} for path, (text, _) in parameters.items()}}
    return found


@lru_cache(maxsize=None)
def known_roles() -> Dict[str, List[Tuple[str, List[int], str]]]:
    """`{family: [(parameter, shape, role)]}` of 27 families, in the order of registration."""
    found: Dict[str, List] = {}
    with open(HERE / "roles.tsv", encoding="utf-8") as stream:
        for row in csv.DictReader(stream, delimiter="\t"):
            found.setdefault(row["family"], []).append((row["parameter"], shape(row["shape"]), row["role"]))
    return found


@lru_cache(maxsize=None)
def more_roles() -> Dict[str, List[Tuple[str, List[int], str]]]:
    """The same of further families."""
    found: Dict[str, List] = {}
    for line in (HERE / "more_roles.tsv").read_text(encoding="utf-8").splitlines():
        family, parameter, text, role = line.split("\t")
        found.setdefault(family, []).append((parameter, shape(text), role))
    return found


def config_of(family: str) -> Dict:
    """A configuration that fits the family's rows in the tables."""
    if family in folders():
        config = dict(folders()[family]["config"])
        return dict(config, head_dim=128) if family == "qwen3" else config
    config = {**SIZES, "model_type": family, **_MORE.get(family, {})}
    rows = known_roles().get(family) or more_roles().get(family)
    if any("expert" in parameter or "moe" in parameter for parameter, _, _ in rows):
        config.update(num_experts=4, moe_intermediate_size=32)
    if family == "qwen3_next":
        config.update(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
    if family == "llava":
        return {"text_config": config, "vision_config": {"hidden_size": 64, "num_attention_heads": 4,
                                                         "intermediate_size": 128}}
    return config


def of_rows(family: str, config: Dict) -> Dict:
    """An inventory of a family's rows."""
    rows = known_roles().get(family) or more_roles()[family]
    return {"config": config, "parameters": {parameter: {"shape": size} for parameter, size, _ in rows}}


LLAMA = {"model.embed_tokens.weight": (128, 64), "model.layers.0.self_attn.q_proj.weight": (64, 64),
         "model.layers.0.self_attn.k_proj.weight": (32, 64), "model.layers.0.self_attn.v_proj.weight": (32, 64),
         "model.layers.0.self_attn.o_proj.weight": (64, 64), "model.layers.0.mlp.gate_proj.weight": (128, 64),
         "model.layers.0.mlp.up_proj.weight": (128, 64), "model.layers.0.mlp.down_proj.weight": (64, 128),
         "model.layers.0.input_layernorm.weight": (64,), "model.norm.weight": (64,), "lm_head.weight": (128, 64)}


def without(parameters: Dict, word: str) -> Dict:
    """The parameters whose names do not hold the word."""
    return {name: size for name, size in parameters.items() if word not in name}
