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
"""Head counts, divisibility, overrides, coverage: refused with both numbers, the valid sizes and the way out."""
import copy

import pytest

import inventories
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
from hyper_parallel.distributed.checks import check_edges, large_whole, validate_model_compatibility
from hyper_parallel.distributed.overrides import Override, Overrides, PlanOptions, check_key
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec
from hyper_parallel.distributed.support import check_supported, unsupported
from inventories import LLAMA, record

ATTENTION = "model.layers.0.self_attn"


def attention(heads, kv_heads, hidden=None, head_dim=4):
    """One attention of the given heads."""
    hidden = hidden or heads * head_dim
    return {f"{ATTENTION}.q_proj.weight": (heads * head_dim, hidden),
            f"{ATTENTION}.k_proj.weight": (kv_heads * head_dim, hidden),
            f"{ATTENTION}.v_proj.weight": (kv_heads * head_dim, hidden),
            f"{ATTENTION}.o_proj.weight": (hidden, heads * head_dim)}


def sized(heads, kv_heads, **config):
    """An inventory of one attention."""
    return {"config": {"hidden_size": heads * 4, "num_attention_heads": heads, **config},
            "parameters": {name: {"shape": size} for name, size in attention(heads, kv_heads).items()}}


def test_a01_kv_heads_are_copied_or_refused():
    made = plan(sized(8, 4, num_key_value_heads=4), tp=8)
    key = made.parameters[f"{ATTENTION}.k_proj.weight"]
    assert key.local_shape == (4, 32) and key.copies == 2
    assert [key.slice_map.copy_group(rank) for rank in (0, 1, 6)] == [(0, 1), (0, 1), (6, 7)]
    with pytest.raises(ValueError) as refused:
        plan(sized(8, 4), tp=8, kv_replication=False)
    for word in ("4 is not divisible by a tensor parallel size of 8", "valid sizes: 1, 2, 4", "kv_replication: true"):
        assert word in str(refused.value)


@pytest.mark.parametrize("heads, kv_heads, tp, fits", [(8, 2, 4, False), (16, 8, 4, True), (16, 8, 1, True)])
def test_a02_without_copies(heads, kv_heads, tp, fits):
    if fits:
        assert plan(sized(heads, kv_heads), tp=tp, kv_replication=False).tp == tp
    else:
        with pytest.raises(ValueError, match="num_key_value_heads 2"):
            plan(sized(heads, kv_heads), tp=tp, kv_replication=False)


def test_a02_six_heads_on_four_ranks_are_always_refused():
    with pytest.raises(ValueError, match="num_attention_heads 6 is not divisible.*valid sizes: 1, 2, 3, 6"):
        plan(sized(6, 6), tp=4)


