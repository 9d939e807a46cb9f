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
"""Rules of operators that a CPU has no kernel for: what they claim, without running anything."""
import pytest

from hyper_parallel.core.dtensor.ops import Operand, find_rule, propagate, rule
from hyper_parallel.core.dtensor.ops.registry import apply_rule
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard

S0, S1, S2, R, P = Shard(0), Shard(1), Shard(2), Replicate(), Partial()
T34, T345 = (4, 8), (4, 8, 12)


def outcome(name, shapes, placements, *rest):
    """`(targets, results)` of an operator on one axis of 2 ranks; a list of shapes is a list argument."""
    operands = [Operand(index, shape, (placement,)) for index, (shape, placement) in enumerate(zip(shapes, placements))]
    spec = apply_rule(name, [*operands, *rest], {})
    decided = propagate(spec, operands, (2,))
    return [target[0] for target in decided.targets], [result[0] for result in decided.results]


@pytest.mark.parametrize("name, shapes, placements, rest, targets, results", [
    ("Mv", [(4, 8), (8,)], [S1, R], (), [S1, S0], [P]),
    ("Dot", [(8,), (8,)], [S0, S0], (), [S0, S0], [P]),
    ("Addmm", [(4, 6), (4, 8), (8, 6)], [R, S0, R], (), [S0, S0, R], [S0]),
    ("Addmm", [(6,), (4, 8), (8, 6)], [R, S1, S0], (), [R, R, R], [R]),
    ("Addmm", [(4, 6), (4, 8), (8, 6)], [P, P, R], (), [P, P, R], [P]),
    ("LogSoftmaxExt", [T34], [S0], (-1,), [S0], [S0]),
    ("LogSoftmaxExt", [T34], [S1], (-1,), [R], [R]),
    ("GroupNorm", [T345], [S0], (2,), [S0], [S0, S0, S0]),
    ("GroupNorm", [T345], [S1], (2,), [R], [R, R, R]),
    ("Var", [T34], [S0], (1,), [S0], [S0]),
    ("VarMean", [T34], [S1], (1,), [R], [R, R]),
    ("ReduceMean", [T34], [S1], (1,), [S1], [Partial("avg")]),
    ("ReduceSum", [T34], [S1], ((), False, True), [S1], [S1]),
    ("ArgMaxExt", [T34], [S0], (), [R], [R]),
    ("ArgMaxExt", [T34], [S0], (1,), [S0], [S0]),
    ("ProdExt", [T34], [S1], (1,), [R], [R]),
    ("LinalgVectorNorm", [T34], [S0], (2.0, 1), [S0], [S0]),
    ("Norm", [T34], [P], (2.0, 1), [R], [R]),
    ("CountNonZero", [T34], [S0], (0,), [S0], [P]),
    ("CumsumExt", [T34], [P], (0,), [P], [P]),
    ("Cummax", [T34], [S1], (0,), [S1], [S1, S1]),
    ("SortExt", [T34], [S1], (0,), [S1], [S1, S1]),
    ("ArgSort", [T34], [S1], (1,), [R], [R]),
    ("Roll", [T34], [S1], (1, 0), [S1], [S1]),
    ("ConstantPadND", [T34], [S0], ((1, 1),), [S0], [S0]),
    ("ConstantPadND", [T34], [S1], ((1, 1),), [R], [R]),
    ("T", [T34], [S0], (), [S0], [S1]),
    ("RepeatInterleaveInt", [T34], [S0], (2, 1), [S0], [S0]),
    ("RepeatInterleaveInt", [T34], [S0], (2,), [R], [R]),
    ("SliceExt", [T34], [S1], (0, 0, 2), [S1], [S1]),
    ("Gather", [T345], [S0], (Operand(9, (4, 2), (R,)), 2, 1), [S0], [S0]),
    ("Gather", [T345], [S2], (Operand(9, (4, 2), (R,)), 2, 1), [R], [R]),
    ("StridedSlice", [T345], [S2], ((0, 3), (4, 4), (1, 1), 0, 0, 0, 0, 2), [S2], [S1]),
    ("GetItem", [T345], [S2], (Operand(9, (4, 8), (R,), dtype="Bool"),), [S2], [S1]),
    ("GetItem", [T345], [S1], ((None, Operand(9, (4,), (R,), dtype="Bool")),), [S1], [S2]),
    ("IndexAddExt", [T34], [S1], (0, Operand(8, (2,), (R,)), Operand(9, (2, 8), (R,))), [S1], [S1]),
    ("IndexAddExt", [T34], [S0], (0, Operand(8, (2,), (R,)), Operand(9, (2, 8), (R,))), [R], [R]),
    ("MSELossExt", [T34, T34], [S0, R], ("mean",), [S0, S0], [Partial("avg")]),
    ("MSELossExt", [T34, T34], [S0, R], (2,), [S0, S0], [P]),
    ("L1LossExt", [T34, T34], [S0, S0], ("none",), [S0, S0], [S0]),
    ("MSELossExt", [T34, T34], [P, R], (), [R, R], [R]),
    ("IndexSelect", [T34], [S1], (0, Operand(9, (3,), (R,))), [S1], [S1]),
    ("InplaceScatterValue", [T34], [S0], (1, Operand(9, (4, 2), (R,)), 1.0), [S0], [S0]),
    ("DropoutExt", [T34], [S1], (0.5, 1, 2), [S1], [S1, R]),
    ("AddcmulExt", [T34, T34, T34], [S0, R, R], (), [S0, S0, S0], [S0]),
    ("MaskedFill", [T34, T34], [P, R], (0.0,), [R, R], [R]),
    ("FlattenExt", [()], [R], (), [R], [R]),
    ("Min", [T34], [Partial("min")], (), [Partial("min")], [Partial("min")]),
], ids=str)
def test_claims(name, shapes, placements, rest, targets, results):
    assert outcome(name, shapes, placements, *rest) == (targets, results)


