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
"""`hyper-parallel COMMAND`: one small file per command in this folder.

A command is a module with `HELP`, `add_arguments(parser)` and `run(arguments) -> int`. Exit codes: 0 done, 1 refused or
failed, 2 a wrong command line.
"""
import argparse
import importlib
import importlib.util
import sys
from typing import Optional, Sequence

from hyper_parallel.cli.planning import UsageError

DONE, REFUSED, USAGE = 0, 1, 2
_FOLDER = "hyper_parallel.cli"
# commands by the module that has them; one that is not installed does not keep the others from running
COMMANDS = {"plan": "plan_command", "explain": "explain_command", "verify": "verify_command",
            "reshard": "reshard_command", "doctor": "doctor_command"}


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command that is there."""
    parser = argparse.ArgumentParser(prog="hyper-parallel", description="Tensor-parallel plans for MindSpore models.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        if importlib.util.find_spec(f"{_FOLDER}.{module_name}") is None:
            continue
        module = importlib.import_module(f"{_FOLDER}.{module_name}")
        one = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command.

    Args:
        argv: words after the program's name; None takes the process's own.

    Returns:
        The exit code.

    Examples:
        >>> main(["plan", "--model", "checkpoints/llama", "--tp", "4"])                              # doctest: +SKIP
        0
    """
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else USAGE
    try:
        return arguments.run(arguments)
    except UsageError as wrong:
        print(f"usage: {wrong}; see hyper-parallel {arguments.command} --help", file=sys.stderr)
        return USAGE
    except (ValueError, NotImplementedError) as refused:
        print(f"refused: {refused}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        return DONE
    except OSError as failed:
        print(f"failed: {failed}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
