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
"""What one mesh axis does to one tensor dim: sections, copies, padding, blocks, and the runs of rows that follow.

`slice_map` builds the record of a whole tensor from these. "Rows" are positions along the dim that is cut, whichever
dim that is. *Local* is what one rank holds.
"""
import operator
from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Section:
    """A run of rows that is cut on its own: the Q of `[Q|K|V]`, the gate of `[G|U]`, a whole plain weight.

    Args:
        rows (int): rows in the whole, at least 1.
        unit (int): rows that stay together: the head size, 2 for interleaved gate and up.
        copies (int): so many consecutive ranks hold the same rows; 1 is a plain cut.
        padding (int): zero rows that every cut sees after the section and that no checkpoint holds.
        name (str): only for messages and `describe`.

    Raises:
        ValueError: a number is out of range, or `rows + padding` is no whole number of units.
    """

    rows: int
    unit: int = 1
    copies: int = 1
    padding: int = 0
    name: str = ""

    def __post_init__(self):
        for field, least in (("rows", 1), ("unit", 1), ("copies", 1), ("padding", 0)):
            object.__setattr__(self, field, operator.index(getattr(self, field)))
            if getattr(self, field) < least:
                raise ValueError(f"section {self}: {field} must be at least {least}")
        if self.padded % self.unit:
            raise ValueError(f"section {self}: {self.padded} rows are no whole number of units of {self.unit}")

    @property
    def padded(self) -> int:
        """Rows with the padding."""
        return self.rows + self.padding

    def __str__(self):
        text = f"{self.name} {self.rows}".strip()
        text += f" + {self.padding} padding" if self.padding else ""
        return text + (f" x{self.copies} copies" if self.copies > 1 else "")

    def to_dict(self) -> Dict[str, Any]:
        """Plain data; fields at their default are left out."""
        return _said_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Section":
        """The inverse of `to_dict`."""
        return _from_fields(cls, data)


class Run(NamedTuple):
    """Rows that lie together both in the whole and in the local part."""

    start: int  # first row in the whole
    local: int  # first row in the local part
    rows: int
    copies: int  # ranks that hold these rows
    first: bool  # this rank is the first of them


