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
"""MindFormers' unmodified Qwen3 by our plan, as its trainer runs it: every gradient, the gradient norm, the counts.

The judge is the same model on one rank, built and drawn in the same process.
"""
import mindspore
import numpy as np
import pytest

from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.integrations.mindformers.parallelize import parallelize
from hyper_parallel.integrations.mindformers.switch import AutoTpSwitch
from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat
from tests.models import mindformers_qwen3 as qwen3

pytest.importorskip("mindformers")
WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
only_on_4 = pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")
_CACHE = {}


def one_rank(size=2, **changes):
    """(weights, loss, gradients) of the whole model on this rank alone."""
    key = (size, tuple(sorted(changes.items())))
    if key not in _CACHE:
        enable_mindspore_backward_compat()
        with qwen3.float32_casts():
            model = qwen3.materialise(qwen3.build(**changes))
            (loss,) = model(**qwen3.batch(size=size))
            loss.backward(mindspore.Tensor([1.0]))
        named = list(model.parameters_and_names())
        _CACHE[key] = ({path: one.asnumpy() for path, one in named}, loss.asnumpy().item(),
                       {path: one.grad.contiguous().asnumpy() for path, one in named})
    return _CACHE[key]


def sharded(tp, dp, model=None, **options):
    """The model parallelised and drawn, as the trainer leaves it."""
    sequence_parallel, shard = options.pop("sequence_parallel", False), options.pop("shard", 1)
    model = qwen3.build() if model is None else model
    parallel, schedule, first, last = parallelize(model, AutoTpSwitch(tp, dp, sequence_parallel, options, shard=shard))
    assert parallel is model and schedule is None and first and last
    qwen3.materialise(parallel)
    return parallel


def forward_backward(model, world, inputs):
    """One step's forward and backward with the sense that the trainer starts with."""
    with qwen3.float32_casts():
        (loss,) = model(**inputs)
        loss.backward(mindspore.Tensor([1.0 / world]))
    return loss.asnumpy().item()


def check_gradients(model, reference, tolerance=1e-4):
    """Every gradient, gathered, against the reference; returns how many were compared."""
    floor = 1e-6 * max(np.abs(gradient).max() for gradient in reference.values())
    compared = 0
    for path, parameter in model.parameters_and_names():
        gradient = parameter.main_grad
        assert isinstance(gradient, DTensor) and gradient.shape == reference[path].shape, path
        difference = np.abs(gradient.full_tensor().asnumpy() - reference[path]).max()
        assert difference <= tolerance * max(np.abs(reference[path]).max(), floor), (path, difference)
        compared += 1
    return compared


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_loss_and_every_gradient_equal_one_rank(sequence_parallel):
    _, loss, gradients = one_rank()
    model = sharded(WORLD, 1, sequence_parallel=sequence_parallel)
    assert forward_backward(model, WORLD, qwen3.batch()) == pytest.approx(loss, rel=1e-5)
    assert check_gradients(model, gradients) == len(gradients) == 19


def test_G07_drawn_weights_do_not_depend_on_the_tensor_parallel_size():
    weights, _, _ = one_rank()
    model = sharded(WORLD, 1)
    for path, parameter in model.parameters_and_names():
        assert np.array_equal(parameter.full_tensor().asnumpy(), weights[path]), path


def test_gradient_norm_of_mindformers_own_function_counts_each_element_once():
    from mindformers.pynative.trainer.utils import _calculate_global_grad_norm
    _, _, gradients = one_rank()
    model = sharded(WORLD, 1)
    forward_backward(model, WORLD, qwen3.batch())
    norm, found = _calculate_global_grad_norm(model.trainable_params(), enable_parallel=True, max_norm=1e9)
    expected = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values()))
    assert norm.asnumpy().item() == pytest.approx(expected, rel=1e-5)
    assert len(found) == len(gradients)


def test_collectives_per_layer_are_the_planned_ones():
    model = sharded(WORLD, 1)
    with count_collectives() as record:
        forward_backward(model, WORLD, qwen3.batch())
    # two layers of attention and MLP, the table's sum, the logits; backward: the regions' entries and the head's
    assert record.counts(purpose="activation", phase="forward") == {"all_reduce": 2 * 2 + 1, "all_gather": 1}
    assert record.counts(purpose="activation", phase="backward") == {"all_reduce": 2 * 2 + 1}
    assert record.counts(purpose="parameter_gradient") == {"all_reduce": 2 * 2}


def test_micro_batches_accumulate_and_zero_grad_forgets():
    _, _, gradients = one_rank()
    model = sharded(WORLD, 1)
    for _ in range(2):
        forward_backward(model, 2 * WORLD, qwen3.batch())
    check_gradients(model, gradients)
    model.zero_grad()
    assert all(parameter.main_grad is None for parameter in model.trainable_params())
    forward_backward(model, WORLD, qwen3.batch())
    check_gradients(model, gradients)


