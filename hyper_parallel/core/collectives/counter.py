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
"""Counts collectives: which, over which group or mesh axis, of which module, how many bytes.

What is counted is the logical collective, whatever a backend does to carry it out, at every call in PyNative. A
compiled graph (mindspore.jit, GRAPH_MODE) counts nothing: its collectives do not pass through Python, and the compiler
reads a function that several edges share only once. Outside `count_collectives()` a collective pays one test of a
global.
"""
import contextlib
import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional

from mindspore import ops

from hyper_parallel.core.collectives.groups import axis_of

ACTIVATION = "activation"
PARAMETER = "parameter"
PARAMETER_GRADIENT = "parameter_gradient"

_BYTES = {"Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4,
          "UInt32": 4, "Float32": 4, "Int64": 8, "UInt64": 8, "Float64": 8, "Complex64": 8, "Complex128": 16}

# How many times the bytes of the input the full tensor has, and whether the ring sends the full tensor twice, once or
# only its local part; (t - 1) / t of that is what one rank puts on the wire.
_KINDS = {"all_reduce": (1, 2), "all_gather": ("size", 1), "reduce_scatter": (1, 1), "all_to_all": ("size", "local"),
          "broadcast": (1, 1), "barrier": (1, 0)}


@dataclass(frozen=True)
class Collective:
    """One logical collective.

    Attributes:
        kind (str): "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast" or "barrier".
        group (str): the group's name, as in `mesh.get_group("tp").name`.
        size (int): the group's size.
        local_bytes (int): the smaller side: one rank's part of the tensor.
        full_bytes (int): the larger side: the parts of all ranks; equal to `local_bytes` for all-reduce and broadcast.
        purpose (str): "activation", "parameter", "parameter_gradient" or what the caller said.
        phase (str): "forward" or "backward".
        axis (str): the mesh axis by which the group was asked for; "" for a group made of ranks.
        where (str): path of the module whose edge or whose parameter it belongs to; "" where nobody said.
    """

    kind: str
    group: str
    size: int
    local_bytes: int
    full_bytes: int
    purpose: str = ACTIVATION
    phase: str = "forward"
    axis: str = ""
    where: str = ""

    @property
    def wire_bytes(self) -> float:
        """What one rank sends in the ring algorithm: 2(t-1)/t of the tensor for an all-reduce, (t-1)/t of the full
        tensor for an all-gather, a reduce-scatter or a broadcast, (t-1)/t of the local one for an all-to-all."""
        rounds = _KINDS[self.kind][1]
        sent = self.local_bytes if rounds == "local" else rounds * self.full_bytes
        return sent * (self.size - 1) / self.size


