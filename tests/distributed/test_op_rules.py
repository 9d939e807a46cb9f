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
"""Every propagation rule on ranks: results, and the gradient of every operand, against the operator on the whole.

    python tests/distributed/launch.py --world 2 tests/distributed/test_op_rules.py

With 4 ranks on a 2 x 2 mesh, with 8 on 2 x 2 x 2.

The loss is the sum over ranks of what each of them starts its backward with,
so the gradient of a replicated operand is a
summand, that of a pending sum is whole, and that of a part is the part.
"""
import gc

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.dtensor import dispatch_hooks
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.dispatch import dispatch_is_skipped
from hyper_parallel.core.dtensor.dtensor import DTensor, SkipDTensorDispatch, distribute_tensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
from hyper_parallel.core.shard import ShardingPlan, shard_module
from tests.models.op_cases import all_cases, floats
from tests.models.op_judge import (backward, check_gradient, check_result, gradient_of, leaf, listed, prepare,
                                   reference, used)
from tests.models.parts import adjoint, combinations, parts_of

WORLD = mindspore.communication.get_group_size()
pytestmark = pytest.mark.skipif(WORLD not in (2, 4, 8), reason="runs on 2, 4 or 8 ranks")
AXES = {2: ("tp",), 4: ("dp", "tp"), 8: ("dp", "cp", "tp")}.get(WORLD, ())
MESH = init_device_mesh("npu", (2,) * len(AXES) or (WORLD,), mesh_dim_names=AXES or ("tp",))
CASES = all_cases()
SAMPLE = 10 if WORLD < 8 else 2
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    prepare()


@each_case
def test_operator_on_parts(case):
    judge(case, SAMPLE)


@pytest.mark.slow
@pytest.mark.skipif(WORLD == 8, reason="all combinations on 2 ranks, more of them on 4; 8 ranks have a sample")
@each_case
def test_operator_on_all_placements(case):
    """On 2 x 2 ranks there are 46,000; all of those are judged in one process (test_op_rules_simulated)."""
    judge(case, None if WORLD == 2 else 60)


def judge(case, limit):
    """All combinations of placements, or `limit` of them: results and gradients, redistributions included."""
    expected = reference(case)
    replicated, place = (Replicate(),) * MESH.ndim, MESH.get_coordinate()
    for placed in combinations(case.arrays, MESH.mesh_shape, ("sum",), limit):
        parts = [parts_of(array, placements, MESH.mesh_shape, seed)[place]
                 for seed, (array, placements) in enumerate(zip(case.arrays, placed))]
        leaves = [leaf(part) for part in parts]
        results = listed(case.function(*(DTensor.from_local(used(part), MESH, placements)
                                         for part, placements in zip(leaves, placed))))
        wholes = [result.redistribute(MESH, replicated).to_local() for result in results]
        for result, whole, array in zip(results, wholes, expected.results):
            assert result.shape == array.shape, (placed, result)
            check_result(whole.asnumpy(), array, case.close, f"{placed} -> {result.placements}")
        if not case.gradient:
            continue
        backward(wholes, [None if seed is None else parts_of(seed, adjoint(replicated), MESH.mesh_shape, 3)[place]
                          for seed in expected.seeds])
        for part, placements, array, gradient in zip(leaves, placed, case.arrays, expected.gradients):
            if array.dtype.kind == "f":
                whole = DTensor.from_local(Tensor(gradient_of(part)), MESH, adjoint(placements)).full_tensor()
                check_gradient(whole.asnumpy(), gradient, f"gradient of {placements} in {placed}")


def axes(placement):
    """The placement on the last axis, replicas on the others."""
    return (*(Replicate() for _ in range(MESH.ndim - 1)), placement)


def test_a_row_cut_product_communicates_nothing():
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(1)))
    w = distribute_tensor(Tensor(floats(8, 4)), MESH, axes(Shard(0)))
    with count_collectives() as counter:
        y = mint.matmul(x, w)
    assert y.placements == axes(Partial()) and not counter.collectives


def test_a_partial_is_reduced_before_a_replicate_is_added():
    part = Tensor(floats(4, 8))
    with count_collectives() as counter:
        y = DTensor.from_local(part, MESH, axes(Partial())) + distribute_tensor(part, MESH, axes(Replicate()))
    assert y.placements == axes(Replicate())
    assert [one.kind for one in counter.collectives] == ["all_reduce"]


