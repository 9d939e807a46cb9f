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
"""scripts/train.py: one clear error for what is wrong, and --set."""
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen3_tiny_auto_tp.yaml"
sys.path.insert(0, str(ROOT / "scripts"))
import train  # noqa: E402


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("MS_WORKER_NUM", "RANK_SIZE", "RANK_ID"):
        monkeypatch.delenv(name, raising=False)


def refused(*arguments):
    """The message with which these arguments are refused."""
    with pytest.raises(ValueError) as info:
        train.run(train.parse_args(list(arguments)))
    return str(info.value)


def write_config(tmp_path, **sections):
    config = yaml.safe_load(CONFIG.read_text())
    config.update(sections)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_set_changes_nested_values_as_yaml():
    config = train.load_config(CONFIG, ["training.steps=3", "parallel_config.model_parallel=1", "model.params_dtype=x",
                                        "optimizer.betas=[0.8, 0.9]", "checkpoint.enable_save=true"])
    assert config["training"]["steps"] == 3
    assert config["parallel_config"] == {"auto_tp": True, "model_parallel": 1}
    assert config["optimizer"]["betas"] == [0.8, 0.9]
    assert config["checkpoint"]["enable_save"] is True


def test_set_may_bring_new_keys_where_they_are_checked_later():
    config = train.load_config(CONFIG, ["parallelism.enable_loss_parallel=true",
                                        "parallel_config.auto_tp_config.report=plan.json"])
    assert config["parallelism"] == {"enable_loss_parallel": True}
    assert config["parallel_config"]["auto_tp_config"] == {"report": "plan.json"}


@pytest.mark.parametrize("override, said", [
    ("steps=3", "write SECTION.KEY=VALUE"),
    ("training.steps", "write SECTION.KEY=VALUE"),
    ("training.=3", "write SECTION.KEY=VALUE"),
    ("training.steps=[1", "the value is not YAML"),
    ("trainning.steps=3", "no section trainning; did you mean training?"),
    ("model.num_hiden_layers=3", "did you mean num_hidden_layers?"),
    ("model.rope.theta=3", "model.rope has no keys below it"),
    ("training.steps.more=3", "training.steps has no keys below it"),
])
def test_wrong_overrides_are_refused(override, said):
    assert said in refused("--config", str(CONFIG), "--set", override)


def test_missing_file():
    assert "cannot read the configuration nowhere.yaml: No such file" in refused("--config", "nowhere.yaml")


@pytest.mark.parametrize("text, said", [("a: [1", "is not YAML"), ("- 1", "no sections"),
                                        ("training: 5", "section training of the configuration holds 5")])
def test_malformed_file(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert said in refused("--config", str(path))


def test_unknown_section_names_the_nearest(tmp_path):
    path = write_config(tmp_path, paralel_config={"auto_tp": True})
    assert "paralel_config is not a section of the configuration; did you mean parallel_config?" in refused(
        "--config", path)


def test_known_sections_are_those_of_mindformers():
    config = pytest.importorskip("mindformers.pynative.config.config")
    fields = {field.name for field in dataclasses.fields(config.TrainConfig)}
    assert fields | {"eval_dataset", "parallel_config"} == set(train.SECTIONS)


@pytest.mark.parametrize("world, overrides, said", [
    (1, [], "the job has 1 process, the configuration asks for a multiple of model_parallel 2"),
    (3, [], "the job has 3 processes, the configuration asks for a multiple of model_parallel 2"),
    (2, ["parallel_config.data_parallel=2"], "model_parallel 2 x data_parallel 2"),
    (2, ["parallel_config.model_parallel=two"], "parallel_config.model_parallel is 'two'"),
    (2, ["parallel_config.data_parallel=0"], "parallel_config.data_parallel is 0"),
    (2, ["parallel_config.model_parallel=0"], "parallel_config.model_parallel is 0"),
    (1, ["parallel_config.model_parallel=true"], "parallel_config.model_parallel is True"),
    (2, ["training.steps=0"], "training.steps is 0"),
    (2, ["context.device_target=GPU"], "context.device_target is GPU"),
    (2, ["training.global_batch_size=many"], "training.global_batch_size is 'many'"),
])
def test_world_size_and_values(monkeypatch, world, overrides, said):
    monkeypatch.setenv("MS_WORKER_NUM", str(world))
    monkeypatch.setenv("RANK_ID", "0")
    assert said in refused("--config", str(CONFIG), *(part for o in overrides for part in ("--set", o)))


def test_rank_that_the_launcher_did_not_number(monkeypatch):
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    assert "start msrun with --node_rank" in refused("--config", str(CONFIG))


@pytest.mark.parametrize("world, overrides, sizes", [
    (4, {"model_parallel": 2}, (2, 2)),
    (4, {"model_parallel": 2, "data_parallel": 2}, (2, 2)),
    (None, {"model_parallel": 4, "data_parallel": 3}, (4, 3)),
    (2, {}, (1, 2)),
])
def test_parallel_sizes(world, overrides, sizes):
    assert train.parallel_sizes({"parallel_config": overrides}, world) == sizes


def test_tensor_parallel_of_mindformers_own_section_counts_too():
    assert train.parallel_sizes({"parallelism": {"tensor_parallel": 2}}, 4) == (2, 2)


def test_describe_prints_device_and_number_of_processes(capsys):
    assert train.run(train.parse_args(["--config", str(CONFIG), "--describe"])) == 0
    assert capsys.readouterr().out == "CPU 2\n"


def one_process(*more):
    return ["--config", str(CONFIG), "--set", "parallel_config.model_parallel=1", *more]


def test_missing_or_foreign_reference(tmp_path):
    assert "cannot read the record" in refused(*one_process("--reference", str(tmp_path / "no.json")))
    path = tmp_path / "plan.json"
    path.write_text("{}")
    assert "is not the record of a run" in refused(*one_process("--reference", str(path)))


def test_reference_of_another_training(tmp_path):
    path = tmp_path / "reference.json"
    path.write_text(json.dumps({"loss": [1.0] * 150, "config": {"model": {"hidden_size": 63}}}))
    assert "model.hidden_size is 64, but the reference was made with 63" in refused(
        *one_process("--reference", str(path)))
    path.write_text(json.dumps({"loss": [1.0] * 7}))
    assert "training.steps is 150, but the reference has 7 steps" in refused(*one_process("--reference", str(path)))


def test_an_error_is_one_line_and_exit_code_1():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "train.py"), "--config", "nowhere.yaml"],
                          capture_output=True, text=True, check=False, env={**os.environ, "MS_WORKER_NUM": ""})
    assert done.returncode == 1
    assert done.stderr == "error: cannot read the configuration nowhere.yaml: No such file or directory\n"


def test_usage_error_is_exit_code_2():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "train.py")], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert "--config" in done.stderr
