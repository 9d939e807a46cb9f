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
"""Sizes computed from head counts: which follow, on what proof, and which never do."""
from types import SimpleNamespace

import numpy as np
import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    TpLocalAttrPlan, build_tp_local_attr_plan, collect_auto_head_attrs, maybe_update_head_counts,
    update_module_head_counts)
from hyper_parallel.distributed.tensor_parallel.head_count_derived import (
    DERIVED_SIZE_ATTRS, HeadFacts, local_ratio, local_size)

CUT = {"tp": Shard(0)}
SEPARATE = ModuleShardingSpec(params={name: CUT for name in ("q_proj.weight", "k_proj.weight", "v_proj.weight")})
FUSED = ModuleShardingSpec(params={"qkv_proj.weight": CUT})
MESH = SimpleNamespace(mesh_shape=(2,))


def linear(rows, columns):
    return SimpleNamespace(weight=np.zeros((rows, columns), np.float32))


@pytest.mark.parametrize("attrs, name, local", [
    ({"num_heads": 8, "head_dim": 4, "q_hidden_size": 32}, "q_hidden_size", 16),
    ({"num_heads": 8, "kv_num_heads": 4, "head_dim": 4, "kv_hidden_size": 16}, "kv_hidden_size", 8),
    ({"num_attention_heads": 8, "v_head_dim": 6, "query_projection_size": 48}, "query_projection_size", 24),
    ({"num_heads": 8, "head_dim": 4, "split_size": 32, "embed_dim": 32}, "split_size", 16),
    ({"num_attention_heads": 8, "attention_head_size": 4, "all_head_size": 32}, "all_head_size", 16),
    ({"n_heads": 8, "key_value_proj_dim": 4, "inner_dim": 32}, "inner_dim", 16),
    ({"num_heads": 8, "kv_heads": 2, "head_dim": 4, "kv_dim": 8}, "kv_dim", 4),
    ({"num_heads": 8, "num_kv_heads": 2, "head_dim": 4, "qkv_hidden_size": 48}, "qkv_hidden_size", 24),
    ({"num_v_heads": 8, "num_k_heads": 4, "head_k_dim": 6, "head_v_dim": 5, "key_dim": 24}, "key_dim", 12),
    ({"num_v_heads": 8, "num_k_heads": 4, "head_k_dim": 6, "head_v_dim": 5, "value_dim": 40}, "value_dim", 20),
    ({"num_v_heads": 8, "num_k_heads": 4, "head_k_dim": 6, "head_v_dim": 5, "conv_dim": 88}, "conv_dim", 44),
    ({"num_heads": 8, "head_dim": 4, "projection_size": 32}, "projection_size", 16)],
    ids=["q", "kv", "mla", "gpt2", "bert", "t5", "bigcode", "chatglm", "delta-key", "delta-value", "delta-conv", "glm"])
def test_a_count_times_a_cached_width_is_proof(attrs, name, local):
    module = SimpleNamespace(**attrs)
    assert name in collect_auto_head_attrs(module, SEPARATE, ("tp",))
    maybe_update_head_counts(module, SEPARATE, "m", MESH, ("tp",))
    assert getattr(module, name) == local and module._hp_full_head_counts[name] == attrs[name]


@pytest.mark.parametrize("spec, projections", [
    (SEPARATE, {"q_proj": linear(32, 24), "k_proj": linear(16, 24), "v_proj": linear(16, 24)}),
    (FUSED, {"qkv_proj": linear(64, 24)}),
    (ModuleShardingSpec(params={"c_attn.weight": {"tp": Shard(1)}}),
     {"c_attn": SimpleNamespace(transpose_b=False, weight=np.zeros((24, 64), np.float32))})],
    ids=["separate", "fused", "in-out"])
def test_the_rows_of_a_cut_projection_are_proof_where_no_width_is_cached(spec, projections):
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4, q_hidden_size=32, kv_hidden_size=16, inner_dim=96,
                             **projections)
    plan = build_tp_local_attr_plan(module, spec, "m", 2, ("tp",))
    assert plan.auto_divide == ("num_heads", "num_key_value_heads", "q_hidden_size", "kv_hidden_size")


