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
"""The gradient norm of a sharded model: every element of the whole counted once, whatever rank holds how many copies."""
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import mindspore
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.groups import Group, current_rank
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.distributed.applier import applied_state
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

_PURPOSE = "gradient_norm"
_NAMED = 5


class _Share(NamedTuple):
    """A gradient as this rank holds it.

    Args:
        path: of the parameter.
        local: this rank's part.
        weight: how much of each of its elements this rank accounts for; over all ranks of `groups` they sum to 1.
        groups: the ranks to sum over, one group for each mesh axis.
    """

    path: str
    local: Tensor
    weight: Union[float, Tensor]
    groups: Tuple[Group, ...]


def grad_norm(cell, gradients: Optional[Sequence[Tensor]] = None, *, norm_type: float = 2.0,
              error_if_nonfinite: bool = False) -> Tensor:
    """The norm of all gradients as one vector, of the whole model, equal on all ranks.

    Parts are summed over the ranks that hold them; copied kv heads, tied weights, and parameters that every rank holds
    count once; padding counts nothing. Gradients are taken as they are after the backward: averaged over the data, and
    summed where the plan says so. Communicates one number: all ranks call it.

    Args:
        cell (Cell): a model with a plan applied, or with DTensor parameters, or neither.
        gradients: in the order of `cell.trainable_params()`, as `mindspore.value_and_grad` gives them; None takes the
            parameters' own, `main_grad` or `grad`. An entry that is None counts nothing.
        norm_type: 2.0, another positive number, or `math.inf` for the largest absolute value.
        error_if_nonfinite: name the parameters whose gradient is not finite, and the ranks, instead of returning NaN or
            inf. Waits for the device.

    Returns:
        Tensor: a float32 scalar.

    Raises:
        ValueError: not one gradient per trainable parameter, one of another shape, or `norm_type` is not positive.
        FloatingPointError: a gradient is not finite, and `error_if_nonfinite` is set; on all ranks alike.

    Examples:
        >>> (loss, gradients) = step(batch)
        >>> norm = hp.grad_norm(model, gradients)
    """
    return _norm(_shares(cell, gradients), norm_type, error_if_nonfinite)