def test_a_distributed_parameter_gets_its_gradient():
    weight = distribute_tensor(Parameter(Tensor(floats(8, 8)), name="w"), MESH, axes(Shard(0)))
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Replicate()))
    mint.nn.functional.linear(x, weight).sum().backward()
    np.testing.assert_allclose(weight.to_local()._grad.asnumpy(), np.tile(floats(4, 8).sum(0), (4, 1)), rtol=1e-4)


def test_a_replicated_parameter_of_a_module_gets_the_sum_of_its_terms():
    layer = shard_module(nn.LayerNorm((8,)), MESH, ShardingPlan({"gamma": (Replicate(),) * MESH.ndim}))
    weight = layer._params["gamma"]
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    (x * weight).sum().redistribute(MESH, (Replicate(),) * MESH.ndim).to_local().backward()
    np.testing.assert_allclose(weight.to_local()._grad.asnumpy(), WORLD * floats(4, 8).sum(0), rtol=1e-4)


def test_two_meshes_and_fused_parts_are_refused():
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    other = DTensor.from_local(Tensor(floats(4, 8)), init_device_mesh("npu", (WORLD,), mesh_dim_names=("other",)),
                               (Replicate(),))
    with pytest.raises(ValueError, match="different meshes"):
        mint.add(x, other)
    fused = DTensor.from_local(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    fused._slice_map = object()
    with pytest.raises(NotImplementedError, match="slice map"):
        mint.exp(fused)


def test_the_hooks_go_with_the_last_dtensor():
    gc.collect()
    if dispatch_hooks.installed():
        pytest.skip("DTensors of other tests are still alive, so the last one cannot go here")
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    y = x * 2
    index = DTensor.from_local(Tensor(np.array([1, 0])), MESH, axes(Replicate()))
    plain = Tensor(floats(4, 8))
    assert dispatch_hooks.installed()
    assert isinstance(plain[index, 1], DTensor) and isinstance(plain[0, 1:3], Tensor)
    plain[0] = distribute_tensor(Tensor(floats(8, seed=4)), MESH, axes(Replicate())).to_local()
    assert isinstance(Parameter(plain, name="p") * 2, Tensor)
    del x, y, index
    gc.collect()
    assert not dispatch_hooks.installed() and "__fallback__" not in Tensor.__dict__


def test_local_parts_inside_the_skipping_context():
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    with SkipDTensorDispatch():
        assert dispatch_is_skipped()
        for result in (x * 2, mint.cat([x, x]), mint.max(x, dim=0)[0], x[0]):
            assert not isinstance(result, DTensor)
    assert not dispatch_is_skipped()


@pytest.mark.parametrize("drop", [lambda x: mint.nn.functional.dropout(x, 0.5), nn.Dropout(p=0.5).set_train(),
                                  lambda x: ops.Dropout(0.5, 3, 4)(x)[1]], ids=["mint", "nn", "mask"])
def test_dropout_is_equal_on_replicas_and_differs_on_parts(drop):
    ones = Tensor(np.ones((16, 16), np.float32))
    for placement, equal in ((Replicate(), True), (Shard(0), False)):
        mindspore.manual_seed(5)
        x = DTensor.from_local(ones, MESH, axes(placement))
        mask = drop(x).to_local()
        both = DTensor.from_local(mask, MESH, axes(Shard(0))).full_tensor().asnumpy()
        assert np.array_equal(both[:16], both[16:]) == equal
        assert 0.3 < (both > 0).mean() < 0.7 and both.max() in (1, 2)


def test_a_mask_takes_as_many_rows_as_it_has():
    """The shape follows the values, however often the call has been seen before."""
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(1)))
    for kept in ([True, False, True, True], [False, False, True, False], [True] * 4):
        rows = x[Tensor(kept)]
        assert rows.shape == (sum(kept), 8) and rows.placements == axes(Shard(1))
        np.testing.assert_array_equal((rows * 1).full_tensor().asnumpy(), floats(4, 8)[kept])
    x[Tensor([True, False, True, False])] = 7.0
    expected = floats(4, 8)
    expected[[0, 2]] = 7
    np.testing.assert_array_equal(x.full_tensor().asnumpy(), expected)


