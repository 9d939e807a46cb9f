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
"""`hp.verify` names what is wrong: each wrongness is made on purpose, in the plan or in the model."""
import dataclasses

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

import hyper_parallel as hp
from hyper_parallel.distributed.verify_report import (
    BIAS_TWICE, FUSED_LAYOUT, HEAD_COUNT, MISSING_REDUCTION, REDUCED_TWICE)
from tests.models.fused_decoder import HEADS, RIGHT_LAYOUT, Attention, fused_decoder, token_ids

WORLD = mindspore.communication.get_group_size()
pytestmark = pytest.mark.skipif(WORLD not in (2, 4), reason="four heads")
IDS = token_ids()


def right_plan(**options):
    """The plan that is right for the fused decoder."""
    return hp.plan(fused_decoder(), tp=WORLD, overrides=[RIGHT_LAYOUT], **options)


def changed(plan, path, **fields):
    """The plan with another boundary or parameter."""
    if path in plan.parameters:
        return dataclasses.replace(plan, parameters={**plan.parameters, path: plan.parameters[path]._replace(**fields)})
    spec = dataclasses.replace(plan.boundaries[path], **fields)
    return dataclasses.replace(plan, boundaries={**plan.boundaries, path: spec})


def failing(plan, build=fused_decoder):
    """A report that has to fail."""
    report = hp.verify(build, IDS, tp=WORLD, plan=plan)
    assert not report.ok
    return report


@pytest.mark.parametrize("mode", ["pynative", "graph", pytest.param("jit", marks=pytest.mark.slow)])
def test_the_right_plan_passes_in_every_mode(mode):
    report = hp.verify(fused_decoder, IDS, tp=WORLD, mode=mode, plan=right_plan())
    assert report.ok and report.worst.relative < 1e-5, str(report)
    assert {one.name for one in report.differences} == {"output"} | set(right_plan().parameters)
    assert not report.suspects and report.to_dict()["ok"] is True and report.to_dict()["mode"] == mode


def test_a_wrong_fused_layout_is_named_with_the_right_one():
    plan = hp.plan(fused_decoder(), tp=WORLD, overrides=[{"match": "attn.qkv.*", "fused_layout": "per_head"}])
    report = failing(plan)
    (suspect,) = report.suspects
    assert suspect.cause == FUSED_LAYOUT and suspect.where == "attn.qkv.weight"
    assert "fused_layout: sections}" in suspect.why
    assert report.first_difference == "attn.out_proj" and "suspected: wrong fused layout" in str(report)


def test_a_missing_reduction_at_an_exit():
    plan = right_plan()
    report = failing(changed(plan, "mlp.fc2", out_dst=plan.boundaries["mlp.fc2"].out_src))
    (suspect,) = report.suspects
    assert suspect.cause == MISSING_REDUCTION and suspect.where == "mlp.fc2" == report.first_difference
    assert "exit" in suspect.why


def test_a_bias_that_every_rank_adds():
    report = failing(changed(right_plan(), "attn.out_proj", local_compute_fn=None))
    (suspect,) = report.suspects
    assert suspect.cause == BIAS_TWICE and suspect.where == "attn.out_proj.bias"
    assert f"{WORLD} times instead of once" in suspect.why


def test_a_missing_reduction_of_a_parameter_gradient():
    report = failing(changed(right_plan(), "attn.q_norm.weight", grad_sum_axes=()))
    (suspect,) = report.suspects
    assert suspect.cause == MISSING_REDUCTION and suspect.where == "attn.q_norm.weight"
    assert "grad_sum_axes" in suspect.why and not report.first_difference
    assert report.worst.name == "attn.q_norm.weight" and report.worst.cause == MISSING_REDUCTION
    assert [one.name for one in report.differences if one.relative > 1e-4] == ["attn.q_norm.weight"]


def test_a_gradient_that_is_summed_once_too_often():
    report = failing(changed(right_plan(), "norm.weight", grad_sum_axes=("tp",)))
    (suspect,) = report.suspects
    assert suspect.cause == REDUCED_TWICE and suspect.where == "norm.weight"


