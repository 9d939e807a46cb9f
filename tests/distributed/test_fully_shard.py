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
"""`fully_shard` on ranks: parameters, gradients and optimizer state in parts, the numbers of one process.

The judge is the same model on one rank with the whole batch, built from the same seed in the same process.
"""
import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn

import hyper_parallel as hp
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
FEATURES, LAYERS = 8, 3


class Block(nn.Cell):
    """A residual block: a norm's weight that the block uses first, two matrices, a bias of odd size, a number."""

    def __init__(self, draw):
        super().__init__()
        self.scale = Parameter(Tensor(1 + draw(FEATURES)), name="scale")
        self.up = Parameter(Tensor(draw(13, FEATURES)), name="up")
        self.bias = Parameter(Tensor(draw(13)), name="bias")
        self.down = Parameter(Tensor(draw(FEATURES, 13)), name="down")
        self.gain = Parameter(Tensor(np.float32(0.5)), name="gain")

    def construct(self, x):
        """x + gain · down(tanh(up(scale · x)))"""
        hidden = mint.tanh(mint.matmul(x * self.scale, mint.transpose(self.up, 0, 1)) + self.bias)
        return x + self.gain * mint.matmul(hidden, mint.transpose(self.down, 0, 1))


class Model(nn.Cell):
    """A table, blocks, and the table again as the head."""

    def __init__(self, seed=0):
        super().__init__()
        generator = np.random.default_rng(seed)

        def draw(*shape):
            # small enough that three steps do not drive rounding apart
            return (0.3 * generator.normal(size=shape)).astype(np.float32)

        self.table = Parameter(Tensor(draw(10, FEATURES)), name="table")
        self.blocks = nn.CellList([Block(draw) for _ in range(LAYERS)])

    def construct(self, ids):
        """The loss of predicting the ids themselves, a mean over the batch."""
        x = mint.nn.functional.embedding(ids, self.table)
        for block in self.blocks:
            x = block(x)
        scores = mint.matmul(x, mint.transpose(self.table, 0, 1))
        return mint.nn.functional.cross_entropy(mint.reshape(scores, (-1, 10)), mint.reshape(ids, (-1,)))


def batch(size=4):
    """Ids that every rank knows."""
    return Tensor(np.random.default_rng(5).integers(0, 10, (size, 3)).astype(np.int32))


def one_process(steps=1, size=4):
    """(loss, gradients) of the last step and the weights after it, of plain gradient descent on the whole batch."""
    enable_backward()
    model = Model()
    for _ in range(steps):
        loss = model(batch(size))
        loss.backward()
        gradients = {name: one._grad.asnumpy().copy() for name, one in model.parameters_and_names()}
        for one in model.trainable_params():
            one.set_data(one - 0.1 * one._grad)
            one._grad = None
    return loss.asnumpy().item(), gradients, {name: one.asnumpy() for name, one in model.parameters_and_names()}


def mine(ids, ranks=WORLD, index=RANK):
    """This rank's rows of the batch."""
    rows = ids.shape[0] // ranks
    return ids[index * rows:(index + 1) * rows]


def sharded(mesh, **options):
    """The model with a unit per block and one for the rest."""
    enable_backward()
    model = Model()
    for block in model.blocks:
        hp.fully_shard(block, mesh=mesh, **options)
    return hp.fully_shard(model, mesh=mesh, **options)


def check(model, gradients, tolerance=1e-4):
    """Every gradient, gathered, against the judge's."""
    for name, parameter in model.parameters_and_names():
        gradient = parameter.main_grad
        assert isinstance(gradient, DTensor) and gradient.dtype == mindspore.float32
        assert gradient.placements == parameter.placements
        found = gradient.full_tensor().asnumpy()
        assert found.shape == gradients[name].shape
        assert np.abs(found - gradients[name]).max() <= tolerance * np.abs(gradients[name]).max(), name


