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
"""Where a unit's gathers and reductions happen: around its module's forward, and where the backward passes there."""
from mindspore import Tensor, ops

from hyper_parallel.core.dtensor.dfunction import DFunction
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.fully_shard.unit import Unit


class _Passage(DFunction):
    """Identity on all differentiable tensors that go into a module, or come out of it."""

    @staticmethod
    def forward(ctx, unit, *tensors):
        """The tensors."""
        ctx.unit = unit
        return tensors if len(tensors) > 1 else tensors[0]


class _Entry(_Passage):
    """On the inputs: its backward runs when the module's backward is done."""

    @staticmethod
    def backward(ctx, *gradients):
        """The gradients, as they come."""
        ctx.unit.after_backward()
        return (None, *gradients)


class _Exit(_Passage):
    """On the results: its backward runs before the module's backward begins."""

    @staticmethod
    def backward(ctx, *gradients):
        """The gradients, as they come."""
        ctx.unit.before_backward()
        return (None, *gradients)


def _is_differentiable(value) -> bool:
    return isinstance(value, Tensor) and (value.to_local() if isinstance(value, DTensor) else value)._requires_grad


def _tensors(value, wanted):
    """The tensors in nested tuples, lists and dictionaries that are `wanted`."""
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in _tensors(item, wanted)]
    if isinstance(value, dict):
        return [found for item in value.values() for found in _tensors(item, wanted)]
    return [value] if wanted(value) else []


def _replaced(value, by_identity):
    """The same structure with other tensors in it."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, by_identity) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, by_identity) for item in value)
    if isinstance(value, dict):
        return type(value)((key, _replaced(item, by_identity)) for key, item in value.items())
    return by_identity.get(id(value), value)


def _through(function, unit, value):
    """`value` with its differentiable tensors passed through one node of `function`."""
    found = list({id(tensor): tensor for tensor in _tensors(value, _is_differentiable)}.values())
    if not found:
        return value
    passed = function.apply(unit, *found)
    passed = passed if isinstance(passed, tuple) else (passed,)
    return _replaced(value, {id(tensor): new for tensor, new in zip(found, passed)})


def _cast(value, dtype):
    """`value` with its floating tensors in another dtype."""
    def floating(item):
        return isinstance(item, Tensor) and item.dtype != dtype and item.is_floating_point()

    found = _tensors(value, floating)
    return _replaced(value, {id(tensor): ops.cast(tensor, dtype) for tensor in found}) if found else value


def hook_forward(unit: Unit, input_dtype, output_dtype):
    """Hook a unit's module: gather before the forward, free after it, and the same for the backward.

    Args:
        unit: the unit.
        input_dtype: floating inputs are cast to it; None leaves them.
        output_dtype: floating results are cast to it; None leaves them.
    """

    def before_forward(cell, args, kwargs):
        unit.before_forward()
        given = (args, kwargs)
        if input_dtype is not None:
            given = _cast(given, input_dtype)
        return _through(_Entry, unit, given)

    def after_forward(cell, args, output):
        if output_dtype is not None:
            output = _cast(output, output_dtype)
        passed = _through(_Exit, unit, output)
        # without a backward to come nobody else would free
        if unit.reshards_after_forward or passed is output:
            unit.free()
        return passed

    unit.module.register_forward_pre_hook(before_forward, with_kwargs=True)
    unit.module.register_forward_hook(after_forward)
