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
"""Which rank holds which part, drawn: a grid in the terminal, plain text elsewhere, a PNG file on request.

Needs no process group: the layout of a mesh of any size can be drawn in one process.
"""
import math
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.placement_state import local_area, shard_orders
from hyper_parallel.core.dtensor.placement_types import Partial
from hyper_parallel.core.dtensor.slice_map import SliceMap

Bounds = Tuple[int, int]

_MOST_ROWS, _MOST_COLUMNS = 16, 8
_COLOURS = ("#8ecae6", "#ffb703", "#95d5b2", "#f4a3a3", "#cdb4db", "#e9c46a", "#a0c4ff", "#d4a373", "#b5e48c",
            "#ffafcc", "#90e0ef", "#ddb892")


class Piece(NamedTuple):
    """A part of the whole that a rank holds: its name, and `(begin, end)` per dim."""

    rank: str
    area: Tuple[Bounds, ...]


class Picture:
    """What `visualize` draws. `str()` is the plain text, a rich console draws it in colours.

    Two dims are drawn, the ones that are cut; where more than two are, the ranks are listed with their slices.

    Args:
        title: the first line.
        shape: of the whole.
        pieces: of all ranks; a rank may have several.
        notes: lines below.
    """

    def __init__(self, title: str, shape: Sequence[int], pieces: Sequence[Piece], notes: Sequence[str] = ()):
        self.title, self.shape, self.pieces, self.notes = title, tuple(shape), list(pieces), list(notes)
        whole = tuple((0, size) for size in self.shape)
        cut = [dim for dim in range(len(self.shape)) if any(piece.area[dim] != whole[dim] for piece in self.pieces)]
        rest = [dim for dim in range(len(self.shape)) if dim not in cut]
        self.dims: Optional[Tuple[Optional[int], ...]] = None
        if len(cut) <= 2:
            # a vector lies on its side
            self.dims = (None, None, *sorted((cut + rest)[:2]))[-2:]
            self._rows, self._columns = self._bounds(0), self._bounds(1)
            self._holders = self._fill()

    def _bounds(self, place) -> List[Bounds]:
        """The runs into which the pieces divide one drawn dim."""
        dim = self.dims[place]
        if dim is None:
            return [(0, 1)]
        edges = sorted({0, self.shape[dim]} | {edge for piece in self.pieces for edge in piece.area[dim]})
        return list(zip(edges, edges[1:])) or [(0, 0)]

    def _fill(self) -> Dict[Tuple[int, int], List[str]]:
        holders = {}
        for piece in self.pieces:
            spans = [(0, 1) if dim is None else piece.area[dim] for dim in self.dims]
            rows, columns = (_covered(bounds, span) for bounds, span in zip((self._rows, self._columns), spans))
            for row in rows:
                for column in columns:
                    holders.setdefault((row, column), []).append(piece.rank)
        return holders

    def cells(self) -> List[Tuple[Bounds, Bounds, Tuple[str, ...]]]:
        """`(rows, columns, ranks that hold them)` of every cell of the grid; only where at most two dims are cut."""
        return [(rows, columns, tuple(self._holders.get((row, column), ())))
                for row, rows in enumerate(self._rows) for column, columns in enumerate(self._columns)]

    def _grid(self) -> List[List[Tuple[str, int]]]:
        """Lines of `(text, colour)`; of headers the colour is -1; long sides are cut in the middle."""
        colours: Dict[Tuple[str, ...], int] = {}
        rows, columns = _shortened(len(self._rows), _MOST_ROWS), _shortened(len(self._columns), _MOST_COLUMNS)
        lines = [[("", -1)] + [(self._range(1, column), -1) for column in columns]]
        for row in rows:
            line = [(self._range(0, row), -1)]
            for column in columns:
                if row is None or column is None:
                    line.append(("...", -1))
                    continue
                ranks = tuple(self._holders.get((row, column), ()))
                line.append((spell_ranks(ranks), colours.setdefault(ranks, len(colours))))
            lines.append(line)
        return lines

    def _range(self, place, index):
        if index is None:
            return "..."
        if self.dims[place] is None:
            return ""
        begin, end = (self._rows, self._columns)[place][index]
        return f"dim {self.dims[place]} [{begin}:{end}]"

    def _listed(self) -> List[List[Tuple[str, int]]]:
        lines = [[("rank", -1), ("holds", -1)]]
        for index in _shortened(len(self.pieces), _MOST_ROWS):
            if index is None:
                lines.append([("...", -1), ("...", -1)])
                continue
            piece = self.pieces[index]
            slices = ", ".join(f"{begin}:{end}" for begin, end in piece.area)
            lines.append([(piece.rank, -1), (f"[{slices}]", index)])
        return lines

    def lines(self) -> List[List[Tuple[str, int]]]:
        """The table: lines of `(text, colour number)`, -1 for headers."""
        return self._listed() if self.dims is None else self._grid()

    def __str__(self):
        table = self.lines()
        widths = [max(len(line[column][0]) for line in table) for column in range(len(table[0]))]
        rule = "+".join("-" * (width + 2) for width in widths)
        drawn = [f" {' | '.join(text.center(width) for (text, _), width in zip(line, widths))} " for line in table]
        body = [f"|{line}|" for line in drawn]
        rule = f"+{rule}+"
        framed = [rule] + [part for line in body for part in (line, rule)]
        return "\n".join([self.title, *framed, *self.notes])

    def __rich__(self):
        from rich.console import Group  # pylint: disable=import-outside-toplevel
        from rich.table import Table  # pylint: disable=import-outside-toplevel
        from rich.text import Text  # pylint: disable=import-outside-toplevel
        header, *rest = self.lines()
        table = Table(title=Text(self.title), title_justify="left", show_lines=True)
        for text, _ in header:
            table.add_column(Text(text), justify="center")
        for line in rest:
            table.add_row(*(Text(text, style="" if colour < 0 else f"black on {_COLOURS[colour % len(_COLOURS)]}")
                            for text, colour in line))
        return Group(table, *map(Text, self.notes))

    def save(self, path: str) -> None:
        """Writes a PNG, to scale.

        Raises:
            ImportError: there is no matplotlib.
            ValueError: more than two dims are cut.
        """
        if self.dims is None:
            raise ValueError(f"{self.title}: a PNG shows two cut dims at most; print it instead")
        try:
            from matplotlib.figure import Figure  # pylint: disable=import-outside-toplevel
            from matplotlib.patches import Rectangle  # pylint: disable=import-outside-toplevel
        except ImportError as error:
            raise ImportError("a PNG needs matplotlib: pip install 'hyper-parallel[quickstart]', or leave png out for "
                              "text") from error
        is_flat = self.dims[0] is None
        figure = Figure(figsize=(5, 1.4 if is_flat else 3), dpi=110)
        axes = figure.add_axes((0.14, 0.36, 0.83, 0.4) if is_flat else (0.14, 0.17, 0.83, 0.7))
        colours: Dict[Tuple[str, ...], int] = {}
        for (top, bottom), (left, right), ranks in self.cells():
            colour = _COLOURS[colours.setdefault(ranks, len(colours)) % len(_COLOURS)]
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, facecolor=colour, edgecolor="white",
                                     linewidth=2))
            axes.text((left + right) / 2, (top + bottom) / 2, spell_ranks(ranks), ha="center", va="center", fontsize=9)
        for axis, dim, bounds in ((axes.yaxis, self.dims[0], self._rows), (axes.xaxis, self.dims[1], self._columns)):
            axis.set_ticks([] if dim is None else sorted({edge for pair in bounds for edge in pair}))
            axis.set_label_text("" if dim is None else f"dim {dim}")
        axes.set(xlim=(0, self._columns[-1][1] or 1), ylim=(self._rows[-1][1] or 1, 0))
        for side in axes.spines.values():
            side.set_visible(False)
        figure.suptitle(self.title, fontsize=9, y=0.97)
        figure.savefig(path, format="png")


