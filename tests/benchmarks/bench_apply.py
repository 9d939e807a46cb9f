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
"""How long binding and applying a plan take for a model of many layers.

    python tests/benchmarks/bench_apply.py [--layers 1000] [--repeats 3] [--json]

One process: the mesh says that it has two ranks, and nothing communicates. The model is narrow, so that the figures are
those of hooks, head counts and bookkeeping, not of copying weights. Medians over the repeats, in seconds.
"""
import argparse
import json
import statistics
import time

import mindspore

import hyper_parallel as hp
from hyper_parallel.distributed import applier
from tests.models.decoder import Decoder, DecoderConfig
from tests.models.one_process import MeshOfOneProcess


def measure(layers):
    """Seconds of plan, bind and apply, and what apply spends apart from cutting weights."""
    cell = Decoder(DecoderConfig(num_hidden_layers=layers, num_key_value_heads=4))
    start = time.process_time()
    plan = hp.plan(cell, tp=2)
    planned = time.process_time()
    plan.bind(cell)
    bound = time.process_time()
    cutting = 0.0
    cut = applier.local_parameter.cut

    def timed(*arguments):
        nonlocal cutting
        begin = time.process_time()
        result = cut(*arguments)
        cutting += time.process_time() - begin
        return result

    applier.local_parameter.cut = timed
    try:
        begin = time.process_time()
        hp.apply(cell, plan, MeshOfOneProcess())
        applied = time.process_time() - begin
    finally:
        applier.local_parameter.cut = cut
    return {"plan and bind": planned - start, "bind": bound - planned, "apply": applied, "cut weights": cutting,
            "hooks": applied - cutting}


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mindspore.set_device("CPU")
    runs = [measure(options.layers) for _ in range(options.repeats)]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{options.layers} layers")
    for name, seconds in found.items():
        print(f"{name:16}{seconds:8.3f} s")


if __name__ == "__main__":
    main()
