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
"""Autograd functions of DTensors."""
from mindspore.common._grad_function import _Function

_classes = {}


def bind(dtensor_class) -> None:
    """Tells this module what a DTensor is; called once by its module."""
    _classes["dtensor"] = dtensor_class


class DFunction(_Function):
    """Base of autograd functions whose forward and backward see DTensors.

    Written like MindSpore's `_Function`: static `forward(ctx, *args)` and `backward(ctx, *gradients)`, called through
    `apply`. Where DTensors go in or come out, the backward gets the gradient of each DTensor result as a DTensor that
    lies like the result (of a pending sum every rank gets the whole gradient), and may return DTensors or local parts.
    Gradients follow the rule of `DTensor.redistribute`: the locals of all ranks are the variables, so the gradient of a
    replicated input is this rank's summand of it. With plain tensors only, nothing is added.

    Examples:
        >>> class Scale(DFunction):
        ...     @staticmethod
        ...     def forward(ctx, x, factor):
        ...         ctx.factor = factor
        ...         return DTensor.from_local(x.to_local() * factor, x.device_mesh, x.placements)
        ...
        ...     @staticmethod
        ...     def backward(ctx, gradient):
        ...         return gradient.to_local() * ctx.factor, None
        >>> y = Scale.apply(x, 2.0)
    """

    @classmethod
    def apply(cls, *args, **kwargs):
        """Run the forward and record the backward."""
        dtensor = _classes["dtensor"]
        if not any(isinstance(arg, dtensor) for arg in (*args, *kwargs.values())):
            return super().apply(*args, **kwargs)
        if kwargs:
            raise ValueError(f"{cls.__name__}.apply with DTensors takes positional arguments only, got "
                             f"{', '.join(kwargs)} by name")
        labels = tuple(_label(arg) if isinstance(arg, dtensor) else None for arg in args)
        call = _Call(cls, labels)
        results = _Labelled.apply(call, *(arg.to_local() if label else arg for arg, label in zip(args, labels)))
        if not isinstance(results, tuple):
            return _wrap(results, call.results[0])
        return tuple(_wrap(result, label) for result, label in zip(results, call.results))


class _Call:
    """One call of a DFunction: how its arguments lie and, after the forward, how its results do."""

    def __init__(self, function, arguments):
        self.function, self.arguments, self.results = function, arguments, ()


class _Labelled(_Function):
    """A DFunction on locals, which are labelled again around the user's code."""

    @staticmethod
    def forward(ctx, call, *args):
        """The user's forward, on DTensors."""
        ctx.call = call
        given = tuple(_wrap(arg, label) for arg, label in zip(args, call.arguments))
        if call.function.setup_context is not _Function.setup_context:
            results = call.function.forward(*given)
            call.function.setup_context(ctx, given, results)
        else:
            results = call.function.forward(ctx, *given)
        several = isinstance(results, tuple)
        each = results if several else (results,)
        dtensor = _classes["dtensor"]
        call.results = tuple(_label(item) if isinstance(item, dtensor) else None for item in each)
        each = tuple(item.to_local() if label else item for item, label in zip(each, call.results))
        return each if several else each[0]

    @staticmethod
    def backward(ctx, *gradients):
        """The user's backward, on DTensors; the call itself has no gradient."""
        wrapped = tuple(_wrap(item, label, of_gradient=True) for item, label in zip(gradients, ctx.call.results))
        given = ctx.call.function.backward(ctx, *wrapped)
        dtensor = _classes["dtensor"]
        each = given if isinstance(given, tuple) else (given,)
        return (None, *(item.to_local() if isinstance(item, dtensor) else item for item in each))


def _label(dtensor):
    return dtensor.device_mesh, dtensor.placements, dtensor.shape


def _wrap(value, label, of_gradient=False):
    if label is None or value is None:
        return value
    mesh, placements, shape = label
    dtensor = _classes["dtensor"]
    if of_gradient:
        placements = dtensor.gradient_placements(placements)
    return dtensor.from_local(value, mesh, placements, shape=shape)