def step(model):
    """Plain gradient descent on the parts."""
    for one in model.trainable_params():
        part = one.to_local()
        part.set_data(part - 0.1 * one.main_grad.to_local())
    model.zero_grad()


@pytest.fixture(name="mesh")
def shard_mesh():
    """One axis over all ranks."""
    return hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("fsdp",))


@pytest.mark.parametrize("reshard", [None, True, False])
def test_three_steps_follow_one_process(mesh, reshard):
    loss, gradients, weights = one_process(steps=3)
    model = sharded(mesh, reshard_after_forward=reshard)
    for index in range(3):
        found = model(mine(batch()))
        found.backward()
        if index == 2:
            check(model, gradients)
        step(model)
    total = hp.core.collectives.functional.all_reduce(found.reshape((1,)), mesh.get_group(), "avg")
    assert total.asnumpy().item() == pytest.approx(loss, rel=1e-5)
    for name, parameter in model.parameters_and_names():
        assert np.abs(parameter.full_tensor().asnumpy() - weights[name]).max() < 1e-4, name


@pytest.mark.parametrize("reshard, gathers", [(True, 2 * (LAYERS + 1)), (None, 2 * LAYERS + 1), (False, LAYERS + 1)])
def test_collectives_of_a_step(mesh, reshard, gathers):
    model = sharded(mesh, reshard_after_forward=reshard)
    with hp.count_collectives() as record:
        model(mine(batch())).backward()
        for parameter in model.trainable_params():
            parameter.main_grad.to_local()
    # a scalar in every block is kept whole and summed with the rest of its kind
    assert record.counts() == {"all_gather": gathers, "reduce_scatter": LAYERS + 1, "all_reduce": LAYERS}
    assert record.count("all_gather", where="blocks.1") == (1 if reshard is False else 2)
    assert record.count("all_gather", phase="forward", purpose="parameter") == LAYERS + 1
    # bytes of the gathered parameters, the odd ones padded to a full chunk for every rank
    rows = -(-13 // WORLD) * WORLD
    block = 4 * (-(-FEATURES // WORLD) * WORLD * (1 + 13) + rows * (FEATURES + 1))
    assert {item.full_bytes for item in record.select("all_gather", where="blocks")} == {block}
    with hp.count_collectives() as record:
        for parameter in model.trainable_params():
            parameter.main_grad.to_local()
    assert len(record) == 0


def gathered_bytes(model):
    """Bytes of gathered parameters that this rank holds at the moment."""
    units = model._units()
    return sum(one.gathered_bytes for unit in units for one in unit.parameters if one.is_temporary)


def test_memory_of_parameters_comes_and_goes(mesh):
    model = sharded(mesh, reshard_after_forward=True)
    held = []

    def note(cell, args, output):
        held.append(gathered_bytes(model))

    for block in model.blocks:
        block.up_seen = block.register_forward_hook(note)
    assert gathered_bytes(model) == 0
    whole = {name: parameter.size * 4 for name, parameter in model.parameters_and_names()}
    parts = sum(parameter.to_local().nbytes for parameter in model.trainable_params())
    assert parts <= sum(whole.values()) / WORLD + LAYERS * 4 * (2 * FEATURES + 2)
    loss = model(mine(batch()))
    assert gathered_bytes(model) == 0
    assert held == [whole["table"]] * LAYERS, "a block is free again when its forward ends"
    loss.backward()
    assert gathered_bytes(model) == whole["table"], "the outermost unit waits for its gradients to be read"
    step(model)
    assert gathered_bytes(model) == 0 and all(
        isinstance(getattr(block, name), DTensor) for block in model.blocks for name in ("up", "bias"))


@pytest.mark.parametrize("syncs", [True, False])
def test_four_micro_batches_are_reduced_as_asked(mesh, syncs):
    _, gradients, _ = one_process(size=4 * WORLD)
    model = sharded(mesh)
    rows = mine(batch(4 * WORLD))
    with hp.count_collectives() as record:
        for index in range(4):
            model.set_requires_gradient_sync(syncs or index == 3)
            (model(rows[index:index + 1]) / 4).backward()
        check(model, gradients)
    assert record.count("reduce_scatter") == (LAYERS + 1) * (4 if syncs else 1)
    assert record.count("all_reduce", purpose="parameter_gradient") == LAYERS


def test_prefetch_gathers_earlier_and_nothing_twice(mesh):
    _, gradients, _ = one_process()
    model = sharded(mesh, reshard_after_forward=True)
    first, second, third = model.blocks
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second])
    with hp.count_collectives() as record:
        model(mine(batch())).backward()
    # the calls of the forward, then those of the backward
    assert [item.where for item in record.select("all_gather")] == [
        "", "blocks.0", "blocks.1", "blocks.2", "", "blocks.2", "blocks.1", "blocks.0"]
    check(model, gradients)
    with pytest.raises(ValueError, match="call fully_shard on it first"):
        first.set_modules_to_forward_prefetch([nn.Dense(1, 1)])


def test_replicated_and_ignored_parameters(mesh):
    _, gradients, _ = one_process()
    enable_backward()
    model = Model()
    block = model.blocks[0]
    down, scale = block.down, block.scale
    hp.fully_shard(model, mesh=mesh, replicate_params=[down], ignored_params=[scale])
    assert block.scale is scale and block.down is down and not isinstance(scale, DTensor)
    assert block._params["down"].placements == (hp.Replicate(),) and model.blocks[1].down.placements == (hp.Shard(0),)
    model(mine(batch())).backward()
    assert np.allclose(block._params["down"].main_grad.full_tensor().asnumpy(), gradients["blocks.0.down"], atol=1e-6)
    total = hp.core.collectives.functional.all_reduce(scale._grad, mesh.get_group(), "avg")
    assert np.allclose(total.asnumpy(), gradients["blocks.0.scale"], atol=1e-6)


def test_the_dim_that_a_function_chooses(mesh):
    _, gradients, _ = one_process()
    model = sharded(mesh, shard_placement_fn=lambda parameter: hp.Shard(1) if parameter.ndim == 2 else None)
    assert model.blocks[0].down.placements == (hp.Shard(1),) and model.blocks[0].bias.placements == (hp.Shard(0),)
    assert model.blocks[0].down.local_shape == (FEATURES, min(-(-13 // WORLD), 13 - RANK * -(-13 // WORLD)))
    model(mine(batch())).backward()
    check(model, gradients)


def test_a_tensor_too_short_for_the_axis_stays_whole(mesh):
    gain = sharded(mesh).blocks[0]._params["gain"]
    assert gain.placements == (hp.Replicate(),) and gain.local_shape == ()


@pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")
def test_replicas_of_shards():
    _, gradients, _ = one_process()
    grid = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("dp_replicate", "fsdp"))
    model = sharded(grid)
    assert model.table.placements == (hp.Replicate(), hp.Shard(0))
    with hp.count_collectives() as record:
        for _ in range(2):
            (model(mine(batch())) / 2).backward()
        check(model, gradients)
    assert record.count("reduce_scatter", axis="fsdp") == 2 * (LAYERS + 1)
    # over the replicas once, when it is read: what is cut in each unit, and what a block keeps whole
    assert record.count("all_reduce", axis="dp_replicate") == (LAYERS + 1) + LAYERS


class Half(nn.Cell):
    """A linear whose products are computed in float32, with casts at its edges, as CPU kernels need it."""

    def __init__(self):
        super().__init__()
        values = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
        self.weight = Parameter(Tensor(values), name="weight")
        self.factor = Parameter(Tensor(values[:1, :1].reshape(())), name="factor")
        self.seen = None

    def construct(self, x):
        """factor · weight · x in the dtype of x"""
        self.seen = (self.weight.dtype, self.factor.dtype, x.dtype)
        product = mint.matmul(x.astype(mindspore.float32), self.weight.astype(mindspore.float32))
        return (product * self.factor.astype(mindspore.float32)).astype(x.dtype)


def test_bfloat16_forward_with_float32_parts_and_gradients(mesh):
    enable_backward()
    x = Tensor(np.random.default_rng(2).normal(size=(WORLD, 8)).astype(np.float32))
    whole = Half()
    (whole(x) ** 2).mean().backward()
    model = Half()
    policy = hp.MixedPrecisionPolicy(param_dtype=mindspore.bfloat16, output_dtype=mindspore.float32)
    hp.fully_shard(model, mesh=mesh, mp_policy=policy)
    assert model.weight.to_local().dtype == mindspore.float32
    with hp.count_collectives() as record:
        for _ in range(2):
            result = model(mine(x))
            ((result ** 2).mean() / 2).backward()
        assert model.seen == (mindspore.bfloat16,) * 3 and result.dtype == mindspore.float32
        for name, parameter in model.parameters_and_names():
            expected = dict(whole.parameters_and_names())[name]._grad.asnumpy()
            difference = np.abs(parameter.main_grad.full_tensor().asnumpy() - expected).max()
            assert difference <= 0.02 * np.abs(expected).max(), name
    assert {item.full_bytes for item in record.select("all_gather", purpose="parameter")} == {2 * 64}, "bfloat16"
    assert {item.full_bytes for item in record.select("reduce_scatter")} == {4 * 64}, "gradients in float32"


def test_what_is_offloaded_follows_one_process(mesh):
    _, gradients, _ = one_process()
    model = sharded(mesh, offload_policy=hp.CPUOffloadPolicy())
    model(mine(batch())).backward()
    check(model, gradients)
    for one in model.trainable_params():
        assert one.to_local().device == one.main_grad.to_local().device == "CPU"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_on_one_rank_stops_the_step_on_all(mesh, value):
    model = sharded(mesh)
    loss = model(mine(batch()))
    loss.backward(Tensor(value if RANK == WORLD - 1 else 1.0, mindspore.float32))
    found = [bool(np.isfinite(one.main_grad.full_tensor().asnumpy()).all()) for one in model.trainable_params()]
    assert not any(found)
    assert not hp.gradients_are_finite(model)
    model.zero_grad()
    model(mine(batch())).backward()
    assert hp.gradients_are_finite(model)


def test_weights_drawn_after_sharding_do_not_depend_on_the_ranks(mesh):
    def draw(model):
        mindspore.manual_seed(3)
        with mindspore.graph.api._no_grad():
            for block in model.blocks:
                block.up.normal_(mean=0.0, std=1.0)
                block.bias.fill_(2.0)
        return {name: one.asnumpy() for name, one in model.parameters_and_names() if name.endswith(("up", "bias"))}

    expected = draw(Model())
    with mindspore.DeviceCtx("meta"):
        model = Model()
        for one in model.get_parameters():
            one.data = mint.empty(one.shape)
        hp.fully_shard(model, mesh=mesh)
    assert model.table.to_local().is_meta
    model.to_empty()
    found = draw(model)
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)
    assert gathered_bytes(model) == 0


def test_a_weight_that_two_units_use_belongs_to_the_one_around_them(mesh):
    enable_backward()
    model = Model()
    model.blocks[2].up = model.blocks[0].up
    hp.fully_shard(model.blocks[0], mesh=mesh)
    hp.fully_shard(model.blocks[2], mesh=mesh)
    with pytest.raises(ValueError, match="is used by several modules.*a module that holds them all"):
        model(mine(batch()))
    hp.fully_shard(model, mesh=mesh)
    whole = Model()
    whole.blocks[2].up = whole.blocks[0].up
    whole(batch()).backward()
    model(mine(batch())).backward()
    check(model, {name: one._grad.asnumpy() for name, one in whole.parameters_and_names()})


def test_an_evaluation_leaves_nothing_gathered(mesh):
    model = sharded(mesh, reshard_after_forward=False)
    with mindspore.graph.api._no_grad():
        model(mine(batch()))
    assert gathered_bytes(model) == 0
