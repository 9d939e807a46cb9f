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
"""FlashAttentionScore on CPU against attention written out in numpy: layouts, masks, fewer key heads, gradients.

Letters: B batch, N query heads, K key heads, S query length, T key length, D head size, H = N * D.
"""
import math

import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor
from mindspore.ops.operations import nn_ops

from hyper_parallel.platform.cpu_kernels.attention import flash_attention_score, hidden_positions
from cpu_kernels_checks import check, check_half, close, numbers

SCALE = 0.4


def attention(query_BNSD, key_BKTD, value_BKTE, hidden=None, shift=0.0, keep=1.0):
    """`(out [B, N, S, E], row maximum, row sum [B, N, S, 1])`; a row with everything hidden gives 0."""
    repeats = query_BNSD.shape[1] // key_BKTD.shape[1]
    key, value = (np.repeat(part, repeats, 1) for part in (key_BKTD, value_BKTE))
    scores = SCALE * (np.einsum("bnsd,bntd->bnst", query_BNSD, key) + shift)
    if hidden is not None:
        scores = np.where(np.broadcast_to(hidden, scores.shape), -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bnst,bnte->bnse", weights / np.where(total == 0, 1, total) * keep, value), top, total


def operator(heads, layout="BNSD", **attributes):
    """The operator as MindFormers constructs it, taken from where MindFormers imports it."""
    return nn_ops.FlashAttentionScore(head_num=heads, scale_value=SCALE, input_layout=layout, **attributes)


def out_of(attend, **inputs):
    """A function of query, key and value that returns the attention output."""
    return lambda query, key, value: attend(query=query, key=key, value=value, **inputs)[3]


# From [B, N, S, D] to each layout; BSH and SBH merge the heads.
TO_LAYOUT = {
    "BNSD": lambda a: a,
    "BSND": lambda a: a.transpose(0, 2, 1, 3),
    "BSH": lambda a: a.transpose(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], -1),
    "SBH": lambda a: a.transpose(2, 0, 1, 3).reshape(a.shape[2], a.shape[0], -1),
}
FROM_LAYOUT = {
    "BNSD": lambda a, heads: a,
    "BSND": lambda a, heads: a.transpose(0, 2, 1, 3),
    "BSH": lambda a, heads: a.reshape(*a.shape[:2], heads, -1).transpose(0, 2, 1, 3),
    "SBH": lambda a, heads: a.reshape(*a.shape[:2], heads, -1).transpose(1, 2, 0, 3),
}


@pytest.mark.parametrize("layout", TO_LAYOUT)
@pytest.mark.parametrize("heads, key_heads", [(2, 2), (4, 2), (2, 1)])
def test_layouts_and_fewer_key_heads(layout, heads, key_heads):
    def formula(query, key, value):
        back = FROM_LAYOUT[layout]
        hidden = np.triu(np.ones((3, 3), bool), 1)
        return TO_LAYOUT[layout](attention(back(query, heads), back(key, key_heads), back(value, key_heads), hidden)[0])
    arrays = [TO_LAYOUT[layout](numbers(2, count, 3, 4)) for count in (heads, key_heads, key_heads)]
    mask = Tensor(np.triu(np.ones((3, 3), np.uint8), 1))
    check(out_of(operator(heads, layout, next_tokens=0), attn_mask=mask), formula, *map(np.ascontiguousarray, arrays))


def test_value_heads_of_another_size():
    """Multi-head latent attention: the values are narrower than the keys."""
    check(out_of(operator(2)), lambda *inputs: attention(*inputs)[0],
          numbers(1, 2, 3, 6), numbers(1, 2, 3, 6), numbers(1, 2, 3, 4))


