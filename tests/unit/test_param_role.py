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
"""Roles read from names: the plain rules, their precedence, and the ways to replace or override them."""
import os
import subprocess
import sys

import pytest

from hyper_parallel.distributed.tensor_parallel import param_role
from hyper_parallel.distributed.tensor_parallel.param_role import (
    SEGMENT_EXACT, SEGMENT_SUBSTRING, ParamRole, ParameterClassifier, _build_default_rules, _match_any, _match_pattern,
    _match_rule)

PLAIN_NAMES = [
    ("model.embed_tokens.weight", "EMBED"), ("transformer.wte.weight", "EMBED"), ("tok_embeddings.weight", "EMBED"),
    ("gpt_neox.embed_in.weight", "EMBED"), ("embedding.word_embeddings.weight", "EMBED"),
    ("lm_head.weight", "LM_HEAD"), ("embed_out.weight", "LM_HEAD"), ("output_layer.weight", "LM_HEAD"),
    ("model.layers.0.mlp.gate.weight", "MOE_GATE"), ("layers.0.ffn.router.weight", "MOE_GATE"),
    ("layers.0.moe_gate.weight", "MOE_GATE"), ("layers.0.mlp.router", "MOE_GATE"), ("mlp.router.bias", "MOE_GATE"),
    ("layers.0.attn.fused_qkv.weight", "FUSED_QKV"), ("layers.0.self_attention.linear_qkv.weight", "FUSED_QKV"),
    ("layers.0.self_attn.qkv_proj.weight", "FUSED_QKV"), ("h.0.attention.query_key_value.bias", "FUSED_QKV"),
    ("layers.0.mlp.gate_up_proj.weight", "FUSED_GATE_UP"), ("layers.0.mlp.fused_gate_up.weight", "FUSED_GATE_UP"),
    ("layers.0.feed_forward.w13.weight", "FUSED_GATE_UP"),
    ("layers.0.mixer.A_log", "SPECIAL"), ("layers.0.mixer.dt_bias", "SPECIAL"), ("l.0.gated_delta.conv", "SPECIAL"),
    ("model.norm.weight", "NORM"), ("layers.0.input_layernorm.weight", "NORM"), ("layers.0.rmsnorm.weight", "NORM"),
    ("h.0.ln_1.weight", "NORM"), ("h.0.ln_1.bias", "NORM"), ("bert.encoder.LayerNorm.weight", "NORM"),
    ("layers.0.self_attn.q_proj.weight", "COLWISE"), ("layers.0.self_attn.k_proj.weight", "COLWISE"),
    ("layers.0.self_attn.v_proj.weight", "COLWISE"), ("layers.0.mlp.gate_proj.weight", "COLWISE"),
    ("layers.0.mlp.up_proj.weight", "COLWISE"), ("layers.0.feed_forward.w1.weight", "COLWISE"),
    ("layers.0.feed_forward.w3.weight", "COLWISE"),
    ("layers.0.self_attn.o_proj.weight", "ROWWISE"), ("layers.0.mlp.down_proj.weight", "ROWWISE"),
    ("layers.0.feed_forward.w2.weight", "ROWWISE"),
    ("model.layers.0.mlp.experts.3.gate_proj.weight", "MOE_EXPERT"), ("mlp.experts.gate_up_proj", "MOE_EXPERT"),
    ("model.layers.0.mlp.shared_expert.up_proj.weight", "SHARED_EXPERT"),
    ("model.layers.0.mlp.shared_experts.down_proj.weight", "SHARED_EXPERT"),
    ("transformer.wpe.weight", "SKIP"), ("layers.0.mlp.fc1.weight", "SKIP"),
]


class Model:
    """Names as `named_parameters()` lists them."""

    def __init__(self, *names):
        self.names = names

    def named_parameters(self):
        return ((name, object()) for name in self.names)


@pytest.mark.parametrize("name, role", PLAIN_NAMES)
def test_plain_rules_give_the_contract_s_roles(name, role):
    assert ParameterClassifier().classify_param(name) is ParamRole[role]


