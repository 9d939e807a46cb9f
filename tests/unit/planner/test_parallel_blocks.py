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
"""Blocks that add attention and MLP to their input are recognised by their source, and only where it is plain."""
import pytest
from mindspore import ops

import hyper_parallel as hp
from hyper_parallel.distributed.residual_flow import parallel_flow
from tests.models.decoder import Block, Decoder, DecoderConfig, RMSNorm
from tests.models.parallel_block import OneNormBlock, TwoNormsBlock, parallel_decoder

CONFIG = DecoderConfig()


def record_of(cell, flags):
    """The Cell's parameters without its source, as a checkpoint has them."""
    return {"config": {**vars(cell.config), **flags},
            "parameters": {path: {"shape": list(parameter.shape)} for path, parameter in cell.parameters_and_names()}}


def test_the_children_of_a_parallel_block_are_told_apart():
    for block, readers in ((OneNormBlock, {"input_layernorm"}),
                           (TwoNormsBlock, {"input_layernorm", "post_attention_layernorm"})):
        flow = parallel_flow(block(CONFIG))
        assert flow.branches == {"self_attn", "mlp"} and flow.readers == readers


def test_a_sequential_block_is_none():
    assert parallel_flow(Block(CONFIG)) is None


class Falcon(TwoNormsBlock):
    """Tuples, `+=`, a flag, a dropout around both, ops.add, an attribute scale, and more results than one."""

    def __init__(self, config):
        super().__init__(config)
        self.shares, self.scale = True, 0.5

    def construct(self, hidden_states, cos, sin, mask, use_cache=False):
        """As Falcon writes it."""
        residual = hidden_states
        batch = hidden_states.shape[0]
        if self.shares:
            normed = other = self.input_layernorm(hidden_states)
        else:
            other = self.post_attention_layernorm(residual)
        outputs = self.self_attn(normed, cos, sin, mask)
        attended = outputs[0]
        made = self.mlp(other)
        made += attended
        result = ops.add(self.dropout(made * self.scale), residual)
        return (result,) + outputs[1:]


def test_tuples_dropout_scales_and_flags_are_followed():
    flow = parallel_flow(Falcon(CONFIG))
    assert flow.branches == {"self_attn", "mlp"} and flow.readers == {"input_layernorm"}


class _Wrong(OneNormBlock):
    def __init__(self, config):
        super().__init__(config)
        self.last = RMSNorm(config.hidden_size, 1e-6)


class AttentionFeedsTheMlp(_Wrong):
    """The attention's result is a summand and the MLP's input."""

    def construct(self, hidden_states, cos, sin, mask):
        """Sum of both."""
        attended = self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        return hidden_states + attended + self.mlp(attended)


class NormedResult(_Wrong):
    """The sum is normed."""

    def construct(self, hidden_states, cos, sin, mask):
        """Norm of the sum."""
        normed = self.input_layernorm(hidden_states)
        return self.last(hidden_states + self.self_attn(normed, cos, sin, mask) + self.mlp(normed))


class NormedBranch(_Wrong):
    """A branch is normed before it is added."""

    def construct(self, hidden_states, cos, sin, mask):
        """Norm of one summand."""
        normed = self.input_layernorm(hidden_states)
        return hidden_states + self.last(self.self_attn(normed, cos, sin, mask)) + self.mlp(normed)


class NoResidual(_Wrong):
    """The input is not a summand."""

    def construct(self, hidden_states, cos, sin, mask):
        """Sum of the branches alone."""
        normed = self.input_layernorm(hidden_states)
        return self.self_attn(normed, cos, sin, mask) + self.mlp(normed)


class TwiceAdded(_Wrong):
    """The attention is added twice."""

    def construct(self, hidden_states, cos, sin, mask):
        """One summand twice."""
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, cos, sin, mask)
        return hidden_states + attended + self.mlp(normed) + attended


class NormAdded(_Wrong):
    """A whole value is added."""

    def construct(self, hidden_states, cos, sin, mask):
        """The norm's result is a third summand."""
        normed = self.input_layernorm(hidden_states)
        return hidden_states + self.self_attn(normed, cos, sin, mask) + self.mlp(normed) + normed


class NoNorm(_Wrong):
    """The MLP reads the stream itself."""

    def construct(self, hidden_states, cos, sin, mask):
        """No norm before the MLP."""
        return hidden_states + self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask) + \
            self.mlp(hidden_states)


class Product(_Wrong):
    """The summands are multiplied."""

    def construct(self, hidden_states, cos, sin, mask):
        """Not a sum."""
        normed = self.input_layernorm(hidden_states)
        return hidden_states + self.self_attn(normed, cos, sin, mask) * self.mlp(normed)


