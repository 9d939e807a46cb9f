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
"""`hyper-parallel doctor`: is this machine ready, and what to do where it is not.

Nothing outside the standard library is imported at the top, so that the file also runs by itself where the package
cannot be imported: `python hyper_parallel/cli/doctor_command.py`. MindSpore is tried in a process of its own: with a
numpy it was not built for it may end the process instead of raising.
"""
import argparse
import dataclasses
import glob
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

HELP = "tell whether this machine is ready, and what to do where it is not"
OK, WARNING, FAILED = "ok", "warning", "failed"
SCHEMA_VERSION = 1

_PYTHON = ((3, 10), (3, 12))
_MINDSPORE = (2, 10)
_MINDFORMERS = "2.0.0"
_OURS = "hyper-parallel"
_PROBE_SECONDS = 300
_LITTLE_SHARED_MEMORY, _LITTLE_DISK = 1 << 30, 2 << 30
# an error near 1e-7 is rounding, one near 1 is a wrong gradient
_RIGHT = 1e-4
_GRADIENTS = {
    "split": ("gradient of mint.split", "split_replaced", "the operator is replaced"),
    "accumulation": ("sum of gradients", "accumulation_hooked", "a hook puts it right; MindFormers' models get it by "
                     "themselves, yours by cpu_kernels.gradients.fix_gradient on each parameter")}
_MARK = "doctor: "
_PROBE = f"""
import importlib.util, json
def say(**facts):
    print({_MARK!r} + json.dumps(facts), flush=True)
import mindspore
from mindspore import device_context
say(mindspore=mindspore.__version__, ascend=bool(device_context.ascend.is_available()))
mindspore.set_device("CPU")
import hyper_parallel
say(hyper_parallel=hyper_parallel.__version__)
from hyper_parallel.platform.cpu_kernels.gradients import probe_gradient_bugs
say(gradients=probe_gradient_bugs())
if importlib.util.find_spec("mindformers"):
    import mindformers
    say(mindformers=mindformers.__version__)
"""


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the screen.

    Args:
        name: what is looked at.
        status: `ok`, `warning` (a part of the package is out of reach) or `failed`.
        found: what is there.
        advice: what to do; empty where all is in order.
    """

    name: str
    status: str
    found: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser):
    """The command's arguments."""
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-",
                        help="write it here as JSON; - or nothing for standard output, without the table")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything and say it.

    Returns:
        0 where nothing failed, 1 otherwise.
    """
    if sys.stderr.isatty():
        print("importing MindSpore and MindFormers: up to half a minute", file=sys.stderr)
    checks = examine()
    if arguments.json:
        _write_json(checks, arguments.json)
    if arguments.json != "-":
        _print(checks)
    return int(any(check.status == FAILED for check in checks))


def examine() -> List[Check]:
    """Every check, in the order in which a user would mend them."""
    checks = [check_python(), check_numpy(), check_mindspore(), check_mindformers(), check_pins(), check_msrun()]
    # a look at the installed version costs nothing, an import that must fail costs seconds
    facts = probe() if version_of("mindspore") else {"error": "MindSpore is not installed"}
    checks += [check_import(facts), check_device(facts)]
    checks += [check_gradient(which, facts) for which in _GRADIENTS]
    checks.append(check_space("/dev/shm", "/dev/shm", _LITTLE_SHARED_MEMORY, "data loaders with worker processes "
                              "pass batches through it: docker run --shm-size=8g, or remount it with size=8g"))
    checks.append(check_space("working directory", os.getcwd(), _LITTLE_DISK, "logs, checkpoints and compiled graphs "
                              "are written to it: start in one with more room"))
    return checks


def version_of(distribution: str) -> Optional[str]:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python() -> Check:
    """Python has to be one for which MindSpore has a wheel, on Linux."""
    found = f"{'.'.join(map(str, sys.version_info[:3]))} on {sys.platform} ({sys.executable})"
    lowest, highest = _PYTHON
    advice = f"make an environment with Python {_dotted(lowest)} to {_dotted(highest)}"
    if sys.platform != "linux":
        return Check("Python", FAILED, found, "use Linux: MindSpore's distributed runs need it")
    if not lowest <= tuple(sys.version_info[:2]) <= highest:
        return Check("Python", FAILED, found, advice)
    return Check("Python", OK, found)


def check_numpy() -> Check:
    """MindSpore 2.10 asks for any numpy, and parts of it break with numpy 2."""
    found = version_of("numpy")
    if found is None:
        return Check("numpy", FAILED, "not installed", "pip install 'numpy<2'")
    if _numbers(found)[0] >= 2:
        return Check("numpy", FAILED, found, "pip install 'numpy<2': with numpy 2 MindSpore says `numpy init failed`, "
                     "and reshape raises SystemError")
    return Check("numpy", OK, found)


def check_mindspore() -> Check:
    """The one minor version this package and MindFormers 2.0.0 are made for."""
    found = version_of("mindspore")
    advice = f"pip install 'mindspore=={_dotted(_MINDSPORE)}.0' 'numpy<2'"
    if found is None:
        return Check("MindSpore", FAILED, "not installed", advice)
    return Check("MindSpore", OK, found) if _numbers(found) == _MINDSPORE else Check("MindSpore", FAILED, found, advice)


def check_mindformers() -> Check:
    """Not needed for Cells of one's own, hence a warning where it is missing."""
    found = version_of("mindformers")
    advice = f"pip install 'mindformers=={_MINDFORMERS}'"
    if found is None:
        return Check("MindFormers", WARNING, "not installed", f"{advice}, if you want the YAML switch auto_tp")
    if found != _MINDFORMERS:
        return Check("MindFormers", FAILED, found, f"{advice}: auto_tp knows this version from inside")
    return Check("MindFormers", OK, found)


