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
"""H04: operators that were built with a head count get the local one, and the old operator comes back."""
import functools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    TpLocalAttrPlan, build_tp_local_attr_plan, maybe_update_head_counts, restore_head_counts, update_module_head_counts)

MESH = SimpleNamespace(mesh_shape=(2,))


def spec_of(**others):
    return ModuleShardingSpec(params={"q_proj.weight": {"tp": Shard(0)}}, **others)


class Op:
    """Computes a shape from its head count when it is built."""

    def __init__(self, head_num, scale=1.0, kv_head_num=0):
        self.head_num, self.scale, self.kv_head_num = head_num, scale, kv_head_num
        self.shape = (-1, head_num)


class HidesScale:
    """Does not keep every argument."""

    def __init__(self, num_heads, scale=1.0):
        self._num_heads, self.factor = num_heads, 2 * scale


class HidesCount:
    """Keeps nothing of its count."""

    def __init__(self, num_heads):
        self.shape = (-1, num_heads)


def test_h04_an_operator_is_rebuilt_with_the_local_count_and_restored_as_the_same_object():
    module = SimpleNamespace(num_heads=8, fa=Op(head_num=8, scale=0.25))
    whole, before = module.fa, dict(vars(module))
    for _ in range(2):
        maybe_update_head_counts(module, spec_of(), "m", MESH, ("tp",))
    assert (module.fa.head_num, module.fa.shape, module.fa.scale) == (4, (-1, 4), 0.25)
    assert (whole.head_num, whole.shape) == (8, (-1, 8))
    restore_head_counts(module)
    assert module.fa is whole and vars(module) == before


def test_h04_an_operator_is_rebuilt_where_the_module_caches_no_count():
    module = SimpleNamespace(fa=Op(8))
    assert update_module_head_counts(module, 2, strict=True) == 1
    assert module.fa.head_num == 4


def test_h04_key_value_counts_of_an_operator_follow_the_copies():
    module = SimpleNamespace(num_heads=16, num_kv_heads=2, fa=Op(16, kv_head_num=2), mha=Op(16, kv_head_num=0))
    spec = spec_of()
    spec._tp_local_attr_plan = build_tp_local_attr_plan(module, spec, "m", 8, ("tp",), kv_replication=True)
    maybe_update_head_counts(module, spec, "m", SimpleNamespace(mesh_shape=(8,)), ("tp",))
    assert (module.fa.head_num, module.fa.kv_head_num, module.mha.head_num, module.mha.kv_head_num) == (2, 1, 2, 0)


def test_h04_a_partial_is_rebuilt():
    module = SimpleNamespace(num_heads=8, fa=functools.partial(dict, head_num=8, scale=2))
    maybe_update_head_counts(module, spec_of(), "m", MESH, ("tp",))
    assert module.fa() == {"head_num": 4, "scale": 2}


def test_h04_an_operator_that_forgot_an_argument_is_copied_and_its_count_set():
    module = SimpleNamespace(num_heads=8, fa=HidesScale(8, scale=3.0))
    whole = module.fa
    maybe_update_head_counts(module, spec_of(), "m", MESH, ("tp",))
    assert (module.fa._num_heads, module.fa.factor, whole._num_heads) == (4, 6.0, 8)


def test_h04_an_operator_that_forgot_its_count_is_refused_before_anything_changes():
    module = SimpleNamespace(num_heads=8, fa=HidesCount(8))
    with pytest.raises(ValueError, match="layers.0.attn: operator fa of class HidesCount is built with num_heads and "
                                         "does not keep it"):
        build_tp_local_attr_plan(module, spec_of(), "layers.0.attn", 2, ("tp",))
    assert module.num_heads == 8


def test_h04_a_count_that_tp_does_not_divide_is_refused():
    module = SimpleNamespace(fa=Op(6))
    with pytest.raises(ValueError, match="m: operator fa was built with head_num=6, which tp size 4 does not divide; "
                                         "valid tp sizes are 1, 2, 3, 6"):
        update_module_head_counts(module, 4, "m", strict=True)


def test_h04_a_repeat_with_another_tp_size_raises():
    module = SimpleNamespace(fa=Op(8))
    update_module_head_counts(module, 2, "m", strict=True)
    with pytest.raises(ValueError, match="m: fa was rewritten already: original {'head_num': 8}, current "
                                         "{'head_num': 4}, expected {'head_num': 2} at tp size 4"):
        update_module_head_counts(module, 4, "m", strict=True)


@dataclass
class Options:
    """Plain data."""
    num_heads: int


class ModelConfig:
    """A config object under any attribute name."""

    def __init__(self, num_attention_heads):
        self.num_attention_heads = num_attention_heads


def test_configs_functions_and_other_objects_are_no_operators():
    others = {"options": Options(8), "cfg": ModelConfig(8), "text_config": Op(8), "act": max, "name": "x",
              "eye": object()}
    module = SimpleNamespace(num_heads=8, **others)
    maybe_update_head_counts(module, spec_of(), "m", MESH, ("tp",))
    assert all(getattr(module, name) is value for name, value in others.items())
    assert (module.options.num_heads, module.cfg.num_attention_heads, module.text_config.head_num) == (8, 8, 8)


def test_operators_stay_when_only_user_attributes_are_divided():
    module = SimpleNamespace(num_heads=8, width=4, fa=Op(8))
    spec = ModuleShardingSpec(params={"up_proj.weight": {"tp": Shard(0)}}, tp_divide_attrs=("width",))
    maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
    assert (module.width, module.num_heads, module.fa.head_num) == (2, 8, 8)


def test_a_plan_by_hand_that_keeps_a_count_keeps_the_operator_s_too():
    module, spec = SimpleNamespace(num_heads=8, num_kv_heads=4, fa=Op(8, kv_head_num=4)), spec_of()
    spec._tp_local_attr_plan = TpLocalAttrPlan(auto_divide=("num_kv_heads",))
    maybe_update_head_counts(module, spec, "m", MESH, ("tp",))
    assert (module.fa.head_num, module.fa.kv_head_num) == (8, 2)