def test_a_plan_made_on_whole_parameters_holds_when_they_are_cut():
    spec = ModuleShardingSpec(params=SEPARATE.params)
    module = SimpleNamespace(num_heads=8, q_hidden_size=32, q_proj=linear(32, 24))
    spec._tp_local_attr_plan = build_tp_local_attr_plan(module, spec, "m", 2, ("tp",))
    module.q_proj = linear(16, 24)
    maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
    assert module.q_hidden_size == 16


@pytest.mark.parametrize("name", ["hidden_size", "d_model", "embed_dim", "head_dim", "intermediate_size", "n_rep"])
def test_model_widths_and_ratios_are_no_derived_sizes(name):
    assert name not in DERIVED_SIZE_ATTRS
    module = SimpleNamespace(num_heads=8, num_kv_heads=4, head_dim=4, **({} if name == "head_dim" else {name: 32}))
    whole = getattr(module, name)
    maybe_update_head_counts(module, SEPARATE, "m", MESH, ("tp",))
    assert getattr(module, name) == whole


def test_a_known_name_without_a_proof_is_left():
    module = SimpleNamespace(num_heads=8, head_dim=4, split_size=96, inner_dim=128, key_dim=4)
    assert update_module_head_counts(module, 2, strict=True) == 1
    assert (module.split_size, module.inner_dim, module.key_dim) == (96, 128, 4)


def test_the_user_may_list_a_derived_size():
    module = SimpleNamespace(num_heads=8, head_dim=4, inner_dim=32)
    spec = ModuleShardingSpec(params=SEPARATE.params, tp_divide_attrs=("inner_dim",))
    assert build_tp_local_attr_plan(module, spec, "m", 2, ("tp",)) == TpLocalAttrPlan(("num_heads",), ("inner_dim",))


def test_a_derived_size_that_is_no_quotient_is_not_the_user_s():
    module = SimpleNamespace(num_heads=16, num_kv_heads=2, head_dim=8, kv_dim=16)
    spec = ModuleShardingSpec(params=SEPARATE.params, tp_divide_attrs=("kv_dim",))
    with pytest.raises(ValueError, match="tp_divide_attrs names 'kv_dim', but its local value is 8, not its "
                                         "quotient by tp size 8"):
        build_tp_local_attr_plan(module, spec, "m", 8, ("tp",), kv_replication=True)


@pytest.mark.parametrize("name, value", [("kv_hidden_size", 16), ("foo", 9)])
def test_a_planned_size_that_nothing_explains_is_refused_when_a_plain_quotient_is_wrong(name, value):
    module = SimpleNamespace(num_heads=16, num_kv_heads=2, **{name: value})
    spec = ModuleShardingSpec(params=SEPARATE.params)
    spec._tp_local_attr_plan = TpLocalAttrPlan(("num_heads", name), targets=(("num_kv_heads", 1),))
    with pytest.raises(ValueError, match=f"m: {name}={value} has no plain quotient by tp size 8"):
        maybe_update_head_counts(module, spec, "m", SimpleNamespace(mesh_shape=(8,)), ("tp",))


def test_two_proofs_that_disagree_are_refused_with_the_module_s_name():
    facts = HeadFacts(q=[(8, 2)], kv=[(2, 1)], widths={2, 8})
    with pytest.raises(ValueError, match="value_dim=16 .* local values 4, 8"):
        local_size("value_dim", 16, facts)
    module = SimpleNamespace(num_v_heads=8, num_k_heads=2, head_k_dim=8, head_v_dim=2, value_dim=16)
    with pytest.raises(ValueError, match="m: value_dim=16"):
        build_tp_local_attr_plan(module, SEPARATE, "m", 4, ("tp",), kv_replication=True)


def test_the_arithmetic_by_itself():
    facts = HeadFacts(q=[(8, 4)], kv=[], widths={4})
    assert local_size("kv_hidden_size", 32, facts) == 16  # K absent means K = H
    assert local_size("hidden_size", 32, facts) is None
    assert local_ratio(1, facts) is None
    assert local_ratio(4, HeadFacts(q=[(8, 2)], kv=[(2, 1)])) == 2
