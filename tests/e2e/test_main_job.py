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
"""The main job as users run it: MindFormers' trainer from YAML, real text, one process against several.

The record of the one-process run is the judge. Every run is a real `msrun` job.
"""
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mindformers")
ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen3_tiny_auto_tp.yaml"
BIN = Path(sys.executable).parent
STEPS = 12
# a tenth of the quickstart's model, so that twelve steps take seconds
SMALL = [f"training.steps={STEPS}", "model.hidden_size=64", "model.intermediate_size=128", "model.seq_length=64",
         "model.max_position_embeddings=64", "model.head_dim=8"]


def free_port():
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(folder, world, *settings, script="scripts/train.py", record=None, reference=None, tolerance=None):
    """One training; returns (exit code, {rank: log})."""
    arguments = ["--config", str(CONFIG), "--output", str(folder / "output")]
    for setting in [*SMALL, *settings]:
        arguments += ["--set", setting]
    for name, value in (("--record", record), ("--reference", reference), ("--tolerance", tolerance)):
        if value is not None:
            arguments += [name, str(value)]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "GLOG_v": "3",
                   "OMP_NUM_THREADS": "1"}
    if world == 1:
        done = subprocess.run([sys.executable, str(ROOT / script), *arguments], cwd=folder, env=environment,
                              capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, {0: done.stdout + done.stderr}
    logs = folder / f"log_{world}_{free_port()}"
    done = subprocess.run(
        [str(BIN / "msrun"), f"--worker_num={world}", f"--local_worker_num={world}", f"--master_port={free_port()}",
         f"--log_dir={logs}", "--join=True", str(ROOT / script), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, {rank: (logs / f"worker_{rank}.log").read_text(errors="replace") for rank in range(world)}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Records of one process, as MindFormers ships and with float32 casts."""
    folder = tmp_path_factory.mktemp("one_process")
    records = {}
    for name, script in (("shipped", "scripts/train.py"), ("float32", "tests/e2e/train_float32.py")):
        records[name] = folder / f"{name}.json"
        code, logs = train(folder, 1, "parallel_config.model_parallel=1", script=script, record=records[name])
        assert code == 0, logs[0][-3000:]
    return records


def losses(path):
    """Loss of every step of a record."""
    return json.loads(Path(path).read_text(encoding="utf-8"))["loss"]


def check_follows(folder, logs, record, reference, tolerance):
    """All steps of the record within the tolerance of the reference, computed here and not by the script."""
    found, expected = losses(record), losses(reference)
    assert len(found) == len(expected) == STEPS
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    assert worst <= tolerance
    assert "largest relative difference:" in logs[0]


def test_loss_falls_on_real_text(one_process):
    curve = losses(one_process["shipped"])
    vocabulary = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["model"]["vocab_size"]
    assert curve[0] == pytest.approx(math.log(vocabulary), rel=0.02), "the first guess is uniform"
    assert curve[-1] < curve[0] - 0.1
    assert all(later < earlier for earlier, later in zip(curve, curve[1:]))


def test_two_ranks_follow_one_as_mindformers_ships(one_process, tmp_path):
    record = tmp_path / "tp2.json"
    code, logs = train(tmp_path, 2, record=record, reference=one_process["shipped"])
    assert code == 0, logs[0][-3000:]
    check_follows(tmp_path, logs, record, one_process["shipped"], 5e-3)
    assert "tensor-parallel plan for tp 2" in logs[0] and "tensor-parallel plan" not in logs[1]


@pytest.mark.parametrize("settings", [("parallel_config.model_parallel=2",),
                                      ("parallel_config.model_parallel=2", "parallel_config.use_seq_parallel=true")])
def test_two_ranks_follow_one_to_1e_4_with_float32_casts(one_process, tmp_path, settings):
    record = tmp_path / "tp2.json"
    code, logs = train(tmp_path, 2, *settings, script="tests/e2e/train_float32.py", record=record,
                       reference=one_process["float32"], tolerance=1e-4)
    assert code == 0, logs[0][-3000:]
    check_follows(tmp_path, logs, record, one_process["float32"], 1e-4)


def test_two_replicas_of_two_ranks_follow_one_to_1e_4_with_float32_casts(one_process, tmp_path):
    record = tmp_path / "dp2tp2.json"
    code, logs = train(tmp_path, 4, "parallel_config.data_parallel=2", script="tests/e2e/train_float32.py",
                       record=record, reference=one_process["float32"], tolerance=1e-4)
    assert code == 0, logs[0][-3000:]
    check_follows(tmp_path, logs, record, one_process["float32"], 1e-4)


@pytest.mark.slow
def test_fifty_steps_of_shards_inside_tensor_parallel_follow_one_process_to_1e_4(tmp_path):
    """The quickstart's model whole, on its text, at FSDP 2 x TP 2."""
    whole = ["training.steps=50", "model.hidden_size=64", "model.intermediate_size=192", "model.seq_length=128",
             "model.max_position_embeddings=128"]
    one, record = tmp_path / "one.json", tmp_path / "fsdp2tp2.json"
    script = "tests/e2e/train_float32.py"
    code, logs = train(tmp_path, 1, "parallel_config.model_parallel=1", *whole, script=script, record=one)
    assert code == 0, logs[0][-3000:]
    code, logs = train(tmp_path, 4, "parallel_config.data_parallel=2", "parallelism.data_parallel_shard=2", *whole,
                       script=script, record=record, reference=one, tolerance=1e-4)
    assert code == 0, logs[0][-3000:]
    found, expected = losses(record), losses(one)
    assert len(found) == len(expected) == 50
    assert max(abs(a - b) / abs(b) for a, b in zip(found, expected)) <= 1e-4
    norms = [json.loads(path.read_text(encoding="utf-8"))["grad_norm"] for path in (record, one)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_a_reference_that_differs_fails_the_run(one_process, tmp_path):
    """The comparison itself can fail: the record of other weights is no match."""
    changed = json.loads(one_process["shipped"].read_text(encoding="utf-8"))
    changed["loss"][-1] *= 1.02
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(changed), encoding="utf-8")
    code, logs = train(tmp_path, 1, "parallel_config.model_parallel=1", reference=wrong)
    assert code == 1 and "largest relative difference: 1.9" in logs[0]


def test_heads_that_do_not_divide_are_refused_on_every_rank(tmp_path):
    code, logs = train(tmp_path, 3, "parallel_config.model_parallel=3")
    assert code != 0
    for log in logs.values():
        assert "num_attention_heads 8 is not divisible by a tensor parallel size of 3" in log
        assert "valid sizes: 1, 2, 4, 8" in log and "model_parallel" in log


def test_a_checkpoint_saved_on_two_ranks_is_resumed_on_two(tmp_path):
    saving = ["checkpoint.enable_save=true", f"checkpoint.save_path={tmp_path / 'ckpt'}",
              "checkpoint.save_interleaved_steps=6"]
    full = tmp_path / "full.json"
    code, logs = train(tmp_path, 2, *saving, record=full)
    assert code == 0, logs[0][-3000:]
    written = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "ckpt").rglob("*.safetensors"))
    assert written, "training ended well and no checkpoint was written"
    resumed = tmp_path / "resumed.json"
    first = sorted((tmp_path / "ckpt").glob("iteration_*"))[0]
    code, logs = train(tmp_path, 2, f"checkpoint.load_path={first}", "checkpoint.enable_save=false", record=resumed)
    assert code == 0, logs[0][-3000:]
    assert losses(resumed)[-1] == pytest.approx(losses(full)[-1], rel=1e-4)
