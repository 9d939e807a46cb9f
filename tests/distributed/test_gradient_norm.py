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
"""The gradient norm counts each element of the whole once. The judge is numpy on the whole model's gradients."""
import math

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import hyper_parallel as hp
from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.dtensor.slice_map import Cut, Section, SliceMap
from hyper_parallel.distributed.applier import AppliedState
from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan
from hyper_parallel.distributed.verify import run
from tests.models.decoder import Decoder, DecoderConfig, randomize

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()
only_on_4 = pytest.mark.skipif(WORLD != 4, reason="runs on 4 ranks")


def tp_mesh():
    """All ranks on one axis."""
    return hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))


def decoder(**sizes):
    """With kv copies, a tied and padded table, and biases after the reduction, unless `sizes` say otherwise."""
    return randomize(Decoder(DecoderConfig(**{
        "num_attention_heads": 8, "num_key_value_heads": WORLD // 2, "vocab_size": 33, "attention_bias": True,
        "tie_word_embeddings": True, "num_hidden_layers": 1, **sizes})))


def tokens(rows=2, seed=7):
    """Token ids, equal on all ranks."""
    return Tensor(np.random.default_rng(seed).integers(0, 33, (rows, 8)).astype(np.int32))


def gradients_of(cell, inputs):
    """In the order of `trainable_params`."""
    found = run(cell, (inputs,)).gradients
    return [Tensor(found[path]) for path, parameter in cell.parameters_and_names() if parameter.requires_grad]


def reference_norm(gradients, order=2.0):
    """Of all gradients as one float64 vector."""
    flat = np.concatenate([np.ravel(one.asnumpy().astype(np.float64)) for one in gradients])
    return float(np.linalg.norm(flat, order))


def check(value, expected):
    """Equal to 1e-5 and a float32 scalar."""
    assert value.dtype == mindspore.float32 and value.shape == ()
    assert abs(float(value.asnumpy()) - expected) <= 1e-5 * expected


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("order", [2.0, 3.0, math.inf])
def test_kv_copies_ties_padding_and_biases_count_once(sequence_parallel, order):
    cell = decoder()
    hp.auto_tp(cell, tp_mesh(), sequence_parallel=sequence_parallel)
    gradients = gradients_of(cell, tokens())
    with count_collectives() as record:
        norm = hp.grad_norm(cell, gradients, norm_type=order)
    check(norm, reference_norm(gradients_of(decoder(), tokens()), order))
    assert record.counts() == {"all_reduce": 1} and record.logical_bytes() == 4


def test_clipping_scales_every_rank_alike_and_gives_the_norm_before():
    cell = decoder()
    hp.auto_tp(cell, tp_mesh())
    gradients = gradients_of(cell, tokens())
    before = [one.asnumpy().copy() for one in gradients]
    expected = reference_norm(gradients_of(decoder(), tokens()))
    check(hp.clip_grad_norm_(cell, expected / 4, gradients), expected)
    for one, old in zip(gradients, before):
        assert np.allclose(one.asnumpy(), old / 4, rtol=1e-4, atol=0)
    check(hp.grad_norm(cell, gradients), expected / 4)
    kept = [one.asnumpy().copy() for one in gradients]
    hp.clip_grad_norm_(cell, expected, gradients)
    assert all(np.array_equal(one.asnumpy(), old) for one, old in zip(gradients, kept)), "small enough already"


class Parameters(nn.Cell):
    """Nothing but parameters."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, Parameter(Tensor(np.zeros(shape, np.float32)), name=name))


def planned(slice_maps):
    """A Cell with local parameters, as `apply` leaves it, by slice maps."""
    cell = Parameters(**{name: slice_map.local_shape() for name, slice_map in slice_maps.items()})
    specs = {name: ParameterSpec(name, slice_map.shape, "float32", "SKIP", {}, slice_map)
             for name, slice_map in slice_maps.items()}
    state = AppliedState(ShardingPlan({"tp": WORLD}, {}, specs), tp_mesh())
    object.__setattr__(cell, "_hp_applied", state)
    return cell


def local_parts(slice_maps, wholes):
    """This rank's gradients."""
    return [Tensor(slice_map.shard(whole, RANK if slice_map.cuts else None))
            for slice_map, whole in zip(slice_maps.values(), wholes)]


def test_G06_shards_3_and_4_and_a_replicated_12_give_13():
    maps = {"cut": SliceMap.plain((WORLD,), 0, WORLD), "whole": SliceMap.whole((1,))}
    parts = [3.0, 4.0, 0.0, 0.0][:WORLD]
    cell = planned(maps)
    check(hp.grad_norm(cell, local_parts(maps, [np.array(parts, np.float32), np.array([12.0], np.float32)])), 13.0)


