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
import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.recipe_spec import ParameterSpec


@contextmanager
def paused_collection():
    """No garbage collection while a hundred thousand small records are made, none of which is garbage: it would look at
    all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Repeats:
    """Which layer stands for which.

    Args:
        reduced: one layer of each make, and everything outside of the layers.
        leader_of: `{path of a layer: path of the layer that stands for it}`, in the model's order.
        order: runs of the model's parameters: a layer's path, or a parameter that stands outside of all layers.
        contiguous: every layer's parameters follow one another.
        paths: all parameters, in the model's order.
    """

    reduced: Inventory
    leader_of: Dict[str, str]
    order: Tuple[str, ...]
    contiguous: bool
    paths: Tuple[str, ...]

    def counts(self) -> Dict[str, int]:
        """`{parameter of the reduced model: how many it stands for}`."""
        by_layer: Dict[str, int] = {}
        for leader in self.leader_of.values():
            by_layer[leader] = by_layer.get(leader, 0) + 1
        return {path: by_layer.get(layer_of(path), 1) for path in self.reduced.parameters}


def layer_of(path: str) -> str:
    """The path up to its first whole number, "" without one.

    Examples:
        >>> layer_of("model.layers.3.mlp.up_proj.weight"), layer_of("lm_head.weight")
        ('model.layers.3', '')
    """
    start = 0
    while True:
        dot = path.find(".", start)
        if dot < 0:
            return ""
        if path[start:dot].isdigit():
            return path[:dot]
        start = dot + 1


def find_repeats(inventory: Inventory, marks: Optional[Callable[[str], Any]] = None) -> Repeats:
    """Group the layers of a model by what they hold.

    Args:
        inventory: the model.
        marks: what a user's rules say of a path; layers of which they say different things are planned apart.
    """
    content: Dict[str, List] = {}
    order: List[str] = []
    layer, opened, length, held = "", "\0", 0, []
    contiguous = True
    for path, record in inventory.parameters.items():
        if not path.startswith(opened):
            layer = layer_of(path)
            if layer:
                contiguous = contiguous and layer not in content
                opened, length = f"{layer}.", len(layer)
                held = content.setdefault(layer, [])
                order.append(layer)
            else:
                opened = "\0"
        if layer:
            held.append((path[length:],) + record[1:])
        else:
            order.append(path)
    if marks is not None:
        for path in inventory.parameters:
            said = marks(path)
            if any(said) and layer_of(path):
                content[layer_of(path)].append(said + (path[len(layer_of(path)):],))
    modules: Dict[str, List] = {}
    for path, module in inventory.modules.items():
        layer = layer_of(f"{path}.")
        if layer:
            modules.setdefault(layer, []).append(
                (path[len(layer):], module.class_name, module.arguments, tuple(sorted(module.counts.items())),
                 marks(path) if marks else None))
    leaders: Dict[Any, str] = {}
    leader_of: Dict[str, str] = {}
    for layer, held in content.items():
        leader_of[layer] = leaders.setdefault((layer.rpartition(".")[0], tuple(held), tuple(modules.get(layer, ()))),
                                              layer)
    parameters: Dict[str, Any] = {}
    for name in order:
        if name not in leader_of:
            parameters[name] = inventory.parameters[name]
        elif leader_of[name] == name:
            for relative in content[name]:
                path = f"{name}{relative[0]}"
                if isinstance(relative[0], str) and path in inventory.parameters:
                    parameters[path] = inventory.parameters[path]
    return Repeats(replace(inventory, parameters=parameters), leader_of, tuple(order), contiguous,
                   tuple(inventory.parameters))


def expand_parameters(repeats: Repeats, specs: Dict[str, ParameterSpec]) -> Dict[str, ParameterSpec]:
    """Every parameter's spec, in the model's order."""
    make, kind = tuple.__new__, ParameterSpec
    by_leader: Dict[str, List[Tuple[str, tuple]]] = {}
    for path, spec in specs.items():
        layer = layer_of(path)
        if layer:
            by_leader.setdefault(layer, []).append((path[len(layer):], tuple(spec[1:])))
    expanded: Dict[str, ParameterSpec] = {}
    for name in repeats.order:
        leader = repeats.leader_of.get(name)
        if leader is None:
            expanded[name] = specs[name]
            continue
        for relative, rest in by_leader[leader]:
            path = name + relative
            expanded[path] = make(kind, (path,) + rest)
    if not repeats.contiguous:
        return {path: expanded[path] for path in repeats.paths}
    return expanded


def expand_modules(repeats: Repeats, values: Dict[str, Any]) -> Dict[str, Any]:
    """`{module path: value}` for every layer, values shared, in the order of the layers."""
    by_leader: Dict[str, List[Tuple[str, Any]]] = {}
    containers: Dict[str, List[str]] = {}
    for layer in repeats.leader_of:
        containers.setdefault(layer.rpartition(".")[0], []).append(layer)
    places: Dict[Tuple[str, bool], None] = {}
    for path, value in values.items():
        layer = layer_of(f"{path}.")
        if layer in repeats.leader_of:
            by_leader.setdefault(layer, []).append((path[len(layer):], value))
            places.setdefault((layer.rpartition(".")[0], True))
        else:
            places.setdefault((path, False))
    expanded: Dict[str, Any] = {}
    for place, is_container in places:
        if not is_container:
            expanded[place] = values[place]
            continue
        for layer in containers[place]:
            for relative, shared in by_leader.get(repeats.leader_of[layer], ()):
                expanded[layer + relative] = shared
    return expanded
