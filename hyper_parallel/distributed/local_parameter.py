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
"""A whole Parameter becomes this rank's part, and back; the object, its name and its place stay the same."""
import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint, ops
from mindspore.common.tensor import swap_tensors
from mindspore.graph.api import _no_grad

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.shard.initialisers import draw_as_usual, draw_by
from hyper_parallel.distributed.recipe_spec import ParameterSpec


def cut(parameter, spec: ParameterSpec, rank: int):
    """Keep this rank's rows of a whole parameter, real or meta.

    Args:
        parameter (Parameter): whole, equal on all ranks.
        spec: its plan.
        rank: coordinate on the tensor-parallel axis.

    Returns:
        What `put_back` takes; None when nothing is cut.
    """
    if not spec.slice_map.cuts:
        return None
    if parameter.is_meta:
        whole = spec.shape
        with mindspore.DeviceCtx("meta"):
            parameter.data = mint.empty(spec.local_shape, dtype=parameter.dtype)
    else:
        whole = _replace(parameter, spec.slice_map.shard(_to_numpy(parameter), rank))
    parameter.param_info.parameter_shape = list(spec.local_shape)
    _draw_whole(parameter, spec, rank)
    return whole


def put_back(parameter, whole):
    """Undo `cut` at once and without communication, with what it returned."""
    draw_as_usual(parameter)
    if parameter.is_meta:
        with mindspore.DeviceCtx("meta"):
            parameter.data = mint.empty(whole, dtype=parameter.dtype)
    else:
        swap_tensors(parameter, whole)
    parameter.param_info.parameter_shape = list(parameter.shape)


def uncut(parameter, spec: ParameterSpec, group):
    """The inverse of `cut`: every rank holds the whole again, with the values that training has given it."""
    draw_as_usual(parameter)
    if not spec.slice_map.cuts:
        return
    stacked = functional.all_gather(ops.expand_dims(parameter, 0), 0, group)
    _replace(parameter, spec.slice_map.unshard(list(_to_numpy(stacked))))
    parameter.param_info.parameter_shape = list(spec.shape)


def gather(local, spec: ParameterSpec, group) -> np.ndarray:
    """The whole of a local tensor that lies like the parameter (its gradient, an optimizer moment), as numpy."""
    if not spec.slice_map.cuts:
        return _to_numpy(local)
    stacked = functional.all_gather(ops.expand_dims(local, 0), 0, group)
    return spec.slice_map.unshard(list(_to_numpy(stacked)))


def _to_numpy(tensor) -> np.ndarray:
    return (ops.cast(tensor, mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor).asnumpy()


def _replace(parameter, array: np.ndarray):
    """Other data of another shape behind the same object; returns a Parameter with the old data. `set_data` would keep
    what MindSpore remembers of the old shape once the parameter has been used, and BiasAdd reads that."""
    other = Parameter(
        Tensor(np.ascontiguousarray(array), parameter.dtype), name=parameter.name, requires_grad=parameter.requires_grad,
        layerwise_parallel=parameter.layerwise_parallel, parallel_optimizer=parameter.parallel_optimizer)
    swap_tensors(parameter, other)
    return other


def _draw_whole(parameter, spec: ParameterSpec, rank: int):
    """Initialisers called on the part draw the whole and keep the rank's rows: the same weights whatever tp is, equal
    copies, and zeros where a vocabulary is padded."""

    def draw(name, args, kwargs):
        whole = mint.empty(spec.shape, dtype=parameter.dtype)
        getattr(whole, name)(*args, **kwargs)
        with _no_grad():
            parameter.copy_(Tensor(spec.slice_map.shard(_to_numpy(whole), rank), parameter.dtype))

    draw_by(parameter, draw)
