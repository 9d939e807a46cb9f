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
"""A plan as plain data and back: placements as words, slice maps once each."""
import hashlib
import json
from dataclasses import fields
from typing import Any, Dict, Mapping, Optional, Tuple

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, format_placement, parse_placement
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.recipe_spec import SCHEMA_VERSION, ModuleShardingSpec, ParameterSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel.head_count import TpLocalAttrPlan

_ARGUMENT_FIELDS = ("params", "in_src", "in_dst")
_LAYOUT_FIELDS = ("out_src", "out_dst")


def _words(named: Optional[NamedPlacement]) -> Optional[Dict[str, str]]:
    return None if named is None else {axis: format_placement(placement) for axis, placement in named.items()}


def _placements(words: Optional[Mapping[str, str]]) -> Optional[NamedPlacement]:
    return None if words is None else {axis: parse_placement(word) for axis, word in words.items()}


def _spec_to_dict(spec: ModuleShardingSpec) -> Dict[str, Any]:
    data: Dict[str, Any] = {}
    for one in fields(spec):
        value = getattr(spec, one.name)
        if value is None:
            continue
        if one.name in _ARGUMENT_FIELDS:
            value = {name: _words(named) for name, named in value.items()}
        elif one.name in _LAYOUT_FIELDS:
            value = _words(value)
        elif one.name == "_tp_local_attr_plan":
            value = {"auto_divide": list(value.auto_divide), "user_divide": list(value.user_divide),
                     "targets": [list(target) for target in value.targets]}
        elif isinstance(value, tuple):
            value = list(value)
        data[one.name] = value
    return data


def _spec_from_dict(data: Mapping[str, Any]) -> ModuleShardingSpec:
    read: Dict[str, Any] = dict(data)
    for name in _ARGUMENT_FIELDS:
        if name in read:
            read[name] = {key: _placements(words) for key, words in read[name].items()}
    for name in _LAYOUT_FIELDS:
        if name in read:
            read[name] = _placements(read[name])
    for name in ("tp_divide_attrs", "local_dropouts"):
        if name in read:
            read[name] = tuple(read[name])
    if "local_window" in read:
        read["local_window"] = {name: tuple(paths) for name, paths in read["local_window"].items()}
    if "_tp_local_attr_plan" in read:
        attrs = read["_tp_local_attr_plan"]
        read["_tp_local_attr_plan"] = TpLocalAttrPlan(
            tuple(attrs["auto_divide"]), tuple(attrs["user_divide"]),
            targets=tuple((name, value) for name, value in attrs["targets"]))
    return ModuleShardingSpec(**read)


def plan_digest(plan: ShardingPlan) -> str:
    """A hash of everything in the plan. Contents are written out once and numbered, since equal layers share them."""
    digest = hashlib.sha256()
    head = {"schema": SCHEMA_VERSION, "mesh_axes": plan.mesh_axes, "options": plan.options, "bound": plan.bound,
            "sequence_dim": plan.sequence_dim, "notes": plan.notes, "expected": plan.expected, "heads": plan.heads}
    digest.update(json.dumps(head, sort_keys=True).encode())
    numbers: Dict[str, int] = {}
    known: Dict[Tuple[int, int], Tuple[tuple, int]] = {}
    lines = []
    for path, spec in plan.parameters.items():
        key, content = (id(spec.slice_map), id(spec.reasons)), spec[1:]  # the plan's objects outlive this loop
        found = known.get(key)
        if found is None or found[0] != content:
            text = json.dumps([spec.shape, spec.dtype, spec.role, _words(spec.placement), spec.slice_map.to_dict(),
                               *spec[6:]], sort_keys=True)
            found = known[key] = content, numbers.setdefault(text, len(numbers))
        lines.append(f"{path} {found[1]}")
    written: Dict[int, int] = {}
    for path, spec in plan.boundaries.items():
        number = written.get(id(spec))
        if number is None:
            number = written[id(spec)] = numbers.setdefault(json.dumps(_spec_to_dict(spec), sort_keys=True),
                                                            len(numbers))
        lines.append(f"{path} {number}")
    digest.update("\n".join([*numbers, *lines]).encode())
    return digest.hexdigest()


def plan_to_dict(plan: ShardingPlan) -> Dict[str, Any]:
    """Plain data in a stable order; slice maps are listed once and referred to by number, since layers share them.

    `role`, `evidence`, the shapes and `placement` of every parameter are for readers, the rest is what `plan_from_dict`
    needs beside them.
    """
    maps: Dict[SliceMap, int] = {}
    words: Dict[int, Dict[str, str]] = {}
    parameters = {}
    for path, spec in plan.parameters.items():
        named = words.get(id(spec.placement))
        if named is None:
            named = words[id(spec.placement)] = _words(spec.placement)
        entry = {
            "role": spec.role, "evidence": list(spec.reasons), "rejected": list(spec.rejected),
            "global_shape": list(spec.shape), "local_shape": list(spec.local_shape), "dtype": spec.dtype,
            "placement": named, "slice_map": maps.setdefault(spec.slice_map, len(maps)), "copies": spec.copies,
            "grad_sum_axes": list(spec.grad_sum_axes), "frozen": spec.frozen, "aliases": list(spec.aliases)}
        if spec.first_rank_only:
            entry["first_rank_only"] = True
        parameters[path] = entry
    return {
        "schema": SCHEMA_VERSION, "tp": plan.tp, "mesh_axes": dict(plan.mesh_axes), "options": dict(plan.options),
        "sequence_dim": plan.sequence_dim, "bound": plan.bound, "notes": list(plan.notes), "expected": plan.expected,
        "heads": {path: list(heads) for path, heads in plan.heads.items()}, "parameters": parameters,
        "modules": {path: _spec_to_dict(spec) for path, spec in plan.boundaries.items()},
        "slice_maps": [slice_map.to_dict() for slice_map in maps]}


def plan_from_dict(data: Mapping[str, Any]) -> ShardingPlan:
    """The inverse of `plan_to_dict`.

    Raises:
        ValueError: no plan, or one of another schema version.
    """
    version = data.get("schema") if isinstance(data, Mapping) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"a plan of schema {version!r}; this version reads {SCHEMA_VERSION}: plan again")
    maps = [SliceMap.from_dict(entry) for entry in data["slice_maps"]]
    parameters = {}
    for path, entry in data["parameters"].items():
        slice_map = maps[entry["slice_map"]]
        parameters[path] = ParameterSpec(
            path, slice_map.shape, entry["dtype"], entry["role"], _placements(entry["placement"]), slice_map,
            entry["copies"], tuple(entry["grad_sum_axes"]), entry["frozen"], tuple(entry["aliases"]),
            tuple(entry["evidence"]), tuple(entry["rejected"]), entry.get("first_rank_only", False))
    return ShardingPlan(
        dict(data["mesh_axes"]), {path: _spec_from_dict(spec) for path, spec in data["modules"].items()}, parameters,
        {path: tuple(heads) for path, heads in data["heads"].items()}, dict(data["options"]), data["sequence_dim"],
        data["expected"], data["bound"], tuple(data["notes"]))
