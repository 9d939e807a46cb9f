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
"""Blocks that add attention and MLP to their input: the numbers of one rank, and one reduction each way in a layer."""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.distributed import local_parameter
from hyper_parallel.distributed.verify import run
from tests.models.decoder import Block
from tests.models.parallel_block import OneNormBlock, TwoNormsBlock, parallel_decoder

WORLD = mindspore.communication.get_group_size()
BLOCKS = pytest.mark.parametrize("block", [OneNormBlock, TwoNormsBlock])


def ids(batch=2, length=8):
    """Token ids, equal on all ranks."""
    return Tensor(np.random.default_rng(7).integers(0, 32, (batch, length)).astype(np.int32))


@BLOCKS
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_outputs_and_every_gradient_are_those_of_one_rank(block, sequence_parallel):
    def build():
        return parallel_decoder(block, attention_bias=True, tie_word_embeddings=True)

    report = hp.verify(build, ids(), tp=WORLD, sequence_parallel=sequence_parallel)
    assert {one.name for one in report.differences} == {path for path, _ in build().parameters_and_names()} | {"output"}
    assert report.ok, report.table()
    assert report.worst.relative < 1e-4


def counted(cell):
    """Collectives of activations, by phase."""
    with count_collectives() as record:
        run(cell, (ids(),))
    return {phase: dict(record.counts(purpose="activation", phase=phase)) for phase in ("forward", "backward")}


@BLOCKS
def test_a_layer_reduces_once_in_each_direction(block):
    cell = parallel_decoder(block)
    hp.auto_tp(cell, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    # two layers, the table's sum, the logits; the head's entry
    assert counted(cell) == {"forward": {"all_reduce": 2 + 1, "all_gather": 1}, "backward": {"all_reduce": 2 + 1}}


def test_under_sequence_parallel_a_layer_gathers_and_scatters_once_in_each_direction():
    cell = parallel_decoder()
    plan = hp.plan(cell, tp=WORLD, sequence_parallel=True)
    hp.apply(cell, plan, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    # the first block gets the embedding's whole result: nothing to gather, and its gradient is reduced whole
    assert counted(cell) == {
        "forward": {"all_reduce": 1, "reduce_scatter": 2, "all_gather": 1 + 2},
        "backward": {"all_gather": 2, "reduce_scatter": 1, "all_reduce": 1 + 1}}
    planned = {phase: {} for phase in ("forward", "backward")}
    for spec in plan.boundaries.values():
        for phase, kinds in plan.expected.get(spec.semantic_role, {}).items():
            for kind, count in kinds.items():
                planned[phase][kind] = planned[phase].get(kind, 0) + count
    assert counted(cell) == planned


def test_restore_brings_the_whole_model_back():
    cell, untouched = parallel_decoder(attention_bias=True), parallel_decoder(attention_bias=True)
    hp.auto_tp(cell, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    hp.restore(cell)
    (outputs, gradients), (expected, whole) = run(cell, (ids(),)), run(untouched, (ids(),))
    assert np.array_equal(outputs["output"], expected["output"])
    assert all(np.array_equal(gradients[path], whole[path]) for path in whole)


def test_a_block_that_an_override_keeps_half_whole_shares_nothing():
    report = hp.verify(parallel_decoder, ids(), tp=WORLD, overrides=[{"match": "layers.0.mlp.*", "replicate": True}])
    assert report.ok, report.table()


@pytest.mark.skipif(WORLD != 2, reason="a compilation on every rank: judged on two ranks")
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("block", [Block, TwoNormsBlock])
def test_compiled_models_give_the_same_numbers(block, sequence_parallel):
    """The compiler ignores hooks of Cells in a list, which blocks are."""
    whole, cell = parallel_decoder(block, attention_bias=True), parallel_decoder(block, attention_bias=True)
    plan = hp.plan(cell, tp=WORLD, sequence_parallel=sequence_parallel)
    hp.apply(cell, plan, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    parameters = mindspore.ParameterTuple(cell.trainable_params())

    def loss(tokens):
        return ops.reduce_sum(cell(tokens) ** 2)

    found, gradients = mindspore.jit(mindspore.value_and_grad(loss, None, parameters))(ids())
    expected, references = mindspore.value_and_grad(lambda tokens: ops.reduce_sum(whole(tokens) ** 2), None,
                                                    mindspore.ParameterTuple(whole.trainable_params()))(ids())
    assert np.isclose(float(found), float(expected), rtol=1e-5)
    for (path, _), gradient, reference in zip(cell.parameters_and_names(), gradients, references):
        spec = plan.parameters[path]
        total = local_parameter.gather(gradient, spec, get_group(tuple(range(WORLD))))
        assert np.abs(total - reference.asnumpy()).max() < 1e-4 * np.abs(reference.asnumpy()).max(), path
