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
"""What a slice map refuses, what it prints, what it shares, and that it serves tensors as well as arrays."""
import pickle

import numpy as np
import pytest

from hyper_parallel.core.dtensor.slice_layouts import gate_up_halves, kv_heads_alone, qkv_sections
from hyper_parallel.core.dtensor.slice_map import Cut, Section, SliceMap


@pytest.mark.parametrize("fields, words", [
    ({"rows": 0}, "rows must be at least 1"), ({"rows": 4, "unit": 0}, "unit must be at least 1"),
    ({"rows": 4, "copies": 0}, "copies must be at least 1"), ({"rows": 4, "padding": -1}, "padding must be at least 0"),
    ({"rows": 10, "unit": 4, "name": "K"}, "section K 10: 10 rows are no whole number of units of 4")])
def test_section_refuses(fields, words):
    with pytest.raises(ValueError, match=words):
        Section(**fields)


@pytest.mark.parametrize("fields, words", [
    ({"dim": -1}, "dim must be at least 0, got -1"), ({"parts": 0}, "parts must be at least 1, got 0"),
    ({"blocks": 0}, "blocks must be at least 1, got 0"), ({"sections": ()}, "axis 'tp': no section given"),
    ({"blocks": 3}, "cannot cut 3 blocks in 2 parts.*valid part counts: 1, 3, 6, 12"),
    ({"sections": (Section(4), Section(3, name="up"))}, r"section 1 \[up 3\] of 3 units of 1 in 2 parts; valid.*: 1$"),
    ({"sections": (Section(4, copies=4),)}, r"section 0 \[4 x4 copies\] of 4 units of 1 in 2 parts; .*: 4, 8, 16$"),
    ({"sections": (Section(1, copies=2), Section(3, copies=4))}, "valid part counts: none$")])
def test_cut_refuses(fields, words):
    with pytest.raises(ValueError, match=words):
        Cut(**{"axis": "tp", "dim": 0, "parts": 2, "sections": (Section(4),), **fields})


def test_slice_map_refuses():
    cut = gate_up_halves(4, 2)
    with pytest.raises(ValueError, match=r"axis 'tp' cuts dim 2 of shape \(8, 3\): dims are 0 to 1"):
        SliceMap.of((8, 3), gate_up_halves(4, 2, dim=2))
    with pytest.raises(ValueError, match=r"cuts 8 rows \(rows cut in 2: \[gate 4 \| up 4\]\), but dim 0.* has 9 there"):
        SliceMap.of((9, 3), cut)
    with pytest.raises(ValueError, match="cuts 8 rows.*has 4 there"):
        SliceMap.of((8, 3), cut, gate_up_halves(4, 2, axis="fsdp"))
    with pytest.raises(ValueError, match=r"each axis cuts once, got cuts over \('tp', 'tp'\)"):
        SliceMap.of((8, 4), cut, gate_up_halves(2, 2, dim=1))
    with pytest.raises(ValueError, match="dim 2 of shape .*valid dims are -2 to 1"):
        SliceMap.plain((8, 4), 2, 2)


def test_a_long_list_of_valid_part_counts_is_cut_short():
    with pytest.raises(ValueError, match="counts: 1, 2, 3, 4, 6, 8, 9, 11, 12, 16, 18, 22, 24, 27, 32, 33, …$"):
        SliceMap.plain((152064, 8), 0, 7)


def test_rank_refuses():
    one = SliceMap.plain((8, 4), 0, 2)
    two = one.then(1, 4, "fsdp")
    with pytest.raises(ValueError, match="no coordinate 2 on axis 'tp' of size 2: valid are 0 to 1"):
        one.pieces(2)
    with pytest.raises(ValueError, match=r"rank None does not say where on the axes \('tp',\)"):
        one.pieces()
    with pytest.raises(ValueError, match=r"rank 1 does not say where on the axes \('tp', 'fsdp'\)"):
        two.local_shape(1)
    with pytest.raises(ValueError, match=r"no coordinate on \['fsdp'\]; the cuts are over \('tp', 'fsdp'\)"):
        two.pieces({"tp": 1, "dp": 0})
    with pytest.raises(ValueError, match="axis None does not name one cut"):
        two.copy_groups()
    with pytest.raises(ValueError, match="axis 'dp' does not name one cut"):
        two.copy_groups(axis="dp")


