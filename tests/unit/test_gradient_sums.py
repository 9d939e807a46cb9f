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
"""Gradients of parameters that several ranks hold: which rows are summed, and what stays zero."""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from hyper_parallel.core.dtensor.placement_types import Replicate, Shard
from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed import gradient_sums
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from tests.models.one_process import MeshOfOneProcess


def spec_of(shape, cut, **more):
    """A parameter's plan."""
    slice_map = SliceMap.of(shape, cut) if cut else SliceMap.whole(shape)
    placement = {"tp": Shard(cut.dim) if cut else Replicate()}
    return ParameterSpec("attn.weight", shape, "float32", "FUSED_QKV", placement, slice_map, **more)


@pytest.fixture(name="reduced")
def fixture_reduced(monkeypatch):
    """All-reduces that multiply by 10 and note the ranks and the shape."""
    seen = []

    def make(kind, group, op, **_):
        def run(x):
            seen.append((op, group, tuple(x.shape)))
            return x * 10

        return run

    monkeypatch.setattr(gradient_sums.functional, "make", make)
    monkeypatch.setattr(gradient_sums, "get_group", tuple)
    return seen


@pytest.mark.parametrize("dim", [0, 1])
def test_G05_only_copied_rows_are_summed_in_one_reduction(reduced, dim):
    cut = Cut("tp", dim, 4, (Section(16, 2, name="Q"), Section(4, 2, copies=2), Section(4, 2, copies=2)))
    shape = (24, 3) if dim == 0 else (3, 24)
    hook = gradient_sums.gradient_hook(spec_of(shape, cut, copies=2), MeshOfOneProcess(4, 3), "attn")
    local = np.arange(24, dtype=np.float32).reshape((8, 3) if dim == 0 else (3, 8))
    expected = local.copy()
    expected[(slice(None),) * dim + (slice(4, 8),)] *= 10
    assert np.array_equal(hook(Tensor(local)).asnumpy(), expected)
    assert reduced == [("sum", (2, 3), (4, 3) if dim == 0 else (3, 4))]


def test_a_weight_of_copies_alone_is_summed_as_it_is(reduced):
    cut = Cut("tp", 0, 4, (Section(4, 2, copies=2),))
    hook = gradient_sums.gradient_hook(spec_of((4, 3), cut, copies=2), MeshOfOneProcess(4, 1), "attn")
    hook(Tensor(np.ones((2, 3), np.float32)))
    assert reduced == [("sum", (0, 1), (2, 3))]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_bias_of_the_first_rank_gets_no_gradient_elsewhere(reduced, rank):
    cut = Cut("tp", 0, 2, (Section(4, 4, padding=4),))
    hook = gradient_sums.gradient_hook(spec_of((4, 3), cut, first_rank_only=True), MeshOfOneProcess(2, rank), "mlp")
    gradient = np.full((4, 3), np.nan if rank else 2.0, np.float32)
    found = hook(Tensor(gradient)).asnumpy()
    assert np.array_equal(found, np.zeros((4, 3)) if rank else gradient) and not reduced


def test_whole_and_cut_parameters_without_more_to_say_get_no_hook(reduced):
    assert gradient_sums.gradient_hook(spec_of((4, 3), None), MeshOfOneProcess(), "mlp") is None
    assert gradient_sums.gradient_hook(spec_of((4, 3), Cut("tp", 0, 2, (Section(4),))), MeshOfOneProcess(), "mlp") is None
    hook = gradient_sums.gradient_hook(spec_of((4, 3), None, grad_sum_axes=("tp",)), MeshOfOneProcess(), "mlp")
    assert hook(Tensor(np.ones((4, 3), np.float16))).dtype == mindspore.float16
    assert [(op, shape) for op, _, shape in reduced] == [("sum", (4, 3))]
