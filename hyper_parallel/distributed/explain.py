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
"""The plan as a report for people: what each parameter is, where it lies, and why."""
import math
import re
from typing import Dict, List, Optional

from rich.console import Console
from rich.table import Table

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, format_placement
from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel.evidence import nearest

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_WIDTH = 160


def fold_layers(path: str) -> str:
    """The path with whole-number segments as `*`: `layers.0.mlp.w1` is one template with `layers.1.mlp.w1`, and the
    digit inside `w1` stays."""
    return _LAYER_NUMBER.sub("*", path)


def explain(plan: ShardingPlan, path: Optional[str] = None) -> str:
    """The table of all parameters, or everything about one.

    Args:
        plan: bound or not.
        path: a parameter; None asks for the table.

    Raises:
        ValueError: no such parameter; the nearest are named.
    """
    if path is None:
        return _table(plan)
    if path not in plan.parameters:
        raise ValueError(f"the plan has no parameter {path!r}; nearest: {', '.join(nearest(path, plan.parameters))}")
    return _one(plan, plan.parameters[path])


def _words(named: Optional[NamedPlacement]) -> str:
    return ", ".join(f"{axis} {format_placement(placement)}" for axis, placement in (named or {}).items()) or "whole"


def _shape(shape) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _gradient(spec: ParameterSpec) -> str:
    if spec.frozen:
        return "frozen"
    parts = [f"sum over {axis}" for axis in spec.grad_sum_axes]
    if spec.copies > 1:
        parts.append(f"sum over {spec.copies} copies")
    return ", ".join(parts) or "own"


def _table(plan: ShardingPlan) -> str:
    folded: Dict[str, List[ParameterSpec]] = {}
    for path, spec in plan.parameters.items():
        folded.setdefault(fold_layers(path), []).append(spec)
    table = Table(title=_title(plan), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("parameter", "×", "role", "whole", "per rank", "placement", "gradient", "because"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("because", "parameter", "placement"))
    for name, specs in folded.items():
        spec = specs[0]
        placement = spec.slice_map.describe() if spec.slice_map.cuts else _words(spec.placement)
        table.add_row(name, str(len(specs)), spec.role, _shape(spec.shape), _shape(spec.local_shape), placement,
                      _gradient(spec), "; ".join(spec.reasons))
    console = Console(width=_WIDTH, record=True, file=_Nowhere(), color_system=None)
    console.print(table)
    for line in _summary(plan):
        console.print(line, highlight=False)
    return console.export_text()


class _Nowhere:
    """A console records while it prints; the print itself is not wanted."""

    def write(self, _):
        """Discard."""

    def flush(self):
        """Nothing to do."""


def _title(plan: ShardingPlan) -> str:
    axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh_axes.items())
    return f"tensor-parallel plan for {axes} (hash {plan.hash[:12]})"


def _summary(plan: ShardingPlan) -> List[str]:
    whole = sum(math.prod(spec.shape) for spec in plan.parameters.values())
    local = sum(math.prod(spec.local_shape) for spec in plan.parameters.values())
    lines = [f"{len(plan.parameters)} parameters, {whole:,} elements, {local:,} per rank"]
    for kind, counts in plan.expected.items():
        described = "; ".join(f"{phase}: " + (", ".join(f"{count} {name}" for name, count in by.items()) or "none")
                              for phase, by in counts.items())
        number = sum(spec.semantic_role == kind for spec in plan.boundaries.values())
        lines.append(f"{kind} ({number}): {described}")
    return lines + list(plan.notes)


def _one(plan: ShardingPlan, spec: ParameterSpec) -> str:
    boundary = next((module for module, bound in plan.boundaries.items()
                     if any(f"{module}.{name}" == spec.path or name == spec.path for name in bound.params or {})), None)
    lines = [spec.path, f"  role       {spec.role}", f"  whole      {_shape(spec.shape)} {spec.dtype}",
             f"  per rank   {_shape(spec.local_shape)}", f"  placement  {_words(spec.placement)}",
             f"  rows       {spec.slice_map.describe()}", f"  gradient   {_gradient(spec)}",
             f"  boundary   {boundary or 'none'}"]
    lines += [f"  because    {reason}" for reason in spec.reasons]
    lines += [f"  not        {reason}" for reason in spec.rejected]
    lines += [f"  also named {alias}" for alias in spec.aliases]
    return "\n".join(lines)