def test_arrays_refused():
    slice_map = SliceMap.plain((8, 4), 0, 2)
    arrays = [np.zeros((4, 4))] * 2
    with pytest.raises(ValueError, match=r"the whole has shape \(4, 8\), expected \(8, 4\) \(rows cut in 2: \[8\]\)"):
        slice_map.shard(np.zeros((4, 8)), 0)
    with pytest.raises(ValueError, match="3 arrays for 2 ranks"):
        slice_map.unshard(arrays + arrays[:1])
    with pytest.raises(ValueError, match="a rank's part has shape"):
        slice_map.unshard([arrays[0], np.zeros((4, 3))])
    with pytest.raises(ValueError, match="0 arrays"):
        slice_map.unshard([])
    with pytest.raises(ValueError, match="float64.*float32"):
        slice_map.unshard([arrays[0], np.zeros((4, 4), np.float32)])
    with pytest.raises(ValueError, match="the other map's whole"):
        slice_map.intersect(SliceMap.whole((8, 5)), 0, None)


def test_whole_accepts_any_rank_and_any_number_of_arrays():
    slice_map = SliceMap.whole([2, 3])
    array = np.arange(6.).reshape(2, 3)
    everything = (slice(0, 2), slice(0, 3))
    for rank in (None, 7, {"tp": 1}):
        assert slice_map.pieces(rank) == [(everything, everything)]
        assert np.array_equal(slice_map.shard(array, rank), array)
    assert slice_map.is_replicated and slice_map.describe() == "whole"
    assert np.array_equal(slice_map.unshard([array, array + 1]), array)
    assert not slice_map.copies_equal([array, array + 1])
    assert slice_map.to_dict() == {"shape": [2, 3]}


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 0)])
def test_scalars_and_empty_tensors(shape):
    slice_map = SliceMap.whole(shape)
    array = np.zeros(shape)
    assert slice_map.shard(array).shape == slice_map.unshard([array]).shape == shape
    assert slice_map.shard_tensor(array, 0, np.concatenate) is array
    assert slice_map.owned_fraction() == 1
    assert slice_map.unique_weight().shape == (1,) * len(shape)


def test_replicated_through_copies():
    slice_map = SliceMap.sectioned((4,), 0, 2, [Section(4, copies=2)])
    assert slice_map.is_replicated and not SliceMap.plain((4,), 0, 2).is_replicated
    assert slice_map.owned_pieces(0) and not slice_map.owned_pieces(1)


def test_copies_that_differ():
    slice_map = SliceMap.of((4, 2), kv_heads_alone(2, 1, 4, 2))
    array = np.full((4, 2), np.nan)
    assert slice_map.copies_equal([array, array.copy()])
    assert not slice_map.copies_equal([array, np.zeros((4, 2))])
    padded = SliceMap.plain((3,), 0, 2, pad=True)
    assert padded.copies_equal([np.zeros(2), np.ones(2)])


def test_several_cuts_are_row_major():
    slice_map = SliceMap.plain((4, 4), 0, 2).then(-1, 2, "fsdp")
    assert slice_map.ranks() == [{"tp": 0, "fsdp": 0}, {"tp": 0, "fsdp": 1}, {"tp": 1, "fsdp": 0}, {"tp": 1, "fsdp": 1}]
    assert slice_map.pieces({"fsdp": 1, "tp": 0, "pp": 3}) == [((slice(0, 2), slice(2, 4)), (slice(0, 2), slice(0, 2)))]
    assert slice_map.describe() == "tp rows cut in 2: [4], then fsdp columns cut in 2: [4]"


