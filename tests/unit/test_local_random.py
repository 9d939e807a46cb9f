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
"""Dropout on a rank's part draws numbers of the rank's own; what comes after it draws alike on all ranks."""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from hyper_parallel.distributed.local_random import draw_own_numbers, draw_own_numbers_between
from tests.models.one_process import MeshOfOneProcess

ONES = Tensor(np.ones((1, 256), np.float32))


class Own(nn.Cell):
    """Dropout by a function."""

    def construct(self, x):
        """Half of x."""
        return ops.dropout(x, p=0.5)


class Linears(nn.Cell):
    """Dropout between two modules, and behind the second."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Identity(), nn.Identity()

    def construct(self, x):
        """What is dropped inside, and outside."""
        inside = ops.dropout(self.up(x), p=0.5)
        return inside, ops.dropout(self.down(x), p=0.5)


def on_ranks(make, prepare, call):
    """What `call` gives on each of two ranks, all else being equal."""
    found = []
    for rank in range(2):
        mindspore.set_seed(5)
        cell = make()
        cell.set_train()
        undo = prepare(cell, MeshOfOneProcess(2, rank))
        found.append([one.asnumpy() != 0 for one in call(cell)])
        undo()
    return found


@pytest.mark.parametrize("make", [lambda: nn.Dropout(p=0.5), Own])
def test_G07_a_dropout_cell(make):
    first, second = on_ranks(make, lambda cell, mesh: draw_own_numbers(cell, mesh, "attn.dropout"),
                             lambda cell: (cell(ONES), cell(ONES), ops.dropout(ONES, p=0.5)))
    for mine, other in zip(first[:2], second[:2]):
        assert np.mean(mine == other) < 0.75 and 0.3 < mine.mean() < 0.7
    assert not np.array_equal(first[0], first[1])
    assert np.array_equal(first[2], second[2]), "outside, ranks agree"


def test_a_dropout_cell_is_given_back():
    cell = nn.Dropout(p=0.5)
    operator = cell.dropout
    draw_own_numbers(cell, MeshOfOneProcess(2, 1), "attn.dropout")()
    assert cell.dropout is operator
    own = Own()
    draw_own_numbers(own, MeshOfOneProcess(2, 1), "attn.dropout")()
    assert "construct" not in vars(own)


def test_G07_dropout_functions_between_a_column_and_a_row_weight():
    def prepare(cell, mesh):
        handles = draw_own_numbers_between([cell.up], [cell.down], mesh, "mlp")
        return lambda: [handle.remove() for handle in handles]

    first, second = on_ranks(Linears, prepare, lambda cell: cell(ONES) + cell(ONES))
    for at, (mine, other) in enumerate(zip(first, second)):
        agree = np.mean(mine == other)
        assert agree < 0.75 if at % 2 == 0 else agree == 1.0, at
    assert not np.array_equal(first[0], first[2]) and not np.array_equal(first[1], first[3])


def test_compiled_code_cannot_be_moved_and_says_so():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        with pytest.raises(NotImplementedError, match="'attn.dropout' .Own. .*only mindspore.nn.Dropout can draw"):
            draw_own_numbers(Own(), MeshOfOneProcess(), "attn.dropout")
        with pytest.raises(NotImplementedError, match="'mlp' drops this rank's part of an activation by a function"):
            draw_own_numbers_between([], [], MeshOfOneProcess(), "mlp")
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
