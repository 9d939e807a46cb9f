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
"""A Cell's parameters become a unit's: the stored DTensor, the leaf that the forward uses, the gradient of both."""
from typing import Callable, Iterable, Optional

import mindspore
from mindspore import Parameter, mint, ops

from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Shard
from hyper_parallel.core.fully_shard.joint_placement import join
from hyper_parallel.core.fully_shard.main_gradient import MainGradient
from hyper_parallel.core.fully_shard.parameter import ShardedParameter
from hyper_parallel.core.fully_shard.unit import Unit
from hyper_parallel.core.shard.part_record import PartRecord, recorded_part
from hyper_parallel.core.shard.shard_module import sum_replicated_gradient
from hyper_parallel.core.shard.storage import let_cells_move_local_parts
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.cpu_kernels.gradients import fix_gradient

_LOW_PRECISION = (mindspore.float16, mindspore.bfloat16)
_SHARDED = "_hp_sharded"


class Builder:
    """Takes the parameters of one module into a unit.

    Args:
        unit: the unit.
        mesh: `(shard,)` or `(replicate, shard)` axes.
        placement_of: from a parameter to its `Shard`, or None.
        dtype: in which the forward sees floating parameters; None leaves them.
    """

    def __init__(self, unit: Unit, mesh, placement_of: Optional[Callable], dtype):
        self.unit, self.mesh, self.placement_of, self.dtype = unit, mesh, placement_of, dtype

    def take_parameters(self, ignored: Iterable[Parameter], kept: Iterable[Parameter]):
        """Every parameter below the module that no unit has, and those that several units' modules use.

        Args:
            ignored: left as they are.
            kept: not cut.
        """
        let_cells_move_local_parts()
        ignored, kept = {id(one) for one in ignored}, {id(one) for one in kept}
        cells = [cell for _, cell in self.unit.module.cells_and_names()]
        for cell in cells:
            for name, parameter in cell._params.items():
                if parameter is None or id(parameter) in ignored:
                    continue
                sharded = getattr(parameter, _SHARDED, None)
                if sharded is None:
                    sharded = self._shard(parameter, id(parameter) in kept)
                if (cell, name) not in sharded.slots:
                    self._let_hold(cell, name, sharded)
        for sharded in {id(one): one for cell in cells for one in map(self._of, cell._params.values())
                        if one is not None}.values():
            owner = sharded.stored.main_gradient.unit
            if owner is not self.unit and not owner.covers(sharded):
                self.unit.adopt(sharded)

    @staticmethod
    def _of(parameter):
        return getattr(parameter, _SHARDED, None)

    def _shard(self, parameter, is_kept) -> ShardedParameter:
        leaf = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        place = self._place(parameter, leaf, is_kept)
        floating = leaf.is_floating_point()
        group = self.unit.shard_group
        sharded = ShardedParameter(leaf, parameter, place.dim, group.size, group.index,
                                   self.dtype if floating else None)
        part = leaf
        if sharded.is_temporary:
            part = Parameter(self.unit.keep(sharded.cut(ops.stop_gradient(leaf))), name=leaf.name,
                             requires_grad=leaf.requires_grad)
        sharded.stored = Parameter(DTensor(part, place.mesh, place.placements, place.slice_map, place.shape),
                                   name=leaf.name, requires_grad=leaf.requires_grad)
        sharded.stored.main_gradient = MainGradient(self.unit, leaf)
        sharded.stored._gradient_is_summed = True
        for one in (leaf, parameter, sharded.stored):
            setattr(one, _SHARDED, sharded)
        self.unit.parameters.append(sharded)
        if sharded.is_temporary:
            self._empty(sharded)
            sharded.draw_whole()
        if leaf.requires_grad:
            if isinstance(parameter, DTensor):
                sum_replicated_gradient(parameter)
            self._hook_gradient(sharded)
        return sharded

    def _place(self, parameter, leaf, is_kept):
        part = recorded_part(parameter)
        if isinstance(parameter, DTensor):
            part = PartRecord(parameter.device_mesh, parameter.placements, parameter.shape, parameter.slice_map)
        wanted = self.placement_of(parameter) if self.placement_of is not None else None
        wanted = Shard(0) if wanted is None else wanted
        if not isinstance(wanted, Shard):
            raise ValueError(f"shard_placement_fn gave {wanted!r} for {parameter.name!r}: valid are Shard(dim) and None")
        shape = tuple(leaf.shape)
        return join(self.mesh, part, shape, shape if part is None else part.shape, None if is_kept else wanted.dim)

    @staticmethod
    def _empty(sharded):
        """The leaf in the dtype of the forward, without memory."""
        leaf = sharded.leaf
        if leaf.is_meta:
            if leaf.dtype != sharded.dtype:
                with mindspore.DeviceCtx("meta"):
                    leaf.data = mint.empty(sharded.shape, dtype=sharded.dtype)
            return
        if leaf.dtype != sharded.dtype:
            leaf.data = mint.empty(sharded.shape, dtype=sharded.dtype)
        leaf.untyped_storage().resize_(0)

    @staticmethod
    def _hook_gradient(sharded):
        """Gradients of one backward after another add up in float32 and in storage order."""
        if cpu_kernels.installed():
            fix_gradient(sharded.leaf)
        if sharded.dtype in _LOW_PRECISION:
            sharded.leaf.register_hook(_to_float32)

    def _let_hold(self, cell, name, sharded):
        cell._params[name] = sharded.stored
        sharded.slots.append((cell, name))
        sharded.show(None if sharded.is_temporary else sharded.view)


def _to_float32(gradient):
    return ops.cast(gradient, mindspore.float32)