def test_experts_mixed_copies_and_what_only_the_first_rank_keeps():
    draw = np.random.default_rng(5).standard_normal
    maps = {
        "experts": SliceMap.plain((3, 4, 8), 2, WORLD),
        "fused": SliceMap.of((16 + 8, 4), Cut("tp", 0, WORLD, (Section(16, 4), Section(4, 4, copies=WORLD),
                                                               Section(4, 4, copies=WORLD)))),
        "first": SliceMap.of((5,), Cut("tp", 0, WORLD, (Section(5, 5, padding=5 * (WORLD - 1)),))),
    }
    wholes = [draw(one.shape).astype(np.float32) for one in maps.values()]
    gradients = local_parts(maps, wholes)
    if RANK:
        # a bias that is added before a reduction has a gradient on every rank, also where its padding stands
        gradients[2] = Tensor(draw((5,)).astype(np.float32))
    cell = planned(maps)
    flat = np.concatenate([np.ravel(one) for one in wholes])
    check(hp.grad_norm(cell, gradients), float(np.linalg.norm(flat)))
    check(hp.grad_norm(cell, gradients, norm_type=math.inf), float(np.abs(flat).max()))


def test_nan_on_one_rank_is_named_on_all_when_asked():
    maps = {"first": SliceMap.plain((WORLD,), 0, WORLD), "second": SliceMap.whole((1,))}
    cell = planned(maps)
    gradients = local_parts(maps, [np.ones(WORLD, np.float32), np.ones(1, np.float32)])
    if RANK == 1:
        gradients[0] = Tensor(np.array([np.nan], np.float32))
    assert np.isnan(hp.grad_norm(cell, gradients).asnumpy()), "on every rank, whoever has it"
    with pytest.raises(FloatingPointError, match=r"not finite \(NaN or inf\): 'first' on rank 1$"):
        hp.clip_grad_norm_(cell, 1.0, gradients, error_if_nonfinite=True)
    gradients[0] = Tensor(np.array([1e30], np.float32))
    with pytest.raises(FloatingPointError, match="their squares exceed float32"):
        hp.grad_norm(cell, gradients, error_if_nonfinite=True)


@only_on_4
def test_data_parallel_gradients_are_averaged_first():
    mesh = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
    cell = decoder(num_key_value_heads=1)
    hp.auto_tp(cell, mesh)
    batches = [tokens(seed=1), tokens(seed=2)]
    gradients = gradients_of(cell, batches[mesh.get_local_rank("dp")])
    both = [gradients_of(decoder(num_key_value_heads=1), batch) for batch in batches]
    mean = [Tensor((first.asnumpy() + second.asnumpy()) / 2) for first, second in zip(*both)]
    check(hp.grad_norm(cell, gradients), reference_norm(mean))


def test_gradients_that_are_dtensors():
    mesh = tp_mesh()
    whole = np.random.default_rng(5).standard_normal((2 * WORLD, 4)).astype(np.float32)
    padded = SliceMap.plain((2 * WORLD - 1, 4), 0, WORLD, pad=True)
    cell = Parameters(cut=(2 * WORLD, 4), padded=(2 * WORLD - 1, 4), same=(4,), none=(1,))
    gradients = [
        hp.distribute_tensor(Tensor(whole), mesh, (hp.Shard(0),)),
        hp.DTensor(Tensor(padded.shard(whole[1:], RANK)), mesh, (hp.Shard(0),), padded),
        hp.distribute_tensor(Tensor(whole[0]), mesh, (hp.Replicate(),)), None]
    flat = np.concatenate([whole.ravel(), whole[1:].ravel(), whole[0]])
    check(hp.clip_grad_norm_(cell, 1.0, gradients), float(np.linalg.norm(flat)))
    check(hp.grad_norm(cell, gradients), 1.0)
    partial = hp.DTensor.from_local(Tensor(whole[0]), mesh, (hp.Partial(),))
    with pytest.raises(ValueError, match="gradient of 'same' is .*reduce what is partial"):
        hp.grad_norm(cell, [None, None, partial, None])


def test_what_does_not_fit_is_refused():
    cell = planned({"cut": SliceMap.plain((WORLD,), 0, WORLD)})
    with pytest.raises(ValueError, match="2 gradients for 1 trainable parameters"):
        hp.grad_norm(cell, [None, None])
    with pytest.raises(ValueError, match=r"'cut' has shape \(3,\), a rank's part of the parameter \(1,\)"):
        hp.grad_norm(cell, [Tensor(np.ones(3, np.float32))])
    with pytest.raises(ValueError, match="max_norm is -1"):
        hp.clip_grad_norm_(cell, -1, [None])
    with pytest.raises(ValueError, match="norm_type is 0"):
        hp.grad_norm(cell, [None], norm_type=0)
