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
"""`tp_divide_attrs`: what a user may list, what is refused, and what the plan makes of it."""
from types import SimpleNamespace

import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    _FORBIDDEN_USER_ATTRS, TpLocalAttrPlan, _update_user_tp_attrs, build_tp_local_attr_plan, maybe_update_head_counts,
    normalize_tp_divide_attrs)

MESH = SimpleNamespace(mesh_shape=(2,))
CUT = {"q_proj.weight": {"tp": Shard(0)}, "k_proj.weight": {"tp": Shard(0)}}


def module_of(**attrs):
    return SimpleNamespace(**{"num_heads": 8, "num_key_value_heads": 4, "width": 64, **attrs})


@pytest.mark.parametrize("attrs, message", [
    ("width", "tp_divide_attrs is 'width'; write a list"),
    ({"width"}, "write a list"),
    ([3], "has 3, which is no attribute name"),
    (["a.b"], "has 'a.b', which is no attribute name"),
    (["class"], "has 'class', which is no attribute name"),
    (["head_dim"], "has 'head_dim', which is protected"),
    (["_hp_full_head_counts"], "which is protected"),
    (["width", "width"], "names 'width' twice"),
    (["missing"], "names 'missing', but the module holds no plain int of that name"),
    (["flag"], r"names 'flag', but the module holds no plain int of that name \(True\)"),
    (["ratio"], r"names 'ratio', but the module holds no plain int of that name \(0.5\)"),
    (["zero"], "names 'zero', but zero=0 is not positive"),
    (["nine"], "tp size 2 does not divide nine=9; valid tp sizes are 1, 3, 9. Change parallel_config.model_parallel"),
])
def test_a_wrong_entry_is_refused_with_the_module_s_name(attrs, message):
    module = module_of(flag=True, ratio=0.5, zero=0, nine=9, head_dim=4)
    with pytest.raises(ValueError, match=f"layers.0.attn: .*{message}"):
        normalize_tp_divide_attrs(attrs, module=module, module_fqn="layers.0.attn", tp_size=2)


@pytest.mark.parametrize("attr", ["head_dim", "attention_head_size", "head_size", "num_key_value_groups", "training",
                                  "dtype", "device"])
def test_the_protected_names_are_complete(attr):
    assert attr in _FORBIDDEN_USER_ATTRS
    with pytest.raises(ValueError, match="protected"):
        normalize_tp_divide_attrs((attr,), module=SimpleNamespace(**{attr: 4}), module_fqn="m", tp_size=2)


def test_none_is_nothing_and_a_good_list_becomes_a_tuple():
    module = module_of(depth=6, hidden_size=64)
    assert normalize_tp_divide_attrs(None, module=module, module_fqn="m", tp_size=2) == ()
    assert normalize_tp_divide_attrs(["width", "hidden_size"], module=module, module_fqn="m",
                                     tp_size=2) == ("width", "hidden_size")


def test_the_plan_has_both_lists_and_refuses_a_count_that_is_automatic():
    spec = ModuleShardingSpec(params=CUT, tp_divide_attrs=("width",))
    assert build_tp_local_attr_plan(module_of(), spec, "m", 2, ("tp",)) == TpLocalAttrPlan(
        auto_divide=("num_heads", "num_key_value_heads"), user_divide=("width",))
    with pytest.raises(ValueError, match="layers.0: tp_divide_attrs names 'num_heads', a head count that is divided "
                                         "automatically"):
        build_tp_local_attr_plan(module_of(), ModuleShardingSpec(params=CUT, tp_divide_attrs=("num_heads",)),
                                 "layers.0", 2, ("tp",))


def test_a_count_may_be_listed_where_nothing_is_automatic():
    spec = ModuleShardingSpec(params={"in_proj.weight": {"tp": Shard(0)}}, tp_divide_attrs=("num_heads",))
    assert build_tp_local_attr_plan(module_of(), spec, "m", 2, ("tp",)) == TpLocalAttrPlan(user_divide=("num_heads",))


def test_without_a_plan_both_lists_are_applied():
    module, spec = module_of(), ModuleShardingSpec(params=CUT, tp_divide_attrs=("width",))
    for _ in range(2):
        maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
        assert vars(module) == {
            "num_heads": 4, "num_key_value_heads": 2, "width": 32, "_hp_full_tp_local_attrs": {"width": 64},
            "_hp_full_head_counts": {"num_heads": 8, "num_key_value_heads": 4}}


def test_with_a_plan_exactly_the_plan_is_applied():
    module = module_of()
    spec = ModuleShardingSpec(params=CUT, tp_divide_attrs=("num_key_value_heads",))
    spec._tp_local_attr_plan = TpLocalAttrPlan(auto_divide=("num_heads",), user_divide=("width",))
    maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
    assert (module.num_heads, module.num_key_value_heads, module.width) == (4, 4, 32)


def test_a_plan_that_divides_an_attribute_twice_or_one_that_is_not_there_is_refused():
    spec = ModuleShardingSpec(params=CUT)
    spec._tp_local_attr_plan = TpLocalAttrPlan(auto_divide=("num_heads",), user_divide=("num_heads",))
    with pytest.raises(ValueError, match="m: num_heads is in tp_divide_attrs and would be divided automatically"):
        maybe_update_head_counts(module_of(), spec, "m", MESH, ("tp",))
    spec._tp_local_attr_plan = TpLocalAttrPlan(auto_divide=("core.head_num",))
    with pytest.raises(ValueError, match="m: the plan divides core.head_num, but SimpleNamespace holds no plain int"):
        maybe_update_head_counts(module_of(), spec, "m", MESH, ("tp",))
    spec._tp_local_attr_plan = TpLocalAttrPlan(user_divide=("nine",))
    with pytest.raises(ValueError, match="m: tp size 2 does not divide nine=9 of tp_divide_attrs"):
        maybe_update_head_counts(module_of(nine=9), spec, "m", MESH, ("tp",))


def test_user_attributes_are_divided_once_and_their_whole_values_kept():
    module = module_of()
    assert _update_user_tp_attrs(module, ("width",), 2, "m") == 1
    assert _update_user_tp_attrs(module, ("width",), 2, "m") == 0
    assert _update_user_tp_attrs(module, ("width",), 1, "m") == 0
    assert module.width == 32 and module._hp_full_tp_local_attrs == {"width": 64}


def test_a_repeat_with_another_tp_size_gives_original_current_and_expected():
    module = module_of()
    _update_user_tp_attrs(module, ("width",), 2, "m")
    with pytest.raises(ValueError, match="m: width was rewritten already: original 64, current 32, expected 16 at tp "
                                         "size 4"):
        _update_user_tp_attrs(module, ("width",), 4, "m")
    assert module.width == 32


def test_without_heads_cut_a_user_attribute_is_still_divided():
    module, spec = module_of(), ModuleShardingSpec(params={}, tp_divide_attrs=["width"])
    maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
    assert (module.num_heads, module.width) == (8, 32)


@pytest.mark.parametrize("mesh, names", [(SimpleNamespace(mesh_shape=(1,)), ("tp",)), (None, ("dp",))])
def test_tp_1_or_no_tp_axis_does_nothing(mesh, names):
    module = module_of()
    maybe_update_head_counts(module, ModuleShardingSpec(params=CUT, tp_divide_attrs=("width",)), "m", mesh, names)
    assert vars(module) == vars(module_of())
