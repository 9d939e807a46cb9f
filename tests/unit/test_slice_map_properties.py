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
"""Every map against index arrays that a few lines of plain numpy compute on their own."""
import itertools
import json
import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hyper_parallel.core.dtensor.slice_map import Cut, Section, SliceMap

PADDING = -1


def _reference_rows(rows, cut, coordinate):
    """Rows of the whole that the rank at `coordinate` holds of `rows`; PADDING where there is none."""
    held = []
    for number, block in enumerate(np.split(np.asarray(rows), cut.blocks)):
        sharers = max(1, cut.parts // cut.blocks)
        if coordinate * cut.blocks // cut.parts != number and number * cut.parts // cut.blocks != coordinate:
            continue
        bounds = np.cumsum([section.rows for section in cut.sections])[:-1]
        for section, part in zip(cut.sections, np.split(block, bounds)):
            padded = np.append(part, [PADDING] * section.padding).astype(int)
            held.append(np.split(padded, sharers // section.copies)[coordinate % sharers // section.copies])
    return np.concatenate(held)


def _reference_by_dim(slice_map, rank):
    """Rows of the whole that the rank holds along each dim."""
    by_dim = [np.arange(rows) for rows in slice_map.shape]
    for cut in slice_map.cuts:
        by_dim[cut.dim] = _reference_rows(by_dim[cut.dim], cut, rank[cut.axis])
    return by_dim


def _reference(slice_map, rank):
    """Flat index in the whole of every local element; PADDING where there is none."""
    flat = np.arange(np.prod(slice_map.shape)).reshape(slice_map.shape)
    grid = np.ix_(*_reference_by_dim(slice_map, rank))
    return np.where(np.logical_and.reduce(np.broadcast_arrays(*(index >= 0 for index in grid))), flat[grid], PADDING)


@st.composite
def _cut(draw, axis, dim, rows=None):
    """A cut of a dim of a size of its own, or a plain cut of `rows` rows, padded where need be."""
    if rows is not None:
        parts = draw(st.integers(1, 5))
        return Cut(axis, dim, parts, (Section(rows, padding=-rows % parts),))
    blocks = draw(st.sampled_from([1, 1, 2, 4, 6]))
    parts = blocks * draw(st.sampled_from([1, 2, 4])) if draw(st.booleans()) else draw(
        st.sampled_from([parts for parts in range(1, blocks + 1) if blocks % parts == 0]))
    sharers = max(1, parts // blocks)
    sections = []
    for _ in range(draw(st.integers(1, 3))):
        copies = draw(st.sampled_from([copies for copies in (1, 2, 4) if sharers % copies == 0]))
        unit = draw(st.integers(1, 3))
        padded = unit * sharers // copies * draw(st.integers(1, 2))
        padding = draw(st.integers(0, padded - 1))
        sections.append(Section(padded - padding, unit, copies, padding))
    return Cut(axis, dim, parts, tuple(sections), blocks)


@st.composite
def _slice_map(draw, max_cuts=3):
    """A map with up to two fused cuts on different dims, and perhaps a plain one inside, on any dim."""
    ndim = draw(st.integers(1, 3))
    cuts, shape = [], [draw(st.integers(1, 4)) for _ in range(ndim)]
    dims = draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=min(2, max_cuts)))
    for axis, dim in zip(("tp", "ep"), dims):
        cuts.append(draw(_cut(axis, dim)))
        shape[dim] = cuts[-1].rows
    slice_map = SliceMap(shape, cuts)
    if len(cuts) < max_cuts and draw(st.booleans()):
        dim = draw(st.integers(0, ndim - 1))
        slice_map = SliceMap(shape, cuts + [draw(_cut("fsdp", dim, slice_map.local_shape()[dim]))])
    return slice_map


@st.composite
def _other_map(draw, shape):
    """Another map of the same whole: a cut and a cut of the cut, of any dims."""
    slice_map = SliceMap.whole(shape)
    for axis in ("a", "b"):
        dim = draw(st.integers(0, len(shape) - 1))
        rows = slice_map.local_shape()[dim]
        if axis == "a" and draw(st.booleans()) and rows > 1:
            first = draw(st.integers(1, rows - 1))
            parts = draw(st.sampled_from([2, 3]))
            sections = (Section(first, copies=parts), Section(rows - first, padding=-(rows - first) % parts))
            slice_map = SliceMap.sectioned(shape, dim, parts, sections, axis="a")
        else:
            slice_map = slice_map.then(dim, draw(st.integers(1, 4)), axis, pad=True)
    return slice_map


def _bits(shape):
    """Random bit patterns, NaNs among them, that differ everywhere and are never the zero of padding."""
    size = int(np.prod(shape))
    bits = np.random.default_rng(0).permutation(size) + 0x7FC00001
    return bits.astype(np.uint32).view(np.float32).reshape(shape)


def _same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@settings(max_examples=300, deadline=None)
@given(_slice_map())
def test_every_rank_holds_what_the_reference_says(slice_map):
    whole = _bits(slice_map.shape)
    for rank in slice_map.ranks():
        expected = _reference(slice_map, rank)
        assert slice_map.local_shape(rank) == expected.shape
        local = np.where(expected == PADDING, np.float32(0), whole.ravel()[expected])
        assert _same(slice_map.shard(whole, rank), local)
        tensor = slice_map.shard_tensor(whole, rank, np.concatenate, lambda shape: np.zeros(shape, np.float32))
        assert _same(tensor, local)


@settings(max_examples=200, deadline=None)
@given(_slice_map())
def test_unshard_is_the_inverse_of_shard(slice_map):
    whole = _bits(slice_map.shape)
    arrays = [slice_map.shard(whole, rank) for rank in slice_map.ranks()]
    assert _same(slice_map.unshard(arrays), whole)
    assert slice_map.copies_equal(arrays)


@settings(max_examples=200, deadline=None)
@given(_slice_map())
def test_pieces_cover_everything_and_nothing_twice_but_copies(slice_map):
    owned, held, weights = (np.zeros(slice_map.shape) for _ in range(3))
    for rank in slice_map.ranks():
        local = np.zeros(slice_map.local_shape(), int)
        for whole_slices, local_slices in slice_map.pieces(rank):
            held[whole_slices] += 1
            local[local_slices] += 1
            weight = np.broadcast_to(slice_map.unique_weight(rank), local.shape)
            weights[whole_slices] += weight[local_slices]
        for whole_slices, _ in slice_map.owned_pieces(rank):
            owned[whole_slices] += 1
        padding = np.zeros(local.shape, bool)
        for local_slices in slice_map.padding_rows(rank):
            padding[local_slices] = True
        assert np.array_equal(padding, _reference(slice_map, rank) == PADDING)
        assert np.array_equal(local, ~padding)
        assert not (slice_map.unique_weight(rank) * padding).any()
    assert (owned == 1).all()
    assert np.allclose(weights, 1, atol=1e-12)
    counts = np.zeros(held.size)
    for rank in slice_map.ranks():
        reference = _reference(slice_map, rank)
        np.add.at(counts, reference[reference != PADDING], 1)
    assert np.array_equal(held.ravel(), counts)
    assert abs(sum(slice_map.owned_fraction(rank) for rank in slice_map.ranks()) - 1) < 1e-12


@settings(max_examples=200, deadline=None)
@given(_slice_map())
def test_pieces_are_merged(slice_map):
    for rank in slice_map.ranks():
        runs = 1
        for rows in _reference_by_dim(slice_map, rank):
            begins = np.diff(rows, prepend=PADDING - 1) != 1
            runs *= np.count_nonzero((begins | (np.roll(rows, 1) == PADDING)) & (rows != PADDING))
        assert len(slice_map.pieces(rank)) == runs


@settings(max_examples=200, deadline=None)
@given(_slice_map(max_cuts=1))
def test_ranks_of_a_copy_group_hold_the_same_bytes(slice_map):
    whole = _bits(slice_map.shape)
    for cut in slice_map.cuts:
        arrays = [slice_map.shard(whole, rank) for rank in range(cut.parts)]
        for rank in range(cut.parts):
            group = slice_map.copy_group(rank)
            assert rank in group
            assert all(_same(arrays[rank], arrays[other]) for other in group)
        for number, section in enumerate(cut.sections):
            groups = slice_map.copy_groups(number)
            assert sorted(itertools.chain(*groups)) == list(range(cut.parts))
            assert {len(group) for group in groups} == {section.copies}
            assert all(slice_map.copy_group(rank, number) == group for group in groups for rank in group)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_resharding_by_intersections(data):
    """What a rank of B lacks is found on the ranks of A, with `once` exactly once."""
    before = data.draw(_slice_map())
    after = data.draw(_other_map(before.shape))
    if data.draw(st.booleans()):
        before, after = after, before
    whole = _bits(before.shape)
    arrays = [before.shard(whole, rank) for rank in before.ranks()]
    for new_rank in after.ranks():
        expected = after.shard(whole, new_rank)
        for once in (False, True):
            local, written = np.zeros_like(expected), np.zeros(expected.shape, int)
            for rank, array in zip(before.ranks(), arrays):
                for own_slices, other_slices in before.intersect(after, rank, new_rank, once=once):
                    local[other_slices] = array[own_slices]
                    written[other_slices] += 1
            assert _same(local, expected)
            assert not once or np.array_equal(written, _reference(after, new_rank) != PADDING)


@settings(max_examples=200, deadline=None)
@given(_slice_map())
def test_round_trips(slice_map):
    assert SliceMap.from_dict(json.loads(json.dumps(slice_map.to_dict()))) == slice_map
    copy = pickle.loads(pickle.dumps(slice_map))
    assert copy == slice_map and hash(copy) == hash(slice_map)
    assert slice_map.describe()


@settings(max_examples=200, deadline=None)
@given(_slice_map())
def test_replicated_means_that_every_rank_holds_the_whole(slice_map):
    everything = np.arange(np.prod(slice_map.shape)).reshape(slice_map.shape)
    padded = any((_reference(slice_map, rank) == PADDING).any() for rank in slice_map.ranks())
    assert slice_map.has_padding == padded
    assert slice_map.is_replicated == all(np.array_equal(_reference(slice_map, rank), everything)
                                          for rank in slice_map.ranks())


@settings(max_examples=200, deadline=None)
@given(_cut("tp", 0), st.integers(1, 30))
def test_valid_parts_are_exactly_those_that_construct(cut, parts):
    try:
        Cut("tp", 0, parts, cut.sections, cut.blocks)
    except ValueError as error:
        assert parts not in cut.valid_parts()
        assert f"in {parts} parts" in str(error)
    else:
        assert parts in cut.valid_parts()