@pytest.mark.parametrize("tp, copies, local", [(16, 2, (4, 128)), (32, 4, (4, 128))])
def test_a03_factors_of_copies(tp, copies, local):
    made = plan(sized(32, 8), tp=tp)
    key = made.parameters[f"{ATTENTION}.k_proj.weight"]
    assert (key.copies, key.local_shape) == (copies, local)
    assert made.parameters[f"{ATTENTION}.q_proj.weight"].local_shape == (32 // tp * 4, 128)


def test_a06_one_whole_weight_keeps_its_region_whole():
    made = plan(record(LLAMA), tp=2, overrides=[{"match": f"{ATTENTION}.q_proj.weight", "replicate": True}])
    for name in ("q_proj", "k_proj", "o_proj"):
        assert made.parameters[f"{ATTENTION}.{name}.weight"].slice_map.is_replicated
    assert ATTENTION not in made.boundaries and ATTENTION not in made.heads
    assert made.parameters["model.layers.0.mlp.down_proj.weight"].slice_map.cuts
    assert "kept whole by override" in made.parameters[f"{ATTENTION}.o_proj.weight"].reasons[0]


def test_a10_the_message_has_everything():
    with pytest.raises(ValueError) as refused:
        plan(sized(52, 52), tp=8)
    for word in ("52", "8", "1, 2, 4, 13, 26, 52", "auto_tp_config.overrides", "parallel_config.model_parallel"):
        assert word in str(refused.value)


def test_a12_kv_heads_are_read_from_the_weight():
    made = plan(sized(16, 2), tp=8)
    assert made.parameters[f"{ATTENTION}.k_proj.weight"].copies == 4 and made.heads[ATTENTION] == (16, 2, 4)


def test_g05_groups_of_copies():
    one = plan(sized(4, 1), tp=4).parameters[f"{ATTENTION}.k_proj.weight"].slice_map
    two = plan(sized(8, 2), tp=4).parameters[f"{ATTENTION}.k_proj.weight"].slice_map
    assert one.copy_groups() == ((0, 1, 2, 3),) and two.copy_groups() == ((0, 1), (2, 3))


@pytest.mark.parametrize("broken, said", [
    ({"num_attention_heads": None}, "nothing says how many heads"), ({"num_attention_heads": 3}, "no whole number"),
    ({"num_attention_heads": 1}, "no whole number|is not divisible|query head")])
def test_heads_that_do_not_fit_the_weights_are_refused(broken, said):
    with pytest.raises(ValueError, match=said):
        plan(record(LLAMA, **broken), tp=2)


def test_j02_an_odd_width_is_refused_with_the_valid_sizes():
    shapes = {**LLAMA, "model.layers.0.mlp.gate_proj.weight": (5, 64), "model.layers.0.mlp.up_proj.weight": (5, 64),
              "model.layers.0.mlp.down_proj.weight": (64, 5)}
    with pytest.raises(ValueError, match=r"5 rows of dim 0 \(intermediate_size\).*size of 2; valid sizes: 1, 5"):
        plan(record(shapes), tp=2)


def test_f01_an_uneven_vocabulary_is_padded_or_refused():
    shapes = {**LLAMA, "model.embed_tokens.weight": (10, 64), "lm_head.weight": (10, 64)}
    made = plan(record(shapes, vocab_size=10), tp=4)
    assert made.parameters["lm_head.weight"].local_shape == (3, 64)
    assert made.boundaries["lm_head"].out_size == 10 and made.parameters["lm_head.weight"].shape == (10, 64)
    with pytest.raises(ValueError, match="vocabulary of 10 .* 4; valid sizes: 1, 2, 5, 10.*vocab_padding: true"):
        plan(record(shapes, vocab_size=10), tp=4, vocab_padding=False)


@pytest.mark.parametrize("overrides, said", [
    ([{"match": "*.q_prj.weight", "replicate": True}], r"decides no parameter; nearest: .*q_proj"),
    ([{"match": ATTENTION, "replicate": True}], r"matches a module, not the parameters in it: write '.*self_attn\.\*'"),
    ([{"match": "*", "replicat": True}], "did you mean 'replicate'"), ([{"replicate": True}], "each entry is"),
    ([{"match": "*", "replicate": "yes"}], "write true or false"), ([{"match": "*"}], "says nothing"),
    ([{"match": "*", "placement": "partial"}], "cut or whole, never partial"),
    ([{"match": "*", "tp_divide_attrs": "heads"}], "list of attribute names"),
    ([{"match": "lm_head.weight", "placement": "shard(7)"}], "has no dim 7|dim"),
    ({"lm_head.weight": 3}, "write replicate")])
def test_b04_overrides_that_decide_nothing_or_cannot_be_meant(overrides, said):
    with pytest.raises(ValueError, match=said):
        plan(record(LLAMA), tp=2, overrides=overrides)


def test_overrides_are_not_modified_and_may_be_objects_or_a_mapping():
    entries = [{"match": "model.layers.*.mlp.*", "replicate": True}]
    before = copy.deepcopy(entries)
    first = plan(record(LLAMA), tp=2, overrides=entries)
    assert entries == before
    assert first.hash == plan(record(LLAMA), tp=2, overrides=[Override("model.layers.*.mlp.*", True)]).hash
    assert first.hash == plan(record(LLAMA), tp=2, overrides={"model.layers.*.mlp.*": "replicate"}).hash
    assert plan(record(LLAMA), tp=2, overrides={"lm_head.weight": {"replicate": True}}).parameters[
        "lm_head.weight"].slice_map.is_replicated


def test_a_placement_of_the_user_wins_and_says_so():
    made = plan(record(LLAMA), tp=2, overrides=[{"match": "lm_head.weight", "placement": "shard(0)"},
                                                {"match": "model.embed_tokens.weight", "placement": "replicate"}])
    assert "user override placement" in made.parameters["lm_head.weight"].reasons[-1]
    for word, said in (("lm_head.weight", "cut in dim 0"), ("*.input_layernorm.weight", "wants it whole")):
        dim = 1 if "lm" in word else 0
        with pytest.raises(ValueError, match=said):
            plan(record(LLAMA), tp=2, overrides=[{"match": word, "placement": f"shard({dim})"}])
    assert made.parameters["model.embed_tokens.weight"].slice_map.is_replicated


def test_attributes_that_the_user_wants_divided_stand_in_the_spec():
    made = plan(record(LLAMA), tp=2, overrides=[{"match": ATTENTION, "tp_divide_attrs": ["window"]}])
    assert made.boundaries[ATTENTION].tp_divide_attrs == ("window",)


def test_layers_of_which_the_user_says_different_things_are_planned_apart():
    shapes = {**LLAMA, **{name.replace(".0.", ".1."): size for name, size in LLAMA.items() if ".0." in name}}
    made = plan(record(shapes), tp=2, overrides=[{"match": "model.layers.1.mlp.*", "replicate": True}])
    assert made.parameters["model.layers.0.mlp.up_proj.weight"].slice_map.cuts
    assert not made.parameters["model.layers.1.mlp.up_proj.weight"].slice_map.cuts
    assert "model.layers.1.mlp" not in made.boundaries and "model.layers.1.self_attn" in made.boundaries


@pytest.mark.parametrize("options, said", [
    ({"tp": 0}, "positive integer"), ({"tp": True}, "positive integer"), ({"unknown": "guess"}, "error, replicate"),
    ({"sequence_parallel": 1}, "write true or false"), ({"loss_parallel": "yes"}, "write true or false")])
def test_options_that_cannot_be_meant(options, said):
    with pytest.raises(ValueError, match=said):
        PlanOptions(**options)


def test_check_key_without_a_near_one():
    with pytest.raises(ValueError, match="unknown key 'zzz' in here Known keys: a"):
        check_key("zzz", ("a",), "here")


@pytest.mark.parametrize("config, sizes, said", [
    ({"num_attention_heads": 8, "hidden_size": 64}, {"tp_size": 3}, "num_attention_heads 8 .* 1, 2, 4, 8"),
    ({"num_attention_heads": 8, "num_key_value_heads": 4}, {"tp_size": 3}, "num_attention_heads"),
    ({"num_key_value_heads": 6}, {"tp_size": 4}, "num_key_value_heads 6"),
    ({"num_experts": 6}, {"tp_size": 1, "ep_size": 4}, "num_experts 6"),
    ({}, {"tp_size": 1, "cp_size": 3, "seq_len": 8}, "seq_len 8")])
def test_validate_model_compatibility_names_the_field(config, sizes, said):
    with pytest.raises(ValueError, match=said):
        validate_model_compatibility(config, **sizes)


def test_large_whole_weights_are_listed():
    made = plan(record({**LLAMA, "model.multi_modal_projector.linear.weight": (2048, 2048)}), tp=2)
    assert [spec.path for spec in large_whole(made.parameters.values())] == [
        "model.multi_modal_projector.linear.weight"]
    assert "large and whole: model.multi_modal_projector.linear.weight" in made.explain()


def test_an_exit_that_does_not_meet_the_next_entry_is_found():
    def region(arrives, leaves):
        return ModuleShardingSpec(in_src={"hidden_states": {"tp": arrives}}, out_src={"tp": Partial()},
                                  out_dst={"tp": leaves}, semantic_role="attention")
    check_edges({"l.0.attn": region(Replicate(), Replicate()), "l.1.attn": region(Replicate(), Replicate())})
    with pytest.raises(ValueError, match="exit has to meet the next one's entry"):
        check_edges({"l.0.attn": region(Replicate(), Shard(1)), "l.1.attn": region(Replicate(), Shard(1))})


def test_what_cannot_be_applied_is_refused_by_name():
    made = plan(record(LLAMA), tp=2)
    made.boundaries[ATTENTION].local_compute_fn = "attention_of_another_kind"
    made.boundaries["model.layers.0.mlp"].semantic_role = "mixture_of_depths"
    with pytest.raises(NotImplementedError, match="this version cannot apply it"):
        check_supported(made)
    assert any("attention_of_another_kind" in phrase for phrase in unsupported(made))
    assert any("mixture_of_depths" in phrase for phrase in unsupported(made))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "bert", "opt", "gpt_neox", "starcoder2", "mixtral",
                                  "deepseek_v3", "t5", "bloom", "gpt_oss", "qwen2_moe", "gpt_bigcode", "mamba2"])
