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
"""Arguments on their way into a region: one tensor passes once, what is left out stays out, heads are cut."""
import numpy as np
import pytest
from mindspore import Tensor, nn

from hyper_parallel.distributed import edges
from hyper_parallel.distributed.head_slice import HeadSlice, find_head_arguments
from tests.models.one_process import MeshOfOneProcess


class Edge(nn.Cell):
    """Stands for an edge: doubles, and counts."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, x):
        """2 x."""
        self.calls += 1
        return 2 * x


class ThreeInputs(nn.Cell):
    """Sum of what it gets."""

    def construct(self, query, key=None, value=None):
        """query + 10 key + 100 value."""
        total = query
        if key is not None:
            total = total + 10 * key
        return total if value is None else total + 100 * value


def entered(path="attn"):
    """(cell, its three edges, what undoes them)."""
    cell, made = ThreeInputs(), [Edge() for _ in range(3)]
    names = ("query", "key", "value")
    return cell, made, edges.enter_through(cell, path, [(edge, name, at) for at, (edge, name) in
                                                        enumerate(zip(made, names))])


ONE, TWO = Tensor(np.ones(2, np.float32)), Tensor(np.full(2, 2.0, np.float32))


def test_one_tensor_under_three_names_passes_one_edge():
    cell, made, undo = entered()
    assert cell(ONE, ONE, value=ONE).asnumpy()[0] == 222.0 and [edge.calls for edge in made] == [1, 0, 0]
    assert cell(ONE, TWO, TWO).asnumpy()[0] == 442.0 and [edge.calls for edge in made] == [2, 1, 0]
    undo()
    assert cell(ONE, ONE, ONE).asnumpy()[0] == 111.0


@pytest.mark.parametrize("path", ["attn", "layers.0"])
def test_what_is_left_out_stays_out(path):
    cell, _, undo = entered(path)
    assert cell(ONE).asnumpy()[0] == 2.0
    assert cell(ONE, None, value=TWO).asnumpy()[0] == 402.0
    assert cell(ONE, key=TWO, value=None).asnumpy()[0] == 42.0
    undo()
    assert cell(ONE).asnumpy()[0] == 1.0 and "construct" not in vars(cell)


def test_further_results_pass_their_own_edge():
    class Mixture(nn.Cell):
        """Result, logits, and a number."""

        def construct(self, x):
            """Three results."""
            return x, 10 * x, 3

    for path in ("mlp", "layers.0"):
        cell, first, others = Mixture(), Edge(), Edge()
        undo = edges.leave_through(cell, path, first, others=others)
        result = cell(ONE)
        assert (result[0].asnumpy()[0], result[1].asnumpy()[0], result[2]) == (2.0, 20.0, 3)
        undo()
        assert cell(ONE)[1].asnumpy()[0] == 10.0 and first.calls == others.calls == 1


def head_slice(rank=1):
    """Four heads on two ranks."""
    return HeadSlice(MeshOfOneProcess(2, rank).get_group("tp"), 4, -3, "attn")


@pytest.mark.parametrize("shape, local", [((4, 1, 5), (2, 1, 5)), ((3, 4, 5, 5), (3, 2, 5, 5)), ((12, 1, 5), (6, 1, 5)),
                                          ((1, 5, 5), (1, 5, 5)), ((3, 2, 5, 5), (3, 2, 5, 5)), ((4,), (2,)),
                                          ((5, 5), (5, 5))])
def test_H02_biases_of_all_heads_are_cut_to_this_ranks(shape, local):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = head_slice()(Tensor(x)).asnumpy()
    assert found.shape == local
    if shape == (12, 1, 5):  # batch times heads
        assert np.array_equal(found.reshape(3, 2, 1, 5), x.reshape(3, 4, 1, 5)[:, 2:])
    elif shape[-3:] == local[-3:]:
        assert np.array_equal(found, x)
    else:
        assert np.array_equal(found, np.split(x, 2, max(0, len(shape) - 3))[1])


def test_a_bias_of_another_number_of_heads_is_refused():
    with pytest.raises(ValueError, match=r"attn: an argument of shape \(3, 5, 5\) is added to the scores of 4 heads"):
        head_slice()(Tensor(np.zeros((3, 5, 5), np.float32)))


def test_arguments_are_found_by_the_family_or_by_their_name():
    assert find_head_arguments({"slopes_of_family": 0}, ("x", "slopes_of_family", "mask")) == {"slopes_of_family": -3}
    assert find_head_arguments({}, ("hidden_states", "position_bias", "mask")) == {"position_bias": -3}