def _misfit(sections: Sequence[Section], blocks: int, parts: int) -> Optional[Section]:
    """The first section that `parts` ranks cannot share, or None when the cut is even."""
    sharers = max(1, parts // blocks)
    for section in sections:
        if sharers % section.copies or section.padded // section.unit % (sharers // section.copies):
            return section
    return None


def _divisors(number: int) -> List[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@dataclass(frozen=True)
class Cut:
    """What one mesh axis does to one tensor dim.

    The `sections` describe one block, and the dim is `blocks` such blocks. With at least as many blocks as parts each
    rank takes whole consecutive blocks; with fewer, `parts // blocks` consecutive ranks share a block and cut (or copy)
    each of its sections among themselves. A rank's sections are glued in the order of the whole::

        [Q|K|V], 4 heads, 2 kv heads           per kv group [q q k v], 2 groups
        whole   q0 q1 q2 q3 k0 k1 v0 v1        whole   q0 q1 k0 v0  q2 q3 k1 v1
        2 parts q0 q1 k0 v0 / q2 q3 k1 v1      2 parts q0 q1 k0 v0 / q2 q3 k1 v1
        4 parts q0 k0 v0 / q1 k0 v0 / q2 k1 v1 / q3 k1 v1                 (both)

    Args:
        axis (str): the mesh axis, for example "tp".
        dim (int): the tensor dim, not negative.
        parts (int): size of the axis.
        sections (Sequence[Section]): one block, in order.
        blocks (int): how often the sections repeat along the dim.

    Raises:
        ValueError: the axis cannot cut the dim evenly; the message holds both numbers and the part counts that can.

    Examples:
        >>> Cut("tp", 0, 4, (Section(64, unit=16, name="Q"), Section(32, unit=16, copies=2, name="K"))).local_rows
        32
    """

    axis: str
    dim: int
    parts: int
    sections: Tuple[Section, ...]
    blocks: int = 1

    def __post_init__(self):
        object.__setattr__(self, "sections", tuple(self.sections))
        for field, least in (("dim", 0), ("parts", 1), ("blocks", 1)):
            object.__setattr__(self, field, operator.index(getattr(self, field)))
            if getattr(self, field) < least:
                raise ValueError(f"cut over axis '{self.axis}': {field} must be at least {least}, "
                                 f"got {getattr(self, field)}")
        if not self.sections:
            raise ValueError(f"cut over axis '{self.axis}': no section given")
        if max(self.parts, self.blocks) % min(self.parts, self.blocks):
            raise ValueError(f"axis '{self.axis}' cannot cut {self.blocks} blocks in {self.parts} parts: one number "
                             f"must divide the other; {self._valid_text()}")
        section = _misfit(self.sections, self.blocks, self.parts)
        if section is not None:
            share = f", shared by {self.blocks} blocks" if self.blocks > 1 else ""
            raise ValueError(f"axis '{self.axis}' cannot cut section {self.sections.index(section)} [{section}] of "
                             f"{section.padded // section.unit} units of {section.unit} in {self.parts} parts{share}; "
                             f"{self._valid_text()}")

    def _valid_text(self) -> str:
        valid = list(map(str, self.valid_parts())) or ["none"]
        return "valid part counts: " + ", ".join(valid[:16] + ["…"] * (len(valid) > 16))

    def valid_parts(self) -> Tuple[int, ...]:
        """Every axis size that these sections allow, with the copies and padding they have."""
        head = self.sections[0]
        shared = [self.blocks * head.copies * divisor for divisor in _divisors(head.padded // head.unit)]
        found = sorted(set(_divisors(self.blocks) + shared))
        return tuple(parts for parts in found if _misfit(self.sections, self.blocks, parts) is None)

    @property
    def sharers(self) -> int:
        """Consecutive ranks that share one block."""
        return max(1, self.parts // self.blocks)

    @property
    def rows(self) -> int:
        """Rows before the cut, without padding."""
        return self.blocks * sum(section.rows for section in self.sections)

    @property
    def local_rows(self) -> int:
        """Rows after the cut, on every rank."""
        return max(1, self.blocks // self.parts) * sum(s.padded * s.copies for s in self.sections) // self.sharers

    @property
    def has_padding(self) -> bool:
        """True when some rank holds rows that are not in the whole."""
        return any(section.padding for section in self.sections)

    def describe(self) -> str:
        """A short phrase: `rows cut in 4: [Q 64 | K 16 x2 copies | V 16 x2 copies]`."""
        kind = {0: "rows", 1: "columns"}.get(self.dim, f"dim {self.dim}")
        repeats = f" x{self.blocks} blocks" if self.blocks > 1 else ""
        return f"{kind} cut in {self.parts}: [{' | '.join(map(str, self.sections))}]{repeats}"

    def to_dict(self) -> Dict[str, Any]:
        """Plain data; fields at their default are left out."""
        return {**_said_fields(self), "sections": [section.to_dict() for section in self.sections]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Cut":
        """The inverse of `to_dict`."""
        return _from_fields(cls, {**data, "sections": tuple(map(Section.from_dict, data["sections"]))})

    def runs(self, coordinate: int) -> List[Run]:
        """What the rank at `coordinate` of the axis holds, in local order; padding is left out."""
        blocks_per_rank = max(1, self.blocks // self.parts)
        block_rows = self.rows // self.blocks
        if self.sharers == 1 and not self.has_padding:
            rows = blocks_per_rank * block_rows
            return [Run(coordinate * rows, 0, rows, 1, True)]
        first_block, sharer = coordinate // self.sharers * blocks_per_rank, coordinate % self.sharers
        runs, local = [], 0
        for block in range(first_block, first_block + blocks_per_rank):
            start = block * block_rows
            for section in self.sections:
                size = section.padded * section.copies // self.sharers
                offset = sharer // section.copies * size
                held = min(size, section.rows - offset)
                if held > 0:
                    runs.append(Run(start + offset, local, held, section.copies, sharer % section.copies == 0))
                start, local = start + section.rows, local + size
        assert local == self.local_rows, (self, coordinate)
        return runs


def nest_runs(outer: Sequence[Run], inner: Sequence[Run]) -> Iterator[Run]:
    """Runs of a cut of a cut; `inner` starts count in the outer local part. Outer padding falls through the gaps."""
    for run in inner:
        for held in outer:
            low, high = max(run.start, held.local), min(run.start + run.rows, held.local + held.rows)
            if low < high:
                yield Run(held.start + low - held.local, run.local + low - run.start, high - low,
                          held.copies * run.copies, held.first and run.first)


def merge_runs(runs: Iterable[Run]) -> List[Run]:
    """Joins runs that follow each other both in the whole and locally, whatever their copies."""
    merged = []
    for run in runs:
        last = merged[-1] if merged else None
        if last and last.start + last.rows == run.start and last.local + last.rows == run.local:
            merged[-1] = last._replace(rows=last.rows + run.rows)
        else:
            merged.append(run)
    return merged


def overlapping_rows(mine: Sequence[Run], theirs: Sequence[Run]) -> List[Tuple[slice, slice]]:
    """Local slices of the rows that two ranks both hold along one dim."""
    found = []
    for own in mine:
        for other in theirs:
            low, high = max(own.start, other.start), min(own.start + own.rows, other.start + other.rows)
            if low < high:
                found.append(tuple(slice(low - run.start + run.local, high - run.start + run.local)
                                   for run in (own, other)))
    return found


def take_rows(tensor: Any, dim: int, runs: Iterable[Run], rows: int, concatenate: Callable,
              zeros: Optional[Callable]) -> Any:
    """The runs along one dim glued to `rows` rows, with zeros in the gaps; see `SliceMap.shard_tensor`."""
    parts, local = [], 0
    for run in merge_runs(runs) + [Run(0, rows, 0, 1, True)]:
        if run.local > local:
            parts.append(zeros(tuple(tensor.shape[:dim]) + (run.local - local,) + tuple(tensor.shape[dim + 1:])))
        if run.rows == tensor.shape[dim]:
            parts.append(tensor)
        elif run.rows:
            parts.append(tensor[(slice(None),) * dim + (slice(run.start, run.start + run.rows),)])
        local = run.local + run.rows
    return parts[0] if len(parts) == 1 else concatenate(parts, dim)


def _said_fields(record) -> Dict[str, Any]:
    """The fields of a dataclass that are not at their default."""
    return {field.name: getattr(record, field.name) for field in fields(record)
            if getattr(record, field.name) != field.default}


def _from_fields(kind, data: Mapping[str, Any]):
    """A dataclass from its fields by name."""
    known = [field.name for field in fields(kind)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{kind.__name__} with unknown fields {unknown}: known are {', '.join(known)}")
    return kind(**data)
