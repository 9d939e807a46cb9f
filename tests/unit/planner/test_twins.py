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
"""Twins under other names: the same plan under another prefix, structure under nonsense, never silently wrong."""
import pytest

import inventories
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.tensor_parallel.evidence import EvidenceClassifier, is_registration_order
from twins import obfuscated, renamed

FAMILIES = list(inventories.known_roles())


def decide(data):
    """(roles by parameter, undecided)."""
    decided, undecided = EvidenceClassifier(take_inventory(data)).classify_all()
    return {path: one.role.name for path, one in decided.items()}, undecided


def shares(data, truth, containers):
    """(recovered, wrong) of an obfuscated twin."""
    twin, names = obfuscated(data, containers)
    found, undecided = decide(twin)
    assert set(found) | set(undecided) == set(names.values())
    # a buffer of one number and a parameter of one number lie alike
    wrong = [path for path, role in truth.items() if found.get(names[path], role) != role
             and not (role == "SKIP" and found[names[path]] == "REPLICATED")]
    return [path for path, role in truth.items() if found.get(names[path]) == role], wrong


@pytest.mark.parametrize("prefix, instead", [("model.language_model.", "model."), ("_backbone.", ""),
                                             ("module.wrapped.", "")])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "deepseek_v3", "bert", "t5", "gpt_oss", "mamba2"])
def test_another_prefix_gives_the_same_plan(family, prefix, instead):
    data = inventories.folders()[family]
    twin, names = renamed(data, prefix, instead)
    here, there = plan(data, tp=2), plan(twin, tp=2)
    assert list(there.parameters) == list(names.values())
    for path, spec in here.parameters.items():
        other = there.parameters[names[path]]
        assert (spec.role, spec.slice_map, spec.grad_sum_axes, spec.copies) == (
            other.role, other.slice_map, other.grad_sum_axes, other.copies)
    assert sorted(str(spec.semantic_role) for spec in here.boundaries.values()) == sorted(
        str(spec.semantic_role) for spec in there.boundaries.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_m8_nonsense_names_in_registration_order_are_recovered(family):
    rows = inventories.known_roles()[family]
    data = inventories.of_rows(family, inventories.config_of(family))
    recovered, wrong = shares(data, {parameter: role for parameter, _, role in rows}, False)
    assert not wrong
    assert len(recovered) >= 0.9 * len(rows)


@pytest.mark.parametrize("containers", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_m8_nonsense_names_are_never_silently_wrong(family, containers):
    data = inventories.of_rows(family, inventories.config_of(family))
    truth = {parameter: role for parameter, _, role in inventories.known_roles()[family]}
    assert shares(data, truth, containers)[1] == []


@pytest.mark.parametrize("containers", [False, True])
@pytest.mark.parametrize("family", list(inventories.folders()))
def test_m8_files_listed_by_name_are_never_silently_wrong(family, containers):
    """Order says nothing there, so that weights of one shape are refused with the readings named."""
    data = inventories.folders()[family]
    truth, undecided = decide(data)
    assert not undecided
    assert shares(data, truth, containers)[1] == []


@pytest.mark.parametrize("family", list(inventories.more_roles()))
def test_m8_further_families_are_never_silently_wrong(family):
    data = inventories.of_rows(family, inventories.config_of(family))
    assert shares(data, {parameter: role for parameter, _, role in inventories.more_roles()[family]}, False)[1] == []


def test_a_refusal_names_the_candidates():
    twin, _ = obfuscated(inventories.folders()["llama"])
    with pytest.raises(ValueError, match=r"several readings.*Candidates: .*attention_out"):
        plan(twin, tp=2)


@pytest.mark.parametrize("family, wanted", [("llama", False), ("gpt2", False), ("bert", False), ("whisper", False)])
def test_order_of_names_is_not_taken_for_order_of_registration(family, wanted):
    twin, _ = obfuscated(inventories.folders()[family], True)
    assert is_registration_order(take_inventory(twin)) is wanted


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "whisper", "qwen3_moe", "falcon"])
def test_order_of_registration_is_seen(family):
    assert is_registration_order(take_inventory(inventories.of_rows(family, inventories.config_of(family))))
