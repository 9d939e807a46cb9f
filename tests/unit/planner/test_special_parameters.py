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
"""Experts, latent attention, adapters, per-head state, norms over cut dims, state space, packed weights."""
import numpy as np
import pytest

import inventories
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.tensor_parallel import templates
from inventories import LLAMA, record, without

ATTENTION = "model.layers.0.self_attn"


def sections(spec):
    """(rows, unit, copies) of the sections of a cut parameter."""
    return [(one.rows, one.unit, one.copies) for one in spec.slice_map.cuts[0].sections]


def test_i01_experts_are_cut_in_their_width_by_their_layout():
    made = plan(inventories.folders()["gpt_oss"], tp=2)
    experts = "model.layers.0.mlp.experts"
    fused, down = made.parameters[f"{experts}.gate_up_proj"], made.parameters[f"{experts}.down_proj"]
    assert fused.local_shape == (4, 64, 128) and sections(fused) == [(256, 2, 1)]
    assert down.local_shape == (4, 64, 64) and down.slice_map.cuts[0].dim == 1
    assert made.parameters[f"{experts}.gate_up_proj_bias"].local_shape == (4, 128)
    assert made.boundaries["model.layers.0.mlp"].semantic_role == templates.MOE
    llama4 = plan(inventories.of_rows("llama4", inventories.config_of("llama4")), tp=2)
    assert sections(llama4.parameters["model.layers.0.feed_forward.experts.gate_up_proj"]) == [(128, 1, 1)] * 2
    granite = plan(inventories.of_rows("granitemoe", inventories.config_of("granitemoe")), tp=2)
    assert granite.parameters["model.layers.0.block_sparse_moe.input_linear.weight"].local_shape == (4, 128, 64)
    assert granite.parameters["model.layers.0.block_sparse_moe.output_linear.weight"].local_shape == (4, 64, 64)


def test_experts_one_below_the_other_are_cut_expert_by_expert():
    made = plan(inventories.of_rows("dbrx", inventories.config_of("dbrx")), tp=2)
    spec = made.parameters["transformer.blocks.0.ffn.experts.mlp.w1"]
    whole = np.arange(512 * 64).reshape(512, 64)
    expected = whole.reshape(4, 128, 64)[:, 64:].reshape(256, 64)
    assert np.array_equal(made.shard(spec.path, whole, 1), expected)
    assert made.parameters["transformer.blocks.0.ffn.experts.mlp.w2"].local_shape == (256, 64)


def test_a_bias_that_routing_weighs_lives_on_the_first_rank():
    made = plan(inventories.folders()["gpt_oss"], tp=4)
    spec = made.parameters["model.layers.0.mlp.experts.down_proj_bias"]
    whole = np.arange(1, 257, dtype=np.float32).reshape(4, 64)
    parts = [made.shard(spec.path, whole, rank) for rank in range(4)]
    assert spec.first_rank_only and np.array_equal(parts[0], whole) and not any(part.any() for part in parts[1:])
    assert np.array_equal(made.unshard(spec.path, parts), whole)


def test_g04_what_multiplies_a_partial_result_has_its_gradient_summed():
    made = plan(inventories.folders()["qwen2_moe"], tp=2)
    mlp = "model.layers.0.mlp"
    for name in ("gate.weight", "shared_expert_gate.weight"):
        assert made.parameters[f"{mlp}.{name}"].grad_sum_axes == ("tp",)
    assert made.parameters[f"{mlp}.shared_expert.down_proj.weight"].local_shape == (64, 16)
    assert made.boundaries[mlp].semantic_role == templates.MOE
    assert f"{mlp}.shared_expert" not in made.boundaries


def test_i03_latents_stay_whole_and_heads_are_cut():
    made = plan(inventories.folders()["deepseek_v3"], tp=2)
    for name, local, summed in (("q_a_proj", (16, 64), True), ("kv_a_proj_with_mqa", (24, 64), True),
                                ("q_a_layernorm", (16,), True), ("kv_a_layernorm", (16,), True),
                                ("q_b_proj", (32, 16), False), ("kv_b_proj", (48, 16), False),
                                ("o_proj", (64, 32), False)):
        spec = made.parameters[f"{ATTENTION}.{name}.weight"]
        assert spec.local_shape == local and spec.grad_sum_axes == (("tp",) if summed else ()), name
    assert sections(made.parameters[f"{ATTENTION}.kv_b_proj.weight"]) == [(96, 24, 1)]
    assert made.boundaries[ATTENTION].semantic_role == templates.LATENT_ATTENTION


