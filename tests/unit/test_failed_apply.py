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
"""An apply that fails half-way leaves the model as it was: every parameter, every attribute, every forward."""
import types

import numpy as np
import pytest
from mindspore import Tensor

import hyper_parallel as hp
from hyper_parallel.distributed import applier, local_parameter
from hyper_parallel.distributed.verify import run
from tests.models.decoder import randomize
from tests.models.one_process import MeshOfOneProcess
from tests.models.written_otherwise import other_decoder

IDS = Tensor(np.arange(8, dtype=np.int32).reshape(1, 8))
HALVES = [{"match": "*.gate_up_proj.*", "fused_layout": "halves"}]


def decoder():
    """Heads, sizes, dropout as a Cell and as a function, norms inside of a layer."""
    return randomize(other_decoder(types.SimpleNamespace(
        vocab_size=32, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=24,
        rms_norm_eps=1e-6, rope_theta=10000.0, dropout=0.1)))


def test_a_failed_apply_leaves_the_model_as_it_was(monkeypatch):
    cell, untouched = decoder(), decoder()
    plan = hp.plan(cell, tp=2, overrides=HALVES)
    outputs, _ = run(cell, (IDS,))
    attributes = [dict(vars(module)) for _, module in cell.cells_and_names()]
    mesh = MeshOfOneProcess()
    steps = [(local_parameter, "cut"), (applier, "maybe_update_head_counts"), (applier, "apply_local_sizes"),
             (applier, "draw_own_numbers"), (applier, "draw_own_numbers_between"), (applier.edges, "leave_through"),
             (applier.edges, "enter_through"), (applier, "gradient_hook")]
    for module, name in steps:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, failing_at_the_second_call(getattr(module, name)))
            with pytest.raises(RuntimeError, match="injected"):
                hp.apply(cell, plan, mesh)
        assert applier.applied_state(cell) is None
        for (path, parameter), (_, expected) in zip(cell.parameters_and_names(), untouched.parameters_and_names()):
            assert np.array_equal(parameter.asnumpy(), expected.asnumpy()), (name, path)
        for before, (path, module_now) in zip(attributes, cell.cells_and_names()):
            now = vars(module_now)
            # MindSpore makes its tables of hooks when the first is registered; empty ones mean nothing
            different = [key for key in before if now.get(key) is not before[key] and now.get(key) != before[key]
                         and not (key.startswith("_lazy_") and not now[key] and not before[key])]
            assert not different and set(now) == set(before), (name, path, different, set(now) ^ set(before))
        assert np.array_equal(run(cell, (IDS,))[0]["output"], outputs["output"]), name
    hp.apply(cell, plan, mesh)
    assert cell.model.layers[0].ffn.up_proj.weight.shape == (12, 16)


def failing_at_the_second_call(function):
    """The function, until it is called again."""
    calls = []

    def run_once(*args, **kwargs):
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("injected")
        return function(*args, **kwargs)

    return run_once
