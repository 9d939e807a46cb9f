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
"""Stand-ins for operators whose kernels MindSpore's CPU build does not have, and when they act.

A stand-in is a `CpuOperator`: the name under which MindSpore dispatches the kernel, and a function of the kernel's
positional arguments, built from operators the CPU has. `replaces` ties it to the public functions that reach the
kernel; `install` swaps those for wrappers. A wrapper falls through to the original whenever the original works: on
any device target but CPU, and as soon as a meta tensor is involved.

Two properties of MindSpore shape the wrappers:

* A Tensor subclass with `__fallback__` (a distributed tensor) is offered every operator before the kernel runs. The
  stand-ins keep that: it is offered the `CpuOperator` under the kernel's own name and argument list, so that a rule
  written for Ascend's operators is the rule that runs here.
* The graph compiler unwraps `__wrapped__` before it parses a function, so graph mode never sees the wrappers.
"""
import contextlib
import functools
import inspect
from typing import Callable, List, NamedTuple, Sequence

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint
from mindspore.common.device import get_current_device

_PLAIN_TYPES = (Tensor, Parameter)


class CpuOperator:
    """One operator of the CPU set.

    Args:
        name (str): name under which MindSpore dispatches the kernel, such as `RmsNorm`.
        compute (Callable): what it computes; takes the kernel's arguments positionally, or anything the public
            function takes if it has `**kwargs`.
    """

    def __init__(self, name: str, compute: Callable):
        self.name = name
        self.compute = compute
        self._signature = inspect.signature(compute)
        self._count = len(self._signature.parameters)
        self._open = any(parameter.kind == parameter.VAR_KEYWORD for parameter in self._signature.parameters.values())

    def __call__(self, *operands, **keywords):
        return self.compute(*operands, **keywords)

    def __repr__(self):
        return f"CpuOperator({self.name})"

    def operands(self, args: Sequence, kwargs: dict) -> tuple:
        """All arguments of one call in the kernel's order, defaults filled in."""
        if not kwargs and len(args) == self._count:
            return tuple(args)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

    def dispatch(self, *args, **kwargs):
        """Computes, unless a Tensor subclass among the arguments claims the operator."""
        keywords = kwargs if self._open else {}
        operands = tuple(args) if self._open else self.operands(args, kwargs)
        claimant = _claimant(tensors_in([*operands, *keywords.values()]))
        if claimant is None:
            return self.compute(*operands, **keywords)
        return claimant.__fallback__(self, operands, keywords)


class Replacement(NamedTuple):
    """What `install` does to one set of public names.

    `targets` are `module:attribute` or `module:Class.attribute`; `build` makes the new object from the original.
    """
    targets: tuple
    build: Callable


REPLACEMENTS: List[Replacement] = []


def tensors_in(values: Sequence) -> List[Tensor]:
    """The tensors among `values`, one level of lists and tuples opened (stack and the grouped matmul take lists)."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, Tensor))
    return found


def runs_here(args: Sequence, kwargs: dict) -> bool:
    """Whether a call with these arguments ends in a CPU kernel, that is, whether a stand-in has to act."""
    if get_current_device()[0] != "CPU" or kwargs.get("device") not in (None, "CPU"):
        return False
    return all(tensor.device != "meta" for tensor in tensors_in([*args, *kwargs.values()]))


def original_place(args: Sequence, kwargs: dict):
    """The context in which to call the original when `runs_here` says no.

    MindSpore sends an operator to the current device, not to that of its tensors: outside a meta context, meta
    tensors would reach a CPU kernel.
    """
    if get_current_device()[0] != "CPU" or kwargs.get("device") not in (None, "CPU"):
        return contextlib.nullcontext()
    return mindspore.DeviceCtx("meta")


class _Probe(Tensor):
    """A tensor that reports whether MindSpore currently offers operators to Tensor subclasses."""

    def __fallback__(self, func, args=(), kwargs=None):
        return True


@functools.lru_cache(maxsize=None)
def _probe() -> Tensor:
    return Tensor._make_subclass(_Probe, Tensor(np.ones(1, np.float32)))  # pylint: disable=protected-access


def _claimant(tensors: Sequence[Tensor]):
    """The first tensor whose class overrides `__fallback__`, or None; None too inside a `NoFallbackGuard`."""
    for tensor in tensors:
        kind = type(tensor)
        if kind in _PLAIN_TYPES:
            continue
        own = getattr(kind, "__fallback__", None)
        if own is not None and own is not getattr(Tensor, "__fallback__", None):
            # The guard has no query of its own: an operator on the probe answers whether it is held.
            return tensor if mint.neg(_probe()) is True else None
    return None


def wrap(original: Callable, function: Callable) -> Callable:
    """`function` where the call ends in a CPU kernel, `original` otherwise."""
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        if runs_here(args, kwargs):
            return function(*args, **kwargs)
        with original_place(args, kwargs):
            return original(*args, **kwargs)
    return wrapper


def replaces(*targets: str):
    """Registers the decorated function as the stand-in for `targets`; its signature is that of the public function."""
    def register(function):
        REPLACEMENTS.append(Replacement(targets, lambda original: wrap(original, function)))
        return function
    return register


def operator(name: str, *targets: str):
    """Makes a `CpuOperator` of the decorated function and registers it for `targets`.

    For public functions whose arguments are those of the kernel. Where they differ, leave `targets` out and write a
    function with `replaces` that calls `.dispatch`.
    """
    def make(compute):
        made = CpuOperator(name, compute)
        if targets:
            replaces(*targets)(made.dispatch)
        return made
    return make
