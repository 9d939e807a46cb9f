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
"""MindFormers' graph mode before MindSpore's own compiler: a network of one's own by YAML, and MindFormers' own.

The networks bring strategies that their authors wrote by hand; the compiler's local shapes under them are compared with
our plan's, parameter by parameter.
"""
import pytest

pytest.importorskip("mindformers")

from tests.graph import stand_in_libraries  # noqa: E402
from tests.graph.offline_compiler import PROPAGATION, SEMI_AUTO, Case, ask  # noqa: E402

pytestmark = pytest.mark.skipif(stand_in_libraries.missing_tool() is not None,
                                reason=str(stand_in_libraries.missing_tool()))
BUILD, OWN = "tests.graph.mindformers_networks:build", "tests.graph.mindformers_networks:own_network"
# Ours cuts the experts along their hidden size; MindFormers keeps them whole on every rank of the axis, and the shared
# experts beside them in DeepSeek-V3.
EXPERTS = {"mlp.experts.weight1", "mlp.experts.weight2", "mlp.shared_experts.linear_fc1.weight",
           "mlp.shared_experts.linear_fc2.weight"}


def check_own_network(cases):
    """Accepted, every weight in two parts, and one reduction behind each region and the table."""
    for case, compiled in zip(cases, ask(4, cases)):
        assert compiled.error is None, (case, compiled.error)
        assert compiled.parameters["lm_head.weight"] == (256, 64)
        assert compiled.parameters["layers.1.self_attn.o_proj.weight"] == (64, 32)
        assert compiled.parameters["layers.1.mlp.up_proj.weight"] == (96, 64)
        hidden = [one for one in compiled.collectives if one.phase == "forward" and one.shape == (128, 64)]
        assert [(one.kind, one.ranks) for one in hidden] == [("AllReduce", (0, 1))] * (1 + 2 * 2)


def test_the_documented_network_gets_its_strategies_from_the_documented_yaml():
    check_own_network([Case(OWN, SEMI_AUTO, {"data": 2}, backward=True)])


@pytest.mark.slow
def test_the_documented_network_in_sharding_propagation():
    check_own_network([Case(OWN, PROPAGATION, {"data": 2})])


def differences(name):
    """`{parameter without its layer: (whole, plan's part, their part)}` where our plan and their strategies differ."""
    (compiled,) = ask(4, [Case(BUILD, SEMI_AUTO, {"name": name, "data": 2})])
    assert compiled.error is None, compiled.error
    planned = compiled.notes["planned"]
    assert len(planned) > 10 and set(planned) <= set(compiled.parameters)
    return {path.split(".", 3)[-1]: (compiled.notes["whole"][path], part, compiled.parameters[path])
            for path, part in planned.items() if tuple(part) != compiled.parameters[path]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "telechat3"])
def test_dense_networks_have_the_hand_written_strategies_of_our_plan(name):
    assert not differences(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_networks_with_experts_differ_in_the_experts_alone(name):
    found = differences(name)
    assert found and set(found) <= EXPERTS
    for whole, ours, theirs in found.values():
        assert list(theirs) == whole and ours[0] * ours[1] * 2 == whole[0] * whole[1]
