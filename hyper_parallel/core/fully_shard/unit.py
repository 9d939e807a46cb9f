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
"""What is gathered, freed and reduced together: the parameters of one `fully_shard` call.

A step of a unit on two ranks, with one all-gather for the forward, one for the backward and one reduce-scatter::

    forward    part --all-gather--> gathered, compute, free
    backward   part --all-gather--> gathered, compute, free; gradients --reduce-scatter--> main gradients
"""
from typing import List, Optional

import mindspore
from mindspore import mint
from mindspore.graph.api import _no_grad

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import PARAMETER, PARAMETER_GRADIENT
from hyper_parallel.core.fully_shard.parameter import ShardedParameter
from hyper_parallel.core.fully_shard.utils import to_device, to_host
from hyper_parallel.core.fully_shard.wire import apart, as_dtype, joined, own_memory


class Unit:
    """The parameters of one `fully_shard` call, and their state.

    Args:
        module (Cell): whose forward needs them.
        shard_group: the ranks that share each parameter's rows.
        replicate_group: the ranks that hold equal parts; None where there is no such axis.
        reduce_dtype: dtype of the gradients on the wire.
        reshard: free after the forward; None: unless the unit is the outermost.
        offloads: parts and gradients are kept in host memory.
    """

    def __init__(self, module, shard_group, replicate_group, reduce_dtype, reshard: Optional[bool],
                 offloads: bool = False):
        self.module = module
        self.shard_group, self.replicate_group = shard_group, replicate_group
        self.reduce_dtype, self.reshard, self._offloads = reduce_dtype, reshard, offloads
        self.parameters: List[ShardedParameter] = []
        self.outer: Optional["Unit"] = None
        self.where = ""
        self.reduce_op = "avg"
        self.syncs_gradients = True
        self.forward_prefetch: List["Unit"] = []
        self.backward_prefetch: List["Unit"] = []
        self.is_gathered = False
        self.has_run_backward = False
        self.owes_reduction = False
        self._wires = None
        # parameters that other units took over, because their modules use them too
        self._lent: List[ShardedParameter] = []

    @property
    def cut_parameters(self) -> List[ShardedParameter]:
        """Those of which each rank keeps a part."""
        return [one for one in self.parameters if one.is_cut]

    @property
    def needs_hooks(self) -> bool:
        """Whether anything has to be gathered for the forward."""
        return any(one.is_temporary for one in self.parameters)

    @property
    def reshards_after_forward(self) -> bool:
        """Whether the gathered parameters go after the forward and come again for the backward."""
        return self.outer is not None if self.reshard is None else self.reshard

    def adopt(self, sharded: ShardedParameter):
        """Take a parameter in, from another unit where it has one."""
        gradient = sharded.stored.main_gradient
        if gradient.unit is not None:
            gradient.unit.parameters.remove(sharded)
            gradient.unit._wires, gradient.unit._lent = None, gradient.unit._lent + [sharded]
        gradient.unit = self
        self.parameters.append(sharded)
        self._wires = None

    def covers(self, sharded: ShardedParameter) -> bool:
        """Whether every Cell that uses the parameter is inside the unit's module."""
        inside = {id(cell) for _, cell in self.module.cells_and_names()} if len(sharded.slots) > 1 else ()
        return len(sharded.slots) == 1 or all(id(cell) in inside for cell, _ in sharded.slots)

    def keep(self, part):
        """A part or its gradient where it is kept between the steps."""
        return to_host(part) if self._offloads else part

    def _use(self, part):
        return to_device(part) if self._offloads else part

    def check_shared_parameters(self):
        """Refuse a parameter that Cells outside of the module use, whom this unit's gathers do not reach.

        Raises:
            ValueError: names it.
        """
        for one in self.cut_parameters + self._lent:
            unit = one.stored.main_gradient.unit
            if not unit.covers(one):
                raise ValueError(f"parameter {one.leaf.name!r} is used by several modules, of which "
                                 f"{type(unit.module).__name__} holds only some: call fully_shard on a module that holds "
                                 "them all, after the calls on the smaller ones")

    def gather(self, phase: str = "forward"):
        """Let the Cells see whole parameters; one all-gather per dtype.

        Args:
            phase: "forward" or "backward", for the counter.
        """
        if self.is_gathered:
            return
        with _no_grad():
            for wire in self._grouped():
                self._gather(wire, phase)
            for one in self.parameters:
                if one.is_temporary and not one.is_cut:
                    one.fill(as_dtype(self._use(one.stored.to_local()), one.dtype))
        self.is_gathered = True

    def _grouped(self):
        """Cut parameters that travel together: those of one dtype."""
        if self._wires is None:
            by_dtype = {}
            for one in self.cut_parameters:
                by_dtype.setdefault(str(one.dtype), []).append(one)
            self._wires = list(by_dtype.values())
            self.check_shared_parameters()
        return self._wires

    def _gather(self, wire, phase):
        run = self._collective("all_gather", self.shard_group, 0, purpose=PARAMETER, phase=phase)
        parts = joined([as_dtype(one.to_wire(self._use(one.stored.to_local())), one.dtype) for one in wire])
        whole = run(mint.reshape(parts, (1, -1)))
        for one, rows in zip(wire, apart(whole, [one.wire_elements for one in wire], 1)):
            one.fill_from_wire(rows)

    def _collective(self, kind, group, *arguments, purpose=PARAMETER_GRADIENT, phase="backward"):
        return functional.make(kind, group, *arguments, purpose=purpose, phase=phase, where=self.where)

    def free(self):
        """Give the memory of gathered parameters back."""
        if self.is_gathered:
            self.is_gathered = False
            for one in self.parameters:
                if one.is_temporary:
                    one.free()

    def before_backward(self):
        """Gather for the backward, and what is to come after this unit."""
        self.has_run_backward = True
        self.owes_reduction = self.owes_reduction or self.syncs_gradients
        self.gather("backward")
        for unit in self.backward_prefetch:
            unit.gather("backward")

    def after_backward(self):
        """The backward has left the module: free, and reduce the gradients over the shard axis."""
        self.free()
        if self.syncs_gradients:
            self.finish_backward()

    def before_forward(self):
        """Gather, and what is to come after this unit."""
        if self.owes_reduction:
            # a module without differentiable inputs does not see its backward end
            self.finish_backward()
        self.gather()
        for unit in self.forward_prefetch:
            unit.gather()

    def forget_backward(self):
        """A step is over: nothing is owed, nothing stays gathered."""
        self.has_run_backward = self.owes_reduction = False
        self.free()

    def finish_backward(self):
        """Move the leaves' gradients into the main gradients, reduced over the shard axis where parameters are cut.

        Every rank takes part for every trained parameter, whether or not its own data has used it.
        """
        self.has_run_backward = self.owes_reduction = False
        self.free()
        trained = [one for one in self.cut_parameters if one.leaf.requires_grad]
        if trained:
            with _no_grad():
                self._reduce_scatter(trained)

    def _reduce_scatter(self, trained):
        run = self._collective("reduce_scatter", self.shard_group, 0)
        wire = joined([one.gathered_to_wire(self._take(one)) for one in trained], 1)
        mine = self._scaled(as_dtype(run(mint.reshape(wire, (-1,))), mindspore.float32))
        for one, part in zip(trained, apart(mine, [one.wire_elements for one in trained])):
            one.stored.main_gradient.add(self.keep(one.from_wire(part)))

    def _scaled(self, total):
        """The sum over all data ranks, or the mean."""
        ranks = self.shard_group.size * (1 if self.replicate_group is None else self.replicate_group.size)
        return total / ranks if self.reduce_op == "avg" and ranks > 1 else total

    def _take(self, one):
        gradient, one.leaf._grad = one.leaf._grad, None
        return mint.zeros(one.shape, dtype=self.reduce_dtype) if gradient is None else as_dtype(gradient,
                                                                                                self.reduce_dtype)

    def finish_gradients(self):
        """Complete the main gradients of the unit: what still waits is reduced now, over every data axis."""
        if self.has_run_backward:
            self.finish_backward()
        with _no_grad():
            self._finish_whole([one for one in self.parameters if not one.is_cut and one.leaf.requires_grad])
            cut = [(one, one.stored.main_gradient.take_pending()) for one in self.cut_parameters]
            cut = [(one, part) for one, part in cut if part is not None]
            if cut:
                self._finish([one for one, _ in cut], [self._use(part) for _, part in cut], (self.replicate_group,))

    def _finish_whole(self, kept):
        """All of them or none: ranks whose data has used different ones still take part in the same reduction."""
        if any(one.leaf._grad is not None for one in kept):
            groups = (self.shard_group, self.replicate_group)
            self._finish(kept, [self._take(one) for one in kept], groups, self._scaled)

    def _finish(self, parameters, gradients, groups, scaled=None):
        """Sums over groups of several ranks, in one collective each."""
        groups = [group for group in groups if group is not None and group.size > 1]
        if groups:
            lengths, shapes = [one.size for one in gradients], [one.shape for one in gradients]
            flat = joined([as_dtype(mint.reshape(one.contiguous(), (-1,)), self.reduce_dtype) for one in gradients])
            for group in groups:
                flat = self._collective("all_reduce", group, "sum")(flat)
            flat = as_dtype(flat, mindspore.float32)
            flat = flat if scaled is None else scaled(flat)
            gradients = [mint.reshape(piece, shape) for piece, shape in zip(apart(flat, lengths), shapes)]
        for one, gradient in zip(parameters, gradients):
            one.stored.main_gradient.put(self.keep(own_memory(as_dtype(gradient, mindspore.float32))))
