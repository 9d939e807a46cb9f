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
"""What a group of weights must be, from their shapes alone: which of them can be q, k, v and o, which gate, up, down.

All assignments that the shapes and the configuration allow are listed. One answer left is a proof; several are settled
by the order of registration where the inventory has it, or by who has a bias; otherwise nothing is decided.
"""
import itertools
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.units import Unit

Assignment = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Verdict:
    """What the shapes say of a group.

    Args:
        parts: `{unit path: part}` of the units on which all readings agree; empty when nothing is decided.
        reason: why.
        candidates: other readings that the shapes allow as well, in words.
    """

    parts: Dict[str, str]
    reason: str = ""
    candidates: Tuple[str, ...] = ()


def solve(units: Sequence[Unit], facts: ModelFacts, hidden: Optional[int], ordered: bool,
          expert: bool = False) -> Verdict:
    """The parts of a group of 2-D weights that stand in one module.

    Args:
        units: in the order of the inventory, all `[out, in]` or marked otherwise.
        facts: the configuration.
        hidden: width of the residual stream around the group.
        ordered: the inventory lists weights in the order in which modules registered them.
        expert: the group is one expert, so that it cannot be an attention.
    """
    shapes = {unit.path: _logical(unit, hidden) for unit in units}
    readings: List[Tuple[Assignment, str]] = []
    if not expert:
        readings += _latent_attention(units, shapes, facts, hidden)
        readings += _attention(units, shapes, facts, hidden)
    readings += _feed_forward(units, shapes, facts, hidden)
    if not readings:
        return Verdict({}, "the shapes fit neither an attention nor a feed-forward layer")
    meanings = {_meaning(assignment, shapes): (assignment, why) for assignment, why in reversed(readings)}
    if len(meanings) == 1:
        assignment, why = next(iter(meanings.values()))
        return Verdict(dict(assignment), f"the only reading of the shapes: {why}")
    kinds = {why for _, why in meanings.values()}
    if len(kinds) == 1:
        settled = _by_bias(units, meanings) or (_by_order(units, meanings) if ordered else None)
        if settled:
            assignment, how = settled
            return Verdict(dict(assignment), f"{next(iter(kinds))}; {how}")
    words = tuple(sorted({", ".join(f"{path.rpartition('.')[2]} {part}" for path, part in assignment)
                          for assignment, _ in meanings.values()}))
    return Verdict(_agreed(meanings) if len(kinds) == 1 else {}, "the shapes allow several readings", words[:6])


def _agreed(meanings) -> Dict[str, str]:
    """Parts that are the same in every reading: k and v of a grouped attention whose q and o could be swapped."""
    common = frozenset.intersection(*meanings)
    some = dict(next(iter(meanings.values()))[0])
    return {path: some[path] for path, _ in common}


def _logical(unit: Unit, hidden: Optional[int]) -> Tuple[int, int]:
    """(out, in) of a weight, or of one expert of a stack: there bare weights are `[experts, in, out]`."""
    rows, columns = unit.shape[-2:]
    in_out = unit.stored_in_out() if unit.dims == 2 else unit.is_bare
    return (columns, rows) if in_out else (rows, columns)


def experts_in_out(unit: Unit, part: str, hidden: Optional[int]) -> bool:
    """Is a stack of experts stored `[experts, in, out]`?"""
    first, second = unit.shape[-2:]
    if first == second or hidden not in (first, second):
        return unit.is_bare
    return (first == hidden) != (part in parts.ROW_PARTS)


def _meaning(assignment: Assignment, shapes) -> frozenset:
    """Readings that cut every weight alike are one reading: two column weights of one shape may swap names."""
    column = (parts.QUERY, parts.KEY, parts.VALUE, parts.GATE, parts.UP)
    heads = (parts.QUERY, parts.KEY, parts.VALUE)
    is_grouped = len({shapes[path][0] for path, part in assignment if part in heads}) > 1
    meaning = set()
    for path, part in assignment:
        if part in (parts.KEY, parts.VALUE) and is_grouped:
            part = "key or value"
        elif part in column:
            part = "column"
        meaning.add((path, part))
    return frozenset(meaning)


def _by_order(units: Sequence[Unit], meanings) -> Optional[Tuple[Assignment, str]]:
    last = units[-1].path
    fitting = [assignment for assignment, _ in meanings.values() if dict(assignment)[last] in parts.ROW_PARTS]
    return (fitting[0], "the row weight is registered last") if len(fitting) == 1 else None


def _by_bias(units: Sequence[Unit], meanings) -> Optional[Tuple[Assignment, str]]:
    without = [unit.path for unit in units if not unit.extras]
    # with as many kv heads as heads a missing bias may as well be the key's (Whisper)
    if len(without) != 1 or len(units) < 3 or len(meanings) != 2:
        return None
    fitting = [assignment for assignment, _ in meanings.values() if dict(assignment)[without[0]] in parts.ROW_PARTS]
    return (fitting[0], "only the row weight has no bias") if len(fitting) == 1 else None