def test_fused_attention_counts_this_ranks_heads():
    from hyper_parallel.core.dtensor.ops.propagate import Propagation
    operands = [Operand(index, (2, 4, 32), (S2,)) for index in range(3)]
    spec = apply_rule("FlashAttentionScore", operands, {"head_num": 4})
    decided = propagate(spec, operands, (2,))
    assert isinstance(decided, Propagation) and spec.replace(decided.cut(spec, (2,), (1,))) == {10: 2}
    three = [Operand(index, (2, 4, 24), (S2,)) for index in range(3)]
    spec = apply_rule("FlashAttentionScore", three, {"head_num": 3})
    assert propagate(spec, three, (2,)).targets == [(R,)] * 3


@pytest.mark.parametrize("name, shape, rest", [
    ("Gather", T34, (3, 0)), ("DeprecatedMax", T34, (1, False, 0.0)), ("StridedSlice", T34, ((0,), (1,), (1,), 0, 0, 1)),
    ("StridedSlice", T34, ((0,), (1,), (1,), 0, 0, 0, 1))])
def test_arguments_without_a_rule(name, shape, rest):
    assert apply_rule(name, [Operand(0, shape, (S0,)), *rest], {}) is None


@pytest.mark.parametrize("other", [1, Operand(1, (3,), (R,), dtype="Int64")])
def test_a_mask_beside_numbers_is_refused(other):
    with pytest.raises(NotImplementedError, match="boolean tensor that indexes beside numbers"):
        apply_rule("GetItem", [Operand(0, T34, (S0,)), (Operand(2, (4,), (R,), dtype="Bool"), other)], {})


@pytest.mark.parametrize("shape", [(5, 5), (3, -1)])
def test_a_reshape_that_cannot_be(shape):
    with pytest.raises(ValueError, match=r"\(4, 8\) cannot become"):
        apply_rule("Reshape", [Operand(0, T34, (S0,)), shape], {})


def test_a_dim_that_is_not_there():
    with pytest.raises(ValueError, match="valid dims are -2 to 1"):
        apply_rule("Softmax", [Operand(0, T34, (S0,)), 5], {})


def test_an_operator_has_one_rule():
    with pytest.raises(ValueError, match="has a rule already"):
        rule("Softmax")(lambda x: None)
    assert find_rule("NoSuchOperator") is None