def test_what_can_be_applied_passes(name):
    assert all(unsupported(plan(inventories.folders()[name], tp=tp)) == [] for tp in (2, 4))
    assert unsupported(plan(inventories.folders()["mixtral"], tp=1)) == []


def test_unused_overrides_are_remembered_per_plan():
    overrides = Overrides([{"match": "a.*", "replicate": True}])
    assert overrides.replicates("a.b") == "a.*" and overrides.replicates("b") is None and len(overrides) == 1


@pytest.mark.parametrize("match,role,words", [
    ("*.q_proj.weight", "ROWWISE", "make 'model.layers.0.self_attn.q_proj.weight' ROWWISE; but then .* is nowhere"),
    ("*.q_proj", "ROWWISE", "make 'model.layers.0.self_attn.q_proj.weight' ROWWISE; but then"),
    ("*.o_proj.weight", "COLWISE", "o_proj.weight' COLWISE; but then .* the rest of it is nowhere"),
    ("*.down_proj.weight", "COLWISE", "down_proj.weight' COLWISE; but then .* wanted: up or gate_up, and down"),
    ("*.up_proj.weight", "ROWWISE", "'model.layers.0.mlp' has 2 row weights"),
    ("*.input_layernorm.weight", "COLWISE", r"'\*.input_layernorm.weight' says COLWISE, .* has shape \[64\]"),
    ("*.q_proj.weight", "NORM", r"says NORM, a role of parameters of one dim, .* has shape \[64, 64\]")])