def test_a_filled_weight_does_not_depend_on_the_mesh():
    mindspore.manual_seed(9)
    whole = mint.empty((8, 4), dtype=mindspore.float32).normal_(0, 1)
    for placement in (Shard(0), Shard(1), Replicate()):
        mindspore.manual_seed(9)
        x = distribute_tensor(Tensor(np.zeros((8, 4), np.float32)), MESH, axes(placement))
        assert x.normal_(0, 1) is x
        np.testing.assert_array_equal(x.full_tensor().asnumpy(), whole.asnumpy())


def test_writing_in_place():
    for placement in (Shard(0), Shard(1), Replicate()):
        x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(placement))
        y = distribute_tensor(Tensor(floats(4, 8, seed=1)), MESH, axes(Shard(1)))
        assert x.add_(y) is x and x.mul_(2) is x and x.placements == axes(placement)
        np.testing.assert_allclose(x.full_tensor().asnumpy(), 2 * (floats(4, 8) + floats(4, 8, seed=1)), rtol=1e-5)
        x.copy_(y)
        np.testing.assert_array_equal(x.full_tensor().asnumpy(), floats(4, 8, seed=1))
        assert not x.zero_().full_tensor().asnumpy().any()
        assert (x.fill_(3.0).full_tensor().asnumpy() == 3).all()
    total = DTensor.from_local(Tensor(floats(4, 8)), MESH, axes(Partial()))
    assert total.mul_(2) is total
    with pytest.raises(NotImplementedError, match="InplaceAddsExt writes into .*Partial.*redistribute"):
        total.add_(1)


def test_writing_to_an_index():
    for placement in (Shard(1), Replicate()):
        x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(placement))
        x[1] = 5.0
        x[2] = distribute_tensor(Tensor(floats(8)), MESH, axes(Replicate()))
        expected = floats(4, 8)
        expected[1], expected[2] = 5.0, floats(8)
        np.testing.assert_array_equal(x.full_tensor().asnumpy(), expected)
    x = distribute_tensor(Tensor(floats(4, 8)), MESH, axes(Shard(0)))
    with pytest.raises(NotImplementedError, match="SetItem writes into"):
        x[1] = 5.0


def test_no_rule_is_an_error_unless_all_is_replicated():
    def solve(placement):
        return ops.cholesky(distribute_tensor(Tensor(np.eye(4, dtype=np.float32)), MESH, axes(placement)))
    assert solve(Replicate()).placements == axes(Replicate())
    with pytest.raises(NotImplementedError,
    match=r"operator Cholesky has no propagation rule for .*Shard\(dim=0\).*redistribut"):
        solve(Shard(0))


def test_fused_attention_over_heads():
    layouts = {"BSH": ((2, 4, 16), 2), "BNSD": ((2, 4, 4, 4), 1), "SBH": ((4, 2, 16), 2), "BSND": ((2, 4, 4, 4), 2)}
    for layout, (shape, dim) in layouts.items():
        arrays = [floats(*shape, seed=seed) for seed in range(3)]
        fused = ops.operations.nn_ops.FlashAttentionScore(head_num=4, scale_value=0.5, input_layout=layout)
        expected = fused(*map(Tensor, arrays))[3].asnumpy()
        out = fused(*(distribute_tensor(Tensor(array), MESH, axes(Shard(dim))) for array in arrays))[3]
        assert out.placements == axes(Shard(dim))
        np.testing.assert_allclose(out.full_tensor().asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_uneven_parts():
    whole = floats(5, 3)
    rank = MESH.get_local_rank("tp")
    x = DTensor.from_local(Tensor(whole[3 * rank:3 * rank + 3]), MESH, axes(Shard(0)), shape=(5, 3))
    assert (x * 2).shape == (5, 3)
    np.testing.assert_allclose((x * 2 + x).full_tensor().asnumpy(), 3 * whole, rtol=1e-5)
    np.testing.assert_allclose(mint.mean(x, dim=0).full_tensor().asnumpy(), whole.mean(0), rtol=1e-4)
    np.testing.assert_allclose(mint.sum(x, dim=0).full_tensor().asnumpy(), whole.sum(0), rtol=1e-4)
    np.testing.assert_allclose(x.reshape(15).full_tensor().asnumpy(), whole.reshape(15), rtol=1e-6)
