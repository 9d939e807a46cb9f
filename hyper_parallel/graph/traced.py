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
"""A tensor without values: shape of the whole and placements, carried through a forward by the operators' rules."""
import re
import threading
from typing import Callable, List, Sequence

import numpy as np
from mindspore import DeviceCtx, Tensor, mint
from mindspore._c_expression import NoFallbackGuard
from mindspore.ops import Primitive, tensor_method

from hyper_parallel.core.dtensor.dispatch_plan import spec_of_call
from hyper_parallel.core.dtensor.ops.propagate import Propagation, propagate
from hyper_parallel.core.dtensor.ops.spec import Operand
from hyper_parallel.core.dtensor.placement_types import Placement, Replicate, Shard

_state = threading.local()


class Traced(Tensor):
    """The storage is a meta tensor of the whole's shape, so that MindSpore infers shapes and computes nothing."""

    @classmethod
    def of(cls, tensor: Tensor, placements: Sequence[Placement]) -> "Traced":
        """A meta tensor with placements, one per mesh axis."""
        made = Tensor._make_subclass(cls, tensor)
        made._placements = tuple(placements)
        return made

    def placed(self, placements: Sequence[Placement]) -> "Traced":
        """The same tensor, laid out otherwise."""
        return Traced.of(bare(self), placements)

    def __fallback__(self, func, args, kwargs=None):
        return _state.recorder.run(func, args, kwargs or {})

    def __getitem__(self, index):
        # numpy answers for the shape without memory; MindSpore's own indexing of meta tensors ends the process
        shape = np.broadcast_to(np.zeros(()), self.shape)[index].shape
        return Traced.of(whole(shape, self.dtype), _indexed(self, index, len(shape)))


def bare(tensor: Tensor) -> Tensor:
    """The meta tensor alone."""
    with NoFallbackGuard():
        return Tensor._make_subclass(Tensor, tensor)


def whole(shape: Sequence[int], dtype) -> Tensor:
    """A meta tensor."""
    with DeviceCtx("meta"):
        return mint.empty(tuple(shape), dtype=dtype)


def _indexed(tensor, index, ndim):
    """Dims that are taken whole keep their cut; any other index gives a whole tensor."""
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [one for one in index if one is Ellipsis]:
        at = next(position for position, one in enumerate(index) if one is Ellipsis)
        missing = tensor.ndim - sum(one is not None and one is not Ellipsis for one in index)
        index = index[:at] + (slice(None),) * missing + index[at + 1:]
    kept, dim, out = {}, 0, 0
    for one in index:
        if one is None:
            out += 1
            continue
        if isinstance(one, slice):
            if one == slice(None):
                kept[dim] = out
            out += 1
        dim += 1
    kept.update({rest: out + rest - dim for rest in range(dim, tensor.ndim)})
    if ndim != out + tensor.ndim - dim:
        kept = {}
    return [Shard(kept[placement.dim]) if isinstance(placement, Shard) and placement.dim in kept else Replicate()
            for placement in tensor._placements]


class Recorder:
    """Runs operators on traced tensors, and tells what their operands have to look like.

    Args:
        mesh: with shape and axis names; its groups are not used.
        note: called as `note(name, arguments, propagation, has_rule, shape)` for every operator; `arguments` hold an
            `Operand` for every tensor, and `shape` is the first result's.
        resolve: called with the shape of a result that is Partial; gives the placement of its sum.
    """

    def __init__(self, mesh, note: Callable, resolve: Callable):
        self._mesh, self._note, self._resolve = mesh, note, resolve

    def __enter__(self):
        _state.recorder = self
        return self

    def __exit__(self, *_):
        del _state.recorder

    def run(self, func, args, kwargs):
        """One operator."""
        python_method = _python_method(func.name)
        if python_method is not None:
            return python_method(*args, **kwargs)
        head, arguments = (), args
        if args and isinstance(args[0], Primitive):
            head, arguments = tuple(args[:2]), tuple(args[2])
        tensors: List[Tensor] = []
        with NoFallbackGuard(), DeviceCtx("meta"):
            locals_ = [_replace(one, tensors) for one in arguments]
            named = {name: _replace(one, tensors) for name, one in kwargs.items()}
            result = func(*head, tuple(locals_), **named) if head else func(*locals_, **named)
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, Tensor):
            return result  # a question about the tensor: its dtype, its rank
        operands = [self._operand(index, tensor) for index, tensor in enumerate(tensors)]
        spec = spec_of_call(func.name, arguments, kwargs, operands, head[0] if head else None)
        if spec is None:
            replicated = (Replicate(),) * self._mesh.ndim
            decided = Propagation([replicated] * len(operands), [replicated], [])
        else:
            decided = propagate(spec, operands, self._mesh.mesh_shape)
        feed = iter(operands)
        seen = [_replace(one, [], feed) for one in arguments]
        self._note(func.name, seen, decided, spec is not None, first.shape)
        return _label(result, decided.results, self._resolve)

    def _operand(self, index, tensor):
        placements = getattr(tensor, "_placements", (Replicate(),) * self._mesh.ndim)
        return Operand(index, tensor.shape, placements, not hasattr(tensor, "_placements"), tensor.dtype)


def _python_method(name):
    """Tensor methods that MindSpore composes of operators in Python: each of those comes by itself."""
    if not name.startswith("Deprecated"):
        return None
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name[len("Deprecated"):]).lower()
    return getattr(tensor_method, f"deprecated_tensor_{snake}", None)


def _replace(value, tensors, feed=None):
    """Meta tensors in place of tensors, or with `feed` the operands in their order."""
    if isinstance(value, Tensor):
        if feed is not None:
            return next(feed)
        tensors.append(value)
        return bare(value) if isinstance(value, Traced) else whole(value.shape, value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(_replace(one, tensors, feed) for one in value)
    return value


def _label(result, placements, resolve, number=0):
    if isinstance(result, Tensor):
        own = placements[min(number, len(placements) - 1)]
        return Traced.of(result, [resolve(result.shape) if one.is_partial() else one for one in own])
    if isinstance(result, (tuple, list)):
        return type(result)(_label(one, placements, resolve, at) for at, one in enumerate(result))
    return result
