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
"""Every collective and every transition against numpy, in all modes, on the world and on two kinds of subgroups.

Run by `python tests/distributed/launch.py --world 2` (or 4, 8). On 4 ranks the groups are [0,1,2,3], [0,2] and [1,3],
[0,1] and [2,3]; on 2 ranks [0,1] and the groups of one.
"""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.collectives.gradient_sum import sum_gradient_over
from hyper_parallel.core.collectives.groups import current_rank, get_group, world_size
from hyper_parallel.core.collectives.naming import last_started
from hyper_parallel.core.collectives.transitions import EDGES, Transition
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh

WORLD = world_size() or 1
pytestmark = pytest.mark.skipif(WORLD < 2, reason="needs a communication world of two ranks or more")

DTYPES = (ms.float32, ms.float16, ms.bfloat16, ms.int32, ms.int64, ms.int8, ms.uint8, ms.int16, ms.bool_, ms.float64)
MODES = ("pynative", "jit", "graph")
SHAPE = (max(4, WORLD), 8)


@pytest.fixture(name="group", params=("world", "outer", "inner"))
def _group(request):
    """The current rank's group along an axis; on 2 ranks `inner` has one rank."""
    if request.param == "outer" and WORLD == 2:
        pytest.skip("on 2 ranks the same group as the world")
    if request.param == "world":
        return get_group(range(WORLD))
    return init_device_mesh("npu", (2, WORLD // 2), mesh_dim_names=("outer", "inner")).get_group(request.param)


@pytest.fixture(name="mode", params=MODES)
def _mode(request):
    ms.set_context(mode=ms.GRAPH_MODE if request.param == "graph" else ms.PYNATIVE_MODE)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


def values(rank, seed=0):
    """What a rank contributes: small integers, exact in every dtype, different on every rank."""
    return np.random.default_rng(100 * seed + rank).integers(0, 9, SHAPE).astype(np.float32)


def tensor(array, dtype=ms.float32):
    """The tensor of a numpy array."""
    return Tensor(np.asarray(array, np.float32)).astype(dtype)


def as_numpy(x):
    """A float array of a tensor of any dtype."""
    return x.astype(ms.float32).asnumpy()


# The mathematics of the steps, on the list of all members' arrays: one array per member.

def _cut(array, dim, index, size):
    return np.split(array, size, dim)[index]


def _pad(array, dim, index, size):
    pieces = [np.zeros_like(array)] * size
    pieces[index] = array
    return np.concatenate(pieces, dim)


STEPS = {
    "identity": lambda parts, dim: parts,
    "share": lambda parts, dim: [part / len(parts) for part in parts],
    "scale": lambda parts, dim: [part * len(parts) for part in parts],
    "all_reduce": lambda parts, dim: [sum(parts)] * len(parts),
    "all_gather": lambda parts, dim: [np.concatenate(parts, dim)] * len(parts),
    "reduce_scatter": lambda parts, dim: np.split(sum(parts), len(parts), dim),
    "slice": lambda parts, dim: [_cut(part, dim, i, len(parts)) for i, part in enumerate(parts)],
    "zero_pad": lambda parts, dim: [_pad(part, dim, i, len(parts)) for i, part in enumerate(parts)],
    "all_to_all": lambda parts, dim: [np.concatenate([_cut(part, dim[0], i, len(parts)) for part in parts], dim[1])
                                      for i in range(len(parts))],
}


def expected(step, group, dim=None, of=values):
    """What this rank gets when every member contributes `of(rank)`."""
    return STEPS[step]([of(rank) for rank in group.ranks], dim)[group.index]


# Groups

def test_groups_need_only_their_members():
    """Ranks make their groups in different orders; the pairs that leave a rank out concern nobody else."""
    mesh = init_device_mesh("npu", (2, WORLD // 2), mesh_dim_names=("a", "b"))
    order = ("a", "b") if current_rank() % 2 else ("b", "a")
    groups = {axis: mesh.get_group(axis) for axis in order}
    assert groups["a"] is mesh["a"].get_group() and groups["b"] is mesh.get_group(1)
    if current_rank() in (0, WORLD - 1):
        assert functional.all_reduce(tensor([1.0]), get_group((0, WORLD - 1))).asnumpy() == [2.0]
    for axis in ("a", "b"):
        total = functional.all_reduce(tensor([current_rank()]), groups[axis])
        assert total.asnumpy() == [sum(mesh.get_rank_list_along_axis(axis))]


def test_group_of_foreign_ranks_is_refused():
    """Membership and the world's size are checked before MindSpore is asked."""
    with pytest.raises(ValueError, match=f"does not fit a world of {WORLD} ranks"):
        get_group((0, WORLD))
    others = [rank for rank in range(WORLD) if rank != current_rank()]
    if len(others) > 1:
        with pytest.raises(ValueError, match=f"rank {current_rank()} is not a member"):
            get_group(others)


def test_group_is_a_name_that_mindspore_takes(group):
    """mint.distributed and the primitives accept a Group where they want a name."""
    if group.size == 1:
        pytest.skip("a group of one rank is unknown to MindSpore")
    assert ms.communication.get_group_size(group) == group.size
    assert ms.communication.get_rank(group) == group.index
    total = tensor([1.0])
    ms.mint.distributed.all_reduce(total, group=group)
    assert total.asnumpy() == ops.AllReduce(group=group)(tensor([1.0])).asnumpy() == [group.size]


def test_mesh_knows_the_current_rank():
    """Coordinates and rank lists without an explicit rank."""
    mesh = init_device_mesh("npu", (2, WORLD // 2), mesh_dim_names=("a", "b"))
    assert mesh.get_coordinate() == divmod(current_rank(), WORLD // 2)
    assert mesh.get_local_rank("a") == current_rank() // (WORLD // 2)
    assert list(mesh["a"].rank_list) == mesh.get_rank_list_along_axis("a") == list(mesh.get_group("a").ranks)


# Collectives

@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce(group, dtype):
    """Sum, max and min, exact in every dtype."""
    parts = [as_numpy(tensor(values(rank), dtype)) for rank in group.ranks]
    for op, reduction in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        result = functional.all_reduce(tensor(values(current_rank()), dtype), group, op)
        wanted = reduction(parts, axis=0)
        assert result.dtype == dtype
        np.testing.assert_array_equal(as_numpy(result), wanted > 0 if dtype == ms.bool_ else wanted, err_msg=op)
    if dtype in (ms.float32, ms.float16, ms.bfloat16, ms.float64):
        result = functional.all_reduce(tensor(values(current_rank()), dtype), group, "avg")
        tolerance = 1e-2 if dtype == ms.bfloat16 else 1e-3
        np.testing.assert_allclose(as_numpy(result), np.mean(parts, axis=0), rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moving_collectives(group, dtype):
    """Gather, scatter, exchange and broadcast, exact in every dtype; along every dim for one float and one integer."""
    mine = tensor(values(current_rank()), dtype)

    def typed(rank):
        return as_numpy(tensor(values(rank), dtype))

    def check(result, wanted, what):
        assert result.dtype == dtype
        np.testing.assert_array_equal(as_numpy(result), wanted, err_msg=what)

    every = dtype in (ms.float32, ms.int32)
    for dim in (0, 1, -1) if every else (1,):
        check(functional.all_gather(mine, dim, group), expected("all_gather", group, dim, typed), f"all_gather {dim}")
        summed = expected("reduce_scatter", group, dim, typed)
        summed = summed > 0 if dtype == ms.bool_ else summed
        check(functional.reduce_scatter(mine, dim, group), summed, f"reduce_scatter {dim}")
    for dims in ((0, 1), (1, 0), (-1, -2), (0, 0), (1, 1), (-1, -1), (1, -1)) if every else ((0, 1), (1, 1)):
        check(functional.all_to_all(mine, *dims, group), expected("all_to_all", group, dims, typed), f"exchange {dims}")
    for source in range(group.size):
        check(functional.broadcast(mine, source, group), typed(group.ranks[source]), f"broadcast {source}")


def test_integers_beyond_float32_and_signed_zeros_survive(group):
    """Nothing is rounded on the way through a float, and -0.0 stays -0.0."""
    large = Tensor(np.array([2 ** 31 - 1 - current_rank(), -2 ** 31 + current_rank()], np.int32))
    gathered = functional.all_gather(large, 0, group).asnumpy().reshape(group.size, 2)
    np.testing.assert_array_equal(gathered, [[2 ** 31 - 1 - rank, -2 ** 31 + rank] for rank in group.ranks])
    wide = Tensor(np.array([2 ** 53 + 1 + current_rank()], np.int64))
    assert functional.all_reduce(wide, group, "max").asnumpy() == [2 ** 53 + 1 + group.ranks[-1]]
    assert functional.all_reduce(wide, group).asnumpy() == [sum(2 ** 53 + 1 + rank for rank in group.ranks)]
    special = Tensor(np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32))
    gathered = functional.all_gather(special, 0, group).asnumpy()
    assert gathered.tobytes() == np.tile(special.asnumpy(), group.size).tobytes()


def test_scalars_and_strided_views(group):
    """A tensor without dims can be reduced; a transposed view is taken by its values."""
    total = functional.all_reduce(tensor(current_rank() + 1.0), group)
    assert total.shape == () and total.asnumpy() == sum(rank + 1.0 for rank in group.ranks)
    view = tensor(values(current_rank())).T
    np.testing.assert_array_equal(functional.all_gather(view, 0, group).asnumpy(),
                                  np.concatenate([values(rank).T for rank in group.ranks]))
    wanted = sum(values(rank).T for rank in group.ranks)
    np.testing.assert_array_equal(functional.all_reduce(view, group).asnumpy(), wanted)
    np.testing.assert_array_equal(functional.all_reduce(view.astype(ms.int32), group).asnumpy(), wanted)


def test_barrier_and_no_gradient(group):
    """A barrier returns on all ranks; plain collectives are constants to the gradient."""
    functional.barrier(group)
    x = tensor(values(current_rank()))
    gradient = ms.grad(lambda t: (functional.all_gather(t, 0, group).sum() + t.sum()))(x)
    np.testing.assert_array_equal(gradient.asnumpy(), np.full(SHAPE, 1.0 if group.size > 1 else 2.0))


def test_unsupported_uses_are_refused_by_name():
    """Sizes that do not divide, and dtypes that only PyNative can carry on CPU; what was started last is known."""
    world = get_group(range(WORLD))
    functional.all_reduce(tensor([1.0]), world)
    assert last_started().endswith(f"all_reduce over group {world.name} of ranks {world.ranks}")
    with pytest.raises(ValueError, match=f"dim 0 of a tensor of shape .* does not divide by the {WORLD} ranks"):
        functional.reduce_scatter(tensor(np.ones((WORLD + 1, 2))), 0, world)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(Exception, match="float32, float16 and bfloat16 are supported"):
            Transition("reduce", world)(Tensor(np.ones(2, np.int32)))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


# Transitions

DIMS = [(kind, dim) for kind, edge in EDGES.items()
        for dim in (((0, 1), (-1, -2), (0, 0)) if kind == "all_to_all" else
                    (0, -1) if {"all_gather", "reduce_scatter", "slice", "zero_pad"} & set(edge) else (None,))]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class EdgeNet(nn.Cell):
    """Weighted sums of the outputs of several edges, so that the gradient that enters each edge is its weight."""

    def __init__(self, edges, mode):
        super().__init__()
        self.edges = nn.CellList(edges)
        if mode == "jit":
            self.construct = ms.jit(self.construct)

    def construct(self, *tensors):
        """The inputs of all edges, then all weights: the loss, and the outputs."""
        outs, loss = (), 0.0
        for i, edge in enumerate(self.edges):
            out = edge(tensors[i])
            outs += (out,)
            loss = loss + (ops.cast(out, ms.float32) * tensors[len(self.edges) + i]).sum()
        return loss, outs


def check_edges(kinds_and_dims, group, mode, dtype=ms.float32):
    """Forward and gradient of transitions against numpy; returns the record of their collectives."""
    def incoming(step, dim):
        shape = STEPS[step]([values(member) for member in group.ranks], dim)[0].shape
        return lambda rank: np.random.default_rng(1000 + rank).integers(0, 9, shape).astype(np.float32)

    net = EdgeNet([Transition(kind, group, dim) for kind, dim in kinds_and_dims], mode)
    arrives = [incoming(EDGES[kind].forward, dim) for kind, dim in kinds_and_dims]
    inputs = [tensor(values(current_rank()), dtype) for _ in kinds_and_dims]
    gradient_of = ms.value_and_grad(net, tuple(range(len(inputs))), has_aux=True)
    with count_collectives() as record:
        (_, outs), gradients = gradient_of(*inputs, *[tensor(weight(current_rank())) for weight in arrives])
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        for (kind, dim), weight, out, gradient in zip(kinds_and_dims, arrives, outs, gradients):
            back = dim[::-1] if kind == "all_to_all" else dim
            np.testing.assert_array_equal(as_numpy(out), expected(EDGES[kind].forward, group, dim), kind)
            np.testing.assert_array_equal(as_numpy(gradient), expected(EDGES[kind].backward, group, back, weight), kind)
            assert out.dtype == gradient.dtype == dtype
    for item in record:
        assert item.group == group.name and item.size == group.size
    return record


@pytest.mark.parametrize("kind, dim", DIMS, ids=str)
def test_transition(group, kind, dim):
    """Every edge, forward and backward; the counter reports the logical collectives, in order."""
    record = check_edges([(kind, dim)], group, "pynative")
    wanted = [(step, phase) for step, phase in zip(EDGES[kind], ("forward", "backward"))
              if group.size > 1 and step in COLLECTIVES]
    assert [(item.kind, item.phase) for item in record] == wanted
    assert all(item.full_bytes in (4 * np.prod(SHAPE), 4 * np.prod(SHAPE) * group.size) for item in record)


@pytest.mark.parametrize("edges", (DIMS[::4], pytest.param(DIMS, marks=pytest.mark.slow)), ids=("some", "all"))
@pytest.mark.parametrize("mode", ("jit", "graph"), indirect=True)
def test_transitions_compiled(group, mode, edges):
    """The same compiled, which the counter does not see.

    A graph for each edge: on CPU, collectives of one graph that do not depend on each other may be issued in another
    order by another rank.
    """
    if mode == "jit" and group.size < WORLD:
        pytest.skip("subgroups are tested in GRAPH_MODE; a compilation takes seconds")
    for edge in edges:
        assert len(check_edges([edge], group, mode)) == 0


@pytest.mark.parametrize("dtype", (ms.float16, ms.bfloat16), ids=str)
def test_transitions_in_half_precision(group, dtype):
    """The gradient has the activation's dtype, and the bytes counted are those of that dtype."""
    kinds = [("enter_replicated", None), ("gather_sequence", 0), ("reduce_scatter_sequence", 1)]
    record = check_edges(kinds, group, "pynative", dtype)
    whole = 2 * np.prod(SHAPE)
    assert sorted(item.full_bytes for item in record) == (
        [] if group.size == 1 else [whole] * 3 + [whole * group.size] * 2)


def test_edges_of_a_region_give_the_whole_layers_gradients(group, mode):
    """Column- and row-sharded weights between an entry and an exit edge, against the whole MLP in numpy."""
    rng = np.random.default_rng(7)
    x, up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (16, 8), (8, 16)))
    cut = slice(16 // group.size * group.index, 16 // group.size * (group.index + 1))

    class Region(nn.Cell):
        """y = relu(x up^T) down^T with the middle sharded."""

        def __init__(self):
            super().__init__()
            self.enter, self.leave = Transition("enter_replicated", group), Transition("reduce", group)
            self.up = Parameter(Tensor(up[cut]), name="up")
            self.down = Parameter(Tensor(down[:, cut]), name="down")
            if mode == "jit":
                self.construct = ms.jit(self.construct)

        def construct(self, x):
            """The sum of squares of y."""
            hidden = ops.relu(ops.matmul(self.enter(x), self.up.T))
            return (self.leave(ops.matmul(hidden, self.down.T)) ** 2).sum()

    region = Region()
    loss, (dx, dweights) = ms.value_and_grad(region, 0, region.trainable_params())(Tensor(x))
    hidden = np.maximum(x @ up.T, 0)
    y = hidden @ down.T
    dhidden = (2 * y @ down) * (hidden > 0)
    np.testing.assert_allclose(loss.asnumpy(), (y ** 2).sum(), rtol=1e-5)
    np.testing.assert_allclose(dx.asnumpy(), dhidden @ up, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dweights[0].asnumpy(), (dhidden.T @ x)[cut], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dweights[1].asnumpy(), (2 * y.T @ hidden)[:, cut], rtol=1e-4, atol=1e-4)


# Gradients of parameters

class TwiceNet(nn.Cell):
    """A weight that is used twice."""

    def __init__(self, mode):
        super().__init__()
        self.weight = Parameter(tensor(np.ones(SHAPE)), name="weight")
        if mode == "jit":
            self.construct = ms.jit(self.construct)

    def construct(self, x):
        """2 x w, summed."""
        return (x * self.weight).sum() + (self.weight * x).sum()


def test_parameter_gradient_is_summed_once(group, mode):
    """One all-reduce a backward, however often the weight is used, filed as a parameter's gradient."""
    net, x = TwiceNet(mode), tensor(values(current_rank()))
    handle = sum_gradient_over(net.weight, group)
    with count_collectives() as record:
        gradient, = ms.grad(net, None, net.trainable_params())(x)
        np.testing.assert_array_equal(as_numpy(gradient), 2 * sum(values(rank) for rank in group.ranks))
    seen = record.count("all_reduce", purpose="parameter_gradient", phase="backward")
    # Under jit the hook is on the outside of the graph, in PyNative.
    assert len(record) == seen == (0 if mode == "graph" or group.size == 1 else 1)
    handle.remove()
    if mode == "pynative":
        gradient, = ms.grad(net, None, net.trainable_params())(x)
        np.testing.assert_array_equal(as_numpy(gradient), 2 * values(current_rank()))


def test_parameter_gradient_is_summed_in_float32(group):
    """The gradient of a bfloat16 weight: its own dtype outside, float32 on the wire, one rounding."""
    weight = Parameter(tensor(np.ones(SHAPE), ms.bfloat16), name="weight")
    sum_gradient_over(weight, group)
    x = tensor(values(current_rank()))
    with count_collectives() as record:
        gradient = ms.grad(lambda x: (ops.cast(weight, ms.float32) * x).sum(), None, weight)(x)
        np.testing.assert_array_equal(as_numpy(gradient), sum(values(rank) for rank in group.ranks))
    assert gradient.dtype == ms.bfloat16
    assert [item.full_bytes for item in record] == ([] if group.size == 1 else [4 * np.prod(SHAPE)])
