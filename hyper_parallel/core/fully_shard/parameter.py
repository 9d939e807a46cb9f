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
"""One parameter of which a rank keeps a part between the forwards, and all rows while its unit computes.

Words of this package: the *part* is what a rank keeps; *gathered* is what the forward uses, whole over the shard axis
(under tensor parallelism still one tensor-parallel rank's own). A dim of `rows` on n ranks is cut into chunks of
ceil(rows / n); on the wire every part has the length of a full chunk::

    rows 0 1 2 3 4 on 2 ranks   part 0: 0 1 2   part 1: 3 4   wire: 0 1 2 | 3 4 -
"""
from typing import List, Optional, Tuple

import mindspore
from mindspore import Parameter, Tensor, mint, ops
from mindspore.graph.api import _no_grad

from hyper_parallel.core.dtensor.placement_state import chunk
from hyper_parallel.core.fully_shard.wire import own_memory, padded
from hyper_parallel.core.shard.initialisers import draw_by


class ShardedParameter:
    """The two tensors of a parameter, and the way from one to the other.

    The gathered tensor is the Parameter object that the Cell was built with: hooks on it, and other Cells that use it,
    stay as they are. Its memory comes and goes; autograd, which has saved the object, finds the same numbers again.

    Args:
        leaf (Parameter): the plain local Parameter that the forward's operators use; its shape is the gathered one.
        view (Parameter): what the Cell's attribute shows in the forward: the leaf, or the tensor-parallel DTensor whose
            local part the leaf is.
        dim: the dim that is cut; None keeps the parameter whole.
        parts: ranks of the shard axis.
        index: this rank's place on it.
        dtype: in which the forward uses it; None is its own.
    """

    def __init__(self, leaf: Parameter, view, dim: Optional[int], parts: int, index: int, dtype=None):
        self.leaf, self.view, self.dim = leaf, view, dim
        self.shape = tuple(leaf.shape)
        self.slots: List[Tuple] = []
        self.stored = None
        self.dtype = leaf.dtype if dtype is None else dtype
        self.is_temporary = dim is not None or self.dtype != leaf.dtype
        if dim is not None:
            rows = self.shape[dim]
            self._order = (dim,) + tuple(other for other in range(len(self.shape)) if other != dim)
            self._back = tuple(self._order.index(axis) for axis in range(len(self.shape)))
            self._front = tuple(self.shape[axis] for axis in self._order)
            self._start, self._rows = chunk(rows, parts, index)
            self._parts, self._chunk = parts, -(-rows // parts)
            self._inner = leaf.size // rows if rows else 0

    @property
    def is_cut(self) -> bool:
        """Whether this rank keeps only a part."""
        return self.dim is not None

    @property
    def wire_elements(self) -> int:
        """Elements of one rank's part on the wire, padding included."""
        return self._chunk * self._inner

    @property
    def part_bytes(self) -> int:
        """Bytes of this rank's part."""
        return self.stored.to_local().nbytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes that the gathered tensor holds at the moment."""
        return 0 if self.leaf.is_meta else self.leaf.untyped_storage().size()

    def cut(self, gathered: Tensor) -> Tensor:
        """This rank's part of a gathered tensor, a copy."""
        if self.dim is None:
            return gathered.copy()
        if gathered.is_meta:
            shape = tuple(self._rows if axis == self.dim else size for axis, size in enumerate(self.shape))
            with mindspore.DeviceCtx("meta"):
                return mint.empty(shape, dtype=gathered.dtype)
        return mint.narrow(gathered, self.dim, self._start, self._rows).copy()

    def to_wire(self, part: Tensor) -> Tensor:
        """A part as `[wire_elements]`: rows first, padded to a full chunk."""
        flat = mint.reshape(ops.transpose(part, self._order) if self.dim else part, (-1,))
        return padded(flat, self.wire_elements)

    def from_wire(self, flat: Tensor) -> Tensor:
        """The inverse of `to_wire`."""
        flat = mint.narrow(flat, 0, 0, self._rows * self._inner)
        return self._in_order(mint.reshape(flat, (self._rows,) + self._front[1:]))

    def gathered_to_wire(self, gathered: Tensor) -> Tensor:
        """A gathered tensor, a gradient say, as `[ranks, wire_elements]`: row i is what rank i keeps."""
        flat = mint.reshape(ops.transpose(gathered, self._order) if self.dim else gathered.contiguous(), (-1,))
        return mint.reshape(padded(flat, self._parts * self.wire_elements), (self._parts, self.wire_elements))

    def _in_order(self, rows_first):
        return ops.transpose(rows_first, self._back) if self.dim else rows_first

    def allocate(self):
        """Give the gathered tensor memory of unknown content."""
        if self.leaf.is_meta:
            self.leaf.data = mint.empty(self.shape, dtype=self.dtype)
        else:
            self.leaf.untyped_storage().resize_(self.leaf.nbytes)

    def fill_from_wire(self, wire: Tensor):
        """Let the gathered tensor hold the parts of all ranks, `[ranks, wire_elements]`, and let the Cells see it."""
        rows = mint.narrow(mint.reshape(wire, (-1,)), 0, 0, self.leaf.size)
        self.fill(self._in_order(mint.reshape(rows, self._front)))

    def fill(self, values: Tensor):
        """Let the gathered tensor hold `values`, and let the Cells see it."""
        self.allocate()
        # storage to storage: writing to the leaf would look to autograd like a change of what it has saved
        self.leaf.untyped_storage().copy_(own_memory(values.contiguous()).untyped_storage())
        self.show(self.view)

    def free(self):
        """Give the gathered tensor's memory back; the Cells see the stored part again."""
        if not self.leaf.is_meta:
            self.leaf.untyped_storage().resize_(0)
        self.show(None)

    def show(self, parameter):
        """What the Cells' attribute gives: `parameter`, or for None the stored one."""
        for cell, name in self.slots:
            if parameter is None:
                cell.__dict__.pop(name, None)
            else:
                cell.__dict__[name] = parameter

    def draw_whole(self):
        """Initialisers called on the stored parameter draw all rows and keep the rank's: the weights of a run do not
        depend on how many ranks share them."""

        def draw(name, args, kwargs):
            self.allocate()
            with _no_grad():
                getattr(self.view, name)(*args, **kwargs)
                self.stored.to_local().copy_(self.cut(ops.stop_gradient(self.leaf)))
            self.free()

        draw_by(self.stored, draw)
