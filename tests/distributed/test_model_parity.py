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
"""Real models sharded over this job's ranks give the whole model's numbers: logits, loss, every gradient, training.

Tolerances: 1e-5 for the loss and the gradient norm, 1e-4 for logits, every gradient, the losses of 20 steps and the
weights after them, 1e-3 for gradients against another library's. In PyNative the collectives are counted.

With the variable HYPER_PARALLEL_PARITY_RECORD set to a file, rank 0 appends what was measured as lines of JSON;
scripts/parity_matrix.py makes a table of them.
"""
import json
import os

import mindspore
import pytest

import hyper_parallel as hp
from tests.models import parity, registry

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
RECORD = os.environ.get("HYPER_PARALLEL_PARITY_RECORD")

TOLERANCES = {"logits": 1e-4, "loss": 1e-5, "gradient": parity.GRADIENT_TOLERANCE, "gradient_norm": 1e-5,
              "reference": parity.REFERENCE_TOLERANCE, "curve": 1e-4, "weight": 1e-4}
# What cannot be planned or applied, and the words of the refusal. A case that is no longer refused fails its test here,
# and then belongs to the others.
REFUSED = {(name, True): "the activations are cut from the first block to the one norm after the last block"
           for name in ("bert", "bloom", "t5")}
FAST = {2: [("gpt2", "pynative", False), ("qwen3", "pynative", True)], 4: [("llama", "pynative", False)]}
CASES = [(name, mode, sequence_parallel) for name in registry.MODELS for mode in ("pynative", "graph")
         for sequence_parallel in (False, True)]

pytestmark = [pytest.mark.skipif(not registry.available(), reason="the folders with the real models are not here"),
              pytest.mark.skipif(WORLD not in (2, 4), reason="runs on 2 or 4 ranks")]


def tp_mesh():
    """All ranks on one axis."""
    return hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))


def write_down(name, mode, sequence_parallel, figures):
    """One line for the table."""
    if RECORD and RANK == 0:
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(json.dumps({"model": name, "tp": WORLD, "mode": mode, "sequence_parallel": sequence_parallel,
                                   **figures}) + "\n")


@pytest.mark.parametrize("name, mode, sequence_parallel", [
    case if case in FAST.get(WORLD, ()) else pytest.param(*case, marks=pytest.mark.slow)
    for case in CASES if (case[0], case[2]) not in REFUSED])
def test_the_same_numbers_as_on_one_rank(name, mode, sequence_parallel):
    figures = parity.measure(name, tp_mesh(), mode == "graph", sequence_parallel=sequence_parallel)
    write_down(name, mode, sequence_parallel, figures)
    assert figures["falls"] < 0.95, "training has to change the numbers that are compared"
    assert all(figures[key] <= tolerance for key, tolerance in TOLERANCES.items()), figures
    if mode == "pynative":
        assert figures["counted"] == figures["planned"]
        assert figures["estimated_bytes"] in (None, pytest.approx(figures["wire_bytes"], rel=0.01))
        assert figures["sums"] == figures["planned_sums"]


@pytest.mark.parametrize("name, sequence_parallel", [pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED])
def test_what_cannot_be_planned_or_applied_is_refused_by_name(name, sequence_parallel):
    with pytest.raises((NotImplementedError, ValueError), match=REFUSED[name, sequence_parallel]):
        parity.measure(name, tp_mesh(), sequence_parallel=sequence_parallel)
    write_down(name, "any", sequence_parallel, {"refused": REFUSED[name, sequence_parallel]})
