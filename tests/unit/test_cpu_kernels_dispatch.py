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
"""What a Tensor subclass sees of the stand-ins: the kernel's name and arguments, as on a device that has the kernel."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Parameter, Tensor, mint, ops
from mindspore._c_expression import NoFallbackGuard
from mindspore.ops import auto_generate
from mindspore.ops.operations import nn_ops

from hyper_parallel.platform.cpu_kernels.dispatch import CpuOperator, tensors_in
from hyper_parallel.platform.cpu_kernels.numeric import positive_dim, to_host
from cpu_kernels_checks import close, numbers

F = mint.nn.functional


class Recorder(Tensor):
    """Notes what it is offered, then computes with subclass dispatch off, as a distributed tensor does on its local."""
    offered = []

    def __fallback__(self, func, args=(), kwargs=None):
        Recorder.offered.append((func.name, args))
        with NoFallbackGuard():
            return func(*args, **(kwargs or {}))


def recorder(array):
    Recorder.offered.clear()
    return Tensor._make_subclass(Recorder, Tensor(array))  # pylint: disable=protected-access


INDEX = Tensor(np.array([[0], [1], [2]]))
CALLS = {
    "SplitTensorView": (lambda a: mint.split(a, 2, 1), ("a", 2, 1)),
    "SplitWithSizeView": (lambda a: mint.split(a, (1, 3), dim=-1), ("a", (1, 3), -1)),
    "RmsNorm": (lambda a: ops.rms_norm(a, a), ("a", "a", 1e-6)),
    "StackExt": (lambda a: mint.stack([a, a], 1), (["a", "a"], 1)),
    "ZerosLikeExt": (mint.zeros_like, ("a", None)),
    "OnesLikeExt": (mint.ones_like, ("a", None)),
    "FullLike": (lambda a: mint.full_like(a, 2), ("a", 2, None)),
    "Clone": (lambda a: a.clone(), ("a",)),
    "Outer": (lambda a: mint.outer(Tensor(numbers(3)), a), None),
    "TrilExt": (mint.tril, ("a", 0)),
    "ScatterAddExt": (lambda a: mint.scatter_add(a, 1, INDEX, Tensor(numbers(3, 1))), None),
    "ScatterValue": (lambda a: mint.scatter(a, 1, INDEX, 0), None),
    "TopkExt": (lambda a: mint.topk(a, 2), ("a", 2, -1, True, True)),
    "SortExt": (lambda a: mint.sort(a, dim=0), ("a", 0, False, False)),
    "ArgSort": (mint.argsort, ("a", -1, False, False)),
    "HistcExt": (lambda a: mint.histc(a, bins=4, min=0, max=4), ("a", 4, 0, 4)),
    "CumsumExt": (lambda a: mint.cumsum(a, dim=0), ("a", 0, None)),
    "IndexSelect": (lambda a: mint.index_select(a, 0, Tensor([0])), None),
    "FloorDivScalar": (lambda a: mint.floor_divide(a, 2), ("a", 2)),
    "RepeatInterleaveInt": (lambda a: mint.repeat_interleave(a, 2, 0), ("a", 2, 0, None)),
    "Roll": (lambda a: mint.roll(a, 1, 0), ("a", 1, 0)),
    "GeluExt": (F.gelu, ("a", "none")),
    "SoftplusExt": (F.softplus, ("a", 1, 20)),
    "Swiglu": (ops.swiglu, ("a", -1)),
    "LayerNormExt": (lambda a: F.layer_norm(a, 4), ("a", (4,), None, None, 1e-5)),
    "LogSoftmaxExt": (lambda a: F.log_softmax(a, -1), ("a", -1, None)),
    "Embedding": (lambda a: F.embedding(Tensor([0]), a), None),
    "FuncDropoutExt": (lambda a: F.dropout(a, 0.5), None),
    "MoeTokenPermute": (lambda a: ops.moe_token_permute(a, Tensor([1, 0, 1])), None),
    "MoeTokenUnpermute": (lambda a: ops.moe_token_unpermute(a, Tensor([1, 0, 2], ms.int32)), None),
    "RotaryPositionEmbedding": (lambda a: ops.rotary_position_embedding(a, a, a), ("a", "a", "a", 0)),
    "Mm": (lambda a: mint.mm(a, Tensor(numbers(4, 2))), None),
    "MatMulExt": (lambda a: mint.matmul(a, Tensor(numbers(4, 2))), None),
    "SelectExtView": (lambda a: mint.select(a, 0, 1), ("a", 0, 1)),
    "UnstackExtView": (mint.unbind, ("a", 0)),
    "InplaceNormal": (lambda a: a.normal_(0, 0.1), None),
    "InplaceUniform": (lambda a: a.uniform_(0, 1), None),
    "InplaceZero": (lambda a: a.zero_(), ("a",)),
    "InplaceFillScalar": (lambda a: a.fill_(1), ("a", 1)),
    "InplaceFillTensor": (lambda a: a.fill_(Tensor(1.0)), None),
    "InplaceCopy": (lambda a: a.copy_(Tensor(numbers(3, 4))), None),
    "InplaceScatterValue": (lambda a: a.scatter_(1, INDEX, 1.0), None),
    "InplaceScatterSrc": (lambda a: a.scatter_(1, INDEX, Tensor(numbers(3, 1))), None),
    "InplaceIndexAddExt": (lambda a: a.index_add_(0, Tensor([0]), Tensor(numbers(1, 4))), None),
    "InplaceAddExt": (lambda a: a.add_(Tensor(numbers(3, 4))), None),
    "InplaceAddsExt": (lambda a: a.add_(1.0), ("a", 1.0)),
    "InplaceSubScalar": (lambda a: a.sub_(1.0), ("a", 1.0)),
    "InplaceMuls": (lambda a: a.mul_(2.0), ("a", 2.0)),
    "InplaceDivs": (lambda a: a.div_(2.0), ("a", 2.0)),
    "InplaceExp": (lambda a: a.exp_(), ("a",)),
}


@pytest.mark.parametrize("name", CALLS)
def test_name_and_arguments(name):
    call, expected = CALLS[name]
    array = numbers(3, 4)
    subject = recorder(array)
    call(subject)
    offered = [entry for entry in Recorder.offered if entry[0] == name]
    assert len(offered) == 1
    if expected is not None:
        mark = [["a" if item is subject else item for item in arg] if isinstance(arg, list)
                else "a" if arg is subject else arg for arg in offered[0][1]]
        assert tuple(mark) == expected


@pytest.mark.parametrize("name", ["SplitTensorView", "RmsNorm", "CumsumExt", "GeluExt", "IndexSelect"])
def test_the_result_is_that_of_plain_tensors(name):
    call, _ = CALLS[name]
    array = numbers(3, 4)
    claimed, plain = call(recorder(array)), call(Tensor(array))
    for one, other in zip(claimed if isinstance(claimed, tuple) else (claimed,),
                          plain if isinstance(plain, tuple) else (plain,)):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_primitives_are_offered_with_their_attributes():
    query = recorder(numbers(1, 2, 3, 4))
    nn_ops.FlashAttentionScore(head_num=2, scale_value=0.5, input_layout="BNSD", sparse_mode=3)(query, query, query)
    name, args = Recorder.offered[0]
    assert name == "FlashAttentionScore" and len(args) == 18
    assert args[10:] == (2, 1.0, 0.5, 2147483647, 2147483647, 0, 1, 3)
    rows = recorder(numbers(3, 4))
    auto_generate.GroupedMatmul(split_item=3, group_type=0)([rows], [Tensor(numbers(1, 4, 2))], None, None, None, None,
                                                            None, Tensor([3]))
    name, args = Recorder.offered[0]
    assert name == "GroupedMatmul" and args[8:] == (3, 0, False, False) and args[0][0] is rows


def test_bfloat16_is_offered_with_keywords():
    half = recorder(numbers(3, 4)).astype(ms.bfloat16)
    subject = Tensor._make_subclass(Recorder, half)  # pylint: disable=protected-access
    Recorder.offered.clear()
    result = mint.sum(subject, dim=1)
    assert Recorder.offered[0][0] == "SumExt"
    close(result, half.astype(ms.float32).asnumpy().sum(1), 2e-2)


def test_nothing_is_offered_inside_a_guard():
    subject = recorder(numbers(3, 4))
    with NoFallbackGuard():
        pieces = mint.split(subject, 2, 1)
    assert not Recorder.offered and len(pieces) == 2


def test_a_fallback_on_the_base_class_claims_nothing():
    """A distributed tensor may have to put `__fallback__` on Tensor itself; plain tensors are still plain."""
    def decline(self, func, args=(), kwargs=None):
        with NoFallbackGuard():
            return func(*args, **(kwargs or {}))
    Tensor.__fallback__ = decline
    try:
        class Subclass(Tensor):
            """Overrides nothing."""
        plain = Tensor._make_subclass(Subclass, Tensor(numbers(3, 4)))  # pylint: disable=protected-access
        assert len(mint.split(plain, 2, 1)) == 2
        assert len(mint.split(Parameter(Tensor(numbers(3, 4)), name="p"), 2, 1)) == 2
    finally:
        del Tensor.__fallback__


def test_operator_fills_in_defaults():
    operator = CpuOperator("Example", lambda a, b=2, c=3: (a, b, c))
    assert operator.operands((1,), {"c": 5}) == (1, 2, 5)
    assert operator.operands((1, 1, 1), {}) == (1, 1, 1)
    assert operator(4) == (4, 2, 3) and repr(operator) == "CpuOperator(Example)"


def test_tensors_are_found_in_lists():
    one, two = Tensor(1.0), Tensor(2.0)
    assert [id(found) for found in tensors_in([one, 3, (two, "x"), None])] == [id(one), id(two)]


def test_small_helpers():
    assert positive_dim(-1, 3) == 2 and positive_dim(0, 0) == 0
    with pytest.raises(ValueError, match="use -2 to 1"):
        positive_dim(2, 2)
    assert to_host(Tensor([1.5], ms.bfloat16)).dtype == np.float32
