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
"""`fully_shard`: a Cell of whose parameters, gradients and optimizer state each data-parallel rank keeps a part."""
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

import mindspore
from mindspore import Parameter

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.fully_shard.build import Builder
from hyper_parallel.core.fully_shard.forward_hooks import hook_forward
from hyper_parallel.core.fully_shard.unit import Unit
from hyper_parallel.core.fully_shard.utils import CPUOffloadPolicy, OffloadPolicy


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of a sharded module.

    Args:
        param_dtype: dtype in which the forward sees the parameters; None leaves them.
        reduce_dtype: dtype of the gradients on the wire; None is float32.
        output_dtype: dtype of the forward's result; None leaves it.
        cast_forward_inputs: cast floating inputs to `param_dtype`.
        apply_grad_on_fp32_main_grad: MindFormers' word for what holds with either value: the sharded gradient is the
            parameter's `main_grad`, in float32.
    """

    param_dtype: Optional[Any] = None
    reduce_dtype: Optional[Any] = None
    output_dtype: Optional[Any] = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False


def unit_of(module) -> Optional[Unit]:
    """The unit that `fully_shard` made for this module, or None."""
    return getattr(module, "_hp_unit", None)


class HSDPModule:
    """What `fully_shard` adds to a Cell's class."""

    def _units(self):
        return [unit for unit in map(unit_of, (cell for _, cell in self.cells_and_names())) if unit is not None]

    def set_reduce_op_type(self, reduce_op: str):
        """How gradients are reduced over the data-parallel ranks, in this module and below.

        Args:
            reduce_op: "sum", where the host scales the loss itself, or "avg".

        Raises:
            ValueError: another word.
        """
        if reduce_op not in ("sum", "avg"):
            raise ValueError(f"set_reduce_op_type({reduce_op!r}): valid are 'sum' and 'avg'")
        for unit in self._units():
            unit.reduce_op = reduce_op

    def set_requires_gradient_sync(self, requires_gradient_sync: bool):
        """Whether backward passes reduce gradients over the shard axis, in this module and below.

        Without it the micro-batches' gradients add up unreduced, whole on every rank, and are reduced once: by the
        first backward after it is switched on again, or when they are read.
        """
        for unit in self._units():
            unit.syncs_gradients = requires_gradient_sync

    def set_modules_to_forward_prefetch(self, modules):
        """Modules whose parameters are gathered together with this one's in the forward, in the order given.

        Raises:
            ValueError: a module that `fully_shard` has not been called on.
        """
        unit_of(self).forward_prefetch = _units_to_prefetch(modules)

    def set_modules_to_backward_prefetch(self, modules):
        """The same for the backward."""
        unit_of(self).backward_prefetch = _units_to_prefetch(modules)

    def unshard(self):
        """Gather this module's own parameters now; its Cells see them until `reshard` or the end of the forward."""
        unit_of(self).gather()

    def reshard(self):
        """Free this module's gathered parameters now."""
        unit_of(self).free()

    def zero_grad(self):
        """Forget the gradients of every parameter below this module, and free what is still gathered."""
        for parameter in self.trainable_params():
            if isinstance(parameter, DTensor) and parameter.main_gradient is not None:
                parameter.main_gradient.clear()
            else:
                parameter._grad = None
        for unit in self._units():
            unit.forget_backward()


def _units_to_prefetch(modules):
    for module in modules:
        if unit_of(module) is None:
            raise ValueError(f"{type(module).__name__} cannot be gathered early: call fully_shard on it first")
    return [unit_of(module) for module in modules]


def _sharded_class(cls):
    return cls if issubclass(cls, HSDPModule) else type(f"Sharded{cls.__name__}", (HSDPModule, cls), {})


