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
"""Fused attention: batch and heads may be cut, positions stay whole.

Letters: B batch, N query heads, K key heads, S positions, T packed tokens, D head size, H = N * D.
"""
import math

from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import Operand, Spec

# MindSpore's numbers of the layouts, and per layout the labels of query, key and value, and of the two statistics.
_LAYOUTS = {0: "BSH", 1: "BNSD", 2: "SBH", 3: "BSND", 4: "TND"}
_HEAD_NUM = 10


def _layout_name(layout):
    return layout if isinstance(layout, str) else _LAYOUTS.get(int(layout))


@rule("FlashAttentionScore")
def flash_attention(query, key, value, real_shift=None, drop_mask=None, padding_mask=None, attn_mask=None, prefix=None,
                    actual_seq_qlen=None, actual_seq_kvlen=None, head_num=1, keep_prob=1.0, scale_value=1.0,
                    pre_tokens=2147483647, next_tokens=2147483647, inner_precise=0, input_layout=0, sparse_mode=0):
    """`(row maximum, row sum, placeholder, out)`; the number of heads among the arguments becomes this rank's."""
    del drop_mask, padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen, keep_prob, scale_value, pre_tokens
    del next_tokens, inner_precise, sparse_mode
    layout = _layout_name(input_layout)
    if layout is None:
        return None
    labels = tuple({"B": "batch", "N": "heads", "H": "heads"}.get(letter) for letter in layout)
    inputs = {query: labels, key: labels, value: labels}
    key_heads = key.shape[layout.index("N")] if "N" in layout else key.shape[2] * head_num // query.shape[2]
    for mask in (real_shift, attn_mask):
        if isinstance(mask, Operand) and mask.ndim == 4:
            inputs[mask] = tuple(label if size != 1 else None
                                 for label, size in zip(("batch", "heads", None, None), mask.shape))
    statistics = (None, "heads", None) if layout == "TND" else ("batch", "heads", None, None)
    return Spec(inputs, [statistics, statistics, None, labels], divides={"heads": math.gcd(head_num, key_heads)},
                replace=lambda cut: {_HEAD_NUM: head_num // cut.parts("heads")})
