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
"""Validate mode finds plans that are wrong: one test for each kind of wrongness, made on purpose."""
import dataclasses

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

import hyper_parallel as hp
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
from hyper_parallel.distributed.validate import DIFFERENT, local_regions
from tests.models.decoder import Decoder, DecoderConfig, randomize
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder, token_ids

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
pytestmark = pytest.mark.skipif(WORLD not in (2, 4), reason="four kv heads")
IDS = token_ids()


def plain_decoder(**sizes):
    """Separate q, k and v, so that all of it can be dispatched."""
    return randomize(Decoder(DecoderConfig(**{"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
                                              **sizes})))


def validated(build, plan=None, **options):
    """(the Cell in validate mode, its plan)."""
    cell = build()
    plan = hp.plan(build(), tp=WORLD, **options) if plan is None else plan
    return hp.apply(cell, plan, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)), validate=True), plan


def changed(path, build=plain_decoder, **fields):
    """The right plan with another boundary."""
    plan = hp.plan(build(), tp=WORLD)
    spec = dataclasses.replace(plan.boundaries[path], **fields)
    return dataclasses.replace(plan, boundaries={**plan.boundaries, path: spec})


def mismatch(plan, build=plain_decoder, inputs=IDS):
    """The error that a wrong plan has to raise."""
    cell, _ = validated(build, plan)
    with pytest.raises(hp.PlacementMismatchError) as caught:
        cell(inputs)
    return caught.value


def found(error):
    """The error's four facts."""
    return error.module_name, error.stage, error.expected, error.actual


@pytest.mark.parametrize("options", [{}, {"sequence_parallel": True}, {"loss_parallel": True}])
@pytest.mark.parametrize("bias", [False, True])
def test_a_right_plan_passes_with_the_numbers_of_one_rank(options, bias):
    cell, plan = validated(lambda: plain_decoder(attention_bias=bias), **options)
    assert local_regions(plan) == ()
    assert isinstance(cell.layers[0].mlp.up_proj.weight, DTensor) and cell.layers[0].self_attn.num_heads == 4
    result = cell(IDS).asnumpy()
    expected = plain_decoder(attention_bias=bias)(IDS).asnumpy()
    if options.get("loss_parallel"):
        expected = np.split(expected, WORLD, -1)[RANK]
    assert np.allclose(result, expected, atol=1e-5)


def test_fused_weights_copies_and_padding_are_local_regions():
    cell, plan = validated(lambda: fused_decoder(vocabulary=33), overrides=[RIGHT_LAYOUT])
    assert set(local_regions(plan)) == {"attn", "embed_tokens", "lm_head"}
    assert cell.attn.num_heads == 4 // WORLD and isinstance(cell.mlp.fc1.weight, DTensor)
    assert np.allclose(cell(token_ids(33)).asnumpy(), fused_decoder(vocabulary=33)(token_ids(33)).asnumpy(), atol=1e-5)


def test_a_tied_table_is_one_dtensor_and_a_padded_one_is_local_twice():
    cell, _ = validated(lambda: plain_decoder(tie_word_embeddings=True))
    assert cell.lm_head.weight is cell.embed_tokens.embedding_table and isinstance(cell.lm_head.weight, DTensor)
    assert np.allclose(cell(IDS).asnumpy(), plain_decoder(tie_word_embeddings=True)(IDS).asnumpy(), atol=1e-5)
    cell, plan = validated(lambda: plain_decoder(tie_word_embeddings=True, vocab_size=33))
    assert set(local_regions(plan)) == {"embed_tokens", "lm_head"}
    expected = plain_decoder(tie_word_embeddings=True, vocab_size=33)(token_ids(33))
    assert np.allclose(cell(token_ids(33)).asnumpy(), expected.asnumpy(), atol=1e-5)


def test_a_local_region_by_the_plans_word():
    plan = changed("layers.0.mlp", region_dispatch=False)
    cell, _ = validated(plain_decoder, plan)
    assert local_regions(plan) == ("layers.0.mlp",) and not isinstance(cell.layers[0].mlp.up_proj.weight, DTensor)
    assert np.allclose(cell(IDS).asnumpy(), plain_decoder()(IDS).asnumpy(), atol=1e-5)


def test_an_argument_that_arrives_otherwise():
    error = mismatch(changed("layers.0.mlp", in_src={"x": {"tp": Shard(1)}}))
    assert found(error) == ("layers.0.mlp", "in_src", Shard(1), Replicate())
    assert str(error) == "layers.0.mlp: in_src of the plan says Shard(dim=1), found Replicate()"