def test_roles_are_fourteen_in_their_order():
    assert [role.name for role in ParamRole] == [
        "COLWISE", "ROWWISE", "NORM", "EMBED", "LM_HEAD", "MOE_GATE", "MOE_EXPERT", "SHARED_EXPERT", "FUSED_QKV",
        "FUSED_GATE_UP", "BIAS", "REPLICATED", "SPECIAL", "SKIP"]


def test_the_default_rules_stand_in_their_precedence_and_never_say_replicated():
    roles = [role.name for _, role, _ in _build_default_rules()]
    assert roles == ["EMBED", "LM_HEAD", "SHARED_EXPERT", "MOE_EXPERT", "MOE_GATE", "FUSED_QKV", "FUSED_GATE_UP",
                     "SPECIAL", "NORM", "COLWISE", "BIAS", "ROWWISE"]


def test_a_column_bias_follows_its_weight_and_a_row_bias_does_not():
    classify = ParameterClassifier().classify_param
    assert classify("layers.0.self_attn.q_proj.bias") is ParamRole.COLWISE
    assert classify("layers.0.self_attn.o_proj.bias") is ParamRole.BIAS
    assert classify("layers.0.mlp.down_proj.bias") is ParamRole.BIAS


@pytest.mark.parametrize("name", ["layers.0.mlp.w1.weight", "layers.31.mlp.w1.weight", "layers.0.mlp.w3.weight"])
def test_b01_digits_inside_a_name_stay_and_layer_numbers_do_not_matter(name):
    assert ParameterClassifier().classify(Model(name)) == {name: ParamRole.COLWISE}


def test_b01_layer_numbers_share_one_look_up_but_a_rule_about_a_number_is_kept():
    names = ("layers.0.mlp.w1.weight", "layers.1.mlp.w1.weight", "layers.11.mlp.w2.weight")
    assert list(ParameterClassifier().classify(Model(*names)).values()) == [
        ParamRole.COLWISE, ParamRole.COLWISE, ParamRole.ROWWISE]
    only_first = ParameterClassifier(arch_overrides={"a": [("layers.1.", ParamRole.REPLICATED)]})
    assert list(only_first.classify(Model(*names), arch="a").values()) == [
        ParamRole.COLWISE, ParamRole.REPLICATED, ParamRole.ROWWISE]


def test_b02_a_root_level_head_has_its_weight_and_its_bias():
    assert ParameterClassifier().classify(Model("lm_head.weight", "lm_head.bias")) == {
        "lm_head.weight": ParamRole.LM_HEAD, "lm_head.bias": ParamRole.LM_HEAD}


def test_b04_overrides_see_the_whole_dotted_name():
    own = ParameterClassifier(arch_overrides={"m": [("LAYERS.0.self_attn", ParamRole.REPLICATED)]})
    assert own.classify(Model("model.layers.0.self_attn.q_proj.weight"), arch="m") == {
        "model.layers.0.self_attn.q_proj.weight": ParamRole.REPLICATED}


@pytest.mark.parametrize("name, role", [
    ("mlp.gate.weight", "MOE_GATE"), ("mlp.gate_proj.weight", "COLWISE"),
    ("mlp.shared_expert_gate.weight", "SKIP"),  # whole: the planner's evidence says REPLICATED, no name does
    ("mlp.gate.e_score_correction_bias", "MOE_GATE"), ("self_attn.gate_proj.weight", "COLWISE"),
])
def test_b07_the_gates_are_told_apart(name, role):
    assert ParameterClassifier().classify_param(name) is ParamRole[role]


