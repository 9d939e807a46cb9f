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
"""What each parameter is: 27 + 28 families by name, shape and configuration, and MindFormers' own names."""
import re

import pytest

import inventories
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.tensor_parallel.evidence import EvidenceClassifier
from inventories import LLAMA, record, without

CONFIGS = {"none": lambda family: {}, "model type": lambda family: {"model_type": family},
           "full": inventories.config_of}


def roles(data, **options):
    """(roles by parameter, undecided)."""
    decided, undecided = EvidenceClassifier(take_inventory(data), **options).classify_all()
    return {path: one.role.name for path, one in decided.items()}, undecided


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("family", inventories.known_roles())
def test_m8_every_known_parameter_has_its_role(family, config):
    found, undecided = roles(inventories.of_rows(family, CONFIGS[config](family)))
    assert not undecided
    assert found == {parameter: role for parameter, _, role in inventories.known_roles()[family]}


@pytest.mark.parametrize("family", inventories.more_roles())
def test_m8_further_families(family):
    found, undecided = roles(inventories.of_rows(family, inventories.config_of(family)))
    assert not undecided
    assert found == {parameter: role for parameter, _, role in inventories.more_roles()[family]}


@pytest.mark.parametrize("family", inventories.more_roles())
@pytest.mark.parametrize("tp", [2, 4])
def test_further_families_are_planned(family, tp):
    made = plan(inventories.of_rows(family, inventories.config_of(family)), tp=tp)
    assert list(made.parameters) == [parameter for parameter, _, _ in inventories.more_roles()[family]]


MINDFORMERS = [
    (r"word_embeddings\.weight$|embedding_weight$", "EMBED"), (r"(output_layer|lm_head)\.weight$", "LM_HEAD"),
    (r"(layernorm|enorm|hnorm|_norm|norm_out)\.weight$", "NORM"),
    (r"linear_(qb|kvb|q_up_proj|kv_up_proj)\.weight$|attention\.w[qkv]\.", "COLWISE"),
    (r"attention\.(linear_proj|wo|dense)\.weight$|mlp\.linear_fc2\.weight$|feed_forward\.w2\.weight$", "ROWWISE"),
    (r"mlp\.linear_fc1\.weight$|w_gate_hidden", "FUSED_GATE_UP"), (r"router(\.dense)?\.weight$", "MOE_GATE"),
    (r"experts\.weight[12]$|routed_experts\.ffn", "MOE_EXPERT"), (r"shared_experts\.", "SHARED_EXPERT"),
    (r"expert_bias|tokens_per_expert|expert_load|fi_accu|q_rms_gamma|rms_weight|_cache$", "SKIP"),
    (r"eh_proj", "SPECIAL")]


@pytest.mark.parametrize("generation, name", inventories.mindformers())
def test_mindformers_names_of_both_generations(generation, name):
    data = inventories.mindformers()[generation, name]
    found, undecided = roles(data)
    assert not undecided
    for path, role in found.items():
        if name == "deepseek_v4" and ".self_attention." in path:
            continue
        wanted = next((expected for pattern, expected in MINDFORMERS if re.search(pattern, path)), None)
        assert wanted in (None, role), path
    made = plan(data, tp=2)
    fused = [spec for path, spec in made.parameters.items() if path.endswith("self_attention.linear_qkv.weight")]
    latent = "kv_lora_rank" in data["config"]
    assert all((spec.role == "REPLICATED") == latent for spec in fused)


def test_b01_numbers_fold_and_names_keep_their_digits():
    from hyper_parallel.distributed.explain import fold_layers
    assert [fold_layers(name) for name in ("layers.0.mlp.w1", "layers.0.mlp.w2", "h.3.fc1")] == [
        "layers.*.mlp.w1", "layers.*.mlp.w2", "h.*.fc1"]


def test_b02_root_level_head_and_its_bias():
    found, _ = roles(record({"lm_head.weight": (128, 64), "lm_head.bias": (128,)}))
    assert found == {"lm_head.weight": "LM_HEAD", "lm_head.bias": "LM_HEAD"}


def test_b06_nonsense_names_in_a_block_are_planned_by_structure():
    found, undecided = roles(record({
        "model.embed_tokens.weight": (128, 64), "blk.0.mixer_x.alpha.weight": (128, 64),
        "blk.0.mixer_x.beta.weight": (128, 64), "blk.0.mixer_x.omega.weight": (64, 128)}))
    assert not undecided
    assert [found[f"blk.0.mixer_x.{name}.weight"] for name in ("alpha", "beta", "omega")] == [
        "COLWISE", "COLWISE", "ROWWISE"]


def test_b06_a_large_weight_outside_of_blocks_is_refused_not_replicated():
    with pytest.raises(ValueError, match=r"mystery\.weight.*auto_tp_config\.rules.*unknown: replicate"):
        plan(record({**LLAMA, "mystery.weight": (64, 64)}), tp=2)
    made = plan(record({**LLAMA, "mystery.weight": (64, 64)}), tp=2, unknown="replicate")
    assert made.parameters["mystery.weight"].role == "REPLICATED"


