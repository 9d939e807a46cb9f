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
"""Which segment of a path names which part. Anchored: a word counts only as a whole segment, never as a fragment.

The same word means another thing in another place (`dense` below attention and below a pooler), so every word stands
under the kind of place in which it is believed.
"""
import re
from typing import Dict, Optional, Sequence, Tuple

from hyper_parallel.distributed.tensor_parallel import parts

# kinds of places
ATTENTION, FEED_FORWARD, ANYWHERE = "attention", "feed_forward", "anywhere"

_ATTENTION_PLACE = re.compile(
    r"(.*_)?(attn|attention)(_?\d+)?|self_?attn.*|.*selfattention|.*encdecattention|cross_?attn.*|cross_?attention.*|"
    r".*attentionblock|attn_.*|mha|self_attention.*|inter_attention|query_attention")
_FEED_FORWARD_PLACE = re.compile(
    r"(.*_)?(mlp|ffn|ff|feed_?forward)(_?\d+)?|.*densereludense|.*densegatedactdense|.*densegateddense|.*densedense|"
    r"mlp_.*|.*_ffn|shared_mlp|block_sparse_moe|sparse_mlp")
_CROSS_PLACE = re.compile(r"encoder_attn|.*encdecattention|cross_?attn.*|cross_?attention.*|inter_attention")
_EXPERTS = re.compile(r"(routed_|sparse_|local_)?experts?|switch_mlp|grouped_mlp|moe_experts|expert_\d+")
_SHARED = re.compile(r"shared_experts?|shared_mlp|share_experts?|shared_expert_mlp")
_VISION = re.compile(r"(vision|visual|image|video|audio|speech)(_.*)?|vit|.*_vision_tower|sam_model|vpm|apm")
_LAYER_SCALE = re.compile(r"layer_?scale.*|ls_?\d|gamma_?\d|lambda_?\d|lambda1|layer_scalar")

_NORM = re.compile(r".*norm.*|ln|ln_.*|.*_ln|ln\d+|.*layrnorm|rms|.*_rms|norms")
_NOT_NORM = re.compile(r"norm_attn_norm|.*normalizer")
_TABLE = re.compile(
    r"wpe|.*position_?embed.*|.*pos_?embed.*|embed_positions?|.*positional_embed.*|token_type_embeddings?|"
    r"type_embeddings?|segment_embeddings?|.*patch_embed.*|class_embedding|cls_token|mask_token|position_ids|"
    r"position_embeddings?|positions_embed|word_type_embeddings?|query_tokens|distance_embedding|"
    r"pre_tile_.*|post_tile_.*|.*tile_embedding|gate_positional_embedding|.*_position_table")

