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
"""What an automatically planned layer costs above the same layer written by hand, Megatron-style.

    python tests/benchmarks/bench_layer.py [--pairs 81] [--hidden 512] [--tokens 256] [--json]

Both are one block of attention and feed-forward layer with the same local weights. The one is planned and applied; the
other's author made local sizes and called the entry and exit of each region himself. They run in one process, forward
and backward, in turns; the figure is the median of the pairs' ratios of processor time, which other processes on the
machine disturb less than the clock's. The collective is replaced by one operator, since both have the same ones, and
communication would only hide the difference.

Primitive calls of one forward are those of MindSpore's compiled functions that the interpreter sees.
"""
import argparse
import collections
import json
import statistics
import sys
import time
import types

import mindspore
import numpy as np
from mindspore import Tensor, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives import functional, transitions
from hyper_parallel.core.collectives.transitions import Transition
from tests.models.decoder import MLP, Attention, Block, Decoder, DecoderConfig, randomize
from tests.models.one_process import MeshOfOneProcess


class HandWrittenAttention(Attention):
    """This rank's heads between an entry and an exit."""

    def __init__(self, config, group):
        super().__init__(config)
        self.enter, self.leave = Transition(transitions.ENTER_REPLICATED, group), Transition(transitions.REDUCE, group)

    def construct(self, hidden_states, cos, sin, mask):
        """The sum over the ranks."""
        return self.leave(super().construct(self.enter(hidden_states), cos, sin, mask))


class HandWrittenMLP(MLP):
    """This rank's columns between an entry and an exit."""

    def __init__(self, config, group):
        super().__init__(config)
        self.enter, self.leave = Transition(transitions.ENTER_REPLICATED, group), Transition(transitions.REDUCE, group)

    def construct(self, x):
        """The sum over the ranks."""
        return self.leave(super().construct(self.enter(x)))


def both_layers(hidden):
    """(hand-written, planned) with equal local weights."""
    sizes = {"hidden_size": hidden, "head_dim": 64, "qk_norm": False, "num_hidden_layers": 1}
    heads = hidden // 64
    whole = DecoderConfig(**sizes, num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=4 * hidden)
    local = DecoderConfig(**sizes, num_attention_heads=heads // 2, num_key_value_heads=heads // 2,
                          intermediate_size=2 * hidden)
    model, mesh = randomize(Decoder(whole)), MeshOfOneProcess()
    hp.apply(model, hp.plan(model, tp=2), mesh)
    planned, group = model.layers[0], mesh.get_group("tp")
    by_hand = Block(local, HandWrittenAttention(local, group), HandWrittenMLP(local, group))
    for (_, parameter), (_, value) in zip(by_hand.parameters_and_names(), planned.parameters_and_names()):
        parameter.set_data(Tensor(value.asnumpy()))
    return by_hand, planned


def step_of(layer, inputs):
    """A function that runs forward and backward and waits for the gradients."""
    parameters = mindspore.ParameterTuple(layer.trainable_params())
    gradient = mindspore.value_and_grad(lambda *given: ops.sum(layer(*given)), 0, parameters)

    def step():
        start = time.process_time()
        value, (of_input, _) = gradient(*inputs)
        of_input.asnumpy()  # the last gradient to be computed
        return time.process_time() - start, float(value.asnumpy())

    return step


def primitive_calls(layer, inputs):
    """Calls of MindSpore's compiled functions that compute (not those that only look) in one forward, by name."""
    calls = collections.Counter()

    def see(frame, event, argument):
        if event == "c_call" and argument.__name__.startswith(("pyboost_", "tensor_")):
            calls[argument.__name__] += 1

    sys.setprofile(see)
    try:
        layer(*inputs)
    finally:
        sys.setprofile(None)
    return sum(calls.values())


def measure(pairs, hidden, tokens):
    """The benchmark's figures."""
    backend = types.SimpleNamespace(make_all_reduce=lambda group, op: lambda x: x + 0.0,
                                    make_all_gather=lambda group, dim: lambda x: ops.concat((x, x), dim))
    functional.load_backend = lambda: backend
    by_hand, planned = both_layers(hidden)
    x = Tensor(np.random.default_rng(0).standard_normal((2, tokens // 2, hidden)).astype(np.float32))
    table = Tensor(np.ones((tokens // 2, 64), np.float32))
    inputs = (x, table, table, Tensor(np.zeros((tokens // 2, tokens // 2), np.float32)))
    steps = [step_of(layer, inputs) for layer in (by_hand, planned)]
    for step in steps * 3:
        step()
    ratios, seconds = [], ([], [])
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        found = {}
        for which in order:
            found[which], _ = steps[which]()
            seconds[which].append(found[which])
        ratios.append(found[1] / found[0])
    values = [step()[1] for step in steps]
    assert np.isclose(*values, rtol=1e-5), values
    calls = [primitive_calls(layer, inputs) for layer in (by_hand, planned)]
    assert calls[0] > 20, "the counting class sees the operators"
    return {"pairs": pairs, "by hand ms": 1e3 * statistics.median(seconds[0]),
            "planned ms": 1e3 * statistics.median(seconds[1]), "median ratio": statistics.median(ratios),
            "primitive calls by hand": calls[0], "extra primitive calls": calls[1] - calls[0], "collectives": 2}


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=81)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mindspore.set_device("CPU")
    found = measure(options.pairs, options.hidden, options.tokens)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:24}{value:10.4g}")


if __name__ == "__main__":
    main()
