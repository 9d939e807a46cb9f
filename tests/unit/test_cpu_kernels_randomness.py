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
"""Random numbers on CPU: their distribution, and that MindSpore's seeds and generators rule them."""
import numpy as np
import pytest

import mindspore as ms
from mindspore import Generator, Parameter, Tensor, mint

from cpu_kernels_checks import FORMS, numbers

F = mint.nn.functional
DRAWS = {
    "normal_": lambda generator=None: mint.zeros((40, 50)).normal_(generator=generator),
    "uniform_": lambda generator=None: mint.zeros((40, 50)).uniform_(generator=generator),
    "rand": lambda generator=None: mint.rand(40, 50, generator=generator),
    "randn": lambda generator=None: mint.randn((40, 50), generator=generator),
    "randint": lambda generator=None: mint.randint(0, 1000, (40, 50), generator=generator),
    "randperm": lambda generator=None: mint.randperm(2000, generator=generator),
    "normal": lambda generator=None: mint.normal(0.0, 1.0, (40, 50), generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seeds_and_generators(name):
    draw = DRAWS[name]
    ms.manual_seed(5)
    first, second = draw().asnumpy(), draw().asnumpy()
    assert not np.array_equal(first, second)
    ms.manual_seed(5)
    np.testing.assert_array_equal(draw().asnumpy(), first)
    own = Generator()
    own.manual_seed(9)
    with_own = draw(own).asnumpy()
    own.manual_seed(9)
    np.testing.assert_array_equal(draw(own).asnumpy(), with_own)


def test_normal_numbers():
    tensor = mint.zeros((100, 100))
    result = tensor.normal_(mean=2.0, std=0.5)
    assert abs(tensor.asnumpy().mean() - 2) < 0.03 and abs(tensor.asnumpy().std() - 0.5) < 0.02
    np.testing.assert_array_equal(result.asnumpy(), tensor.asnumpy())


def test_uniform_numbers():
    values = mint.zeros((100, 100)).uniform_(-1, 3).asnumpy()
    assert values.min() >= -1 and values.max() < 3 and abs(values.mean() - 1) < 0.05


def test_normal_takes_tensors():
    result = mint.normal(Tensor([0.0, 100.0]), Tensor([1.0, 1.0])).asnumpy()
    assert abs(result[0]) < 20 and abs(result[1] - 100) < 20
    assert mint.normal(Tensor([0.0, 1.0]), 1.0).shape == (2,)


def test_integers_and_permutations():
    values = mint.randint(2, 5, (100,))
    assert values.dtype == ms.int64 and set(values.asnumpy()) == {2, 3, 4}
    assert set(mint.randint(2, (50,), dtype=ms.int32).asnumpy()) == {0, 1}
    np.testing.assert_array_equal(np.sort(mint.randperm(9).asnumpy()), np.arange(9))


def test_dtypes():
    for dtype in (ms.float16, ms.bfloat16):
        assert mint.rand(2, 3, dtype=dtype).dtype == dtype
        assert mint.zeros((2, 2), dtype=dtype).normal_().dtype == dtype


@pytest.mark.parametrize("form", FORMS)
def test_views_are_filled(form):
    start = numbers(6, 5)
    tensor = FORMS[form](start)
    tensor.normal_()
    assert len(np.unique(tensor.asnumpy())) == 30
    parameter = Parameter(Tensor(start), name="w")
    parameter.uniform_(5, 6)
    assert parameter.asnumpy().min() >= 5


def test_dropout():
    tensor = Tensor(np.ones((100, 100), np.float32))
    kept = F.dropout(tensor, 0.25).asnumpy()
    np.testing.assert_allclose(np.unique(kept), [0, 1 / 0.75], rtol=1e-6)
    assert abs((kept == 0).mean() - 0.25) < 0.03


def test_dropout_gradient_is_its_mask():
    def loss(a, weights):
        dropped = F.dropout(a, 0.5)
        return mint.sum(mint.mul(mint.transpose(dropped, 0, 1), weights)), dropped
    weights = numbers(5, 6)
    gradient, (dropped,) = ms.grad(loss, has_aux=True)(Tensor(np.ones((6, 5), np.float32)), Tensor(weights))
    np.testing.assert_allclose(gradient.asnumpy(), dropped.asnumpy() * weights.T, rtol=1e-6)


def test_dropout_extremes():
    tensor = Tensor(numbers(3, 4))
    for untouched in (F.dropout(tensor, 0.0), F.dropout(tensor, 0.5, False)):
        np.testing.assert_array_equal(untouched.asnumpy(), tensor.asnumpy())
    np.testing.assert_array_equal(F.dropout(tensor, 1.0).asnumpy(), np.zeros((3, 4)))
    for dtype in (ms.float16, ms.bfloat16):
        assert F.dropout(tensor.astype(dtype), 0.5).dtype == dtype
    with pytest.raises(ValueError, match="between 0 and 1, but got 1.5"):
        F.dropout(tensor, 1.5)


def test_dropout_in_place():
    tensor = Tensor(np.ones((4, 4), np.float32))
    F.dropout(tensor, 1.0, True, True)
    np.testing.assert_array_equal(tensor.asnumpy(), np.zeros((4, 4)))