_WORDS: Dict[str, Dict[str, Tuple[str, ...]]] = {
    ANYWHERE: {
        parts.QUERY: ("q_proj", "wq", "linear_q", "query", "q_linear", "q_lin", "query_proj", "to_q", "q_attn",
                      "linear_qb", "q_b_proj", "linear_q_up_proj", "q_up_proj", "wq_b", "linear_q_proj"),
        parts.KEY: ("k_proj", "wk", "linear_k", "key", "k_linear", "k_lin", "key_proj", "to_k", "linear_k_proj"),
        parts.VALUE: ("v_proj", "wv", "linear_v", "value", "v_linear", "v_lin", "value_proj", "to_v", "linear_v_proj"),
        parts.QKV: ("qkv_proj", "linear_qkv", "fused_qkv", "qkv", "w_qkv", "wqkv", "query_key_value", "w_pack",
                    "att_proj", "in_proj_weight", "qkv_linear", "to_qkv", "wqkv_proj", "qkv_layer"),
        parts.KEY_VALUE: ("kv_b_proj", "linear_kvb", "linear_kv_up_proj", "kv_up_proj", "wkv_b", "kv_proj", "linear_kv",
                          "to_kv", "kv_linear"),
        parts.LATENT: ("q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "linear_q_down_proj", "linear_kv_down_proj",
                       "q_down_proj", "kv_down_proj", "wq_a", "wkv_a", "k_rope_proj", "linear_qkv_down_proj"),
        parts.ATTENTION_OUT: ("o_proj", "wo", "linear_proj", "out_lin", "attn_out", "to_out"),
        parts.GATE: ("gate_proj", "gating", "wi_0", "c_fc_0"),
        parts.UP: ("up_proj", "wi_1", "c_fc_1", "fc_in", "dense_h_to_4h", "linear_fc1", "c_fc", "wi", "fc1", "lin1",
                   "w3", "w1", "v1", "up_gate_proj", "weights_in", "ffw_layer_1"),
        parts.GATE_UP: ("gate_up_proj", "fused_gate_up", "w13", "w_gate_hidden", "gate_up", "w_gate_up"),
        parts.DOWN: ("down_proj", "w2", "linear_fc2", "fc_out", "dense_4h_to_h", "fc2", "lin2",
                     "weights_out", "ffw_layer_2", "ffn_output"),
        parts.TOKENS: ("embed_tokens", "word_embeddings", "tok_embeddings", "embed_in", "wte", "token_embedding",
                       "tokens_embed", "word_embedding", "tok_embed", "token_embeddings", "shared", "embeddings",
                       "embed", "embedding", "emb"),
        parts.HEAD: ("lm_head", "output_layer", "embed_out", "lm_head_linear", "proj_out", "vocab_projector",
                     "generator_lm_head"),
        parts.HEAD_VECTOR: ("sinks", "attn_sink", "attention_sinks", "alibi_slopes", "slopes", "head_scale"),
        parts.HEAD_TABLE: ("relative_attention_bias", "rel_attn_bias", "relative_position_bias_table"),
        parts.SCALAR_GATE: ("shared_expert_gate", "shared_experts_gate", "shared_gate"),
        parts.ROUTER: ("router", "moe_gate", "wg", "e_score_correction_bias", "gate_network"),
    },
    ATTENTION: {
        parts.QUERY: ("q",), parts.KEY: ("k",), parts.VALUE: ("v",),
        parts.QKV: ("c_attn", "in_proj"),
        parts.ATTENTION_OUT: ("out_proj", "dense", "c_proj", "o", "proj", "output_proj", "output.dense", "projection",
                              "fc_out", "out", "output", "linear_out", "final_linear", "o_linear", "to_out.0"),
        parts.HEAD_GATE: ("gate_proj", "g_proj", "gate"),
        parts.HEAD_VECTOR: ("sink",),
    },
    FEED_FORWARD: {
        parts.DOWN: ("c_proj", "wo", "output", "proj", "output_linear", "dense2", "linear_2", "out_proj", "linear2",
                     "o_proj", "output.dense", "output_proj"),
        parts.UP: ("ffn", "dense1", "linear_1", "input_linear", "intermediate", "linear1", "in_proj", "fc", "dense",
                   "intermediate.dense", "input_proj"),
        parts.ROUTER: ("gate", "gate.wg", "router.layer", "router.dense", "router.classifier", "router.linear"),
    },
}
# several segments that name a part wherever they stand; the longest tail of a path that is listed wins
_TAILS: Dict[Tuple[str, ...], str] = {
    ("intermediate", "dense"): parts.UP, ("output", "dense"): parts.DOWN,
    ("gate", "wg"): parts.ROUTER, ("router", "layer"): parts.ROUTER, ("router", "dense"): parts.ROUTER,
    ("router", "classifier"): parts.ROUTER, ("gate", "e_score_correction_bias"): parts.ROUTER,
    ("embedding", "embedding_weight"): parts.TOKENS, ("shared_head", "head"): parts.HEAD,
    ("embeddings", "embedding"): parts.TOKENS,
    ("predictions", "decoder"): parts.HEAD, ("lm_head", "decoder"): parts.HEAD, ("predictions", "bias"): parts.HEAD,
    ("lm_head", "bias"): parts.HEAD, ("lm_head", "dense"): parts.OTHER,
    ("moe_statics", "e_score_correction_bias"): parts.ROUTER,
}
_LOOKUP = {place: {word: part for part, words in by_part.items() for word in words}
           for place, by_part in _WORDS.items()}

# heads of tasks and adapters between towers: small or one of a kind, and whole everywhere
_WHOLE_WORDS = frozenset((
    "score", "classifier", "qa_outputs", "v_head", "summary", "pooler", "transform", "seq_relationship",
    "classification_head", "regression_head", "multi_modal_projector", "mm_projector", "project_in", "project_out",
    "visual_projection", "text_projection", "merger", "logit_scale", "logit_bias", "reward_head", "value_head",
    "start_logits", "end_logits", "dense_head", "pre_classifier", "adapter_proj", "visual_merger", "projector",
    "mm_input_projection_weight", "patch_merger", "vision_adapter", "connector", "mlp1", "modality_projection",
    "final_logits_bias", "embeddings_project", "rank_head", "probe", "image_newline", "view_separator",
    "per_layer_model_projection", "audio_proj", "conv_proj", "deepstack_merger_list", "vision_projector",
    "embedding_hidden_mapping_in", "cls_head", "scoring_head", "speech_projector", "encoder_projection",
    "layer_weights"))
