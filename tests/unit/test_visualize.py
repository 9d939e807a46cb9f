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
"""Pictures of layouts: every cell names the ranks that hold it, checked against what numpy slices say."""
import doctest
import itertools
import sys

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from rich.console import Console

import hyper_parallel as hp
from hyper_parallel.core.dtensor import visualize as visualize_module
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.gather import local_slices
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
from hyper_parallel.core.dtensor.slice_map import Section, SliceMap
from hyper_parallel.core.dtensor.visualize import picture, spell_ranks, visualize

MESH = DeviceMesh("npu", (2, 2), ("dp", "tp"))
CHOICES = (Replicate(), Shard(0), Shard(1), Partial())


def holders_by_cell(drawn):
    """`{(row, column): ranks}` for each element of the two drawn dims."""
    return {(row, column): set(ranks) for rows, columns, ranks in drawn.cells()
            for row in range(*rows) for column in range(*columns)}


@pytest.mark.parametrize("placements", list(itertools.product(CHOICES, repeat=2)))
def test_every_element_names_its_ranks(placements, monkeypatch):
    """Even and uneven parts."""
    for shape in ((4, 6), (3, 5)):
        found = holders_by_cell(picture(Layout(MESH, placements), shape))
        for rank in range(4):
            monkeypatch.setattr("hyper_parallel.core.dtensor.device_mesh.current_rank", lambda rank=rank: rank)
            held = np.zeros(shape, bool)
            held[local_slices(shape, MESH, placements)] = True
            assert held.tolist() == [[f"r{rank}" in found[row, column] for column in range(shape[1])]
                                     for row in range(shape[0])]


def test_plain_text(capsys):
    """What the docstrings show; notes name what a grid cannot."""
    names = {**vars(visualize_module), "DeviceMesh": DeviceMesh, "Replicate": Replicate, "Shard": Shard}
    for item in (visualize, spell_ranks):
        for example in doctest.DocTestFinder(recurse=False).find(item, item.__name__, globs=names):
            assert doctest.DocTestRunner(verbose=False).run(example).failed == 0, capsys.readouterr().out
    hp.visualize(Layout(MESH, (Partial(), Shard(0))), (1,))
    assert capsys.readouterr().out.split("\n") == [
        "(1,): dp: Partial(op='sum'), tp: Shard(dim=0)",
        "+--+-------------+", "|  | dim 0 [0:1] |", "+--+-------------+", "|  |    r0, r2   |", "+--+-------------+",
        "dp: each of the 2 ranks holds a term of sum, still to be reduced", "nothing: r1, r3", ""]


def test_shapes_without_a_grid_of_two_cut_dims():
    """Scalars, empty tensors, and three cut dims as a list."""
    assert "| r0-r3 |" in str(picture(Layout(MESH, (Replicate(), Replicate())), ()))
    assert "nothing" not in str(picture(Layout(MESH, (Shard(0), Replicate())), (0, 3)))
    cube = DeviceMesh("npu", (2, 2, 2), ("a", "b", "c"))
    listed = picture(Layout(cube, (Shard(0), Shard(1), Shard(2))), (4, 4, 4))
    assert "|  r5  | [2:4, 0:2, 2:4] |" in str(listed)
    with pytest.raises(ValueError, match="two cut dims at most"):
        listed.save("unused.png")


def test_many_ranks_are_shortened():
    """A grid of 64 x 64, a list of 4,096, and names of many ranks."""
    mesh = DeviceMesh("npu", (64, 64), ("dp", "tp"))
    lines = str(picture(Layout(mesh, (Shard(0), Shard(1))), (4096, 4096))).split("\n")
    assert len(lines) == 2 + 2 * 17 and max(map(len, lines)) < 180 and "r4095" in lines[-2] and "..." in lines[-2]
    assert "r64-r127" in str(picture(Layout(mesh, (Shard(0), Replicate())), (64,)))
    assert "... (64 ranks)" in str(picture(Layout(mesh, (Replicate(), Shard(0))), (64,)))
    cube = DeviceMesh("npu", (4, 4, 4), ("a", "b", "c"))
    assert "| ... " in str(picture(Layout(cube, (Shard(0), Shard(1), Shard(2))), (4, 4, 4)))
    assert spell_ranks([f"tp{i} dp0" for i in range(9)]) == "tp0 dp0, tp1 dp0, tp2 dp0, ... (9)"


