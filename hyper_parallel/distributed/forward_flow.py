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
"""How activations run through a region's forward, read from its source: what meets cut weights, and what happens to the
result of the row weight.

The source of the real modules is interpreted over tags instead of numbers; see `forward_values`.
"""
import ast
import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from mindspore import nn

from hyper_parallel.distributed.forward_frame import Frame
from hyper_parallel.distributed.forward_source import syntax_of
from hyper_parallel.distributed.forward_values import (
    LOCAL, NOTHING, PARTIAL, WEIGHT, WIDTH, Tags, integers, merge, solid, tags_of)

COLUMN, ROW, TABLE = "column", "row", "table"
_DEPTH = 12


class Unreadable(Exception):
    """The source is not there, or does what this reader does not follow."""


@dataclass
class Flow:
    """What one forward does with its arguments.

    Args:
        reaches_columns: arguments that meet cut column weights.
        columns: paths of the column weights' modules that are called.
        rows: paths of the row weights' modules that are called.
        after_row: paths of whole parameters, and of modules that hold them, that meet the row weight's result.
        before_columns: paths of modules with whole parameters that see arguments and nothing cut.
        dropouts: `{path of a dropout Cell: tags of what it drops}`.
        loose_dropouts: line numbers of calls of dropout functions on values behind column weights.
        result: tags of the first result.
        local_ints: integer attributes that are sizes of values behind column weights.
        other_ints: integer attributes that are anything else.
        local_widths: lines in which the width of an argument is taken for one of a value behind column weights.
        quotients: (integers divided, integer that divides, line).
        added: lines that add an argument, or what was made of one, to results of row weights.
        kept: attributes of the module in which the forward keeps what was made of its arguments.
        why_not_linear: what the forward does with the row weight's result that has to wait for its sum; "" if nothing.
    """

    reaches_columns: Set[str] = field(default_factory=set)
    columns: List[str] = field(default_factory=list)
    rows: List[str] = field(default_factory=list)
    after_row: Set[str] = field(default_factory=set)
    before_columns: Set[str] = field(default_factory=set)
    dropouts: Dict[str, Tags] = field(default_factory=dict)
    loose_dropouts: Set[int] = field(default_factory=set)
    result: Tags = NOTHING
    local_ints: Set[str] = field(default_factory=set)
    other_ints: Set[str] = field(default_factory=set)
    local_widths: Set[int] = field(default_factory=set)
    quotients: Set[Tuple[Tags, Tags, int]] = field(default_factory=set)
    added: Set[int] = field(default_factory=set)
    kept: Set[str] = field(default_factory=set)
    why_not_linear: str = ""


def read_flow(cell, kind_of: Callable[[str], Optional[str]]) -> Flow:
    """Interpret a module's forward. Paths, in and out, are relative to the module.

    Args:
        cell: the module.
        kind_of: `COLUMN`, `ROW`, `TABLE` (cut by columns, read by position) or None for the path of a module.

    Raises:
        Unreadable: the forward cannot be followed.
    """
    flow = Flow()
    paths = {id(module): name for name, module in cell.cells_and_names()}
    arguments = list(inspect.signature(cell.construct).parameters)
    reader = _Reader(flow, paths, kind_of)
    result = reader.run(cell, "construct", {name: frozenset((name,)) for name in arguments}, 0)
    flow.result = tags_of(result[0] if type(result) is tuple and result else result)
    return flow


def _source_of(owner, name: str) -> ast.FunctionDef:
    method = getattr(owner, name)
    try:
        statements = syntax_of(getattr(method, "__func__", method)).body
        if not statements or not isinstance(statements[0], ast.FunctionDef):
            raise TypeError(f"{method} is no plain function")
        return statements[0]
    except (OSError, TypeError, SyntaxError) as error:
        kind = owner if isinstance(owner, type) else type(owner)
        raise Unreadable(f"no source of {kind.__name__}.{name}") from error


