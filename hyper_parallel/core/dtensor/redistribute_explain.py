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
"""What a redistribution will do, in words and numbers, without doing it."""
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple, Union

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.placement_types import Placement
from hyper_parallel.core.dtensor.redistribute_route import Route, find_route


@dataclass(frozen=True)
class ExplainedStep:
    """One step.

    Attributes:
        kind (str): "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "slice", "zero_pad",
            "to_partial" or "drop".
        axes (tuple[str]): the axes that it runs over.
        what (str): which dims, or which reduction.
        placements (tuple[Placement]): after the step.
        wire_bytes (float): what one rank sends.
    """

    kind: str
    axes: Tuple[str, ...]
    what: str
    placements: Tuple[Placement, ...]
    wire_bytes: float


@dataclass(frozen=True)
class Explanation:
    """The steps of a redistribution; `str()` draws them as a table.

    Attributes:
        title (str): from what to what.
        steps (list[ExplainedStep]): in order; none when nothing has to be done.
    """

    title: str
    steps: List[ExplainedStep]

    @property
    def wire_bytes(self) -> float:
        """What one rank sends in all."""
        return sum(step.wire_bytes for step in self.steps)

    @property
    def collectives(self) -> int:
        """Steps in which ranks talk to each other."""
        return sum(step.kind not in ("slice", "zero_pad", "to_partial", "drop") for step in self.steps)

    def to_dict(self) -> Dict:
        """Plain data."""
        return {"title": self.title, "wire_bytes": self.wire_bytes, "collectives": self.collectives,
                "steps": [{"kind": step.kind, "axes": list(step.axes), "what": step.what,
                           "placements": [repr(item) for item in step.placements], "wire_bytes": step.wire_bytes}
                          for step in self.steps]}

    def __str__(self):
        rows = [("step", "over", "what", "bytes sent", "then")]
        rows += [(step.kind, ", ".join(step.axes), step.what, f"{step.wire_bytes:,.0f}",
                  ", ".join(map(repr, step.placements))) for step in self.steps]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join(cell.rjust(width) if column == 3 else cell.ljust(width)
                           for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]
        if not self.steps:
            lines = ["nothing to do"]
        total = f"{self.collectives} collectives, {self.wire_bytes:,.0f} bytes sent by each rank"
        return "\n".join([self.title, *("  " + line for line in lines), total])


def explain_redistribute(src, dst: Union[Layout, Sequence[Placement]], shape: Optional[Sequence[int]] = None,
                         itemsize: Optional[int] = None) -> Explanation:
    """The steps that `redistribute` takes from one layout to another, and what each rank sends.

    Needs no process group: a mesh of any size can be asked about in one process.

    Args:
        src (DTensor | Layout): where the tensor lies.
        dst: where it shall lie: a layout, or placements on the mesh of `src`.
        shape: of the whole tensor; None with a DTensor takes its shape.
        itemsize: bytes of an element; None takes the DTensor's, or 4.

    Raises:
        ValueError: no shape is given or known, or the layouts do not fit it.

    Examples:
        >>> mesh = DeviceMesh("npu", (4,), ("tp",))
        >>> print(explain_redistribute(Layout(mesh, (Shard(0),)), (Shard(1),), shape=(8, 8)))
        (8, 8) x 4 bytes: tp: Shard(dim=0) -> tp: Shard(dim=1)
          step        over  what                     bytes sent  then
          all_to_all  tp    gather dim 0, cut dim 1          48  Shard(dim=1)
        1 collectives, 48 bytes sent by each rank
    """
    if not isinstance(src, Layout):
        shape = src.shape if shape is None else shape
        itemsize = src.itemsize if itemsize is None else itemsize
        src = src.layout
    if shape is None:
        raise ValueError("explain_redistribute needs the shape of the whole tensor: pass shape=(...)")
    shape, itemsize = tuple(shape), 4 if itemsize is None else itemsize
    dst = dst if isinstance(dst, Layout) else Layout(src.mesh, dst)
    src_placements, dst_placements = (_placed(layout, len(shape)) for layout in (src, dst))
    route = find_route(shape, src.mesh, src_placements, dst.mesh, dst_placements)
    title = (f"{shape} x {itemsize} bytes: {_spell(src.mesh, src_placements)} -> "
             f"{_spell(dst.mesh, dst_placements)}")
    return Explanation(title, list(_explained(route, itemsize)))


def _placed(layout, ndim):
    return Layout(layout.mesh, layout.placements, ndim).placements


def _spell(mesh: DeviceMesh, placements) -> str:
    return ", ".join(f"{name}: {placement!r}" for name, placement in zip(mesh.mesh_dim_names, placements))


def _explained(route: Route, itemsize):
    for leg in route.legs:
        if leg.plan is None:
            yield ExplainedStep(leg.kind, leg.mesh.mesh_dim_names, leg.what, (), leg.wire_elements * itemsize)
            continue
        names, ranks = leg.mesh.mesh_dim_names, leg.mesh.size()
        for step, wire, placements in zip(leg.plan.steps, leg.plan.wire, leg.plan.placements[1:]):
            yield ExplainedStep(step.kind, tuple(names[axis] for axis in step.axes), _what(step), placements,
                                wire * itemsize / ranks)


def _what(step):
    if step.kind == "all_to_all":
        return f"gather dim {step.dim}, cut dim {step.to_dim}"
    if step.kind in ("all_reduce", "to_partial"):
        return step.op
    return f"dim {step.dim}" + (f", {step.op}" if step.kind == "reduce_scatter" else "")
