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
"""The models that plans are applied to compute what their references say, and their plans have the known roles.

The judges are another library's logits and gradients, and the table of roles read from its models.
"""
import csv
import re
from pathlib import Path

import mindspore
import numpy as np
import pytest

from hyper_parallel.distributed.planner import plan
from tests.models import parity, registry

ROLES = Path(__file__).parent / "planner" / "roles.tsv"
FAST_TO_COMPILE = ("bloom",)

pytestmark = pytest.mark.skipif(not registry.available(), reason="the folders with the real models are not here")


def check_against_the_reference(name):
    """Logits to 1e-4, every gradient to 1e-3."""
    found = parity.run(registry.build(name), registry.inputs(name), steps=0)
    assert np.abs(found.logits - registry.reference_logits(name)).max() < 1e-4
    differences = parity.relative_differences(found.gradients, registry.reference_gradients(name), 1e-3)
    assert max(differences.values()) < 1e-3, differences


@pytest.mark.parametrize("name", registry.MODELS)
def test_logits_and_every_gradient_in_pynative(name):
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    check_against_the_reference(name)


@pytest.mark.parametrize("name", [
    name if name in FAST_TO_COMPILE else pytest.param(name, marks=pytest.mark.slow) for name in registry.MODELS])
def test_logits_and_every_gradient_in_graph_mode(name):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        check_against_the_reference(name)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.mark.parametrize("name", registry.MODELS)
def test_the_cell_gets_the_known_roles(name):
    def fold(path):
        return re.sub(r"\.\d+(?=\.)", ".*", path)

    with open(ROLES, encoding="utf-8") as file:
        known = {fold(row[1]): row[3] for row in csv.reader(file, delimiter="\t") if row[0] == name}
    made = plan(registry.build(name), tp=2)
    trainable = {fold(path): spec.role for path, spec in made.parameters.items() if not spec.frozen}
    # OPT's rows know two projections that the folder's model does not have
    assert trainable == {path: known[path] for path in trainable} and made.bound


def test_a_file_with_other_parameters_is_refused(monkeypatch):
    monkeypatch.setitem(registry.MODELS, "llama", registry.MODELS["qwen3"])
    with pytest.raises(ValueError, match="llama: parameters and file differ in .*k_norm"):
        registry.build("llama")


def test_the_comparison_sees_a_copy_that_only_one_rank_holds_wrong():
    whole = registry.reference_gradients("llama")
    made = plan(registry.build("llama"), tp=4)
    parts = [{path: made.shard(path, array, rank) for path, array in whole.items()} for rank in range(4)]
    assert parity.worst_over_ranks(parts, whole, made, 1e-4) == 0.0
    path = "model.layers.0.self_attn.k_proj.weight"
    parts[3][path] = parts[3][path] * 1.5
    # rank 2 holds the same rows, and is the one that the whole is put together from
    assert np.array_equal(parity.whole_of(parts, made)[path], whole[path])
    assert parity.worst_over_ranks(parts, whole, made, 1e-4) > 0.1


def test_a_gradient_below_the_floor_only_has_to_stay_below_it():
    reference = {"large": np.array([2.0]), "zero": np.array([1e-9])}
    found = parity.relative_differences({"large": np.array([2.0]), "zero": np.array([1e-7])}, reference, 1e-4)
    assert found["large"] == 0.0 and 0 < found["zero"] < 1e-4
    found = parity.relative_differences({"large": np.array([2.0]), "zero": np.array([1e-5])}, reference, 1e-4)
    assert found["zero"] > 1e-4
