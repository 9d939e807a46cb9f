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
"""Dropout on this rank's part of an activation, such as its heads' attention weights, draws numbers of its own.

Dropout on what all ranks hold alike keeps drawing the same numbers everywhere.
"""
import importlib
from typing import Callable, List

import mindspore
from mindspore import nn, ops

from hyper_parallel.core.dtensor.random import STRIDE, part_number, parts_differ
from hyper_parallel.distributed.edges import replace_construct
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

_SEEDS = 1 << 31
# the package has a function of the module's name; `set_seed` would begin the operators' own counting anew
_global_seed = importlib.import_module("mindspore.common.seed")


def draw_own_numbers(cell, mesh, path: str) -> Callable[[], None]:
    """Make a dropout Cell draw numbers of this rank's own.

    `nn.Dropout` gets an operator with a seed of its own, in every mode. Any other class runs while MindSpore's generator
    and global seed are moved, which compiled code does not see.

    Returns:
        What undoes it.

    Raises:
        NotImplementedError: a class other than `nn.Dropout` in GRAPH_MODE.
    """
    if isinstance(cell, nn.Dropout):
        whole, kept = cell.dropout, cell.dropout.init_attrs
        moved = (kept["Seed1"] + part_number(mesh, (AXIS,)) * STRIDE) % _SEEDS
        cell.dropout = ops.Dropout(kept["keep_prob"], kept["Seed0"], moved)

        def put_back():
            cell.dropout = whole

        return put_back
    if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
        raise NotImplementedError(f"{path!r} ({type(cell).__name__}) drops this rank's part of an activation, and in "
                                  "GRAPH_MODE only mindspore.nn.Dropout can draw numbers of the rank's own: use it")
    forward, window = cell.construct, _Window(mesh)

    def construct(self, *args, **kwargs):
        window.open()
        try:
            return forward(*args, **kwargs)
        finally:
            window.close()

    return replace_construct(cell, construct)


def draw_own_numbers_between(opens: List, closes: List, mesh, path: str) -> List:
    """Dropout functions that run after any of the modules `opens` and before any of `closes` draw numbers of the rank's own.

    Returns:
        The hooks' handles.

    Raises:
        NotImplementedError: in GRAPH_MODE.
    """
    if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
        raise NotImplementedError(f"{path!r} drops this rank's part of an activation by a function, which GRAPH_MODE "
                                  "cannot give numbers of the rank's own: use mindspore.nn.Dropout")
    window = _Window(mesh)

    def open_window(cell, args, output):
        window.open()
        return output

    def close_window(cell, args):
        window.close()
        return args

    return [cell.register_forward_hook(open_window) for cell in opens] + [
        cell.register_forward_pre_hook(close_window) for cell in closes]


class _Window:
    """Moves MindSpore's generator and its global seed while it is open."""

    def __init__(self, mesh):
        self._mesh, self._moved, self._seed = mesh, None, None

    def open(self):
        """Opened again, it stays open."""
        if self._moved is None:
            self._moved = parts_differ(self._mesh, (AXIS,))
            self._moved.__enter__()
            self._seed = _global_seed._GLOBAL_SEED
            if self._seed is not None:
                _global_seed._GLOBAL_SEED = (self._seed + part_number(self._mesh, (AXIS,)) * STRIDE) % _SEEDS

    def close(self):
        """Whatever has been drawn inside, outside goes on alike on all ranks."""
        if self._moved is not None:
            self._moved.__exit__(None, None, None)
            _global_seed._GLOBAL_SEED = self._seed
            self._moved = None
