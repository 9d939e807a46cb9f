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
from dataclasses import dataclass, fields, replace
from typing import Any, Mapping, Optional, Tuple

# field -> the keys it has in Hugging Face, MindFormers and Megatron-style configurations, most specific first; a dot
# goes into a nested section
CONFIG_KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "n_embed", "embed_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_kv_heads", "multi_query_group_num",
                 "n_head_kv", "attn_config.kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels", "d_kv", "attention_head_dim"),
    "ffn_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim",
                 "ffn_config.ffn_hidden_size", "mlp_dim", "ff_intermediate_size", "inner_hidden_size"),
    "expert_ffn_size": ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_dim", "expert_ffn_hidden_size"),
    "shared_ffn_size": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts", "moe_num_experts",
                "ffn_config.moe_num_experts"),
    "tied": ("tie_word_embeddings", "share_embeddings_and_output_weights"),
    "gated": ("gated_linear_unit",),
    "contiguous_qkv": ("use_contiguous_weight_layout_attention",),
    "interleaved_mlp": ("use_interleaved_weight_layout_mlp",),
    "model_type": ("model_type",),
    "architectures": ("architectures",),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim", "qk_head_dim_nope"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "v_head_dim": ("v_head_dim",),
    "multi_query": ("multi_query", "multi_query_attention"),
    "new_decoder": ("new_decoder_architecture",),
    "parallel_block": ("use_parallel_residual", "parallel_attn"),
    "alibi": ("alibi", "attn_config.alibi"),
    "encoder_decoder": ("is_encoder_decoder",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length"),
    "source_positions": ("max_source_positions",),
    "token_types": ("type_vocab_size",),
    "labels": ("num_labels",),
    "state_heads": ("mamba_n_heads", "mamba_num_heads", "num_heads"),
    "state_size": ("ssm_state_size", "state_size", "mamba_d_state"),
    "state_groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "state_head_dim": ("mamba_head_dim", "mamba_d_head", "head_dim"),
    "linear_key_heads": ("linear_num_key_heads",),
    "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_head_dim": ("linear_key_head_dim",),
    "linear_value_head_dim": ("linear_value_head_dim",),
    "relative_buckets": ("relative_attention_num_buckets",),
    "quantisation": ("quantization_config.quant_method",),
    "quantised_block": ("quantization_config.weight_block_size",),
}
KEY_OF = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocab_size": "vocab_size",
          "experts": "num_experts", "hidden_size": "hidden_size", "ffn_size": "intermediate_size",
          "kv_lora_rank": "kv_lora_rank"}
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config.text_config", "decoder")
_TOWER_SECTIONS = ("vision_config", "audio_config", "vision_tower", "visual", "encoder")