class ReadByOthers(_Wrong):
    """Something else reads the stream."""

    def construct(self, hidden_states, cos, sin, mask):
        """A mean of the stream."""
        normed = self.input_layernorm(hidden_states) * ops.mean(hidden_states)
        return hidden_states + self.self_attn(normed, cos, sin, mask) + self.mlp(normed)


class Depends(_Wrong):
    """What it does depends on an argument."""

    def construct(self, hidden_states, cos, sin, mask=None):
        """A branch that may be left out."""
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, cos, sin, mask)
        if mask is not None:
            attended = attended + self.mlp(normed)
        return hidden_states + attended


@pytest.mark.parametrize("block", [AttentionFeedsTheMlp, NormedResult, NormedBranch, NoResidual, TwiceAdded, NormAdded,
                                   NoNorm, Product, ReadByOthers, Depends])
def test_what_is_not_plainly_such_a_sum_keeps_two_regions(block):
    flow = parallel_flow(block(CONFIG))
    assert flow is None or flow.branches != {"self_attn", "mlp"}
    plan = hp.plan(parallel_decoder(block), tp=2)
    assert plan.boundaries["layers.0.self_attn"].semantic_role == "attention"
    assert "parallel_block" not in plan.expected


def test_a_plan_states_one_reduction_and_partial_gradients_of_norms_and_row_biases():
    plan = hp.plan(parallel_decoder(TwoNormsBlock, attention_bias=True), tp=2)
    assert plan.expected["parallel_block"] == {"forward": {"all_reduce": 1}, "backward": {"all_reduce": 1}}
    assert "attention" not in plan.expected and "mlp" not in plan.expected
    summed = {path.removeprefix("layers.0.") for path, spec in plan.parameters.items()
              if spec.grad_sum_axes and path.startswith("layers.0.")}
    assert summed == {"input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.bias",
                      "mlp.down_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight"}
    assert hp.ShardingPlan.from_dict(plan.to_dict()).hash == plan.hash


@pytest.mark.parametrize("flags,is_parallel", [
    ({"model_type": "cohere"}, True), ({"model_type": "llama"}, False), ({"model_type": "gpt_neox"}, True),
    ({"model_type": "gpt_neox", "use_parallel_residual": False}, False),
    ({"model_type": "falcon", "parallel_attn": False}, False),
    ({"model_type": "stablelm", "use_parallel_residual": True}, True), ({"model_type": "gpt_neox_japanese"}, False)])
def test_without_a_source_the_configuration_and_the_family_decide(flags, is_parallel):
    record = record_of(parallel_decoder(OneNormBlock, qk_norm=False), flags)
    assert ("parallel_block" in hp.plan(record, tp=2).expected) is is_parallel


def test_the_tower_beside_a_parallel_language_model_is_sequential():
    text = record_of(parallel_decoder(OneNormBlock, qk_norm=False), {"model_type": "cohere2"})
    tower = record_of(Decoder(DecoderConfig(qk_norm=False)), {"model_type": "siglip_vision_model"})
    parameters = {f"model.language_model.{path}": one for path, one in text["parameters"].items()}
    parameters.update({f"model.vision_tower.encoder.{path}": one for path, one in tower["parameters"].items()
                       if path.startswith("layers.")})
    for config in ({"text_config": text["config"], "vision_config": tower["config"]}, text["config"]):
        plan = hp.plan({"config": config, "parameters": parameters}, tp=2)
        assert plan.boundaries["model.language_model.layers.0"].semantic_role == "parallel_block"
        assert plan.boundaries["model.vision_tower.encoder.layers.0.self_attn"].semantic_role == "attention"


def test_a_plan_of_a_parallel_family_is_not_bound_to_a_sequential_forward():
    record = record_of(Decoder(CONFIG), {"model_type": "cohere"})
    plan = hp.plan(record, tp=2)
    assert plan.boundaries["layers.1"].semantic_role == "parallel_block"
    with pytest.raises(ValueError, match="'layers.0' share one reduction.*plan again from this Cell"):
        plan.bind(Decoder(CONFIG))
    assert plan.bind(parallel_decoder(TwoNormsBlock, num_attention_heads=4, num_key_value_heads=2)).bound


def test_the_source_of_a_class_that_cannot_be_had_says_nothing():
    scope = {}
    exec("def construct(self, x):\n    return x", scope)  # pylint: disable=exec-used
    assert parallel_flow(type("Made", (OneNormBlock,), {"construct": scope["construct"]})(CONFIG)) is None
