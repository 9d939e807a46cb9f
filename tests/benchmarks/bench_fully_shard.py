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
"""What `fully_shard` costs: its hooks alone, and a step of FSDP x TP beside plain data parallelism.

    python tests/benchmarks/bench_fully_shard.py                 hooks, one process, collectives stubbed out
    msrun --worker_num=4 ... tests/benchmarks/bench_fully_shard.py --steps    a step at 2 x 2 beside 4 replicas

The hooks are timed in pairs, bare and sharded in turn in one process; the figure is the median of the pairs' ratios.
In the stub of two ranks a gather gives this rank's part twice and a reduce-scatter this rank's half, by copies alone.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import mindspore
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

# pylint: disable=wrong-import-position
import hyper_parallel as hp  # noqa: E402
from hyper_parallel.core.collectives import functional  # noqa: E402
from hyper_parallel.core.collectives.groups import Group  # noqa: E402
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward  # noqa: E402
from tests.models.decoder import Decoder, DecoderConfig, randomize  # noqa: E402


def decoder(hidden, layers):
    """A decoder of this width."""
    return randomize(Decoder(DecoderConfig(
        vocab_size=512, hidden_size=hidden, intermediate_size=3 * hidden, num_attention_heads=8, num_key_value_heads=4,
        num_hidden_layers=layers, head_dim=hidden // 8)))


def batch(size, length):
    """Token ids."""
    return mindspore.Tensor(np.random.default_rng(0).integers(0, 512, (size, length)).astype(np.int32))


def step(model, ids):
    """Seconds of a forward and a backward, gradients read."""
    start = time.perf_counter()
    model(ids).mean().backward()
    for one in model.trainable_params():
        gradient = one._grad if getattr(one, "main_gradient", None) is None else one.main_grad.to_local()
    gradient.asnumpy()
    seconds = time.perf_counter() - start
    if hasattr(model, "zero_grad"):
        model.zero_grad()
    else:
        for one in model.trainable_params():
            one._grad = None
    return seconds


def stub(kind, group, *arguments, **_):
    """A collective of two ranks without the other rank."""
    del group, arguments
    if kind == "all_gather":
        return lambda x: mindspore.mint.cat((x, x), 0)
    if kind == "reduce_scatter":
        return lambda x: mindspore.mint.narrow(x, 0, 0, x.shape[0] // 2).copy()
    return lambda x: x


def hooks(hidden, layers, size, length, pairs):
    """Ratio of the sharded model to the bare one, collectives stubbed out."""
    enable_backward()
    bare, sharded = decoder(hidden, layers), decoder(hidden, layers)
    mesh = hp.DeviceMesh("npu", (2,), ("fsdp",), (0, 1))
    pair = Group("two", (0, 1), 0)
    with mock.patch.object(functional, "make", stub), mock.patch.object(type(mesh), "get_group", lambda *_: pair):
        for layer in sharded.layers:
            hp.fully_shard(layer, mesh=mesh)
        hp.fully_shard(sharded, mesh=mesh)
        ids = batch(size, length)
        for model in (bare, sharded, bare, sharded):
            step(model, ids)
        ratios = []
        for number in range(pairs):
            order = (bare, sharded) if number % 2 else (sharded, bare)
            seconds = {id(model): step(model, ids) for model in order}
            ratios.append(seconds[id(sharded)] / seconds[id(bare)])
    return statistics.median(ratios), seconds[id(bare)]


def steps(hidden, layers, size, length, pairs):
    """Median seconds of a step: (4 replicas, 2 shards x 2 tensor-parallel ranks), on the same rows."""
    enable_backward()
    grid = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    replicas = hp.init_device_mesh("npu", (4, 1), mesh_dim_names=("dp", "one"))
    plain = hp.fully_shard(decoder(hidden, layers), mesh=replicas)
    both = decoder(hidden, layers)
    hp.apply(both, hp.plan(both, tp=2), grid["tp"])
    for layer in both.layers:
        hp.fully_shard(layer, mesh=grid["fsdp"])
    hp.fully_shard(both, mesh=grid["fsdp"])
    rank, ids = mindspore.communication.get_rank(), batch(size, length)
    quarter, half = size // 4, size // 2
    rows = {id(plain): ids[rank * quarter:(rank + 1) * quarter], id(both): ids[rank // 2 * half:(rank // 2 + 1) * half]}
    taken = {id(plain): [], id(both): []}
    for number in range(pairs + 2):
        for model in (plain, both):
            seconds = step(model, rows[id(model)])
            if number > 1:
                taken[id(model)].append(seconds)
    return statistics.median(taken[id(plain)]), statistics.median(taken[id(both)])


def main():
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true", help="time steps on 4 ranks")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=21)
    options = parser.parse_args()
    mindspore.set_device("CPU")
    sizes = (options.hidden, options.layers, options.batch, options.length, options.pairs)
    if options.steps:
        mindspore.communication.init()
        plain, both = steps(*sizes)
        if mindspore.communication.get_rank() == 0:
            print(f"4 replicas {plain * 1e3:.0f} ms a step, FSDP 2 x TP 2 {both * 1e3:.0f} ms: {both / plain:.2f} x")
    else:
        ratio, bare = hooks(*sizes)
        print(f"hooks with collectives stubbed out: {ratio:.3f} x the bare model ({bare * 1e3:.0f} ms a step)")


if __name__ == "__main__":
    main()