def test_queries_beside_a_latent_name_their_local_computation():
    made = plan(inventories.mindformers()["pynative", "deepseek_v3_noqlora"], tp=2)
    attention = made.boundaries["model.decoder.layers.0.self_attention"]
    assert attention.local_compute_fn == "latent_query_of_this_rank"
    # 4 heads of 16 + 8 rows beside a latent of 16 and its 8 rotated rows
    assert attention.local_compute_arguments == {"linear": "linear_qkv", "query_rows": 4 * (16 + 8)}


def test_i04_adapters_follow_the_dim_they_share():
    made = plan(inventories.of_rows("llama_lora", inventories.config_of("llama_lora")), tp=2)
    attention = "base_model.model.model.layers.0.self_attn"
    for name, local, summed in (("q_proj.lora_A.default", (2, 64), True), ("q_proj.lora_B.default", (32, 2), False),
                                ("o_proj.lora_A.default", (2, 32), False), ("o_proj.lora_B.default", (64, 2), True)):
        spec = made.parameters[f"{attention}.{name}.weight"]
        assert spec.local_shape == local and spec.grad_sum_axes == (("tp",) if summed else ()), name


@pytest.mark.parametrize("name, size, local", [
    ("q_proj.lora_magnitude_vector.default.weight", (64,), (32,)),
    ("o_proj.lora_magnitude_vector.default.weight", (64,), (64,))])
def test_magnitudes_of_adapters_follow_a_column_and_not_a_row(name, size, local):
    made = plan(record({**LLAMA, f"{ATTENTION}.{name}": size}), tp=2)
    assert made.parameters[f"{ATTENTION}.{name}"].local_shape == local


def test_an_adapter_that_does_not_fit_its_weight_is_refused():
    with pytest.raises(ValueError, match="does not fit the weight"):
        plan(record({**LLAMA, f"{ATTENTION}.q_proj.lora_B.default.weight": (48, 2)}), tp=2)
    with pytest.raises(ValueError, match="the linear .* that it adapts is not decided"):
        plan(record({**LLAMA, "nobody.lora_B.default.weight": (48, 2)}), tp=2)


