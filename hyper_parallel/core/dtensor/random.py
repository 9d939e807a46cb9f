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
"""Random numbers on a mesh: equal where a tensor is replicated, different where it is cut.

All ranks start from one seed, so what they draw outside is equal: a weight's initial values, the dropout of a
replicated activation. A part draws with a seed of its own, moved by the part's number; the offset, which every draw
moves on by the same amount, stays common, so that ranks agree again afterwards. Dropout on DTensors does so by itself;
code that works on local tensors says so with `parts_differ`.

It reaches the operators that draw from a `mindspore.Generator`: `mint` and tensors' in-place initialisers. On local
tensors, the older `ops.dropout` and `nn.Dropout` keep states of their own; on DTensors they draw from the generator.
"""
import contextlib
import math
from typing import Optional, Sequence

import numpy as np
from mindspore import Tensor
from mindspore.common.generator import default_generator

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh

# Odd and large, so that seeds of neighbouring parts and of neighbouring steps do not meet.
STRIDE = 0x9E3779B1

_number = 0


def part_number(mesh: DeviceMesh, axes: Sequence[str], rank: Optional[int] = None) -> int:
    """Which of the parts that the axes make a rank holds; ranks that hold the same part have the same number.

    Args:
        mesh: the mesh.
        axes: names of the axes that cut.
        rank: a global rank; None means the current one.

    Raises:
        ValueError: the mesh has no such axis, or the rank is not in the mesh.

    Examples:
        >>> mesh = DeviceMesh("npu", (2, 4), ("dp", "tp"))
        >>> [part_number(mesh, ("tp",), rank) for rank in (0, 1, 5)]
        [0, 1, 1]
    """
    coordinate = mesh.get_coordinate(rank)
    if coordinate is None:
        raise ValueError(f"rank {'(the current one)' if rank is None else rank} is not in {mesh!r}")
    number = 0
    for axis in sorted({mesh.axis_index(axis) for axis in axes}):
        number = number * mesh.mesh_shape[axis] + coordinate[axis]
    return number


@contextlib.contextmanager
def parts_differ(mesh: DeviceMesh, axes: Sequence[str] = ("tp",), generator=None):
    """Inside, ranks at different places of `axes` draw different numbers; along other axes they draw the same.

    Blocks may be nested: parts of parts. A generator that is seeded inside the block keeps that seed. For PyNative; a
    block inside a compiled function has no effect.

    Args:
        mesh: the mesh.
        axes: names of the axes along which the local tensors are parts.
        generator (mindspore.Generator): None means MindSpore's own.

    Raises:
        ValueError: the mesh has no such axis, or the current rank is not in the mesh.

    Examples:
        >>> with parts_differ(mesh, ("tp",)):                                   # scores of this rank's heads
        ...     weights = mint.nn.functional.dropout(weights, 0.1)
        >>> hidden = mint.nn.functional.dropout(hidden, 0.1)                    # replicated: the same on every rank
    """
    global _number  # pylint: disable=global-statement
    outer = _number
    parts = math.prod(mesh.size(axis) for axis in set(axes))
    inner = outer * parts + part_number(mesh, axes)
    with seed_moved(inner - outer, generator):
        _number = inner
        try:
            yield
        finally:
            _number = outer


@contextlib.contextmanager
def seed_moved(parts: int, generator=None):
    """Inside, the generator draws what the part that lies `parts` further on draws; its offset moves on as ever.

    Args:
        parts: 0 or more.
        generator (mindspore.Generator): None means MindSpore's own.
    """
    generator = default_generator if generator is None else generator
    state = _read(generator)
    seed = state[0]
    # an array's sum wraps around where a seed is near the end of its range
    state[:1] += np.array([parts * STRIDE], np.int64)
    moved = state[0]
    _write(generator, state)
    try:
        yield
    finally:
        state = _read(generator)
        if state[0] == moved:
            state[0] = seed
            _write(generator, state)


def _read(generator) -> np.ndarray:
    """The generator's `[seed, offset]`."""
    return generator.get_state().asnumpy().view(np.int64).copy()


def _write(generator, state: np.ndarray) -> None:
    generator.set_state(Tensor(state.view(np.uint8)))
