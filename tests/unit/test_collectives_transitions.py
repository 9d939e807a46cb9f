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
"""The table of transitions, their arguments, and what a rank does alone; groups of one are the identity."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from hyper_parallel.core.collectives import local
from hyper_parallel.core.collectives.gradient_sum import sum_gradient_over
from hyper_parallel.core.collectives.groups import Group
from hyper_parallel.core.collectives.transitions import EDGES, Transition

ALONE = Group("hp_0", (0,), 0)
PAIR = [Group("pair", (0, 1), index) for index in range(2)]
ALONG = {"all_gather", "reduce_scatter", "slice", "zero_pad"}


def dim_of(kind):
    """A dim that the transition takes."""
    return (0, 1) if kind == "all_to_all" else 0 if ALONG & set(EDGES[kind]) else None


def test_table_for_activations():
    """Forward and backward for a loss that every rank computes with sense 1."""
    assert {kind: tuple(EDGES[kind]) for kind in list(EDGES)[:8]} == {
        "enter_replicated": ("identity", "all_reduce"),
        "identity": ("identity", "identity"),
        "gather_sequence": ("all_gather", "reduce_scatter"),
        "reduce": ("all_reduce", "identity"),
        "reduce_scatter_sequence": ("reduce_scatter", "all_gather"),
        "reduce_for_local_math": ("all_reduce", "all_reduce"),
        "gather_for_replicated": ("all_gather", "slice"),
        "slice": ("slice", "all_gather"),
    }


def test_true_adjoints_are_mutual():
    """The backward of the backward is the forward."""
    adjoints = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_reduce": "all_reduce",
                "slice_adjoint": "zero_pad", "zero_pad": "slice_adjoint", "all_to_all": "all_to_all"}
    for kind, adjoint in adjoints.items():
        assert EDGES[kind] == EDGES[adjoint][::-1]


@pytest.mark.parametrize("mode", (ms.PYNATIVE_MODE, ms.GRAPH_MODE))
@pytest.mark.parametrize("kind", EDGES)
def test_group_of_one_is_the_identity(kind, mode):
    """Forward and gradient, without a communication world."""
    edge = Transition(kind, ALONE, dim_of(kind))

    def loss(x, weight):
        return (edge(x) * weight).sum()

    x, weight = (Tensor(np.random.default_rng(seed).random((2, 4)).astype(np.float32)) for seed in (0, 1))
    ms.set_context(mode=mode)
    try:
        out = edge(x)
        gradient = ms.grad(loss)(x, weight)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    np.testing.assert_array_equal(out.asnumpy(), x.asnumpy())
    np.testing.assert_array_equal(gradient.asnumpy(), weight.asnumpy())


def test_edges_without_communication():
    """Slice and zero-pad, and MindFormers' replicated head, forward and gradient."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for group in PAIR:
        part, half = np.split(x, 2, 1)[group.index], Transition("slice_adjoint", group, -1)
        np.testing.assert_array_equal(half(Tensor(x)).asnumpy(), part)
        gradient = ms.grad(lambda t, half=half: (half(t) ** 2).sum() / 2)(Tensor(x)).asnumpy()
        wanted = np.zeros_like(x)
        wanted[:, 2 * group.index:2 * group.index + 2] = part
        np.testing.assert_array_equal(gradient, wanted)
        np.testing.assert_array_equal(Transition("zero_pad", group, 1)(Tensor(part)).asnumpy(), wanted)
        head = Transition("terminal_replicated", group)
        assert (ms.grad(lambda t, head=head: head(t).sum())(Tensor(x)).asnumpy() == 2).all()
        np.testing.assert_array_equal(head.construct(Tensor(x)).asnumpy(), x)
        scaled, = head.bprop(None, None, Tensor(x))
        np.testing.assert_array_equal(scaled.asnumpy(), 2 * x)


def test_a_slice_is_no_view():
    """It does not keep the whole tensor alive."""
    assert local.make_slice(PAIR[1], 0)(Tensor(np.ones((4, 2), np.float32))).is_contiguous()
    with pytest.raises(ValueError, match=r"dim 1 of a tensor of shape \(4, 3\) does not divide by the 2 ranks"):
        local.make_slice(PAIR[1], -1)(Tensor(np.ones((4, 3), np.float32)))


@pytest.mark.parametrize("kind, dim, message", [
    ("gather", 0, "no transition is called 'gather': valid ones are enter_replicated, identity"),
    ("gather_sequence", None, "takes an int dim, got None"),
    ("gather_sequence", (0, 1), r"takes an int dim, got \(0, 1\)"),
    ("reduce", 0, "takes no dim, got 0"),
    ("all_to_all", 0, r"takes dim=\(dim to split, dim to concatenate\).* got 0"),
    ("all_to_all", (0, -1), "both counted from the front or both from the end"),
])
def test_arguments_are_checked(kind, dim, message):
    """When the edge is made, not when it runs."""
    with pytest.raises(ValueError, match=message):
        Transition(kind, ALONE, dim)


def test_a_group_is_needed():
    """A name alone says neither size nor index."""
    with pytest.raises(ValueError, match="transition reduce takes a Group, as mesh.get_group"):
        Transition("reduce", "tp")


def test_repr():
    """What it does, in one line, inside a model's repr."""
    assert repr(Transition("slice_adjoint", PAIR[0], -1)) == (
        "Transition(slice_adjoint: slice / zero_pad, group=pair, dim=-1)")
    assert "reduce: all_reduce / identity, group=hp_0" in repr(Transition("reduce", ALONE))


def test_gradient_sum_over_one_rank_hooks_nothing():
    """The handle is the same kind of thing."""
    weight = Parameter(Tensor(np.ones((2, 2), np.float32)), name="weight")
    handle = sum_gradient_over(weight, ALONE)
    assert (ms.grad(lambda x: (x * weight).sum(), None, weight)(Tensor(2.0)).asnumpy() == 2).all()
    assert handle.remove() is None
