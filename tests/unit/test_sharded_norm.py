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
"""A norm over a cut width: what it computes is found out by running it; the replacement computes the same."""
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from hyper_parallel.core.collectives.groups import Group
from hyper_parallel.distributed.sharded_norm import identify_norm, norm_over_cut_dim
from tests.models.layers import LayerNorm, RMSNorm
from tests.models.mamba2 import GatedRMSNorm

ALONE = Group("alone", (0,), 0)
SIZE = 12


class OnePlusWeight(RMSNorm):
    """Gemma's form."""

    def construct(self, x):
        """Normalised x times 1 + w."""
        return x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + self.eps) * (1 + self.weight)


class GateAfter(RMSNorm):
    """The gate comes after the norm."""

    def construct(self, x, gate):
        """norm(x) silu(gate)."""
        return super().construct(x) * gate * ops.sigmoid(gate)


class NoParameters(nn.Cell):
    """A weight that it does not use as a scale."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(SIZE, np.float32)), name="weight")

    def construct(self, x):
        """Something else."""
        return ops.softmax(x * self.weight, -1)


CASES = {
    "rms": (lambda: RMSNorm(SIZE, 1e-6), 1, {"kind": "rms", "epsilon": 1e-6, "scale": "weight", "bias": None}),
    "layer": (lambda: LayerNorm(SIZE, 1e-5), 1, {"kind": "layer", "epsilon": 1e-5, "scale": "weight", "bias": "bias"}),
    "mindspore": (lambda: nn.LayerNorm((SIZE,), epsilon=1e-5), 1, {"kind": "layer", "scale": "gamma", "bias": "beta"}),
    "one plus": (lambda: OnePlusWeight(SIZE, 1e-6), 1, {"kind": "rms", "offset": 1.0}),
    "gate before": (lambda: GatedRMSNorm(SIZE, 1e-5), 2, {"kind": "rms", "gate": "before", "epsilon": 1e-5}),
    "gate after": (lambda: GateAfter(SIZE, 1e-6), 2, {"kind": "rms", "gate": "after"}),
}


@pytest.mark.parametrize("name", CASES)
def test_forms_are_found_and_recomputed(name):
    make, arguments, expected = CASES[name]
    cell = make()
    generator = np.random.default_rng(3)
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(generator.uniform(0.5, 1.5, SIZE).astype(np.float32)))
    values = {key: parameter.asnumpy() for key, parameter in cell._params.items()}
    form = identify_norm(cell, "attn.q_norm", arguments)
    assert {key: form[key] for key in expected} == expected
    assert all(np.array_equal(cell._params[key].asnumpy(), value) for key, value in values.items())
    inputs = [Tensor(generator.standard_normal((2, 3, SIZE)).astype(np.float32)) for _ in range(arguments)]
    before = cell(*inputs).asnumpy()
    undo = norm_over_cut_dim(cell, form, ALONE, "attn.q_norm")
    assert np.allclose(cell(*inputs).asnumpy(), before, rtol=1e-5, atol=1e-6)
    undo()
    assert "construct" not in vars(cell) and np.array_equal(cell(*inputs).asnumpy(), before)


def test_anything_else_is_refused_with_the_ways_out():
    with pytest.raises(ValueError, match="'attn.q_norm' .NoParameters. normalises over a width .*overrides: .*attn"):
        identify_norm(NoParameters(), "attn.q_norm", 1)
    with pytest.raises(ValueError, match="is neither a root mean square norm nor a layer norm"):
        identify_norm(nn.Dense(SIZE, SIZE), "attn.q_norm", 1)