def test_a_missing_reduction_at_an_entry():
    report = failing(changed(right_plan(), "mlp", in_src={}, in_dst={}))
    (suspect,) = report.suspects
    assert suspect.cause == MISSING_REDUCTION and suspect.where == "mlp_norm.weight" and "entry" in suspect.why
    causes = {one.name: one.cause for one in report.differences if one.relative > 1e-4}
    assert causes["embed_tokens.embedding_table"] == "" and causes["mlp_norm.weight"] == MISSING_REDUCTION


def test_copies_of_kv_heads_whose_gradients_are_not_summed():
    from tests.models.decoder import Decoder, DecoderConfig, randomize

    def build():
        return randomize(Decoder(DecoderConfig(num_key_value_heads=1, num_hidden_layers=1)))

    plan = hp.plan(build(), tp=WORLD)
    report = failing(changed(plan, "layers.0.self_attn.k_proj.weight", copies=1), build)
    assert [(one.cause, one.where) for one in report.suspects] == [
        (MISSING_REDUCTION, "layers.0.self_attn.k_proj.weight")]


class CountsAllHeads(Attention):
    """Splits by a count under a name that nobody knows."""

    def __init__(self):
        super().__init__()
        self.pieces = HEADS

    def construct(self, hidden_states):
        """As the base class, with its own count: on a rank's part each piece is too narrow."""
        batch, length, _ = hidden_states.shape
        query, key, value = (ops.transpose(ops.reshape(one, (batch, length, self.pieces, -1)), (0, 2, 1, 3))
                             for one in ops.chunk(self.qkv(hidden_states), 3, -1))
        context = ops.matmul(ops.softmax(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), -1), value)
        return self.out_proj(ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (batch, length, -1)))


class NeedsAllHeads(CountsAllHeads):
    """Splits by both numbers, so that a rank's part does not fit."""

    def construct(self, hidden_states):
        """As the base class."""
        batch, length, _ = hidden_states.shape
        query, _, _ = ops.chunk(self.qkv(hidden_states), 3, -1)
        return self.out_proj(ops.reshape(query, (batch, length, self.pieces * self.head_dim)))


@pytest.mark.parametrize("attention", [CountsAllHeads, NeedsAllHeads])
def test_a_head_count_that_stays_whole(attention):
    """The binder reads the source and refuses; where the source hides the count, numbers or an error show it."""
    def build():
        cell = fused_decoder()
        cell.attn = attention()
        for parameter in cell.attn.get_parameters():
            values = np.random.default_rng(3).standard_normal(parameter.shape).astype(np.float32)
            parameter.set_data(mindspore.Tensor(values))
        return cell

    plan = right_plan()
    report = failing(dataclasses.replace(plan, bound=True), build)
    (suspect,) = report.suspects
    assert suspect.cause == HEAD_COUNT and suspect.where == "attn.pieces"
    assert "tp_divide_attrs: [pieces]" in suspect.why
    assert bool(report.error) == (attention is NeedsAllHeads)
    if report.error:
        assert "could not run" in str(report) and report.worst is None and report.to_dict()["error"] == report.error


def test_a_plan_and_options_at_once_are_refused():
    with pytest.raises(ValueError, match="got a plan, and unknown besides"):
        hp.verify(fused_decoder, IDS, tp=WORLD, plan=right_plan(), unknown="error")
    with pytest.raises(ValueError, match="no mode 'eager': valid are pynative, jit, graph"):
        hp.verify(fused_decoder, IDS, tp=WORLD, mode="eager")


def test_a_model_without_parameters_cut_is_compared_too():
    class Small(nn.Cell):
        """One whole norm between an embedding and a head that an override keeps whole."""

        def __init__(self):
            super().__init__()
            self.body = fused_decoder()
            self.config = self.body.config

        def construct(self, input_ids):
            """Two outputs."""
            return self.body(input_ids), input_ids

    report = hp.verify(Small, IDS, tp=WORLD, overrides=[{"match": "*", "replicate": True}])
    assert report.ok and {"output[0]", "output[1]"} <= {one.name for one in report.differences}