@dataclass(frozen=True)
class ModelFacts:
    """What the configuration says; None where it says nothing.

    Args:
        hidden_size: width of the residual stream.
        heads: query heads.
        kv_heads: key/value heads; None means as many as query heads, unless a weight's shape says otherwise.
        head_dim: width of a head.
        ffn_size: width of the feed-forward layer, of gate and up each where it is gated.
        expert_ffn_size: width of one routed expert.
        shared_ffn_size: width of the shared experts.
        vocab_size: rows of the embedding.
        experts: routed experts of an MoE layer.
        tied: the output head uses the embedding's table.
        gated: the feed-forward layer has a gate (MindFormers' flag).
        contiguous_qkv: a fused qkv weight is `[Q|K|V]` (MindFormers' flag).
        interleaved_mlp: a fused gate/up weight is `g0 u0 g1 u1 …` (MindFormers' flag).
        model_type: the family.
        architectures: class names of the family's models.
        layers: blocks.
        q_lora_rank: latent width of the queries (MLA).
        kv_lora_rank: latent width of keys and values (MLA); its presence makes the attention latent.
        qk_nope_head_dim: width of a query head without rotary embedding (MLA).
        qk_rope_head_dim: width of a query head's rotary part (MLA).
        v_head_dim: width of a value head (MLA).
        multi_query: one kv head for all query heads.
        new_decoder: Falcon's later attention.
        parallel_block: attention and MLP both read the block's input, and the block adds both to it.
        alibi: slopes per head instead of rotary embedding.
        encoder_decoder: the model has an encoder and a decoder.
        positions: rows of a learned position table.
        source_positions: rows of the encoder's.
        token_types: rows of the token type table.
        labels: rows of a classification head.
        state_heads: heads of a state-space layer.
        state_size: state per channel.
        state_groups: groups that share B and C.
        state_head_dim: channels of one state-space head.
        linear_key_heads: key heads of a gated-delta layer.
        linear_value_heads: value heads of a gated-delta layer.
        linear_key_head_dim: width of such a key head.
        linear_value_head_dim: width of such a value head.
        relative_buckets: rows of a table of relative position biases.
        quantisation: method by which the weights are packed.
        quantised_block: rows and columns that share a scale.
    """

    hidden_size: Optional[int] = None
    heads: Optional[int] = None
    kv_heads: Optional[int] = None
    head_dim: Optional[int] = None
    ffn_size: Optional[int] = None
    expert_ffn_size: Optional[int] = None
    shared_ffn_size: Optional[int] = None
    vocab_size: Optional[int] = None
    experts: Optional[int] = None
    tied: Optional[bool] = None
    gated: Optional[bool] = None
    contiguous_qkv: Optional[bool] = None
    interleaved_mlp: Optional[bool] = None
    model_type: Optional[str] = None
    architectures: Tuple[str, ...] = ()
    layers: Optional[int] = None
    q_lora_rank: Optional[int] = None
    kv_lora_rank: Optional[int] = None
    qk_nope_head_dim: Optional[int] = None
    qk_rope_head_dim: Optional[int] = None
    v_head_dim: Optional[int] = None
    multi_query: Optional[bool] = None
    new_decoder: Optional[bool] = None
    parallel_block: Optional[bool] = None
    alibi: Optional[bool] = None
    encoder_decoder: Optional[bool] = None
    positions: Optional[int] = None
    source_positions: Optional[int] = None
    token_types: Optional[int] = None
    labels: Optional[int] = None
    state_heads: Optional[int] = None
    state_size: Optional[int] = None
    state_groups: Optional[int] = None
    state_head_dim: Optional[int] = None
    linear_key_heads: Optional[int] = None
    linear_value_heads: Optional[int] = None
    linear_key_head_dim: Optional[int] = None
    linear_value_head_dim: Optional[int] = None
    relative_buckets: Optional[int] = None
    quantisation: Optional[str] = None
    quantised_block: Optional[Tuple[int, ...]] = None
    tower: Optional["ModelFacts"] = None

    @classmethod
    def from_config(cls, config: Any) -> "ModelFacts":
        """Read a dict or a configuration object; unknown keys do not matter.

        A section `text_config` (or `llm_config`, …) speaks for the language model and wins over the top; a section
        `vision_config` or `audio_config` becomes `tower`, of the family `<model_type>_vision` where it names none.

        Examples:
            >>> ModelFacts.from_config({"hidden_size": 64, "num_attention_heads": 8}).heads
            8
        """
        text = next((section for section in (_value(config, key) for key in _TEXT_SECTIONS) if _is_section(section)),
                    None)
        found = {}
        for one in fields(cls):
            if one.name == "tower":
                continue
            keys = CONFIG_KEYS[one.name]
            value = _first(text, keys) if text is not None else None
            found[one.name] = _first(config, keys) if value is None else value
        tower = next((section for section in (_value(config, key) for key in _TOWER_SECTIONS) if _is_section(section)),
                     None)
        if tower is not None:
            found["tower"] = cls.from_config(tower)
            if found["tower"].model_type is None:
                found["tower"] = replace(found["tower"], model_type=f"{_value(config, 'model_type')}_vision")
        for name in ("architectures", "quantised_block"):
            found[name] = tuple(found[name] or ()) or (() if name == "architectures" else None)
        if not isinstance(found["heads"], int):
            found["heads"] = None
        if not isinstance(found["ffn_size"], int):
            found["ffn_size"] = None
        if found["head_dim"] is None and found["hidden_size"] and found["heads"]:
            found["head_dim"] = found["hidden_size"] // found["heads"]
        return cls(**found)

    @property
    def ffn_sizes(self) -> Tuple[int, ...]:
        """Every width of a feed-forward layer that the configuration gives."""
        return tuple(size for size in (self.ffn_size, self.expert_ffn_size, self.shared_ffn_size) if size)

    @property
    def has_language_head(self) -> bool:
        """The architecture computes logits over its vocabulary."""
        return any(word in name for name in self.architectures
                   for word in ("CausalLM", "LMHead", "ForConditionalGeneration", "ForMaskedLM", "ForPreTraining"))


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (value is not None and hasattr(value, "__dict__") and not callable(value))


def _value(config: Any, key: str) -> Any:
    for step in key.split("."):
        config = config.get(step) if isinstance(config, Mapping) else getattr(config, step, None)
        if config is None:
            return None
    return config


def _first(config: Any, keys) -> Any:
    for key in keys:
        value = _value(config, key)
        if value is not None:
            return value
    return None
