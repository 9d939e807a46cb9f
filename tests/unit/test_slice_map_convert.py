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
"""Slice maps from placements and back, transfers between any two maps, rows dealt out in turn."""
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_state import local_area, shard_orders
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.slice_convert import from_placements, to_placements, transfers
from hyper_parallel.core.dtensor.slice_layouts import gate_up_halves, interleaved, kv_heads_alone, qkv_sections
from hyper_parallel.core.dtensor.slice_map import SliceMap

MESH = DeviceMesh("npu", (2, 2, 3), ("fsdp", "tp", "cp"))
WORDS = (Replicate(), Shard(0), Shard(1), Shard(-1))


@pytest.mark.parametrize("placements", list(itertools.product(WORDS, repeat=3))
                         + [(StridedShard(0, 2), Shard(0), Shard(1)), (StridedShard(0, 6), Shard(0), Shard(0)),
                            (StridedShard(0, 3), StridedShard(0, 3), Shard(0)),
                            (Shard(1), StridedShard(0, 3), Shard(0))])
def test_pieces_are_the_areas_of_the_placements(placements):
    shape = (24, 36)
    slice_map = from_placements(shape, MESH, placements)
    normal = tuple(item.normalize(2) if isinstance(item, Shard) else item for item in placements)
    cuts = shard_orders(normal, MESH.mesh_shape, 2)
    for rank in range(12):
        place = MESH.get_coordinate(rank)
        area = tuple(slice(start, start + rows) for start, rows in local_area(shape, cuts, MESH.mesh_shape, place))
        (held, own), = slice_map.pieces(dict(zip(MESH.mesh_dim_names, place)))
        assert held == area and own == tuple(slice(0, piece.stop - piece.start) for piece in area)
    assert to_placements(slice_map, MESH) == normal


def test_uneven_parts_are_padded_when_asked():
    mesh = DeviceMesh("npu", (4,), ("tp",))
    with pytest.raises(ValueError, match=r"axis 'tp' of size 4 does not divide dim 0 of size 5.*pad=True"):
        from_placements((5, 2), mesh, (Shard(0),))
    slice_map = from_placements((5, 2), mesh, (Shard(0),), pad=True)
    assert [slice_map.pieces(rank)[0][0][0] if slice_map.pieces(rank) else None for rank in range(4)] == [
        slice(0, 2), slice(2, 4), slice(4, 5), None]


def test_what_slices_cannot_say_is_refused():
    mesh = DeviceMesh("npu", (2, 2), ("fsdp", "tp"))
    with pytest.raises(ValueError, match="axis 'tp' is Partial"):
        from_placements((4, 4), mesh, (Replicate(), Partial()))
    with pytest.raises(ValueError, match="axis 'tp' of size 2 does not divide dim 0 of size 6"):
        from_placements((6, 4), mesh, (Shard(0), Shard(0)), pad=True)
    with pytest.raises(ValueError, match="not equal chunks"):
        to_placements(SliceMap.of((8, 4), gate_up_halves(4, 2)), mesh)
    with pytest.raises(ValueError, match="cannot be said"):
        to_placements(SliceMap.of((4, 4), kv_heads_alone(4, 1, 4, 2)), mesh)
    with pytest.raises(ValueError, match="has 2 ranks"):
        to_placements(SliceMap.plain((8, 4), 0, 4, "tp"), mesh)


def test_an_axis_of_one_rank_does_not_cut():
    assert from_placements((5, 3), DeviceMesh("npu", (1,), ("tp",)), (Shard(0),)).cuts == ()


MAPS = [
    SliceMap.whole((24, 4)),
    SliceMap.plain((24, 4), 0, 2), SliceMap.plain((24, 4), 0, 8), SliceMap.plain((24, 4), 1, 4),
    SliceMap.plain((24, 4), 0, 5, pad=True),
    SliceMap.plain((24, 4), 0, 2).then(0, 3, "fsdp"), SliceMap.plain((24, 4), 1, 2).then(0, 4, "fsdp"),
    SliceMap.of((24, 4), qkv_sections(4, 2, 3, 2)), SliceMap.of((24, 4), qkv_sections(4, 2, 3, 4)),
    SliceMap.of((24, 4), gate_up_halves(12, 4)), SliceMap.of((24, 4), kv_heads_alone(8, 4, 6, 8)),
    SliceMap.of((24, 4), interleaved(24, 3, unit=2)),
    SliceMap.of((24, 4), interleaved(24, 2, unit=4)).then(1, 2, "fsdp"),
]


@pytest.mark.parametrize("before", MAPS, ids=lambda item: item.describe()[:40])
@pytest.mark.parametrize("after", MAPS, ids=lambda item: item.describe()[:40])
def test_transfers_between_any_two_maps(before, after):
    """Every rank ends with its part, each element fetched once, without a whole anywhere."""
    whole = np.random.default_rng(0).permutation(24 * 4).reshape(24, 4) + 1
    given_parts = {tuple(rank.items()): before.shard(whole, rank) for rank in before.ranks()}
    for rank in after.ranks():
        part, fetched = np.zeros(after.local_shape(), whole.dtype), np.zeros(after.local_shape(), int)
        for transfer in transfers(before, after, rank):
            part[transfer.target] = given_parts[tuple(transfer.rank.items())][transfer.source]
            fetched[transfer.target] += 1
        np.testing.assert_array_equal(part, after.shard(whole, rank))
        np.testing.assert_array_equal(fetched, part > 0)


@settings(deadline=None, max_examples=60)
@given(parts=st.integers(1, 5), unit=st.integers(1, 4), rounds=st.integers(1, 5), columns=st.integers(1, 3))
def test_interleaved_rows_are_dealt_in_turn(parts, unit, rounds, columns):
    rows = parts * unit * rounds
    slice_map = SliceMap.of((rows, columns), interleaved(rows, parts, unit))
    whole = np.arange(rows * columns).reshape(rows, columns)
    shards = [slice_map.shard(whole, rank) for rank in range(parts)]
    for rank, shard in enumerate(shards):
        np.testing.assert_array_equal(shard, whole.reshape(rounds, parts, unit, columns)[:, rank].reshape(-1, columns))
    np.testing.assert_array_equal(slice_map.unshard(shards), whole)


def test_interleaved_rows_come_in_whole_rounds():
    with pytest.raises(ValueError, match="10 rows in units of 2 to 3 parts: a round takes 6 rows"):
        interleaved(10, 3, unit=2)