def test_slice_maps_draw_sections_copies_and_padding():
    """Sections are interleaved among the ranks; copies share a cell; padding is a note."""
    fused = SliceMap.sectioned((8, 2), 0, 2, (Section(4, name="q"), Section(2, copies=2, name="k"),
                                              Section(2, copies=2, name="v")))
    assert [(rows, ranks) for rows, _, ranks in picture(fused).cells()] == [
        ((0, 2), ("tp0",)), ((2, 4), ("tp1",)), ((4, 8), ("tp0", "tp1"))]
    both = SliceMap.plain((8, 6), 0, 2, "tp").then(1, 4, "fsdp", pad=True)
    assert picture(both).notes == [f"padding: 8 of the 8 elements of tp{rank} fsdp3" for rank in (0, 1)]
    padded = SliceMap.plain((10, 2), dim=0, parts=4, pad=True)
    assert picture(padded).notes == ["padding: 4 of the 6 elements of tp3"]
    assert "all" in str(picture(SliceMap.whole((3,)), (3,)))


def test_dtensors_know_their_shape():
    """And their slice map."""
    one = DeviceMesh("npu", (1,), ("tp",))
    whole = DTensor.from_local(Tensor(np.ones((2, 3)), mindspore.float32), one, (Shard(0),))
    assert "(2, 3): tp: Shard(dim=0)" in str(picture(whole, (2, 3)))
    mapped = DTensor(Tensor(np.ones((2, 3)), mindspore.float32), one, (Shard(0),),
                     slice_map=SliceMap.plain((2, 3), 0, 1))
    assert " tp0 " in str(picture(mapped))
    with pytest.raises(ValueError, match=r"of shape \(2, 3\), got shape \(3, 2\)"):
        picture(whole, (3, 2))


def test_refusals():
    """What is missing, by name."""
    with pytest.raises(ValueError, match="pass shape="):
        visualize(Layout(MESH, (Shard(0), Replicate())))
    with pytest.raises(ValueError, match="got Tensor"):
        visualize(Tensor([1.0]))
    with pytest.raises(ValueError, match="slice map is of shape"):
        visualize(SliceMap.whole((3,)), (4,))
    with pytest.raises(ValueError, match="axis 'dp'"):
        visualize(Layout(MESH, (Shard(2), Replicate())), (4, 4))


def test_terminal(monkeypatch, capsys):
    """Colours in a terminal: equal holders have one colour."""
    drawn = picture(Layout(MESH, (Replicate(), Shard(0))), (8, 4))
    console = Console(force_terminal=True, width=100, color_system="truecolor")
    with console.capture() as capture:
        console.print(drawn)
    assert "48;2;142;202;230m" in capture.get() and "dim 0 [4:8]" in capture.get()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    visualize(Layout(MESH, (Replicate(), Shard(0))), (8, 4))
    assert "━" in capsys.readouterr().out


@pytest.mark.parametrize("shape, placements", [((8, 4), (Shard(0), Shard(1))), ((5,), (Shard(0), Shard(0))),
                                               ((), (Replicate(), Replicate()))])
def test_png(tmp_path, shape, placements):
    """A small file."""
    pytest.importorskip("matplotlib")
    target = tmp_path / "layout.png"
    visualize(Layout(MESH, placements), shape, png=str(target))
    assert target.read_bytes().startswith(b"\x89PNG") and target.stat().st_size < 60_000


def test_png_without_matplotlib(monkeypatch):
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"hyper-parallel\[quickstart\]"):
        visualize(Layout(MESH, (Shard(0), Replicate())), (4,), png="unused.png")
