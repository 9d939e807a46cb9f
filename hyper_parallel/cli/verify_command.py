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
"""`hyper-parallel verify`: the same numbers at tp=N as at tp=1? Starts its own msrun job."""
import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

import yaml

from hyper_parallel.cli.job import last_lines, run_job
from hyper_parallel.cli.planning import UsageError, add_switch_arguments, planning_options, size_of_axis, write_json
from hyper_parallel.distributed.verify import MODES
from hyper_parallel.integrations.mindformers.switch import SECTION

HELP = "compare a model at tp=N with tp=1: outputs and every gradient"
WORKER = Path(__file__).with_name("verify_worker.py")


def add_arguments(parser: argparse.ArgumentParser):
    """The command's arguments."""
    parser.add_argument("--config", metavar="YAML", help="a MindFormers PyNative training configuration; with --build, a "
                        "file with rules and overrides")
    parser.add_argument("--set", dest="changes", metavar="KEY=VALUE", action="append", default=[],
                        help="change a key of the configuration's section model, such as num_hidden_layers=2")
    parser.add_argument("--build", metavar="MODULE:FUNCTION", help="a function without arguments that builds a Cell")
    parser.add_argument("--inputs", metavar="MODULE:FUNCTION", help="gives the Cell's inputs, one Tensor or several; "
                        "default: random token ids below its config's vocab_size")
    parser.add_argument("--tp", metavar="N", help="ranks (default: the configuration's model_parallel)")
    parser.add_argument("--plan", metavar="PLAN.json", help="with --build: a plan to put to the proof")
    parser.add_argument("--mode", choices=MODES, default="pynative", help="with --build: how both run (%(default)s)")
    parser.add_argument("--batch", type=int, default=2, metavar="N", help="sequences (default %(default)s)")
    parser.add_argument("--length", type=int, default=16, metavar="N", help="their length (default %(default)s)")
    parser.add_argument("--tolerance", type=float, default=1e-4, metavar="X",
                        help="largest relative difference that passes (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of weights and inputs (default %(default)s)")
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="rows of the table (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS",
                        help="after which the job is stopped (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the report here; - for standard output, without the table")
    add_switch_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Start the job, and report.

    Raises:
        UsageError: the command line says too little or too much.
        ValueError: the configuration cannot be read.
    """
    job = _job(arguments)
    with tempfile.TemporaryDirectory(prefix="hyper_parallel_verify_") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        in_time = run_job(WORKER, [str(folder / "job.json")], job["tp"], folder, arguments.timeout)
        report, refused = folder / "report.json", sorted(folder.glob("refused_*.txt"))
        if not report.exists():
            print(_failure(folder, refused, in_time, arguments.timeout), file=sys.stderr)
            return 1
        found = json.loads(report.read_text(encoding="utf-8"))
        table = (folder / "report.txt").read_text(encoding="utf-8")
    if arguments.json:
        write_json(found, arguments.json)
    if arguments.json != "-":
        print(table.rstrip())
    return 0 if found["ok"] else 1


def _job(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What the processes read."""
    if not arguments.build and not arguments.config:
        raise UsageError("give --config with a MindFormers configuration, or --build MODULE:FUNCTION")
    job = {name: getattr(arguments, name) for name in ("batch", "length", "tolerance", "seed", "rows")}
    if arguments.build:
        if arguments.changes:
            raise UsageError("--set changes a MindFormers configuration, and --build has none")
        if not arguments.tp:
            raise UsageError("--build needs --tp N")
        for option in ("build", "inputs"):
            if getattr(arguments, option) and getattr(arguments, option).count(":") != 1:
                raise UsageError(f"--{option} {getattr(arguments, option)!r}: write MODULE:FUNCTION")
        options = planning_options(arguments)
        if arguments.plan and options:
            raise UsageError(f"--plan is a finished plan, and {', '.join(options)} would make another one")
        job.update(build=arguments.build, inputs=arguments.inputs, mode=arguments.mode, plan=arguments.plan,
                   options=options)
        job["tp"] = size_of_axis(arguments.tp)
    else:
        for option in ("inputs", "plan"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} goes with --build")
        if arguments.mode != "pynative":
            raise UsageError("a MindFormers PyNative configuration is verified in PyNative: leave --mode away")
        job["config"] = _with_switches(_configuration(arguments.config, arguments.changes), arguments)
        said = arguments.tp or str((job["config"].get(SECTION) or {}).get("model_parallel", 1))
        job["tp"] = size_of_axis(said)
    if job["tp"] < 2:
        raise UsageError("verify compares several ranks with one: give --tp 2 or more")
    return job


def _configuration(path: str, changes) -> Dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"no configuration at {path!r}")
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise ValueError(f"{path!r} has no section 'model': give a MindFormers PyNative configuration, or a Cell with "
                         "--build MODULE:FUNCTION")
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or key.removeprefix("model.") not in config["model"]:
            raise UsageError(f"--set {change}: write KEY=VALUE with a key of the section model: "
                             f"{', '.join(config['model'])}")
        config["model"][key.removeprefix("model.")] = yaml.safe_load(value)
    return config


def _with_switches(config: Dict[str, Any], arguments: argparse.Namespace) -> Dict[str, Any]:
    section = config.setdefault(SECTION, {})
    if arguments.sequence_parallel:
        section["use_seq_parallel"] = True
    words = {name: False for name in ("kv_replication", "vocab_padding") if not getattr(arguments, name)}
    if arguments.loss_parallel:
        words["loss_parallel"] = True
    if arguments.unknown != "error":
        words["unknown"] = arguments.unknown
    if words:
        section["auto_tp_config"] = {**(section.get("auto_tp_config") or {}), **words}
    return config


def _failure(folder: Path, refused, in_time: bool, timeout: float) -> str:
    if refused:
        return f"refused: {refused[0].read_text(encoding='utf-8')}"
    said = "\n".join(last_lines(folder, 0)) or (folder / "msrun.log").read_text(encoding="utf-8", errors="replace")[-2000:]
    return said + ("\nfailed: the job ended without a report" if in_time else
                   f"\nfailed: the job had no report after {timeout:g} s, and was stopped; --timeout gives it longer")
