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
"""Regions as other hands write them, when a plan meets them: sizes by value and by name, residuals, and the refusals."""
import types

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.distributed.applier import applied_state
from tests.models.decoder import Attention, Backbone, Block, CausalLM, randomize
from tests.models.one_process import MeshOfOneProcess

HIDDEN = 16


def sizes(**own):
    """Sizes of a small decoder."""
    return types.SimpleNamespace(**{
        "vocab_size": 32, "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4,
        "num_hidden_layers": 1, "intermediate_size": 24, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, **own})


class Linear(nn.Cell):
    """A linear that reshapes by the sizes it keeps."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(Tensor(np.ones((out_features, in_features), np.float32)), name="weight")

    def construct(self, x):
        """x W."""
        shape = x.shape[:-1] + (self.out_features,)
        return ops.matmul(x.reshape((-1, self.in_features)), self.weight.T).reshape(shape)


class FeedForward(nn.Cell):
    """Two linears of the test's own class; subclasses write the forward."""

    def __init__(self, width, linear=Linear, **attributes):
        super().__init__()
        self.up_proj, self.down_proj = linear(HIDDEN, width), linear(width, HIDDEN)
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, x):
        """down(relu(up))."""
        return self.down_proj(ops.relu(self.up_proj(x)))


class Sliced(FeedForward):
    """Keeps the columns that an attribute counts."""

    def construct(self, x):
        """down(relu(up)[: width])."""
        return self.down_proj(ops.relu(self.up_proj(x))[..., :self.count_of_columns])


def model_with(mlp, attention=None, **own):
    """A decoder of one block with this feed-forward layer."""
    config = sizes(**own)
    return randomize(CausalLM(config, Backbone(config, [Block(config, attention or Attention(config), mlp)])))


MLP = "model.layers.0.mlp"


@pytest.mark.parametrize("width", [24, HIDDEN])
def test_sizes_of_linears_are_made_local_by_value_or_where_both_dims_agree_by_name(width):
    cell = model_with(FeedForward(width), intermediate_size=width)
    plan = hp.plan(cell, tp=2)
    assert plan.boundaries[MLP].local_sizes == {"up_proj.out_features": width // 2, "down_proj.in_features": width // 2}
    layer = cell.model.layers[0].mlp
    hp.apply(cell, plan, MeshOfOneProcess())
    assert (layer.up_proj.in_features, layer.up_proj.out_features) == (HIDDEN, width // 2)
    applied_state(cell).take_back()
    assert layer.up_proj.out_features == width and set(vars(layer.up_proj)) == set(vars(Linear(2, 2)))


def test_a_number_that_may_be_either_size_is_refused_with_ways_out():
    with pytest.raises(ValueError, match="reads count_of_columns = 16, which is a size that the plan cuts and one that"):
        hp.plan(model_with(Sliced(HIDDEN, nn.Dense, count_of_columns=HIDDEN), intermediate_size=HIDDEN), tp=2)
    kept = hp.plan(model_with(Sliced(HIDDEN, nn.Dense, count_of_columns=HIDDEN), intermediate_size=HIDDEN), tp=2,
                   overrides=[{"match": MLP, "tp_divide_attrs": []}])
    assert kept.boundaries[MLP].tp_divide_attrs == () and kept.boundaries[MLP].local_sizes is None
    told = hp.plan(model_with(Sliced(HIDDEN, nn.Dense, count_of_columns=HIDDEN), intermediate_size=HIDDEN), tp=2,
                   overrides=[{"match": MLP, "tp_divide_attrs": ["count_of_columns"]}])
    assert told.boundaries[MLP].tp_divide_attrs == ("count_of_columns",)
    proven = hp.plan(model_with(Sliced(24, nn.Dense, count_of_columns=24)), tp=2)
    assert proven.boundaries[MLP].local_sizes == {"count_of_columns": 12}


def apply_both(up, down, x):
    """A function that calls modules which it is given."""
    return down(ops.relu(up(x)))


def test_weights_in_the_hands_of_a_function_are_taken_as_planned_but_nothing_may_follow():
    class Functional(FeedForward):
        """Hands its linears to a function."""

        def construct(self, x):
            """down(relu(up))."""
            return apply_both(self.up_proj, self.down_proj, x)

    class Residual(Functional):
        """The residual inside."""

        def construct(self, x):
            """x + down(relu(up))."""
            return x + apply_both(self.up_proj, self.down_proj, x)

    linear = lambda a, b: nn.Dense(a, b, has_bias=False)  # noqa: E731
    assert hp.plan(model_with(Functional(24, linear)), tp=2).boundaries[MLP].in_dst
    with pytest.raises(ValueError, match="goes on computing with its row weight's result .line 3 of Residual, add of"):
        hp.plan(model_with(Residual(24, linear)), tp=2)


def test_a_plan_that_was_bound_survives_its_file(tmp_path):
    class Inside(FeedForward):
        """The residual is inside, and dropout too."""

        def __init__(self):
            super().__init__(24, lambda a, b: nn.Dense(a, b, has_bias=False))
            self.dropout = nn.Dropout(p=0.1)

        def construct(self, x):
            """x + down(dropout(up))."""
            y = ops.dropout(self.dropout(ops.relu(self.up_proj(x))), p=0.1)
            return x + self.down_proj(y)

    plan = hp.plan(model_with(Inside()), tp=2)
    assert plan.boundaries[f"{MLP}.up_proj"].semantic_role == "first_entry"
    assert plan.boundaries[MLP].local_dropouts == ("dropout",)
    assert plan.boundaries[MLP].local_window == {"opens": ("up_proj",), "closes": ("down_proj",)}
    read = hp.ShardingPlan.load(plan.save(tmp_path / "plan.json"))
    assert read.hash == plan.hash and read.boundaries == plan.boundaries
