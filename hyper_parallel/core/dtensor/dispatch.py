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
"""What an operator does when it meets a DTensor: run on the local tensors, or refuse."""
from mindspore._c_expression import NoFallbackGuard

_skip_depth = 0


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


def _unwrap(value, dtensor_class):
    """Local tensors in place of DTensors, through tuples, lists and dicts."""
    if isinstance(value, dtensor_class):
        return value.to_local()
    if isinstance(value, (tuple, list)):
        return type(value)(_unwrap(item, dtensor_class) for item in value)
    if isinstance(value, dict):
        return {key: _unwrap(item, dtensor_class) for key, item in value.items()}
    return value


def run_on_local_tensors(func, args, kwargs, dtensor_class):
    """Call the operator on the locals of its DTensor arguments, past this dispatch."""
    with NoFallbackGuard():
        return func(*_unwrap(tuple(args), dtensor_class), **_unwrap(dict(kwargs), dtensor_class))


def refuse_operator(func, args, dtensor_class):
    """The error for an operator that was given a DTensor outside `SkipDTensorDispatch`.

    Raises:
        NotImplementedError: always; names the operator and the placements.
    """
    described = [repr(arg) if isinstance(arg, dtensor_class) else type(arg).__name__ for arg in args]
    raise NotImplementedError(
        f"operator {getattr(func, 'name', func)} has no rule for distributed tensors: {', '.join(described)}. "
        "Take the local tensors (`to_local()`), the whole (`full_tensor()`), or run it inside SkipDTensorDispatch().")
