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
"""Counts collectives: which, over which group, how many bytes.

What is counted is the logical collective, whatever a backend does to carry it out, at every call in PyNative. A
compiled graph (mindspore.jit, GRAPH_MODE) counts nothing: its collectives do not pass through Python, and the compiler
reads a function that several edges share only once. Outside `count_collectives()` a collective pays one test of a
global.
"""
import contextlib
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, List, Optional

from mindspore import ops

ACTIVATION = "activation"
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
        purpose (str): "activation", "parameter_gradient" or what the caller said.
        phase (str): "forward" or "backward".
    """

    kind: str
    group: str
    size: int
    local_bytes: int
    full_bytes: int
    purpose: str = ACTIVATION
    phase: str = "forward"

    @property
    def wire_bytes(self) -> float:
        """What one rank sends in the ring algorithm: 2(t-1)/t of the tensor for an all-reduce, (t-1)/t of the full
        tensor for an all-gather, a reduce-scatter or a broadcast, (t-1)/t of the local one for an all-to-all."""
        rounds = _KINDS[self.kind][1]
        sent = self.local_bytes if rounds == "local" else rounds * self.full_bytes
        return sent * (self.size - 1) / self.size


@dataclass
class CollectiveRecord:
    """What `count_collectives` saw, in order of the calls."""

    collectives: List[Collective] = field(default_factory=list)

    def select(self, kind: Optional[str] = None, group: Optional[str] = None, purpose: Optional[str] = None,
               phase: Optional[str] = None) -> List[Collective]:
        """The collectives that match every criterion given."""
        wanted = [(key, value) for key, value in (("kind", kind), ("group", group), ("purpose", purpose),
                                                  ("phase", phase)) if value is not None]
        return [item for item in self.collectives if all(getattr(item, key) == value for key, value in wanted)]

    def count(self, kind: Optional[str] = None, **criteria) -> int:
        """How many collectives match; the criteria are those of `select`."""
        return len(self.select(kind, **criteria))

    def counts(self, **criteria) -> Counter:
        """`{kind: how many}` of the collectives that match the criteria of `select`."""
        return Counter(item.kind for item in self.select(**criteria))

    def wire_bytes(self, **criteria) -> float:
        """Bytes that one rank sends for the collectives that match the criteria of `select`."""
        return sum(item.wire_bytes for item in self.select(**criteria))

    def clear(self) -> None:
        """Forgets what was counted so far."""
        self.collectives.clear()

    def __len__(self):
        return len(self.collectives)

    def __iter__(self):
        return iter(self.collectives)


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


def counted(run: Callable, kind: str, group, purpose: str = ACTIVATION, phase: str = "forward") -> Callable:
    """`run`, a function of one tensor, which reports itself as `kind` when somebody counts; compilable if `run` is."""
    name, size = group.name, group.size

    def call(x):
        if _COUNTING:
            _note(kind, name, size, purpose, phase, x.shape, x.dtype)
        return run(x)

    return call


class _Note(ops.PrimitiveWithInfer):
    """Writes a collective into the records; a primitive, so that the compiler does not look inside."""

    def __init__(self):
        super().__init__("NoteCollective")
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)

    def __call__(self, kind, group, size, purpose, phase, shape, dtype):
        local = full = math.prod(shape) * _BYTES[str(dtype)]
        if _KINDS[kind][0] == "size":
            full = local * size
        elif kind == "reduce_scatter":
            local = full // size
        for record in _RECORDS:
            record.collectives.append(Collective(kind, group, size, local, full, purpose, phase))

    def __infer__(self, *_):
        return {"dtype": None, "shape": None, "value": 0}


_note = _Note()
