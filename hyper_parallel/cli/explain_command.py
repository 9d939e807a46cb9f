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
"""`hyper-parallel explain NAME`: everything about one parameter."""
import argparse

from hyper_parallel.cli.planning import (
    UsageError, add_planning_arguments, planning_options, size_of_axis, write_json)
from hyper_parallel.distributed.plan_json import plan_to_dict
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan

HELP = "say everything about one parameter: what it is, where it lies, all the evidence and what lost"


def add_arguments(parser: argparse.ArgumentParser):
    """The command's arguments."""
    parser.add_argument("name", metavar="NAME", help="dotted path of the parameter")
    add_planning_arguments(parser)
    parser.add_argument("--plan", metavar="PLAN.json", help="read a plan instead of making one")
    parser.add_argument("--json", metavar="FILE", help="write it here as JSON; - for standard output")


def run(arguments: argparse.Namespace) -> int:
    """Explain.

    Raises:
        ValueError: the plan is refused, or has no such parameter.
    """
    if bool(arguments.plan) == bool(arguments.model):
        raise UsageError("give one of --model and --plan")
    made = ShardingPlan.load(arguments.plan) if arguments.plan else plan(
        arguments.model, tp=size_of_axis(arguments.tp), **planning_options(arguments))
    text = made.explain(arguments.name)
    if arguments.json:
        write_json({"name": arguments.name, **plan_to_dict(made)["parameters"][arguments.name]}, arguments.json)
    if arguments.json != "-":
        print(text)
    return 0
