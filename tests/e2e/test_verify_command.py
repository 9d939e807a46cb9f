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
"""`hyper-parallel verify` with its own job: a plan that is wrong on purpose, and one that is right."""
import dataclasses
import json

import pytest

import hyper_parallel as hp
from hyper_parallel.cli.main import main
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder

BUILD = ["--build", "tests.models.fused_decoder:fused_decoder", "--tp", "2", "--length", "6"]


def test_a_wrong_plan_ends_with_1_and_the_cause(tmp_path, capsys):
    plan = hp.plan(fused_decoder(), tp=2, overrides=[RIGHT_LAYOUT])
    spec = dataclasses.replace(plan.boundaries["attn.out_proj"], local_compute_fn=None)
    plan = dataclasses.replace(plan, boundaries={**plan.boundaries, "attn.out_proj": spec})
    plan.save(tmp_path / "plan.json")
    file = tmp_path / "report.json"
    assert main(["verify", *BUILD, "--plan", str(tmp_path / "plan.json"), "--json", str(file)]) == 1
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [(one["cause"], one["where"]) for one in found["suspects"]] == [("bias twice", "attn.out_proj.bias")]
    assert "suspected: bias twice at attn.out_proj.bias" in capsys.readouterr().out


@pytest.mark.slow
def test_a_right_plan_ends_with_0_and_a_refusal_with_1(tmp_path, capsys):
    (tmp_path / "rules.yaml").write_text(json.dumps({"overrides": [RIGHT_LAYOUT]}), encoding="utf-8")
    assert main(["verify", *BUILD, "--config", str(tmp_path / "rules.yaml"), "--mode", "graph"]) == 0
    assert "the same numbers in 15 tensors" in capsys.readouterr().out
    assert main(["verify", *BUILD]) == 1
    assert "refused: the rows of the fused weight 'attn.qkv.weight'" in capsys.readouterr().err
