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
"""What redistribution costs on the host: planning, a change that is none, wrapping, and a step over autograd.

    python tests/benchmarks/bench_redistribute.py [--json]

Needs no process group: collectives are counted and timed elsewhere, on CPU their wall-clock says nothing. Medians of
repeated runs in one process, in microseconds.
"""
import argparse
import itertools
import json
import statistics
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor

from hyper_parallel.core.dtensor import redistribute_plan
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.redistribute_plan import find_plan

R, P, S = Replicate(), Partial(), Shard
PLANS = {
    "8: Shard(0) -> Shard(1)": ((4096, 4096), (8,), (S(0),), (S(1),)),
    "2x4: Partial, Shard(0) -> Shard(1), Shard(0)": ((4096, 4096), (2, 4), (P, S(0)), (S(1), S(0))),
    "2x2x2: FSDP in TP -> Shard(1) over all": ((4096, 4096), (2, 2, 2), (StridedShard(0, 4), S(0), S(0)), (S(1),) * 3),
    "8x8x64: Partial on tp -> Shard": ((4096, 4096), (8, 8, 64), (R, S(0), P), (S(0), R, S(1))),
}


def median(function, repeats, inner=1):
    """Median microseconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            function()
        times.append((time.perf_counter() - start) / inner * 1e6)
    return statistics.median(times)


def cold(arguments):
    """A plan that nobody asked for before."""
    redistribute_plan._shortest.cache_clear()
    find_plan(*arguments)


def worst_of_all_pairs():
    """The slowest plan between all placements on 2 x 2 x 2 ranks."""
    placements = list(itertools.product((R, P, S(0), S(1)), repeat=3))
    worst = 0
    for src, dst in itertools.islice(itertools.product(placements, placements), 0, None, 17):
        start = time.process_time()
        cold(((64, 64), (2, 2, 2), src, dst))
        worst = max(worst, (time.process_time() - start) * 1e6)
    return worst


def measure():
    """All figures, by name."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    figures = {f"plan cold, {name}": median(lambda arguments=arguments: cold(arguments), 7)
               for name, arguments in PLANS.items()}
    figures["plan cold, worst pair on 2x2x2 (CPU time)"] = worst_of_all_pairs()
    arguments = PLANS["2x4: Partial, Shard(0) -> Shard(1), Shard(0)"]
    figures["plan again"] = median(lambda: find_plan(*arguments), 21, 100)
    mesh, local = DeviceMesh("cpu", (1,), ("tp",)), Tensor(np.ones((64, 64), np.float32))
    made = DTensor.from_local(local, mesh, (S(1),))
    figures["DTensor.from_local"] = median(lambda: DTensor.from_local(local, mesh, (S(1),)), 21, 100)
    figures["to_local"] = median(made.to_local, 21, 100)
    figures["redistribute to the same, Shard(-1)"] = median(lambda: made.redistribute(mesh, (S(-1),)), 21, 100)
    figures["redistribute without a step (1 rank)"] = median(lambda: made.redistribute(mesh, (S(0),)), 21, 100)
    return figures


def main():
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="as data")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        print(json.dumps({"mindspore": ms.__version__, "microseconds": figures}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:60s} {value:12,.1f} us")


if __name__ == "__main__":
    main()