def test_F01_uneven_vocabulary():
    _, loss, gradients = one_rank(vocab_size=66 + 1)
    model = sharded(WORLD, 1, qwen3.build(vocab_size=66 + 1))
    assert forward_backward(model, WORLD, qwen3.batch()) == pytest.approx(loss, rel=1e-5)
    check_gradients(model, gradients)


def test_E01_tied_embedding_and_head_are_one_parameter_with_one_gradient():
    _, loss, gradients = one_rank(tie_word_embeddings=True)
    model = sharded(WORLD, 1, qwen3.build(tie_word_embeddings=True))
    assert forward_backward(model, WORLD, qwen3.batch()) == pytest.approx(loss, rel=1e-5)
    assert check_gradients(model, gradients) == len(gradients) == 18


def test_a_head_that_an_override_keeps_whole_gets_the_same_gradients():
    _, loss, gradients = one_rank()
    model = sharded(WORLD, 1, overrides=[{"match": "model.output_layer", "replicate": True}])
    assert forward_backward(model, WORLD, qwen3.batch()) == pytest.approx(loss, rel=1e-5)
    check_gradients(model, gradients)


def test_kv_copies_are_refused_before_anything_is_cut():
    model = qwen3.build(num_key_value_heads=1)
    with pytest.raises(ValueError, match="MindFormers' gradient norm would count the copies more than once"):
        parallelize(model, AutoTpSwitch(WORLD, 1))


@only_on_4
def test_two_replicas_of_two_ranks_average_over_the_data():
    _, _, gradients = one_rank(size=4)
    model = sharded(2, 2)
    whole = qwen3.batch(size=4)
    replica = RANK // 2
    mine = {name: tensor[2 * replica:2 * replica + 2] for name, tensor in whole.items()}
    forward_backward(model, 4, mine)
    check_gradients(model, gradients)
    with count_collectives() as record:
        for parameter in model.trainable_params():
            parameter.main_grad.to_local()
    assert len(record) == 0, "a gradient is reduced when it is first read, and never again"


def fsdp_step(tp, shard, replicas=1, micro_batches=1, **options):
    """A model after the backward of every rank's rows, its loss not averaged, and its reference."""
    _, loss, gradients = one_rank(size=4)
    model = sharded(tp, shard * replicas, shard=shard, **options)
    whole, ranks = qwen3.batch(size=4), WORLD // tp
    rows = 4 // ranks // micro_batches
    for index in range(micro_batches):
        start = RANK // tp * (4 // ranks) + index * rows
        mine = {name: tensor[start:start + rows] for name, tensor in whole.items()}
        forward_backward(model, WORLD * micro_batches, mine)
    check_gradients(model, gradients)
    return model


@pytest.mark.skipif(WORLD != 2, reason="runs on 2 ranks")
def test_fsdp_with_the_plan_of_one_tensor_parallel_rank():
    fsdp_step(1, 2, micro_batches=2)


@only_on_4
@pytest.mark.parametrize("shard, replicas, micro_batches, sequence_parallel", [
    (2, 1, 1, False), (2, 1, 2, True), (1, 2, 2, False)])
def test_fsdp_inside_tensor_parallel(shard, replicas, micro_batches, sequence_parallel):
    model = fsdp_step(2, shard, replicas, micro_batches, sequence_parallel=sequence_parallel)
    head = model.model.output_layer._params["weight"]
    assert head.shape == (64, 32) and head.local_shape == (32 // shard, 32)


@only_on_4
def test_fsdp_inside_an_uneven_vocabulary_and_a_tied_table():
    for changes in ({"vocab_size": 67}, {"tie_word_embeddings": True}):
        _, loss, gradients = one_rank(**changes)
        model = sharded(2, 2, qwen3.build(**changes), shard=2)
        assert forward_backward(model, WORLD, qwen3.batch()) == pytest.approx(loss, rel=1e-5)
        check_gradients(model, gradients)
        weights, _, _ = one_rank(**changes)
        for path, parameter in model.parameters_and_names():
            assert np.array_equal(parameter.full_tensor().asnumpy(), weights[path]), path


@only_on_4
def test_gradient_norm_of_mindformers_own_function_under_fsdp_and_tensor_parallel():
    from mindformers.pynative.trainer.utils import _calculate_global_grad_norm
    _, _, gradients = one_rank()
    model = sharded(2, 2, shard=2)
    forward_backward(model, WORLD, qwen3.batch())
    norm, found = _calculate_global_grad_norm(model.trainable_params(), enable_parallel=True, max_norm=1e9)
    expected = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values()))
    assert norm.asnumpy().item() == pytest.approx(expected, rel=1e-5) and len(found) == len(gradients)
