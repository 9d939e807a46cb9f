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
"""Which specs cut heads: projection names of many classes, the output dim, and operators that store `[in, out]`."""
from types import SimpleNamespace

import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Partial, Replicate, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    _QKV_WEIGHT_SUFFIXES, _is_head_sharded, collect_auto_head_attrs, maybe_update_head_counts)

CUT = {"tp": Shard(0)}


def spec_of(**params):
    return ModuleShardingSpec(params={name.replace("__", "."): named for name, named in params.items()})


@pytest.mark.parametrize("name", [
    "q_proj", "q_b_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "kv_b_proj", "query_key_value", "linear_qkv",
    "linear_qb", "linear_kvb", "linear_q_up_proj", "Wqkv", "W_pack", "wq", "wk", "wv", "w_qkv", "query", "key", "value",
    "c_attn", "self_attn.q_proj", "SelfAttention.q", "q_proj.base_layer"])
def test_every_projection_name_is_known(name):
    spec = ModuleShardingSpec(params={f"{name}.weight": CUT})
    assert _is_head_sharded(spec, ("dp", "tp"))
    assert not _is_head_sharded(spec, ("dp",))
    assert not _is_head_sharded(spec, None)


def test_a_fused_weight_without_a_linear_of_its_own_is_known():
    assert _is_head_sharded(ModuleShardingSpec(params={"in_proj_weight": CUT}), ("tp",))
    assert "q_proj.weight" in _QKV_WEIGHT_SUFFIXES and "in_proj_weight" in _QKV_WEIGHT_SUFFIXES


@pytest.mark.parametrize("name", ["o_proj.weight", "gate_proj.weight", "q_a_proj.weight", "kv_a_proj_with_mqa.weight",
                                  "linear_proj.weight", "q_norm.weight", "q_proj.bias", "my_q_projx.weight"])
def test_other_weights_cut_no_heads(name):
    assert not _is_head_sharded(ModuleShardingSpec(params={name: CUT}), ("tp",))


@pytest.mark.parametrize("placement, sharded", [
    (Shard(0), True), (Shard(-2), True), (Shard(1), False), (Shard(-1), False), (Replicate(), False),
    (Partial(), False)])
def test_the_output_dim_counts_and_negative_dims_are_their_positive_equals(placement, sharded):
    assert _is_head_sharded(spec_of(q_proj__weight={"tp": placement}), ("tp",)) is sharded


def test_another_axis_or_no_params_cut_no_heads():
    assert not _is_head_sharded(spec_of(q_proj__weight={"dp": Shard(0)}), ("dp", "tp"))
    assert not _is_head_sharded(spec_of(q_proj__weight={}), ("tp",))
    assert not _is_head_sharded(ModuleShardingSpec(), ("tp",))
    assert not _is_head_sharded(ModuleShardingSpec(params={}), ("tp",))


class Conv1D:
    """Weight `[in, out]`, as GPT-2 has it."""


class Linear:
    """Weight `[out, in]`."""


@pytest.mark.parametrize("owner, dim, sharded", [
    (Conv1D(), 1, True), (Conv1D(), -1, True), (Conv1D(), 0, False), (Linear(), 0, True), (Linear(), 1, False),
    (SimpleNamespace(transpose_b=False), 1, True), (SimpleNamespace(transpose_b=False), 0, False),
    (SimpleNamespace(transpose_b=True), 0, True)])
def test_the_operator_says_which_dim_is_the_output(owner, dim, sharded):
    spec = spec_of(c_attn__weight={"tp": Shard(dim)})
    assert _is_head_sharded(spec, ("tp",), SimpleNamespace(c_attn=owner)) is sharded


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_without_a_module_c_attn_may_be_stored_either_way(dim):
    assert _is_head_sharded(spec_of(c_attn__weight={"tp": Shard(dim)}), ("tp",))


def test_a06_a_replicated_qkv_keeps_every_count():
    module = SimpleNamespace(num_heads=8, num_key_value_heads=4)
    spec = spec_of(qkv_proj__weight={"tp": Replicate()}, o_proj__weight={"tp": Shard(1)})
    assert collect_auto_head_attrs(module, spec, ("tp",)) == ()
    maybe_update_head_counts(module, spec, "layers.0.self_attn", SimpleNamespace(mesh_shape=(2,)), ("tp",))
    assert vars(module) == {"num_heads": 8, "num_key_value_heads": 4}


def test_collect_lists_what_is_cached_and_nothing_is_fine():
    spec = spec_of(q_proj__weight=CUT)
    module = SimpleNamespace(num_key_value_heads=4, num_heads=8, head_dim=4, hidden_size=32)
    assert collect_auto_head_attrs(module, spec, ("tp",)) == ("num_heads", "num_key_value_heads")
    assert collect_auto_head_attrs(SimpleNamespace(head_dim=4), spec, ("tp",)) == ()
