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
"""The models that plans are applied to compute what their references say, and their plans are bound with the known roles.

The judges are another library's logits and gradients, and the table of roles read from its models.
"""
import csv
import re
from pathlib import Path

import mindspore
import numpy as np
import pytest

from hyper_parallel.distributed.planner import plan
from tests.models import registry

ROLES = Path(__file__).parent / "planner" / "roles.tsv"
FAST_TO_COMPILE = ("bloom",)

pytestmark = pytest.mark.skipif(not registry.available(), reason="the folders with the real models are not here")


def check_against_the_reference(name):
    """Logits to 1e-4, every gradient to 1e-3."""
    _, logits, gradients = registry.loss_and_gradients(registry.build(name), registry.inputs(name))
    expected = registry.reference_gradients(name)
    assert np.abs(logits - registry.reference_logits(name)).max() < 1e-4
    assert gradients.keys() == expected.keys()
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    differences = {path: registry.relative_difference(gradients[path], expected[path], largest) for path in expected}
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
    made = plan(registry.build(name), tp=2, **registry.PLAN_OPTIONS.get(name, {}))
    trainable = {fold(path): spec.role for path, spec in made.parameters.items() if not spec.frozen}
    assert trainable == known and made.bound


def test_a_file_with_other_parameters_is_refused(monkeypatch):
    monkeypatch.setitem(registry.MODELS, "llama", registry.MODELS["qwen3"])
    with pytest.raises(ValueError, match="llama: parameters and file differ in .*k_norm"):
        registry.build("llama")
