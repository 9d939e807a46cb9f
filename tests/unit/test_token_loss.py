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
"""The loss on whole logits, in one process and in every mode; the judge is numpy in float64."""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from mindspore.common.api import _pynative_executor

import hyper_parallel as hp
from hyper_parallel.core.dtensor.placement_types import Shard
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel.loss import cut_head
from tests.models.loss_reference import drawn, reference

WEIGHT = np.random.default_rng(1).uniform(0.5, 2.0, 7)


@pytest.fixture(autouse=True)
def not_recording():
    """`value_and_grad` records for itself; after a `backward` in the same process it would not find its graph."""
    _pynative_executor.set_grad_flag(False)


@pytest.mark.parametrize("mode", ["pynative", "jit", "graph"])
@pytest.mark.parametrize("smoothing, z_loss, weight", [(0.0, 0.0, None), (0.2, 1e-3, WEIGHT), (0.1, 0.0, None)])
def test_value_and_gradient_of_whole_logits(mode, smoothing, z_loss, weight):
    logits, labels = drawn(7)
    loss_of = hp.VocabParallelCrossEntropy(label_smoothing=smoothing, z_loss=z_loss, weight=weight)
    mindspore.set_context(mode=mindspore.GRAPH_MODE if mode == "graph" else mindspore.PYNATIVE_MODE)
    try:
        step = mindspore.value_and_grad(loss_of)
        value, gradient = (mindspore.jit(step) if mode == "jit" else step)(Tensor(logits), Tensor(labels))
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    expected, expected_gradient = reference(logits, labels, smoothing, z_loss, weight)
    assert abs(float(value.asnumpy()) - expected) <= 1e-5 * abs(expected)
    assert np.abs(gradient.asnumpy() - expected_gradient).max() <= 1e-5 * np.abs(expected_gradient).max()


def test_heads_of_different_sizes_cannot_share_a_loss():
    heads = {name: ModuleShardingSpec(semantic_role="lm_head", out_dst={"tp": Shard(-1)}, out_size=size)
             for name, size in (("first", 8), ("second", 9))}
    with pytest.raises(ValueError, match=r"first, second have vocabularies of different sizes \(8, 9\)"):
        cut_head(ShardingPlan({"tp": 2}, heads, {}))
