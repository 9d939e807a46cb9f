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
"""scripts/train_graph.py: what it says before anything starts, and what it hands to MindFormers."""
import builtins
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "graph_auto_tp.yaml"
sys.path.insert(0, str(ROOT / "scripts"))
import train_graph  # noqa: E402


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    monkeypatch.delenv("MS_WORKER_NUM", raising=False)


def test_device_and_processes_come_from_the_configuration(capsys):
    train_graph.main(["--config", str(CONFIG), "--describe"])
    assert capsys.readouterr().out == "Ascend 8\n"


def test_a_job_of_another_size_is_refused(monkeypatch):
    monkeypatch.setenv("MS_WORKER_NUM", "6")
    with pytest.raises(SystemExit, match="6 processes do not make up the 8 of parallel_config"):
        train_graph.main(["--config", str(CONFIG), "--describe"])


def test_a_size_that_is_none_and_a_missing_file_are_refused(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"parallel_config": {"model_parallel": 0}}), encoding="utf-8")
    with pytest.raises(SystemExit, match="model_parallel is 0"):
        train_graph.main(["--config", str(file), "--describe"])
    with pytest.raises(SystemExit, match="there is no configuration nowhere.yaml"):
        train_graph.main(["--config", "nowhere.yaml"])


def test_mindformers_trains_after_the_network_is_registered(monkeypatch, tmp_path):
    done = []
    network = tmp_path / "registers_itself.py"
    network.write_text("import builtins\nbuiltins.registered_before = True\n", encoding="utf-8")

    class Trainer:
        """Notes what it is given."""

        def __init__(self, config):
            assert builtins.registered_before
            done.append(("trainer", config))

        def train(self):
            """Notes that it was called."""
            done.append("trained")

    package = types.ModuleType("mindformers")
    package.MindFormerConfig, package.Trainer = lambda file: {"file": file}, Trainer
    context = types.ModuleType("mindformers.core.context")
    context.build_context = lambda config: done.append(("context", config))
    for name, module in (("mindformers", package), ("mindformers.core", types.ModuleType("mindformers.core")),
                         ("mindformers.core.context", context)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    train_graph.main(["--config", str(CONFIG), "--network", str(network)])
    given = {"file": str(CONFIG)}
    assert done == [("context", given), ("trainer", given), "trained"]


def test_the_launcher_starts_it_on_several_machines(tmp_path):
    fake = tmp_path / "msrun"
    fake.write_text('#!/bin/sh\nfor one; do case "$one" in --log_dir=*) log="${one#--log_dir=}";; esac; done\n'
                    'echo "$@" > "$log/arguments"; touch "$log/worker_4.log"\n', encoding="utf-8")
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "msrun_train.sh"), "--script", str(ROOT / "scripts" / "train_graph.py"),
         "--config", str(CONFIG), "--nodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--log-dir",
         str(tmp_path / "logs"), "--", "--network", "configs/graph_network.py"], capture_output=True, text=True,
        check=False, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    arguments = (tmp_path / "logs" / "arguments").read_text()
    assert "--worker_num=8 --local_worker_num=4 --node_rank=1 --master_addr=10.0.0.1" in arguments
    assert arguments.endswith(f"train_graph.py --config {CONFIG} --network configs/graph_network.py\n")