def fully_shard(module, *, mesh: DeviceMesh, reshard_after_forward: Optional[bool] = None,
                shard_placement_fn: Optional[Callable] = None, mp_policy: Optional[MixedPrecisionPolicy] = None,
                offload_policy: Optional[OffloadPolicy] = None, ignored_params: Optional[Iterable[Parameter]] = None,
                replicate_params: Optional[Iterable[Parameter]] = None):
    """Let each data-parallel rank keep a part of a Cell's parameters, gradients and optimizer state.

    The parameters below the module that no earlier call has covered are one unit: gathered for the module's forward,
    freed after it, gathered again for its backward; gradients are reduced, and every rank gets its part of them as the
    parameter's `main_grad`. Call it on the blocks of a model first and on the model last. Parameters become DTensors on
    the data axes and the tensor-parallel axes together: tensor parallelism cuts outside, the shard axis inside. Outside
    of its module's forward a parameter is seen as that DTensor. A tensor whose cut dim has not a row for every rank
    stays whole.

    Gradients come from `loss.backward()`; `mindspore.value_and_grad` with respect to the stored parameters sees none.

    Args:
        module (Cell): parameters may be meta, and may be tensor-parallel: DTensors, or cut by `hp.apply`.
        mesh: `(shard,)` or `(replicate, shard)` axes. With a shard axis of size 1 nothing is cut, and gradients are
            reduced over the replicas.
        reshard_after_forward: False keeps the gathered parameters until the backward; None means True, but for the
            outermost module.
        shard_placement_fn: from a parameter to the `Shard(dim)` that cuts it; None, or a result of None, is `Shard(0)`.
        mp_policy: dtypes.
        offload_policy: `CPUOffloadPolicy()` keeps parts and gradients in host memory.
        ignored_params: parameters to leave as they are, whose gradients nobody reduces.
        replicate_params: parameters to keep whole on every rank; their gradients are reduced.

    Returns:
        The module, now also an `HSDPModule`.

    Raises:
        ValueError: the mesh has more than two axes, the module has been called on before, or MindSpore is in
            GRAPH_MODE with a shard axis larger than 1.

    Examples:
        >>> for layer in model.layers:
        ...     fully_shard(layer, mesh=mesh["dp_replicate", "fsdp"])
        >>> model = fully_shard(model, mesh=mesh["dp_replicate", "fsdp"])
        >>> model.set_reduce_op_type("sum")
    """
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard takes one axis (shard) or two (replicate, shard), got {mesh.mesh_dim_names}")
    if unit_of(module) is not None:
        raise ValueError(f"fully_shard has already been called on this {type(module).__name__}")
    shard_group = mesh.get_group(mesh.mesh_dim_names[-1])
    if shard_group.size > 1 and mindspore.get_context("mode") == mindspore.GRAPH_MODE:
        raise ValueError(f"fully_shard over axis {mesh.mesh_dim_names[-1]!r} of size {shard_group.size} gathers between "
                         "operators, which a compiled graph cannot: use mindspore.PYNATIVE_MODE, or a size of 1")
    policy = mp_policy or MixedPrecisionPolicy()
    unit = Unit(module, shard_group, mesh.get_group(mesh.mesh_dim_names[0]) if mesh.ndim == 2 else None,
                policy.reduce_dtype or mindspore.float32, reshard_after_forward,
                isinstance(offload_policy, CPUOffloadPolicy))
    builder = Builder(unit, mesh, shard_placement_fn, policy.param_dtype)
    builder.take_parameters(ignored_params or (), replicate_params or ())
    for path, cell in module.cells_and_names():
        inner = unit_of(cell)
        if inner is not None:
            inner.where, inner.outer = path, inner.outer or unit
    object.__setattr__(module, "_hp_unit", unit)
    input_dtype = policy.param_dtype if policy.cast_forward_inputs else None
    if unit.needs_hooks or input_dtype is not None or policy.output_dtype is not None:
        hook_forward(unit, input_dtype, policy.output_dtype)
    module.__class__ = _sharded_class(type(module))
    return module