class _Reader:
    """One interpretation."""

    def __init__(self, flow: Flow, paths: Dict[int, str], kind_of: Callable[[str], Optional[str]]):
        self._flow, self._paths, self._kind_of = flow, paths, kind_of

    def run(self, owner, method: str, given: Dict[str, Any], depth: int, above: Optional[type] = None) -> Any:
        """What a method of a module returns on tagged arguments; it is looked up above a class where one is given."""
        if depth > _DEPTH:
            raise Unreadable(f"{type(owner).__name__}.{method} calls itself")
        order = type(owner).__mro__
        order = order if above is None else order[order.index(above) + 1:]
        defined_in = next((one for one in order if method in vars(one)), None)
        frame = Frame(self, owner, depth, defined_in)
        function = _source_of(owner, method) if above is None else _source_of(defined_in, method)
        frame.names.update(given)
        frame.block(function.body)
        return frame.returned if frame.returned is not None else NOTHING

    def call_cells(self, cells, arguments: List[Any], keywords: Dict[str, Any], depth: int) -> Any:
        """What calling one of these modules gives."""
        result = None
        for cell in cells:
            one = self._call_cell(cell, arguments, keywords, depth)
            result = one if result is None else merge(result, one)
        return NOTHING if result is None else result

    def _call_cell(self, cell, arguments: List[Any], keywords: Dict[str, Any], depth: int) -> Any:
        path = self._paths.get(id(cell), "")
        tags = tags_of(tuple(arguments) + tuple(keywords.values()))
        self.sizes(NOTHING, tags, 0, is_shaped=False)
        tags = solid(tags)
        kind = self._kind_of(path)
        if kind == COLUMN:
            self._flow.reaches_columns |= {tag for tag in tags if not tag.startswith("<")}
            if path not in self._flow.columns:
                self._flow.columns.append(path)
            return frozenset((LOCAL,))
        if kind == TABLE:
            return frozenset((LOCAL,))
        if kind == ROW:
            if path not in self._flow.rows:
                self._flow.rows.append(path)
            return frozenset((PARTIAL,))
        below = [(name, module) for name, module in cell.cells_and_names()]
        if any(self._kind_of(self._paths.get(id(module), "")) for _, module in below):
            return self._enter(cell, arguments, keywords, depth)
        for _, module in below:
            if "dropout" in type(module).__name__.lower():
                where = self._paths.get(id(module), "")
                self._flow.dropouts[where] = self._flow.dropouts.get(where, NOTHING) | tags
        if any(True for _ in cell.get_parameters()):
            if PARTIAL in tags:
                self._flow.after_row.add(path)
            elif LOCAL not in tags:
                self._flow.before_columns.add(path)
        if PARTIAL in tags and "dropout" not in type(cell).__name__.lower() and \
                type(cell).__name__ not in ("Identity",):
            self.not_linear(f"{type(cell).__name__} ({path})", tags)
        return tags

    def _enter(self, cell, arguments: List[Any], keywords: Dict[str, Any], depth: int) -> Any:
        """A module with cut weights below is followed inside."""
        if isinstance(cell, nn.SequentialCell):
            value = arguments[0] if arguments else NOTHING
            for child in cell.cell_list:
                value = self.call_cells((child,), [value], {}, depth + 1)
            return value
        names = list(inspect.signature(cell.construct).parameters)
        given = dict(zip(names, arguments))
        given.update(keywords)
        return self.run(cell, "construct", {name: given.get(name, NOTHING) for name in names}, depth + 1)

    def path_of(self, cell) -> str:
        """The path of a module."""
        return self._paths.get(id(cell), "")

    def sizes(self, subject: Tags, given: Tags, line: int, is_shaped: bool):
        """Integers are used: as sizes of a value with the tags `subject`, or otherwise."""
        if is_shaped and LOCAL in subject:
            self._flow.local_ints |= integers(given)
            if WIDTH in given:
                self._flow.local_widths.add(line)
        else:
            self._flow.other_ints |= integers(given)

    def adds(self, other: Tags, line: int):
        """Something is added to the result of a row weight."""
        if any(not tag.startswith("<") for tag in other):
            self._flow.added.add(line)

    def keeps(self, name: str, tags: Tags):
        """The module keeps a value for later."""
        if any(not tag.startswith("<") for tag in tags):
            self._flow.kept.add(name)

    def holds_cut_weights(self, cells) -> bool:
        """One of the modules, or one below it, does."""
        return any(self._kind_of(self.path_of(module)) for cell in cells for _, module in cell.cells_and_names())

    def quotient(self, divided: Tags, by: Tags, line: int):
        """One size is divided by another."""
        self._flow.quotients.add((divided, by, line))

    def not_linear(self, what: str, tags: Tags = NOTHING):
        """Remember the first thing that has to wait for the sum over the ranks, and the weights in it."""
        self._flow.after_row |= {tag[len(WEIGHT):-1] for tag in tags if tag.startswith(WEIGHT)}
        self._flow.why_not_linear = self._flow.why_not_linear or what

    def drops(self, tags: Tags, line: int):
        """A dropout function sees these tags."""
        if LOCAL in tags and PARTIAL not in tags:
            self._flow.loose_dropouts.add(line)
