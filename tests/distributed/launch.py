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
"""Runs the distributed tests: one msrun job in which every rank runs the same tests in lockstep.

    python tests/distributed/launch.py --world 2 [--timeout SECONDS] [pytest arguments]

Without a path among the pytest arguments, everything in tests/distributed. Every rank calls mindspore.set_device("CPU")
and mindspore.communication.init() before pytest collects. After each test the ranks compare its outcome; the job stops
where they differ, because from there on their collectives no longer meet. Exit code 0 if every rank passed.

Coverage: run it as `coverage run tests/distributed/launch.py ...` with the repository's settings (setup.cfg); every
rank writes a data file of its own, to be combined.
"""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = "HYPER_PARALLEL_TEST_JOB"
# Seconds a rank waits for the others to finish a test; mccl waits 30 s for a rank that does not join a collective.
PATIENCE = 180
SUMMARY = re.compile(r"\d+ (passed|failed|errors?|skipped|deselected)|no tests ran")


class Lockstep:
    """A pytest plugin: a test is over when it is over on every rank, and ends the session when the ranks disagree."""

    def __init__(self, job, rank, world):
        self.progress = [job / f"rank_{member}.progress" for member in range(world)]
        self.rank, self.done, self.failed = rank, 0, False

    def pytest_runtest_logreport(self, report):
        """Collects the outcome of set-up, call and tear-down."""
        self.failed = self.failed or report.failed

    def pytest_runtest_logfinish(self, nodeid):
        """Publishes the outcome, waits for that of the others, and compares."""
        import pytest  # pylint: disable=import-outside-toplevel
        line = f"{'failed' if self.failed else 'ok'} {nodeid}"
        with open(self.progress[self.rank], "a", encoding="utf-8") as mine:
            mine.write(line + "\n")
        self.done, self.failed = self.done + 1, False
        deadline = time.monotonic() + PATIENCE
        for member, path in enumerate(self.progress):
            while len(finished(path)) < self.done:
                if time.monotonic() > deadline:
                    pytest.exit(f"rank {member} has not finished {nodeid} within {PATIENCE} s", returncode=1)
                time.sleep(0.02)
            if finished(path)[self.done - 1] != line:
                pytest.exit(f"rank {self.rank}: {line}\nrank {member}: {finished(path)[self.done - 1]}", returncode=1)


def finished(path):
    """The complete lines of a rank's progress file."""
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def run_rank(arguments):
    """What every rank does. It leaves with 0: msrun kills the others, and their reports, when one leaves with 1."""
    sys.path.insert(0, str(ROOT))
    import mindspore  # pylint: disable=import-outside-toplevel
    import pytest  # pylint: disable=import-outside-toplevel
    mindspore.set_device("CPU")
    mindspore.communication.init()
    job, rank = Path(os.environ[JOB]), mindspore.communication.get_rank()
    plugin = Lockstep(job, rank, mindspore.communication.get_group_size())
    code = pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[plugin])
    (job / f"rank_{rank}.exit").write_text(str(int(code)), encoding="utf-8")


def launch(world, timeout, arguments):
    """Starts the job, waits, and reports. Returns the exit code."""
    if not any(Path(argument.split("::")[0]).exists() for argument in arguments if not argument.startswith("-")):
        arguments = [*arguments, str(ROOT / "tests" / "distributed")]
    job = Path(tempfile.mkdtemp(prefix=f"hyper_parallel_world{world}_"))
    bin_folder = Path(sys.executable).parent
    # msrun starts the "python" that it finds.
    environment = {"GLOG_v": "3", **os.environ, JOB: str(job), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    command = [str(bin_folder / "msrun"), f"--worker_num={world}", f"--local_worker_num={world}",
               f"--master_port={free_port()}", f"--log_dir={job}", "--join=True", __file__, *arguments]
    with open(job / "msrun.log", "wb") as log, subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            process.wait(timeout)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    codes = {rank: exit_code(job, rank) for rank in range(world)}
    if late:
        done = {rank: len(finished(job / f"rank_{rank}.progress")) for rank in range(world)}
        behind = [rank for rank in done if codes[rank] is None and done[rank] == min(done.values())]
        print(f"stopped after {timeout} s; tests finished by rank: {done}; stalled: "
              f"{', '.join(f'rank {rank}' for rank in behind) or 'none, msrun did not end'}")
    failed = [rank for rank in codes if codes[rank] != 0]
    for rank in failed:
        # The first rank tells the story; the others usually the same.
        text = tail(job / f"worker_{rank}.log", 80 if rank == failed[0] else 20)
        result = "no result" if codes[rank] is None else f"exit code {codes[rank]}"
        print(f"---- rank {rank}: {result}, end of {job}/worker_{rank}.log\n{text}")
    if None in codes.values():
        print(f"---- msrun\n{tail(job / 'msrun.log', 10)}")
    summaries = [line for line in tail(job / "worker_0.log", 200).split("\n") if SUMMARY.search(line)]
    print(f"world {world}, rank 0: {summaries[-1] if summaries else 'no summary'}   (logs: {job})")
    return int(late or any(code != 0 for code in codes.values()))


def exit_code(job, rank):
    """The exit code of a rank's pytest, None if it did not come so far."""
    path = job / f"rank_{rank}.exit"
    return int(path.read_text(encoding="utf-8")) if path.exists() else None


def tail(path, lines):
    """The last lines of a log, without MindSpore's own."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "(no log)"
    kept = [line for line in text.split("\n") if not re.match(r"\[(INFO|WARNING|ERROR)\]", line)]
    return "\n".join(kept[-lines:])


def free_port():
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    """Parses the command line; what it does not know goes to pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--world", type=int, default=2, help="number of ranks")
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which the job is killed")
    options, arguments = parser.parse_known_args()
    return launch(options.world, options.timeout, arguments)


if __name__ == "__main__":
    if JOB in os.environ:
        run_rank(sys.argv[1:])
    else:
        sys.exit(main())