def test_h02_sinks_and_tables_go_with_their_heads():
    made = plan(inventories.folders()["gpt_oss"], tp=2)
    assert made.parameters[f"{ATTENTION}.sinks"].local_shape == (2,)
    with pytest.raises(ValueError, match="no whole number for 4 heads"):
        plan(record({**LLAMA, f"{ATTENTION}.sinks": (8,)}), tp=2)
    made = plan(inventories.folders()["t5"], tp=2)
    table = made.parameters["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    assert table.local_shape == (32, 2) and table.slice_map.cuts[0].dim == 1 and table.role == "SPECIAL"


@pytest.mark.parametrize("name, wanted", [("bloom", {"alibi": 0}), ("mpt", {"position_bias": 0}), ("gpt2", None)])
def test_slopes_made_for_all_heads_are_named(name, wanted):
    made = plan(inventories.folders()[name], tp=2)
    found = [spec.head_arguments for spec in made.boundaries.values() if spec.semantic_role == templates.ATTENTION]
    assert all(one == wanted for one in found) and found


def test_g02_a_norm_of_one_head_sums_its_gradient_and_one_over_all_heads_is_cut():
    made = plan(inventories.folders()["qwen3"], tp=2)
    assert made.parameters[f"{ATTENTION}.q_norm.weight"].grad_sum_axes == ("tp",)
    made = plan(inventories.of_rows("olmo2", inventories.config_of("olmo2")), tp=2)
    query, key = (made.parameters[f"{ATTENTION}.{name}.weight"] for name in ("q_norm", "k_norm"))
    assert (query.role, query.local_shape, key.local_shape) == ("NORM", (32,), (16,))
    norm = made.boundaries[f"{ATTENTION}.q_norm"]
    assert norm.semantic_role == templates.SHARDED_NORM and norm.local_compute_fn == "norm_over_cut_dim"
    assert made.expected[templates.SHARDED_NORM]["forward"] == {"all_reduce": 1}
    copied = plan(inventories.of_rows("olmo2", inventories.config_of("olmo2")), tp=4)
    assert copied.parameters[f"{ATTENTION}.k_norm.weight"].copies == 2


def test_a_norm_with_a_row_for_every_head_goes_with_them():
    made = plan(inventories.of_rows("cohere", inventories.config_of("cohere")), tp=4)
    query, key = (made.parameters[f"{ATTENTION}.{name}.weight"] for name in ("q_norm", "k_norm"))
    assert (query.local_shape, key.local_shape, key.copies) == ((1, 16), (1, 16), 2)
    assert not any(spec.semantic_role == templates.SHARDED_NORM for spec in made.boundaries.values())


def test_a_list_of_norms_and_a_norm_of_a_strange_width_are_refused():
    with pytest.raises(ValueError, match="one of a list of norms"):
        plan(record({**LLAMA, f"{ATTENTION}.q_layernorm.norms.0.weight": (16,)}), tp=2)
    with pytest.raises(ValueError, match="neither one head nor all"):
        plan(record({**LLAMA, f"{ATTENTION}.q_layernorm.weight": (48,)}), tp=2)


def test_mamba2_is_cut_section_by_section():
    made = plan(inventories.folders()["mamba2"], tp=2)
    mixer = "backbone.layers.0.mixer"
    assert sections(made.parameters[f"{mixer}.in_proj.weight"]) == [
        (128, 16, 1), (128, 16, 1), (8, 8, 2), (8, 8, 2), (8, 1, 1)]
    assert sections(made.parameters[f"{mixer}.conv1d.weight"]) == [(128, 16, 1), (8, 8, 2), (8, 8, 2)]
    assert sections(made.parameters[f"{mixer}.conv1d.bias"]) == [(128, 16, 1), (8, 8, 2), (8, 8, 2)]
    assert made.parameters[f"{mixer}.A_log"].local_shape == (4,)
    assert made.parameters[f"{mixer}.norm.weight"].local_shape == (64,)
    assert made.boundaries[f"{mixer}.norm"].semantic_role == templates.SHARDED_NORM
    assert made.boundaries[mixer].semantic_role == templates.STATE_SPACE


def test_mamba1_reduces_its_small_projection_inside():
    made = plan(inventories.of_rows("jamba", inventories.config_of("jamba")), tp=2)
    mamba = "model.layers.0.mamba"
    assert sections(made.parameters[f"{mamba}.in_proj.weight"]) == [(128, 1, 1)] * 2
    assert made.parameters[f"{mamba}.x_proj.weight"].local_shape == (36, 64)
    assert made.boundaries[f"{mamba}.x_proj"].semantic_role == templates.INNER_ROW
    assert made.parameters[f"{mamba}.dt_proj.bias"].local_shape == (64,)
    assert made.parameters[f"{mamba}.conv1d.bias"].local_shape == (64,)
    assert made.parameters[f"{mamba}.dt_layernorm.weight"].grad_sum_axes == ("tp",)


def test_gated_delta_goes_by_key_heads():
    config = inventories.config_of("qwen3_next")
    made = plan(inventories.of_rows("qwen3_next", config), tp=2)
    linear = "model.layers.0.linear_attn"
    cut = made.parameters[f"{linear}.in_proj_qkvz.weight"].slice_map.cuts[0]
    assert cut.blocks == 2 and [one.rows for one in cut.sections] == [8, 8, 16, 16]
    assert made.parameters[f"{linear}.in_proj_ba.weight"].local_shape == (4, 64)
    assert sections(made.parameters[f"{linear}.conv1d.weight"]) == [(16, 8, 1), (16, 8, 1), (32, 8, 1)]
    assert made.parameters[f"{linear}.norm.weight"].grad_sum_axes == ("tp",)
    query = made.parameters["model.layers.3.self_attn.q_proj.weight"]
    assert query.slice_map.cuts[0].blocks == 4 and query.local_shape == (64, 64)
    with pytest.raises(ValueError, match="gated_delta layer of 4 heads and 2 groups.*valid sizes: 1, 2"):
        plan(inventories.of_rows("qwen3_next", config), tp=4)


def test_short_convolutions_are_cut_in_thirds():
    made = plan(inventories.of_rows("lfm2", inventories.config_of("lfm2")), tp=2)
    assert sections(made.parameters["model.layers.0.conv.in_proj.weight"]) == [(64, 1, 1)] * 3


def test_time_mixing_is_cut_by_channels():
    made = plan(inventories.of_rows("rwkv", inventories.config_of("rwkv")), tp=2)
    attention = "rwkv.blocks.0.attention"
    assert made.parameters[f"{attention}.time_decay"].local_shape == (32,)
    assert made.parameters[f"{attention}.time_mix_key"].grad_sum_axes == ("tp",)
    assert made.parameters["rwkv.blocks.0.feed_forward.receptance.weight"].grad_sum_axes == ("tp",)


def test_a_state_space_layer_of_unknown_sizes_is_refused():
    data = {path: size for path, size in (("a.layers.0.mixer.conv1d.weight", (144, 1, 4)),
                                          ("a.layers.0.mixer.in_proj.weight", (99, 64)),
                                          ("a.layers.0.mixer.out_proj.weight", (64, 128)))}
    with pytest.raises(ValueError, match="fit no state-space layer"):
        plan(record(data), tp=2)


@pytest.mark.parametrize("name, scale, local", [("q_proj", (4, 4), (2, 4)), ("o_proj", (4, 4), (4, 2)),
                                                ("q_proj", (64,), (32,)), ("q_proj", (1,), (1,)),
                                                ("q_proj", (64, 1), (32, 1)), ("o_proj", (64, 1), (64, 1))])
def test_scales_of_packed_weights_follow_their_blocks(name, scale, local):
    made = plan(record({**LLAMA, f"{ATTENTION}.{name}.weight_scale_inv": scale}), tp=2)
    assert made.parameters[f"{ATTENTION}.{name}.weight_scale_inv"].local_shape == local


def test_scales_whose_blocks_a_rank_would_split_are_refused():
    with pytest.raises(ValueError, match="blocks of 64 rows share a scale"):
        plan(record({**LLAMA, f"{ATTENTION}.q_proj.weight_scale_inv": (1, 4),
                     "model.layers.0.mlp.down_proj.weight_scale_inv": (1, 2)}), tp=4)
    with pytest.raises(ValueError, match="fits no block"):
        plan(record({**LLAMA, f"{ATTENTION}.q_proj.weight_scale_inv": (2, 2, 2)}), tp=2)


def test_a_head_is_found_in_the_vocabulary_and_positions_are_not():
    made = plan(record({**without(LLAMA, "lm_head"), "output.weight": (128, 64), "model.odd.weight": (34, 64)},
                       max_position_embeddings=32), tp=2)
    assert made.parameters["output.weight"].role == "LM_HEAD"
    assert made.parameters["model.odd.weight"].role == "REPLICATED"


def test_vision_towers_are_planned_by_their_own_configuration_or_kept_whole():
    data = inventories.of_rows("llava", inventories.config_of("llava"))
    tower = "model.vision_tower.vision_model.encoder.layers.0"
    made = plan(data, tp=4)
    assert made.parameters[f"{tower}.self_attn.k_proj.weight"].copies == 1
    assert made.parameters["model.language_model.layers.0.self_attn.k_proj.weight"].copies == 2
    whole = plan(data, tp=4, overrides=[{"match": "*.vision_tower.*", "replicate": True}])
    assert whole.parameters[f"{tower}.self_attn.k_proj.weight"].local_shape == (64, 64)
    assert f"{tower}.self_attn" not in whole.boundaries


def test_d04_a_one_dim_bias_is_never_cut_in_a_second_dim():
    made = plan(inventories.folders()["starcoder2"], tp=2)
    bias = made.parameters[f"{ATTENTION}.o_proj.bias"]
    assert (bias.role, bias.local_shape, bias.grad_sum_axes) == ("BIAS", (64,), ())
    assert made.boundaries[f"{ATTENTION}.o_proj"].local_compute_fn == "bias_after_reduction"


def test_a_norm_inside_attention_as_wide_as_the_residual_stream_is_believed_only_by_its_name():
    attention = "encoder.layers.0.attention"
    weights = {f"{attention}.{name}.weight": (64, 64) for name in ("query", "key", "value", "dense")}
    sizes = {"num_key_value_heads": 4}
    for name in ("q_norm", "k_norm", "query_layernorm", "attn_sub_norm", "inner_attn_ln"):
        made = plan(record({**weights, f"{attention}.{name}.weight": (64,)}, **sizes), tp=2)
        assert made.parameters[f"{attention}.{name}.weight"].slice_map.cuts, name
    # ALBERT keeps the norm behind the residual in the attention's own module
    for name in ("LayerNorm", "norm", "layer_norm"):
        model = record({**weights, f"{attention}.{name}.weight": (64,)}, **sizes)
        with pytest.raises(ValueError, match="all heads .* or the residual stream .* keep it whole"):
            plan(model, tp=2)
        whole = plan(model, tp=2, overrides=[{"match": f"{attention}.*", "replicate": True}])
        assert not whole.parameters[f"{attention}.{name}.weight"].slice_map.cuts
