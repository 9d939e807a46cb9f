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
"""A rank that is lost in a collective does not leave the others waiting: they end, and say in which collective of whom."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hyper_parallel.cli.job import free_port

SCRIPT = Path(__file__).with_name("lose_a_rank.py")
PATIENCE = 150


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stalled"])
def test_the_other_rank_ends_with_the_collective_and_its_group(tmp_path, how):
    """Each rank has a launcher of its own, as on two machines: one launcher would kill the other rank at once."""
    programs, port = Path(sys.executable).parent, free_port()
    environment = {**os.environ, "MS_DEV_LAUNCH_BLOCKING": "1", "PYTHONPATH": str(SCRIPT.parents[2]),
                   "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    jobs = []
    try:
        for rank in range(2):
            command = [str(programs / "msrun"), "--worker_num=2", "--local_worker_num=1", f"--node_rank={rank}",
                       "--master_addr=127.0.0.1", f"--master_port={port}", f"--log_dir={tmp_path / str(rank)}",
                       "--join=True", str(SCRIPT), how]
            jobs.append(subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL))
        assert jobs[0].wait(PATIENCE) != 0
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    said = (tmp_path / "0" / "worker_0.log").read_text(encoding="utf-8", errors="replace")
    assert "one forward" in said and "ended after" in said
    assert "all_reduce over group" in said and "of ranks (0, 1), on rank 0" in said
