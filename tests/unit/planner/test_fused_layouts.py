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
"""Fused weights: layouts by config, family or override, exact by numpy, refused where nothing decides."""
import numpy as np
import pytest

import inventories
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.tensor_parallel import fused_layout, parts
from inventories import LLAMA, record, without

H, K, D, HIDDEN = 8, 4, 4, 32
QKV = "model.layers.0.self_attn.qkv_proj.weight"


def softmax(x):
    """Over the last dim."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(x, q, k, v):
    """Grouped attention of x `[s, h]` over heads `[heads, D, h]`, `[kv, D, h]`: `[s, heads·D]`."""
    repeat = q.shape[0] // k.shape[0]
    query, key, value = (np.einsum("sh,ndh->nsd", x, w) for w in (q, np.repeat(k, repeat, 0), np.repeat(v, repeat, 0)))
    scores = softmax(np.einsum("nsd,ntd->nst", query, key) / D ** 0.5)
    return np.einsum("nst,ntd->snd", scores, value).reshape(x.shape[0], -1)


def split(weight, layout, heads, kv_heads):
    """(q, k, v) by heads, as a module that holds `heads` and `kv_heads` would read its weight."""
    if layout == "sections":
        q, k, v = np.split(weight, [heads * D, (heads + kv_heads) * D])
        return q.reshape(heads, D, -1), k.reshape(kv_heads, D, -1), v.reshape(kv_heads, D, -1)
    if layout == "four_blocks":
        blocks = weight.reshape(4, 3, heads // 4, D, -1) if heads >= 4 else None
        q, v, k = (blocks[:, at].reshape(heads, D, -1) for at in range(3))
        return q, k, v
    groups = weight.reshape(kv_heads, heads // kv_heads + 2, D, -1)
    return groups[:, :-2].reshape(heads, D, -1), groups[:, -2], groups[:, -1]


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("layout, kv_heads", [("sections", K), ("per_group", K), ("per_head", H), ("sections", 1),
                                              ("per_group", 2), ("sections", 2)])
def test_c01_fused_qkv_by_its_layout_is_exact(layout, kv_heads, tp):
    generator = np.random.default_rng(0)
    weight = generator.standard_normal(((H + 2 * kv_heads) * D, HIDDEN))
    out = generator.standard_normal((HIDDEN, H * D))
    x = generator.standard_normal((5, HIDDEN))
    expected = attend(x, *split(weight, layout, H, kv_heads)) @ out.T
    cut = fused_layout.qkv_cut(layout, H, kv_heads, D, tp, 0)
    fused, row = SliceMap.of(weight.shape, cut), SliceMap.plain(out.shape, 1, tp, unit=D)
    found = sum(attend(x, *split(fused.shard(weight, rank), layout, H // tp, max(1, kv_heads // tp)))
                @ row.shard(out, rank).T for rank in range(tp))
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-14
    assert fused.unshard([fused.shard(weight, rank) for rank in range(tp)]).tobytes() == weight.tobytes()


def test_c01_codegen_blocks_go_whole():
    weight = np.arange(3 * H * D * HIDDEN, dtype=np.float64).reshape(3 * H * D, HIDDEN)
    cut = SliceMap.of(weight.shape, fused_layout.qkv_cut("four_blocks", H, H, D, 4, 0))
    for rank in range(4):
        assert np.array_equal(cut.shard(weight, rank), weight[rank * 24:(rank + 1) * 24])


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_c02_gate_and_up_by_their_layout_are_exact(layout, tp):
    generator = np.random.default_rng(0)
    ffn = 8
    weight, down = generator.standard_normal((2 * ffn, HIDDEN)), generator.standard_normal((HIDDEN, ffn))
    x = generator.standard_normal((5, HIDDEN))

    def run(fused, row):
        y = x @ fused.T
        gate, up = np.split(y, 2, -1) if layout == "halves" else (y[:, ::2], y[:, 1::2])
        return (gate / (1 + np.exp(-gate)) * up) @ row.T

    fused = SliceMap.of(weight.shape, fused_layout.gate_up_cut(layout, ffn, tp, 0))
    row = SliceMap.plain(down.shape, 1, tp)
    found = sum(run(fused.shard(weight, rank), row.shard(down, rank)) for rank in range(tp))
    expected = run(weight, down)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-14
    if layout == "halves":
        plain = SliceMap.plain(weight.shape, 0, tp)
        wrong = sum(run(plain.shard(weight, rank), row.shard(down, rank)) for rank in range(tp))
        assert np.abs(wrong - expected).max() / np.abs(expected).max() > 0.5


@pytest.mark.parametrize("name, part, expected", [
    ("gpt2", parts.QKV, "sections"), ("mpt", parts.QKV, "sections"), ("baichuan", parts.QKV, "sections"),
    ("phi3", parts.QKV, "sections"), ("bloom", parts.QKV, "per_head"), ("gpt_neox", parts.QKV, "per_head"),
    ("internlm2", parts.QKV, "per_group"), ("codegen", parts.QKV, "four_blocks"), ("dbrx", parts.QKV, "sections"),
    ("phi3", parts.GATE_UP, "halves"), ("glm4", parts.GATE_UP, "halves"), ("gpt_oss", parts.GATE_UP, "interleaved"),
    ("llama4", parts.GATE_UP, "halves"), ("granitemoe", parts.GATE_UP, "halves"),
    ("qwen3_next", parts.QUERY, "query_gate")])
def test_layouts_of_families(name, part, expected):
    layout, why = fused_layout.choose_layout("h.0.fused.weight", part, ModelFacts(model_type=name), None)
    assert layout == expected and why == f"family {name}"


@pytest.mark.parametrize("config, expected", [
    ({"new_decoder_architecture": True, "multi_query": True}, "per_group"),
    ({"new_decoder_architecture": False, "multi_query": True}, "sections"),
    ({"new_decoder_architecture": False, "multi_query": False}, "per_head")])
def test_falcon_has_three_attentions(config, expected):
    facts = ModelFacts.from_config({"model_type": "falcon", **config})
    assert fused_layout.choose_layout("h.0.query_key_value.weight", parts.QKV, facts, None)[0] == expected


@pytest.mark.parametrize("model_type, config, expected", [
    ("gpt_bigcode", {"multi_query": True}, "sections"), ("gpt_bigcode", {"multi_query": False}, "per_head"),
    ("chatglm", {"multi_query_group_num": 2}, "sections"), ("chatglm", {}, "per_head")])
def test_families_of_two_layouts(model_type, config, expected):
    facts = ModelFacts.from_config({"model_type": model_type, **config})
    assert fused_layout.choose_layout("x.query_key_value.weight", parts.QKV, facts, None)[0] == expected


@pytest.mark.parametrize("name, part, flags, expected", [
    ("linear_qkv", parts.QKV, {}, "per_group"), ("linear_fc1", parts.GATE_UP, {}, "interleaved"),
    ("linear_qkv", parts.QKV, {"contiguous_qkv": True}, "sections"),
    ("linear_qkv", parts.QKV, {"contiguous_qkv": False}, "per_group"),
    ("linear_fc1", parts.GATE_UP, {"interleaved_mlp": False}, "halves"),
    ("weight1", parts.GATE_UP, {"interleaved_mlp": True}, "halves"), ("w_qkv", parts.QKV, {}, "sections"),
    ("w_gate_hidden", parts.GATE_UP, {}, "halves")])
def test_mindformers_layouts_by_flag_and_name(name, part, flags, expected):
    assert fused_layout.choose_layout(f"a.{name}.weight", part, ModelFacts(**flags), None)[0] == expected


def fused_llama(name="qkv_proj"):
    """A Llama with one fused weight of a name that no family owns."""
    shapes = without(without(without(LLAMA, "q_proj"), "k_proj"), "v_proj")
    return {**shapes, f"model.layers.0.self_attn.{name}.weight": (128, 64)}


@pytest.mark.parametrize("name", ["qkv_proj", "mystery"])
def test_c04_nothing_decides_and_the_message_names_the_candidates(name):
    with pytest.raises(ValueError) as refused:
        plan(record(fused_llama(name)), tp=2)
    for word in ("sections", "per_head", "per_group", "[Q|K|V]", "auto_tp_config.overrides", "fused_layout", name):
        assert word in str(refused.value)
    made = plan(record(fused_llama(name)), tp=2, overrides=[{"match": f"*.{name}.weight", "fused_layout": "sections"}])
    assert [one.rows for one in made.parameters[f"model.layers.0.self_attn.{name}.weight"].slice_map.cuts[0].sections] \
        == [64, 32, 32]


@pytest.mark.parametrize("said, message", [("crosswise", "valid are sections"), ("per_head", "use per_group")])
def test_an_override_that_cannot_be_is_refused(said, message):
    with pytest.raises(ValueError, match=message):
        plan(record(fused_llama()), tp=2, overrides=[{"match": QKV, "fused_layout": said}])


def test_c06_storage_of_a_fused_weight_may_be_cut_anywhere():
    made = plan(record(fused_llama(), model_type="phi3"), tp=2)
    inner = made.parameters[QKV].slice_map.then(0, 4, "fsdp")
    whole = np.arange(128 * 64).reshape(128, 64)
    assert np.array_equal(inner.unshard([inner.shard(whole, rank) for rank in inner.ranks()]), whole)


def test_a_fused_bias_follows_its_weight():
    made = plan(inventories.folders()["gpt2"], tp=2)
    weight = made.parameters["transformer.h.0.attn.c_attn.weight"].slice_map.cuts[0]
    bias = made.parameters["transformer.h.0.attn.c_attn.bias"].slice_map.cuts[0]
    assert (weight.dim, bias.dim) == (1, 0) and weight.sections == bias.sections
    out = made.parameters["transformer.h.0.attn.c_proj.weight"].slice_map.cuts[0]
    assert out.dim == 0


def test_one_kv_head_is_copied_beside_cut_queries():
    made = plan(inventories.folders()["gpt_bigcode"], tp=4)
    sections = made.parameters["transformer.h.0.attn.c_attn.weight"].slice_map.cuts[0].sections
    assert [(one.rows, one.copies) for one in sections] == [(64, 1), (16, 4), (16, 4)]