@pytest.mark.parametrize("shape", [(3, 4), (1, 1, 3, 4), (2, 1, 3, 4), (2, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [ms.uint8, ms.bool_])
def test_mask_shapes(shape, dtype):
    hidden = np.random.default_rng(1).random(shape) < 0.4
    hidden[..., 0] = False
    check(out_of(operator(2, sparse_mode=1), attn_mask=Tensor(hidden).astype(dtype)),
          lambda *inputs: attention(*inputs, hidden)[0],
          numbers(2, 2, 3, 4), numbers(2, 2, 4, 4), numbers(2, 2, 4, 4))


def test_a_row_with_everything_hidden_is_zero_and_has_no_gradient():
    hidden = np.zeros((3, 3), bool)
    hidden[1] = True
    check(out_of(operator(1, sparse_mode=1), attn_mask=Tensor(hidden)), lambda *inputs: attention(*inputs, hidden)[0],
          numbers(1, 1, 3, 4), numbers(1, 1, 3, 4), numbers(1, 1, 3, 4))


def band(rows, columns, before, after, shift=0):
    """Hidden outside `i + shift - before <= j <= i + shift + after`, counted one by one."""
    return np.array([[not i + shift - before <= j <= i + shift + after for j in range(columns)] for i in range(rows)])


@pytest.mark.parametrize("rows, columns", [(4, 4), (3, 5)])
@pytest.mark.parametrize("mode", [2, 3, 4])
def test_sparse_modes_with_the_compressed_mask(mode, rows, columns):
    shift = columns - rows
    hidden = {2: band(rows, columns, 99, 0), 3: band(rows, columns, 99, 0, shift),
              4: band(rows, columns, 2, 1, shift)}[mode]
    compressed = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))
    attend = operator(2, sparse_mode=mode, pre_tokens=2, next_tokens=1)
    check(out_of(attend, attn_mask=compressed), lambda *inputs: attention(*inputs, hidden)[0],
          numbers(1, 2, rows, 4), numbers(1, 1, columns, 4), numbers(1, 1, columns, 4))


def test_mode_0_without_a_mask_hides_nothing():
    check(out_of(operator(1, next_tokens=0)), lambda *inputs: attention(*inputs)[0],
          numbers(1, 1, 3, 4), numbers(1, 1, 3, 4), numbers(1, 1, 3, 4))
    assert hidden_positions(2, 2, 1, 0, 0, True) is None


def test_mode_0_keeps_the_mask_within_the_band():
    np.testing.assert_array_equal(hidden_positions(3, 4, 0, 1, 0, True), band(3, 4, 1, 0))


def test_position_shift():
    shift = numbers(1, 2, 3, 3)
    check(out_of(operator(2), real_shift=Tensor(shift)), lambda *inputs: attention(*inputs, shift=shift)[0],
          numbers(1, 2, 3, 4), numbers(1, 2, 3, 4), numbers(1, 2, 3, 4))


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(dtype):
    check_half(out_of(operator(2)), lambda *inputs: attention(*inputs)[0],
               numbers(1, 2, 3, 4), numbers(1, 1, 3, 4), numbers(1, 1, 3, 4), dtype=dtype)


def test_half_precision_is_computed_in_float32():
    """Scores near 300, of which float16 knows no fractions: the result is that of float32 on the rounded inputs."""
    inputs = [(numbers(1, 1, 4, 8) * 10).astype(np.float16) for _ in range(3)]
    expected = attention(*[part.astype(np.float64) for part in inputs])[0]
    close(operator(1)(*map(Tensor, inputs))[3], expected, 1e-3)


def test_the_four_results():
    inputs = [numbers(2, 2, 3, 4) for _ in range(3)]
    row_max, row_sum, placeholder, out = operator(2)(*[Tensor(part).astype(ms.float16) for part in inputs])
    assert row_max.shape == row_sum.shape == (2, 2, 3, 8) and row_max.dtype == row_sum.dtype == ms.float32
    assert placeholder.size == 1 and out.dtype == ms.float16
    _, top, total = attention(*inputs)
    close(row_max, np.repeat(top, 8, -1), 1e-2)
    close(row_sum, np.repeat(total, 8, -1), 1e-2)


