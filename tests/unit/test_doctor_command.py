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
"""`hyper-parallel doctor`: each thing that can be out of order, simulated."""
import builtins
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hyper_parallel.cli import doctor_command as doctor
from hyper_parallel.cli.doctor_command import FAILED, OK, WARNING
from hyper_parallel.cli.main import DONE, REFUSED, USAGE, main
from hyper_parallel.platform.cpu_kernels.gradients import probe_gradient_bugs

RIGHT = {"mindspore": "2.10.0", "ascend": False, "hyper_parallel": "1.0.0", "mindformers": "2.0.0",
         "gradients": {"split": 1.1, "split_replaced": 0.0, "accumulation": 1.4, "accumulation_hooked": 1e-7}}
VERSIONS = {"numpy": "1.26.4", "mindspore": "2.10.0", "mindformers": "2.0.0"}


@pytest.fixture(name="machine")
def _machine(monkeypatch, tmp_path):
    """A machine in order; returns the dict of its versions, to be spoilt."""
    versions = dict(VERSIONS)
    (tmp_path / "bin").mkdir()
    for program in ("python", "msrun"):
        (tmp_path / "bin" / program).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / "bin" / program).chmod(0o755)
    monkeypatch.setattr(doctor, "version_of", versions.get)
    monkeypatch.setattr(doctor, "unmet_requirements", lambda distribution: [])
    monkeypatch.setattr(doctor, "probe", lambda: dict(RIGHT))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return versions


def named(name):
    """The one check of that name."""
    (found,) = (check for check in doctor.examine() if check.name == name)
    return found


def run(capsys, *words):
    """(exit code, output)."""
    code = main(("doctor",) + words)
    return code, capsys.readouterr().out


def test_a_machine_in_order(machine, capsys):
    assert machine == VERSIONS
    code, out = run(capsys)
    assert code == DONE and out.endswith("all in order\n") and " do: " not in out
    assert all(line.startswith(("ok ", "all in order")) for line in out.splitlines())


def test_json_to_a_file_or_to_standard_output(machine, capsys, tmp_path):
    code, out = run(capsys, "--json")
    data = json.loads(out)
    assert code == DONE and data["ok"] and data["schema"] == 1
    assert [one["name"] for one in data["checks"]][:4] == ["Python", "numpy", "MindSpore", "MindFormers"]
    assert set(data["checks"][0]) == {"name", "status", "found", "advice"}
    machine["numpy"] = "2.1.0"
    file = tmp_path / "out" / "doctor.json"
    code, out = run(capsys, "--json", str(file))
    assert code == REFUSED and "1 failed, 0 warnings" in out
    assert not json.loads(file.read_text(encoding="utf-8"))["ok"]


def test_a_wrong_command_line(capsys):
    assert main(("doctor", "--frob")) == USAGE and "unrecognized" in capsys.readouterr().err


def test_a_warning_is_no_failure(machine, capsys):
    del machine["mindformers"]
    code, out = run(capsys)
    assert code == DONE and "0 failed, 1 warning," in out and "do: pip install 'mindformers==2.0.0'" in out


@pytest.mark.parametrize("version, platform, status", [
    ((3, 9, 18), "linux", FAILED), ((3, 10, 0), "linux", OK), ((3, 12, 4), "linux", OK), ((3, 13, 0), "linux", FAILED),
    ((3, 11, 0), "darwin", FAILED)])
def test_python(machine, monkeypatch, version, platform, status):
    assert machine
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys, "platform", platform)
    check = doctor.check_python()
    assert check.status == status and bool(check.advice) == (status == FAILED)
    assert check.found.startswith(".".join(map(str, version)))


@pytest.mark.parametrize("distribution, name, version, status, advice", [
    ("numpy", "numpy", None, FAILED, "numpy<2"), ("numpy", "numpy", "2.0.0", FAILED, "numpy init failed"),
    ("mindspore", "MindSpore", None, FAILED, "mindspore==2.10.0"),
    ("mindspore", "MindSpore", "2.11.0", FAILED, "mindspore==2.10.0"),
    ("mindspore", "MindSpore", "2.1.0", FAILED, "mindspore==2.10.0"),
    ("mindspore", "MindSpore", "2.10.1rc1", OK, ""),
    ("mindformers", "MindFormers", None, WARNING, "if you want the YAML switch"),
    ("mindformers", "MindFormers", "2.1.0", FAILED, "mindformers==2.0.0")])