def visualize(tensor, shape: Optional[Sequence[int]] = None, *, png: Optional[str] = None) -> None:
    """Draws which rank holds which part: in colours in a terminal, as plain text otherwise, or into a PNG file.

    Args:
        tensor (DTensor | Layout | SliceMap): what to draw.
        shape: of the whole, for a layout; None where the tensor knows it.
        png: a file to write instead of printing; needs matplotlib.

    Raises:
        ValueError: no shape is given or known, it does not fit, or `tensor` is nothing of the three.
        ImportError: a PNG is asked for without matplotlib.

    Examples:
        >>> mesh = DeviceMesh("npu", (2, 2), ("dp", "tp"))
        >>> visualize(Layout(mesh, (Replicate(), Shard(0))), shape=(8, 4))
        (8, 4): dp: Replicate(), tp: Shard(dim=0)
        +-------------+-------------+
        |             | dim 1 [0:4] |
        +-------------+-------------+
        | dim 0 [0:4] |    r0, r2   |
        +-------------+-------------+
        | dim 0 [4:8] |    r1, r3   |
        +-------------+-------------+
    """
    drawn = picture(tensor, shape)
    if png is not None:
        drawn.save(png)
    elif sys.stdout.isatty():
        from rich.console import Console  # pylint: disable=import-outside-toplevel
        Console().print(drawn)
    else:
        print(drawn)


