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
"""How the rows of a fused weight are arranged. The same name hides different bytes, so evidence decides, or nothing.

Cutting a `[Q|K|V]` weight into plain chunks gives a relative error above 1; by sections the result is exact.
"""
from typing import Callable, Dict, Optional, Tuple

from hyper_parallel.core.dtensor import slice_layouts
from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel import parts

QKV_LAYOUTS: Dict[str, str] = {
    "sections": "[Q|K|V]",
    "per_head": "[q k v] per head",
    "per_group": "[q·R k v] per kv group",
    "four_blocks": "[Q|V|K] four times",
}
GATE_UP_LAYOUTS: Dict[str, str] = {
    "halves": "[G|U]",
    "interleaved": "g0 u0 g1 u1 …",
}
QUERY_LAYOUTS: Dict[str, str] = {
    "query_gate": "[q gate] per head",
    "query_gate_halves": "[Q|gate]",
}
KEY_VALUE_LAYOUTS: Dict[str, str] = {
    "per_head": "[k v] per head",
    "sections": "[K|V]",
}
LAYOUTS_OF_PART = {parts.QKV: QKV_LAYOUTS, parts.GATE_UP: GATE_UP_LAYOUTS, parts.QUERY: QUERY_LAYOUTS,
                   parts.KEY_VALUE: KEY_VALUE_LAYOUTS}
_CODEGEN_BLOCKS = 4
# names that belong to one way of writing models, whatever the family: (layout, who writes so)
_BY_NAME = {
    ("linear_qkv", parts.QKV): ("per_group", "Megatron-style 'linear_qkv'"),
    ("linear_fc1", parts.GATE_UP): ("interleaved", "MindFormers' 'linear_fc1'"),
    ("weight1", parts.GATE_UP): ("halves", "MindFormers' grouped experts"),
    ("w_qkv", parts.QKV): ("sections", "MindFormers' 'w_qkv' is a concatenation"),
    ("w_gate_hidden", parts.GATE_UP): ("halves", "MindFormers' 'w_gate_hidden' is a concatenation"),
    ("in_proj_weight", parts.QKV): ("sections", "MultiheadAttention's 'in_proj_weight'"),
    ("kv_b_proj", parts.KEY_VALUE): ("per_head", "latent attention's 'kv_b_proj'"),
    ("linear_kvb", parts.KEY_VALUE): ("per_head", "latent attention's 'linear_kvb'"),
}


def choose_layout(path: str, part: str, facts: ModelFacts, said: Optional[str]) -> Tuple[str, str]:
    """The layout of a fused weight, and the evidence for it.

    Args:
        path: the parameter, for the message and for names that belong to one layout.
        part: QKV, GATE_UP, KEY_VALUE, or QUERY where a gate stands beside every query.
        facts: the configuration.
        said: the user's word (`overrides: [{match: …, fused_layout: sections}]`), or None.

    Raises:
        ValueError: nothing decides, or the word is no layout; the candidates and the key are named.

    Examples:
        >>> choose_layout("h.0.attn.c_attn.weight", parts.QKV, ModelFacts(model_type="gpt2"), None)
        ('sections', 'family gpt2')
    """
    known = LAYOUTS_OF_PART[part]
    if said is not None:
        if said not in known:
            raise ValueError(f"auto_tp_config.overrides: fused_layout {said!r} of {path!r}: valid are "
                             f"{', '.join(known)}")
        return said, "user override fused_layout"
    if part == parts.QKV and facts.contiguous_qkv is not None:
        flag = facts.contiguous_qkv
        return ("sections" if flag else "per_group"), f"use_contiguous_weight_layout_attention is {flag}"
    name = next((segment for segment in reversed(path.lower().split(".")) if (segment, part) in _BY_NAME), None)
    if part == parts.GATE_UP and facts.interleaved_mlp is not None and name != "weight1":
        flag = facts.interleaved_mlp
        return ("interleaved" if flag else "halves"), f"use_interleaved_weight_layout_mlp is {flag}"
    if name is not None and name not in ("linear_qkv", "linear_fc1"):
        return _BY_NAME[(name, part)]
    adapter = find_adapter(facts)
    by_family = {parts.QKV: adapter.qkv(facts), parts.GATE_UP: adapter.gate_up_layout,
                 parts.QUERY: adapter.query_layout}.get(part)
    if name is not None:
        return _BY_NAME[(name, part)]
    if by_family:
        return by_family, f"family {facts.model_type or ', '.join(facts.architectures)}"
    candidates = ", ".join(f"{word} ({drawing})" for word, drawing in known.items())
    raise ValueError(
        f"the rows of the fused weight {path!r} can be arranged as {candidates}, and nothing says which: add "
        f"auto_tp_config.overrides: [{{match: \"{path}\", fused_layout: NAME}}]")


def qkv_cut(layout: str, heads: int, kv_heads: int, head_dim: int, count: int, dim: int) -> Cut:
    """The cut of a fused qkv weight (or its bias) by its layout."""
    if layout == "per_head":
        return slice_layouts.qkv_per_head(heads, head_dim, count, dim)
    if layout == "four_blocks":
        rows = heads * head_dim // _CODEGEN_BLOCKS
        return slice_layouts.blocks([Section(rows, unit=head_dim, name=name) for name in "QVK"], _CODEGEN_BLOCKS, count,
                                    dim)
    builder: Callable = slice_layouts.qkv_sections if layout == "sections" else slice_layouts.qkv_per_group
    return builder(heads, kv_heads, head_dim, count, dim)


def gate_up_cut(layout: str, ffn_size: int, count: int, dim: int, stacked: int = 1) -> Cut:
    """The cut of a fused gate/up weight (or its bias) by its layout.

    Args:
        layout: a name from GATE_UP_LAYOUTS.
        ffn_size: rows of gate, and of up.
        count: size of the axis.
        dim: the dim that holds gate and up.
        stacked: experts one below the other along the dim.
    """
    if stacked > 1:
        one = (Section(ffn_size, name="gate"), Section(ffn_size, name="up")) if layout == "halves" else \
            (Section(2 * ffn_size, unit=2, name="gate/up pairs"),)
        return Cut("tp", dim, count, one * stacked)
    builder = slice_layouts.gate_up_halves if layout == "halves" else slice_layouts.gate_up_interleaved
    return builder(ffn_size, count, dim)


def key_value_cut(layout: str, heads: int, kv_heads: int, rows: int, count: int, dim: int) -> Cut:
    """The cut of a weight that holds keys and values, copied where there are fewer kv heads than ranks."""
    copies = max(1, count // kv_heads)
    unit = rows // kv_heads
    if layout == "per_head":
        return Cut("tp", dim, count, (Section(rows, unit=unit, copies=copies, name="kv"),))
    half = rows // 2
    return Cut("tp", dim, count, tuple(Section(half, unit=half // kv_heads, copies=copies, name=name) for name in "KV"))
