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
"""What variants of known families change: flags that are missing, norms over cut widths, square stacks, towers."""
import numpy as np
import pytest

from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.tensor_parallel import fused_layout, parts, templates
from inventories import LLAMA, record, without

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
WITHOUT_MLP = without(LLAMA, "mlp")


def layout(config, part=parts.QKV, path="x.fused.weight"):
    return fused_layout.choose_layout(path, part, ModelFacts.from_config(config), None)[0]


@pytest.mark.parametrize("config, expected", [
    ({"model_type": "RefinedWeb", "n_head_kv": 2}, "per_group"), ({"model_type": "falcon"}, "per_group"),
    ({"model_type": "gpt_bigcode"}, "per_group"), ({"model_type": "phi3small"}, "per_group"),
    ({"model_type": "phi-msft"}, "sections"), ({"architectures": ["InternLM2ForRewardModel"]}, "per_group"),
    ({"model_type": "chatglm", "multi_query_attention": False, "multi_query_group_num": 1}, "per_head"),
    ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2}, "sections")])
def test_a_missing_flag_does_not_change_the_layout(config, expected):
    assert layout(config) == expected


@pytest.mark.parametrize("rows, kv_heads, others", [(96, 1, ("sections",)), (128, 2, ()), (192, 4, ("per_head",))])
def test_kv_group_by_kv_group_is_every_attention_of_falcon_and_bigcode(rows, kv_heads, others):
    weights = {"h.0.attn.query_key_value.weight": (rows, 64), "h.0.attn.dense.weight": (64, 64)}
    whole = np.arange(rows * 64).reshape(rows, 64)
    made = plan(record(weights, model_type="falcon", num_key_value_heads=kv_heads), tp=2)
    for name in others:
        said = plan(record(weights, num_key_value_heads=kv_heads), tp=2,
                    overrides=[{"match": "*.query_key_value.weight", "fused_layout": name}])
        for rank in range(2):
            assert np.array_equal(made.shard("h.0.attn.query_key_value.weight", whole, rank),
                                  said.shard("h.0.attn.query_key_value.weight", whole, rank))
    if kv_heads == 2:  # [q q k v] of the second kv head
        assert np.array_equal(made.shard("h.0.attn.query_key_value.weight", whole, 1), whole[64:])


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3", "qwen3_vl_moe", "qwen3_vl_moe_text",
                                    "glm4v_text", "glm4v_moe_text"])
def test_gate_and_up_of_experts_in_one_weight_are_halves(family):
    assert layout({"model_type": family}, parts.GATE_UP) == "halves"


def test_gate_and_up_of_phi3_small_take_turns():
    made = plan(record({**WITHOUT_MLP, f"{MLP}.up_proj.weight": (256, 64), f"{MLP}.down_proj.weight": (64, 128)},
                       model_type="phi3small"), tp=4)
    whole = np.arange(256 * 64).reshape(256, 64)
    assert np.array_equal(made.shard(f"{MLP}.up_proj.weight", whole, 1), whole[64:128])


@pytest.mark.parametrize("model_type, name", [("qwen2_vl", "visual"), ("qwen2_5_vl", "visual"),
                                              ("chatglm", "transformer.vision")])
def test_a_tower_without_a_family_of_its_own_is_of_its_models(model_type, name):
    block = f"{name}.blocks.0.attn"
    weights = {f"{block}.qkv.weight": (96, 32), f"{block}.proj.weight": (32, 32)}
    made = plan(record({**LLAMA, **weights}, model_type=model_type, vision_config={"hidden_size": 32, "num_heads": 2}),
                tp=2)
    whole = np.arange(96 * 32).reshape(3, 2, 16, 32)
    assert np.array_equal(made.shard(f"{block}.qkv.weight", whole.reshape(96, 32), 1), whole[:, 1].reshape(48, 32))


@pytest.mark.parametrize("fused, down, dims", [
    ((4, 64, 64), (4, 64, 32), (1, 2)), ((4, 64, 64), (4, 32, 64), (2, 1)),
    ((4, 128, 64), (4, 64, 64), (1, 2)), ((4, 64, 128), (4, 64, 64), (2, 1))])
