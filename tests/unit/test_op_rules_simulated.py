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
"""Every propagation rule in one process: the operator on all ranks' parts, put together, is the operator on the whole.

No collective runs. Each operand is laid where the rule wants it, the dispatch runs once for every rank of the mesh, and
numpy puts the parts of results and gradients together by the placements that the dispatch claims.
"""
import numpy as np
import pytest
from mindspore import Tensor

from hyper_parallel.core.dtensor import device_mesh, dispatch, dtensor
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dispatch_plan import make_plan
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate
from hyper_parallel.platform import cpu_kernels
from tests.models.op_cases import all_cases
from tests.models.op_judge import (backward, check_gradient, check_result, gradient_of, leaf, listed, prepare,
                                   reference, used)
from tests.models.parts import adjoint, combinations, parts_of, whole_of

LINE, GRID = DeviceMesh("npu", (2,), ("tp",)), DeviceMesh("npu", (2, 2), ("dp", "tp"))
SAMPLE = 40
SINGLE = [case for case in all_cases() if case.single]
each_operator = pytest.mark.parametrize("case", SINGLE, ids=[case.name for case in SINGLE])


class _Found(Exception):
    """Carries the dispatched call out of the operator."""


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    prepare()
    yield
    cpu_kernels.uninstall()


@pytest.fixture(name="rank")
def _rank(monkeypatch):
    """Makes this process any rank of a mesh."""
    def become(number):
        monkeypatch.setattr(device_mesh, "current_rank", lambda: number)
        dispatch.clear_cache()
    return become


def found_call(case, mesh, placed, monkeypatch):
    """The dispatched call, and the plan's targets of each operand."""
    whole = [DTensor._of(Tensor(array), mesh, placements, array.shape)
             for array, placements in zip(case.arrays, placed)]
    call = []

    def catch(func, args, kwargs=None):
        call.append((func, args, kwargs or {}))
        raise _Found

    with monkeypatch.context() as patch:
        for module in (dtensor, dispatch):
            patch.setattr(module, "dispatch", catch)
        with pytest.raises(_Found):
            case.function(*whole)
    func, args, kwargs = call[0]
    primitive = None
    if hasattr(args[0], "add_prim_attr"):
        primitive, args = args[0], args[2]
    tensors = []
    for value in (*args, *kwargs.values()):
        dispatch._key(value, tensors)
    plan = make_plan(func.name, args, kwargs, tensors, primitive, DTensor)
    targets = {id(tensor): tensor._placements for tensor in tensors if isinstance(tensor, DTensor)}
    targets.update({id(tensors[index]): target for index, plain, target in plan._moves if not plain})
    return [targets[id(tensor)] for tensor in whole]


def judge(case, mesh, rank, monkeypatch, ops=("sum",), limit=None):
    """All combinations of placements, or `limit` of them. Those that the rule brings to the same placements are one."""
    expected, seen = reference(case), set()
    for placed in combinations(case.arrays, mesh.mesh_shape, ops, limit):
        rank(0)
        laid = tuple(found_call(case, mesh, placed, monkeypatch))
        if laid not in seen:
            seen.add(laid)
            check(case, mesh, laid, rank, expected)


@each_operator
def test_all_placements_on_two_ranks(case, rank, monkeypatch):
    judge(case, LINE, rank, monkeypatch, ("sum", "avg", "max", "min"))


@each_operator
def test_some_placements_on_two_axes(case, rank, monkeypatch):
    judge(case, GRID, rank, monkeypatch, limit=SAMPLE)


@pytest.mark.slow
@each_operator
def test_all_placements_on_two_axes(case, rank, monkeypatch):
    judge(case, GRID, rank, monkeypatch)


def check(case, mesh, laid, rank, expected):
    """One combination in which no operand has to be moved."""
    whole_parts = [parts_of(array, placements, mesh.mesh_shape, seed)
                   for seed, (array, placements) in enumerate(zip(case.arrays, laid))]
    outputs, grads, claimed = [{} for _ in expected.results], [{} for _ in case.arrays], None
    for number in range(mesh.size()):
        rank(number)
        place = mesh.get_coordinate()
        leaves = [leaf(parts[place]) for parts in whole_parts]
        inputs = [DTensor._of(used(part), mesh, placements, array.shape)
                  for part, placements, array in zip(leaves, laid, case.arrays)]
        results = listed(case.function(*inputs))
        here = [item.placements for item in results]
        assert claimed in (None, here), "ranks disagree"
        claimed = here
        for item, array, found in zip(results, expected.results, outputs):
            assert item.shape == array.shape, (laid, item)
            found[place] = item.to_local().asnumpy()
        if case.gradient and not pending_extreme(claimed):
            started = [None if seed is None else
                       parts_of(seed, adjoint(placements), mesh.mesh_shape, 5)[place] / averaged(placements, mesh)
                       for seed, placements in zip(expected.seeds, claimed)]
            backward([item.to_local() for item in results], started)
            for found, part in zip(grads, leaves):
                found[place] = gradient_of(part)
    for found, placements, array in zip(outputs, claimed, expected.results):
        check_result(whole_of(found, placements, mesh.mesh_shape), array, case.close, f"{laid} -> {placements}")
    if case.gradient and not pending_extreme([*claimed, *laid]):
        for found, placements, array, gradient in zip(grads, laid, case.arrays, expected.gradients):
            if array.dtype.kind == "f":
                scaled = {place: part * averaged(placements, mesh) for place, part in found.items()}
                check_gradient(whole_of(scaled, adjoint(placements), mesh.mesh_shape), gradient,
                               f"gradient of {placements} in {laid} -> {claimed}")


def pending_extreme(placements):
    """Whether a maximum or minimum is pending: its gradient depends on who wins, which no single rank knows."""
    return any(isinstance(item, Partial) and item.op in ("max", "min") for each in placements for item in each)


def averaged(placements, mesh):
    """By how much the parts of an average count less."""
    return np.prod([size for item, size in zip(placements, mesh.mesh_shape)
                    if isinstance(item, Partial) and item.op == "avg"], dtype=np.float32)


def test_a_partial_is_reduced_before_a_replicate_is_added(monkeypatch, rank):
    rank(0)
    case = next(case for case in SINGLE if case.name == "add_same")
    laid = found_call(case, LINE, ((Partial(),), (Replicate(),)), monkeypatch)
    assert laid == [(Replicate(),), (Replicate(),)]