# never trained and never cut: caches, counters, precomputed tables
_BUFFER_WORDS = frozenset((
    "inv_freq", "masked_bias", "position_ids", "tokens_per_expert", "expert_bias", "expert_load", "fi_accu", "tid2eid",
    "max_logits_val", "q_rms_gamma", "rms_weight", "key_cache", "value_cache", "causal_mask", "attn_mask",
    "freqs_cis", "cos_cached", "sin_cached", "original_inv_freq", "num_batches_tracked", "running_mean", "running_var",
    "embed_scale", "rotary_emb", "token_type_ids"))
_SIDE_STATE = frozenset(("eh_proj", "attn_hc", "ffn_hc", "linear_o_group_proj", "compressor", "indexer"))


def is_norm(segment: str) -> bool:
    """The segment names a normalisation."""
    return bool(_NORM.fullmatch(segment)) and not _NOT_NORM.fullmatch(segment)


def is_table(segments: Sequence[str]) -> bool:
    """The path names a position, type or patch table, or a stem."""
    return any(_TABLE.fullmatch(segment) for segment in segments[-2:])


def is_whole_by_name(segments: Sequence[str]) -> Optional[str]:
    """The segment that says the parameter belongs to a task head or a projector, or None."""
    return next((segment for segment in reversed(segments) if segment in _WHOLE_WORDS), None)


def is_buffer(segments: Sequence[str]) -> Optional[str]:
    """The segment that says the tensor is no weight, or None."""
    return next((segment for segment in reversed(segments) if segment in _BUFFER_WORDS), None)


def side_state(segments: Sequence[str]) -> Optional[str]:
    """The segment of a module that a handler of its own has to take, or None."""
    return next((segment for segment in segments if segment in _SIDE_STATE), None)


def is_layer_scale(segment: str) -> bool:
    """The segment names a vector that scales the residual's width."""
    return bool(_LAYER_SCALE.fullmatch(segment))


def is_experts(segment: str) -> bool:
    """The segment names a container of routed experts."""
    return bool(_EXPERTS.fullmatch(segment))


def is_shared(segment: str) -> bool:
    """The segment names a container of shared experts."""
    return bool(_SHARED.fullmatch(segment))


def is_cross(segments: Sequence[str]) -> bool:
    """The path stands in an attention over another sequence."""
    return any(_CROSS_PLACE.fullmatch(segment) for segment in segments)


def vision_segment(segments: Sequence[str]) -> Optional[int]:
    """Position of the segment that opens a vision or audio tower, or None."""
    return next((at for at, segment in enumerate(segments) if _VISION.fullmatch(segment)), None)


def place_of(segments: Sequence[str]) -> Optional[str]:
    """The kind of place, by the nearest ancestor that says one."""
    for segment in reversed(segments[:-1]):
        if _ATTENTION_PLACE.fullmatch(segment):
            return ATTENTION
        if _FEED_FORWARD_PLACE.fullmatch(segment) or is_experts(segment) or is_shared(segment):
            return FEED_FORWARD
    return None


def part_of(segments: Sequence[str]) -> Tuple[Optional[str], str]:
    """`(part, the words that say so)` of a module's path in lower case, or `(None, "")`.

    Examples:
        >>> part_of(("layers", "0", "attention", "dense")), part_of(("pooler", "dense"))
        (('attention_out', "'dense' below attention"), (None, ''))
        >>> part_of(("encoder", "audio_proj"))
        (None, '')
    """
    place = place_of(segments)
    last = segments[-1]
    tail = tuple(segments[-2:])
    if tail in _TAILS and not (tail == ("output", "dense") and place == ATTENTION):
        return _TAILS[tail], f"'{'.'.join(tail)}'"
    if place is not None:
        for word in (".".join(tail), last):
            part = _LOOKUP[place].get(word)
            if part is not None:
                return part, f"'{word}' below {place.replace('_', '-')}"
    part = _LOOKUP[ANYWHERE].get(last)
    if part is None:
        return None, ""
    return part, f"segment '{last}'"


def part_of_segment(segment: str) -> Optional[str]:
    """The part that one segment names wherever it stands, or None."""
    return _LOOKUP[ANYWHERE].get(segment.lower())
