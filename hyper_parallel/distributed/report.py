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
"""The plan folded for readers: one row per template, totals, collectives, what is large and whole, what you said."""
import math
import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, format_placement
from hyper_parallel.distributed.checks import large_whole
from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan
from hyper_parallel.distributed.repeats import layer_of

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
_BYTES = {"float64": 8, "f64": 8, "int64": 8, "i64": 8, "float32": 4, "f32": 4, "int32": 4, "i32": 4, "float16": 2,
          "f16": 2, "bfloat16": 2, "bf16": 2, "int8": 1, "i8": 1, "u8": 1, "uint8": 1, "bool": 1}


def fold_layers(path: str) -> str:
    """The path with whole-number segments as `*`: `layers.0.mlp.w1` is one template with `layers.1.mlp.w1`, and the
    digit inside `w1` stays.

    Examples:
        >>> fold_layers("model.layers.0.mlp.w1"), fold_layers("h.3.fc1")
        ('model.layers.*.mlp.w1', 'h.*.fc1')
    """
    return _LAYER_NUMBER.sub("*", path)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; eight-bit floats by any of their names."""
    name = dtype.lower().rpartition(".")[2]
    if name in _BYTES:
        return _BYTES[name]
    return 1 if "8" in name else 4


@dataclass
class Row:
    """Parameters of one template.

    Args:
        name: the template, layer numbers as a range.
        spec: one of them.
        count: how many they are.
        layers: numbers of the layers that hold them.
    """

    name: str
    spec: ParameterSpec
    count: int = 0
    layers: List[int] = field(default_factory=list)

    @property
    def local_bytes(self) -> int:
        """Bytes of all of them on one rank."""
        return self.count * math.prod(self.spec.local_shape) * dtype_bytes(self.spec.dtype)

    @property
    def global_bytes(self) -> int:
        """Bytes of all of them as a whole."""
        return self.count * math.prod(self.spec.shape) * dtype_bytes(self.spec.dtype)


@dataclass(frozen=True)
class Report:
    """Everything the report shows.

    Args:
        title: one line.
        rows: one per template.
        totals: sentences.
        collectives: `(kind, how many boundaries, forward, backward)`.
        large: templates of large weights that every rank holds whole.
        overrides: where the user's words won.
        notes: the plan's notes.
    """

    title: str
    rows: Tuple[Row, ...]
    totals: Tuple[str, ...]
    collectives: Tuple[Tuple[str, int, str, str], ...]
    large: Tuple[str, ...]
    overrides: Tuple[str, ...]
    notes: Tuple[str, ...]


def make_report(plan: ShardingPlan) -> Report:
    """Fold a plan into a report."""
    rows = _rows(plan)
    axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh_axes.items())
    whole = sum(row.count * math.prod(row.spec.shape) for row in rows)
    local = sum(row.count * math.prod(row.spec.local_shape) for row in rows)
    totals = (f"{sum(row.count for row in rows)} parameters, {whole:,} elements, {local:,} per rank; "
              f"{size_words(sum(row.global_bytes for row in rows))} as a whole, "
              f"{size_words(sum(row.local_bytes for row in rows))} per rank",)
    large = {spec.path for spec in large_whole(row.spec for row in rows)}
    return Report(
        f"tensor-parallel plan for {axes} (hash {plan.hash[:12]})", tuple(rows), totals, _collectives(plan),
        tuple(f"{row.name} {shape_words(row.spec.shape)}: whole on every rank ({row.spec.role}, {row.spec.reasons[0]})"
              for row in rows if row.spec.path in large),
        tuple(f"{row.name}: {row.spec.reasons[0]}" for row in rows
              if "override" in row.spec.reasons[0] or "user rule" in row.spec.reasons[0]),
        plan.notes)


def _rows(plan: ShardingPlan) -> List[Row]:
    """Parameters of the same folded name that lie alike are one row."""
    rows: Dict[tuple, Row] = {}
    known: Dict[tuple, Row] = {}
    opened, layer, length, container, number = "\0", "", 0, "", -1
    for path, spec in plan.parameters.items():
        if not path.startswith(opened):
            layer = layer_of(path)
            opened, length = (f"{layer}.", len(layer)) if layer else ("\0", 0)
            container, _, last = layer.rpartition(".")
            number = int(last) if layer else -1
        # equal slice maps are one object
        key = (container, path[length:], id(spec.slice_map), spec.role, spec.frozen)
        row = known.get(key)
        if row is None:
            name = (f"{container}.*" if container else "*") + fold_layers(path[length:]) if layer else path
            row = known[key] = rows.setdefault((name,) + key[2:], Row(name, spec))
        row.count += 1
        if layer:
            row.layers.append(number)
    for row in rows.values():
        if row.layers:
            row.name = row.name.replace("*", _range(sorted(set(row.layers))), 1)
    return list(rows.values())


def _range(numbers: List[int]) -> str:
    """`[0-3,5]` for 0, 1, 2, 3, 5."""
    spans: List[List[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "[" + ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans) + "]"


def _collectives(plan: ShardingPlan) -> Tuple[Tuple[str, int, str, str], ...]:
    counts: Dict[str, int] = {}
    for spec in plan.boundaries.values():
        counts[spec.semantic_role] = counts.get(spec.semantic_role, 0) + 1
    return tuple((kind, counts.get(kind, 0), _phase(by["forward"]), _phase(by["backward"]))
                 for kind, by in plan.expected.items())


def _phase(by: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in by.items()) or "none"


def placement_words(spec: ParameterSpec) -> str:
    """Where a parameter lies, in words."""
    return spec.slice_map.describe() if spec.slice_map.cuts else named_words(spec.placement)


def named_words(named: Optional[NamedPlacement]) -> str:
    """A placement by axis, in words."""
    return ", ".join(f"{axis} {format_placement(placement)}" for axis, placement in (named or {}).items()) or "whole"


def shape_words(shape) -> str:
    """`64×32`."""
    return "×".join(map(str, shape)) or "scalar"


def gradient_words(spec: ParameterSpec) -> str:
    """What happens to a parameter's gradient."""
    if spec.frozen:
        return "frozen"
    words = [f"sum over {axis}" for axis in spec.grad_sum_axes]
    if spec.copies > 1:
        words.append(f"sum over {spec.copies} copies")
    return ", ".join(words) or "own"


def size_words(count: float) -> str:
    """A number of bytes, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
