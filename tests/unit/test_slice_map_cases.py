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
"""Which bytes each rank holds, written out: the cases users report, one by one."""
import numpy as np
import pytest

from hyper_parallel.core.dtensor.slice_layouts import (blocks, gate_up_halves, gate_up_interleaved, kv_heads_alone,
                                                       qkv_per_group, qkv_per_head, qkv_sections, query_gate_per_head)
from hyper_parallel.core.dtensor.slice_map import Section, SliceMap


def _letters(cut, text):
    """Every rank's letters of a weight that has one letter per row; `/` between ranks."""
    slice_map = SliceMap.of((len(text),), cut)
    return "/".join("".join(slice_map.shard(np.array(list(text)), rank)) for rank in range(cut.parts))


class TestKvHeadsFewerThanRanks:
    """A01, A03: the kv heads are copied inside groups of consecutive ranks."""

    def test_four_kv_heads_on_eight_ranks(self):
        slice_map = SliceMap.of((16, 32), kv_heads_alone(heads=8, kv_heads=4, head_dim=4, parts=8))
        assert slice_map.local_shape() == (4, 32)
        for rank in range(8):
            first = rank // 2 * 4
            assert slice_map.pieces(rank) == [((slice(first, first + 4), slice(0, 32)), (slice(0, 4), slice(0, 32)))]
        assert slice_map.copy_groups() == ((0, 1), (2, 3), (4, 5), (6, 7))
        assert slice_map.copy_group(5) == (4, 5)

    def test_without_copies_the_message_has_both_numbers_and_the_valid_sizes(self):
        with pytest.raises(ValueError, match=r"4 units of 4 in 8 parts; valid part counts: 1, 2, 4$"):
            SliceMap.plain((16, 32), 0, 8, unit=4)

    @pytest.mark.parametrize("parts, copies, queries", [(16, 2, 2), (32, 4, 1)])
    def test_eight_kv_heads_on_more_ranks(self, parts, copies, queries):
        slice_map = SliceMap.of((48, 1), qkv_sections(heads=32, kv_heads=8, head_dim=1, parts=parts))
        assert slice_map.local_shape() == (queries + 2, 1)
        for rank in range(parts):
            own = [rank * queries + query for query in range(queries)]
            assert slice_map.shard(np.arange(48)[:, None], rank).ravel().tolist() == own + [
                32 + rank // copies, 40 + rank // copies]
        assert slice_map.copy_group(parts - 1) == (parts - 1,)
        assert slice_map.copy_group(parts - 1, section=1) == tuple(range(parts - copies, parts))

    @pytest.mark.parametrize("heads, kv_heads, parts, valid", [
        (6, 6, 4, "1, 2, 3, 6"), (52, 52, 8, "1, 2, 4, 13, 26, 52"), (12, 3, 4, "1, 3, 6, 12"),
        (8, 4, 16, "1, 2, 4, 8")])
    def test_refused(self, heads, kv_heads, parts, valid):
        with pytest.raises(ValueError, match=f"{heads} heads with {kv_heads} kv heads cannot be cut in {parts} parts; "
                                             f"valid part counts: {valid}$"):
            qkv_sections(heads, kv_heads, 4, parts)

    def test_heads_that_form_no_groups(self):
        with pytest.raises(ValueError, match="6 heads are no whole number of groups for 4 kv heads"):
            qkv_per_group(6, 4, 8, 2)

    def test_gradient_groups(self):
        assert SliceMap.of((4,), kv_heads_alone(4, 1, 4, 4)).copy_groups() == ((0, 1, 2, 3),)
        assert SliceMap.of((8,), kv_heads_alone(8, 2, 4, 4)).copy_groups() == ((0, 1), (2, 3))


class TestFusedLayouts:
    """C01, C02: each layout's bytes, in letters; capitals are the second head's (or group's)."""

    def test_qkv_sections(self):
        assert _letters(qkv_sections(4, 2, 1, 2), "abcdkKvV") == "abkv/cdKV"
        assert _letters(qkv_sections(4, 2, 1, 4), "abcdkKvV") == "akv/bkv/cKV/dKV"
        assert _letters(qkv_sections(2, 2, 2, 2), "aabbkkKKvvVV") == "aakkvv/bbKKVV"

    def test_qkv_sections_slices(self):
        slice_map = SliceMap.of((64, 32), qkv_sections(heads=8, kv_heads=4, head_dim=4, parts=4))
        columns = slice(0, 32)
        assert slice_map.pieces(1) == [((slice(8, 16), columns), (slice(0, 8), columns)),
                                       ((slice(36, 40), columns), (slice(8, 12), columns)),
                                       ((slice(52, 56), columns), (slice(12, 16), columns))]

    def test_qkv_per_group(self):
        assert _letters(qkv_per_group(4, 2, 1, 2), "abkvcdKV") == "abkv/cdKV"
        assert _letters(qkv_per_group(4, 2, 1, 4), "abkvcdKV") == "akv/bkv/cKV/dKV"
        slice_map = SliceMap.of((8,), qkv_per_group(4, 2, 1, 4))
        assert slice_map.copy_groups(0) == ((0,), (1,), (2,), (3,))
        assert slice_map.copy_groups(1) == ((0, 1), (2, 3))

    def test_per_head(self):
        assert _letters(qkv_per_head(4, 1, 2), "qkvQKVabcABC") == "qkvQKV/abcABC"
        assert _letters(query_gate_per_head(2, 2, 2), "qqggQQGG") == "qqgg/QQGG"
        with pytest.raises(ValueError, match="shared by 2 blocks; valid part counts: 1, 2$"):
            qkv_per_head(2, 4, 4)

    def test_gate_up(self):
        assert _letters(gate_up_halves(4, 2), "abcdABCD") == "abAB/cdCD"
        assert _letters(gate_up_halves(4, 4), "abcdABCD") == "aA/bB/cC/dD"
        assert _letters(gate_up_interleaved(4, 2), "aAbBcCdD") == "aAbB/cCdD"
        with pytest.raises(ValueError, match="3 units of 2 in 2 parts; valid part counts: 1, 3$"):
            gate_up_interleaved(3, 2)

    def test_blocks(self):
        qvk = [Section(2, name=name) for name in "QVK"]
        assert _letters(blocks(qvk, 2, 2), "aavvkkAAVVKK") == "aavvkk/AAVVKK"
        assert _letters(blocks(qvk, 2, 4), "abvwklABVWKL") == "avk/bwl/AVK/BWL"
        with pytest.raises(ValueError, match="cannot cut 4 blocks in 6 parts.*valid part counts: 1, 2, 4, 8$"):
            blocks(qvk, 4, 6)

    def test_experts_are_cut_along_their_last_dim(self):
        slice_map = SliceMap.of((3, 2, 8), gate_up_halves(4, 2, dim=2))
        experts, hidden = slice(0, 3), slice(0, 2)
        assert slice_map.pieces(1) == [((experts, hidden, slice(2, 4)), (experts, hidden, slice(0, 2))),
                                       ((experts, hidden, slice(6, 8)), (experts, hidden, slice(2, 4)))]

    @pytest.mark.parametrize("parts", [2, 4])
    def test_attention_by_sections_is_exact_and_by_chunks_is_not(self, parts):
        heads, kv_heads, head_dim, hidden = 8, 4, 4, 32
        random = np.random.default_rng(0)
        x_SH = random.standard_normal((5, hidden))
        qkv = random.standard_normal(((heads + 2 * kv_heads) * head_dim, hidden)) / 6
        out = random.standard_normal((hidden, heads * head_dim)) / 6

        def attention(weight, heads, kv_heads):
            q, k, v = np.split((x_SH @ weight.T).reshape(5, -1, head_dim), [heads, heads + kv_heads], axis=1)
            k, v = (np.repeat(array, heads // kv_heads, axis=1) for array in (k, v))
            scores = np.exp(np.einsum("shd,thd->hst", q, k) / 2)
            return np.einsum("hst,thd->shd", scores / scores.sum(-1, keepdims=True), v).reshape(5, -1)

        def relative_error(slice_map):
            columns = SliceMap.plain(out.shape, 1, parts)
            summed = sum(attention(slice_map.shard(qkv, rank), heads // parts, kv_heads // parts)
                         @ columns.shard(out, rank).T for rank in range(parts))
            whole = attention(qkv, heads, kv_heads) @ out.T
            return np.linalg.norm(summed - whole) / np.linalg.norm(whole)

        assert relative_error(SliceMap.of(qkv.shape, qkv_sections(heads, kv_heads, head_dim, parts))) < 1e-14
        assert relative_error(SliceMap.plain(qkv.shape, 0, parts)) > 0.5

    @pytest.mark.parametrize("parts", [2, 4])
    def test_gated_mlp(self, parts):
        random = np.random.default_rng(1)
        x_SH, up_2FH, down_HF = (random.standard_normal(shape) for shape in ((3, 4), (16, 4), (4, 8)))

        def error(slice_map, halves):
            def mlp(weight, down):
                gate, up = halves(x_SH @ weight.T)
                return np.tanh(gate) * up @ down.T
            down_map = SliceMap.plain(down_HF.shape, 1, parts)
            summed = sum(mlp(slice_map.shard(up_2FH, rank), down_map.shard(down_HF, rank)) for rank in range(parts))
            whole = mlp(up_2FH, down_HF)
            return np.linalg.norm(summed - whole) / np.linalg.norm(whole)

        def stacked(hidden):
            return np.split(hidden, 2, axis=1)

        def interleaved(hidden):
            return hidden[:, ::2], hidden[:, 1::2]

        chunks = SliceMap.plain(up_2FH.shape, 0, parts)
        assert error(SliceMap.of(up_2FH.shape, gate_up_halves(8, parts)), stacked) < 1e-14
        assert error(chunks, stacked) > 0.5
        assert error(SliceMap.of(up_2FH.shape, gate_up_interleaved(8, parts)), interleaved) < 1e-14
        assert error(chunks, interleaved) < 1e-14


LAYOUTS = {"plain": lambda parts: SliceMap.plain((32, 3), 0, parts).cuts[0],
           "kv_heads_alone": lambda parts: kv_heads_alone(16, 2, 16, parts),
           "qkv_sections": lambda parts: qkv_sections(4, 2, 4, parts),
           "qkv_per_group": lambda parts: qkv_per_group(4, 2, 4, parts),
           "qkv_per_head": lambda parts: qkv_per_head(4, 8, parts),
           "query_gate_per_head": lambda parts: query_gate_per_head(4, 4, parts),
           "gate_up_halves": lambda parts: gate_up_halves(16, parts),
           "gate_up_interleaved": lambda parts: gate_up_interleaved(16, parts),
           "blocks": lambda parts: blocks([Section(4), Section(8)], 2, parts)}


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unshard_of_shard_is_bit_equal(layout, parts):
    """C03."""
    cut = LAYOUTS[layout](parts)
    slice_map = SliceMap.of((cut.rows, 3), cut)
    bits = np.random.default_rng(2).integers(0, 2 ** 32, slice_map.shape, np.uint32)
    whole = bits.view(np.float32)      # NaNs and denormals among them
    arrays = [slice_map.shard(whole, rank) for rank in range(parts)]
    assert slice_map.unshard(arrays).tobytes() == whole.tobytes()
    assert slice_map.copies_equal(arrays)


class TestStorageCutInsideTensorParallel:
    """C06: FSDP may cut a fused weight anywhere; once gathered, each rank sees whole heads."""

    def test_fsdp_over_a_fused_weight(self):
        tensor_parallel = SliceMap.of((16, 1), qkv_sections(heads=4, kv_heads=2, head_dim=2, parts=2))
        storage = tensor_parallel.then(0, 4, "fsdp")
        assert storage.local_shape() == (2, 1)
        whole = np.arange(16)[:, None]
        assert [storage.shard(whole, {"tp": 1, "fsdp": shard}).ravel().tolist() for shard in range(4)] == [
            [4, 5], [6, 7], [10, 11], [14, 15]]
        deeper = tensor_parallel.then(0, 8, "fsdp")
        assert deeper.shard(whole, {"tp": 1, "fsdp": 5}).tolist() == [[11]]        # half a head
        for rank in range(2):
            gathered = np.concatenate([deeper.shard(whole, {"tp": rank, "fsdp": shard}) for shard in range(8)])
            assert np.array_equal(gathered, tensor_parallel.shard(whole, rank))

    def test_fsdp_over_copied_heads_counts_each_head_once(self):
        storage = SliceMap.of((4, 1), kv_heads_alone(4, 1, 4, 2)).then(0, 4, "fsdp")
        assert sum(storage.owned_fraction(rank) for rank in storage.ranks()) == 1
        assert storage.copy_groups(axis="tp") == ((0, 1),)
        assert storage.copy_group({"tp": 1, "fsdp": 3}, axis="tp") == (0, 1)
        assert storage.copy_group({"tp": 1, "fsdp": 3}, axis="fsdp") == (3,)


class TestVocabulary:
    """F01, F02: padded locally, never saved."""

    def test_ten_rows_on_four_ranks(self):
        slice_map = SliceMap.plain((10, 2), 0, 4, pad=True)
        assert slice_map.local_shape() == (3, 2)
        assert slice_map.pieces(3) == [((slice(9, 10), slice(0, 2)), (slice(0, 1), slice(0, 2)))]
        assert [slice_map.padding_rows(rank) for rank in range(4)] == [[], [], [], [(slice(1, 3), slice(0, 2))]]
        whole = np.arange(1., 21.).reshape(10, 2)
        assert slice_map.shard(whole, 3).tolist() == [[19, 20], [0, 0], [0, 0]]
        assert slice_map.unshard([slice_map.shard(whole, rank) for rank in range(4)]).tolist() == whole.tolist()
        assert slice_map.describe() == "rows cut in 4: [10 + 2 padding]"

    def test_a_rank_of_padding_only(self):
        slice_map = SliceMap.plain((5,), 0, 4, pad=True)
        assert slice_map.pieces(3) == []
        assert slice_map.shard(np.ones(5), 3).tolist() == [0, 0]
        assert slice_map.padding_rows(3) == [(slice(0, 2),)]
        assert slice_map.owned_fraction(3) == 0

    def test_the_whole_does_not_depend_on_the_number_of_ranks(self):
        whole = np.random.default_rng(3).standard_normal((10, 2))
        saved = set()
        for parts in (1, 2, 3, 4, 8):
            slice_map = SliceMap.plain((10, 2), 0, parts, pad=True)
            saved.add(slice_map.unshard([slice_map.shard(whole, rank) for rank in range(parts)]).tobytes())
        assert saved == {whole.tobytes()}

    def test_refused_without_padding(self):
        with pytest.raises(ValueError, match=r"\[10\] of 10 units of 1 in 4 parts; valid part counts: 1, 2, 5, 10"):
            SliceMap.plain((10, 2), 0, 4)


class TestGradientNorm:
    """G06: each logical element counts once."""

    def test_shards_and_a_replicated_parameter(self):
        cut, replicated = SliceMap.plain((2,), 0, 2), SliceMap.whole((1,))
        squares = sum((cut.unique_weight(rank) * np.array([gradient]) ** 2).sum()
                      + (replicated.unique_weight(rank, replicas=2) * np.array([12.]) ** 2).sum()
                      for rank, gradient in enumerate((3., 4.)))
        assert squares ** 0.5 == 13

    def test_a_fused_weight_with_copies_and_a_padded_one(self):
        slice_map = SliceMap.of((6, 1), qkv_sections(4, 1, 1, 4))
        assert slice_map.unique_weight(2).tolist() == [[1], [0.25], [0.25]]
        padded = SliceMap.plain((3, 5), 0, 2, pad=True)
        assert padded.unique_weight(1).tolist() == [[1], [0]]
        columns = SliceMap.plain((3, 4), 1, 2)
        assert columns.unique_weight(0).shape == (1, 2)
