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
"""Operators that were built with a head count, and their twins with the count of one rank.

`FlashAttentionScore(head_num=8)` keeps the 8 it was built with: rewriting `head_num` on the Cell around it changes
nothing. The operator is therefore replaced by a new one, and the old one is kept untouched for the way back.
"""
import copy
import dataclasses
import functools
import inspect
import types
from typing import Any, Dict, Iterator, Tuple

from hyper_parallel.distributed.tensor_parallel.head_count_facts import KV_HEAD_ATTRS, Q_HEAD_ATTRS, is_plain_int

_COUNT_ARGS = frozenset(Q_HEAD_ATTRS + KV_HEAD_ATTRS)
_NEVER_OPERATORS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, str, bytes,
                    int, float, complex, bool, list, tuple, dict, set, frozenset, type(None))


def find_operators(owner: Any) -> Iterator[Tuple[str, Any]]:
    """`(attribute, operator)` of the operators with head counts that an object holds in its attributes.

    Raises:
        ValueError: see `count_args`.
    """
    for attr, value in list(getattr(owner, "__dict__", {}).items()):
        if attr.startswith("_hp_") or isinstance(value, _NEVER_OPERATORS) or _is_walked_or_config(attr, value):
            continue
        if count_args(attr, value):
            yield attr, value


def _is_walked_or_config(attr: str, value: Any) -> bool:
    """Submodules are rewritten in place, and a config is never touched: others read it as the whole model's."""
    cls = type(value)
    return (hasattr(cls, "cells_and_names") or hasattr(cls, "named_modules") or dataclasses.is_dataclass(cls)
            or hasattr(cls, "to_dict") or "config" in attr.lower() or "config" in cls.__name__.lower())


@functools.lru_cache(maxsize=None)
def _constructor(cls: type) -> Dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):  # a class of C++
        return {}
    return dict(parameters)


def count_args(attr: str, operator: Any) -> Dict[str, int]:
    """`{constructor argument: head count}` that an operator was built with.

    An argument that is None or 0 means "the same as the other count" and is left out.

    Raises:
        ValueError: the operator takes a head count and does not keep it, so that nobody can tell what it was.
    """
    if isinstance(operator, functools.partial):
        given = {name: value for name, value in operator.keywords.items() if name in _COUNT_ARGS}
    else:
        given = {name: _kept_argument(operator, name) for name in _constructor(type(operator)) if name in _COUNT_ARGS}
    for name, value in given.items():
        if value is inspect.Parameter.empty:
            raise ValueError(f"operator {attr} of class {type(operator).__name__} is built with {name} and does not "
                             f"keep it as an attribute, so it cannot be rebuilt with the local count; keep self.{name} "
                             "in the operator, or give the boundary a local_compute_fn")
    return {name: value for name, value in given.items() if is_plain_int(value) and value > 0}


def _kept_argument(operator: Any, name: str) -> Any:
    """The value a constructor argument had, or `Parameter.empty`."""
    init_attrs = getattr(operator, "init_attrs", None)  # a MindSpore Primitive keeps its raw arguments
    if isinstance(init_attrs, dict) and name in init_attrs:
        return init_attrs[name]
    for kept in (name, f"_{name}"):
        if hasattr(operator, kept):
            return getattr(operator, kept)
    return inspect.Parameter.empty


def rebuild(operator: Any, counts: Dict[str, int]) -> Any:
    """A new operator that differs in its head counts only.

    It is constructed again when every constructor argument is kept by the operator, so that whatever the constructor
    computed from the counts is right. Otherwise it is a copy whose kept counts are set.

    Examples:
        >>> rebuild(functools.partial(max, head_num=8), {"head_num": 4}).keywords
        {'head_num': 4}
    """
    if isinstance(operator, functools.partial):
        return functools.partial(operator.func, *operator.args, **{**operator.keywords, **counts})
    parameters = _constructor(type(operator))
    kept = {name: _kept_argument(operator, name) for name, parameter in parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)}
    if len(kept) == len(parameters) and all(value is not inspect.Parameter.empty for value in kept.values()):
        rebuilt = type(operator)(**{**kept, **counts})
        _copy_primitive_attrs(operator, rebuilt)
        return rebuilt
    rebuilt = copy.copy(operator)
    for name, value in counts.items():
        setattr(rebuilt, name if hasattr(operator, name) else f"_{name}", value)
    return rebuilt


def _copy_primitive_attrs(operator: Any, rebuilt: Any) -> None:
    """Carry over what was set on a MindSpore Primitive after its construction: shard strategy, target, stage."""
    old, new = getattr(operator, "attrs", None), getattr(rebuilt, "attrs", None)
    if isinstance(old, dict) and isinstance(new, dict) and hasattr(rebuilt, "add_prim_attr"):
        for name, value in old.items():
            if name not in new:
                rebuilt.add_prim_attr(name, value)
