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
"""`verify` of a MindFormers configuration: its own Qwen3, as its trainer runs it, right and wrong on purpose."""
import dataclasses

import mindspore
import pytest

from hyper_parallel.distributed.verify_report import MISSING_REDUCTION
from tests.models import mindformers_qwen3 as qwen3

pytest.importorskip("mindformers")
WORLD = mindspore.communication.get_group_size()


def test_a_configuration_passes_and_a_wrong_plan_is_named(monkeypatch):
    from hyper_parallel.integrations.mindformers import parallelize
    from hyper_parallel.integrations.mindformers.verify import verify_config
    config = {**qwen3.config(num_hidden_layers=1, hidden_dropout=0.1, compute_dtype="bfloat16"),
              "parallel_config": {"auto_tp": True, "model_parallel": 8, "data_parallel": 4}}
    report = verify_config(config, WORLD, length=8)
    assert report.ok and report.worst.relative < 1e-4, str(report)
    assert "loss" in {one.name for one in report.differences} and len(report.differences) == 1 + 11
    assert config["model"]["compute_dtype"] == "bfloat16", "the caller's own"

    right = parallelize.make_plan

    def wrong(*args, **kwargs):
        plan = right(*args, **kwargs)
        path = next(path for path in plan.parameters if "q_layernorm" in path or "q_norm" in path)
        return dataclasses.replace(plan, parameters={
            **plan.parameters, path: plan.parameters[path]._replace(grad_sum_axes=())})

    monkeypatch.setattr(parallelize, "make_plan", wrong)
    report = verify_config(config, WORLD, length=8)
    (suspect,) = report.suspects
    assert not report.ok and suspect.cause == MISSING_REDUCTION and "q_" in suspect.where


def test_what_is_no_configuration_or_asks_for_the_parallel_loss_is_refused():
    from hyper_parallel.integrations.mindformers.verify import verify_config
    with pytest.raises(ValueError, match="no section 'model'"):
        verify_config({"training": {}}, WORLD)
    words = {"parallel_config": {"auto_tp_config": {"loss_parallel": True}}}
    with pytest.raises(ValueError, match="loss_parallel: MindFormers' models compute their loss themselves"):
        verify_config({**qwen3.config(), **words}, WORLD)