@pytest.mark.parametrize("pattern, mode, name, hit", [
    ("shared_expert", SEGMENT_EXACT, "mlp.shared_expert.up", True),
    ("shared_expert", SEGMENT_EXACT, "mlp.shared_expert_gate.weight", False),
    ("norm", SEGMENT_SUBSTRING, "input_layernorm.weight", True),
    ("a_b", SEGMENT_SUBSTRING, "x.a.b", False),
    ("mlp.gate.", SEGMENT_EXACT, "mlp.gate.weight", True),
    ("q_proj", SEGMENT_EXACT, "attn.Q_PROJ.weight".lower(), True),
    ("Q_PROJ", SEGMENT_SUBSTRING, "attn.q_proj.weight", True),
])
def test_match_pattern_never_crosses_a_dot_unless_the_pattern_has_one(pattern, mode, name, hit):
    assert _match_pattern(name, pattern, mode) is hit


def test_match_helpers_take_one_pattern_or_many():
    assert _match_any("A.B.C", "b.c") and _match_any("A.B.C", ["x", "A."]) and not _match_any("a", [])
    assert _match_rule("a.b", ("x", "b"), SEGMENT_EXACT) and not _match_rule("a.bb", "b", SEGMENT_EXACT)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'glob'.*segment_exact, segment_substring"):
        _match_pattern("a", "a", "glob")


def test_legacy_pairs_match_substrings_of_the_whole_name():
    legacy = ParameterClassifier(name_rules=[(("N.W",), ParamRole.NORM), ("eight", ParamRole.BIAS)])
    assert legacy.classify_param("attn.weight") is ParamRole.NORM
    assert legacy.classify_param("q.weight") is ParamRole.BIAS


def test_an_empty_list_of_rules_makes_everything_skip():
    assert ParameterClassifier(name_rules=[]).classify(Model("lm_head.weight")) == {"lm_head.weight": ParamRole.SKIP}


def test_explicit_overrides_win_over_rules_and_architectures_do_not_mix():
    own = ParameterClassifier(arch_overrides={"x": [(["q_proj", "k_proj"], ParamRole.REPLICATED)]})
    name = "layers.0.self_attn.q_proj.weight"
    assert own.classify(Model(name), arch="x") == {name: ParamRole.REPLICATED}
    assert own.classify(Model(name), arch="y") == own.classify(Model(name)) == {name: ParamRole.COLWISE}
    assert own.classify_param(name, overrides=[("Q_Proj", ParamRole.SPECIAL)]) is ParamRole.SPECIAL


@pytest.mark.parametrize("arguments, message", [
    ({"name_rules": [("norm",)]}, "name_rules: .* is no rule"),
    ({"name_rules": ["norm"]}, "is no rule"),
    ({"name_rules": [("norm", "NORM")]}, "'NORM' of 'norm' is none of ParamRole's COLWISE, ROWWISE"),
    ({"name_rules": [("norm", ParamRole.NORM, "glob")]}, "match mode 'glob' of 'norm'"),
    ({"arch_overrides": {"x": [("norm", ParamRole.NORM, SEGMENT_EXACT)]}}, r"arch_overrides\['x'\]: .* is no rule"),
])
def test_a_malformed_rule_is_refused_when_the_classifier_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        ParameterClassifier(**arguments)


def test_a_cell_is_read_in_its_own_order():
    nn = pytest.importorskip("mindspore").nn

    class Mlp(nn.Cell):
        """Two linears."""

        def __init__(self):
            super().__init__()
            self.down_proj = nn.Dense(4, 2)
            self.up_proj = nn.Dense(2, 4)

    assert list(ParameterClassifier().classify(Mlp()).items()) == [
        ("down_proj.weight", ParamRole.ROWWISE), ("down_proj.bias", ParamRole.BIAS),
        ("up_proj.weight", ParamRole.COLWISE), ("up_proj.bias", ParamRole.COLWISE)]


def test_an_object_without_parameters_is_refused():
    with pytest.raises(ValueError, match="int lists no parameters"):
        ParameterClassifier().classify(3)


def test_the_module_needs_no_mindspore():
    code = ("import sys, runpy; sys.modules['mindspore'] = None; "
            f"runpy.run_path({os.path.abspath(param_role.__file__)!r})")
    subprocess.run([sys.executable, "-c", code], check=True)
