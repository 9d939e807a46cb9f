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
"""The cuts of fused weights: where the rows of each head and each half lie, and how an axis cuts them.

The same parameter name hides different bytes. With H = 4 heads, K = 2 kv heads and one letter per head or row::

    qkv_sections           q0 q1 q2 q3 k0 k1 v0 v1              [Q|K|V]
    qkv_per_group          q0 q1 k0 v0  q2 q3 k1 v1             [q·R k v]×K, R = H / K
    qkv_per_head           q0 k0 v0  q1 k1 v1  q2 k2 v2 …       [q k v]×H
    query_gate_per_head    q0 g0  q1 g1  q2 g2  q3 g3           [q gate]×H
    gate_up_halves         g0 g1 g2 g3 u0 u1 u2 u3              [G|U]
    gate_up_interleaved    g0 u0 g1 u1 g2 u2 g3 u3
    blocks                 any sections, repeated
    interleaved            rows dealt out in turn, a unit at a time

Every function returns a `Cut` for `SliceMap.of(shape, cut)`, of dim 0 over axis "tp" unless told otherwise, and raises
ValueError with both numbers and the valid part counts when the axis does not fit.
"""
import functools
from typing import Sequence

from hyper_parallel.core.dtensor.slice_map import Cut, Section


def _kv_copies(heads: int, kv_heads: int, parts: int) -> int:
    """How many consecutive ranks hold the same kv head; 1 when there are enough of them."""
    if heads % kv_heads:
        raise ValueError(f"{heads} heads are no whole number of groups for {kv_heads} kv heads")
    valid = [count for count in range(1, heads + 1)
             if heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)]
    if parts not in valid:
        raise ValueError(f"{heads} heads with {kv_heads} kv heads cannot be cut in {parts} parts; valid part counts: "
                         f"{', '.join(map(str, valid))}")
    return max(1, parts // kv_heads)


def _head_section(name: str, heads: int, head_dim: int, copies: int = 1) -> Section:
    return Section(heads * head_dim, unit=head_dim, copies=copies, name=name)


@functools.lru_cache(maxsize=1024)
def kv_heads_alone(heads: int, kv_heads: int, head_dim: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """A k or v projection of its own: whole heads, copied when there are fewer of them than ranks.

    Examples:
        >>> kv_heads_alone(heads=8, kv_heads=4, head_dim=4, parts=8).sections
        (Section(rows=16, unit=4, copies=2, padding=0, name='KV'),)
    """
    return Cut(axis, dim, parts, (_head_section("KV", kv_heads, head_dim, _kv_copies(heads, kv_heads, parts)),))


@functools.lru_cache(maxsize=1024)
def qkv_sections(heads: int, kv_heads: int, head_dim: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`[Q|K|V]`: `q0 q1 q2 q3 k0 k1 v0 v1 → q0 k0 v0 / q1 k0 v0 / q2 k1 v1 / q3 k1 v1` with 4 parts."""
    copies = _kv_copies(heads, kv_heads, parts)
    return Cut(axis, dim, parts, (_head_section("Q", heads, head_dim), _head_section("K", kv_heads, head_dim, copies),
                                  _head_section("V", kv_heads, head_dim, copies)))


@functools.lru_cache(maxsize=1024)
def qkv_per_group(heads: int, kv_heads: int, head_dim: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`[q·R k v]×K`: `q0 q1 k0 v0 q2 q3 k1 v1 → q0 q1 k0 v0 / q2 q3 k1 v1` with 2 parts."""
    copies = _kv_copies(heads, kv_heads, parts)
    group = (_head_section("Q", heads // kv_heads, head_dim), _head_section("K", 1, head_dim, copies),
             _head_section("V", 1, head_dim, copies))
    return blocks(group, kv_heads, parts, dim, axis)


@functools.lru_cache(maxsize=1024)
def qkv_per_head(heads: int, head_dim: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`[q k v]×H`: `q0 k0 v0 q1 k1 v1 → q0 k0 v0 / q1 k1 v1` with 2 parts."""
    return blocks([_head_section(name, 1, head_dim) for name in "QKV"], heads, parts, dim, axis)


@functools.lru_cache(maxsize=1024)
def query_gate_per_head(heads: int, head_dim: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`[q gate]×H`: `q0 g0 q1 g1 → q0 g0 / q1 g1` with 2 parts."""
    return blocks([_head_section(name, 1, head_dim) for name in ("Q", "gate")], heads, parts, dim, axis)


@functools.lru_cache(maxsize=1024)
def gate_up_halves(ffn: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`[G|U]`: `g0 g1 g2 g3 u0 u1 u2 u3 → g0 g1 u0 u1 / g2 g3 u2 u3` with 2 parts; `ffn` rows in each half."""
    return Cut(axis, dim, parts, (Section(ffn, name="gate"), Section(ffn, name="up")))


@functools.lru_cache(maxsize=1024)
def gate_up_interleaved(ffn: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """Pairs: `g0 u0 g1 u1 g2 u2 g3 u3 → g0 u0 g1 u1 / g2 u2 g3 u3` with 2 parts; `ffn` pairs."""
    return Cut(axis, dim, parts, (Section(2 * ffn, unit=2, name="gate/up pairs"),))


def blocks(sections: Sequence[Section], count: int, parts: int, dim: int = 0, axis: str = "tp") -> Cut:
    """`sections` repeated `count` times, as CodeGen keeps `[q v k]×4`; `count` and `parts` divide one another.

    Examples:
        >>> blocks([Section(8, unit=4, name=name) for name in "QVK"], count=4, parts=8).local_rows
        12
    """
    return Cut(axis, dim, parts, tuple(sections), blocks=count)


@functools.lru_cache(maxsize=1024)
def interleaved(rows: int, parts: int, unit: int = 1, dim: int = 0, axis: str = "tp") -> Cut:
    """Rows dealt out in turn, a unit at a time: `AABBCCDD → AACC / BBDD` with 2 parts and units of 2.

    Raises:
        ValueError: the rows are no whole number of rounds.

    Examples:
        >>> SliceMap.of((8,), interleaved(8, 2, unit=2)).shard(np.arange(8), 1)
        array([2, 3, 6, 7])
    """
    round_rows = parts * unit
    if rows < 1 or rows % round_rows:
        raise ValueError(f"axis '{axis}' cannot deal {rows} rows in units of {unit} to {parts} parts: a round takes "
                         f"{round_rows} rows")
    return Cut(axis, dim, parts, (Section(round_rows, unit=unit),) * (rows // round_rows))
