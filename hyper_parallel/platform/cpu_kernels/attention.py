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
"""FlashAttentionScore from matrix products: same arguments, same four outputs, same gradients, memory O(S1 * S2).

Letters: B batch, N query heads, K key and value heads, G = N / K query heads that share a key head, S query length,
T key length, D head size of query and key, E head size of value, H = N * D.
"""
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.common import dtype as mstype
from mindspore.ops.auto_generate.gen_ops_prim import FlashAttentionScore as _Primitive

from hyper_parallel.platform.cpu_kernels.dispatch import (
    REPLACEMENTS, Replacement, operator, original_place, runs_here)
from hyper_parallel.platform.cpu_kernels.numeric import as_float32
from hyper_parallel.platform.cpu_kernels.randomness import random_keep_mask

LAYOUTS = {_Primitive(head_num=1, input_layout=name).input_layout: name
           for name in ("BSH", "SBH", "BNSD", "BSND", "TND")}

# What each layout does to reach [B, N, S, D]; hidden sizes are first split into heads.
_TO_BNSD = {"BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3)}
_FROM_BNSD = {"BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3), "BSND": (0, 2, 1, 3)}

# The kernel repeats each row's maximum and sum so that a row fills one 32-byte block.
_ROW_REPEATS = 8


def _split_heads(tensor, layout, heads):
    if layout in ("BSH", "SBH"):
        tensor = mint.reshape(tensor, (*tensor.shape[:2], heads, tensor.shape[2] // heads))
    if layout in _TO_BNSD:
        tensor = mint.permute(tensor, _TO_BNSD[layout])
    return tensor


def _merge_heads(out_BNSE, layout):
    if layout in _FROM_BNSD:
        out_BNSE = mint.permute(out_BNSE, _FROM_BNSD[layout])
    if layout in ("BSH", "SBH"):
        out_BNSE = mint.reshape(out_BNSE, (*out_BNSE.shape[:2], -1))
    return out_BNSE


def _key_heads(query, key, layout, head_num):
    if layout in ("BSH", "SBH"):
        return key.shape[2] * head_num // query.shape[2]
    return key.shape[1 if layout == "BNSD" else 2]


def hidden_positions(query_length, key_length, sparse_mode, pre_tokens, next_tokens, has_mask):
    """What the sparse mode alone hides, as a bool array `[S, T]`, or None for nothing.

    Modes: 0 the caller's mask within the band of `pre_tokens` and `next_tokens`, 1 the caller's mask, 2 causal from
    the upper left corner, 3 causal from the lower right corner, 4 the band from the lower right corner.

    Raises:
        NotImplementedError: for the other modes.
    """
    if sparse_mode == 1 or (sparse_mode == 0 and not has_mask):
        return None
    if sparse_mode not in (0, 2, 3, 4):
        raise NotImplementedError(f"sparse_mode {sparse_mode} has no CPU stand-in; supported are 0, 1, 2, 3 and 4.")
    ahead = np.arange(key_length)[None, :] - np.arange(query_length)[:, None]
    if sparse_mode in (3, 4):
        ahead = ahead - (key_length - query_length)
    if sparse_mode in (2, 3):
        return ahead > 0
    return (ahead > next_tokens) | (-ahead > pre_tokens)


def _hidden(query_length, key_length, attn_mask, mode_arguments):
    """All hidden positions as a bool tensor that broadcasts to `[B, N, S, T]`, or None.

    In modes 2 to 4 `attn_mask` is the kernel's compressed 2048 x 2048 triangle, which says nothing the mode does not.
    """
    sparse_mode = mode_arguments[0]
    by_mode = hidden_positions(query_length, key_length, *mode_arguments, attn_mask is not None)
    hidden = None if by_mode is None else Tensor(by_mode)
    if attn_mask is None or sparse_mode >= 2:
        return hidden
    if tuple(attn_mask.shape[-2:]) != (query_length, key_length):
        raise ValueError(f"The attention mask ends in {tuple(attn_mask.shape[-2:])}, but the query has {query_length} "
                         f"positions and the key {key_length}.")
    given = mint.not_equal(attn_mask, 0)
    return given if hidden is None else mint.logical_or(given, hidden)


def _keep_mask(drop_mask, shape, keep_prob):
    """Dropout mask of 0 and 1: unpacked from the kernel's bits, or drawn when none is given."""
    if drop_mask is None:
        return random_keep_mask(shape, keep_prob)
    bits = np.unpackbits(drop_mask.asnumpy().reshape(-1), bitorder="little")[:int(np.prod(shape))]
    return Tensor(bits.reshape(shape).astype(np.float32))


def _attend(query_BNSD, key_BKTD, value_BKTE, hidden, real_shift, drop_mask, keep_prob, scale):
    """`(row maximum [B, N, S, 8], row sum [B, N, S, 8], out [B, N, S, E])`, all float32.

    A row with every position hidden gives 0 and no gradient.
    """
    batch, heads, query_length, size = query_BNSD.shape
    kv_heads, key_length = key_BKTD.shape[1:3]
    grouped_rows = heads // kv_heads * query_length
    query = mint.reshape(query_BNSD, (batch * kv_heads, grouped_rows, size))
    key = mint.reshape(key_BKTD, (batch * kv_heads, key_length, size))
    value = mint.reshape(value_BKTE, (batch * kv_heads, key_length, -1))

    scores = mint.reshape(mint.bmm(query, mint.transpose(key, 1, 2)), (batch, heads, query_length, key_length))
    if real_shift is not None:
        scores = mint.add(scores, as_float32(real_shift))
    scores = mint.mul(scores, scale)
    if hidden is not None:
        lowest = Tensor(np.finfo(np.float32).min, mstype.float32)
        scores = mint.where(hidden, lowest, scores)
    row_max = ops.stop_gradient(mint.max(scores, -1, True)[0])
    weights = mint.exp(mint.sub(scores, row_max))
    if hidden is not None:
        weights = mint.where(hidden, Tensor(0.0, mstype.float32), weights)
    row_sum = mint.sum(weights, -1, True)
    probabilities = mint.div(weights, mint.clamp(row_sum, min=float(np.finfo(np.float32).tiny)))
    if keep_prob < 1:
        keep = _keep_mask(drop_mask, probabilities.shape, keep_prob)
        probabilities = mint.mul(probabilities, mint.div(keep, keep_prob))
    out = mint.bmm(mint.reshape(probabilities, (batch * kv_heads, grouped_rows, key_length)), value)
    statistics = [mint.tile(ops.stop_gradient(row), (1, 1, 1, _ROW_REPEATS)) for row in (row_max, row_sum)]
    return (*statistics, mint.reshape(out, (batch, heads, query_length, -1)))


def _sequence_ends(lengths):
    """Cumulative lengths (list, tuple or tensor) as Python integers."""
    return [int(end) for end in (lengths.asnumpy() if isinstance(lengths, Tensor) else lengths)]


def _attend_packed(tensors, mode_arguments, attn_mask, actual_seq_qlen, actual_seq_kvlen, keep_prob, scale):
    """`_attend` over the sequences packed along dim 0 of `[T, N, D]` tensors."""
    if actual_seq_qlen is None or actual_seq_kvlen is None:
        raise ValueError("Layout TND needs actual_seq_qlen and actual_seq_kvlen.")
    if attn_mask is not None and mode_arguments[0] < 2:
        raise NotImplementedError(f"Layout TND with an attention mask and sparse_mode {mode_arguments[0]} has no CPU "
                                  f"stand-in; supported are the sparse modes 2, 3 and 4.")
    parts = []
    query_start = key_start = 0
    for query_end, key_end in zip(_sequence_ends(actual_seq_qlen), _sequence_ends(actual_seq_kvlen)):
        spans = ((query_start, query_end), (key_start, key_end), (key_start, key_end))
        one = [mint.unsqueeze(mint.permute(mint.narrow(tensor, 0, start, end - start), (1, 0, 2)), 0)
               for tensor, (start, end) in zip(tensors, spans)]
        hidden = _hidden(one[0].shape[2], one[1].shape[2], attn_mask, mode_arguments)
        parts.append(_attend(*one, hidden, None, None, keep_prob, scale))
        query_start, key_start = query_end, key_end
    # Each part is [1, N, S, X]; packed it is [S, N, X].
    return [mint.cat([mint.permute(mint.squeeze(part, 0), (1, 0, 2)) for part in column], 0)
            for column in zip(*parts)]


@operator("FlashAttentionScore")
def flash_attention_score(query, key, value, real_shift=None, drop_mask=None, padding_mask=None, attn_mask=None,
                          prefix=None, actual_seq_qlen=None, actual_seq_kvlen=None, head_num=1, keep_prob=1.0,
                          scale_value=1.0, pre_tokens=2147483647, next_tokens=2147483647, inner_precise=0,
                          input_layout=0, sparse_mode=0):
    """`(softmax_max, softmax_sum, placeholder, attention_out)`.

    The statistics are float32 and carry no gradient; `attention_out` has the layout and dtype of `query`, computed in
    float32. `input_layout` is the number MindSpore gives to the layout's name.

    Raises:
        NotImplementedError: for `prefix`, `padding_mask`, and the layouts and sparse modes without a stand-in.
        ValueError: if the head counts do not divide, or the mask's shape does not fit.
    """
    if prefix is not None or padding_mask is not None:
        raise NotImplementedError("FlashAttentionScore on CPU takes neither prefix nor padding_mask.")
    if input_layout not in LAYOUTS:
        raise NotImplementedError(f"Input layout number {input_layout} has no CPU stand-in; supported are "
                                  f"{', '.join(LAYOUTS.values())}.")
    layout = LAYOUTS[input_layout]
    mode_arguments = (sparse_mode, pre_tokens, next_tokens)
    wide = [as_float32(tensor) for tensor in (query, key, value)]
    if layout == "TND":
        if real_shift is not None or drop_mask is not None:
            raise NotImplementedError("FlashAttentionScore on CPU takes neither real_shift nor drop_mask with TND.")
        row_max, row_sum, out = _attend_packed(wide, mode_arguments, attn_mask, actual_seq_qlen, actual_seq_kvlen,
                                               keep_prob, scale_value)
    else:
        kv_heads = _key_heads(query, key, layout, head_num)
        if kv_heads == 0 or head_num % kv_heads:
            raise ValueError(f"head_num {head_num} must be a multiple of the number of key heads, {kv_heads}.")
        wide = [_split_heads(tensor, layout, heads)
                for tensor, heads in zip(wide, (head_num, kv_heads, kv_heads))]
        hidden = _hidden(wide[0].shape[2], wide[1].shape[2], attn_mask, mode_arguments)
        row_max, row_sum, out = _attend(*wide, hidden, real_shift, drop_mask, keep_prob, scale_value)
        out = _merge_heads(out, layout)
    return row_max, row_sum, mint.zeros((1,), dtype=query.dtype), out.astype(query.dtype)


def _primitive(original):
    """A subclass of the primitive, so that `isinstance`, its attributes and graph mode stay as they were."""

    class FlashAttentionScore(original):
        """FlashAttentionScore that computes on CPU."""

        def __call__(self, *args, **kwargs):
            if not runs_here(args, kwargs):
                with original_place(args, kwargs):
                    return super().__call__(*args, **kwargs)
            operands = flash_attention_score.operands(args, kwargs)[:_TENSOR_COUNT]
            return flash_attention_score.dispatch(
                *operands, self.head_num, self.keep_prob, self.scale_value, self.pre_tokens, self.next_tokens,
                self.inner_precise, self.input_layout, self.sparse_mode)

    return FlashAttentionScore


# query to actual_seq_kvlen; what follows are the attributes of the primitive.
_TENSOR_COUNT = 10

REPLACEMENTS.append(Replacement(
    ("mindspore.ops.operations.nn_ops:FlashAttentionScore", "mindspore.ops.auto_generate:FlashAttentionScore",
     "mindspore.ops.auto_generate.gen_ops_prim:FlashAttentionScore"), _primitive))
