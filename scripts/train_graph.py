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
#!/usr/bin/env python3
"""Train in MindFormers' graph mode: build the context, then MindFormers' trainer does the rest.

    msrun_train.sh --script scripts/train_graph.py --config FILE -- --network configs/graph_network.py

With `parallel_config.auto_tp: true` strategies are planned while MindFormers builds the network; docs/graph_mode.md.
"""
import argparse
import importlib
import os
import sys
from pathlib import Path

import yaml

SIZES = ("data_parallel", "model_parallel", "context_parallel", "pipeline_stage")


def parse(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="MindFormers' graph-mode configuration (YAML)")
    parser.add_argument("--network", help="a Python file that registers a network of one's own with MindFormers")
    parser.add_argument("--describe", action="store_true", help="print the device and the number of processes, and end")
    return parser.parse_args(arguments)


def describe(file):
    """`device processes` of a configuration, before anything is started."""
    config = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    sizes, processes = config.get("parallel_config") or {}, 1
    for key in SIZES:
        size = sizes.get(key, 1)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            sys.exit(f"error: parallel_config.{key} is {size!r}: a positive whole number is needed")
        processes *= size
    started = os.environ.get("MS_WORKER_NUM")
    if started and int(started) != processes:
        sys.exit(f"error: {started} processes do not make up the {processes} of parallel_config "
                 f"({' x '.join(f'{key} {sizes.get(key, 1)}' for key in SIZES)})")
    return f"{(config.get('context') or {}).get('device_target', 'Ascend')} {processes}"


def main(arguments=None):
    """Entry point."""
    options = parse(arguments)
    if not Path(options.config).is_file():
        sys.exit(f"error: there is no configuration {options.config}")
    if options.describe:
        print(describe(options.config))
        return
    from mindformers import MindFormerConfig, Trainer
    from mindformers.core.context import build_context
    if options.network:
        sys.path.insert(0, str(Path(options.network).resolve().parent))
        importlib.import_module(Path(options.network).stem)
    config = MindFormerConfig(options.config)
    build_context(config)
    Trainer(config).train()


if __name__ == "__main__":
    main()
