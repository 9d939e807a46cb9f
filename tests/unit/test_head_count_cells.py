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
"""Real Cells: submodules that share the heads, primitives, frameworks' walks, and forwards in both modes."""
from types import SimpleNamespace

import numpy as np
import pytest

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, Shard
from hyper_parallel.distributed.tensor_parallel.head_count import (
    TpLocalAttrPlan, build_tp_local_attr_plan, collect_auto_head_attrs, maybe_update_head_counts, restore_head_counts,
    update_module_head_counts)

ms = pytest.importorskip("mindspore")
nn = ms.nn
flash_attention_score = pytest.importorskip("mindspore.ops.operations.nn_ops").FlashAttentionScore

MESH = SimpleNamespace(mesh_shape=(1, 4))
AXES = ("dp", "tp")
SPEC = ModuleShardingSpec(params={"linear_qkv.weight": {"tp": Shard(0)}, "linear_proj.weight": {"tp": Shard(1)}})


class CoreAttention(nn.Cell):
    """Caches the count and builds the operator, as MindFormers' FlashAttention; a parameter, but no matrix."""

    def __init__(self, heads):
        super().__init__()
        self.head_num = heads
        self.flash_attention = flash_attention_score(head_num=heads, scale_value=0.5, input_layout="BSH", keep_prob=0.9)
        self.max_logits_val = ms.Parameter(ms.Tensor(np.zeros(heads, np.float32)), requires_grad=False)


class Indexer(nn.Cell):
    """Heads of its own, on a matrix of its own."""

    def __init__(self):
        super().__init__()
        self.index_n_heads = 6
        self.linear_wq_b = nn.Dense(32, 24)


class SelfAttention(nn.Cell):
    """The attributes that MindFormers' SelfAttention caches."""

    def __init__(self, with_indexer=False):
        super().__init__()
        self.num_heads, self.kv_num_heads, self.n_rep, self.head_dim = 8, 4, 2, 4
        self.hidden_size, self.q_hidden_size, self.kv_hidden_size = 32, 32, 16
        self.linear_qkv = nn.Dense(32, 64)
        self.core_attention = CoreAttention(8)
        self.linear_proj = nn.Dense(32, 32)
        if with_indexer:
            self.indexer = Indexer()

    def construct(self, x):
        return x.reshape((x.shape[0], -1, self.num_heads, self.head_dim))


def counts(cell):
    return (cell.num_heads, cell.kv_num_heads, cell.n_rep, cell.head_dim, cell.hidden_size, cell.q_hidden_size,
            cell.kv_hidden_size, cell.core_attention.head_num, cell.core_attention.flash_attention.head_num)


def test_h04_a_mindformers_attention_becomes_local_as_a_whole_and_comes_back():
    cell = SelfAttention()
    before = [dict(vars(cell)), dict(vars(cell.core_attention))]
    operator = cell.core_attention.flash_attention
    for _ in range(2):
        maybe_update_head_counts(cell, SPEC, "layers.0.self_attention", MESH, AXES)
    assert counts(cell) == (2, 1, 2, 4, 32, 8, 4, 2, 2)
    restore_head_counts(cell)
    assert counts(cell) == (8, 4, 2, 4, 32, 32, 16, 8, 8)
    assert [vars(cell), vars(cell.core_attention)] == before
    assert cell.core_attention.flash_attention is operator


def test_the_plan_names_what_submodules_hold():
    assert build_tp_local_attr_plan(SelfAttention(), SPEC, "m", 4, AXES) == TpLocalAttrPlan(auto_divide=(
        "num_heads", "kv_num_heads", "q_hidden_size", "kv_hidden_size", "core_attention.head_num"))


def test_a_submodule_with_whole_matrices_of_its_own_keeps_its_heads():
    cell = SelfAttention(with_indexer=True)
    maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
    assert (cell.core_attention.head_num, cell.indexer.index_n_heads) == (2, 6)


def test_strict_walks_the_submodules_too_and_plain_does_not():
    strict, plain = SelfAttention(), SelfAttention()
    assert update_module_head_counts(strict, 4, strict=True) == 6  # five ints and the operator
    assert update_module_head_counts(plain, 4) == 2
    assert counts(strict) == (2, 1, 2, 4, 32, 8, 4, 2, 2)
    assert counts(plain) == (2, 1, 2, 4, 32, 32, 16, 8, 8)


