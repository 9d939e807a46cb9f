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
"""MindSpore's own parallel compiler accepts the strategies of a plan, and makes of them what the plan says.

The judge is the compiler: its local shapes against the plan's, its collectives against the plan's expected ones.
"""
import pytest

import hyper_parallel as hp
from tests.graph import nets, stand_in_libraries
from tests.graph.offline_compiler import PROPAGATION, SEMI_AUTO, Case, ask

pytestmark = pytest.mark.skipif(stand_in_libraries.missing_tool() is not None,
                                reason=str(stand_in_libraries.missing_tool()))
BUILD = "tests.graph.planned:planned"
_COMPILED = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}


def planned_counts(shape, plan, phase):
    """The plan's expected collectives by the compiler's names."""
    counts = {}
    for spec in plan.boundaries.values():
        for kind, number in plan.expected.get(spec.semantic_role, {}).get(phase, {}).items():
            counts[_COMPILED[kind]] = counts.get(_COMPILED[kind], 0) + number
    if shape == "moe" and phase == "forward":
        # the plan sums the experts' parts before it reduces them; the compiler reduces behind every matmul
        regions = sum(spec.semantic_role == "moe" for spec in plan.boundaries.values())
        counts["AllReduce"] += regions * (nets.EXPERTS - 1)
    return counts


def check(world, cases):
    """Every case is accepted, with the plan's local shapes and collectives on the tensor-parallel axis."""
    for case, compiled in zip(cases, ask(world, cases)):
        assert compiled.error is None, (case, compiled.error)
        arguments = case.arguments
        cell = nets.build(arguments["shape"], arguments.get("layers", 1))
        plan = hp.plan(cell, tp=world // arguments["data"],
                       sequence_parallel=arguments.get("sequence_parallel", False))
        for path, spec in plan.parameters.items():
            assert compiled.parameters[path] == spec.local_shape, (case, path)
        assert compiled.count("forward", stride=1) == planned_counts(arguments["shape"], plan, "forward"), \
            (case, compiled.collectives)


def test_five_families_on_2_x_2_ranks_are_accepted_with_the_plans_shapes_and_collectives():
    check(4, [Case(BUILD, PROPAGATION, {"shape": shape, "data": 2}) for shape in nets.SHAPES])


def test_semi_auto_parallel_and_grouped_heads_and_sequence_parallel_on_2_x_2_ranks():
    check(4, [Case(BUILD, SEMI_AUTO, {"shape": "llama", "data": 2}),
              Case(BUILD, PROPAGATION, {"shape": "grouped", "data": 2}),
              Case(BUILD, PROPAGATION, {"shape": "llama", "data": 2, "sequence_parallel": True})])


@pytest.mark.slow
@pytest.mark.parametrize("world, data", [(2, 1), (4, 1), (8, 1), (8, 2), (8, 4)])
def test_all_families_in_both_modes(world, data):
    check(world, [Case(BUILD, mode, {"shape": shape, "data": data, "layers": 2})
                  for shape in nets.SHAPES for mode in (SEMI_AUTO, PROPAGATION)])


@pytest.mark.slow
@pytest.mark.parametrize("world, data", [(2, 1), (4, 1), (8, 2)])
def test_sequence_parallel_gathers_and_scatters_as_planned(world, data):
    check(world, [Case(BUILD, mode, {"shape": shape, "data": data, "sequence_parallel": True})
                  for shape in ("llama", "qwen3", "gpt2") for mode in (SEMI_AUTO, PROPAGATION)])


@pytest.mark.slow
def test_gradients_are_reduced_as_planned():
    (compiled,) = ask(4, [Case(BUILD, PROPAGATION, {"shape": "llama", "data": 2}, backward=True)])
    assert compiled.error is None, compiled.error
    plan = hp.plan(nets.build("llama"), tp=2)
    backward = compiled.count("backward", stride=1)
    # the compiler's gather of the logits has its adjoint as backward, where the plan's has a slice
    assert backward.pop("ReduceScatter") == 1
    assert backward == planned_counts("llama", plan, "backward")
    over_all = {one.scope.split("/")[-3] for one in compiled.collectives
                if one.phase == "parameter_gradient" and len(one.ranks) == 4}
    over_data = [one for one in compiled.collectives if one.phase == "parameter_gradient" and one.ranks == (0, 2)]
    assert all("RMSNorm" in scope for scope in over_all) and len(over_data) == 9


def test_strategies_that_are_wrong_are_refused_or_seen():
    wrong = {
        "contracted dims cut differently": ("layers.0.self_attn.o_proj.matmul", [[2, 1], [1, 2]]),
        "a softmax cut along its dim": ("layers.0.self_attn.softmax", [[2, 1, 1, 2]]),
        "another number of operands": ("layers.0.mlp.gated", [[2, 1, 2]]),
    }
    cases = [Case(BUILD, PROPAGATION, {"shape": "llama", "data": 2, "break_it": broken}) for broken in wrong.values()]
    column_for_row = Case(BUILD, PROPAGATION, {
        "shape": "llama", "data": 2, "break_it": ("layers.0.mlp.down_proj.matmul", [[2, 1], [2, 1]])})
    answers = ask(4, cases + [column_for_row])
    for name, compiled in zip(wrong, answers):
        assert compiled.error is not None, name
    with pytest.raises(AssertionError):
        _check_answer(column_for_row, answers[-1])


def _check_answer(case, compiled):
    plan = hp.plan(nets.build(case.arguments["shape"]), tp=2)
    assert compiled.error is None, compiled.error
    assert all(compiled.parameters[path] == spec.local_shape for path, spec in plan.parameters.items())