def test_a_result_that_is_partial_and_called_whole():
    error = mismatch(changed("layers.0.mlp", out_src={"tp": Replicate()}))
    assert found(error) == ("layers.0.mlp", "out_src", Replicate(), Partial())


def test_a_result_called_partial_that_is_whole():
    error = mismatch(changed("layers.0.mlp", in_dst={"x": {"tp": Replicate()}}, out_src={"tp": Shard(2)}))
    assert found(error) == ("layers.0.mlp", "out_src", Shard(2), Partial())


def test_a_result_that_leaves_as_the_next_boundary_does_not_expect():
    plan = changed("embed_tokens", out_dst={"tp": Shard(1)})
    error = mismatch(plan)
    assert found(error) == ("layers.0.self_attn", "in_src", Replicate(), Shard(1))


def test_a_weight_cut_in_the_other_dim():
    plan = hp.plan(plain_decoder(), tp=WORLD)
    name = "layers.0.mlp.down_proj.weight"
    spec = plan.parameters[name]
    wrong = spec._replace(placement={"tp": Shard(0)}, slice_map=type(spec.slice_map).plain(spec.shape, 0, WORLD))
    error = mismatch(dataclasses.replace(plan, parameters={**plan.parameters, name: wrong}))
    assert error.module_name == "layers.0.mlp" and error.stage == "params"
    assert "says no collective inside, found 1 all_" in str(error)


def test_a_boundary_that_is_missing():
    plan = hp.plan(plain_decoder(num_hidden_layers=2), tp=WORLD)
    boundaries = {path: spec for path, spec in plan.boundaries.items() if path != "layers.0.mlp"}
    error = mismatch(dataclasses.replace(plan, boundaries=boundaries), lambda: plain_decoder(num_hidden_layers=2))
    # its result is partial where the residual is added: the dispatch reduces it there, and no boundary has said so
    assert found(error) == ("", "params", "no collective inside", "1 all_reduce")


def test_logits_that_stay_cut_without_loss_parallel():
    class OtherRole(Decoder):
        """The same."""

    plan = changed("lm_head", out_dst={"tp": Shard(-1)}, semantic_role="mlp_entry")
    error = mismatch(plan, lambda: randomize(OtherRole(DecoderConfig(
        num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1))))
    assert found(error) == ("", "out_dst", Replicate(), Shard(2)) and str(error).startswith("the model: out_dst")


def test_a_local_region_whose_result_is_not_whole():
    plan = hp.plan(fused_decoder(), tp=WORLD, overrides=[RIGHT_LAYOUT])
    spec = plan.boundaries["attn.out_proj"]
    wrong = dataclasses.replace(spec, out_dst=spec.out_src)
    error = mismatch(dataclasses.replace(plan, boundaries={**plan.boundaries, "attn.out_proj": wrong}), fused_decoder)
    assert found(error) == ("attn", "out_dst", Replicate(), DIFFERENT)


def test_an_input_that_ranks_see_differently():
    plan = hp.plan(plain_decoder(), tp=WORLD)
    cell, _ = validated(plain_decoder, plan)
    inputs = Tensor(np.full((1, 4, 16), float(RANK), np.float32))
    with pytest.raises(hp.PlacementMismatchError) as caught:
        cell.layers[0].mlp(inputs)
    assert found(caught.value) == ("layers.0.mlp", "in_src", Replicate(), DIFFERENT)


def test_a_block_with_shared_edges_is_refused():
    with pytest.raises(NotImplementedError, match="'layers.0.mlp' is a block whose parts share an entry or an exit"):
        validated(plain_decoder, changed("layers.0.mlp", semantic_role="parallel_mlp"))


def test_graph_mode_is_refused():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        with pytest.raises(NotImplementedError, match="dispatches each operator in PyNative"):
            validated(plain_decoder)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def test_restore_brings_the_whole_parameters_back():
    cell = plain_decoder()
    objects = dict(cell.parameters_and_names())
    values = {path: one.asnumpy().copy() for path, one in objects.items()}
    hp.apply(cell, changed("layers.0.mlp", region_dispatch=False),
             hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)), validate=True)
    cell(IDS)
    hp.restore(cell)
    for path, parameter in cell.parameters_and_names():
        assert parameter is objects[path] and np.array_equal(parameter.asnumpy(), values[path]), path
    assert np.allclose(cell(IDS).asnumpy(), plain_decoder()(IDS).asnumpy(), atol=1e-6)