def check_pins() -> Check:
    """What the installed packages ask of each other."""
    name = "pins"
    try:
        wrong = [line for owner in (_OURS, "mindspore", "mindformers") for line in unmet_requirements(owner)]
    except ImportError:
        return Check(name, WARNING, "not compared", "pip install packaging, which MindSpore needs as well")
    if not wrong:
        return Check(name, OK, "every requirement of hyper-parallel, MindSpore and MindFormers is met")
    wanted = sorted({line.split(" (")[0] for line in wrong})
    # no registry has this package: pip would look for a stranger's of the same name
    ours = [line for line in wanted if line.startswith(_OURS)]
    words = ["pip install " + " ".join(f"'{line}'" for line in wanted if line not in ours)] if wanted != ours else []
    words += [f"pip install {Path(__file__).resolve().parents[2]}"] if ours else []
    return Check(name, FAILED, "; ".join(sorted(set(wrong))), "; ".join(words))


def unmet_requirements(distribution: str) -> List[str]:
    """The requirements of an installed package that the environment does not meet.

    Args:
        distribution: a name; one that is not installed asks for nothing.

    Returns:
        For example `["transformers==4.57.1 (found 5.0.0)", "mindpet==1.0.4 (not installed)"]`.

    Raises:
        ImportError: `packaging` is not installed.
    """
    from packaging.requirements import Requirement  # pylint: disable=import-outside-toplevel
    if version_of(distribution) is None:
        return []
    unmet = []
    for line in importlib.metadata.requires(distribution) or ():
        asked = Requirement(line)
        if asked.marker and not asked.marker.evaluate({"extra": ""}):
            continue
        found = version_of(asked.name)
        if found is None:
            unmet.append(f"{asked.name}{asked.specifier} (not installed)")
        elif not asked.specifier.contains(found, prereleases=True):
            unmet.append(f"{asked.name}{asked.specifier} (found {found})")
    return unmet


def check_msrun() -> Check:
    """The launcher, and that it is the one of this Python."""
    found, here = shutil.which("msrun"), Path(sys.executable).parent
    if found is None:
        return Check("msrun", FAILED, "not on PATH", f"export PATH={here}:$PATH" if (here / "msrun").exists() else
                     "it comes with MindSpore: activate the environment that has it")
    if Path(found).parent != here and (here / "msrun").exists():
        return Check("msrun", WARNING, found, f"it belongs to another Python than {sys.executable}: "
                     f"export PATH={here}:$PATH")
    return Check("msrun", OK, found)


def probe() -> Dict[str, Any]:
    """What a fresh Python process says about MindSpore, this package, the gradients and MindFormers.

    Returns:
        Dict[str, Any]: `mindspore`, `ascend`, `hyper_parallel`, `gradients`, `mindformers`, as far as it came, and
        `error` where it did not come to the end.
    """
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    # a failed import leaves files in the working directory
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-c", _PROBE], cwd=folder, capture_output=True, text=True,
                                  timeout=_PROBE_SECONDS, check=False,
                                  env={**os.environ, "PYTHONPATH": path, "GLOG_v": os.environ.get("GLOG_v", "3")})
        except subprocess.TimeoutExpired:
            return {"error": f"no answer from MindSpore within {_PROBE_SECONDS} s"}
    facts: Dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            facts.update(json.loads(line[len(_MARK):]))
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        facts["error"] = (f"the process was ended by signal {-done.returncode}" if done.returncode < 0 else
                          said[-1] if said else f"exit code {done.returncode}")
    return facts


