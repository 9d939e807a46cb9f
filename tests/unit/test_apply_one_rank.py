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
"""Apply, restore and verify where nothing is cut, and what the applier refuses before it cuts anything."""
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.distributed import edges, local_compute
from hyper_parallel.distributed.applier import applied_state
from hyper_parallel.distributed.verify import Difference, VerifyReport, run
from tests.models.decoder import Decoder, DecoderConfig, randomize

IDS = Tensor(np.arange(8, dtype=np.int32).reshape(1, 8))


def decoder():
    """A decoder with numpy weights."""
    return randomize(Decoder(DecoderConfig()))


def test_A02_tp_1_checks_and_changes_nothing():
    cell, mesh = decoder(), hp.init_device_mesh("npu", (1,), mesh_dim_names=("tp",))
    expected, gradients = run(decoder(), (IDS,))
    assert hp.auto_tp(cell, mesh) is cell and applied_state(cell).plan.tp == 1
    outputs, found = run(cell, (IDS,))
    assert np.array_equal(outputs["output"], expected["output"])
    assert all(np.array_equal(found[path], gradients[path]) for path in gradients)
    hp.restore(cell)
    assert applied_state(cell) is None


def test_auto_tp_needs_an_axis_called_tp():
    with pytest.raises(ValueError, match="cuts over the axis 'tp', but the mesh's axes are"):
        hp.auto_tp(decoder(), hp.init_device_mesh("npu", (1,), mesh_dim_names=("model",)))


def test_verify_on_one_rank_compares_everything_and_finds_nothing():
    report = hp.verify(decoder, [IDS], tp=1)
    assert report.ok and report.worst.relative == 0.0
    assert {one.name for one in report.differences} == {"output"} | {
        path for path, _ in decoder().parameters_and_names()}
    assert "the same numbers" in str(report)


def test_verify_notices_that_the_two_builds_differ():
    seeds = iter([1, 2])
    with pytest.raises(ValueError, match="gave other weights the second time .*embed_tokens"):
        hp.verify(lambda: randomize(Decoder(DecoderConfig()), next(seeds)), IDS, tp=1)


def test_a_report_with_a_difference_puts_it_on_top_and_says_so():
    plan = hp.plan(decoder(), tp=2)
    report = VerifyReport(2, 1e-4, (Difference("layers.0.self_attn.q_norm.weight", 0.5, 1.0, 1),
                                    Difference("output", 0.0, 0.0, 0)), plan)
    lines = report.table().splitlines()
    assert not report.ok and "DIFFERENT numbers" in report.table()
    row = next(line for line in lines if "q_norm" in line)
    assert "5.00e-01" in row and "NORM" in row


def test_a_result_of_several_outputs_is_compared_one_by_one():
    class Two(nn.Cell):
        """Two outputs; the gradient is that of the first."""

        def __init__(self):
            super().__init__()
            self.weight = Parameter(Tensor(np.array([2.0, 3.0], np.float32)), name="weight")

        def construct(self, x):
            """x times weight, and x."""
            return x * self.weight, x

    outputs, gradients = run(Two(), (Tensor(np.array([1.0, 1.0], np.float32)),))
    assert set(outputs) == {"output[0]", "output[1]"} and outputs["output[0]"].tolist() == [2.0, 3.0]
    weights = np.random.default_rng(1).standard_normal(2).astype(np.float32)
    assert np.allclose(gradients["weight"], weights)


def test_a_bias_that_cannot_be_held_back_is_refused_with_a_way_out():
    class Own(nn.Cell):
        """A linear without the switch that nn.Dense has."""

    with pytest.raises(ValueError, match="cannot hold back the bias of a Own.*nn.Dense"):
        local_compute.bias_after_reduction(Own())
    with pytest.raises(ValueError, match="applies an activation behind a bias"):
        local_compute.bias_after_reduction(nn.Dense(2, 2, activation="relu"))


def test_entry_edges_reach_an_argument_by_position_and_by_name():
    class Scaled(nn.Cell):
        """First argument times the second."""

        def construct(self, x, factor=1.0):
            """x * factor."""
            return x * factor, factor

    class Double(nn.Cell):
        """Stands for an edge."""

        def construct(self, x):
            """2 x."""
            return 2 * x

    cell = Scaled()
    edges.hook_entries(cell, [(Double(), "x", 0)])
    edges.hook_exit(cell, Double())
    x = Tensor(np.ones(2, np.float32))
    assert cell(x, 3.0)[0].asnumpy().tolist() == [12.0, 12.0]
    assert cell(x, factor=3.0)[0].asnumpy().tolist() == [12.0, 12.0]
    assert cell(factor=3.0, x=x)[0].asnumpy().tolist() == [12.0, 12.0]
    assert cell(x=x, factor=3.0)[1] == 3.0, "only the first of several results passes the edge"


def test_exit_drops_padded_columns():
    class Logits(nn.Cell):
        """Five columns, of which four are real."""

        def construct(self, x):
            """x and five columns."""
            return ops.tile(x, (1, 5)), x

    class Same(nn.Cell):
        """Stands for an edge."""

        def construct(self, x):
            """x."""
            return x

    cell = Logits()
    edges.hook_exit(cell, Same(), out_size=4)
    assert cell(Tensor(np.ones((2, 1), np.float32)))[0].shape == (2, 4)
