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
"""All or nothing, a repeat with another tp size, and the way back."""
import copy
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    TpLocalAttrPlan, maybe_update_head_counts, restore_head_counts, update_module_head_counts)

SPEC = ModuleShardingSpec(params={name: {"tp": Shard(0)} for name in ("q_proj.weight", "k_proj.weight")})


def mesh_of(tp_size):
    return SimpleNamespace(mesh_shape=(tp_size,))


def module_of(**attrs):
    return SimpleNamespace(**{"num_heads": 8, "num_key_value_heads": 2, "head_dim": 4, **attrs})


def test_a02_one_count_that_cannot_be_divided_leaves_every_count():
    module = module_of()
    before = dict(vars(module))
    with pytest.raises(ValueError, match="layers.3.attn: num_key_value_heads=2 cannot be divided by tp size 4; valid "
                                         "tp sizes are 1, 2"):
        maybe_update_head_counts(module, SPEC, "layers.3.attn", mesh_of(4), ("tp",))
    assert vars(module) == before


def test_a_user_attribute_that_cannot_be_divided_leaves_the_automatic_ones():
    module, spec = module_of(width=5), ModuleShardingSpec(params=SPEC.params, tp_divide_attrs=("width",))
    before = dict(vars(module))
    with pytest.raises(ValueError, match="width=5"):
        maybe_update_head_counts(module, spec, "m", mesh_of(2), ("tp",))
    assert vars(module) == before


def test_a_write_that_fails_half_way_is_rolled_back():
    class Guarded:
        """Refuses to change its second count."""
        num_key_value_heads = 2

        def __init__(self):
            self.num_heads = 8

        def __setattr__(self, name, value):
            if name == "num_key_value_heads":
                raise AttributeError("frozen")
            super().__setattr__(name, value)

    module = Guarded()
    with pytest.raises(AttributeError, match="frozen"):
        maybe_update_head_counts(module, SPEC, "m", mesh_of(2), ("tp",))
    assert vars(module) == {"num_heads": 8} and module.num_key_value_heads == 2


def test_an_object_that_cannot_keep_its_whole_values_is_left():
    class Slotted:
        """Has no room for a record."""
        __slots__ = ("num_heads",)

    module = Slotted()
    module.num_heads = 8
    with pytest.raises(AttributeError, match="_hp_full_head_counts"):
        update_module_head_counts(module, 2)
    assert module.num_heads == 8


@pytest.mark.parametrize("strict", [False, True])
def test_a_repeat_with_another_tp_size_raises_for_automatic_counts(strict):
    module = module_of(num_key_value_heads=8)
    update_module_head_counts(module, 2, "m", strict=strict)
    with pytest.raises(ValueError, match="m: num_heads was rewritten already: original 8, current 4, expected 2 at tp "
                                         "size 4; call restore_head_counts first"):
        update_module_head_counts(module, 4, "m", strict=strict)
    with pytest.raises(ValueError, match="original 8, current 4, expected 1 at tp size 8"):
        maybe_update_head_counts(module, SPEC, "m", mesh_of(8), ("tp",))
    assert (module.num_heads, module.num_key_value_heads) == (4, 4)


def test_a_repeat_with_the_same_tp_size_is_recognised_by_every_entrance():
    module = module_of()
    update_module_head_counts(module, 2)
    maybe_update_head_counts(module, SPEC, "m", mesh_of(2), ("tp",))
    assert update_module_head_counts(module, 2, strict=True) == 0
    assert (module.num_heads, module.num_key_value_heads) == (4, 1)


def test_restore_undoes_everything_and_allows_another_tp_size():
    module, spec = module_of(width=64), ModuleShardingSpec(params=SPEC.params, tp_divide_attrs=("width",))
    before = dict(vars(module))
    maybe_update_head_counts(module, spec, "m", mesh_of(2), ("tp",))
    assert (module.num_heads, module.num_key_value_heads, module.width) == (4, 1, 32)
    restore_head_counts(module)
    assert vars(module) == before and list(vars(module)) == list(before)
    restore_head_counts(module)
    assert vars(module) == before


def test_restore_uncovers_a_count_that_the_class_holds():
    class Attention:
        """Keeps its count on the class."""
        num_heads = 8

    module = Attention()
    maybe_update_head_counts(module, SPEC, "m", mesh_of(4), ("tp",))
    assert (module.num_heads, Attention.num_heads) == (2, 8)
    restore_head_counts(module)
    assert vars(module) == {} and module.num_heads == 8


def test_a_copy_is_restored_on_its_own():
    module = module_of()
    update_module_head_counts(module, 2)
    twin = copy.deepcopy(module)
    restore_head_counts(twin)
    assert (twin.num_heads, module.num_heads) == (8, 4)
    assert update_module_head_counts(module, 2) == 0


@settings(max_examples=60, deadline=None)
@given(heads=st.integers(1, 12), group=st.integers(1, 6), width=st.integers(1, 9), tp_size=st.integers(1, 8))
def test_a_rewrite_keeps_the_group_ratio_and_restore_is_its_inverse(heads, group, width, tp_size):
    whole = {"num_heads": heads * group, "num_key_value_heads": heads, "n_rep": group, "head_dim": width,
             "q_hidden_size": heads * group * width, "kv_hidden_size": heads * width,
             "hidden_size": heads * group * width}
    module = SimpleNamespace(**whole)
    if tp_size > 1 and heads % tp_size:
        with pytest.raises(ValueError, match="valid tp sizes"):
            maybe_update_head_counts(module, SPEC, "m", mesh_of(tp_size), ("tp",))
    else:
        maybe_update_head_counts(module, SPEC, "m", mesh_of(tp_size), ("tp",))
        assert module.num_heads * tp_size == heads * group and module.num_key_value_heads * tp_size == heads
        assert module.q_hidden_size == module.num_heads * width
        assert module.kv_hidden_size == module.num_key_value_heads * width
        assert (module.n_rep, module.head_dim, module.hidden_size) == (group, width, heads * group * width)
    restore_head_counts(module)
    assert vars(module) == whole


def test_targets_given_by_hand_win_over_the_quotient():
    module, spec = module_of(num_kv_heads=2), ModuleShardingSpec(params=SPEC.params)
    spec._tp_local_attr_plan = TpLocalAttrPlan(auto_divide=("num_heads", "num_key_value_heads", "num_kv_heads"),
                                               targets=(("num_key_value_heads", 1),))
    maybe_update_head_counts(module, spec, "m", mesh_of(8), ("tp",))
    assert (module.num_heads, module.num_key_value_heads, module.num_kv_heads) == (1, 1, 1)