def check_import(facts: Dict[str, Any]) -> Check:
    """MindSpore, this package and MindFormers can be imported."""
    packages = [f"{name} {facts[name]}" for name in ("mindspore", "hyper_parallel", "mindformers") if name in facts]
    if "error" not in facts:
        return Check("import", OK, ", ".join(packages))
    advice = "mend what failed above, then look again"
    if "gradients" in facts:
        advice = "import mindformers fails: mend its pins above, pyarrow>=23.0.1,<24 among them"
    return Check("import", FAILED, "; ".join(filter(None, (", ".join(packages), facts["error"]))), advice)


def check_device(facts: Dict[str, Any]) -> Check:
    """Ascend cards that MindSpore can use, or the CPU."""
    cards = len(glob.glob("/dev/davinci[0-9]*"))
    if not cards:
        return Check("device", OK, f"CPU, {os.cpu_count()} cores; no Ascend card (/dev/davinci*)")
    found = f"{cards} Ascend card{'s' if cards > 1 else ''}"
    if facts.get("ascend"):
        return Check("device", OK, found)
    return Check("device", FAILED, f"{found}, which MindSpore cannot use", "source CANN's set_env.sh (often in "
                 "/usr/local/Ascend/ascend-toolkit), and check `npu-smi info`; CANN has to be one that this MindSpore "
                 "supports")


def check_gradient(which: str, facts: Dict[str, Any]) -> Check:
    """One of the gradients that MindSpore's CPU build gets wrong in silence.

    Args:
        which: `split` or `accumulation`.
        facts: what `probe` gave.
    """
    name, remedied, remedy = _GRADIENTS[which]
    if "gradients" not in facts:
        return Check(name, FAILED, "not measured", "see `import`")
    own, ours = facts["gradients"][which], facts["gradients"][remedied]
    # a NaN is not smaller than anything, and so never right
    if not ours < _RIGHT:
        return Check(name, FAILED, f"relative error {own:.1e}, with the remedy {ours:.1e}", "do not train on CPU with "
                     "this MindSpore: gradients are wrong and nothing raises")
    if own < _RIGHT:
        return Check(name, OK, f"right on CPU by itself (relative error {own:.1e})")
    return Check(name, OK, f"wrong in MindSpore's CPU build (relative error {own:.1e}), with hyper_parallel "
                 f"{ours:.1e}: {remedy}")


def check_space(name: str, folder: str, little: int, advice: str) -> Check:
    """Free space.

    Args:
        name: of the line.
        folder: whose file system.
        little: bytes below which it is a warning.
        advice: what to do then.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as failed:
        return Check(name, WARNING, str(failed), advice)
    writable = os.access(folder, os.W_OK)
    found = f"{free / (1 << 30):.1f} GiB free in {folder}" + ("" if writable else ", not writable")
    return Check(name, OK, found) if free >= little and writable else Check(name, WARNING, found, advice)


def _numbers(version: str) -> tuple:
    """Major and minor of a version: `2.10.0rc1` gives (2, 10)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _dotted(numbers: tuple) -> str:
    return ".".join(map(str, numbers))


def _verdict(checks: List[Check]) -> str:
    failed, warned = (sum(check.status == status for check in checks) for status in (FAILED, WARNING))
    if not failed + warned:
        return "all in order"
    return f"{failed} failed, {warned} warning{'' if warned == 1 else 's'}, {len(checks) - failed - warned} in order"


def _print(checks: List[Check]):
    """A table on a terminal, lines elsewhere and where rich is missing."""
    try:
        from rich.console import Console  # pylint: disable=import-outside-toplevel
        from rich.table import Table  # pylint: disable=import-outside-toplevel
    except ImportError:
        Console = None
    if Console is None or not sys.stdout.isatty():
        for check in checks:
            print(f"{check.status:8} {check.name:22} {check.found}")
            if check.advice:
                print(f"{'':8} {'':22} do: {check.advice}")
        print(_verdict(checks))
        return
    colours = {OK: "green", WARNING: "yellow", FAILED: "bold red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(f"[{colours[check.status]}]{check.status}[/]",
                      *(text.replace("[", r"\[") for text in (check.name, check.found, check.advice)))
    console = Console()
    console.print(table)
    console.print(_verdict(checks), highlight=False)


def _write_json(checks: List[Check], file: str):
    """To a file, or to standard output for `-`; not `planning.write_json`, which needs the package."""
    data = {"schema": SCHEMA_VERSION, "ok": all(check.status != FAILED for check in checks),
            "checks": [dataclasses.asdict(check) for check in checks]}
    text = json.dumps(data, indent=1)
    if file == "-":
        print(text)
        return
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _main() -> int:
    """Run by itself, without the package."""
    parser = argparse.ArgumentParser(prog="doctor_command.py", description=HELP)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(_main())
