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
"""Sizes and ratios that a module computed from its head counts, and what they become on one rank.

H and K are the counts of query and key/value heads, w a width per head. A size is taken as derived from heads only
with a proof: its name is known, and its value is exactly a count times a width, where the width is cached by the
module (`head_dim`, `v_head_dim`, ...) or measured on a projection that the plan cuts (output rows divided by heads).
`hidden_size`, `d_model`, `embed_dim` and widths themselves are in no list: a model's residual stream stays whole even
where it happens to equal H*w.
"""
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

from hyper_parallel.distributed.tensor_parallel.head_count_facts import (
    KV_HEAD_ATTRS, Q_HEAD_ATTRS, find, full_int, output_dims, projection_kind)

DERIVED_SIZE_ATTRS: Dict[str, Tuple[str, ...]] = {
    **dict.fromkeys(("q_hidden_size", "q_size", "q_dim", "query_size", "query_projection_size", "projection_size",
                     "all_head_size", "inner_dim", "split_size"), ("q",)),
    **dict.fromkeys(("kv_hidden_size", "kv_size", "kv_dim", "kv_projection_size", "key_dim"), ("kv",)),
    "value_dim": ("kv", "q"),  # gated-delta layers have more value heads than key heads
    **dict.fromkeys(("qkv_hidden_size", "qkv_size", "qkv_dim", "op_size", "conv_dim"), ("qkv",)),
}
"""`{name: what its value may be}`: "q" is H*w, "kv" is K*w, "qkv" is H*w + 2*K*w', each with any known width."""

RATIO_ATTRS = ("n_rep", "num_key_value_groups", "num_kv_groups", "n_kv_groups", "num_queries_per_kv", "q_per_kv")
"""Names that classes cache H/K under."""

WIDTH_ATTRS = ("head_dim", "attention_head_size", "head_size", "kv_channels", "key_value_proj_dim", "size_per_head",
               "hidden_size_per_attention_head", "attention_head_dim", "d_head", "dim_head", "q_head_dim",
               "qk_head_dim", "v_head_dim", "head_k_dim", "head_v_dim")
"""Names that classes cache a width per head under."""

Count = Tuple[int, int]
"""`(whole value, value on one rank)` of one head count."""


@dataclass
class HeadFacts:
    """What the proofs of one module read: its counts and its widths.

    Args:
        q: the counts of query heads, H, under every name that the module caches.
        kv: the counts of key/value heads, K; without one, K is H.
        widths: the widths per head.
    """

    q: List[Count] = field(default_factory=list)
    kv: List[Count] = field(default_factory=list)
    widths: Set[int] = field(default_factory=set)


def read_facts(owner: Any, local: Dict[str, int], inherited: Optional[HeadFacts] = None) -> HeadFacts:
    """The facts of one object.

    Args:
        owner: the object that caches counts and widths.
        local: `{attribute: value on one rank}` of the counts that change; the others keep their value.
        inherited: facts of the module around it, taken where the object caches no count of its own.
    """
    def counts(names):
        found = {name: full_int(owner, name) for name in names}
        return [(value, local.get(name, value)) for name, value in found.items() if value is not None and value > 0]

    inherited = inherited or HeadFacts()
    widths = {full_int(owner, name) for name in WIDTH_ATTRS} - {None}
    return HeadFacts(counts(Q_HEAD_ATTRS) or inherited.q, counts(KV_HEAD_ATTRS) or inherited.kv,
                     {width for width in widths | inherited.widths if width > 0})


def measured_widths(module: Any, cut: Dict[str, bool], facts: HeadFacts) -> Set[int]:
    """Widths per head read off the whole weights that the plan cuts: output rows / H, / K, or / (H + 2K).

    Args:
        module: the boundary's module; its parameters have their whole shapes.
        cut: `{relative name of a q/k/v weight: whether its output dim is cut}`.
        facts: the module's counts.
    """
    widths = set()
    for name in (name for name, is_cut in cut.items() if is_cut):
        shape = tuple(getattr(find(module, name), "shape", None) or ())
        for q, _ in facts.q:
            for kv, _ in facts.kv or facts.q:
                heads = {"q": q, "kv": kv, "qkv": q + 2 * kv}[projection_kind(name)]
                widths.update(shape[dim] // heads for dim in output_dims(module, name)
                              if len(shape) == 2 and shape[dim] % heads == 0)
    return widths


def local_size(name: str, value: int, facts: HeadFacts) -> Optional[int]:
    """The value of a derived size on one rank, or None when nothing proves that it comes from the heads.

    Raises:
        ValueError: two proofs hold and disagree, which needs key/value heads that are copied.

    Examples:
        >>> local_size("kv_hidden_size", 32, HeadFacts(q=[(8, 4)], kv=[(4, 2)], widths={8}))
        16
        >>> local_size("kv_hidden_size", 33, HeadFacts(q=[(8, 4)], kv=[(4, 2)], widths={8}))
    """
    found = set()
    for kind in DERIVED_SIZE_ATTRS.get(name, ()):
        for q, q_local in facts.q:
            for kv, kv_local in facts.kv or facts.q:
                for width in facts.widths:
                    if kind == "q" and value == q * width:
                        found.add(q_local * width)
                    if kind == "kv" and value == kv * width:
                        found.add(kv_local * width)
                    if kind == "qkv":
                        found.update(q_local * width + 2 * kv_local * other for other in facts.widths
                                     if value == q * width + 2 * kv * other)
    if len(found) > 1:
        raise ValueError(f"{name}={value} is a head count times a width in more than one way, and the ways give the "
                         f"local values {', '.join(map(str, sorted(found)))}; name the right one in the plan's targets")
    return found.pop() if found else None


def local_ratio(value: int, facts: HeadFacts) -> Optional[int]:
    """What an attribute that was H/K becomes on one rank, or None when its value is another one.

    Raises:
        ValueError: the local H is no multiple of the local K.

    Examples:
        >>> local_ratio(8, HeadFacts(q=[(16, 2)], kv=[(2, 1)]))
        2
    """
    for q, q_local in facts.q:
        for kv, kv_local in facts.kv:
            if value * kv == q:
                if q_local % kv_local:
                    raise ValueError(f"the group ratio {value} = {q} / {kv} heads has no whole value on one rank, "
                                     f"which would hold {q_local} query heads and {kv_local} key/value heads")
                return q_local // kv_local
    return None