def test_a_square_stack_is_stored_as_its_siblings_are(fused, down, dims):
    weights = {f"{MLP}.gate.weight": (4, 64), f"{MLP}.experts.gate_up_proj": fused, f"{MLP}.experts.down_proj": down}
    made = plan(record({**WITHOUT_MLP, **weights}, model_type="qwen3_moe", num_experts=4,
                       moe_intermediate_size=fused[1] * fused[2] // 128), tp=2)
    for name, dim in zip(("gate_up_proj", "down_proj"), dims):
        assert made.parameters[f"{MLP}.experts.{name}"].slice_map.cuts[0].dim == dim


def test_square_stacks_without_a_sibling_that_tells_are_refused():
    weights = {f"{MLP}.gate.weight": (4, 64), **{f"{MLP}.experts.{name}": (4, 64, 64) for name in (
        "gate_proj", "up_proj", "down_proj")}}
    model = record({**WITHOUT_MLP, **weights}, num_experts=4, moe_intermediate_size=64)
    with pytest.raises(ValueError, match=r"square, and nothing says whether they are \[in, out\] or \[out, in\]"):
        plan(model, tp=2)
    whole = plan(model, tp=2, overrides=[{"match": f"{MLP}.*", "replicate": True}])
    assert whole.parameters[f"{MLP}.experts.up_proj"].local_shape == (4, 64, 64)


def test_a_bare_bias_goes_with_the_weight_of_its_name():
    attention = "vision_model.head.attention"
    weights = {f"{attention}.in_proj_weight": (96, 32), f"{attention}.in_proj_bias": (96,),
               f"{attention}.out_proj.weight": (32, 32), f"{attention}.out_proj.bias": (32,)}
    made = plan(record({**LLAMA, **weights}, vision_config={"hidden_size": 32, "num_heads": 2}), tp=2)
    whole = np.arange(96).reshape(3, 2, 16)
    assert np.array_equal(made.shard(f"{attention}.in_proj_bias", whole.reshape(96), 1), whole[:, 1].reshape(48))


def test_a_norm_of_a_feed_forward_layers_inner_width_is_cut_with_it():
    made = plan(record({**LLAMA, f"{MLP}.ffn_sub_norm.weight": (128,)}), tp=2)
    assert made.parameters[f"{MLP}.ffn_sub_norm.weight"].local_shape == (64,)
    assert made.boundaries[f"{MLP}.ffn_sub_norm"].semantic_role == templates.SHARDED_NORM
    made = plan(record({**LLAMA, f"{MLP}.norm.weight": (64,)}), tp=2)
    norm = made.parameters[f"{MLP}.norm.weight"]
    assert norm.local_shape == (64,) and norm.grad_sum_axes == ("tp",)
    square = {**WITHOUT_MLP, f"{MLP}.fc1.weight": (64, 64), f"{MLP}.fc2.weight": (64, 64), f"{MLP}.norm.weight": (64,)}
    with pytest.raises(ValueError, match="the layer's inner width .* or the residual stream"):
        plan(record(square, intermediate_size=64), tp=2)


def mamba2(groups, **config):
    mixer, rows = "backbone.layers.0.mixer", 2 * 128 + 2 * groups * 16 + 8
    return mixer, record({
        f"{mixer}.dt_bias": (8,), f"{mixer}.A_log": (8,), f"{mixer}.D": (8,),
        f"{mixer}.conv1d.weight": (128 + 2 * groups * 16, 1, 4), f"{mixer}.in_proj.weight": (rows, 64),
        f"{mixer}.norm.weight": (128,), f"{mixer}.out_proj.weight": (64, 128)}, **config)


@pytest.mark.parametrize("model_type, groups, tp, over_all", [
    ("mamba2", 4, 2, True), ("nemotron_h", 4, 2, False), ("nemotron_h", 1, 2, True), ("mystery", 1, 2, True)])
def test_a_gated_norm_runs_over_all_channels_or_over_each_group(model_type, groups, tp, over_all):
    mixer, model = mamba2(groups, model_type=model_type, n_groups=groups, state_size=16)
    made = plan(model, tp=tp)
    assert made.parameters[f"{mixer}.norm.weight"].local_shape == (128 // tp,)
    assert (f"{mixer}.norm" in made.boundaries) == over_all


@pytest.mark.parametrize("model_type, groups, tp, said", [
    ("zamba2", 2, 4, "each of them by itself, and a rank would hold a part of one"),
    ("mystery", 2, 2, "nothing says whether it norms each of them by itself or all of them")])
def test_a_gated_norm_whose_groups_a_rank_would_split_or_nobody_knows_is_refused(model_type, groups, tp, said):
    mixer, model = mamba2(groups, model_type=model_type, n_groups=groups)
    with pytest.raises(ValueError, match=said):
        plan(model, tp=tp)
    whole = plan(model, tp=tp, overrides=[{"match": f"{mixer}.*", "replicate": True}])
    assert whole.parameters[f"{mixer}.norm.weight"].local_shape == (128,)


def test_the_groups_of_a_state_space_layer_are_not_guessed():
    with pytest.raises(ValueError, match="in how many groups its 64 rows of B and C are: give n_groups or state_size"):
        plan(mamba2(4, model_type="mamba2")[1], tp=2)
    assert plan(mamba2(4, model_type="mamba2", state_size=16)[1], tp=2).parameters
