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
"""What an operator does when it meets a DTensor: the same operator on the local parts, by the operator's rule.

The first call of its kind (operator, placements, shapes, other arguments) asks the rule and keeps what follows as a
`Plan`; every later one looks the plan up, runs the operator on the locals and labels the result.

Gradients need nothing of their own. The operator runs on locals, whose autograd graph is the backward on parts, and
redistributions are true adjoints. With the locals of all ranks as the variables,
the gradient of a part is then exactly:
for `Shard` the part of the gradient, for `Replicate` a summand of it (a Partial), for `Partial` the whole of it.
"""
from typing import Any, Dict, List

from mindspore import Tensor
from mindspore._c_expression import NoFallbackGuard
from mindspore.ops import Primitive

from hyper_parallel.core.dtensor.dispatch_plan import CACHE_LIMIT, Plan, lay_of, make_plan
from hyper_parallel.core.dtensor.ops.indexing import SliceKey

_skip_depth = 0
_plans: Dict[tuple, Plan] = {}
# The types of MindSpore's own operators, which see the storage of a DTensor and never its Python side.
_native = set()


class _Unbound:
    """Stands for DTensor until its module is loaded."""


_DTensor: Any = _Unbound
_hooks: Any = None


def bind(dtensor_class, hooks) -> None:
    """Tells the dispatch what a DTensor is and what it holds on to; called once by DTensor's module."""
    global _DTensor, _hooks
    _DTensor, _hooks = dtensor_class, hooks


class SkipDTensorDispatch:
    """Inside it, operators see the local tensors of the DTensors they are given.

    The optimizer's element-wise arithmetic is the same on every shard, so it runs in this context; it nests.

    Examples:
        >>> with SkipDTensorDispatch():
        ...     next_parameter = parameter * 0.9
    """

    def __enter__(self):
        global _skip_depth
        _skip_depth += 1
        return self

    def __exit__(self, *_):
        global _skip_depth
        _skip_depth -= 1


def dispatch_is_skipped() -> bool:
    """True inside a `SkipDTensorDispatch`."""
    return _skip_depth > 0


def unwrap(value):
    """Local tensors in place of DTensors, through tuples, lists and dicts."""
    if isinstance(value, _DTensor):
        return value._local
    if isinstance(value, (tuple, list)):
        return type(value)(unwrap(item) for item in value)
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    return value


def clear_cache() -> None:
    """Forgets every plan."""
    _plans.clear()


def dispatch(func, args, kwargs=None):
    """Runs an operator on DTensors (and plain tensors, which count as replicated).

    Args:
        func: the operator as MindSpore hands it to `__fallback__`; has a `name`.
        args: its arguments; of a legacy primitive: the primitive, its name, and a tuple of the arguments.
        kwargs: its keyword arguments.

    Returns:
        The operator's result, every tensor in it a DTensor.

    Raises:
        NotImplementedError: the operator has no rule for these arguments, and not all of them are replicated.
    """
    if _skip_depth:
        with NoFallbackGuard():
            return func(*unwrap(tuple(args)), **unwrap(kwargs or {}))
    if kwargs or args and isinstance(args[0], Primitive):
        return _dispatch_any(func, args, kwargs or {})
    key, locals_, source, dtensor = [func.name], [], None, _DTensor
    native = type(func) in _native
    for arg in args:
        if isinstance(arg, dtensor):
            try:
                key.append(arg._lay)
            except AttributeError:
                key.append(lay_of(arg))
            # A result that nobody has asked for its local part is its own storage.
            locals_.append(arg.__dict__.get("_local", arg) if native else arg._local)
            source = arg
        elif isinstance(arg, Tensor):
            key.append((arg.shape, arg.dtype))
            locals_.append(arg)
        elif isinstance(arg, (list, tuple)):
            for item in arg:
                if isinstance(item, (Tensor, list, tuple, slice)):
                    return _dispatch_any(func, args, {})
            key.append(tuple(arg))
            locals_.append(arg)
        elif type(arg) is slice:
            return _dispatch_any(func, args, {})
        else:
            # A float changes with every step of a schedule, and no rule looks at one.
            key.append(float if type(arg) is float else arg)
            locals_.append(arg)
    plan = _plans.get(tuple(key))
    if plan is None or not plan.direct:
        return _dispatch_any(func, args, {})
    if plan.rest is not None:
        locals_[1:] = plan.rest
    with NoFallbackGuard():
        result = func(*locals_)
    if type(result) is not Tensor or any(result is local for local in locals_):
        return plan.label(result, source, locals_)
    # Not a new object around it: that would wait for the operator.
    result.__class__ = dtensor
    attributes = result.__dict__
    attributes.update(plan.template)
    attributes["_hooks"] = source._hooks or _hooks()
    return result


def _dispatch_any(func, args, kwargs):
    """The general path: plain tensors, lists, keywords, legacy primitives, redistributions, several results."""
    primitive, head = None, ()
    if args and isinstance(args[0], Primitive):
        primitive, head, args = args[0], tuple(args[:2]), tuple(args[2])
    tensors: List[Tensor] = []
    key = [func.name if primitive is None else (func.name, str(primitive))]
    key.extend(_key(arg, tensors) for arg in args)
    if kwargs:
        key.extend((name, _key(value, tensors)) for name, value in kwargs.items())
    key = tuple(key)
    if type(func).__module__ == "mindspore._c_expression":
        _native.add(type(func))
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= CACHE_LIMIT:
            _plans.clear()
        plan = _plans[key] = make_plan(func.name, args, kwargs, tensors, primitive, _DTensor, _hooks)
    return plan.run(func, head, args, kwargs, tensors)


def _key(value, tensors):
    """What of an argument decides the plan; collects the tensors on the way."""
    if isinstance(value, Tensor):
        tensors.append(value)
        if isinstance(value, _DTensor):
            return getattr(value, "_lay", None) or lay_of(value)
        return value.shape, value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_key(item, tensors) for item in value)
    if isinstance(value, slice):
        return SliceKey(value)
    return float if type(value) is float else value
