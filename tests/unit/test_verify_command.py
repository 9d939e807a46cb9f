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
"""`hyper-parallel verify` without a job: what a wrong command line says, what the processes are told, what is reported."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

import hyper_parallel as hp
from hyper_parallel.cli import job, verify_command, verify_worker
from hyper_parallel.cli.main import main
from hyper_parallel.distributed.verify_report import MISSING_REDUCTION, Difference, Suspect, VerifyReport
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder

CONFIG = str(Path(__file__).resolve().parents[2] / "configs" / "qwen3_tiny_auto_tp.yaml")
BUILD = ["--build", "tests.models.fused_decoder:fused_decoder"]


@pytest.mark.parametrize("words, said", [
    ([], "give --config with a MindFormers configuration, or --build"),
    (BUILD, "--build needs --tp N"),
    ([*BUILD, "--tp", "1"], "compares several ranks with one"),
    ([*BUILD, "--tp", "two"], "--tp 'two'"),
    ([*BUILD, "--tp", "2", "--set", "a=1"], "--set changes a MindFormers configuration"),
    (["--build", "no_colon", "--tp", "2"], "write MODULE:FUNCTION"),
    ([*BUILD, "--tp", "2", "--plan", "p.json", "--sequence-parallel"], "sequence_parallel would make another one"),
    (["--config", CONFIG, "--inputs", "a:b"], "--inputs goes with --build"),
    (["--config", CONFIG, "--mode", "graph"], "leave --mode away"),
    (["--config", CONFIG, "--set", "layers=2"], "with a key of the section model"),
    (["--config", CONFIG, "--set", "num_hidden_layers"], "write KEY=VALUE"),
])
def test_a_wrong_command_line_is_exit_code_2(capsys, words, said):
    assert main(["verify", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_configuration_that_is_none_is_refused(capsys, tmp_path):
    assert main(["verify", "--config", str(tmp_path / "none.yaml")]) == 1
    (tmp_path / "rules.yaml").write_text("rules: []\n", encoding="utf-8")
    assert main(["verify", "--config", str(tmp_path / "rules.yaml")]) == 1
    said = capsys.readouterr().err
    assert "no configuration at" in said and "has no section 'model'" in said


def fake_job(monkeypatch, *, report=None, refused=None, in_time=True, log=""):
    """Instead of msrun: what the processes would leave. Returns the list of jobs that were asked for."""
    asked = []

    def run_job(script, arguments, ranks, folder, timeout):
        asked.append((script.name, ranks, timeout, json.loads(Path(arguments[0]).read_text(encoding="utf-8"))))
        if report is not None:
            (folder / "report.json").write_text(json.dumps(report.to_dict()), encoding="utf-8")
            (folder / "report.txt").write_text(report.table(), encoding="utf-8")
        if refused:
            (folder / "refused_1.txt").write_text(refused, encoding="utf-8")
        (folder / "worker_0.log").write_text(log, encoding="utf-8")
        return in_time

    monkeypatch.setattr(verify_command, "run_job", run_job)
    return asked


def report_of(relative):
    """One output and one gradient that differ by so much."""
    plan = hp.plan(fused_decoder(), tp=2, overrides=[RIGHT_LAYOUT])
    wrong = (Suspect(MISSING_REDUCTION, "attn.q_norm.weight", "say so"),) if relative > 1e-4 else ()
    return VerifyReport(2, 1e-4, (Difference("attn.q_norm.weight", relative, relative, 1, MISSING_REDUCTION if wrong else ""),
                                  Difference("output", 0.0, 0.0, 0)), plan, suspects=wrong, first_difference="")


def test_the_same_numbers_are_exit_code_0_with_table_and_json(monkeypatch, capsys, tmp_path):
    asked = fake_job(monkeypatch, report=report_of(1e-7))
    file = tmp_path / "out" / "report.json"
    assert main(["verify", "--config", CONFIG, "--set", "num_hidden_layers=1", "--sequence-parallel", "--no-kv-replication",
                 "--unknown", "replicate", "--json", str(file)]) == 0
    (script, ranks, timeout, told), = asked
    assert (script, ranks, timeout) == ("verify_worker.py", 2, 900) and told["config"]["model"]["num_hidden_layers"] == 1
    assert told["config"]["parallel_config"] == {
        "auto_tp": True, "model_parallel": 2, "use_seq_parallel": True,
        "auto_tp_config": {"kv_replication": False, "unknown": "replicate"}}
    out = capsys.readouterr().out
    assert "the same numbers" in out and "attn.q_norm.weight" in out
    assert json.loads(file.read_text(encoding="utf-8"))["ok"] is True


def test_different_numbers_are_exit_code_1_with_the_cause(monkeypatch, capsys):
    asked = fake_job(monkeypatch, report=report_of(0.5))
    assert main(["verify", *BUILD, "--tp", "2", "--mode", "graph", "--loss-parallel", "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["suspects"] == [{"cause": MISSING_REDUCTION, "where": "attn.q_norm.weight", "why": "say so"}]
    assert found["differences"][0] == {"name": "attn.q_norm.weight", "relative": 0.5, "absolute": 0.5, "rank": 1,
                                       "cause": MISSING_REDUCTION, "role": "NORM"}
    told = asked[0][3]
    assert told["mode"] == "graph" and told["options"] == {"loss_parallel": True} and told["build"] == BUILD[1]
    assert main(["verify", *BUILD, "--tp", "2"]) == 1
    assert "suspected: missing reduction at attn.q_norm.weight: say so" in capsys.readouterr().out


def test_a_loss_parallel_configuration_is_told_to_the_switch(monkeypatch):
    asked = fake_job(monkeypatch, report=report_of(0.0))
    assert main(["verify", "--config", CONFIG, "--loss-parallel"]) == 0
    assert asked[0][3]["config"]["parallel_config"]["auto_tp_config"] == {"loss_parallel": True}


def test_a_refusal_a_crash_and_a_stalled_job_are_exit_code_1(monkeypatch, capsys):
    fake_job(monkeypatch, refused="'x' cannot be cut")
    assert main(["verify", *BUILD, "--tp", "2"]) == 1
    assert capsys.readouterr().err.strip() == "refused: 'x' cannot be cut"
    fake_job(monkeypatch, log="[ERROR] noise\nTraceback\nMemoryError\n")
    assert main(["verify", *BUILD, "--tp", "2"]) == 1
    assert capsys.readouterr().err == "Traceback\nMemoryError\nfailed: the job ended without a report\n"
    fake_job(monkeypatch, in_time=False, log="waiting")
    assert main(["verify", *BUILD, "--tp", "2", "--timeout", "5"]) == 1
    assert "no report after 5 s, and was stopped" in capsys.readouterr().err


def test_a_job_that_takes_too_long_is_killed_with_all_its_processes(monkeypatch, tmp_path):
    sleeper = tmp_path / "bin" / "msrun"
    sleeper.parent.mkdir()
    sleeper.write_text("#!/bin/sh\necho $$ > \"$(dirname \"$0\")/pid\"\necho \"$@\"\nsleep 60\n", encoding="utf-8")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper.parent / "python"))
    assert job.run_job(Path("worker.py"), ["job.json"], 4, tmp_path, timeout=1) is False
    process = int((sleeper.parent / "pid").read_text(encoding="utf-8"))
    assert not Path(f"/proc/{process}").exists()
    assert "--worker_num=4 --local_worker_num=4" in (tmp_path / "msrun.log").read_text(encoding="utf-8")
    sleeper.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    assert job.run_job(Path("worker.py"), ["job.json"], 4, tmp_path, timeout=60) is True


def test_the_worker_imports_what_the_command_line_names():
    assert verify_worker.import_function("tests.models.fused_decoder:fused_decoder") is fused_decoder
    for name in ("no.such.module:f", "tests.models.fused_decoder:nothing"):
        with pytest.raises(ValueError, match=f"cannot import {name}"):
            verify_worker.import_function(name)


def test_the_worker_draws_token_ids_below_the_vocabulary():
    told = {"seed": 1, "batch": 3, "length": 5}
    ids = verify_worker.token_ids(fused_decoder(vocabulary=7), told).asnumpy()
    assert ids.shape == (3, 5) and ids.min() >= 0 and ids.max() < 7 and ids.dtype == np.int32
    with pytest.raises(ValueError, match="ReLU has no config with a vocab_size.*--inputs"):
        verify_worker.token_ids(nn.ReLU(), told)
