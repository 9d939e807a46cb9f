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
"""What an operator on DTensors costs above the bare operator on plain tensors, and what plain operators pay meanwhile.

    python tests/benchmarks/bench_dispatch.py [--rounds 201] [--calls 20] [--json]

The baseline is the same operator on the local tensors, in the same process, alternating with the measured one round by
round. PyNative launches asynchronously: `launch` is the time until the call returns, measured with the queue drained
between rounds; `cpu` is the calling thread's own processor time in it; `complete` includes the drain, so it is what the
device needs when that is longer (with MS_DEV_LAUNCH_BLOCKING=1 the calling thread computes, and both are one). Few calls
a round, because PyNative's queue is bounded and a full one makes every call wait. One process, a mesh of one rank: no
collective runs.

Other processes on the machine only ever add time, so `bare` and `measured` are the 5th percentiles of the rounds, and
`above` is their difference; `median` is the median of the paired differences, which grows with the load.
"""
import argparse
import gc
import json
import statistics
import time

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint

from hyper_parallel.core.dtensor import dispatch_hooks
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Shard

KINDS = ("launch", "cpu", "complete")


def seconds_per_call(function, calls):
    """`(launch, cpu, complete)` of one round."""
    mindspore.runtime.synchronize()
    start, busy = time.perf_counter(), time.thread_time()
    for _ in range(calls):
        function()
    launched, busy = time.perf_counter() - start, time.thread_time() - busy
    mindspore.runtime.synchronize()
    return launched / calls, busy / calls, (time.perf_counter() - start) / calls


def quiet(values):
    """The 5th percentile."""
    return sorted(values)[len(values) // 20]


def figures(name, pairs):
    """Microseconds of the baseline, of the measured one, and of the difference."""
    row = {"operator": name}
    for position, kind in enumerate(KINDS):
        bare, measured = (1e6 * quiet([pair[side][position] for pair in pairs]) for side in (0, 1))
        row[kind] = {"bare": bare, "measured": measured, "above": measured - bare, "median": 1e6 * statistics.median(
            second[position] - first[position] for first, second in pairs)}
    return row


def compare(name, bare, measured, rounds, calls):
    """A row of the table."""
    for function in (bare, measured):
        seconds_per_call(function, calls)
    return figures(name, [(seconds_per_call(bare, calls), seconds_per_call(measured, calls)) for _ in range(rounds)])


def dispatched_rows(rounds, calls):
    """Operators on DTensors against the same on their locals."""
    mesh = init_device_mesh("npu", (1,), mesh_dim_names=("tp",))
    local = Tensor(np.ones((4, 8), np.float32))
    weight = Tensor(np.ones((8, 8), np.float32))
    x = DTensor.from_local(local, mesh, (Shard(0),))
    cases = {
        "x * 2": (lambda: local * 2, lambda: x * 2),
        "x + x": (lambda: local + local, lambda: x + x),
        "exp(x)": (lambda: mint.exp(local), lambda: mint.exp(x)),
        "plain * x": (lambda: local * local, lambda: local * x),
        "x + plain": (lambda: local + local, lambda: x + local),
        "sum(x, -1)": (lambda: mint.sum(local, -1), lambda: mint.sum(x, -1)),
        "x.reshape(8, 4)": (lambda: local.reshape(8, 4), lambda: x.reshape(8, 4)),
        "matmul(x, plain)": (lambda: mint.matmul(local, weight), lambda: mint.matmul(x, weight)),
        "x[:, 0]": (lambda: local[:, 0], lambda: x[:, 0]),
    }
    return [compare(name, bare, measured, rounds, calls) for name, (bare, measured) in cases.items()]


def plain_rows(rounds, calls):
    """Plain operators while DTensors are at work against the same without any."""
    mesh = init_device_mesh("npu", (1,), mesh_dim_names=("tp",))
    tensor, parameter = Tensor(np.ones((4, 8), np.float32)), Parameter(Tensor(np.ones((4, 8), np.float32)), name="p")
    cases = {"tensor * 2": lambda: tensor * 2, "parameter * 2": lambda: parameter * 2, "tensor[0]": lambda: tensor[0]}
    rows = []
    for name, function in cases.items():
        alive = []

        def without():
            alive.clear()

        def covered():
            alive.append(DTensor.from_local(tensor, mesh, (Shard(0),)))

        pairs = []
        for _ in range(rounds):
            without()
            gc.collect()
            assert not dispatch_hooks.installed()
            bare = seconds_per_call(function, calls)
            covered()
            pairs.append((bare, seconds_per_call(function, calls)))
        without()
        rows.append(figures(name, pairs))
    return rows


def table(title, rows):
    """The rows as text."""
    columns = "".join(f"{kind + ': bare':>15}{'measured':>10}{'above':>7}{'median':>8}" for kind in KINDS)
    lines = [title, f"{'microseconds':18}{columns}"]
    for row in rows:
        lines.append(f"{row['operator']:18}" + "".join(
            f"{row[kind]['bare']:15.1f}{row[kind]['measured']:10.1f}{row[kind]['above']:7.1f}{row[kind]['median']:8.1f}"
            for kind in KINDS))
    return "\n".join(lines)


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mindspore.set_device("CPU")
    plain = plain_rows(options.rounds, options.calls)
    dispatched = dispatched_rows(options.rounds, options.calls)
    if options.json:
        print(json.dumps({"dispatched": dispatched, "plain": plain}, indent=1))
        return
    print(table("Operators on DTensors, above the same operator on the local tensors", dispatched))
    print(table("Plain operators while DTensors are at work, above the same without any DTensor", plain))


if __name__ == "__main__":
    main()
