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
from typing import Optional

from rich.console import Console
from rich.table import Table

from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan
from hyper_parallel.distributed.report import (
    Report, fold_layers, gradient_words, make_report, named_words, placement_words, shape_words, size_words)
from hyper_parallel.distributed.repeats import paused_collection
from hyper_parallel.distributed.tensor_parallel.evidence import nearest

__all__ = ["explain", "fold_layers", "print_report"]

_WIDTH = 160


def explain(plan: ShardingPlan, path: Optional[str] = None) -> str:
    """The table of all parameters, or everything about one.

    Args:
        plan: bound or not.
        path: a parameter; None asks for the table.

    Raises:
        ValueError: no such parameter; the nearest are named.
    """
    if path is None:
        console = Console(width=_WIDTH, record=True, file=_Nowhere(), color_system=None)
        with paused_collection():
            print_report(make_report(plan), console)
            return console.export_text()
    if path not in plan.parameters:
        raise ValueError(f"the plan has no parameter {path!r}; nearest: {', '.join(nearest(path, plan.parameters))}")
    return _one(plan, plan.parameters[path])


def print_report(report: Report, console: Console):
    """Write a report: in colour on a terminal, plain elsewhere."""
    table = Table(title=report.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("parameter", "×", "role", "whole", "per rank", "bytes", "placement", "gradient", "because"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("because", "parameter", "placement"))
    for row in report.rows:
        spec = row.spec
        table.add_row(row.name.replace("[", r"\["), str(row.count), spec.role, shape_words(spec.shape),
                      shape_words(spec.local_shape), size_words(row.local_bytes),
                      placement_words(spec).replace("[", r"\["), gradient_words(spec),
                      "; ".join(spec.reasons).replace("[", r"\["))
    console.print(table)
    for line in report.totals:
        console.print(line, highlight=False, markup=False)
    for kind, count, forward, backward in report.collectives:
        console.print(f"{kind} ({count}): forward: {forward}; backward: {backward}", highlight=False, markup=False)
    for title, lines in (("large and whole", report.large), ("decided by you", report.overrides)):
        for line in lines:
            console.print(f"{title}: {line}", highlight=False, markup=False)
    for line in report.notes:
        console.print(line, highlight=False, markup=False)


class _Nowhere:
    """A console records while it prints; the print itself is not wanted."""

    def write(self, _):
        """Discard."""

    def flush(self):
        """Nothing to do."""


def _one(plan: ShardingPlan, spec: ParameterSpec) -> str:
    boundary = next((module for module, bound in plan.boundaries.items()
                     if any(f"{module}.{name}" == spec.path or name == spec.path for name in bound.params or {})), None)
    lines = [spec.path, f"  role       {spec.role}", f"  whole      {shape_words(spec.shape)} {spec.dtype}",
             f"  per rank   {shape_words(spec.local_shape)}", f"  placement  {named_words(spec.placement)}",
             f"  rows       {spec.slice_map.describe()}", f"  gradient   {gradient_words(spec)}",
             f"  boundary   {boundary or 'none'}"]
    lines += [f"  because    {reason}" for reason in spec.reasons]
    lines += [f"  not        {reason}" for reason in spec.rejected]
    lines += [f"  also named {alias}" for alias in spec.aliases]
    return "\n".join(lines)