def test_b07_five_things_called_gate():
    found, undecided = roles(record({
        **LLAMA, "model.layers.0.self_attn.gate_proj.weight": (64, 64), "model.layers.1.mlp.gate.weight": (8, 64),
        "model.layers.1.mlp.gate.e_score_correction_bias": (8,),
        "model.layers.1.mlp.shared_expert_gate.weight": (1, 64)}, num_experts=8))
    assert not undecided
    assert found["model.layers.1.mlp.gate.weight"] == "MOE_GATE"
    assert found["model.layers.0.mlp.gate_proj.weight"] == "COLWISE"
    assert found["model.layers.1.mlp.shared_expert_gate.weight"] == "REPLICATED"
    assert found["model.layers.1.mlp.gate.e_score_correction_bias"] == "MOE_GATE"
    assert found["model.layers.0.self_attn.gate_proj.weight"] == "COLWISE"
    made = plan(record({**LLAMA, "model.layers.0.self_attn.gate_proj.weight": (64, 64)}), tp=2)
    gate = made.parameters["model.layers.0.self_attn.gate_proj.weight"]
    assert gate.slice_map.cuts[0].sections[0].unit == 16


@pytest.mark.parametrize("name, size", [("audio_proj", (64, 64)), ("linear_o_group_proj_x", (64, 64))])
def test_names_count_only_as_whole_segments(name, size):
    found, undecided = roles(record({**LLAMA, f"model.{name}.weight": size}))
    assert found.get(f"model.{name}.weight") not in ("COLWISE", "ROWWISE")
    assert f"model.{name}.weight" in undecided or found[f"model.{name}.weight"] == "REPLICATED"


def test_the_owner_decides_a_norm_not_an_ancestor():
    found, _ = roles(record({**LLAMA, "model.layers.1.norm_attn_norm.attn.Wqkv.weight": (128, 64),
                             "model.layers.1.norm_attn_norm.attn.out_proj.weight": (64, 64)}, model_type="dbrx"))
    assert found["model.layers.1.norm_attn_norm.attn.Wqkv.weight"] == "FUSED_QKV"


def test_names_that_shapes_contradict_are_refused():
    wrong = {**LLAMA, "model.layers.0.mlp.down_proj.weight": (64, 96)}
    _, undecided = roles(record(wrong))
    assert "model.layers.0.mlp.down_proj.weight" in undecided
    wrong = {**LLAMA, "model.layers.0.mlp.up_proj.weight": (256, 64)}
    assert "model.layers.0.mlp.up_proj.weight" in roles(record(wrong))[1]
    wrong = {**LLAMA, "model.layers.0.self_attn.q_proj.weight": (48, 64)}
    _, undecided = roles(record(wrong))
    assert "do not make an attention" in undecided["model.layers.0.self_attn.q_proj.weight"].why


def test_a_rule_wins_over_everything_and_shows_what_lost():
    data = record({**LLAMA, "model.adapter.down.weight": (64, 64)})
    made = plan(data, tp=2, rules=[{"match": "model.adapter.*", "role": "REPLICATED"},
                                   {"match": "*.input_layernorm.weight", "role": "replicated"}])
    assert made.parameters["model.adapter.down.weight"].reasons[0] == "user rule 'model.adapter.*'"
    assert made.parameters["model.layers.0.input_layernorm.weight"].rejected == ("the name alone says NORM",)


@pytest.mark.parametrize("rules, said", [
    ([{"match": "nothing.*", "role": "NORM"}], "matches no parameter; nearest"),
    ([{"match": "*", "role": "FANCY"}], "FANCY"), ([{"match": "*"}], "each rule is")])
def test_rules_that_cannot_be_meant_are_refused(rules, said):
    with pytest.raises(ValueError, match=said):
        plan(record(LLAMA), tp=2, rules=rules)


def test_a_row_without_its_columns_is_refused_by_name():
    with pytest.raises(ValueError, match="wanted: query, key and value"):
        plan(record(without(LLAMA, "q_proj")), tp=2)


def test_packed_weights_are_refused_by_name():
    with pytest.raises(ValueError, match="'qweight' is a packed weight"):
        plan(record({**without(LLAMA, "up_proj"), "model.layers.0.mlp.up_proj.qweight": (8, 128)}), tp=2)


@pytest.mark.parametrize("frozen", ["masked_bias", "bias"])
def test_masks_and_buffers_are_skipped(frozen):
    size = (1, 1, 8, 8) if frozen == "bias" else (1,)
    found, _ = roles(record({**LLAMA, f"model.layers.0.self_attn.{frozen}": size}))
    assert found[f"model.layers.0.self_attn.{frozen}"] in ("SKIP",)


@pytest.mark.parametrize("width, role, layout", [(32, "COLWISE", None), (64, "FUSED_GATE_UP", "interleaved")])
def test_widths_tell_whether_there_is_a_gate(width, role, layout):
    made = plan(record({"layers.0.mlp.linear_fc1.weight": (width, 64), "layers.0.mlp.linear_fc2.weight": (64, 32),
                        "layers.0.moe.router.weight": (4, 64), "layers.0.moe.experts.weight1": (4, 64, width),
                        "layers.0.moe.experts.weight2": (4, 32, 64)}, num_experts=4), tp=2)
    assert made.parameters["layers.0.mlp.linear_fc1.weight"].role == role
    assert (layout or "rows are") in " ".join(made.parameters["layers.0.mlp.linear_fc1.weight"].reasons) or not layout
    cut = made.parameters["layers.0.moe.experts.weight1"].slice_map.cuts[0]
    assert [section.rows for section in cut.sections] == ([32, 32] if layout else [32])
