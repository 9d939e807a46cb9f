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
"""Queries and latent from one projection: the order is read off the forward, or refused."""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from hyper_parallel.distributed.latent_query import OwnQueries, find_query_size
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.head_geometry import find_heads


class Sizes(nn.Cell):
    """What the forwards below read."""

    def __init__(self):
        super().__init__()
        self.q_rank, self.latent, self.width = 48, 16, 48


class Splits(Sizes):
    """The queries first, by a list of sizes."""

    def construct(self, x):
        """Queries and latent."""
        return ops.split(x, [self.q_rank, self.latent], -1)


class Slices(Sizes):
    """The queries first, by a slice."""

    def construct(self, x):
        """The two parts."""
        return x[..., :self.q_rank], x[..., self.q_rank:]


class LatentFirst(Sizes):
    """The latent first."""

    def construct(self, x):
        """The two parts."""
        return ops.split(x, [self.latent, self.q_rank], -1)


class Counts(Sizes):
    """Nothing that counts the rows of the queries."""

    def construct(self, x):
        """The two parts."""
        return x[..., :-self.latent], x[..., -self.latent:]


@pytest.mark.parametrize("kind", [Splits, Slices])
def test_the_size_that_splits_the_queries_off_the_front_becomes_local(kind):
    assert find_query_size("attention", kind(), 48, 4) == {"q_rank": 12}


@pytest.mark.parametrize("kind", [LatentFirst, Counts])
def test_an_order_that_the_forward_does_not_show_is_refused(kind):
    with pytest.raises(ValueError, match=f"'attention' \\({kind.__name__}\\).*48 rows of queries"):
        find_query_size("attention", kind(), 48, 4)


def test_each_rank_goes_on_with_its_queries_and_the_whole_latent():
    x = np.arange(2 * 9, dtype=np.float32).reshape(2, 9)
    for index in range(3):
        own = OwnQueries(6, 3, index)
        expected = np.concatenate([x[:, 2 * index:2 * index + 2], x[:, 6:]], 1)
        assert np.array_equal(own(Tensor(x)).asnumpy(), expected)
        gradient = mindspore.grad(lambda one, own=own: own(one).sum())(Tensor(x)).asnumpy()
        assert np.array_equal(gradient, np.isin(np.arange(9), [2 * index, 2 * index + 1, 6, 7, 8]) * np.ones((2, 1)))


def test_the_size_of_a_query_head_follows_from_the_shapes_or_is_refused():
    facts = ModelFacts(heads=4, kv_lora_rank=16)
    shapes = {parts.LATENT: (4 * (8 + 4) + 16 + 4, 32), parts.KEY_VALUE: (4 * (8 + 8), 16),
              parts.ATTENTION_OUT: (32, 4 * 8)}
    heads = find_heads("attention", shapes, facts, {})
    assert (heads.heads, heads.head_dim, heads.value_dim, heads.is_latent) == (4, 12, 8, True)
    with pytest.raises(ValueError, match="69 rows of its projection down are no queries of 4 heads beside a latent of 16"):
        find_heads("attention", {**shapes, parts.LATENT: (69, 32)}, facts, {})
