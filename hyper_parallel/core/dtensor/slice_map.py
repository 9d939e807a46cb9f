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
"""Which part of the whole each rank holds, kept symbolically: sections, copies, padding, blocks.

A `Section` is a run of rows that is cut on its own, a `Cut` is what one mesh axis does to one tensor dim, a `SliceMap`
is a shape and its cuts. Sharding, saving, loading, resharding and the gradient norm all read the same map; nothing is
computed for a rank until somebody asks, so that a hundred thousand parameters can share a few dozen maps.

"Rows" are positions along the dim that is cut, whichever dim that is. *Local* is what one rank holds.
"""
import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from hyper_parallel.core.dtensor.slice_cut import Cut, Run, Section, merge_runs, nest_runs, overlapping_rows, take_rows

__all__ = ["Cut", "Section", "SliceMap"]

Slices = Tuple[slice, ...]
Rank = Union[int, Mapping[str, int]]


@dataclass(frozen=True)
class SliceMap:
    """A shape and its cuts: the one record of which part of the whole each rank holds.

    A `rank` is the coordinate on the axis (an int) when there is one cut, and in general a mapping `{axis: coordinate}`
    in which axes that do not cut are ignored. With no cut anything is accepted, None included.

    Args:
        shape (Sequence[int]): of the whole, without padding.
        cuts (Sequence[Cut]): in order: a later cut cuts what the earlier ones left (tensor parallel outside, FSDP
            inside). Each axis cuts once.

    Raises:
        ValueError: a cut names a dim or a number of rows that is not there, or an axis cuts twice.

    Examples:
        >>> vocabulary = SliceMap.plain((10, 2), dim=0, parts=4, pad=True)
        >>> vocabulary.local_shape(3), vocabulary.pieces(3)
        ((3, 2), [((slice(9, 10, None), slice(0, 2, None)), (slice(0, 1, None), slice(0, 2, None)))])
        >>> vocabulary.describe()
        'rows cut in 4: [10 + 2 padding]'
    """

    shape: Tuple[int, ...]
    cuts: Tuple[Cut, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(map(operator.index, self.shape)))
        object.__setattr__(self, "cuts", tuple(self.cuts))
        local = list(self.shape)
        for cut in self.cuts:
            if cut.dim >= len(local):
                raise ValueError(f"axis '{cut.axis}' cuts dim {cut.dim} of shape {self.shape}: dims are 0 to "
                                 f"{len(local) - 1}")
            if cut.rows != local[cut.dim]:
                raise ValueError(f"axis '{cut.axis}' cuts {cut.rows} rows ({cut.describe()}), but dim {cut.dim} of "
                                 f"shape {self.shape} has {local[cut.dim]} there")
            local[cut.dim] = cut.local_rows
        if len(set(self.axes)) < len(self.cuts):
            raise ValueError(f"each axis cuts once, got cuts over {self.axes}")
        object.__setattr__(self, "_local_shape", tuple(local))
        object.__setattr__(self, "_hash", hash((self.shape, self.cuts)))

    def __hash__(self):
        return self._hash

    def __reduce__(self):
        # The stored hash holds only in the process that computed it: strings hash differently in the next one.
        return SliceMap, (self.shape, self.cuts)

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "SliceMap":
        """Every rank holds everything."""
        return _interned(tuple(shape), ())

    @classmethod
    def of(cls, shape: Sequence[int], *cuts: Cut) -> "SliceMap":
        """`SliceMap(shape, cuts)`, shared: equal maps from here and from the other constructors are one object."""
        return _interned(tuple(shape), cuts)

    @classmethod
    def plain(cls, shape: Sequence[int], dim: int, parts: int, axis: str = "tp", unit: int = 1,
              pad: bool = False) -> "SliceMap":
        """Equal chunks in rank order (`AABBCC → AA / BB / CC`), of whole units; `pad` appends zero rows if need be."""
        return _plain(tuple(shape), dim, parts, axis, unit, pad)

    @classmethod
    def sectioned(cls, shape: Sequence[int], dim: int, parts: int, sections: Sequence[Section], axis: str = "tp",
                  blocks: int = 1) -> "SliceMap":
        """Each section cut on its own (`AABB → AB / AB`); see `Cut`."""
        return _sectioned(tuple(shape), dim, parts, tuple(sections), axis, blocks)

    def then(self, dim: int, parts: int, axis: str, unit: int = 1, pad: bool = False) -> "SliceMap":
        """What each rank holds, cut once more in plain chunks over another axis, as FSDP does inside tensor parallel.

        The storage may cut through heads and sections; a rank of the first axis has its own bytes back once the second
        axis is gathered::

            whole                   qqQQkkKKvvVV
            tp 0 / tp 1             qqkkvv / QQKKVV
            fsdp 0 / fsdp 1 of tp 0 qqk / kvv

        Examples:
            >>> SliceMap.plain((8, 4), 0, 2, "tp").then(0, 4, "fsdp").local_shape()
            (1, 4)
        """
        inner = _plain(self._local_shape, dim, parts, axis, unit, pad)
        return _interned(self.shape, self.cuts + inner.cuts)

    @property
    def axes(self) -> Tuple[str, ...]:
        """The axes that cut, in order."""
        return tuple(cut.axis for cut in self.cuts)

    @property
    def has_padding(self) -> bool:
        """True when some rank holds rows that are not in the whole."""
        return any(cut.has_padding for cut in self.cuts)

    @property
    def is_replicated(self) -> bool:
        """True when every rank holds the whole, through no cut at all or through copies."""
        return self._local_shape == self.shape and not self.has_padding

    @property
    def is_even_chunks(self) -> bool:
        """True when the parts are what `Shard` and `Replicate` alone can say: equal chunks of the whole, in rank order."""
        if self.has_padding or len(self.cuts) > 1:
            return False
        return all(pieces == [(tuple(slice(rank[cut.axis] * size, (rank[cut.axis] + 1) * size) if dim == cut.dim
                                     else slice(0, size) for dim, size in enumerate(self._local_shape)),
                               tuple(slice(0, size) for size in self._local_shape))]
                   for cut in self.cuts for rank in self.ranks() for pieces in (self.pieces(rank),))

    def ranks(self) -> List[Dict[str, int]]:
        """Every rank as a mapping, row-major in the order of the cuts: the order that `unshard` takes."""
        grid = itertools.product(*(range(cut.parts) for cut in self.cuts))
        return [dict(zip(self.axes, coordinates)) for coordinates in grid]

    def local_shape(self, rank: Optional[Rank] = None) -> Tuple[int, ...]:
        """Shape of a rank's part, padding included; the same on all ranks."""
        if rank is not None:
            self._coordinates(rank)
        return self._local_shape

    def pieces(self, rank: Optional[Rank] = None) -> List[Tuple[Slices, Slices]]:
        """`(slices of the whole, slices of the local part)` of everything the rank holds; padding is not listed."""
        return list(_pieces(self, self._coordinates(rank), False))

    def owned_pieces(self, rank: Optional[Rank] = None) -> List[Tuple[Slices, Slices]]:
        """The pieces of which this rank is the first holder: over all ranks, each element of the whole once."""
        return list(_pieces(self, self._coordinates(rank), True))

    def padding_rows(self, rank: Optional[Rank] = None) -> List[Slices]:
        """Slices of the local part that are padding. With padding on two dims they overlap in the corner."""
        found = []
        for dim, runs in enumerate(_runs(self, self._coordinates(rank))):
            starts = [run.local for run in runs] + [self._local_shape[dim]]
            stops = [0] + [run.local + run.rows for run in runs]
            found += [tuple(slice(stop, start) if other == dim else slice(0, rows)
                            for other, rows in enumerate(self._local_shape))
                      for stop, start in zip(stops, starts) if stop < start]
        return found

    def shard(self, array: np.ndarray, rank: Optional[Rank] = None) -> np.ndarray:
        """The rank's part of `array`, a new array; padding is zero. The inverse is `unshard`.

        Args:
            array: anything with `shape`, `dtype` and slicing; only the rank's pieces are read.
        """
        self._check_shape(array.shape, self.shape, "the whole")
        local = (np.zeros if self.has_padding else np.empty)(self._local_shape, array.dtype)
        for whole_slices, local_slices in self.pieces(rank):
            local[local_slices] = array[whole_slices]
        return local

    def unshard(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The whole from every rank's part; of copies the first is taken, padding is dropped.

        Args:
            arrays: in the order of `ranks()`. With no cut any number of them.

        Raises:
            ValueError: the number of arrays, a shape or a dtype is wrong.
        """
        self._ranks_of(arrays)
        whole = np.empty(self.shape, arrays[0].dtype)
        for rank, array in zip(self.ranks(), arrays):
            for whole_slices, local_slices in self.owned_pieces(rank):
                whole[whole_slices] = array[local_slices]
        return whole

    def copies_equal(self, arrays: Sequence[np.ndarray]) -> bool:
        """True when all copies of the same rows are bit-equal; takes what `unshard` takes. Padding is not compared."""
        whole = self.unshard(arrays)
        return all(whole[whole_slices].tobytes() == array[local_slices].tobytes()
                   for rank, array in zip(self._ranks_of(arrays), arrays)
                   for whole_slices, local_slices in self.pieces(rank))

    def shard_tensor(self, tensor: Any, rank: Rank, concatenate: Callable, zeros: Optional[Callable] = None) -> Any:
        """`shard` for any tensor type, through slicing and concatenation only.

        Args:
            tensor: anything with `shape` and slicing, a MindSpore Tensor for example.
            rank: as everywhere.
            concatenate: called as `concatenate(list_of_tensors, dim)`, for example `mindspore.ops.cat`.
            zeros: called as `zeros(shape)` for padding rows; may be None when the map has no padding.

        Returns:
            The rank's part; `tensor` itself when nothing is cut.
        """
        self._check_shape(tensor.shape, self.shape, "the whole")
        assert zeros is not None or not self.has_padding, "a map with padding needs `zeros`"
        by_dim = _runs(self, self._coordinates(rank))
        for dim in sorted({cut.dim for cut in self.cuts}):
            tensor = take_rows(tensor, dim, by_dim[dim], self._local_shape[dim], concatenate, zeros)
        return tensor

    def copy_group(self, rank: Rank, section: Optional[int] = None, axis: Optional[str] = None) -> Tuple[int, ...]:
        """Coordinates on the axis, the rank's own included, that hold the same rows as the rank does.

        Args:
            rank: as everywhere.
            section: index of the section that is meant; None asks for the ranks that share all of them.
            axis: may be left out when one axis cuts.
        """
        cut = self._cut_of(axis)
        own = dict(zip(self.axes, self._coordinates(rank)))[cut.axis]
        sections = cut.sections if section is None else (cut.sections[section],)
        return tuple(other for other in range(cut.parts)
                     if all(other // s.copies == own // s.copies for s in sections))

    def copy_groups(self, section: int = 0, axis: Optional[str] = None) -> Tuple[Tuple[int, ...], ...]:
        """All groups of `copy_group` for one section, in order: 4 kv heads on 8 ranks are `((0, 1), (2, 3), …)`."""
        cut = self._cut_of(axis)
        copies = cut.sections[section].copies
        return tuple(tuple(range(first, first + copies)) for first in range(0, cut.parts, copies))

    def unique_weight(self, rank: Optional[Rank] = None, replicas: int = 1) -> np.ndarray:
        """Weights that broadcast against the local part: 1 / copies where the rank holds rows, 0 on padding.

        Summing `weight * gradient ** 2` over all ranks counts each element of the whole once.

        Args:
            rank: as everywhere.
            replicas (int): ranks along axes that do not cut and that the sum runs over as well.
        """
        weight = np.full((1,) * len(self.shape), 1.0 / replicas)
        for dim, runs in enumerate(_runs(self, self._coordinates(rank))):
            if any(cut.dim == dim for cut in self.cuts):
                rows = np.zeros(self._local_shape[dim])
                for run in runs:
                    rows[run.local:run.local + run.rows] = 1.0 / run.copies
                weight = weight * rows.reshape((-1,) + (1,) * (len(self.shape) - dim - 1))
        return weight

    def owned_fraction(self, rank: Optional[Rank] = None) -> float:
        """Share of the whole that the rank accounts for when copies share evenly; over all ranks the sum is 1."""
        return math.prod(sum(run.rows / run.copies for run in runs) / rows if rows else 1.0
                         for runs, rows in zip(_runs(self, self._coordinates(rank)), self.shape))

    def intersect(self, other: "SliceMap", rank: Rank, other_rank: Rank,
                  once: bool = False) -> List[Tuple[Slices, Slices]]:
        """`(slices of my local part, slices of the other's local part)` of the elements that both ranks hold.

        Over all ranks of self these cover everything a rank of `other` holds, so that a checkpoint can change its
        layout without ever being gathered.

        Args:
            other (SliceMap): of the same whole.
            rank: a rank of self.
            other_rank: a rank of `other`.
            once (bool): leave out what an earlier rank of self holds too, so that nothing is sent twice.
        """
        self._check_shape(other.shape, self.shape, "the other map's whole")
        mine, theirs = _runs(self, self._coordinates(rank)), _runs(other, other._coordinates(other_rank))
        if once:
            mine = [[run for run in runs if run.first] for runs in mine]
        by_dim = [overlapping_rows(merge_runs(own), merge_runs(others)) for own, others in zip(mine, theirs)]
        return [_split_pairs(pairs) for pairs in itertools.product(*by_dim)]

    def to_dict(self) -> Dict[str, Any]:
        """Plain data for JSON; fields at their default are left out. The inverse is `from_dict`."""
        return {"shape": list(self.shape), **({"cuts": [cut.to_dict() for cut in self.cuts]} if self.cuts else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SliceMap":
        """The map that `to_dict` wrote; ValueError for a field that does not exist."""
        unknown = sorted(set(data) - {"shape", "cuts"})
        if unknown:
            raise ValueError(f"SliceMap with unknown fields {unknown}: known are shape, cuts")
        return _interned(tuple(data["shape"]), tuple(map(Cut.from_dict, data.get("cuts", ()))))

    def describe(self) -> str:
        """A short phrase: `rows cut in 4: [Q 64 | K 16 x2 copies | V 16 x2 copies]`."""
        if not self.cuts:
            return "whole"
        if len(self.cuts) == 1:
            return self.cuts[0].describe()
        return ", then ".join(f"{cut.axis} {cut.describe()}" for cut in self.cuts)

    def _coordinates(self, rank: Optional[Rank]) -> Tuple[int, ...]:
        """The rank's coordinate on each cut's axis."""
        if not self.cuts:
            return ()
        if not isinstance(rank, Mapping):
            if rank is None or len(self.cuts) > 1:
                raise ValueError(f"rank {rank!r} does not say where on the axes {self.axes} it is: pass a mapping "
                                 "{axis: coordinate}, or an int when one axis cuts")
            rank = {self.cuts[0].axis: rank}
        missing = [axis for axis in self.axes if axis not in rank]
        if missing:
            raise ValueError(f"rank {dict(rank)} has no coordinate on {missing}; the cuts are over {self.axes}")
        for cut in self.cuts:
            if not 0 <= rank[cut.axis] < cut.parts:
                raise ValueError(f"no coordinate {rank[cut.axis]} on axis '{cut.axis}' of size {cut.parts}: "
                                 f"valid are 0 to {cut.parts - 1}")
        return tuple(operator.index(rank[axis]) for axis in self.axes)

    def _cut_of(self, axis: Optional[str]) -> Cut:
        """The cut over `axis`; None means the only one."""
        found = [cut for cut in self.cuts if axis in (None, cut.axis)]
        if len(found) != 1:
            raise ValueError(f"axis {axis!r} does not name one cut; the cuts are over {self.axes}")
        return found[0]

    def _ranks_of(self, arrays: Sequence[Any]) -> List[Dict[str, int]]:
        """One rank per array, after a look at the number of arrays and their shapes."""
        ranks = self.ranks() if self.cuts else [{}] * len(arrays)
        if len(arrays) != len(ranks) or not ranks:
            raise ValueError(f"{len(arrays)} arrays for {max(1, len(ranks))} ranks ({self.describe()})")
        for array in arrays:
            self._check_shape(array.shape, self._local_shape, "a rank's part")
            if array.dtype != arrays[0].dtype:
                raise ValueError(f"the ranks' parts differ in dtype: {arrays[0].dtype} and {array.dtype}")
        return ranks

    def _check_shape(self, found: Sequence[int], expected: Tuple[int, ...], what: str):
        if tuple(found) != expected:
            raise ValueError(f"{what} has shape {tuple(found)}, expected {expected} ({self.describe()})")


@functools.lru_cache(maxsize=4096)
def _interned(shape: Tuple[int, ...], cuts: Tuple[Cut, ...]) -> SliceMap:
    """Equal maps are one object, so that parameters of one template share it."""
    return SliceMap(shape, cuts)


@functools.lru_cache(maxsize=4096)
def _plain(shape: Tuple[int, ...], dim: int, parts: int, axis: str, unit: int, pad: bool) -> SliceMap:
    dim = _dim_of(shape, dim)
    padding = -shape[dim] % (unit * parts) if pad else 0
    return _interned(shape, (Cut(axis, dim, parts, (Section(shape[dim], unit, padding=padding),)),))


@functools.lru_cache(maxsize=4096)
def _sectioned(shape: Tuple[int, ...], dim: int, parts: int, sections: Tuple[Section, ...], axis: str,
               blocks: int) -> SliceMap:
    return _interned(shape, (Cut(axis, _dim_of(shape, dim), parts, sections, blocks),))


def _dim_of(shape: Sequence[int], dim: int) -> int:
    """`dim` counted from the front."""
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"dim {dim} of shape {tuple(shape)}: valid dims are {-len(shape)} to {len(shape) - 1}")
    return dim % len(shape)


@functools.lru_cache(maxsize=16384)
def _runs(slice_map: SliceMap, coordinates: Tuple[int, ...]) -> Tuple[Tuple[Run, ...], ...]:
    """What a rank holds along each dim, in local order: the part is the product over the dims."""
    by_dim = [(Run(0, 0, rows, 1, True),) for rows in slice_map.shape]
    for cut, coordinate in zip(slice_map.cuts, coordinates):
        by_dim[cut.dim] = tuple(nest_runs(by_dim[cut.dim], cut.runs(coordinate)))
    return tuple(by_dim)


@functools.lru_cache(maxsize=16384)
def _pieces(slice_map: SliceMap, coordinates: Tuple[int, ...], first_only: bool) -> Tuple[Tuple[Slices, Slices], ...]:
    by_dim = [[(slice(run.start, run.start + run.rows), slice(run.local, run.local + run.rows))
               for run in merge_runs(run for run in runs if run.first or not first_only)]
              for runs in _runs(slice_map, coordinates)]
    return tuple(_split_pairs(pairs) for pairs in itertools.product(*by_dim))


def _split_pairs(pairs: Sequence[Tuple[slice, slice]]) -> Tuple[Slices, Slices]:
    """One pair of slices per dim, as one pair of slice tuples."""
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
