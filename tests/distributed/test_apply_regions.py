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
"""Every kind of region by our plan: the same outputs and every gradient as on one rank, the planned collectives, and
everything back after `restore`.

The judge is the whole model in the same process, run with the same inputs; weights come from numpy.
"""
import types

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.distributed import local_parameter
from hyper_parallel.distributed.verify import run
from tests.models.bloom import BloomForCausalLM
from tests.models.decoder import randomize
from tests.models.deepseek_v3 import deepseek_v3
from tests.models.falcon import FalconForCausalLM
from tests.models.gpt_bigcode import gpt_bigcode
from tests.models.gpt_oss import gpt_oss
from tests.models.layers import LayerNorm, RMSNorm
from tests.models.mamba2 import Mamba2ForCausalLM
from tests.models.mixture import MixtureConfig, MixtureDecoder
from tests.models.t5 import T5ForConditionalGeneration
from tests.models.wide_norm import wide_norm_decoder
from tests.models.written_otherwise import other_decoder

WORLD = mindspore.communication.get_group_size()


def ids(seed=7, batch=2, length=8):
    """Token ids, equal on all ranks."""
    return Tensor(np.random.default_rng(seed).integers(0, 32, (batch, length)).astype(np.int32))


def planned_counts(plan, calls):
    """Collectives of one forward and backward, by phase."""
    planned = {"forward": {}, "backward": {}}
    for path, spec in plan.boundaries.items():
        for phase, kinds in plan.expected.get(spec.semantic_role, {}).items():
            for kind, count in kinds.items():
                planned[phase][kind] = planned[phase].get(kind, 0) + count * calls.get(path, 1)
    return planned


def check(build, inputs=(), calls=None, **options):
    """Parity of outputs and every gradient, counted against planned collectives, and an exact way back.

    Args:
        build: makes the model.
        inputs: of its forward.
        calls: `{boundary: how often one forward calls it}`, where that is not once.
        **options: as for `plan`.
    """
    inputs = inputs or (ids(),)
    whole, cell = randomize(build()), randomize(build())
    mesh = hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))
    plan = hp.plan(cell, tp=WORLD, **options)
    outputs, gradients = run(whole, inputs)
    hp.apply(cell, plan, mesh)
    with count_collectives() as record:
        found_outputs, found_gradients = run(cell, inputs)
    for name, expected in outputs.items():
        assert np.abs(found_outputs[name] - expected).max() <= 1e-4 * np.abs(expected).max(), name
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for path, expected in gradients.items():
        found = local_parameter.gather(Tensor(found_gradients[path]), plan.parameters[path], mesh.get_group("tp"))
        scale = max(np.abs(expected).max(), 1e-6 * largest)
        assert np.abs(found - expected).max() <= 1e-4 * scale, path
    counted = {phase: dict(record.counts(purpose="activation", phase=phase)) for phase in ("forward", "backward")}
    assert counted == planned_counts(plan, calls or {})
    hp.restore(cell)
    for (path, parameter), (_, expected) in zip(cell.parameters_and_names(), whole.parameters_and_names()):
        assert np.array_equal(parameter.asnumpy(), expected.asnumpy()), path
    again, gradients_again = run(cell, inputs)
    assert [name for name in outputs if not np.array_equal(again[name], outputs[name])] == []
    for path, expected in gradients.items():  # a sum's rounding may depend on where its memory lies
        assert np.abs(gradients_again[path] - expected).max() <= 1e-6 * np.abs(expected).max(), path
    return plan


def sizes(**own):
    """Sizes that every family here has, with its own."""
    return types.SimpleNamespace(**{
        "vocab_size": 32, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
        "intermediate_size": 24, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, **own})


def gpt_oss_sizes():
    """Stacks of experts."""
    return sizes(model_type="gpt_oss", head_dim=4, num_experts_per_tok=2, num_local_experts=4, rope_scaling={
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096})


def test_G04_experts_with_a_shared_one_behind_a_gate():
    check(lambda: MixtureDecoder(MixtureConfig()))


def test_an_auxiliary_loss_on_router_logits_counts_once():
    check(lambda: MixtureDecoder(MixtureConfig(), auxiliary=3.0))


def test_I02_experts_under_sequence_parallel():
    check(lambda: MixtureDecoder(MixtureConfig(), auxiliary=3.0), sequence_parallel=True)


def test_I01_stacked_experts_whose_last_bias_lives_on_the_first_rank():
    check(lambda: gpt_oss(gpt_oss_sizes()))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_I03_latent_attention_and_a_dense_block_before_mixtures(sequence_parallel):
    check(lambda: deepseek_v3(sizes(
        model_type="deepseek_v3", q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6,
        first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        moe_intermediate_size=12, routed_scaling_factor=2.5)), sequence_parallel=sequence_parallel)


def test_G05_rows_by_kv_group_with_fewer_groups_than_ranks():
    check(lambda: FalconForCausalLM(sizes(
        model_type="falcon", new_decoder_architecture=True, num_kv_heads=WORLD // 2, num_key_value_heads=WORLD // 2,
        ffn_hidden_size=24, layer_norm_epsilon=1e-5)))


def test_G05_cut_queries_beside_one_copied_key_and_value():
    check(lambda: gpt_bigcode(sizes(
        model_type="gpt_bigcode", n_embd=16, n_head=4, num_key_value_heads=1, multi_query=True, n_layer=2,
        n_positions=16, layer_norm_epsilon=1e-5)))


def test_an_encoder_and_a_decoder_with_cross_attention():
    check(lambda: T5ForConditionalGeneration(sizes(
        model_type="t5", is_encoder_decoder=True, d_model=16, d_kv=4, d_ff=24, num_heads=4, num_layers=2,
        num_decoder_layers=2, layer_norm_epsilon=1e-6, relative_attention_num_buckets=8,
        relative_attention_max_distance=16)), (ids(), ids(8, length=5)), calls={"shared": 2})


