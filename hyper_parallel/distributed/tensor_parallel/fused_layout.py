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
from hyper_parallel.core.dtensor.slice_cut import Cut
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel.evidence import QKV

QKV_LAYOUTS: Dict[str, str] = {
    "sections": "[Q|K|V]",
    "per_head": "[q k v] per head",
    "per_group": "[q·R k v] per kv group",
}
GATE_UP_LAYOUTS: Dict[str, str] = {
    "halves": "[G|U]",
    "interleaved": "g0 u0 g1 u1 …",
}

# facts about families whose fused weights cannot be told from flags: layout of (qkv, gate/up)
_FAMILY_LAYOUTS: Dict[str, Tuple[Optional[str], Optional[str]]] = {
    "phi3": ("sections", "halves"),
    "gpt_neox": ("per_head", None),
    "bloom": ("per_head", None),
    "internlm2": ("per_group", None),
}


def choose_layout(path: str, part: str, facts: ModelFacts, said: Optional[str]) -> Tuple[str, str]:
    """The layout of a fused weight, and the evidence for it.

    Args:
        path: the parameter, for the message.
        part: QKV or GATE_UP.
        facts: the configuration.
        said: the user's word (`overrides: [{match: …, fused_layout: sections}]`), or None.

    Raises:
        ValueError: nothing decides, or the word is no layout; the candidates and the key are named.
    """
    known = QKV_LAYOUTS if part == QKV else GATE_UP_LAYOUTS
    if said is not None:
        if said not in known:
            raise ValueError(f"overrides: fused_layout {said!r} of {path!r}: valid are {', '.join(known)}")
        return said, "user override fused_layout"
    if part == QKV and facts.contiguous_qkv is not None:
        flag = facts.contiguous_qkv
        return ("sections" if flag else "per_group"), f"use_contiguous_weight_layout_attention is {flag}"
    if part != QKV and facts.interleaved_mlp is not None:
        flag = facts.interleaved_mlp
        return ("interleaved" if flag else "halves"), f"use_interleaved_weight_layout_mlp is {flag}"
    by_family = _FAMILY_LAYOUTS.get(facts.model_type or "", (None, None))[0 if part == QKV else 1]
    if by_family:
        return by_family, f"family {facts.model_type}"
    candidates = ", ".join(f"{name} ({drawing})" for name, drawing in known.items())
    raise ValueError(
        f"the rows of the fused weight {path!r} can be arranged as {candidates}, and nothing says which: add "
        f"auto_tp_config.overrides: [{{match: \"{path}\", fused_layout: NAME}}]")


def qkv_cut(layout: str, heads: int, kv_heads: int, head_dim: int, parts: int, dim: int) -> Cut:
    """The cut of a fused qkv weight (or its bias) by its layout."""
    if layout == "per_head":
        return slice_layouts.qkv_per_head(heads, head_dim, parts, dim)
    builder: Callable = slice_layouts.qkv_sections if layout == "sections" else slice_layouts.qkv_per_group
    return builder(heads, kv_heads, head_dim, parts, dim)


def gate_up_cut(layout: str, ffn_size: int, parts: int, dim: int) -> Cut:
    """The cut of a fused gate/up weight (or its bias) by its layout."""
    builder = slice_layouts.gate_up_halves if layout == "halves" else slice_layouts.gate_up_interleaved
    return builder(ffn_size, parts, dim)
