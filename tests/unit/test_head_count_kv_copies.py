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
"""Key/value heads fewer than tp ranks: exact local counts, recomputed ratios, and cuts that no count describes."""
from types import SimpleNamespace

import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Replicate, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    TpLocalAttrPlan, build_tp_local_attr_plan, maybe_update_head_counts, restore_head_counts)

CUT, WHOLE = {"tp": Shard(0)}, {"tp": Replicate()}


def spec_of(q=CUT, k=CUT, v=CUT, **others):
    return ModuleShardingSpec(params={"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v}, **others)


def applied(module, spec, tp_size, **options):
    spec._tp_local_attr_plan = build_tp_local_attr_plan(module, spec, "m", tp_size, ("tp",), **options)
    for _ in range(2):
        maybe_update_head_counts(module, spec, "m", SimpleNamespace(mesh_shape=(tp_size,)), ("tp",))
    return spec._tp_local_attr_plan


@pytest.mark.parametrize("heads, kv_heads, tp_size, local_heads, ratio", [
    (8, 4, 8, 1, 1), (32, 8, 16, 2, 2), (32, 8, 32, 1, 1), (16, 2, 8, 2, 2), (8, 1, 4, 2, 2), (16, 8, 4, 4, 2)],
    ids=["A01", "A03-tp16", "A03-tp32", "A12", "MQA", "no-copies"])
def test_a01_a03_a12_local_counts_and_ratio(heads, kv_heads, tp_size, local_heads, ratio):
    module = SimpleNamespace(num_heads=heads, num_key_value_heads=kv_heads, num_key_value_groups=heads // kv_heads)
    before = dict(vars(module))
    applied(module, spec_of(), tp_size, kv_replication=True)
    assert (module.num_heads, module.num_key_value_heads, module.num_key_value_groups) == (
        local_heads, max(1, kv_heads // tp_size), ratio)
    restore_head_counts(module)
    assert vars(module) == before


def test_a01_without_copies_the_error_names_4_8_and_the_valid_sizes():
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4)
    with pytest.raises(ValueError) as error:
        build_tp_local_attr_plan(module, spec_of(), "layers.0.self_attn", 8, ("tp",))
    assert str(error.value) == (
        "layers.0.self_attn: num_key_value_heads=4 cannot be divided by tp size 8; valid tp sizes are 1, 2, 4. Change "
        "parallel_config.model_parallel, or keep the projections of this module whole with an entry in "
        "auto_tp_config.overrides (replicate: true), or set auto_tp_config.kv_replication: true, which gives every "
        "key/value head to 2 ranks")


@pytest.mark.parametrize("heads, kv_heads, tp_size", [(6, 6, 4), (12, 3, 4), (6, 2, 4)])
def test_a02_what_no_copies_can_save_is_refused_without_offering_them(heads, kv_heads, tp_size):
    module = SimpleNamespace(num_heads=heads, num_key_value_heads=kv_heads)
    with pytest.raises(ValueError, match=f"cannot be divided by tp size {tp_size}") as error:
        build_tp_local_attr_plan(module, spec_of(), "m", tp_size, ("tp",), kv_replication=True)
    assert "kv_replication" not in str(error.value)


def test_the_plan_says_exactly_what_is_divided_and_what_is_set():
    module = SimpleNamespace(num_heads=16, num_key_value_heads=2, num_kv_heads=2, head_dim=4, q_hidden_size=64,
                             kv_hidden_size=8, qkv_hidden_size=80, n_rep=8)
    assert applied(module, spec_of(), 8, kv_replication=True) == TpLocalAttrPlan(
        auto_divide=("num_heads", "q_hidden_size"),
        targets=(("num_key_value_heads", 1), ("num_kv_heads", 1), ("kv_hidden_size", 4), ("qkv_hidden_size", 16)))
    assert (module.num_heads, module.num_key_value_heads, module.num_kv_heads, module.n_rep) == (2, 1, 1, 2)
    assert (module.q_hidden_size, module.kv_hidden_size, module.qkv_hidden_size) == (8, 4, 16)


def test_a_target_of_the_caller_holds_for_every_count_that_was_the_same():
    module = SimpleNamespace(num_heads=16, num_key_value_heads=2, num_kv_heads=2, n_rep=8)
    plan = applied(module, spec_of(), 8, targets=(("num_key_value_heads", 1),))
    assert plan.auto_divide == ("num_heads",)
    assert plan.targets == (("num_key_value_heads", 1), ("num_kv_heads", 1))
    assert (module.num_heads, module.num_key_value_heads, module.num_kv_heads, module.n_rep) == (2, 1, 1, 2)


def test_a_ratio_that_was_not_h_over_k_is_left():
    module = SimpleNamespace(num_heads=16, num_key_value_heads=2, n_rep=3)
    applied(module, spec_of(), 8, kv_replication=True)
    assert module.n_rep == 3


def test_a_ratio_that_the_user_lists_is_the_user_s():
    module = SimpleNamespace(num_heads=16, num_key_value_heads=2, n_rep=8)
    applied(module, spec_of(tp_divide_attrs=("n_rep",)), 8, kv_replication=True)
    assert (module.n_rep, module._hp_full_tp_local_attrs) == (1, {"n_rep": 8})


def test_targets_that_break_the_ratio_are_refused():
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4, n_rep=2)
    with pytest.raises(ValueError, match="m: the group ratio 2 = 8 / 4 heads has no whole value on one rank, which "
                                         "would hold 1 query heads and 2 key/value heads"):
        build_tp_local_attr_plan(module, spec_of(), "m", 8, ("tp",), targets=(("num_key_value_heads", 2),))


def test_a_single_key_value_head_that_stays_whole_is_the_local_one():
    module = SimpleNamespace(num_heads=8, num_kv_heads=1, n_rep=8)
    plan = applied(module, spec_of(k=WHOLE, v=WHOLE), 4)
    assert plan == TpLocalAttrPlan(auto_divide=("num_heads",), targets=(("num_kv_heads", 1),))
    assert (module.num_heads, module.num_kv_heads, module.n_rep) == (2, 1, 2)


@pytest.mark.parametrize("spec, named", [(spec_of(k=WHOLE, v=WHOLE), "k_proj.weight, v_proj.weight"),
                                         (spec_of(v=WHOLE), "v_proj.weight"), (spec_of(q=WHOLE), "q_proj.weight")])
def test_projections_that_are_cut_differently_are_refused(spec, named):
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4)
    with pytest.raises(ValueError, match=f"m: {named} stays whole on the tp axis .* num_key_value_heads=4"):
        build_tp_local_attr_plan(module, spec, "m", 2, ("tp",))


def test_copies_written_as_whole_projections_are_right_with_their_targets():
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4)
    applied(module, spec_of(k=WHOLE, v=WHOLE), 8, targets=(("num_key_value_heads", 1),))
    assert (module.num_heads, module.num_key_value_heads) == (1, 1)
