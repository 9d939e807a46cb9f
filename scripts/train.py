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
"""Trains a MindFormers PyNative model on the text of this Python's documentation, from one YAML file.

    python scripts/train.py --config configs/qwen3_tiny_auto_tp.yaml --set parallel_config.model_parallel=1
    msrun --worker_num=2 --local_worker_num=2 scripts/train.py --config configs/qwen3_tiny_auto_tp.yaml

The parallelism comes from the section `parallel_config` of the file; nothing below is written for it.
"""
import argparse
import difflib
import logging
import os
import sys
import time
import traceback
from pathlib import Path

import yaml

from compare_runs import TOLERANCE, largest_difference_line, read_record, relative_differences

# The sections of a MindFormers PyNative configuration, and ours. MindFormers accepts any other name without a word.
SECTIONS = ("checkpoint", "training", "parallelism", "optimizer", "lr_scheduler", "train_dataset", "eval_dataset",
            "model", "monitor", "context", "profiler", "recompute", "recompute_comm", "swap", "callbacks",
            "lora_config", "parallel_config")
# Inside these, too, MindFormers accepts any name: --set may change a key there, but not bring a new one.
OPEN_SECTIONS = ("model", "optimizer", "lr_scheduler", "callbacks")


class UserError(ValueError):
    """Something in the arguments or the configuration that its author can put right."""


def parse_args(argv=None):
    """The command line; prints a usage message and exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a key of the file, dots between the levels, the value in YAML; may be repeated")
    parser.add_argument("--record", metavar="FILE", help="write losses and settings of the run to this JSON file")
    parser.add_argument("--reference", metavar="FILE", help="a record to compare the losses with when training ends")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE,
                        help="largest relative difference from the reference that is accepted (default %(default)s)")
    parser.add_argument("--output", default="output", metavar="DIR",
                        help="directory for the tokenizer, logs and checkpoints (default %(default)s)")
    parser.add_argument("--describe", action="store_true",
                        help="check the arguments, print device and number of processes, and stop")
    parser.add_argument("--verbose", action="store_true", help="show MindFormers' log and the traceback of an error")
    return parser.parse_args(argv)


def load_config(path, overrides=()):
    """The configuration of a file with overrides applied, as nested dicts; `UserError` for whatever is wrong in it."""
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no sections: a mapping is needed at its top level")
    for override in overrides:
        apply_override(config, override)
    for name, section in config.items():
        if name not in SECTIONS:
            raise UserError(f"{name} is not a section of the configuration{nearest(name, SECTIONS)}")
        if section is not None and not isinstance(section, list if name == "callbacks" else dict):
            raise UserError(f"the section {name} of the configuration holds {section!r} instead of keys")
    return config


def apply_override(config, override):
    """Carries out one `a.b.c=value` in place."""
    name, equals, text = override.partition("=")
    *parents, last = name.split(".")
    if not equals or not parents or not all([*parents, last]):
        raise UserError(f"--set {override}: write SECTION.KEY=VALUE")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {override}: the value is not YAML") from None
    if parents[0] not in SECTIONS:
        raise UserError(f"--set {override}: no section {parents[0]}{nearest(parents[0], SECTIONS)}")
    section = config
    for depth, key in enumerate(parents):
        section = section.setdefault(key, {}) if depth == 0 or parents[0] not in OPEN_SECTIONS else section.get(key)
        if not isinstance(section, dict):
            raise UserError(f"--set {override}: {'.'.join(parents[:depth + 1])} has no keys below it")
    if parents[0] in OPEN_SECTIONS and last not in section:
        raise UserError(f"--set {override}: {'.'.join(parents)} has no key {last} in the file"
                        f"{nearest(last, section)}; a new key goes into the file, because MindFormers does not check "
                        "this section")
    section[last] = value


def nearest(name, known):
    """`; did you mean X?` for the known name that looks most like `name`, else nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def process_place():
    """(rank, world size) as the launcher gave them; (0, 1) without one."""
    world = int(os.environ.get("MS_WORKER_NUM") or os.environ.get("RANK_SIZE") or 1)
    if world > 1 and not os.environ.get("RANK_ID"):
        raise UserError("the launcher gave this process no RANK_ID: start msrun with --node_rank")
    return int(os.environ.get("RANK_ID") or 0), world


