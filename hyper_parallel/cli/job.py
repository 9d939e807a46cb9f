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
"""One msrun job on this machine, started by a command: a script in N processes, and what they left behind."""
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import List, Sequence

JOB_FAILED = 1
_NOISE = re.compile(r"\[(INFO|WARNING|ERROR)\]")


def run_job(script: Path, arguments: Sequence[str], ranks: int, folder: Path, timeout: float) -> bool:
    """Start the script under msrun and wait for all its processes.

    Args:
        script: what every process runs, with this Python.
        arguments: of the script.
        ranks: number of processes.
        folder: for the logs, `worker_R.log`.
        timeout: seconds after which all of them are killed.

    Returns:
        True when it ended in time, whatever the outcome.
    """
    programs = Path(sys.executable).parent
    # msrun starts the "python" that it finds; modules are looked for where the command was started
    environment = {"GLOG_v": "3", **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
                   "PYTHONPATH": os.pathsep.join(filter(None, (
                       str(Path(__file__).resolve().parents[2]), os.getcwd(), os.environ.get("PYTHONPATH"))))}
    command = [str(programs / "msrun"), f"--worker_num={ranks}", f"--local_worker_num={ranks}",
               f"--master_port={free_port()}", f"--log_dir={folder}", "--join=True", str(script), *arguments]
    with open(folder / "msrun.log", "wb") as log, subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            process.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def last_lines(folder: Path, rank: int, count: int = 15) -> List[str]:
    """The end of a rank's log, without MindSpore's own lines."""
    path = folder / f"worker_{rank}.log"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in text.splitlines() if line.strip() and not _NOISE.match(line)][-count:]
