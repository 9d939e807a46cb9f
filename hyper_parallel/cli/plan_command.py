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
"""`hyper-parallel plan`: plan a folder or an inventory, in one process and without a device."""
import argparse
import sys
from typing import Any, Dict

from rich.console import Console

from hyper_parallel.cli.planning import (
    UsageError, add_planning_arguments, planning_options, size_of_axis, write_json, write_text)
from hyper_parallel.distributed.estimate import parse_bytes, recommend
from hyper_parallel.distributed.explain import print_report
from hyper_parallel.distributed.html_report import html_report
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.overrides import read_user_words
from hyper_parallel.distributed.plan_diff import diff_plans
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.recipe_spec import SCHEMA_VERSION, ShardingPlan
from hyper_parallel.distributed.repeats import paused_collection
from hyper_parallel.distributed.report import make_report
from hyper_parallel.distributed.tensor_parallel.evidence import EvidenceClassifier

HELP = "plan a model and print the report"
_WIDTH = 160


def add_arguments(parser: argparse.ArgumentParser):
    """The command's arguments."""
    add_planning_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the plan here; - for standard output, without the report")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page of HTML")
    parser.add_argument("--diff", metavar="OLD.json", help="say what changed since a plan")
    parser.add_argument("--device-memory", metavar="SIZE", help="with --tp auto: memory of a device, for example 64GB")
    parser.add_argument("--world", type=int, metavar="N", help="with --tp auto: number of devices")


def run(arguments: argparse.Namespace) -> int:
    """Plan and report.

    Raises:
        ValueError: the plan is refused.
    """
    if not arguments.model:
        raise UsageError("--model is missing: give a folder with config.json and *.safetensors, or an inventory JSON")
    inventory = take_inventory(arguments.model)
    options = planning_options(arguments)
    if arguments.tp == "auto":
        if not arguments.device_memory or not arguments.world:
            raise UsageError("--tp auto needs --device-memory SIZE and --world N")
        found = recommend(inventory, parse_bytes(arguments.device_memory), arguments.world, options)
        print("\n".join(found.reasons), file=sys.stderr)
        size = found.tp
    else:
        size = size_of_axis(arguments.tp)
    try:
        made = plan(inventory, tp=size, **options)
    except ValueError as refused:
        if arguments.json:
            write_json(_refusal(inventory, size, options, refused), arguments.json)
        raise
    if arguments.json:
        write_json(made.to_dict(), arguments.json)
    if arguments.html:
        write_text(html_report(made), arguments.html)
    if arguments.diff:
        print("\n".join(diff_plans(ShardingPlan.load(arguments.diff), made)))
    elif arguments.json != "-":
        with paused_collection():
            print_report(make_report(made), Console(width=None if sys.stdout.isatty() else _WIDTH))
    return 0


def _refusal(inventory, size: int, options: Dict[str, Any], refused: ValueError) -> Dict[str, Any]:
    """What is decided, what is not, and why the plan is refused."""
    try:
        rules, _ = read_user_words(options.get("rules"), options.get("overrides"))
        decided, undecided = EvidenceClassifier(inventory, rules, options.get("unknown", "error")).classify_all()
    except ValueError:  # the refusal is about the rules themselves
        decided, undecided = {}, {}
    return {
        "schema": SCHEMA_VERSION, "tp": size, "error": str(refused),
        "parameters": {path: {"role": one.role.name, "evidence": list(one.reasons), "rejected": list(one.rejected),
                              "global_shape": list(inventory.parameters[path].shape)} for path, one in decided.items()},
        "undecided": {path: {"global_shape": list(one.shape), "why": one.why, "candidates": list(one.candidates)}
                      for path, one in undecided.items()}, "modules": {}}
