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
import os

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from hyper_parallel.core.dtensor import device_mesh, dispatch, dtensor
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dispatch_plan import make_plan
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward
from tests.models.op_cases import all_cases
from tests.models.parts import adjoint, combinations, parts_of, whole_of

MESHES = {"2": DeviceMesh("npu", (2,), ("tp",)), "2x2": DeviceMesh("npu", (2, 2), ("dp", "tp"))}
# All combinations of two axes take minutes; a sample of them runs by default.
LIMIT = int(os.environ.get("HYPER_PARALLEL_COMBINATIONS", "40"))
SINGLE = [case for case in all_cases() if case.single]


class _Found(Exception):
    """Carries the dispatched call out of the operator."""


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    # Thousands of tiny operators, each read back at once: without the hand-over between threads they take a fifth.
    mindspore.runtime.launch_blocking()
    cpu_kernels.maybe_install()
    enable_backward()
    yield
    cpu_kernels.uninstall()


@pytest.fixture(name="rank")
def _rank(monkeypatch):
    """Makes this process any rank of a mesh."""
    def become(number):
        monkeypatch.setattr(device_mesh, "current_rank", lambda: number)
        dispatch.clear_cache()
    return become


def as_arrays(result):
    """The tensors of a result as numpy arrays."""
    results = result if isinstance(result, (tuple, list)) else [result]
    return [item.asnumpy() for item in results]


def leaf(array):
    """A tensor that gets a gradient, if it is a float."""
    made = Tensor(np.ascontiguousarray(array))
    if array.dtype.kind == "f":
        made._requires_grad = True
    return made


def used(tensor):
    """The leaf as an operand. Two leaves cannot be the operands of one sum: MindSpore clones the gradient that they
    share,
    and the CPU has no kernel for it."""
    return tensor * 1 if tensor._requires_grad else tensor


def seeds_of(arrays):
    """Where the backward starts, for every float result."""
    return [np.random.default_rng(number).normal(size=array.shape).astype(np.float32)
            for number, array in enumerate(arrays)]


def backward(outputs, seeds, arrays):
    """Runs the backward from all float outputs at once."""
    total = None
    for output, seed, array in zip(outputs, seeds, arrays):
        if array.dtype.kind != "f":
            continue
        term = (output * Tensor(np.ascontiguousarray(seed))).sum()
        total = term if total is None else total + term
    total.backward()


def gradient_of(tensor):
    """Its gradient, zeros if none arrived."""
    return np.zeros(tensor.shape, np.float32) if tensor._grad is None else tensor._grad.asnumpy()


def reference(case):
    """Result and gradients of the operator on the whole."""
    inputs = [leaf(array) for array in case.arrays]
    result = case.function(*map(used, inputs))
    outputs = result if isinstance(result, (tuple, list)) else [result]
    arrays = as_arrays(result)
    if not case.gradient:
        return arrays, None, None
    seeds = seeds_of(arrays)
    backward(outputs, seeds, arrays)
    return arrays, seeds, [gradient_of(tensor) if array.dtype.kind == "f" else None
                           for tensor, array in zip(inputs, case.arrays)]


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


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("case", SINGLE, ids=[case.name for case in SINGLE])
def test_parts_of_the_result(case, mesh, rank, monkeypatch):
    expected, seeds, gradients = reference(case)
    ops = ("sum", "max") if mesh.ndim == 1 else ("sum",)
    seen = set()
    for placed in combinations(case.arrays, mesh.mesh_shape, ops, LIMIT):
        rank(0)
        laid = tuple(found_call(case, mesh, placed, monkeypatch))
        if laid in seen:
            continue
        seen.add(laid)
        check(case, mesh, laid, rank, (expected, seeds, gradients))


def check(case, mesh, laid, rank, facts):
    """One combination in which no operand has to be moved."""
    expected, seeds, gradients = facts
    whole_parts = [parts_of(array, placements, mesh.mesh_shape, seed)
                   for seed, (array, placements) in enumerate(zip(case.arrays, laid))]
    outputs, grads, claimed = [{} for _ in expected], [{} for _ in case.arrays], None
    for number in range(mesh.size()):
        rank(number)
        place = mesh.get_coordinate()
        leaves = [leaf(parts[place]) for parts in whole_parts]
        inputs = [DTensor._of(used(part), mesh, placements, array.shape)
                  for part, placements, array in zip(leaves, laid, case.arrays)]
        result = case.function(*inputs)
        results = result if isinstance(result, (tuple, list)) else [result]
        here = [item.placements for item in results]
        assert claimed in (None, here), "ranks disagree"
        claimed = here
        for item, array, found in zip(results, expected, outputs):
            assert item.shape == array.shape, (laid, item)
            found[place] = item.to_local().asnumpy()
        if case.gradient and not pending_extreme(claimed):
            started = [parts_of(seed, adjoint(placements), mesh.mesh_shape, 5)[place] / averaged(placements, mesh)
                       for seed, placements in zip(seeds, claimed)]
            backward([item.to_local() for item in results], started, expected)
            for found, part in zip(grads, leaves):
                found[place] = gradient_of(part)
    for found, placements, array in zip(outputs, claimed, expected):
        np.testing.assert_allclose(whole_of(found, placements, mesh.mesh_shape), array, rtol=max(case.close, 1e-4),
                                   atol=max(case.close, 1e-4), err_msg=f"{laid} -> {placements}")
    if case.gradient and not pending_extreme([*claimed, *laid]):
        for found, placements, array in zip(grads, laid, gradients):
            if array is not None:
                scaled = {place: part * averaged(placements, mesh) for place, part in found.items()}
                np.testing.assert_allclose(whole_of(scaled, adjoint(placements), mesh.mesh_shape), array, rtol=1e-3,
                                           atol=2e-4, err_msg=f"gradient of {placements} in {laid} -> {claimed}")


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
    laid = found_call(case, MESHES["2"], ((Partial(),), (Replicate(),)), monkeypatch)
    assert laid == [(Replicate(),), (Replicate(),)]