def test_a_failure_in_a_submodule_leaves_the_module():
    cell = SelfAttention()
    cell.core_attention.head_num = 6
    with pytest.raises(ValueError, match="m: core_attention.head_num=6 cannot be divided by tp size 4"):
        maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
    assert counts(cell)[:2] == (8, 4)


def test_a_primitive_keeps_its_other_arguments_and_later_attributes():
    cell = SelfAttention()
    whole = cell.core_attention.flash_attention
    whole.add_prim_attr("stage", 3)
    maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
    rebuilt = cell.core_attention.flash_attention
    assert rebuilt.attrs == {**whole.attrs, "head_num": 2} and whole.head_num == 8
    assert (rebuilt.scale_value, rebuilt.keep_prob, rebuilt.attrs["stage"]) == (0.5, 0.9, 3)
    assert rebuilt.input_layout == whole.input_layout


def test_a_submodule_shared_by_two_attentions_is_rewritten_once():
    first, second = SelfAttention(), SelfAttention()
    second.core_attention = first.core_attention
    for cell in (first, second):
        maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
    assert (first.num_heads, second.num_heads, first.core_attention.head_num) == (2, 2, 2)


def test_restore_on_the_model_restores_every_layer():
    model = nn.CellList([SelfAttention(), SelfAttention()])
    for cell in model:
        maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
    restore_head_counts(model)
    assert [counts(cell) for cell in model] == [(8, 4, 2, 4, 32, 32, 16, 8, 8)] * 2


class Outer(nn.Cell):
    """BERT's form: the boundary holds the attention that holds the projections."""

    def __init__(self):
        super().__init__()
        inner = nn.Cell()
        inner.num_attention_heads, inner.attention_head_size, inner.all_head_size = 8, 4, 32
        for name in ("query", "key", "value"):
            setattr(inner, name, nn.Dense(32, 32))
        inner.drop = nn.Cell()
        inner.drop.num_heads = 8
        self.self = inner
        self.output = nn.Dense(32, 32)


def test_a_boundary_around_the_attention_rewrites_the_one_that_owns_the_projections():
    cell = Outer()
    spec = ModuleShardingSpec(params={f"self.{name}.weight": {"tp": Shard(0)} for name in ("query", "key", "value")})
    assert collect_auto_head_attrs(cell, spec, AXES) == (
        "self.num_attention_heads", "self.all_head_size", "self.drop.num_heads")
    maybe_update_head_counts(cell, spec, "m", MESH, AXES)
    inner = getattr(cell, "self")
    assert (inner.num_attention_heads, inner.all_head_size, inner.attention_head_size, inner.drop.num_heads) == (
        2, 8, 4, 2)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def test_a_forward_reshapes_by_the_local_count(mode):
    was = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        cell = SelfAttention()
        maybe_update_head_counts(cell, SPEC, "m", MESH, AXES)
        assert cell(ms.Tensor(np.zeros((1, 3, 8), np.float32))).shape == (1, 3, 2, 4)
    finally:
        ms.set_context(mode=was)


class TorchLike:
    """`named_modules` and `named_parameters`, and nothing of MindSpore."""

    def __init__(self):
        self.num_heads = 8
        self.core = SimpleNamespace(num_heads=8)
        self.gate = SimpleNamespace(num_heads=8, weight=np.zeros((4, 4)))

    def named_modules(self):
        return [("", self), ("core", self.core), ("gate", self.gate)]

    def named_parameters(self):
        return [("gate.weight", self.gate.weight)]


def test_a_torch_like_module_is_walked_alike():
    module = TorchLike()
    maybe_update_head_counts(module, ModuleShardingSpec(params={"q_proj.weight": {"tp": Shard(0)}}), "m", MESH, AXES)
    assert (module.num_heads, module.core.num_heads, module.gate.num_heads) == (2, 2, 8)
    restore_head_counts(module)
    assert (module.num_heads, vars(module.core)) == (8, {"num_heads": 8})
