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
"""Cells: classes, op layouts, aliases, frozen parameters, and what binding checks."""
import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import inventories
from hyper_parallel.distributed.inventory import IN_OUT, OUT_IN, TABLE, take_inventory
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from inventories import LLAMA, record
from tests.models.decoder import Attention, Decoder, DecoderConfig


@pytest.fixture(autouse=True, scope="module")
def _pynative():
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    if mindspore.get_context("device_target") != "CPU":
        mindspore.set_device("CPU")


def test_a_cell_is_planned_and_bound_in_one_step():
    made = plan(Decoder(DecoderConfig()), tp=2)
    assert made.bound and made.boundaries["layers.0.mlp"].in_dst.keys() == {"x"}
    attention = made.boundaries["layers.0.self_attn"]
    assert attention._tp_local_attr_plan.auto_divide == ("num_heads", "num_key_value_heads")
    again = ShardingPlan.from_dict(made.to_dict())
    assert again.hash == made.hash and again.bound


def test_b05_a_subclass_is_planned_like_its_base():
    class Odd(Attention):
        """Another name for the same."""

    base, odd = Decoder(DecoderConfig()), Decoder(DecoderConfig())
    for layer in odd.layers:
        layer.self_attn.__class__ = Odd
    here, there = plan(base, tp=2), plan(odd, tp=2)
    assert {path: (spec.role, spec.slice_map) for path, spec in here.parameters.items()} == {
        path: (spec.role, spec.slice_map) for path, spec in there.parameters.items()}


def test_b05_an_unknown_class_is_named_with_the_ways_out():
    class Whatever(nn.Cell):
        """Nothing that anybody knows."""

        def __init__(self):
            super().__init__()
            self.thing = Parameter(Tensor(np.zeros((16, 16), np.float32)), name="thing")

        def construct(self, x):
            """Itself."""
            return x

    model = Decoder(DecoderConfig())
    model.whatever = Whatever()
    with pytest.raises(ValueError, match=r"whatever\.thing.*of a Whatever.*auto_tp_config\.rules.*unknown: replicate"):
        plan(model, tp=2)


def test_e01_aliases_make_one_parameter_and_two_boundaries():
    made = plan(Decoder(DecoderConfig(tie_word_embeddings=True)), tp=2)
    assert made.tied_groups() == [("embed_tokens.embedding_table", "lm_head.weight")]
    assert made.boundaries["lm_head"].semantic_role == "lm_head" and "embed_tokens" in made.boundaries
    whole = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    assert np.array_equal(made.shard("lm_head.weight", whole, 1), whole[16:])


def test_g08_frozen_parameters_stay_frozen_and_are_cut_by_their_role():
    model = Decoder(DecoderConfig())
    model.layers[0].self_attn.q_proj.weight.requires_grad = False
    made = plan(model, tp=2)
    spec = made.parameters["layers.0.self_attn.q_proj.weight"]
    assert spec.frozen and spec.role == "COLWISE" and spec.local_shape == (8, 16)
    assert not made.parameters["layers.1.self_attn.q_proj.weight"].frozen


def test_op_layouts_are_read_from_classes():
    class Conv1D(nn.Cell):
        """GPT-2's linear."""

        def __init__(self):
            super().__init__()
            self.weight = Parameter(Tensor(np.zeros((4, 8), np.float32)), name="weight")

        def construct(self, x):
            """x W."""
            return x @ self.weight

    class Holder(nn.Cell):
        """Three layouts."""

        def __init__(self):
            super().__init__()
            self.conv, self.dense, self.table = Conv1D(), nn.Dense(4, 8), nn.Embedding(8, 4)

        def construct(self, x):
            """Nothing."""
            return x

    records = take_inventory(Holder()).parameters
    assert [records[name].layout for name in ("conv.weight", "dense.weight", "table.embedding_table")] == [
        IN_OUT, OUT_IN, TABLE]
    assert records["dense.bias"].layout is None and records["dense.bias"].owner_class == "Dense"


def test_b09_an_argument_that_is_not_there_is_an_error():
    made = plan(Decoder(DecoderConfig()), tp=2)
    made.boundaries["layers.0.mlp"].in_src = {"states": {}}
    made.boundaries["layers.0.mlp"].in_dst = {"states": {}}
    with pytest.raises(ValueError, match=r"'layers.0.mlp' \(MLP\) has no argument 'states'; its arguments: x"):
        made.bind(Decoder(DecoderConfig()))


def test_a_second_input_goes_by_several_names():
    class Cross(Attention):
        """Attention with another name for the encoder's states."""

        def construct(self, hidden_states, encoder_hidden_states, cos, sin, mask):
            """As its base."""
            return super().construct(hidden_states, cos, sin, mask)

    model = Decoder(DecoderConfig())
    for layer in model.layers:
        layer.cross_attn = Cross(DecoderConfig())
    made = plan(model, tp=2)
    assert set(made.boundaries["layers.0.cross_attn"].in_dst) == {"hidden_states", "encoder_hidden_states"}


@pytest.mark.parametrize("change, said", [
    (lambda model: setattr(model, "lm_head", None), "lm_head"),
    (lambda model: setattr(model.layers[0], "extra", nn.Dense(16, 16)), "which the plan has not"),
    (lambda model: setattr(model, "lm_head", nn.Dense(16, 40, has_bias=False)), "has shape")])
def test_binding_to_another_cell_names_what_does_not_fit(change, said):
    made = plan(Decoder(DecoderConfig()), tp=2)
    other = Decoder(DecoderConfig())
    change(other)
    with pytest.raises(ValueError, match=said):
        made.bind(other)


def test_a_plan_of_an_inventory_binds_to_a_cell_of_the_same_names():
    cell = Decoder(DecoderConfig())
    parameters = {path: {"shape": list(one.shape)} for path, one in cell.parameters_and_names()}
    config = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
              "intermediate_size": 24}
    made = plan({"config": config, "parameters": parameters}, tp=2)
    assert not made.bound and made.bind(cell).bound


@pytest.mark.parametrize("model, said", [
    (3, "cannot plan a int"), ("nowhere", "no model at"), ({"config": {}}, "needs the key 'parameters'"),
    ({"parameters": {"a": {}}}, "has no 'shape'")])
def test_what_is_no_model(model, said):
    with pytest.raises(ValueError, match=said):
        take_inventory(model)


def test_folders_without_weights_or_configuration(tmp_path):
    with pytest.raises(ValueError, match="holds no .*safetensors"):
        take_inventory(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match="holds no config.json"):
        take_inventory(tmp_path)
    assert take_inventory(tmp_path, {"hidden_size": 4}).facts.hidden_size == 4


def test_an_inventory_is_taken_as_it_is_and_lists_its_modules():
    inventory = take_inventory(record(LLAMA))
    assert take_inventory(inventory) is inventory and not inventory.modules
    assert take_inventory(inventories.of_rows("llava", inventories.config_of("llava"))).facts_of(
        "model.vision_tower.layers.0").hidden_size == 64
