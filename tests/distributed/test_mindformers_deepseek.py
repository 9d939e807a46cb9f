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
"""MindFormers' unmodified DeepSeek-V3 under `hp.apply`: logits, loss, every gradient, the norm, the counts.

The judge is the same model on one rank, built and drawn in the same process.
"""
from collections import Counter

import mindspore
import numpy as np
import pytest

import hyper_parallel as hp
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat
from tests.models import mindformers_deepseek as deepseek
from tests.models import mindformers_qwen3 as qwen3
from tests.models import parity

pytest.importorskip("mindformers")
WORLD = mindspore.communication.get_group_size()
EXPERTS_WHOLE = [{"match": "model.decoder.layers.1.mlp.*", "replicate": True}]
AUXILIARY = {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.5}
MAKES = {"dense": {}, "no_q_lora": {"q_lora_rank": None}, "moe": {"first_k_dense_replace": 1},
         "moe_no_q_lora": {"q_lora_rank": None, "first_k_dense_replace": 1},
         "moe_auxiliary": {"first_k_dense_replace": 1, **AUXILIARY}}
_CACHE = {}


def slow_on_four(*case):
    """A case of the default tier on two ranks."""
    return pytest.param(*case, marks=pytest.mark.slow) if WORLD > 2 else case


def slow(*case):
    """A case that shows what its neighbours show."""
    return pytest.param(*case, marks=pytest.mark.slow)


def forward_backward(model):
    """The loss, after its backward."""
    (loss,) = model(**qwen3.batch())
    loss.backward(mindspore.Tensor([1.0]))
    return loss.asnumpy().item()


def logits_of(model):
    """What the model gives for generation, `[tokens, vocabulary]`."""
    model.model.return_logits = True
    logits = model(**qwen3.batch())
    model.model.return_logits = False
    return logits.asnumpy()


def gradients_of(model):
    """This rank's gradients, by path."""
    return {path: one.grad.contiguous().asnumpy() for path, one in model.parameters_and_names() if one.requires_grad}


def one_rank(make):
    """(logits, loss, gradients) of the whole model on this rank alone."""
    if make not in _CACHE:
        enable_mindspore_backward_compat()
        model = qwen3.materialise(deepseek.build(**MAKES[make]))
        with qwen3.float32_casts():
            loss, logits = forward_backward(model), logits_of(model)
        _CACHE[make] = logits, loss, gradients_of(model)
    return _CACHE[make]


def planned(plan, phase):
    """Collectives of one forward or backward, as the plan states them."""
    counts = Counter()
    for spec in plan.boundaries.values():
        counts.update(plan.expected.get(spec.semantic_role, {}).get(phase, {}))
    return dict(counts)


def check(make, sequence_parallel=False, **words):
    """The model under its plan against one rank; returns the plan."""
    logits, loss, gradients = one_rank(make)
    model = qwen3.materialise(deepseek.build(**MAKES[make]))
    plan = hp.plan(model, tp=WORLD, sequence_parallel=sequence_parallel, sequence_dim=0, **words)
    hp.apply(model, plan, init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    with qwen3.float32_casts():
        with hp.count_collectives() as record:
            assert forward_backward(model) == pytest.approx(loss, rel=1e-5)
        found = logits_of(model)
    assert np.abs(found - logits).max() <= 1e-4 * np.abs(logits).max()
    for phase in ("forward", "backward"):
        assert dict(record.counts(purpose="activation", phase=phase)) == planned(plan, phase)
    parts = parity.of_all_ranks(gradients_of(model), get_group(tuple(range(WORLD))))
    worst = parity.worst_over_ranks(parts, gradients, plan, parity.GRADIENT_TOLERANCE)
    assert worst <= parity.GRADIENT_TOLERANCE
    norm = np.sqrt(sum((one.astype(np.float64) ** 2).sum() for one in gradients.values()))
    assert hp.grad_norm(model).asnumpy().item() == pytest.approx(norm, rel=1e-5)
    return plan


@pytest.mark.parametrize("make, sequence_parallel", [
    slow_on_four("dense", False), slow("dense", True), slow("no_q_lora", False), slow("no_q_lora", True),
    slow("moe", False), slow("moe", True), slow("moe_no_q_lora", False), slow_on_four("moe_no_q_lora", True)])
def test_logits_loss_every_gradient_and_its_norm_equal_one_rank(make, sequence_parallel):
    plan = check(make, sequence_parallel)
    attention = "model.decoder.layers.1.self_attention"
    assert plan.parameters[f"{attention}.linear_kvb.weight"].local_shape == (64 // WORLD, 16)
    assert plan.parameters[f"{attention}.linear_qkv.weight"].grad_sum_axes == ("tp",)
    if make.startswith("moe"):
        experts = plan.parameters["model.decoder.layers.1.mlp.experts.weight1"]
        assert experts.local_shape == (4, 32, 32 // WORLD)


@pytest.mark.slow
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_experts_that_an_override_keeps_whole_are_replicated(sequence_parallel):
    plan = check("moe", sequence_parallel, overrides=EXPERTS_WHOLE)
    experts = [spec for path, spec in plan.parameters.items() if ".layers.1.mlp." in path]
    assert experts and all(spec.local_shape == spec.shape and not spec.grad_sum_axes for spec in experts)


@pytest.mark.skipif(WORLD != 2, reason="runs on 2 ranks")
def test_an_auxiliary_loss_counts_once():
    from mindformers.pynative.transformers.moe.moe_utils import _MoEAuxLossAutoScaler
    _MoEAuxLossAutoScaler.set_loss_scale(mindspore.Tensor(1.0))
    check("moe_auxiliary")