def parallel_sizes(config, world=None):
    """(tp, dp) for `world` processes, or for as many as the configuration asks for when None."""
    section = config.get("parallel_config") or {}
    tp = section.get("model_parallel", (config.get("parallelism") or {}).get("tensor_parallel", 1))
    dp = section.get("data_parallel")
    for name, value in (("model_parallel", tp), ("data_parallel", dp)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"parallel_config.{name} is {value!r}: a positive whole number is needed")
    world = world or tp * (dp or 1)
    if world % tp or dp and tp * dp != world:
        wanted = f"model_parallel {tp} x data_parallel {dp}" if dp else f"a multiple of model_parallel {tp}"
        raise UserError(f"the job has {world} process{'es' * (world > 1)}, the configuration asks for {wanted}: start "
                        f"{tp * (dp or 1)} with scripts/msrun_train.sh, or change parallel_config")
    return tp, world // tp


def required(config, section, key):
    """A value that the data needs to know."""
    value = (config.get(section) or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{section}.{key} is {value!r}: a positive whole number is needed")
    return value


def check_reference(reference, config):
    """`UserError` when the reference is no record of the same training."""
    steps = required(config, "training", "steps")
    if len(reference["loss"]) != steps:
        raise UserError(f"training.steps is {steps}, but the reference has {len(reference['loss'])} steps")
    for section in ("model", "training", "optimizer", "lr_scheduler"):
        theirs = reference.get("config", {}).get(section, {})
        for key, value in (config.get(section) or {}).items():
            if key in theirs and theirs[key] != value and key != "local_batch_size":
                raise UserError(f"{section}.{key} is {value}, but the reference was made with {theirs[key]}")


def device_target(config):
    """CPU or Ascend."""
    target = (config.get("context") or {}).get("device_target", "Ascend")
    if target not in ("CPU", "Ascend"):
        raise UserError(f"context.device_target is {target}: CPU and Ascend are supported")
    return target


def keep_the_screen_for_the_run():
    """Leaves MindFormers' log to its files and its table of renamed keys out: they would bury plan and progress bar."""
    from mindformers.parallel_core.transformer_config_utils import ConfigConversionTracer
    from mindformers.tools.logger import get_logger

    for handler in get_logger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.ERROR)
    ConfigConversionTracer.print_summary = lambda tracer: None


def run(args):
    """Checks, trains, compares; returns the exit code. Refuses what it can before MindSpore is loaded."""
    rank, world = process_place()
    config = load_config(args.config, args.overrides)
    device = device_target(config)
    tp, dp = parallel_sizes(config, None if args.describe and world == 1 else world)
    required(config, "training", "steps")
    data = {"vocab_size": required(config, "model", "vocab_size"), "seq_len": required(config, "model", "seq_length"),
            "global_batch_size": required(config, "training", "global_batch_size"),
            "seed": required(config, "training", "seed"), "dp_size": dp, "dp_rank": rank // tp}
    reference = read_record(args.reference) if args.reference else None
    if reference:
        check_reference(reference, config)
    if args.describe:
        print(device, tp * dp)
        return 0

    os.environ.setdefault("LOCAL_DEFAULT_PATH", args.output)
    os.environ.setdefault("LOG_MF_PATH", str(Path(args.output) / "log"))
    if not args.verbose:
        os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only
    import mindspore as ms
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device(device)
    if device == "CPU":
        # The queues between MindSpore's threads wait by spinning: with fewer cores than threads most time goes there.
        ms.runtime.launch_blocking()

    import hyper_parallel  # noqa: F401  pylint: disable=unused-import  # before MindFormers: it completes the CPU
    from hyper_parallel.integrations.mindformers.progress import TrainingProgress
    from mindformers.pynative.trainer import Trainer
    from pydoc_text import build_dataset

    if not args.verbose:
        keep_the_screen_for_the_run()
    progress = TrainingProgress(args.record, rank)
    dataset = build_dataset(Path(args.output) / "tokenizer", **data)
    Trainer(config=config, train_dataset=dataset, callbacks=[progress]).train()

    if reference and rank == 0:
        differences = relative_differences(reference["loss"], progress.history["loss"])
        print(largest_difference_line(differences), flush=True)
        if not max(differences) <= args.tolerance:
            raise UserError(f"the losses are more than {args.tolerance} away from those in {args.reference}")
    return 0


def main():
    """Runs the training and leaves with 0 or 1. An error is one line on every rank."""
    args = parse_args()
    try:
        code = run(args)
    except (ValueError, TypeError, NotImplementedError, FileNotFoundError) as error:
        if args.verbose:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if code and os.environ.get("MS_WORKER_NUM") and not args.describe:
        # msrun kills every rank as soon as one has failed: wait until the slower ones have said why, too. And leave
        # without the clean-up of MindSpore, which would wait for ranks that are blocked in a collective.
        time.sleep(3)
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