def test_packed_sequences():
    """TND: sequences of lengths 2 and 3 packed along dim 0, causal within each."""
    ends = [2, 5]

    def formula(query, key, value):
        parts = []
        for start, end in ((0, 2), (2, 5)):
            one = [part[start:end].transpose(1, 0, 2)[None] for part in (query, key, value)]
            parts.append(attention(*one, np.triu(np.ones((end - start, end - start), bool), 1))[0][0])
        return np.concatenate([part.transpose(1, 0, 2) for part in parts])
    attend = operator(2, "TND", sparse_mode=3)
    for lengths in (ends, tuple(ends), Tensor(ends, ms.int32)):
        check(out_of(attend, actual_seq_qlen=lengths, actual_seq_kvlen=lengths,
                     attn_mask=Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))), formula,
              numbers(5, 2, 4), numbers(5, 1, 4), numbers(5, 1, 4))
    row_max = attend(*[Tensor(numbers(5, 2, 4)) for _ in range(3)], actual_seq_qlen=ends, actual_seq_kvlen=ends)[0]
    assert row_max.shape == (5, 2, 8)


def test_dropout_by_bits():
    keep = np.random.default_rng(2).random((1, 2, 4, 8)) < 0.5
    bits = Tensor(np.packbits(keep.reshape(-1), bitorder="little"))
    check(out_of(operator(2, keep_prob=0.5), drop_mask=bits),
          lambda *inputs: attention(*inputs, keep=keep / 0.5)[0],
          numbers(1, 2, 4, 4), numbers(1, 2, 8, 4), numbers(1, 2, 8, 4))


def test_dropout_without_bits_keeps_the_mean():
    ones = Tensor(np.ones((1, 1, 200, 4), np.float32))
    out = operator(1, keep_prob=0.5)(ones, ones, ones)[3].asnumpy()
    assert out.std() > 0 and abs(out.mean() - 1) < 0.05


def test_it_stays_the_primitive_it_replaces():
    attend = operator(4, "BSH", sparse_mode=3)
    assert isinstance(attend, ms.ops.Primitive) and attend.name == "FlashAttentionScore" and attend.head_num == 4
    assert ms.ops.auto_generate.FlashAttentionScore is nn_ops.FlashAttentionScore


def test_refusals():
    query = Tensor(numbers(1, 2, 3, 4))
    with pytest.raises(NotImplementedError, match="prefix"):
        operator(2)(query, query, query, prefix=(1,))
    with pytest.raises(NotImplementedError, match="sparse_mode 7"):
        operator(2, sparse_mode=7)(query, query, query)
    with pytest.raises(ValueError, match="ends in \\(2, 2\\), but the query has 3"):
        operator(2)(query, query, query, attn_mask=Tensor(np.zeros((2, 2), np.uint8)))
    with pytest.raises(ValueError, match="head_num 3 must be a multiple of the number of key heads, 2"):
        operator(3)(query, query, query)
    with pytest.raises(NotImplementedError, match="number 5"):
        flash_attention_score(query, query, query, input_layout=5)
    packed = Tensor(numbers(3, 2, 4))
    with pytest.raises(ValueError, match="actual_seq_qlen"):
        operator(2, "TND")(packed, packed, packed)
    with pytest.raises(NotImplementedError, match="real_shift"):
        operator(2, "TND")(packed, packed, packed, real_shift=packed)
    with pytest.raises(NotImplementedError, match="sparse_mode 0"):
        operator(2, "TND")(packed, packed, packed, attn_mask=Tensor(np.zeros((3, 3), np.uint8)),
                           actual_seq_qlen=[3], actual_seq_kvlen=[3])


def test_meta_tensors_reach_the_original():
    with ms.DeviceCtx("meta"):
        query = Tensor(numbers(1, 2, 16, 16)).astype(ms.float16)
        out = operator(2)(query, query, query)
    assert out[3].shape == (1, 2, 16, 16) and out[3].device == "meta"
    assert math.prod(out[0].shape) == 2 * 16 * 8
