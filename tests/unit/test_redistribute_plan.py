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
"""Redistribution plans: the cheapest by brute force, and right on every rank, between all layouts of small meshes."""
import math
import random

import numpy as np
import pytest
from redistribute_judge import World, all_layouts, all_placements, brute_force, spell

from hyper_parallel.core.dtensor.placement_state import State
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.redistribute_plan import find_plan

R, P, S = Replicate(), Partial(), Shard


def steps(plan):
    """Kind, axes and dims of each step."""
    return [(step.kind, step.axes, *(item for item in (step.dim, step.to_dim) if item is not None))
            for step in plan.steps]


MESHES = [((2,), (8, 8)), ((3,), (5, 7)), ((8,), (8, 8)), ((8,), (5, 3)), ((2, 2), (8, 4)), ((2, 2), (5, 3)),
          ((2, 4), (8, 8)), ((4, 2), (7, 4)), ((2, 3), (6, 5))]


@pytest.mark.parametrize("use_idle_axes", [False, True])
@pytest.mark.parametrize("mesh_shape, shape", MESHES)
def test_all_pairs_of_layouts_against_brute_force(mesh_shape, shape, use_idle_axes):
    """Every order of nested cuts included."""
    layouts = all_layouts(len(mesh_shape), len(shape))
    costs = brute_force(shape, mesh_shape, layouts, use_idle_axes=use_idle_axes)
    for one, before in enumerate(layouts):
        for other, after in enumerate(layouts):
            check(shape, mesh_shape, before, after, costs[one, other], use_idle_axes)


@pytest.mark.parametrize("shape", [(8, 8), (5, 6)])
def test_pairs_of_placements_on_three_axes(shape):
    """Every pair of placements on 2 x 2 x 2 ranks (of uneven sizes a sample), and a sample of those with other orders
    of nested cuts."""
    mesh_shape = (2, 2, 2)
    layouts = all_layouts(3, 2)
    costs = brute_force(shape, mesh_shape, layouts)
    plain = [number for number, layout in enumerate(layouts)
             if not any(isinstance(item, StridedShard) for item in spell(layout, mesh_shape))]
    assert len(plain) == len(all_placements(3, 2)) == 64
    pairs = [(one, other) for one in plain for other in plain]
    everything = [(one, other) for one in range(len(layouts)) for other in range(len(layouts))]
    for one, other in (pairs if shape == (8, 8) else random.Random(1).sample(pairs, 400)) + random.Random(0).sample(
            everything, 400):
        check(shape, mesh_shape, layouts[one], layouts[other], costs[one, other])


@pytest.mark.slow
@pytest.mark.parametrize("use_idle_axes", [False, True])
@pytest.mark.parametrize("shape", [(8, 8), (5, 6), (3, 5), (7, 1)])
def test_all_pairs_of_layouts_on_three_axes(shape, use_idle_axes):
    """Every pair on 2 x 2 x 2 ranks, every order of nested cuts included; sizes below the ranks leave some empty."""
    layouts = all_layouts(3, 2)
    costs = brute_force(shape, (2, 2, 2), layouts, use_idle_axes=use_idle_axes)
    for one, before in enumerate(layouts):
        for other, after in enumerate(layouts):
            check(shape, (2, 2, 2), before, after, costs[one, other], use_idle_axes)


@pytest.mark.parametrize("op", ["avg", "max", "min"])
def test_other_reductions(op):
    layouts = all_layouts(2, 2, (op, "sum"))
    costs = brute_force((4, 6), (2, 2), layouts)
    for one, before in enumerate(layouts):
        for other, after in enumerate(layouts):
            # reductions of different kinds do not commute: which comes first is the layout's own affair
            if len({item for item in before[0] + after[0] if item}) < 2:
                check((4, 6), (2, 2), before, after, costs[one, other])


def check(shape, mesh_shape, before, after, cost, use_idle_axes=False):
    """The plan costs what brute force found, and does on every rank what it says."""
    plan = find_plan(shape, mesh_shape, spell(before, mesh_shape), spell(after, mesh_shape),
                     use_idle_axes=use_idle_axes)
    assert sum(plan.wire) == cost, (before, after, plan)
    world = World(shape, mesh_shape, before)
    expected = world.whole(before)
    for step, state in zip(plan.steps, plan.states[1:]):
        world.run(step)
        np.testing.assert_array_equal(world.whole((state.pending, state.cuts)), expected)
    assert plan.states[-1] == State(after[1], after[0])