def test_versions(machine, distribution, name, version, status, advice):
    machine[distribution] = version
    check = named(name)
    assert check.status == status and advice in check.advice and check.found == (version or "not installed")


def test_without_mindspore_nothing_is_imported(machine, monkeypatch):
    monkeypatch.setattr(doctor, "probe", None)
    machine["mindspore"] = None
    assert named("import").status == FAILED and "not installed" in named("import").found
    assert named("gradient of mint.split").found == "not measured"


def test_pins_that_are_not_met(machine, monkeypatch):
    assert machine
    wrong = {"mindformers": ["transformers==4.57.1 (found 5.0.0)", "hyper-parallel~=1.0.0 (not installed)"],
             "hyper-parallel": ["pyarrow<24,>=23.0.1 (found 24.0.0)"]}
    monkeypatch.setattr(doctor, "unmet_requirements", lambda owner: wrong.get(owner, []))
    check = named("pins")
    assert check.status == FAILED and "transformers==4.57.1 (found 5.0.0)" in check.found
    # the registry's package of this name would not be ours
    assert check.advice.startswith("pip install 'pyarrow<24,>=23.0.1' 'transformers==4.57.1'; pip install /")
    wrong.pop("hyper-parallel")
    wrong["mindformers"].pop(0)
    assert named("pins").advice == f"pip install {Path(doctor.__file__).resolve().parents[2]}"


def test_requirements_are_read_from_the_installed_packages(monkeypatch):
    asked = ["numpy<2", "pyarrow>=23", "nothing==1; extra == 'test'", "absent>=1.0"]
    installed = {"owner": "1", "numpy": "2.0.0", "pyarrow": "23.1"}
    monkeypatch.setattr(doctor, "version_of", installed.get)
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: asked)
    assert doctor.unmet_requirements("owner") == ["numpy<2 (found 2.0.0)", "absent>=1.0 (not installed)"]
    assert doctor.unmet_requirements("stranger") == []
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: None)
    assert doctor.unmet_requirements("owner") == []


def test_the_version_of_a_package():
    assert doctor.version_of("mindspore") and doctor.version_of("no-such-package-at-all") is None


def test_pins_are_not_compared_without_packaging(machine, monkeypatch):
    def absent(distribution):
        raise ImportError(f"no packaging for {distribution}")
    assert machine
    monkeypatch.setattr(doctor, "unmet_requirements", absent)
    assert named("pins").status == WARNING and "packaging" in named("pins").advice


def test_msrun(machine, monkeypatch, tmp_path):
    assert machine and named("msrun").status == OK
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "bin", other)
    monkeypatch.setenv("PATH", str(other))
    assert named("msrun").status == WARNING and f"export PATH={tmp_path / 'bin'}:$PATH" in named("msrun").advice
    monkeypatch.setenv("PATH", str(tmp_path))
    assert named("msrun").status == FAILED and named("msrun").advice.startswith(f"export PATH={tmp_path / 'bin'}")
    (tmp_path / "bin" / "msrun").unlink()
    assert named("msrun").advice.startswith("it comes with MindSpore")


def test_device(machine, monkeypatch):
    assert machine and named("device").found.startswith("CPU")
    monkeypatch.setattr(doctor.glob, "glob", lambda pattern: ["/dev/davinci0", "/dev/davinci1"])
    assert named("device").status == FAILED and "set_env.sh" in named("device").advice
    monkeypatch.setattr(doctor, "probe", lambda: {**RIGHT, "ascend": True})
    assert named("device") == doctor.Check("device", OK, "2 Ascend cards")


def test_imports_that_fail(machine, monkeypatch):
    assert machine and named("import").found == "mindspore 2.10.0, hyper_parallel 1.0.0, mindformers 2.0.0"
    monkeypatch.setattr(doctor, "probe", lambda: {"mindspore": "2.10.0", "error": "ImportError: numpy init failed"})
    assert named("import").found == "mindspore 2.10.0; ImportError: numpy init failed"
    assert named("import").status == FAILED and named("sum of gradients").advice == "see `import`"
    late = {key: value for key, value in RIGHT.items() if key != "mindformers"}
    monkeypatch.setattr(doctor, "probe", lambda: {**late, "error": "ImportError: pyarrow"})
    assert "pyarrow>=23" in named("import").advice and named("sum of gradients").status == OK


