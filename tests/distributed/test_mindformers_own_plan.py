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
"""MindFormers' own parallelisation, unmodified, on this package's tensors: its tensor parallelism, FSDP and replicas.

The judge is the same model on one rank with the whole batch, trained in the same process.
"""
import mindspore
import numpy as np
import pytest

import hyper_parallel as hp
from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat
from tests.models import mindformers_deepseek as deepseek
from tests.models import mindformers_qwen3 as qwen3

pytest.importorskip("mindformers")
WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
MODELS = {"deepseek": deepseek, "qwen3": qwen3}
STEPS, SIZE = 5, 4
_CACHE = {}


def train(model, data_ranks, data_rank, enable_parallel, sense, steps=STEPS):
    """(losses, gradient norms, first gradients) of steps with MindFormers' norm, clipping and AdamW."""
    from mindformers.pynative.optimizer.adamw import AdamW
    from mindformers.pynative.trainer.utils import _calculate_global_grad_norm
    optimizer = AdamW(model.trainable_params(), learning_rate=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, gradients = [], [], {}
    rows = SIZE // data_ranks
    for number in range(steps):
        whole = qwen3.batch(seed=number, size=SIZE)
        inputs = {name: one[data_rank * rows:(data_rank + 1) * rows] for name, one in whole.items()}
        with qwen3.float32_casts():
            (loss,) = model(**inputs)
            loss.backward(mindspore.Tensor([sense]))
        if number == 0:
            gradients = {path: read_gradient(one) for path, one in model.parameters_and_names()}
        norm, found = _calculate_global_grad_norm(optimizer.parameters, enable_parallel=enable_parallel, max_norm=1.0)
        with mindspore.graph.api._no_grad():
            optimizer(found)
        norms.append(norm.asnumpy().item())
        loss = loss.to_local() if isinstance(loss, DTensor) else loss
        losses.append(loss.asnumpy().item())
        if hasattr(model, "zero_grad"):
            model.zero_grad()
        else:
            for one in model.trainable_params():
                one.grad = None
    return losses, norms, gradients


def read_gradient(parameter):
    """The whole gradient as numpy."""
    if isinstance(parameter, DTensor):
        return parameter.main_grad.full_tensor().asnumpy().copy()
    return parameter.grad.contiguous().asnumpy().copy()


def one_process(name, **changes):
    """What `train` gives on one rank with the whole batch, and the weights drawn."""
    key = (name, tuple(sorted(changes.items())))
    if key not in _CACHE:
        from hyper_parallel.integrations.mindformers.cpu_gradients import make_gradients_contiguous
        enable_mindspore_backward_compat()
        model = qwen3.materialise(MODELS[name].build(**changes))
        weights = {path: one.asnumpy().copy() for path, one in model.parameters_and_names()}
        make_gradients_contiguous([model])
        _CACHE[key] = (*train(model, 1, 0, False, 1.0), weights)
    return _CACHE[key]


def parallel(name, tp=1, shard=1, changes=None, **parallelism):
    """The model as MindFormers' trainer leaves it, and its dimensions."""
    from mindformers.pynative.config.config import TrainConfig
    from mindformers.pynative.distributed.parallel_dims import ParallelDims
    from mindformers.pynative.distributed.parallelize import parallelize_model
    configuration = MODELS[name].config(**(changes or {}))
    configuration["parallelism"] = {"tensor_parallel": tp, "data_parallel_shard": shard, **parallelism}
    config = TrainConfig.from_dict(configuration)
    config.parallelism.data_parallel = WORLD // tp
    dims = ParallelDims.from_config(config.parallelism, WORLD)
    model = MODELS[name].build(**(changes or {}))
    model, *_ = parallelize_model(
        model=model, parallel_dims=dims, parallelism=config.parallelism, recompute=config.recompute,
        recompute_comm=config.recompute_comm, swap=config.swap, gradient_accumulation_steps=1)
    return qwen3.materialise(model[0] if isinstance(model, list) else model)


def check(name, tp=1, shard=1, changes=None, **parallelism):
    """Weights, five losses and norms, and every gradient of the first step, against one process."""
    losses, norms, gradients, weights = one_process(name, **(changes or {}))
    model = parallel(name, tp, shard, changes, **parallelism)
    for path, parameter in model.parameters_and_names():
        assert isinstance(parameter, DTensor), path
        assert sorted(parameter.device_mesh.rank_list) == list(range(WORLD)), path
        assert np.array_equal(parameter.full_tensor().asnumpy(), weights[path]), path
    data_ranks = WORLD // tp
    found_losses, found_norms, found = train(model, data_ranks, RANK // tp, True, 1.0 / WORLD)
    world = get_group(tuple(range(WORLD)))
    mean = functional.all_reduce(mindspore.Tensor(np.array(found_losses, np.float32)), world, "avg").asnumpy()
    assert np.allclose(mean, losses, rtol=1e-5), (mean, losses)
    assert np.allclose(found_norms, norms, rtol=1e-4), (found_norms, norms)
    floor = 1e-6 * max(np.abs(gradient).max() for gradient in gradients.values())
    assert found.keys() == gradients.keys()
    for path, gradient in gradients.items():
        difference = np.abs(found[path] - gradient).max() / max(np.abs(gradient).max(), floor)
        assert difference <= 1e-4, (path, difference)
    return model


@pytest.mark.parametrize("name", ["deepseek", "qwen3"])
def test_fsdp_over_all_ranks(name):
    model = check(name, shard=WORLD)
    cut = [one for one in model.get_parameters() if one.local_shape != one.shape]
    assert len(cut) == len(list(model.get_parameters()))


@pytest.mark.skipif(WORLD != 2, reason="runs on 2 ranks")
def test_resharding_policies_gather_as_often_as_they_say():
    counts = {}
    for policy in ("always", "never"):
        model = parallel("deepseek", shard=2, reshard_after_forward_policy=policy)
        with qwen3.float32_casts(), hp.count_collectives() as record:
            (loss,) = model(**qwen3.batch())
            loss.backward(mindspore.Tensor([0.5]))
            for one in model.get_parameters():
                one.main_grad.to_local()
        counts[policy] = record.count("all_gather", purpose="parameter"), record.count("reduce_scatter")
    units = sum(one.needs_hooks for one in model._units())
    assert counts == {"always": (2 * units, units), "never": (units + counts["never"][0] - units, units)}
    assert counts["never"][0] < counts["always"][0]


@pytest.mark.parametrize("loss_parallel", [False, True])
@pytest.mark.skipif(WORLD != 2, reason="runs on 2 ranks")
def test_its_tensor_parallel_plan(loss_parallel):
    check("deepseek", tp=2, enable_loss_parallel=loss_parallel)


@pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")
@pytest.mark.parametrize("shard", [1, 2])
def test_its_tensor_parallel_plan_with_data_parallel(shard):
    check("deepseek", tp=2, shard=shard)


@pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")
@pytest.mark.parametrize("name", ["deepseek", "qwen3"])
def test_replicas_of_shards(name):
    check(name, shard=2)
