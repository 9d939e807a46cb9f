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
"""One parameter in parts: to the wire and back, for every rank in turn; the judge is numpy's array_split by chunks."""
import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn
from mindspore.common.api import _pynative_executor

from hyper_parallel.core.fully_shard.parameter import ShardedParameter
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward

SHAPES = [((8, 3), 0), ((7, 3), 0), ((3, 7), 1), ((13,), 0), ((2, 6, 2), 1), ((4, 1), 0)]


@pytest.fixture(autouse=True)
def kernels():
    """Another test may have taken them away."""
    cpu_kernels.install()


def parts_of(shape, dim, ranks):
    """(a leaf, its ShardedParameter for each rank, the chunks)."""
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    leaf = Parameter(Tensor(values), name="w")
    each = [ShardedParameter(leaf, leaf, dim, ranks, index) for index in range(ranks)]
    rows = -(-shape[dim] // ranks)
    return leaf, values, each, [np.take(values, range(index * rows, min((index + 1) * rows, shape[dim])), dim)
                                for index in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shape, dim", SHAPES)
def test_parts_and_the_wire_are_inverses(shape, dim, ranks):
    leaf, values, each, chunks = parts_of(shape, dim, ranks)
    parts = [one.cut(leaf) for one in each]
    wires = []
    for one, part, chunk in zip(each, parts, chunks):
        assert np.array_equal(part.asnumpy(), chunk)
        wires.append(one.to_wire(part))
        assert wires[-1].shape == (one.wire_elements,)
        assert np.array_equal(one.from_wire(wires[-1]).asnumpy(), chunk)
    wire = mint.stack(wires)
    assert np.array_equal(each[0].gathered_to_wire(Tensor(values)).asnumpy(), wire.asnumpy())
    cell = nn.Cell()
    one = each[-1]
    one.slots.append((cell, "w"))
    one.free()
    assert one.gathered_bytes == 0 and "w" not in vars(cell)
    one.fill_from_wire(wire)
    assert cell.w is leaf and np.array_equal(leaf.asnumpy(), values) and one.gathered_bytes == values.nbytes


def test_a_strided_gradient_goes_to_the_wire_by_its_values():
    leaf, values, each, _ = parts_of((6, 4), 0, 2)
    turned = mint.transpose(Tensor(values.T.copy()), 0, 1)
    assert np.array_equal(each[0].gathered_to_wire(turned).asnumpy().reshape(6, 4), values)


@pytest.fixture
def recording():
    """Operators are recorded for `backward`, and in the tests after this one as they were before it."""
    had = _pynative_executor.grad_flag()
    enable_backward()
    yield
    _pynative_executor.set_grad_flag(had)


@pytest.mark.usefixtures("recording")
def test_autograd_finds_the_numbers_again_after_a_free():
    """The memory of a weight goes between forward and backward, and other numbers stand there for a while."""
    leaf, values, each, _ = parts_of((64, 64), 0, 2)
    each[0].slots.append((nn.Cell(), "w"))
    x = Parameter(Tensor(np.ones((2, 64), np.float32)), name="x")
    wire = mint.stack([one.to_wire(one.cut(leaf)) for one in each])
    loss = mint.sin(mint.matmul(x, mint.transpose(leaf, 0, 1))).sum()
    each[0].free()
    others = [Tensor(np.full((64, 64), 7.0, np.float32)) + 1 for _ in range(4)]
    each[0].fill_from_wire(wire)
    loss.backward()
    cosine = np.cos(np.ones((2, 64)) @ values.T.astype(np.float64))
    assert np.allclose(x._grad.asnumpy(), cosine @ values, atol=1e-4) and len(others) == 4
    assert leaf.dtype == mindspore.float32
