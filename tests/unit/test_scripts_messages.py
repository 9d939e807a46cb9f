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
"""What the shell scripts say when something is missing, with stand-ins for the programs they call."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen3_tiny_auto_tp.yaml"


class Box:
    """A folder of stand-in programs ahead of the real ones, a copy of the checkout, and a place for an environment."""

    def __init__(self, tmp_path):
        self.bin = tmp_path / "bin"
        self.root = tmp_path / "check out"  # a space, as in many home folders
        self.venv = tmp_path / "envs" / "venv"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in ("setup.py", "configs"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, self.root / name)

    def program(self, name, body, folder=None):
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def pythons(self, version, has_venv=True):
        """Every Python on PATH is of this version. `-m venv` makes an environment whose pip works."""
        pip = 'case "$*" in *"pip install"*) echo "$@" >> "$(dirname "$0")/pip.log";; esac; exit 0'
        self.program("python", f"[ \"$1\" = --version ] && echo 'Python {version}.1'\n{pip}", self.bin / "template")
        for name in ("python3.11", "python3.12", "python3.10", "python3"):
            self.program(name, f'''case "$*" in
                *version_info*) echo {version} ;;
                *ensurepip*) exit {0 if has_venv else 1} ;;
                --version) echo "Python {version}.1" ;;
                "-m venv --clear "*)
                    mkdir -p "$4/bin" && touch "$4/pyvenv.cfg" && cp "{self.bin}/template/python" "$4/bin/" ;;
            esac''')

    def run(self, script, *arguments, **env):
        return subprocess.run(
            ["bash", str(self.root / "scripts" / script), *arguments], capture_output=True, text=True, check=False,
            cwd="/", env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "MS_WORKER_NUM": "",
                          "HYPER_PARALLEL_VENV": str(self.venv), **env})

    def make_environment(self, **env):
        """Runs the part of the scripts that installs."""
        self.program("only_install.sh", 'set -euo pipefail\nsource "$(dirname "$0")/lib.sh"\nmake_environment',
                     self.root / "scripts")
        return self.run("only_install.sh", **env)

    def installs(self):
        log = self.venv / "bin" / "pip.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(name="box")
def make_box(tmp_path):
    return Box(tmp_path)


@pytest.mark.parametrize("script", ["quickstart.sh", "run_tests.sh"])
def test_wrong_python(box, script):
    box.pythons("3.9")
    done = box.run(script)
    assert done.returncode == 1
    assert "Python 3.10, 3.11 or 3.12 with the venv module is needed" in done.stderr
    assert "python3.11 is 3.9;" in done.stderr
    assert "HYPER_PARALLEL_PYTHON" in done.stderr
    assert not box.venv.exists()


def test_python_without_venv_module(box):
    box.pythons("3.11", has_venv=False)
    done = box.make_environment()
    assert done.returncode == 1
    assert "install python3.11-venv" in done.stderr


def test_named_python_that_does_not_exist(box):
    done = box.make_environment(HYPER_PARALLEL_PYTHON="no_such_python")
    assert done.returncode == 1
    assert "Found: none." in done.stderr


def test_too_little_disk(box):
    box.pythons("3.11")
    box.program("df", "echo header; echo 'disk 9 9 2097152 9% /'")
    done = box.make_environment()
    assert done.returncode == 1
    assert "has 2 GB free; about 6 GB are needed" in done.stderr
    assert not box.venv.exists()


def test_second_run_installs_nothing_until_setup_changes(box):
    box.pythons("3.11")
    for _ in range(2):
        done = box.make_environment()
        assert done.returncode == 0, done.stderr
    assert len(box.installs()) == 1
    assert f"--editable {box.root}[mindformers,quickstart,test]" in box.installs()[0]
    with (box.root / "setup.py").open("a") as file:
        file.write("# changed\n")
    assert box.make_environment().returncode == 0
    assert len(box.installs()) == 2


def test_failed_install_says_what_to_look_at_and_is_tried_again(box):
    box.pythons("3.11")
    box.program("python", 'case "$*" in *"pip install"*) echo "Could not find a version" >&2; exit 1;; esac',
                box.bin / "template")
    done = box.make_environment()
    assert done.returncode == 1
    assert "Could not find a version" in done.stderr
    assert "does not reach a package index" in done.stderr
    box.pythons("3.11")
    shutil.rmtree(box.venv)
    assert box.make_environment().returncode == 0
    assert len(box.installs()) == 1


def test_folder_that_is_no_environment_is_left_alone(box):
    box.pythons("3.11")
    box.venv.mkdir(parents=True)
    (box.venv / "thesis.txt").write_text("mine")
    done = box.make_environment()
    assert done.returncode == 1
    assert "is not a virtual environment" in done.stderr
    assert (box.venv / "thesis.txt").read_text() == "mine"


def test_run_tests_knows_one_argument(box):
    done = box.run("run_tests.sh", "--fast")
    assert done.returncode == 1
    assert "unknown argument --fast" in done.stderr


def msrun(box, body):
    """A stand-in for msrun that finds its log folder in $log; python is the one that runs this test."""
    box.program("msrun", 'for a in "$@"; do case "$a" in --log_dir=*) log="${a#*=}";; esac; done\n'
                         'echo "$@" > "$log/arguments"; env > "$log/environment"\n' + body)
    box.program("python", f'exec "{sys.executable}" "$@"')


@pytest.mark.parametrize("arguments, said", [
    ([], "--config is missing"),
    (["--config"], "--config needs a value"),
    (["--confg", "x"], "unknown argument --confg"),
    (["--config", "nowhere.yaml"], "cannot read the configuration nowhere.yaml"),
    (["--config", CONFIG, "--workers", "3"], "the job has 3 processes"),
    (["--config", CONFIG, "--workers", "2", "--nodes", "3"], "2 processes cannot be divided among 3 machines"),
    (["--config", CONFIG, "--nodes", "2", "--node-rank", "2"], "the machines are numbered 0 to 1"),
    (["--config", CONFIG, "--nodes", "two"], "two is not a whole number"),
    (["--config", CONFIG, "--", "--set", "modle.x=1"], "did you mean model?"),
])
def test_msrun_train_refuses(box, tmp_path, arguments, said):
    msrun(box, "exit 0")
    done = box.run("msrun_train.sh", *map(str, arguments))
    assert done.returncode == 1
    assert said in done.stderr


def test_msrun_train_help(box):
    done = box.run("msrun_train.sh", "--help")
    assert done.returncode == 0
    assert "Two machines, the same command" in done.stdout


def test_msrun_train_without_msrun(box):
    done = box.run("msrun_train.sh", "--config", str(CONFIG), PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert "msrun is not on PATH" in done.stderr


def test_msrun_train_shows_the_first_rank_and_passes_what_it_was_given(box, tmp_path):
    log = tmp_path / "logs"
    msrun(box, 'echo "all is well" > "$log/worker_0.log"; sleep 1; printf "last line" >> "$log/worker_0.log"')
    done = box.run("msrun_train.sh", "--config", str(CONFIG), "--log-dir", str(log), "--", "--set", "training.steps=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all is well\nlast line"
    arguments = (log / "arguments").read_text()
    assert "--worker_num=2 --local_worker_num=2 --node_rank=0 --master_addr=127.0.0.1" in arguments
    assert arguments.endswith(f"train.py --config {CONFIG} --set training.steps=3\n")
    assert "OMP_NUM_THREADS=" in (log / "environment").read_text()


def test_msrun_train_on_several_machines(box, tmp_path):
    msrun(box, 'touch "$log/worker_2.log"')
    done = box.run("msrun_train.sh", "--config", str(CONFIG), "--workers", "4", "--nodes", "2", "--node-rank", "1",
                   "--master-addr", "10.0.0.1", "--log-dir", str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert ("--worker_num=4 --local_worker_num=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=8118"
            in (tmp_path / "logs" / "arguments").read_text())


def test_msrun_train_shows_the_log_of_the_rank_that_failed(box, tmp_path):
    msrun(box, 'echo fine > "$log/worker_0.log"; echo "error: heads do not divide" > "$log/worker_1.log"; exit 1')
    done = box.run("msrun_train.sh", "--config", str(CONFIG), "--log-dir", str(tmp_path / "logs"))
    assert done.returncode == 1
    assert "the job failed; logs in" in done.stderr
    assert "worker_1.log" in done.stderr and "error: heads do not divide" in done.stderr


def test_msrun_train_shows_msruns_own_log_when_no_rank_said_a_word(box, tmp_path):
    msrun(box, 'echo fine > "$log/worker_0.log"; echo "Worker process 7 exit with exception. Error code: -9"; exit 1')
    done = box.run("msrun_train.sh", "--config", str(CONFIG), "--log-dir", str(tmp_path / "logs"))
    assert done.returncode == 1
    assert "Error code: -9" in done.stderr
