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
"""The sizes and flags of a model, under one set of names, whatever its configuration calls them."""
from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional

# field -> the keys it has in Hugging Face, MindFormers and Megatron-style configurations, most specific first
_KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts"),
    "tied": ("tie_word_embeddings", "share_embeddings_and_output_weights"),
    "gated": ("gated_linear_unit",),
    "contiguous_qkv": ("use_contiguous_weight_layout_attention",),
    "interleaved_mlp": ("use_interleaved_weight_layout_mlp",),
    "model_type": ("model_type",),
}
KEY_OF = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocab_size": "vocab_size",
          "experts": "num_experts", "hidden_size": "hidden_size", "ffn_size": "intermediate_size"}


@dataclass(frozen=True)
class ModelFacts:
    """What the configuration says; None where it says nothing.

    Args:
        hidden_size: width of the residual stream.
        heads: query heads.
        kv_heads: key/value heads; None means as many as query heads, unless a weight's shape says otherwise.
        head_dim: width of a head.
        ffn_size: width of the feed-forward layer, of gate and up each where it is gated.
        vocab_size: rows of the embedding.
        experts: routed experts of an MoE layer.
        tied: the output head uses the embedding's table.
        gated: the feed-forward layer has a gate (MindFormers' flag).
        contiguous_qkv: a fused qkv weight is `[Q|K|V]` (MindFormers' flag).
        interleaved_mlp: a fused gate/up weight is `g0 u0 g1 u1 …` (MindFormers' flag).
        model_type: the family.
    """

    hidden_size: Optional[int] = None
    heads: Optional[int] = None
    kv_heads: Optional[int] = None
    head_dim: Optional[int] = None
    ffn_size: Optional[int] = None
    vocab_size: Optional[int] = None
    experts: Optional[int] = None
    tied: Optional[bool] = None
    gated: Optional[bool] = None
    contiguous_qkv: Optional[bool] = None
    interleaved_mlp: Optional[bool] = None
    model_type: Optional[str] = None

    @classmethod
    def from_config(cls, config: Any) -> "ModelFacts":
        """Read a dict or a configuration object; unknown keys do not matter.

        Examples:
            >>> ModelFacts.from_config({"hidden_size": 64, "num_attention_heads": 8}).heads
            8
        """
        found = {field.name: _first(config, _KEYS[field.name]) for field in fields(cls)}
        if found["head_dim"] is None and found["hidden_size"] and found["heads"]:
            found["head_dim"] = found["hidden_size"] // found["heads"]
        return cls(**found)


def _first(config: Any, keys) -> Any:
    for key in keys:
        value = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
        if value is not None:
            return value
    return None