def clip_grad_norm_(cell, max_norm: float, gradients: Optional[Sequence[Tensor]] = None, *, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients in place so that their norm is at most `max_norm`.

    Args:
        cell, gradients, norm_type, error_if_nonfinite: as for `grad_norm`.
        max_norm: largest norm that stays as it is.

    Returns:
        Tensor: the norm before, as `grad_norm` gives it.

    Raises:
        ValueError: `max_norm` is negative, and as `grad_norm`.
        FloatingPointError: as `grad_norm`.

    Examples:
        >>> norm = hp.clip_grad_norm_(model, 1.0, gradients)
        >>> optimizer(gradients)
    """
    if max_norm < 0:
        raise ValueError(f"clip_grad_norm_: max_norm is {max_norm}; give 0 or more")
    shares = _shares(cell, gradients)
    norm = _norm(shares, norm_type, error_if_nonfinite)
    # the small number keeps a norm of 0 from dividing by it
    factor = ops.minimum(max_norm / (norm + 1e-6), Tensor(1.0, mindspore.float32))
    for share in shares:
        share.local.copy_(ops.cast(ops.cast(share.local, mindspore.float32) * factor, share.local.dtype))
    return norm


def _shares(cell, gradients: Optional[Sequence[Tensor]]) -> List[_Share]:
    trainable = [(path, parameter) for path, parameter in cell.parameters_and_names() if parameter.requires_grad]
    if gradients is None:
        gradients = [_own_gradient(parameter) for _, parameter in trainable]
    if len(gradients) != len(trainable):
        raise ValueError(f"{len(gradients)} gradients for {len(trainable)} trainable parameters: give them in the order of "
                         "cell.trainable_params()")
    state = applied_state(cell)
    rows: Dict[Any, Any] = {}
    return [_of_dtensor(path, gradient) if isinstance(gradient, DTensor) else _of_plain(path, gradient, state, rows)
            for (path, _), gradient in zip(trainable, gradients) if gradient is not None]


def _own_gradient(parameter):
    main = getattr(parameter, "main_grad", None)
    return main if main is not None else getattr(parameter, "grad", parameter._grad)


def _of_dtensor(path: str, gradient: DTensor) -> _Share:
    mesh, slice_map = gradient.device_mesh, gradient.slice_map
    if any(placement.is_partial() for placement in gradient.placements):
        raise ValueError(f"the gradient of {path!r} is {gradient.placements}: reduce what is partial before its norm is "
                         "taken")
    names = mesh.mesh_dim_names
    cut = set(slice_map.axes) if slice_map is not None else {
        axis for axis, placement in zip(names, gradient.placements) if placement.is_shard()}
    replicas = math.prod(mesh.size(axis) for axis in names if axis not in cut)
    weight = 1.0 / replicas
    if slice_map is not None:
        weight = _weight(slice_map, {axis: mesh.get_local_rank(axis) for axis in slice_map.axes}, replicas)
    return _Share(path, gradient.to_local(), weight, tuple(mesh.get_group(axis) for axis in names if mesh.size(axis) > 1))


def _of_plain(path: str, gradient: Tensor, state, rows: Dict) -> _Share:
    if state is None or state.plan.tp == 1:
        return _Share(path, gradient, 1.0, ())
    spec, mesh = state.plan.parameters[path], state.mesh
    if tuple(gradient.shape) != spec.local_shape:
        raise ValueError(f"the gradient for {path!r} has shape {tuple(gradient.shape)}, a rank's part of the parameter "
                         f"{spec.local_shape}: give gradients in the order of cell.trainable_params()")
    slice_map = spec.slice_map
    if slice_map not in rows:
        rows[slice_map] = _weight(slice_map, mesh.get_local_rank(AXIS), 1 if slice_map.cuts else state.plan.tp)
    return _Share(path, gradient, rows[slice_map], (mesh.get_group(AXIS),))


def _weight(slice_map, rank, replicas: int) -> Union[float, Tensor]:
    """A number where all elements of the part count alike, as they do without padding and without mixed copies."""
    weight = slice_map.unique_weight(rank, replicas)
    return float(weight.flat[0]) if np.all(weight == weight.flat[0]) else Tensor(weight.astype(np.float32))


def _norm(shares: Sequence[_Share], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    if not norm_type > 0:
        raise ValueError(f"norm_type is {norm_type}: give 2.0, another positive number, or math.inf")
    largest = math.isinf(norm_type)
    join = ops.maximum if largest else ops.add
    totals: Dict[Tuple[Group, ...], Tensor] = {}
    for share in shares:
        size = ops.abs(ops.cast(share.local, mindspore.float32))
        if largest:
            counts = share.weight if isinstance(share.weight, float) else ops.cast(share.weight > 0, mindspore.float32)
            value = ops.amax(size if isinstance(share.weight, float) else size * counts)
        else:
            power = size * size if norm_type == 2.0 else size ** norm_type
            value = ops.sum(power * share.weight)
        totals[share.groups] = join(totals[share.groups], value) if share.groups in totals else value
    total = Tensor(0.0, mindspore.float32)
    for groups, value in totals.items():
        value = ops.reshape(value, (1,))
        for group in groups:
            value = functional.all_reduce(value, group, "max" if largest else "sum", purpose=_PURPOSE)
        total = join(total, ops.reshape(value, ()))
    norm = total if largest else ops.sqrt(total) if norm_type == 2.0 else total ** (1.0 / norm_type)
    if error_if_nonfinite and not math.isfinite(float(norm.asnumpy())):
        raise FloatingPointError(_name_nonfinite(shares))
    return norm


def _name_nonfinite(shares: Sequence[_Share]) -> str:
    """Which gradients, on which ranks; communicates, which it may, because the norm is the same on all of them."""
    places: Dict[str, List[int]] = {}
    for groups in dict.fromkeys(share.groups for share in shares):  # in the same order on all ranks
        these = [share for share in shares if share.groups == groups]
        flags = np.array([[current_rank()] + [not bool(ops.isfinite(share.local).all().asnumpy()) for share in these]],
                         np.float32)
        for group in groups:
            flags = functional.all_gather(Tensor(flags), 0, group, purpose=_PURPOSE).asnumpy()
        for at, share in enumerate(these):
            ranks = sorted({int(row[0]) for row in flags if row[1 + at]})
            if ranks:
                places[share.path] = ranks
    if not places:
        return "the gradient norm is not finite, though every gradient is: their squares exceed float32"
    named = "; ".join(f"{path!r} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                      for path, ranks in list(places.items())[:_NAMED])
    more = f"; and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"gradients that are not finite (NaN or inf): {named}{more}"
