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
"""How activations run through a forward is read from its source: what meets cut weights, what follows the row weight."""
import types

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.distributed.forward_flow import COLUMN, ROW, TABLE, Unreadable, read_flow
from hyper_parallel.distributed.forward_values import LOCAL, PARTIAL
from tests.models.mixture import MixtureConfig, MixtureDecoder, SharedMixture

KINDS = {"up": COLUMN, "gate": COLUMN, "down": ROW, "table": TABLE, "net.0": COLUMN, "net.2": ROW, "body.up": COLUMN,
         "body.down": ROW}


class Layer(nn.Cell):
    """Two column weights and a row weight; subclasses say what the forward does with them."""

    def __init__(self, **attributes):
        super().__init__()
        self.up, self.gate, self.down = nn.Dense(4, 8), nn.Dense(4, 8), nn.Dense(8, 4)
        self.norm = nn.LayerNorm((4,))
        self.scale = Parameter(Tensor(np.ones(4, np.float32)), name="scale")
        self.drop_inside, self.drop_outside = nn.Dropout(p=0.1), nn.Dropout(p=0.1)
        for name, value in attributes.items():
            setattr(self, name, value)


def flow_of(construct, **attributes):
    """The flow of a layer with this forward."""
    return read_flow(type("Written", (Layer,), {"construct": construct})(**attributes), KINDS.get)


def test_a_plain_layer_enters_once_and_leaves_by_its_row_weight():
    def construct(self, x):
        gate, up = (layer(x) for layer in (self.gate, self.up))
        return self.drop_outside(self.down(self.drop_inside(ops.sigmoid(gate) * up)).reshape(x.shape))

    flow = flow_of(construct)
    assert flow.reaches_columns == {"x"} and flow.columns == ["gate", "up"] and flow.rows == ["down"]
    assert flow.result == {PARTIAL} and not flow.why_not_linear
    assert flow.dropouts == {"drop_inside": {LOCAL}, "drop_outside": {PARTIAL}}


def test_several_results_and_arguments_are_told_apart():
    def construct(self, query, memory=None, mask=None):
        source = query if memory is None else memory
        scores = self.up(query) * self.gate(source) + mask
        return self.down(scores), scores

    flow = flow_of(construct)
    assert flow.reaches_columns == {"query", "memory"} and flow.result == {PARTIAL}


def test_what_does_not_commute_with_the_sum_is_found():
    def norm(self, x):
        return self.norm(self.down(self.up(x)))

    def scale(self, x):
        return self.down(self.up(x)) * self.scale

    def activation(self, x):
        return ops.relu(self.down(self.up(x)))

    def square(self, x):
        y = self.down(self.up(x))
        return y * y

    assert all(flow_of(construct).why_not_linear for construct in (norm, scale, activation, square))


def test_a_residual_inside():
    def construct(self, x):
        return x + self.down(self.up(self.norm(x)))

    flow = flow_of(construct)
    assert "add of the row weight's result" in flow.why_not_linear and flow.result == {PARTIAL, "x"}
    assert flow.before_columns == {"norm"} and not flow.after_row


def test_norms_and_scales_behind_the_row_weight_are_named():
    def construct(self, x):
        y = self.norm(self.down(self.up(x)))
        y *= self.scale
        return y

    flow = flow_of(construct)
    assert flow.after_row == {"norm", "scale"} and "LayerNorm (norm)" in flow.why_not_linear


def test_sums_of_row_results_and_numbers_are_linear():
    def construct(self, x):
        total = self.down(self.up(x)) + self.down(self.gate(x))
        return ops.cast(total * 0.5, x.dtype).contiguous()

    assert not flow_of(construct).why_not_linear


def test_containers_methods_and_loops_are_followed():
    class Body(nn.Cell):
        """Two linears."""

        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Dense(4, 8), nn.Dense(8, 4)

        def construct(self, x, factor=1):
            """down(up)."""
            return self.down(self.up(x) * factor)

    def construct(self, x):
        for index, layer in enumerate(self.layers):
            x = self.step(layer, x)
        return x if not self.has_extra else self.net(x)

    def step(self, layer, x):
        with types.SimpleNamespace():
            return layer(x, factor=2)

    Written = type("Written", (Layer,), {"construct": construct, "step": step})
    cell = Written(has_extra=False)
    cell.body = Body()
    cell.layers = [cell.body]
    flow = read_flow(cell, KINDS.get)
    assert flow.columns == ["body.up"] and flow.rows == ["body.down"] and PARTIAL in flow.result

    def through(self, x):
        return self.net(x)

    Sequential = type("Sequential", (Layer,), {"construct": through})
    cell = Sequential()
    cell.net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 4))
    flow = read_flow(cell, KINDS.get)
    assert (flow.columns, flow.rows, flow.result) == (["net.0"], ["net.2"], {PARTIAL})