@pytest.mark.parametrize("own, remedied, status, said", [
    (1.1, 0.0, OK, "wrong in MindSpore's CPU build"), (1e-7, 1e-7, OK, "by itself"), (1.1, 0.9, FAILED, "9.0e-01"),
    (1.1, float("nan"), FAILED, "nan"), (1e-7, 0.9, FAILED, "9.0e-01")])
def test_gradients(machine, monkeypatch, own, remedied, status, said):
    facts = {**RIGHT, "gradients": {"split": own, "split_replaced": remedied, "accumulation": own,
                                    "accumulation_hooked": remedied}}
    monkeypatch.setattr(doctor, "probe", lambda: facts)
    assert machine
    for name in ("gradient of mint.split", "sum of gradients"):
        check = named(name)
        assert check.status == status and said in check.found
        assert ("do not train on CPU" in check.advice) == (status == FAILED)


def test_the_gradients_of_this_machine_are_in_order():
    facts = {"gradients": probe_gradient_bugs()}
    assert [doctor.check_gradient(which, facts).status for which in ("split", "accumulation")] == [OK, OK]


def test_space(machine, monkeypatch, tmp_path):
    assert machine and named("/dev/shm").status == OK
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1 << 26, 0, 1 << 26))
    assert named("/dev/shm").status == WARNING and "--shm-size" in named("/dev/shm").advice
    assert named("working directory").found == f"0.1 GiB free in {tmp_path}"

    def absent(folder):
        raise FileNotFoundError(f"no {folder}")
    monkeypatch.setattr(shutil, "disk_usage", absent)
    assert named("/dev/shm").found == "no /dev/shm" and named("/dev/shm").status == WARNING


def test_a_folder_that_cannot_be_written(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.os, "access", lambda folder, mode: False)
    check = doctor.check_space("here", str(tmp_path), 0, "elsewhere")
    assert machine and check.status == WARNING and "not writable" in check.found and check.advice == "elsewhere"


@pytest.mark.parametrize("script, facts", [
    ("print('a warning')\nprint('doctor: {\"mindspore\": \"2.10.0\"}')", {"mindspore": "2.10.0"}),
    ("print('doctor: {\"mindspore\": \"2.10.0\"}', flush=True)\nraise ImportError('numpy init failed')",
     {"mindspore": "2.10.0", "error": "ImportError: numpy init failed"}),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", {"error": "the process was ended by signal 11"}),
    ("raise SystemExit(3)", {"error": "exit code 3"})])
def test_the_probe_survives_what_it_tries(monkeypatch, script, facts):
    monkeypatch.setattr(doctor, "_PROBE", script)
    assert doctor.probe() == facts


def test_a_probe_that_hangs(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import time\ntime.sleep(60)")
    monkeypatch.setattr(doctor, "_PROBE_SECONDS", 0.2)
    assert doctor.probe() == {"error": "no answer from MindSpore within 0.2 s"}


@pytest.mark.slow
def test_the_probe_of_this_machine():
    facts = doctor.probe()
    assert "error" not in facts and facts["mindspore"].startswith("2.10.") and set(facts["gradients"]) >= {"split"}


def test_a_table_on_a_terminal(machine, monkeypatch, capsys):
    machine["numpy"] = "2.0.0[odd]"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    code = main(("doctor",))
    said = capsys.readouterr()
    assert code == REFUSED and "what to do" in said.out and "2.0.0[odd]" in said.out and "do: " not in said.out
    assert "half a minute" in said.err


def test_plain_lines_without_rich(machine, monkeypatch, capsys):
    real = builtins.__import__

    def without_rich(name, *arguments, **options):
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *arguments, **options)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert machine and doctor.run(doctor.argparse.Namespace(json=None)) == 0
    assert capsys.readouterr().out.startswith("ok       Python")


def test_the_file_runs_by_itself_without_the_package(monkeypatch, capsys):
    done = subprocess.run([sys.executable, "-S", doctor.__file__, "--help"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 and doctor.HELP in " ".join(done.stdout.split())
    monkeypatch.setattr(sys, "argv", ["doctor_command.py", "--json"])
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check("numpy", FAILED, "2.0.0", "another")])
    assert doctor._main() == 1 and not json.loads(capsys.readouterr().out)["ok"]
