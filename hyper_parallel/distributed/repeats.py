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
"""Layers of one make are planned once: a model is reduced to one of each, and the plan is expanded again.

A thousand equal layers then cost as much as one, apart from writing their names down.
"""
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Tuple

from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec


@dataclass(frozen=True)
class Repeats:
    """Which layer stands for which.

    Args:
        reduced: one layer of each make, and everything outside of the layers.
        same: `{layer that stands for others: the others}`, by path.
        layer_of: `{parameter path: path of its layer}`; "" outside of the layers.
    """

    reduced: Inventory
    same: Dict[str, Tuple[str, ...]]
    layer_of: Dict[str, str]
    order: Tuple[str, ...]
    leader_of: Dict[str, str]


def find_repeats(inventory: Inventory, marks: Callable[[str], Any] = None) -> Repeats:
    """Group the layers of a model by what they hold.

    Args:
        inventory: the model.
        marks: what a user's rules say of a path; layers of which they say different things are planned apart.
    """
    layer_of: Dict[str, str] = {}
    content: Dict[str, List] = {}
    known: Dict[str, str] = {}
    for path, record in inventory.parameters.items():
        layer = _layer(path, known)
        layer_of[path] = layer
        if layer:
            at = len(layer)
            content.setdefault(layer, []).append(
                (path[at:], record.shape, record.dtype, record.owner_class, record.layout, record.aliases,
                 record.trainable, marks(path) if marks else None))
    modules: Dict[str, List] = {}
    for path, module in inventory.modules.items():
        layer = _layer(f"{path}.", known)
        if layer:
            modules.setdefault(layer, []).append(
                (path[len(layer):], module.class_name, module.arguments, tuple(sorted(module.counts.items()))))
    leaders: Dict[Any, str] = {}
    leader_of: Dict[str, str] = {}
    same: Dict[str, List[str]] = {}
    for layer, held in content.items():
        make = (layer.rpartition(".")[0], tuple(held), tuple(modules.get(layer, ())))
        leader = leaders.setdefault(make, layer)
        leader_of[layer] = leader
        if leader != layer:
            same.setdefault(leader, []).append(layer)
    kept = {layer for layer in leader_of if leader_of[layer] == layer}
    parameters = {path: record for path, record in inventory.parameters.items()
                  if not layer_of[path] or layer_of[path] in kept}
    reduced = replace(inventory, parameters=parameters)
    return Repeats(reduced, {leader: tuple(others) for leader, others in same.items()}, layer_of,
                   tuple(inventory.parameters), leader_of)


def _layer(path: str, known: Dict[str, str]) -> str:
    """The path up to its first whole number, "" without one."""
    start = 0
    while True:
        dot = path.find(".", start)
        if dot < 0:
            return ""
        if path[start:dot].isdigit():
            prefix = path[:dot]
            return known.setdefault(prefix, prefix)
        start = dot + 1


def expand_parameters(repeats: Repeats, specs: Dict[str, ParameterSpec]) -> Dict[str, ParameterSpec]:
    """Every parameter's spec, in the model's order."""
    expanded: Dict[str, ParameterSpec] = {}
    make = tuple.__new__
    layer_of, leader_of = repeats.layer_of, repeats.leader_of
    for path in repeats.order:
        spec = specs.get(path)
        if spec is None:
            layer = layer_of[path]
            spec = make(ParameterSpec, (path,) + specs[leader_of[layer] + path[len(layer):]][1:])
        expanded[path] = spec
    return expanded


def expand_modules(repeats: Repeats, values: Dict[str, Any]) -> Dict[str, Any]:
    """`{module path: value}` for every layer, values shared, in the order of the layers."""
    by_layer: Dict[str, List[Tuple[str, Any]]] = {}
    expanded: Dict[str, Any] = {}
    for path, value in values.items():
        layer = _layer(f"{path}.", {})
        by_layer.setdefault(layer if layer in repeats.leader_of else "", []).append((path, value))
    done = set()
    for path, value in values.items():
        layer = _layer(f"{path}.", {})
        if layer not in repeats.leader_of:
            expanded[path] = value
            continue
        if layer in done:
            continue
        # all layers of this list, in order: leaders and those that they stand for
        container = layer.rpartition(".")[0]
        for other in repeats.leader_of:
            if other.rpartition(".")[0] != container or other in done:
                continue
            done.add(other)
            leader = repeats.leader_of[other]
            for relative, shared in by_layer.get(leader, ()):
                expanded[other + relative[len(leader):]] = shared
    return expanded


def expand_paths(repeats: Repeats, paths) -> List[str]:
    """Every layer's counterpart of the given module paths."""
    return list(expand_modules(repeats, {path: None for path in paths}))


def expand_specs(repeats: Repeats, specs: Dict[str, ModuleShardingSpec]) -> Dict[str, ModuleShardingSpec]:
    """Specs of every layer; equal layers share one object."""
    return expand_modules(repeats, specs)