class Plain(Layer):
    """The usual forward."""

    def construct(self, x):
        """down(up)."""
        return self.down(self.up(x))


class Scaled(Plain):
    """Goes on with what the class above gives."""

    def construct(self, x):
        """Half of it."""
        return super().construct(x) * 0.5


def test_forwards_of_the_classes_above_are_followed():
    flow = read_flow(Scaled(), KINDS.get)
    assert flow.reaches_columns == {"x"} and flow.result == {PARTIAL} and not flow.why_not_linear


def test_sizes_are_told_by_what_they_are_used_for():
    def construct(self, x):
        batch, length, width = x.shape
        config = self.config
        local = self.up(x).reshape((batch, length, self.heads, self.size))
        local = local[..., :config.rows].reshape((batch, length, self.heads * self.size))
        whole = x.reshape((-1, self.hidden))
        return self.down(local + self.gate(whole).reshape((batch, length, width)))

    flow = flow_of(construct, heads=2, size=4, hidden=4, config=types.SimpleNamespace(rows=4))
    assert flow.local_ints == {"heads", "size", "config.rows"} and flow.other_ints == {"hidden"}
    assert len(flow.local_widths) == 1


def test_quotients_by_a_count_are_remembered():
    def construct(self, x):
        size = x.shape[-1] // self.heads
        return self.down(self.up(x).reshape((x.shape[0], self.heads, -1, size)))

    flow = flow_of(construct, heads=2)
    ((divided, by, _),) = flow.quotients
    assert divided == {"<width>"} and by == {"<int heads>"}


def test_switches_of_the_module_decide_branches():
    def construct(self, x):
        y = self.up(x)
        if self.gated:
            y = y * self.gate(x)
        if self.kind == "plain" and self.extra is None:
            return self.down(y)
        return self.down(y) + x if not self.gated else self.down(y)

    assert flow_of(construct, gated=False, kind="plain", extra=None).columns == ["up"]
    assert flow_of(construct, gated=True, kind="plain", extra=None).columns == ["up", "gate"]


def test_dropout_functions_count_unless_their_rate_is_zero():
    def construct(self, x):
        y = ops.dropout(self.up(x), p=self.rate, training=self.training)
        return ops.dropout(self.down(y), p=0.1)

    assert len(flow_of(construct, rate=0.1).loose_dropouts) == 1
    assert not flow_of(construct, rate=0).loose_dropouts


def test_what_cannot_be_read_says_so():
    namespace = {"Layer": Layer}
    exec("class Hidden(Layer):\n    def construct(self, x):\n        return self.down(self.up(x))", namespace)
    with pytest.raises(Unreadable, match="no source of Hidden.construct"):
        read_flow(namespace["Hidden"](), KINDS.get)

    def construct(self, x):
        return self.again(x)

    def again(self, x):
        return self.again(x)

    Endless = type("Endless", (Layer,), {"construct": construct, "again": again})
    with pytest.raises(Unreadable, match="calls itself"):
        read_flow(Endless(), KINDS.get)


def expert_layer(forward):
    """A mixture of experts with this forward, planned for two ranks."""
    class Mixture(SharedMixture):
        """The mixture of the tests' decoder, written otherwise."""

        def construct(self, hidden_states):
            """As the test says."""
            return self.go(hidden_states, super().construct(hidden_states))

    Mixture.go = forward
    model = MixtureDecoder(MixtureConfig(num_hidden_layers=1))
    model.layers[0].mlp = Mixture(model.config)
    return hp.plan(model, tp=2)


def test_a_mixture_adds_no_input_and_keeps_no_loss():
    def plain(self, x, found):
        return found

    def residual(self, x, found):
        return found[0] + x, found[1]

    def keeps(self, x, found):
        self.aux_loss = ops.mean(ops.square(self.gate(x)))
        return found

    assert expert_layer(plain).boundaries["layers.0.mlp"].semantic_role == "moe"
    with pytest.raises(ValueError, match="'layers.0.mlp' .Mixture.: line 2 of its forward adds its input to the experts'"):
        expert_layer(residual)
    with pytest.raises(ValueError, match="its forward keeps self.aux_loss for later.*return the value beside its result"):
        expert_layer(keeps)
