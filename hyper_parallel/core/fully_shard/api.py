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
"""`fully_shard`: a Cell whose gradients are reduced over the data-parallel ranks.

This version replicates parameters over the data axis: the shard axis has size 1, and a larger one is refused by name
when the module is built.
"""
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

from mindspore import Parameter

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.core.fully_shard.main_gradient import MainGradient
from hyper_parallel.core.fully_shard.utils import CPUOffloadPolicy, OffloadPolicy
from hyper_parallel.core.later_tiers import refuse
from hyper_parallel.core.shard.storage import store_as_dtensor


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of a sharded module.

    Args:
        param_dtype: dtype in which the forward sees the parameters; None leaves them.
        reduce_dtype: dtype of the gradient reduction; None is float32.
        output_dtype: dtype of the forward's result; None leaves it.
        cast_forward_inputs: cast floating inputs to `param_dtype`.
        apply_grad_on_fp32_main_grad: accumulate into the float32 `main_grad` instead of `grad`.
    """

    param_dtype: Optional[Any] = None
    reduce_dtype: Optional[Any] = None
    output_dtype: Optional[Any] = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False


class HSDPModule:
    """What `fully_shard` adds to a Cell's class."""

    def _sharded_parameters(self):
        return [parameter for parameter in self.trainable_params() if isinstance(parameter, DTensor)
                and parameter.main_gradient is not None]

    def set_reduce_op_type(self, reduce_op: str):
        """How gradients are reduced over the data-parallel ranks.

        Args:
            reduce_op: "sum", where the host scales the loss itself, or "avg".

        Raises:
            ValueError: another word.
        """
        if reduce_op not in ("sum", "avg"):
            raise ValueError(f"set_reduce_op_type({reduce_op!r}): valid are 'sum' and 'avg'")
        for parameter in self._sharded_parameters():
            parameter.main_gradient.reduce_op = reduce_op

    def set_modules_to_forward_prefetch(self, modules):
        """Modules to gather early in the forward; parameters are whole over the data axis, so nothing is gathered."""

    def set_modules_to_backward_prefetch(self, modules):
        """Modules to gather early in the backward; parameters are whole over the data axis, so nothing is gathered."""

    def zero_grad(self):
        """Forget the gradients of every parameter below this module."""
        for parameter in self.trainable_params():
            if isinstance(parameter, DTensor) and parameter.main_gradient is not None:
                parameter.main_gradient.clear()
            else:
                parameter._grad = None


def _sharded_class(cls):
    return cls if issubclass(cls, HSDPModule) else type(f"Sharded{cls.__name__}", (HSDPModule, cls), {})


def _data_group(mesh: DeviceMesh):
    """The ranks that hold the same parameters and see other data."""
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard takes one axis (shard) or two (replicate, shard), got {mesh.mesh_dim_names}")
    shard_axis = mesh.mesh_dim_names[-1]
    if mesh.size(shard_axis) > 1:
        refuse(f"fully_shard over axis {shard_axis!r} of size {mesh.size(shard_axis)} (FSDP)",
               "parallelism.data_parallel_shard (set it to 1: replicas)")
    return mesh.get_group(mesh.mesh_dim_names[0])


def fully_shard(module, *, mesh: DeviceMesh, reshard_after_forward: bool = True,
                shard_placement_fn: Optional[Callable] = None, mp_policy: Optional[MixedPrecisionPolicy] = None,
                offload_policy: Optional[OffloadPolicy] = None, ignored_params: Optional[Iterable[Parameter]] = None,
                replicate_params: Optional[Iterable[Parameter]] = None):
    """Give a Cell data-parallel gradients; parameters become DTensors with a reduced `main_grad`.

    Args:
        module (Cell): parameters may be meta; a parameter that is already covered (by a call on a child) is left alone.
        mesh: `(shard,)` or `(replicate, shard)` axes; the shard axis must have size 1 in this version.
        reshard_after_forward: without effect while the shard axis has size 1.
        shard_placement_fn: without effect while the shard axis has size 1.
        mp_policy: dtypes; `main_grad` is float32 always.
        offload_policy: CPU offload is refused.
        ignored_params: parameters to leave as they are.
        replicate_params: parameters that would not be cut; all are whole here.

    Returns:
        The module, now also an `HSDPModule`.

    Raises:
        NotImplementedError: a shard axis larger than 1, or CPU offload.

    Examples:
        >>> model = fully_shard(model, mesh=mesh["dp_replicate", "fsdp"])
        >>> model.set_reduce_op_type("sum")
    """
    del reshard_after_forward, shard_placement_fn, mp_policy, replicate_params
    if isinstance(offload_policy, CPUOffloadPolicy):
        refuse("CPU offload of parameters and gradients", "parallelism.cpu_offload")
    group = _data_group(mesh)
    ignored = {id(parameter) for parameter in ignored_params or ()}
    stored = {}
    for _, cell in module.cells_and_names():
        for name, parameter in cell._params.items():
            if parameter is None or id(parameter) in ignored:
                continue
            if not isinstance(parameter, DTensor):
                stored[id(parameter)] = store_as_dtensor(cell, name, mesh, (Replicate(),) * mesh.ndim,
                                                         known=stored.get(id(parameter)))
                parameter = stored[id(parameter)]
            if parameter.main_gradient is None:
                parameter.main_gradient = MainGradient(parameter.to_local(), group)
    module.__class__ = _sharded_class(type(module))
    return module
