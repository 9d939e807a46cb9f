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
"""`fully_shard` around a Cell that `hp.apply` has cut: tensor parallelism outside, the shard axis inside.

The judge is the same model on one rank with the whole batch.
"""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint

import hyper_parallel as hp
from hyper_parallel.core.dtensor.placement_types import StridedShard
from hyper_parallel.distributed.estimate_sharding import estimate_sharding
from hyper_parallel.platform.cpu_kernels.gradients import fix_gradient
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward
from tests.models.decoder import Decoder, DecoderConfig, randomize

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
TP = WORLD // 2
SHARD = 2
UNITS = ["layers.*"]


def decoder(**sizes):
    """A decoder with numpy weights, equal on all ranks."""
    return randomize(Decoder(DecoderConfig(**{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
                                              "intermediate_size": 24, **sizes})))


def batch(vocabulary):
    """Ids for both halves of the data."""
    return Tensor(np.random.default_rng(7).integers(0, vocabulary, (4, 8)).astype(np.int32))


def loss_of(model, ids, weights):
    """A number to which every logit counts, a mean over the batch."""
    return mint.mean(model(ids) * weights)


def reference(sizes, vocabulary):
    """(loss, gradients) of one rank."""
    enable_backward()
    model = decoder(**sizes)
    weights = Tensor(np.random.default_rng(8).normal(size=(1, 8, vocabulary)).astype(np.float32))
    for one in model.trainable_params():
        fix_gradient(one)
    loss = loss_of(model, batch(vocabulary), weights)
    loss.backward()
    return loss.asnumpy().item(), {path: one._grad.asnumpy() for path, one in model.parameters_and_names()}, weights


def sharded(sizes, **options):
    """(model, plan): tensor-parallel over half of the ranks, each block and the rest a unit."""
    grid = hp.init_device_mesh("npu", (SHARD, TP), mesh_dim_names=("fsdp", "tp"))
    model = decoder(**sizes)
    plan = hp.plan(model, tp=TP, **options)
    hp.apply(model, plan, grid["tp"])
    for layer in model.layers:
        hp.fully_shard(layer, mesh=grid["fsdp"])
    return hp.fully_shard(model, mesh=grid["fsdp"]), plan


@pytest.mark.parametrize("sizes, options", [
    ({}, {"sequence_parallel": True}),
    ({"num_key_value_heads": 1, "attention_bias": True}, {}),
    ({"vocab_size": 33, "tie_word_embeddings": True}, {}),
])
def test_loss_and_every_gradient_equal_one_rank(sizes, options):
    vocabulary = sizes.get("vocab_size", 32)
    loss, gradients, weights = reference(sizes, vocabulary)
    model, _ = sharded(sizes, **options)
    coordinate = RANK // TP
    rows = batch(vocabulary)[2 * coordinate:2 * coordinate + 2]
    found = loss_of(model, rows, weights)
    found.backward()
    group = model._hp_unit.shard_group
    mean = hp.core.collectives.functional.all_reduce(found.reshape((1,)), group, "avg").asnumpy().item()
    assert mean == pytest.approx(loss, rel=1e-4)
    floor = 1e-6 * max(np.abs(gradient).max() for gradient in gradients.values())
    for path, parameter in model.parameters_and_names():
        gradient = parameter.main_grad.full_tensor().asnumpy()
        assert gradient.shape == gradients[path].shape, path
        error = np.abs(gradient - gradients[path]).max() / max(np.abs(gradients[path]).max(), floor)
        assert error <= 1e-4, (path, error)
        whole = dict(decoder(**sizes).parameters_and_names())[path].asnumpy()
        assert np.array_equal(parameter.full_tensor().asnumpy(), whole), path


@pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")
def test_the_tensor_parallel_axis_cuts_outside():
    model, _ = sharded({})
    column = model.layers[0].mlp.up_proj.weight
    assert column.placements == (StridedShard(0, 2), hp.Shard(0)) and column.local_shape == (6, 16)
    tp, fsdp = RANK % 2, RANK // 2
    whole = decoder().layers[0].mlp.up_proj.weight.asnumpy()
    assert np.array_equal(column.to_local().asnumpy(), whole.reshape(2, 2, 6, 16)[tp, fsdp])
    row = model.layers[0].mlp.down_proj.weight
    assert row.placements == (hp.Shard(0), hp.Shard(1)) and row.local_shape == (8, 12)


def test_counted_bytes_and_collectives_are_the_estimated_ones():
    sizes = {"vocab_size": 33}
    _, _, weights = reference(sizes, 33)
    model, plan = sharded(sizes)
    expected = estimate_sharding(plan, SHARD, UNITS)
    held = sum(one.to_local().nbytes for one in model.get_parameters())
    peak, units = [0], model._units()

    def note(cell, args):
        peak[0] = max(peak[0], sum(one.gathered_bytes for unit in units for one in unit.cut_parameters))

    for _, cell in model.cells_and_names():
        cell.register_forward_pre_hook(note)
    with hp.count_collectives() as record:
        loss_of(model, batch(33)[:2], weights).backward()
        gradients = sum(one.main_grad.to_local().nbytes for one in model.trainable_params())
    gathers, scatters = record.select("all_gather", purpose="parameter"), record.select("reduce_scatter", axis="fsdp")
    assert (len(gathers), len(scatters)) == (expected.all_gathers, expected.reduce_scatters) == (2 * 2 + 1, 2 + 1)
    assert sum(item.wire_bytes for item in gathers) == pytest.approx(expected.gather_bytes, rel=0.01)
    assert sum(item.wire_bytes for item in scatters) == pytest.approx(expected.reduce_bytes, rel=0.01)
    # the estimate is the first rank's: the last one's part of 33 rows is shorter
    if model._hp_unit.shard_group.index == 0:
        assert (held, gradients) == (expected.parameters, expected.gradients)
    assert (held, gradients) <= (expected.parameters, expected.gradients)
    rest, block = (sum(one.leaf.nbytes for one in unit.cut_parameters) for unit in units[:2])
    assert peak[0] == rest + block <= expected.gathered_peak, "the outermost unit and one block"
    model.zero_grad()
    assert sum(one.gathered_bytes for unit in units for one in unit.cut_parameters) == 0
