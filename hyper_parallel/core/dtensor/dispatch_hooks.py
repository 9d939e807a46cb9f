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
"""Where MindSpore does not offer an operator to a DTensor by itself: the gaps, covered while DTensors are at work.

* `plain * dtensor` asks the *first* tensor for `__fallback__`, so the base class needs one.
* `plain[dtensor]` and `plain[...] = dtensor` compute on the storage without asking.
* Legacy primitives that take a list of tensors (`Stack`, `AddN`) look only at tensors that are arguments themselves.

Plain tensors pay nothing for the base `__fallback__`; plain Parameters do, because MindSpore offers operators to every
subclass that has one (docs/dtensor.md has the figures). The hooks go when the last DTensor goes that asked for them.
"""
import weakref
from typing import Any, List, Tuple

from mindspore import Tensor, ops
from mindspore._c_expression import NoFallbackGuard

from hyper_parallel.core.dtensor import dispatch as dispatching
from hyper_parallel.core.dtensor.ops.indexing import GetItem, SetItem

_GETITEM, _SETITEM = GetItem(), SetItem()


class _Named:
    """A legacy primitive in the form in which operators are dispatched."""

    def __init__(self, primitive, call):
        self.name, self._call = primitive.name, call
        self.primitive = primitive

    def __call__(self, primitive, _name, args):
        return self._call(primitive, *args)


def holds_dtensor(values) -> bool:
    """Whether there is a DTensor among the values, lists and tuples opened."""
    for value in values:
        if isinstance(value, dispatching._DTensor):
            return True
        if isinstance(value, (list, tuple)) and holds_dtensor(value):
            return True
    return False


def get_item(x, index):
    """`x[index]` with a DTensor somewhere."""
    return dispatching.dispatch(_GETITEM, (x, _as_tensors(index)))


def set_item(x, index, value):
    """`x[index] = value` with a DTensor somewhere."""
    return dispatching.dispatch(_SETITEM, (x, _as_tensors(index), value))


def _as_tensors(index):
    """Lists of numbers are integer tensors; everything else as it is."""
    if isinstance(index, list):
        return Tensor(index)
    if isinstance(index, tuple):
        return tuple(Tensor(item) if isinstance(item, list) else item for item in index)
    return index


def _base_fallback(self, func, args, kwargs=None):
    if holds_dtensor(args) or kwargs and holds_dtensor(kwargs.values()):
        return dispatching.dispatch(func, args, kwargs)
    with NoFallbackGuard():
        return func(*args, **(kwargs or {}))


def _covered_getitem(original):
    def __getitem__(self, index):
        if isinstance(index, (Tensor, tuple)) and holds_dtensor((index,)):
            return get_item(self, index)
        return original(self, index)
    return __getitem__


def _covered_setitem(original):
    def __setitem__(self, index, value):
        if holds_dtensor((index, value)):
            return set_item(self, index, value)
        return original(self, index, value)
    return __setitem__


def _covered_call(original):
    def __call__(self, *args):
        if holds_dtensor(args):
            return dispatching.dispatch(_Named(self, original), (self, self.name, args))
        return original(self, *args)
    return __call__


class _Hooks:
    """In place as long as the object lives."""

    def __init__(self):
        self._saved: List[Tuple[type, str, Any]] = []
        self._set(Tensor, "__fallback__", _base_fallback)
        self._set(Tensor, "__getitem__", _covered_getitem(Tensor.__getitem__))
        self._set(Tensor, "__setitem__", _covered_setitem(Tensor.__setitem__))
        for primitive in (ops.Stack, ops.AddN):
            self._set(primitive, "__call__", _covered_call(primitive.__call__))

    def _set(self, owner, name, value):
        self._saved.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, value)

    def __del__(self):
        for owner, name, original in self._saved:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


_alive = None


def hooks() -> _Hooks:
    """What a DTensor that may meet operators holds on to."""
    global _alive
    held = _alive() if _alive is not None else None
    if held is None:
        held = _Hooks()
        _alive = weakref.ref(held)
    return held


def installed() -> bool:
    """Whether the hooks are in place."""
    return _alive is not None and _alive() is not None