def picture(tensor, shape: Optional[Sequence[int]] = None) -> Picture:
    """The picture of a DTensor, a layout or a slice map, without drawing it; see `visualize`."""
    if isinstance(tensor, SliceMap):
        if shape is not None and tuple(shape) != tensor.shape:
            raise ValueError(f"the slice map is of shape {tensor.shape}, got shape {tuple(shape)}")
        return _of_slice_map(tensor)
    if isinstance(tensor, Layout):
        layout = tensor
    elif isinstance(getattr(tensor, "layout", None), Layout):
        layout, known = tensor.layout, tuple(tensor.shape)
        if shape is not None and tuple(shape) != known:
            raise ValueError(f"the DTensor is of shape {known}, got shape {tuple(shape)}")
        shape = known
        if tensor.slice_map is not None:
            return _of_slice_map(tensor.slice_map)
    else:
        raise ValueError(f"visualize draws a DTensor, a Layout or a SliceMap, got {type(tensor).__name__}")
    if shape is None:
        raise ValueError("the shape of the whole is not known: pass shape=(...)")
    return _of_layout(layout, tuple(shape))


def spell_ranks(ranks: Sequence[str]) -> str:
    """Names of ranks in few letters.

    Examples:
        >>> spell_ranks(("r0", "r1", "r2", "r3", "r6")), spell_ranks(()), spell_ranks(("tp0 dp1",))
        ('r0-r3, r6', '-', 'tp0 dp1')
    """
    if not all(name[1:].isdigit() for name in ranks):
        shown = list(dict.fromkeys(ranks))
        return ", ".join(shown if len(shown) <= 4 else shown[:3] + [f"... ({len(shown)})"])
    numbers = sorted({int(name[1:]) for name in ranks})
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    spelled = [f"r{first}" if first == last else f"r{first}, r{last}" if last == first + 1 else f"r{first}-r{last}"
               for first, last in runs]
    return ", ".join(spelled if len(spelled) <= 6 else spelled[:4] + [f"... ({len(numbers)} ranks)"]) or "-"


def _of_layout(layout, shape) -> Picture:
    mesh = layout.mesh
    placements = Layout(mesh, layout.placements, len(shape)).placements
    cuts = shard_orders(placements, mesh.mesh_shape, len(shape), mesh.mesh_dim_names)
    pieces = []
    for rank in mesh.rank_list:
        area = local_area(shape, cuts, mesh.mesh_shape, mesh.get_coordinate(rank))
        pieces.append(Piece(f"r{rank}", tuple((start, start + rows) for start, rows in area)))
    named = list(zip(mesh.mesh_dim_names, placements))
    notes = [f"{name}: each of the {mesh.size(name)} ranks holds a term of {item.op}, still to be reduced"
             for name, item in named if isinstance(item, Partial)]
    empty = [piece.rank for piece in pieces if any(begin == end for begin, end in piece.area)]
    if empty and 0 not in shape:
        notes.append(f"nothing: {spell_ranks(empty)}")
    filled = [piece for piece in pieces if piece.rank not in set(empty)]
    title = f"{shape}: {', '.join(f'{name}: {item!r}' for name, item in named)}"
    return Picture(title, shape, filled, notes)


def _of_slice_map(slice_map) -> Picture:
    pieces, notes = [], []
    elements = math.prod(slice_map.local_shape())
    for coordinates in slice_map.ranks():
        name = " ".join(f"{axis}{place}" for axis, place in coordinates.items()) or "all"
        areas = [tuple((part.start, part.stop) for part in whole) for whole, _ in slice_map.pieces(coordinates)]
        pieces += [Piece(name, area) for area in areas]
        padding = elements - sum(math.prod(end - begin for begin, end in area) for area in areas)
        if padding:
            notes.append(f"padding: {padding} of the {elements} elements of {name}")
    return Picture(f"{slice_map.shape}: {slice_map.describe()}", slice_map.shape, pieces, notes)


def _covered(bounds: Sequence[Bounds], span: Bounds) -> List[int]:
    return [index for index, (begin, end) in enumerate(bounds) if span[0] <= begin and end <= span[1]]


def _shortened(count: int, most: int) -> List[Optional[int]]:
    """Indices of the lines to draw, None for those that are left out."""
    if count <= most:
        return list(range(count))
    half = most // 2
    return list(range(half)) + [None] + list(range(count - half + 1, count))