def _attention(units, shapes, facts: ModelFacts, hidden) -> List[Tuple[Assignment, str]]:
    heads = facts.heads
    if not heads or hidden is None or facts.kv_lora_rank:
        return []
    found = []
    if len(units) == 4:
        for order in itertools.permutations(units):
            query, key, value, out = (shapes[unit.path] for unit in order)
            if out[0] != hidden or query[1] != hidden or key != value or key[1] != hidden or out[1] % heads:
                continue
            head_dim = out[1] // heads
            if query[0] not in (out[1], 2 * out[1]) or key[0] % head_dim or key[0] > out[1] or \
                    heads % (key[0] // head_dim) or not _kv_fits(facts, key[0] // head_dim, heads):
                continue
            if order[1].path > order[2].path:  # key and value may swap; one of the two readings is enough
                continue
            found.append((tuple(zip((unit.path for unit in order), (parts.QUERY, parts.KEY, parts.VALUE,
                                                                    parts.ATTENTION_OUT))), "attention"))
    if len(units) == 2:
        for fused, out in itertools.permutations(units):
            rows, columns = shapes[fused.path]
            if columns != hidden or shapes[out.path][0] != hidden or shapes[out.path][1] % heads:
                continue
            width = shapes[out.path][1]
            head_dim = width // heads
            kv_rows, odd = divmod(rows - width, 2)
            if odd or kv_rows <= 0 or kv_rows % head_dim or heads % (kv_rows // head_dim) or \
                    not _head_dim_fits(facts, head_dim) or not _kv_fits(facts, kv_rows // head_dim, heads):
                continue
            found.append((((fused.path, parts.QKV), (out.path, parts.ATTENTION_OUT)), "attention with fused q, k, v"))
    return found


def _kv_fits(facts: ModelFacts, kv_heads: int, heads: int) -> bool:
    """Configurations of families with as many kv heads as heads may hold a stray number."""
    return facts.kv_heads is None or kv_heads in (facts.kv_heads, heads, 1)


def _head_dim_fits(facts: ModelFacts, head_dim: int) -> bool:
    return facts.head_dim is None or head_dim == facts.head_dim


def _latent_attention(units, shapes, facts: ModelFacts, hidden) -> List[Tuple[Assignment, str]]:
    heads, rank = facts.heads, facts.kv_lora_rank
    if not (heads and rank and facts.qk_rope_head_dim and facts.v_head_dim and facts.qk_nope_head_dim):
        return []
    query_rows = heads * (facts.qk_nope_head_dim + facts.qk_rope_head_dim)
    wanted = [(parts.LATENT, (rank + facts.qk_rope_head_dim, hidden)),
              (parts.KEY_VALUE, (heads * (facts.qk_nope_head_dim + facts.v_head_dim), rank)),
              (parts.ATTENTION_OUT, (hidden, heads * facts.v_head_dim))]
    if facts.q_lora_rank:
        wanted += [(parts.LATENT, (facts.q_lora_rank, hidden)), (parts.QUERY, (query_rows, facts.q_lora_rank))]
        joint = [(parts.LATENT, (facts.q_lora_rank + rank + facts.qk_rope_head_dim, hidden))] + wanted[1:3] + [
            (parts.QUERY, (query_rows, facts.q_lora_rank))]
    else:
        wanted += [(parts.QUERY, (query_rows, hidden))]
        joint = [(parts.LATENT, (query_rows + rank + facts.qk_rope_head_dim, hidden))] + wanted[1:3]
    found = []
    for expected in (wanted, joint):
        if len(units) != len(expected):
            continue
        for order in itertools.permutations(units):
            if all(shapes[unit.path] == shape for unit, (_, shape) in zip(order, expected)):
                found.append((tuple((unit.path, part) for unit, (part, _) in zip(order, expected)), "latent attention"))
    return found


def _feed_forward(units, shapes, facts: ModelFacts, hidden) -> List[Tuple[Assignment, str]]:
    found = []
    if len(units) not in (2, 3):
        return found
    for down in units:
        columns = [unit for unit in units if unit is not down]
        width = shapes[down.path][1]
        if hidden is not None and shapes[down.path][0] != hidden:
            continue
        if any(shapes[unit.path][1] != shapes[down.path][0] for unit in columns):
            continue
        rows = {shapes[unit.path][0] for unit in columns}
        if rows == {width}:
            named = [(columns[0].path, parts.GATE if len(columns) == 2 else parts.UP)] + [
                (unit.path, parts.UP) for unit in columns[1:]]
            if _is_attention_width(units, width, hidden, facts):
                continue
            found.append((tuple(named) + ((down.path, parts.DOWN),), "feed-forward layer"))
        elif len(columns) == 1 and rows == {2 * width} and (not facts.ffn_sizes or width in facts.ffn_sizes):
            found.append((((columns[0].path, parts.GATE_UP), (down.path, parts.DOWN)),
                          "feed-forward layer with fused gate and up"))
    return found


def _is_attention_width(units, width, hidden, facts: ModelFacts) -> bool:
    """Square weights of the residual's width may be anything, q, k and v among them; only two of them, where the
    configuration has a feed-forward layer of that width, are one."""
    return width == hidden and (len(units) == 3 or width not in facts.ffn_sizes)
