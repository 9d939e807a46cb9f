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
"""Results of a model's boundaries, in the order of its forward: where do the numbers begin to differ?"""
import contextlib
from typing import Callable, Dict, Optional, Sequence, Tuple

import mindspore
import numpy as np
from mindspore import Tensor, ops

Trace = Dict[Tuple[str, int], np.ndarray]


def to_numpy(tensor) -> np.ndarray:
    """As float32, or as it is where it holds no floats."""
    return (ops.cast(tensor, mindspore.float32) if tensor.is_floating_point() else tensor).asnumpy()


@contextlib.contextmanager
def in_mode(mode: str):
    """Run in PyNative or GRAPH_MODE, and go back to the mode that was set; "jit" is a function within PyNative."""
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE if mode == "graph" else mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=before)


def trace(cell, forward: Callable[[], None], paths: Sequence[str]) -> Trace:
    """One forward in PyNative, watched.

    Args:
        cell (Cell): whole or sharded.
        forward: runs it once.
        paths: modules to watch.

    Returns:
        `{(module path, how often it had run before): its first result}`, in the order in which they were ready.
    """
    found: Trace = {}
    modules = dict(cell.cells_and_names())
    handles = [modules[path].register_forward_hook(_watch(path, found)) for path in paths if path in modules]
    try:
        with in_mode("pynative"):
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _watch(path: str, found: Trace):
    def watch(cell, args, output):
        first = output[0] if isinstance(output, (tuple, list)) else output
        if isinstance(first, Tensor):
            count = sum(1 for other, _ in found if other == path)
            found[(path, count)] = to_numpy(ops.stop_gradient(first))

    return watch


def part_of(whole: np.ndarray, shape: Sequence[int], rank: int, ranks: int) -> Optional[np.ndarray]:
    """What a rank should have of a result: all of it, or its part of the one dim that is cut; None for another shape.

    Examples:
        >>> part_of(np.arange(4), (2,), rank=1, ranks=2)
        array([2, 3])
    """
    if whole.shape == tuple(shape):
        return whole
    if len(shape) != whole.ndim:
        return None
    different = [dim for dim, (mine, all_of) in enumerate(zip(shape, whole.shape)) if mine != all_of]
    if len(different) != 1 or shape[different[0]] * ranks != whole.shape[different[0]]:
        return None
    length = shape[different[0]]
    return np.take(whole, np.arange(rank * length, (rank + 1) * length), different[0])
