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
"""What every process of `hyper-parallel verify` runs: `python verify_worker.py JOB.json`, under msrun."""
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np


def main(file: str):
    """Verify, and leave the report, or the reason of a refusal, beside the job."""
    folder = Path(file).parent
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    import mindspore  # pylint: disable=import-outside-toplevel
    mindspore.communication.init()
    rank = mindspore.communication.get_rank()
    try:
        report = _of_configuration(job) if "config" in job else _of_cell(job)
    except (ValueError, NotImplementedError) as refused:
        (folder / f"refused_{rank}.txt").write_text(str(refused), encoding="utf-8")
        return
    if rank == 0:
        (folder / "report.txt").write_text(report.table(job["rows"]), encoding="utf-8")
        # last, and by a rename: the command takes a report that is there for a whole one
        (folder / "report.part").write_text(json.dumps(report.to_dict()), encoding="utf-8")
        (folder / "report.part").rename(folder / "report.json")


def _of_configuration(job: Dict[str, Any]):
    from hyper_parallel.integrations.mindformers.verify import verify_config  # pylint: disable=import-outside-toplevel
    return verify_config(job["config"], job["tp"], tolerance=job["tolerance"], seed=job["seed"], length=job["length"],
                         batch=job["batch"])


def _of_cell(job: Dict[str, Any]):
    import hyper_parallel as hp  # pylint: disable=import-outside-toplevel
    build = import_function(job["build"])
    inputs = import_function(job["inputs"])() if job["inputs"] else token_ids(build(), job)
    plan = hp.ShardingPlan.load(job["plan"]) if job["plan"] else None
    return hp.verify(build, inputs, tp=job["tp"], mode=job["mode"], plan=plan, tolerance=job["tolerance"],
                     seed=job["seed"], **job["options"])


def import_function(name: str):
    """The function at `MODULE:FUNCTION`.

    Raises:
        ValueError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import {name}: {error}; modules are looked for in the current folder, in PYTHONPATH and "
                         "among the installed ones") from error


def token_ids(cell, job: Dict[str, Any]):
    """Random ids `[batch, length]` below the vocabulary that the Cell's `config` states.

    Raises:
        ValueError: it states none.
    """
    from mindspore import Tensor  # pylint: disable=import-outside-toplevel

    from hyper_parallel.distributed.model_facts import ModelFacts  # pylint: disable=import-outside-toplevel
    config = getattr(cell, "config", None)
    vocabulary = ModelFacts.from_config(config).vocab_size if config is not None else None
    if not vocabulary:
        raise ValueError(f"{type(cell).__name__} has no config with a vocab_size to draw token ids from: give its inputs "
                         "with --inputs MODULE:FUNCTION")
    ids = np.random.default_rng(job["seed"]).integers(0, vocabulary, (job["batch"], job["length"]))
    return Tensor(ids.astype(np.int32))


if __name__ == "__main__":
    main(sys.argv[1])
