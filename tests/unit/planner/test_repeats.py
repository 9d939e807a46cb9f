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
"""Equal layers are planned once, and the plan is the one that planning every layer gives."""
import gc

import inventories
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.repeats import expand_modules, find_repeats, layer_of, paused_collection
from inventories import LLAMA, record


def layers(count, odd=()):
    """A model of equal layers, some of them with a bias more."""
    shapes = {}
    for name, size in LLAMA.items():
        if ".layers." not in name:
            shapes[name] = size
            continue
        for layer in range(count):
            shapes[name.replace(".0.", f".{layer}.")] = size
            if layer in odd and name.endswith("q_proj.weight"):
                shapes[name.replace(".0.", f".{layer}.").replace("weight", "bias")] = size[:1]
    return record(shapes)


def test_layers_of_one_make_have_one_leader():
    repeats = find_repeats(take_inventory(layers(12, odd=(3, 7))))
    assert set(repeats.leader_of.values()) == {"model.layers.0", "model.layers.3"}
    assert repeats.counts()["model.layers.0.mlp.up_proj.weight"] == 10
    assert not repeats.contiguous


def test_the_expanded_plan_is_the_whole_plan():
    data = layers(12, odd=(3, 7))
    made = plan(data, tp=4)
    assert list(made.parameters) == list(data["parameters"])
    assert made.parameters["model.layers.7.self_attn.q_proj.bias"].local_shape == (16,)
    assert [path for path in made.boundaries if path.endswith("self_attn")] == [
        f"model.layers.{layer}.self_attn" for layer in range(12)]
    assert set(made.heads) == {f"model.layers.{layer}.self_attn" for layer in range(12)}
    assert made.boundaries["model.layers.3.mlp"] is made.boundaries["model.layers.0.mlp"] or \
        made.boundaries["model.layers.3.mlp"] == made.boundaries["model.layers.0.mlp"]
    for path, spec in made.parameters.items():
        assert spec.path == path


def test_a_stack_that_stands_beside_two_others_keeps_its_order():
    made = plan(inventories.folders()["whisper"], tp=2)
    assert list(made.parameters) == list(inventories.folders()["whisper"]["parameters"])


def test_layer_of_finds_the_first_number():
    assert [layer_of(path) for path in ("a.0.b.1.c", "0.a", "a.b", "w1.a")] == ["a.0", "0", "", ""]


def test_values_of_modules_outside_of_layers_stay():
    repeats = find_repeats(take_inventory(layers(2)))
    assert expand_modules(repeats, {"model.norm": 1, "model.layers.0.mlp": 2}) == {
        "model.norm": 1, "model.layers.0.mlp": 2, "model.layers.1.mlp": 2}


def test_collection_comes_back_even_after_an_error():
    assert gc.isenabled()
    try:
        with paused_collection():
            assert not gc.isenabled()
            raise KeyError
    except KeyError:
        pass
    assert gc.isenabled()
