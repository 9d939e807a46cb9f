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
"""What `verify` found: every compared tensor, and what is suspected where numbers differ."""
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from rich.console import Console
from rich.table import Table

from hyper_parallel.distributed.recipe_spec import ShardingPlan

FUSED_LAYOUT = "wrong fused layout"
MISSING_REDUCTION = "missing reduction"
REDUCED_TWICE = "reduced twice"
BIAS_TWICE = "bias twice"
HEAD_COUNT = "head count"


@dataclass(frozen=True)
class Difference:
    """One compared tensor.

    Args:
        name: `output`, `output[i]`, or a parameter's path.
        relative: largest absolute difference over the largest absolute reference, with a floor; inf where shapes differ.
        absolute: largest absolute difference, over all ranks.
        rank: where it is.
        cause: what is suspected, or "".
    """

    name: str
    relative: float
    absolute: float
    rank: int
    cause: str = ""


@dataclass(frozen=True)
class Suspect:
    """A cause that was tried out and fits the numbers.

    Args:
        cause: one of the constants of this file.
        where: path of the module or parameter.
        why: what fits, and what to change.
    """

    cause: str
    where: str
    why: str


@dataclass(frozen=True)
class VerifyReport:
    """The outcome: every compared tensor, the worst first.

    Args:
        tp: ranks of the tensor-parallel axis.
        tolerance: largest relative difference that passes.
        differences: all of them, worst first; empty where the sharded model could not run.
        plan: the plan that was applied.
        mode: "pynative", "jit" or "graph".
        suspects: what is suspected, the likeliest first.
        error: what the sharded model raised, "" where it ran.
        first_difference: the first boundary in the order of the forward whose result is wrong, "" where none is.
    """

    tp: int
    tolerance: float
    differences: Tuple[Difference, ...]
    plan: ShardingPlan
    mode: str = "pynative"
    suspects: Tuple[Suspect, ...] = ()
    error: str = ""
    first_difference: str = ""

    @property
    def ok(self) -> bool:
        """True when the model ran and no difference exceeds the tolerance."""
        return self.worst is not None and self.worst.relative <= self.tolerance

    @property
    def worst(self) -> Optional[Difference]:
        """The largest relative difference; None where nothing could be compared."""
        return self.differences[0] if self.differences else None

    def table(self, rows: int = 20) -> str:
        """The verdict, what is suspected, and the worst `rows`, as text."""
        console = Console(width=140, color_system=None, highlight=False, markup=False, soft_wrap=True)
        with console.capture() as capture:
            console.print(self._headline())
            for suspect in self.suspects:
                console.print(f"suspected: {suspect.cause} at {suspect.where}: {suspect.why}")
            if self.first_difference:
                console.print(f"first boundary whose result differs: {self.first_difference}")
            if self.differences:
                console.print(self._rows(rows))
        return capture.get()

    __str__ = table

    def _headline(self) -> str:
        head = f"tp {self.tp} against 1 ({self.mode}): "
        if self.worst is None:
            return f"{head}the sharded model could not run: {self.error}"
        return (f"{head}{'the same' if self.ok else 'DIFFERENT'} numbers in {len(self.differences)} tensors (largest "
                f"relative difference {self.worst.relative:.2e}, tolerance {self.tolerance:.0e})")

    def _rows(self, rows: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("tensor", "relative", "absolute", "rank", "role", "suspected"):
            table.add_column(column, overflow="fold")
        for one in self.differences[:rows]:
            spec = self.plan.parameters.get(one.name)
            table.add_row(one.name, f"{one.relative:.2e}", f"{one.absolute:.2e}", str(one.rank),
                          spec.role if spec else "", one.cause)
        return table

    def to_dict(self) -> Dict[str, Any]:
        """Plain data for JSON; the order is stable, an infinite difference is None."""
        def number(value):
            return value if value != float("inf") else None

        return {"schema": 1, "ok": self.ok, "tp": self.tp, "mode": self.mode, "tolerance": self.tolerance,
                "plan": self.plan.hash, "error": self.error, "first_difference": self.first_difference,
                "suspects": [{"cause": one.cause, "where": one.where, "why": one.why} for one in self.suspects],
                "differences": [{
                    "name": one.name, "relative": number(one.relative), "absolute": number(one.absolute),
                    "rank": one.rank, "cause": one.cause,
                    "role": self.plan.parameters[one.name].role if one.name in self.plan.parameters else ""}
                    for one in self.differences]}