def test_a_rule_that_contradicts_its_region_is_refused_with_the_reason(match, role, words):
    with pytest.raises(ValueError, match=words):
        plan(record(LLAMA), tp=2, rules=[{"match": match, "role": role}])


def test_a_rule_matches_a_linear_as_an_override_does():
    made = plan(record(LLAMA), tp=2, rules=[{"match": "*.q_proj", "role": "COLWISE"}])
    assert made.parameters[f"{ATTENTION}.q_proj.weight"].reasons[0] == "user rule '*.q_proj'"


def test_what_follows_a_cut_weight_is_not_kept_whole_beside_it():
    with pytest.raises(ValueError, match=r"q_proj.bias' whole, but it follows '.*q_proj.weight', which is cut"):
        plan(inventories.folders()["qwen2"], tp=2, overrides=[{"match": "*.q_proj.bias", "replicate": True}])
    # a vector over heads decides for its whole attention, as its weights do
    heads = plan(inventories.folders()["gpt_oss"], tp=2, overrides=[{"match": "*.sinks", "replicate": True}])
    assert not heads.parameters[f"{ATTENTION}.q_proj.weight"].slice_map.cuts
    whole = plan(inventories.folders()["qwen2"], tp=2, overrides=[{"match": "*.q_proj.*", "replicate": True}])
    assert not whole.parameters[f"{ATTENTION}.q_proj.bias"].slice_map.cuts


@pytest.mark.parametrize("model,match", [
    (record(inventories.without(LLAMA, "o_proj")), "model.layers.0.self_attn.*"),
    (record({**LLAMA, "model.layers.0.adapter.zeta.weight": (64, 48)}), "*.zeta.weight"),
    (record({**LLAMA, "model.layers.0.mlp.down_proj.weight": (128, 64)}), "*.mlp.*")])
def test_what_cannot_be_understood_can_be_kept_whole_as_its_refusal_says(model, match):
    with pytest.raises(ValueError, match="cannot decide what|the rest of it is nowhere"):
        plan(model, tp=2)
    made = plan(model, tp=2, overrides=[{"match": match, "replicate": True}])
    kept = [spec for path, spec in made.parameters.items() if any("kept whole by" in why for why in spec.reasons)]
    assert kept and not any(spec.slice_map.cuts for spec in kept)
    assert made.parameters["lm_head.weight"].slice_map.cuts


def test_an_override_that_matches_and_decides_nothing_says_why():
    with pytest.raises(ValueError, match=r"matches 'model.layers.0.self_attn.q_proj.bias', but none of it is a fused"):
        plan(inventories.folders()["qwen2"], tp=2, overrides=[{"match": "*.q_proj.bias", "fused_layout": "halves"}])
    with pytest.raises(ValueError, match="an entry above it has already decided"):
        plan(record(LLAMA), tp=2, overrides=[{"match": "*.mlp.*", "replicate": True},
                                             {"match": "*.up_proj.weight", "replicate": True}])


def test_a_misspelt_placement_names_its_entry():
    with pytest.raises(ValueError, match=r"auto_tp_config.overrides: placement of '\*.q_proj.weight': no placement"):
        Overrides([{"match": "*.q_proj.weight", "placement": "shrad(0)"}])


def test_only_norms_are_counted_as_norms_when_sequence_parallel_is_refused():
    with pytest.raises(ValueError, match=r"2 norms outside of its blocks \(bert.embeddings.LayerNorm, "
                                         r"cls.predictions.transform.LayerNorm\)"):
        plan(inventories.folders()["bert"], tp=2, sequence_parallel=True)