def test_alibi_for_all_heads_is_cut_on_its_way_in():
    check(lambda: BloomForCausalLM(sizes(model_type="bloom", n_head=4, n_layer=2, layer_norm_epsilon=1e-5)))


def test_a_norm_over_all_heads_runs_over_all_ranks():
    for norm in (RMSNorm, LayerNorm):
        check(lambda norm=norm: wide_norm_decoder(sizes(model_type="olmo2", head_dim=4, num_key_value_heads=2), norm))


@pytest.mark.parametrize("groups", [1, 4])
def test_a_state_space_layer_on_this_ranks_heads(groups):
    check(lambda: Mamba2ForCausalLM(sizes(
        model_type="mamba2", num_heads=4, head_dim=8, state_size=6, n_groups=groups, conv_kernel=4, expand=2,
        layer_norm_epsilon=1e-5)))


def trained(cell, steps=3):
    """The cell after some steps of gradient descent, and what makes the next."""
    parameters = mindspore.ParameterTuple(cell.trainable_params())
    optimizer = nn.Momentum(parameters, learning_rate=0.05, momentum=0.9)
    step = mindspore.grad(lambda tokens: ops.mean(ops.square(cell(tokens))), None, parameters)
    for at in range(steps):
        optimizer(step(ids(at)))
    return cell


def plain_attributes(cell):
    """The numbers and words of every Cell, but for MindSpore's own notes."""
    return [{name: value for name, value in vars(module).items()
             if isinstance(value, (int, float, str)) and not name.startswith("_")}
            for _, module in cell.cells_and_names()]


def test_restore_after_training_gives_whole_weights_that_one_rank_would_have():
    def build():
        return randomize(gpt_oss(gpt_oss_sizes()))

    whole, cell = trained(build()), build()
    hp.auto_tp(cell, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    hp.restore(trained(cell))
    start = dict(build().parameters_and_names())
    for (path, parameter), (_, expected) in zip(cell.parameters_and_names(), whole.parameters_and_names()):
        moved = np.abs(expected.asnumpy() - start[path].asnumpy()).max()
        assert np.abs(parameter.asnumpy() - expected.asnumpy()).max() <= 1e-3 * moved + 1e-7, path
    assert plain_attributes(cell) == plain_attributes(whole)
    again = build()
    for (_, parameter), (_, restored) in zip(again.parameters_and_names(), cell.parameters_and_names()):
        parameter.set_data(Tensor(restored.asnumpy()))
    assert np.array_equal(again(ids()).asnumpy(), cell(ids()).asnumpy())


HALVES = [{"match": "*.gate_up_proj.*", "fused_layout": "halves"}]


def test_norms_and_residuals_inside_of_a_layer_and_three_inputs_that_are_one():
    plan = check(lambda: other_decoder(sizes(dropout=0.0)), overrides=HALVES)
    block = "model.layers.0"
    assert set(plan.boundaries[f"{block}.attn"].in_dst) == {"query", "key", "value"}
    assert plan.boundaries[f"{block}.mlp"].in_dst == {}, "its residual does not pass an edge"
    assert plan.boundaries[f"{block}.ffn.down_proj"].semantic_role == "row_linear", "the residual comes after the sum"
    assert plan.parameters[f"{block}.mlp.norm.weight"].grad_sum_axes == ()
    assert plan.parameters[f"{block}.mlp.post_norm.weight"].grad_sum_axes == ()


def test_a_residual_inside_of_a_layer_is_refused_under_sequence_parallel():
    with pytest.raises(ValueError, match="uses its own input beside its weights.*set use_seq_parallel: false"):
        hp.plan(other_decoder(sizes(dropout=0.0)), tp=WORLD, overrides=HALVES, sequence_parallel=True)


def test_G07_dropout_differs_on_parts_and_agrees_on_what_all_ranks_hold():
    """The masks themselves: what is dropped of ones."""
    mindspore.set_seed(5)
    cell = randomize(other_decoder(sizes(dropout=0.5)))
    cell.set_train()
    kept = {name: cell.model.layers[0].attn.attn_dropout.dropout for name in ("before",)}
    mesh = hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))
    hp.apply(cell, hp.plan(cell, tp=WORLD, overrides=HALVES), mesh)
    attention, feed_forward = cell.model.layers[0].attn, cell.model.layers[0].ffn
    ones = ops.ones((1, 256), mindspore.float32)
    masks = {"own": attention.attn_dropout(ones), "same": attention.resid_dropout(ones)}
    seen = []
    down = feed_forward.down_proj.register_forward_pre_hook(lambda cell, args: seen.append(args[0]))
    cell(ids())
    cell(ids())
    down.remove()
    masks["function"] = ops.cast(seen[0] != 0, mindspore.float32).reshape((1, -1))
    masks["function again"] = ops.cast(seen[1] != 0, mindspore.float32).reshape((1, -1))
    masks["outside"] = ops.dropout(ones, p=0.5)
    group = mesh.get_group("tp")
    by_rank = {name: functional.all_gather(mask, 0, group).asnumpy() != 0 for name, mask in masks.items()}
    for name, found in by_rank.items():
        agree = np.mean(found[0] == found[1])
        assert agree == 1.0 if name in ("same", "outside") else agree < 0.75, name
        assert 0.3 < found.mean() < 0.7, name
    assert not np.array_equal(by_rank["function"], by_rank["function again"])
    hp.restore(cell)
    assert cell.model.layers[0].attn.attn_dropout.dropout is kept["before"]