@dataclass
class CollectiveRecord:
    """What `count_collectives` saw, in order of the calls; `print` draws the table, `to_dict` gives the data."""

    collectives: List[Collective] = field(default_factory=list)

    def select(self, kind: Optional[str] = None, group: Optional[str] = None, purpose: Optional[str] = None,
               phase: Optional[str] = None, axis: Optional[str] = None,
               where: Optional[str] = None) -> List[Collective]:
        """The collectives that match every criterion given; `where` takes in all modules below that path."""
        wanted = [(key, value) for key, value in (("kind", kind), ("group", group), ("purpose", purpose),
                                                  ("phase", phase), ("axis", axis)) if value is not None]
        return [item for item in self.collectives if all(getattr(item, key) == value for key, value in wanted)
                and (where is None or f"{item.where}.".startswith(f"{where}."))]

    def count(self, kind: Optional[str] = None, **criteria) -> int:
        """How many collectives match; the criteria are those of `select`."""
        return len(self.select(kind, **criteria))

    def counts(self, **criteria) -> Counter:
        """`{kind: how many}` of the collectives that match the criteria of `select`."""
        return Counter(item.kind for item in self.select(**criteria))

    def wire_bytes(self, **criteria) -> float:
        """Bytes that one rank sends for the collectives that match the criteria of `select`."""
        return sum(item.wire_bytes for item in self.select(**criteria))

    def logical_bytes(self, **criteria) -> int:
        """Bytes of the full tensors of the collectives that match the criteria of `select`."""
        return sum(item.full_bytes for item in self.select(**criteria))

    def rows(self, fold: bool = False) -> List[Dict]:
        """One row per module path, axis, kind, purpose and phase, in order of their first call.

        Args:
            fold: rows of the same path but for numbers, as layers have, are one, with `*` for the numbers.

        Returns:
            Dictionaries with those keys and `count`, `bytes` (of the full tensors) and `wire_bytes` (sent by one rank).
        """
        found = {}
        for item in self.collectives:
            where = ".".join("*" if fold and name.isdigit() else name for name in item.where.split("."))
            key = (where, item.axis or item.group, item.kind, item.purpose, item.phase)
            row = found.setdefault(key, {**dict(zip(_COLUMNS, key)), "count": 0, "bytes": 0, "wire_bytes": 0})
            row["count"] += 1
            row["bytes"] += item.full_bytes
            row["wire_bytes"] += item.wire_bytes
        return list(found.values())

    def to_dict(self) -> Dict:
        """Plain data: `rows`, and the totals `count`, `bytes`, `wire_bytes`, `by_kind` and `by_axis`.

        Examples:
            >>> record.to_dict()["by_axis"]
            {'tp': 4, 'dp': 12}
        """
        return {"count": len(self), "bytes": self.logical_bytes(), "wire_bytes": self.wire_bytes(),
                "by_kind": dict(self.counts()),
                "by_axis": dict(Counter(item.axis or item.group for item in self.collectives)), "rows": self.rows()}

    def table(self, fold: bool = True):
        """The rows as a `rich.table.Table`; see `rows` for `fold`."""
        from rich.table import Table  # pylint: disable=import-outside-toplevel
        table = Table(title=f"{len(self)} collectives, {self.wire_bytes():,.0f} bytes sent by this rank")
        for name in ("module", "axis", "collective", "purpose", "phase"):
            table.add_column(name, overflow="fold")
        for name in ("count", "bytes", "bytes sent"):
            table.add_column(name, justify="right")
        for row in self.rows(fold):
            table.add_row(*(row[key] or "-" for key in _COLUMNS), f"{row['count']}", f"{row['bytes']:,}",
                          f"{row['wire_bytes']:,.0f}")
        return table

    def __str__(self):
        from rich.console import Console  # pylint: disable=import-outside-toplevel
        page = Console(file=io.StringIO(), width=140, color_system=None)
        page.print(self.table())
        return page.file.getvalue().rstrip()

    def clear(self) -> None:
        """Forgets what was counted so far."""
        self.collectives.clear()

    def __len__(self):
        return len(self.collectives)

    def __iter__(self):
        return iter(self.collectives)


_COLUMNS = ("where", "axis", "kind", "purpose", "phase")
_RECORDS: List[CollectiveRecord] = []
_COUNTING = False


@contextlib.contextmanager
def count_collectives():
    """Counts the collectives that this process calls inside the block, in PyNative; blocks may be nested.

    Yields:
        CollectiveRecord: filled as the collectives are called; readable inside and after the block.

    Examples:
        >>> with count_collectives() as record:
        ...     loss, gradients = forward_backward(batch)
        >>> record.counts(purpose="activation")
        Counter({'all_reduce': 4})
        >>> print(record)                                           # by module, mesh axis, kind, purpose and phase
    """
    global _COUNTING  # pylint: disable=global-statement
    record = CollectiveRecord()
    _RECORDS.append(record)
    _COUNTING = True
    try:
        yield record
    finally:
        _RECORDS[:] = [item for item in _RECORDS if item is not record]
        _COUNTING = bool(_RECORDS)


def counted(run: Callable, kind: str, group, purpose: str = ACTIVATION, phase: str = "forward",
            where: str = "") -> Callable:
    """`run`, a function of one tensor, which reports itself as `kind` when somebody counts; compilable if `run` is."""
    name, size = group.name, group.size

    def call(x):
        if _COUNTING:
            _note(kind, name, size, purpose, phase, where, x.shape, x.dtype)
        return run(x)

    call.run = run
    return call


class _Note(ops.PrimitiveWithInfer):
    """Writes a collective into the records; a primitive, so that the compiler does not look inside."""

    def __init__(self):
        super().__init__("NoteCollective")
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)

    def __call__(self, kind, group, size, purpose, phase, where, shape, dtype):
        local = full = math.prod(shape) * _BYTES[str(dtype)]
        if _KINDS[kind][0] == "size":
            full = local * size
        elif kind == "reduce_scatter":
            local = full // size
        for record in _RECORDS:
            record.collectives.append(Collective(kind, group, size, local, full, purpose, phase, axis_of(group), where))

    def __infer__(self, *_):
        return {"dtype": None, "shape": None, "value": 0}


_note = _Note()