def test_without_joint_steps_nothing_is_cheaper_than_brute_force():
    layouts = all_layouts(2, 2)
    costs = brute_force((8, 8), (2, 2), layouts, joint=False)
    for one, before in enumerate(layouts):
        for other, after in enumerate(layouts):
            plan = find_plan((8, 8), (2, 2), spell(before, (2, 2)), spell(after, (2, 2)), joint=False)
            assert sum(plan.wire) == costs[one, other]
            assert all(len(step.axes) == 1 for step in plan.steps)


@pytest.mark.parametrize("src, dst, kinds", [
    ((S(0),), (R,), [("all_gather", (0,), 0)]),
    ((P,), (S(1),), [("reduce_scatter", (0,), 1)]),
    ((P,), (R,), [("all_reduce", (0,))]),
    ((S(0),), (S(1),), [("all_to_all", (0,), 0, 1)]),
    ((R,), (S(0),), [("slice", (0,), 0)]),
    ((R,), (P,), [("to_partial", (0,))]),
    ((S(1),), (P,), [("zero_pad", (0,), 1)]),
    ((S(1),), (S(1),), []),
])
def test_one_step_each(src, dst, kinds):
    assert steps(find_plan((8, 8), (4,), src, dst)) == kinds


def test_wire_bytes_of_the_ring():
    """The formulas of the counter: all-reduce 2 (t-1)/t N, gather and scatter (t-1)/t N, all-to-all (t-1)/t L."""
    full, item = 64 * 8, 4
    assert find_plan((64, 8), (4,), (P,), (R,)).wire_bytes(item) == 2 * 3 / 4 * full * item
    assert find_plan((64, 8), (4,), (S(0),), (R,)).wire_bytes(item) == 3 / 4 * full * item
    assert find_plan((64, 8), (4,), (P,), (S(0),)).wire_bytes(item) == 3 / 4 * full * item
    assert find_plan((64, 8), (4,), (S(0),), (S(1),)).wire_bytes(item) == 3 / 4 * full / 4 * item


def test_two_axes_reduce_at_once():
    assert steps(find_plan((8, 8), (2, 2), (P, P), (R, R))) == [("all_reduce", (0, 1))]
    assert steps(find_plan((8, 8), (2, 2), (S(0), S(0)), (R, R))) == [("all_gather", (0, 1), 0)]


def test_a_reduction_shrinks_the_tensor_first():
    """The sum over tp is scattered before the batch is moved, so that half of it travels."""
    plan = find_plan((8, 8, 8), (2, 2), (S(0), P), (S(1), R))
    assert [step[0] for step in steps(plan)] == ["reduce_scatter", "all_to_all", "all_gather"]


def test_idle_axes_rest_unless_asked():
    """8 tp ranks reduce alone; with the help of dp, fewer bytes travel, over dp as well."""
    arguments = ((64, 64), (2, 8), (R, P), (R, S(0)))
    assert steps(find_plan(*arguments)) == [("reduce_scatter", (1,), 0)]
    helped = find_plan(*arguments, use_idle_axes=True)
    assert [step[0] for step in steps(helped)] == ["slice", "reduce_scatter", "all_gather"]
    assert helped.wire_bytes(4) < find_plan(*arguments).wire_bytes(4)


def test_fsdp_inside_tensor_parallel_is_gathered_alone():
    """(fsdp, tp) with tp outside: undoing FSDP is one all-gather over fsdp, and nothing moves between tp ranks."""
    plan = find_plan((16, 4), (2, 4), (StridedShard(0, 4), S(0)), (R, S(0)))
    assert steps(plan) == [("all_gather", (0,), 0)]


def test_an_axis_of_one_rank_costs_nothing():
    assert steps(find_plan((8, 8), (1, 4), (P, S(0)), (S(1), S(0)))) == []


def test_an_empty_tensor():
    assert find_plan((0, 4), (2,), (S(0),), (R,)).wire_bytes(4) == 0


def test_thousands_of_ranks():
    plan = find_plan((4096, 4096), (8, 8, 64), (R, S(0), P), (S(0), R, S(1)))
    assert plan.states[-1] == State(((0,), (2,)), (None, None, None))
    assert sum(plan.wire) <= 3 * math.prod((4096, 4096)) * 8 * 8 * 64


def test_the_placements_between_the_steps():
    plan = find_plan((8, 8), (2, 2), (S(0), P), (R, S(0)))
    assert plan.placements[0] == (S(0), P) and plan.placements[-1] == (R, S(0))
    assert len(plan.placements) == len(plan.steps) + 1