def test_describe():
    assert SliceMap.of((96, 1), qkv_sections(8, 2, 8, 4)).describe() == (
        "rows cut in 4: [Q 64 | K 16 x2 copies | V 16 x2 copies]")
    heads = SliceMap.sectioned((2, 3, 24), -1, 2, (Section(2, name="q"), Section(4)), blocks=4)
    assert heads.describe() == "dim 2 cut in 2: [q 2 | 4] x4 blocks"


def test_plain_data():
    slice_map = SliceMap.of((6, 2), qkv_sections(4, 1, 1, 2)).then(0, 2, "fsdp")
    assert slice_map.to_dict() == {
        "shape": [6, 2],
        "cuts": [{"axis": "tp", "dim": 0, "parts": 2, "sections": [
            {"rows": 4, "name": "Q"}, {"rows": 1, "copies": 2, "name": "K"}, {"rows": 1, "copies": 2, "name": "V"}]},
                 {"axis": "fsdp", "dim": 0, "parts": 2, "sections": [{"rows": 4}]}]}
    for data in ({"shape": [2], "kuts": []},
                 {"shape": [2], "cuts": [{"axis": "tp", "dim": 0, "parts": 1, "sections": [{"rows": 2, "kuts": 1}]}]},
                 {"shape": [2], "cuts": [{"axis": "tp", "dim": 0, "kuts": 1, "sections": [{"rows": 2}]}]}):
        with pytest.raises(ValueError, match=r"unknown fields \['kuts'\]"):
            SliceMap.from_dict(data)


def test_equal_maps_are_one_object():
    first = SliceMap.of((96, 1), qkv_sections(8, 2, 8, 4))
    assert first is SliceMap.of((96, 1), qkv_sections(8, 2, 8, 4)) is SliceMap.from_dict(first.to_dict())
    assert first is SliceMap.sectioned((96, 1), 0, 4, first.cuts[0].sections)
    assert SliceMap.plain((8, 4), -1, 2) is SliceMap.plain([8, 4], 1, 2)
    assert first == SliceMap((96, 1), first.cuts) and hash(first) == hash(SliceMap((96, 1), first.cuts))


def test_a_hash_does_not_travel_to_another_process():
    assert b"_hash" not in pickle.dumps(SliceMap.plain((8, 4), 0, 2))


def test_pieces_of_a_caller_are_its_own():
    slice_map = SliceMap.plain((8, 4), 0, 2)
    slice_map.pieces(0).clear()
    assert len(slice_map.pieces(0)) == 1


def test_only_the_pieces_are_read():
    class Lazy:
        """Stands for a file on disk: remembers what was asked for."""
        shape, dtype, asked = (6, 2), np.float32, []

        def __getitem__(self, slices):
            self.asked.append(slices)
            return np.zeros((slices[0].stop - slices[0].start, 2))

    SliceMap.of((6, 2), qkv_sections(4, 1, 1, 2)).shard(Lazy(), 1)
    assert Lazy.asked == [(slice(2, 6), slice(0, 2))]


def test_padding_of_a_tensor_needs_zeros():
    with pytest.raises(AssertionError, match="needs `zeros`"):
        SliceMap.plain((3,), 0, 2, pad=True).shard_tensor(np.ones(3), 1, np.concatenate)


def test_mindspore_tensors():
    mindspore = pytest.importorskip("mindspore")
    whole = np.arange(60, dtype=np.float32).reshape(12, 5)
    sections = (Section(5, padding=1), Section(4), Section(3, copies=2))
    slice_map = SliceMap.sectioned((12, 5), 0, 2, sections).then(1, 2, "fsdp", pad=True)
    for rank in slice_map.ranks():
        local = slice_map.shard_tensor(mindspore.Tensor(whole), rank, mindspore.ops.cat,
                                       lambda shape: mindspore.ops.zeros(shape, mindspore.float32))
        assert np.array_equal(local.asnumpy(), slice_map.shard(whole, rank))
