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
"""The plain rewrite of one module's cached counts, and how the tp size is read off a mesh."""
import logging
from types import SimpleNamespace

import pytest

from hyper_parallel.distributed.tensor_parallel.head_count import (
    KV_HEAD_ATTRS, Q_HEAD_ATTRS, TpLocalAttrPlan, _is_plain_int, _tp_degree, update_module_head_counts)


def attention(**attrs):
    return SimpleNamespace(**{"num_heads": 8, "num_key_value_heads": 4, "head_dim": 16, **attrs})


def test_both_lists_are_divided_and_the_whole_values_are_kept():
    module = attention()
    assert update_module_head_counts(module, 2) == 2
    assert vars(module) == {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                            "_hp_full_head_counts": {"num_heads": 8, "num_key_value_heads": 4}}


@pytest.mark.parametrize("attr", ["num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head", "heads",
                                  "num_head", "head_num", "num_index_heads"])
def test_every_name_of_query_heads_is_known(attr):
    module = SimpleNamespace(**{attr: 12})
    assert attr in Q_HEAD_ATTRS and update_module_head_counts(module, 4) == 1 and getattr(module, attr) == 3


@pytest.mark.parametrize("attr", ["num_key_value_heads", "num_kv_heads", "kv_heads", "kv_num_heads", "n_kv_heads",
                                  "num_query_groups"])
def test_every_name_of_key_value_heads_is_known(attr):
    module = SimpleNamespace(**{attr: 12})
    assert attr in KV_HEAD_ATTRS and update_module_head_counts(module, 4) == 1 and getattr(module, attr) == 3


def test_a_repeat_changes_nothing_and_returns_0():
    module = attention()
    update_module_head_counts(module, 2)
    assert update_module_head_counts(module, 2) == 0
    assert (module.num_heads, module.num_key_value_heads) == (4, 2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("tp_size", [1, 0, -1])
def test_a02_tp_1_checks_nothing_and_stores_nothing(tp_size, strict):
    module = attention(num_heads=7)
    before = dict(vars(module))
    assert update_module_head_counts(module, tp_size, strict=strict) == 0
    assert vars(module) == before


def test_a_count_that_tp_does_not_divide_is_left_with_one_warning(caplog):
    module = attention(num_heads=6)
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="layers.0.attn: num_heads=6 .* tp size 4"):
        assert update_module_head_counts(module, 4, "layers.0.attn") == 1
    assert (module.num_heads, module.num_key_value_heads) == (6, 1)
    assert "layers.0.attn: num_heads=6" in caplog.text
    caplog.clear()
    assert update_module_head_counts(module, 4, "layers.0.attn") == 0
    assert caplog.text == ""


def test_only_plain_positive_ints_are_counts():
    module = SimpleNamespace(num_heads=True, n_heads=8.0, heads=[8], n_head="8", num_kv_heads=None, num_head=0)
    before = dict(vars(module))
    assert update_module_head_counts(module, 2) == 0
    assert vars(module) == before
    assert _is_plain_int(3) and not _is_plain_int(True) and not _is_plain_int(3.0)


def test_a_property_is_computed_not_cached():
    class FromConfig:
        """Reads its count from elsewhere."""
        config = SimpleNamespace(num_heads=8)

        @property
        def num_heads(self):
            return self.config.num_heads

    module = FromConfig()
    assert update_module_head_counts(module, 2) == 0
    assert module.num_heads == 8 and FromConfig.config.num_heads == 8


def test_the_config_object_is_never_rewritten():
    config = SimpleNamespace(num_attention_heads=8)
    module = SimpleNamespace(config=config, num_heads=8)
    update_module_head_counts(module, 2, strict=True)
    assert (module.num_heads, config.num_attention_heads) == (4, 8)


def test_a10_strict_names_the_value_the_size_the_valid_sizes_and_a_way_out():
    with pytest.raises(ValueError) as error:
        update_module_head_counts(SimpleNamespace(num_heads=52), 8, "layers.0.attn", strict=True)
    assert str(error.value) == (
        "layers.0.attn: num_heads=52 cannot be divided by tp size 8; valid tp sizes are 1, 2, 4, 13, 26, 52. Change "
        "parallel_config.model_parallel, or keep the projections of this module whole with an entry in "
        "auto_tp_config.overrides (replicate: true)")


@pytest.mark.parametrize("heads, kv_heads, tp_size, valid", [(8, 2, 4, "1, 2"), (6, 6, 4, "1, 2, 3, 6"),
                                                             (8, 4, 8, "1, 2, 4")])
def test_a02_strict_refuses_and_changes_nothing(heads, kv_heads, tp_size, valid):
    module = attention(num_heads=heads, num_key_value_heads=kv_heads)
    before = dict(vars(module))
    with pytest.raises(ValueError, match=f"valid tp sizes are {valid}\\."):
        update_module_head_counts(module, tp_size, "attn", strict=True)
    assert vars(module) == before


def test_a02_strict_divides_what_can_be_divided_and_k_may_be_absent():
    grouped, absent = attention(num_heads=16, num_key_value_heads=8), SimpleNamespace(num_heads=8)
    assert update_module_head_counts(grouped, 4, strict=True) == 2
    assert update_module_head_counts(absent, 4, strict=True) == 1
    assert (grouped.num_heads, grouped.num_key_value_heads, absent.num_heads) == (4, 2, 2)


def test_the_plan_is_frozen_and_empty_by_default():
    assert TpLocalAttrPlan() == TpLocalAttrPlan(auto_divide=(), user_divide=(), targets=())
    with pytest.raises(AttributeError):
        TpLocalAttrPlan().targets = ()


class BySize:
    """A mesh that only has `size(int)`."""

    def size(self, axis):
        return (2, 4)[axis]


class ByName:
    """A mesh that only has `size(name)`."""

    def size(self, name):
        return {"dp": 2, "tp": 4}[name]


@pytest.mark.parametrize("mesh", [
    SimpleNamespace(mesh_shape=(2, 4)), SimpleNamespace(shape=(2, 4)), BySize(), ByName(),
    {"tp": SimpleNamespace(size=lambda: 4)}], ids=["mesh_shape", "shape", "size(int)", "size(name)", "getitem"])
def test_tp_degree_reads_any_kind_of_mesh(mesh):
    assert _tp_degree(mesh, ("dp", "tp")) == 4


def test_tp_degree_is_1_without_a_tp_axis_and_refuses_a_mesh_that_tells_nothing():
    assert _tp_degree(None, ("dp",)) == _tp_degree(None, None) == 1
    with pytest.raises(ValueError, match="object does not tell the size of its tp axis"):
        _tp_degree(object(), ("tp",))
