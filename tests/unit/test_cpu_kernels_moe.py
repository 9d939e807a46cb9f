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
"""Grouped matrix product and token permutation on CPU, against numpy."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops import auto_generate

from cpu_kernels_checks import check, check_half, close, numbers

ENDS = [2, 2, 5]
EXPERTS = np.array([[1, 0], [0, 1], [2, 0], [1, 2]])


def grouped(rows, matrices, ends=tuple(ENDS)):
    result, start = np.zeros((rows.shape[0], matrices.shape[2])), 0
    for matrix, end in zip(matrices, ends):
        result[start:end] = rows[start:end] @ matrix
        start = end
    return result


def product(ends=Tensor(ENDS, ms.int64), **attributes):
    """The operator as MindFormers' experts call it."""
    operator = auto_generate.GroupedMatmul(split_item=3, group_type=0, **attributes)
    return lambda rows, matrices: operator([rows], [matrices], None, None, None, None, None, ends)[0]


def test_grouped_matmul_with_an_empty_group():
    check(product(), grouped, numbers(5, 3), numbers(3, 3, 2))
    check(product(ENDS), grouped, numbers(5, 3), numbers(3, 3, 2))


def test_rows_beyond_the_groups_are_zero():
    check(product(), grouped, numbers(7, 3), numbers(3, 3, 2))
    check(product(Tensor([0, 0, 0])), lambda a, b: grouped(a, b, (0, 0, 0)), numbers(2, 3), numbers(3, 3, 2))


def test_transposed_weights():
    check(product(transpose_b=True), lambda a, b: grouped(a, b.swapaxes(1, 2)), numbers(5, 3), numbers(3, 2, 3))


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(dtype):
    check_half(product(), grouped, numbers(5, 3), numbers(3, 3, 2), dtype=dtype)
    check_half(lambda a: ops.moe_token_permute(a, Tensor(EXPERTS, ms.int32))[0],
               lambda a: a[np.argsort(EXPERTS.reshape(-1), kind="stable") // 2], numbers(4, 3), dtype=dtype)


def test_grouped_matmul_refuses_other_forms():
    rows, matrices = Tensor(numbers(5, 3)), Tensor(numbers(3, 3, 2))
    with pytest.raises(NotImplementedError, match="split_item 0, group_type -1"):
        auto_generate.GroupedMatmul()([rows], [matrices])
    with pytest.raises(NotImplementedError, match="2 x and"):
        auto_generate.GroupedMatmul(split_item=3, group_type=0)([rows, rows], [matrices], group_list=Tensor(ENDS))


def test_grouped_matmul_stays_a_primitive():
    operator = auto_generate.GroupedMatmul(split_item=3, group_type=0)
    assert isinstance(operator, ops.Primitive) and operator.name == "GroupedMatmul"
    with ms.DeviceCtx("meta"):
        out = operator([Tensor(numbers(5, 3))], [Tensor(numbers(3, 3, 2))], group_list=Tensor(ENDS))
    assert out[0].device == "meta"


def test_permute():
    order = np.argsort(EXPERTS.reshape(-1), kind="stable")
    for dtype in (ms.int32, ms.int64):
        indices = Tensor(EXPERTS, dtype)
        check(lambda a, indices=indices: ops.moe_token_permute(a, indices)[0], lambda a: a[order // 2], numbers(4, 3))
        places = ops.moe_token_permute(Tensor(numbers(4, 3)), indices)[1]
        assert places.dtype == ms.int32
        np.testing.assert_array_equal(places.asnumpy(), np.argsort(order))


def test_permute_by_one_expert_a_token():
    """The example of MindSpore's documentation."""
    tokens = Tensor(np.array([[1], [7], [2], [1], [2], [3]], np.float32))
    permuted, places = ops.moe_token_permute(tokens, Tensor([5, 0, 3, 1, 2, 4], ms.int32))
    np.testing.assert_array_equal(permuted.asnumpy().reshape(-1), [7, 1, 2, 2, 3, 1])
    np.testing.assert_array_equal(places.asnumpy(), [5, 0, 3, 1, 2, 4])


def test_unpermute():
    places = Tensor(np.argsort(np.argsort(EXPERTS.reshape(-1), kind="stable")), ms.int32)
    check(lambda a: ops.moe_token_unpermute(a, places), lambda a: a[places.asnumpy()], numbers(8, 3))
    check(lambda a, probs: ops.moe_token_unpermute(a, places, probs),
          lambda a, probs: (a[places.asnumpy()].reshape(4, 2, 3) * probs[..., None]).sum(1),
          numbers(8, 3), numbers(4, 2))


def test_there_and_back():
    tokens, probabilities = numbers(4, 3), np.array([[0.25, 0.75]] * 4, np.float32)
    permuted, places = ops.moe_token_permute(Tensor(tokens), Tensor(EXPERTS, ms.int32))
    close(ops.moe_token_unpermute(permuted, places, Tensor(probabilities)), tokens, 1e-6)


def test_tokens_that_were_cut_off_count_as_zero():
    tokens = numbers(4, 3)
    permuted, places = ops.moe_token_permute(Tensor(tokens), Tensor(EXPERTS[:, 0], ms.int32), num_out_tokens=3)
    assert permuted.shape == (3, 3) and places.shape == (4,)
    kept = np.array([1, 1, 0, 1])[:, None]
    close(ops.moe_token_unpermute(permuted, places), tokens * kept, 1e-6)


def test_padded_mode_is_refused():
    tokens, indices = Tensor(numbers(4, 3)), Tensor(EXPERTS[:, 0], ms.int32)
    with pytest.raises(NotImplementedError, match="padded"):
        ops.moe_token_permute(tokens, indices, None, True)
    with pytest.raises(NotImplementedError, match="padded"):
        ops.moe_token_unpermute(tokens, indices, None, True)
