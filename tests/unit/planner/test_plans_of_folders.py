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
"""Plans of the 25 small models: every size, every byte back, every boundary's contract."""
from pathlib import Path

import numpy as np
import pytest

import inventories
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate
from hyper_parallel.distributed.planner import ShardingPlanner, plan
from hyper_parallel.distributed.overrides import PlanOptions
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates

FOLDERS = Path(__file__).resolve().parents[4] / "shared" / "cases" / "models"
NAMES = list(inventories.folders())


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_c03_unshard_is_the_inverse_of_shard(name, tp):
    made = plan(inventories.folders()[name], tp=tp)
    generator = np.random.default_rng(0)
    for path, spec in made.parameters.items():
        whole = generator.standard_normal(spec.shape).astype(np.float32)
        parts = [made.shard(path, whole, rank) for rank in range(tp)]
        assert all(part.shape == spec.local_shape for part in parts)
        assert made.unshard(path, parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_survives_json_and_its_hash_does_not_change(name, tmp_path):
    made = plan(inventories.folders()[name], tp=4)
    again = ShardingPlan.load(made.save(tmp_path / "plan.json"))
    assert again.hash == made.hash and again.parameters == made.parameters and again.boundaries == made.boundaries
    assert plan(inventories.folders()[name], tp=4).hash == made.hash
    assert plan(inventories.folders()[name], tp=2).hash != made.hash


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_parameter_stands_in_a_boundary_and_every_region_reduces(name):
    made = plan(inventories.folders()[name], tp=2)
    covered = {name for module, spec in made.boundaries.items() for inner in spec.params or {}
               for name in (inner, f"{module}.{inner}")}
    tables = {path for path, spec in made.parameters.items() if spec.role == "EMBED"}
    for path, spec in made.parameters.items():
        assert not spec.slice_map.cuts or path in covered | tables, path
    partial = [spec for spec in made.boundaries.values() if spec.out_src == {"tp": Partial()}]
    # attention and MLP of a parallel block leave their sums to the block
    assert partial and all(spec.out_dst == {"tp": Replicate()} for spec in partial if spec.semantic_role not in (
        templates.PARALLEL_ATTENTION, templates.PARALLEL_MLP) and spec.local_compute_fn != "bias_on_first_rank")
    assert any(spec.semantic_role == templates.EMBEDDING for spec in made.boundaries.values())


@pytest.mark.parametrize("name", ["gpt2", "bloom", "falcon", "gemma2", "mpt", "opt", "starcoder2"])
def test_e01_a_tied_head_has_its_boundary_though_it_has_no_parameter(name):
    made = plan(inventories.folders()[name], tp=2)
    assert made.boundaries["lm_head"].semantic_role == templates.LM_HEAD
    assert made.boundaries["lm_head"].out_size == 128


def test_the_head_of_a_masked_language_model_is_found_by_its_family():
    made = plan(inventories.folders()["bert"], tp=2)
    head = made.boundaries["cls.predictions.decoder"]
    assert head.semantic_role == templates.LM_HEAD and "cls.predictions.bias" in head.params
    assert made.parameters["cls.predictions.bias"].local_shape == (64,)


def test_a_region_whose_weights_are_not_side_by_side_is_entered_and_left_at_them():
    made = plan(inventories.folders()["bert"], tp=2)
    layer = "bert.encoder.layer.0"
    assert made.boundaries[f"{layer}.attention.self"].in_dst == {"hidden_states": {"tp": Replicate()}}
    out = made.boundaries[f"{layer}.attention.output.dense"]
    assert out.out_src == {"tp": Partial()} and out.local_compute_fn == "bias_after_reduction"
    assert made.heads[f"{layer}.attention.self"] == (4, 4, 16)
    assert made.parameters[f"{layer}.attention.output.LayerNorm.weight"].grad_sum_axes == ()
    made = plan(inventories.folders()["opt"], tp=2)
    assert made.boundaries["model.decoder.layers.0.fc1"].semantic_role == templates.MLP
    assert made.boundaries["model.decoder.layers.0.fc2"].out_src == {"tp": Partial()}


def test_cross_attention_has_two_inputs():
    made = plan(inventories.folders()["whisper"], tp=2)
    cross = made.boundaries["model.decoder.layers.0.encoder_attn"]
    assert cross.semantic_role == templates.CROSS_ATTENTION
    assert set(cross.in_dst) == {"hidden_states", "key_value_states"}
    assert made.expected[templates.CROSS_ATTENTION]["backward"] == {"all_reduce": 2}


def test_the_planner_class_plans_and_finalises_like_the_function():
    planner = ShardingPlanner(PlanOptions(tp=2))
    assert planner.plan(inventories.folders()["llama"]).hash == plan(inventories.folders()["llama"], tp=2).hash


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
@pytest.mark.parametrize("name", NAMES)
def test_folders_give_the_same_plan_as_their_inventories(name):
    made, expected = plan(FOLDERS / name, tp=2), plan(inventories.folders()[name], tp=2)
    for path, spec in expected.parameters.items():
        assert made.parameters[path].slice_map == spec.slice_map and made.parameters[path].role == spec.role
    assert list(made.boundaries) == list(expected.boundaries)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_sequence_parallel_spans_from_the_first_block_to_the_final_norm(sequence_parallel):
    made = plan(inventories.folders()["llama"], tp=2, sequence_parallel=sequence_parallel)
    norm = made.parameters["model.layers.1.input_layernorm.weight"]
    assert norm.grad_sum_axes == (("tp",) if sequence_parallel else ())
    assert ("model.layers.0" in made.boundaries) is sequence_parallel
    assert (made.boundaries.get("model.norm") is not None) is sequence_parallel
    if sequence_parallel:
        assert made.expected["attention"]["forward"] == {"all_gather": 1, "reduce_scatter": 1}
        assert made.expected[templates.BLOCK_ENTRY] and made.expected[templates.FINAL_NORM]


def test_sequence_parallel_is_refused_where_there_is_no_one_final_norm():
    with pytest.raises(ValueError, match="use_seq_parallel: false"):
        plan(inventories.folders()["t5"], tp=2, sequence_parallel=True)
