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
"""Arguments that several commands share: a model, and how to plan it."""
import argparse
import json
from pathlib import Path
from typing import Any, Dict

import yaml

from hyper_parallel.distributed.overrides import check_key


class UsageError(ValueError):
    """The command line itself is wrong."""


_SWITCHES = ("sequence_parallel", "kv_replication", "vocab_padding")


def add_planning_arguments(parser: argparse.ArgumentParser):
    """A model and the options of its plan."""
    parser.add_argument("--model", metavar="FOLDER|INVENTORY", help="a folder with config.json and *.safetensors, or "
                        "an inventory JSON; only names and shapes are read")
    parser.add_argument("--tp", default="1", metavar="N", help="size of the tensor-parallel axis (default %(default)s)")
    parser.add_argument("--config", metavar="YAML", help="a file with parallel_config.auto_tp_config, or its contents: "
                        "rules and overrides are taken from it")
    add_switch_arguments(parser)


def add_switch_arguments(parser: argparse.ArgumentParser):
    """The switches of a plan."""
    parser.add_argument("--sequence-parallel", action="store_true", help="cut activations between regions")
    parser.add_argument("--loss-parallel", action="store_true", help="keep the logits cut over the vocabulary")
    parser.add_argument("--no-kv-replication", dest="kv_replication", action="store_false",
                        help="refuse fewer kv heads than ranks")
    parser.add_argument("--no-vocab-padding", dest="vocab_padding", action="store_false",
                        help="refuse a vocabulary that tp does not divide")
    parser.add_argument("--unknown", choices=("error", "replicate"), default="error",
                        help="what to do with a parameter that nothing decides (default %(default)s)")


def read_config(path: str) -> Dict[str, Any]:
    """Rules, overrides and switches of a YAML file.

    Raises:
        ValueError: the file does not exist, holds no mapping, or has an unknown key.
    """
    if path is None:
        return {}
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"no configuration at {path!r}")
    data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if not isinstance(data, dict):
        raise ValueError(f"{path!r} holds no mapping")
    section = data.get("parallel_config", data)
    section = (section or {}).get("auto_tp_config", section if "parallel_config" not in data else {}) or {}
    known = ("rules", "overrides", "unknown", "loss_parallel", "report") + _SWITCHES
    for key in section:
        check_key(key, known, f"auto_tp_config of {path}")
    return {key: section[key] for key in section if key != "report"}


def planning_options(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Keyword arguments of `plan`, the file's under the command line's."""
    options = read_config(arguments.config)
    for name in ("sequence_parallel", "loss_parallel"):
        if getattr(arguments, name):
            options[name] = True
    for name in ("kv_replication", "vocab_padding"):
        if not getattr(arguments, name):
            options[name] = False
    if arguments.unknown != "error":
        options["unknown"] = arguments.unknown
    return options


def size_of_axis(text: str) -> int:
    """The number after --tp.

    Raises:
        UsageError: it is no positive integer.
    """
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--tp {text!r}: give a positive integer, or auto")
    return int(text)


def write_json(data: Any, file: str):
    """To a file, or to standard output for `-`."""
    text = json.dumps(data, indent=1)
    if file == "-":
        print(text)
        return
    write_text(text + "\n", file)


def write_text(text: str, file: str):
    """To a file whose folder may not exist yet.

    Raises:
        OSError: it cannot be written; the message names the file and the reason.
    """
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(f"cannot write {file!r}: {error.strerror or error}; give a file in a folder that can be "
                      "written") from error
