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
"""Can it be right? Checks that fail closed, before any process group exists."""
import math
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, Optional

from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.model_facts import KEY_OF, ModelFacts
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

_REGION_ROLES = templates.REGIONS


def check_coverage(inventory: Inventory, parameters: Mapping[str, ParameterSpec],
                   specs: Mapping[str, ModuleShardingSpec] = MappingProxyType({})):
    """Every parameter has a spec, every cut one stands in one boundary, and no large weight is whole by accident.

    Args:
        inventory: the model.
        parameters: the specs to check.
        specs: the boundaries.

    Raises:
        ValueError: a 2-D weight that no evidence and no user kept whole would be replicated, or a cut parameter stands
            in no boundary or in several.
    """
    assert list(parameters) == list(inventory.parameters), "a parameter has no spec"
    covered: Dict[str, List[str]] = {}
    for module, spec in specs.items():
        for name, placement in (spec.params or {}).items():
            if placement.get("tp") is not None and placement["tp"].is_shard():
                path = f"{module}.{name}" if module and f"{module}.{name}" in parameters else name
                covered.setdefault(path, []).append(module)
    for spec in parameters.values():
        is_cut = bool(spec.slice_map.cuts)
        if is_cut and specs and not spec.aliases:
            holders = [module for module in covered.get(spec.path, ()) if specs[module].semantic_role not in (
                "lm_head", "heads", "sharded_norm", "inner_row")]
            if len(holders) > 1:
                raise ValueError(f"{spec.path!r} is cut by {len(holders)} boundaries: {', '.join(holders)}; one "
                                 "contract a parameter. Say which it is with auto_tp_config.rules")
            if not covered.get(spec.path):
                raise ValueError(f"{spec.path!r} would be cut, but no boundary says what meets it; keep it whole with "
                                 f"auto_tp_config.overrides: [{{match: \"{spec.path}\", replicate: true}}]")
        if len(spec.shape) >= 2 and not is_cut and spec.role == ParamRole.SKIP.name and not spec.frozen and \
                not any("buffer" in reason or "override" in reason or "mask" in reason or "rule" in reason
                        for reason in spec.reasons):
            raise ValueError(f"{spec.path!r} {list(spec.shape)} would stay whole on every rank and nobody said so: add "
                             f"auto_tp_config.overrides: [{{match: \"{spec.path}\", replicate: true}}] or a rule")


def large_whole(parameters: Iterable[ParameterSpec], least: int = 1 << 20) -> List[ParameterSpec]:
    """Weights of at least so many elements that every rank holds whole, for the report."""
    return [spec for spec in parameters if len(spec.shape) >= 2 and not spec.slice_map.cuts
            and math.prod(spec.shape) >= least]


def check_edges(specs: Mapping[str, ModuleShardingSpec]):
    """Regions hand activations to one another between blocks: each must leave them as the next expects them.

    Raises:
        ValueError: names both modules and both layouts.
    """
    between = [(path, spec) for path, spec in specs.items() if spec.semantic_role in _REGION_ROLES]
    for path, spec in between:
        for name, arrives in (spec.in_src or {}).items():
            if name not in (templates.HIDDEN,):
                continue
            for other_path, other in between:
                if other.out_dst is None or other.semantic_role != spec.semantic_role:
                    continue
                if other_path.rpartition(".")[2] == path.rpartition(".")[2] and other.out_dst != arrives and \
                        other.out_dst != other.out_src:
                    raise ValueError(f"{other_path!r} leaves activations as {other.out_dst}, but {path!r} expects "
                                     f"{arrives}: a boundary's exit has to meet the next one's entry")
                break


def check_head_is_cut(specs: Mapping[str, ModuleShardingSpec]):
    """Loss parallel needs a head whose logits can stay cut.

    Raises:
        ValueError: there is none.
    """
    if not any(spec.semantic_role == templates.LM_HEAD for spec in specs.values()):
        raise ValueError("loss_parallel keeps the logits cut over the vocabulary, but no head of this model is cut: set "
                         "auto_tp_config.loss_parallel: false, or take the override away that keeps the head whole")


def validate_model_compatibility(model: Any, *, tp_size: int, cp_size: int = 1, ep_size: int = 1,
                                 seq_len: Optional[int] = None):
    """Does the model's configuration divide by the sizes of a mesh?

    Args:
        model: a Cell or module with a `config`, a configuration object, or a dict.
        tp_size: tensor-parallel size; must divide the heads, and the kv heads or be a multiple of them.
        cp_size: context-parallel size; must divide the sequence.
        ep_size: expert-parallel size; must divide the experts.
        seq_len: sequence length, where it matters.

    Raises:
        ValueError: names the configuration's field, both numbers and the valid sizes.

    Examples:
        >>> validate_model_compatibility({"num_attention_heads": 8, "hidden_size": 64}, tp_size=4)
    """
    facts = ModelFacts.from_config(getattr(model, "config", model))
    _check_field("heads", facts.heads, tp_size, "tp_size")
    kv_heads = facts.kv_heads
    if kv_heads and kv_heads % tp_size and tp_size % kv_heads:
        _refuse("kv_heads", kv_heads, tp_size, "tp_size",
                [size for size in range(1, (facts.heads or kv_heads) + 1)
                 if (facts.heads or size) % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)])
    _check_field("experts", facts.experts, ep_size, "ep_size")
    if seq_len is not None and seq_len % cp_size:
        raise ValueError(f"seq_len {seq_len} is not divisible by cp_size {cp_size}; valid sizes: {_sizes(seq_len)}")


def _check_field(name: str, value: Optional[int], size: int, argument: str):
    if value and value % size:
        _refuse(name, value, size, argument, [d for d in range(1, value + 1) if value % d == 0])


def _refuse(name: str, value: int, size: int, argument: str, valid):
    raise ValueError(f"{KEY_OF[name]} {value} is not divisible by {argument} {size}; valid sizes: "
                     f"{', '.join(map(str, valid))}")


def _sizes(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)


def check_mesh(mesh_axes: Dict[str, int], mesh) -> None:
    """The mesh offers the axes of the plan, in the sizes that the plan was made for.

    Raises:
        ValueError: an axis is missing or has another size.
    """
    for axis, size in mesh_axes.items():
        if size == 1 and axis not in (mesh.mesh_dim_names or ()):
            continue
        if axis not in (mesh.mesh_dim_names or ()):
            raise ValueError(f"the plan cuts over axis {axis!r}, but the mesh's axes are {mesh.mesh_dim_names}: name "
                             f"one of them {axis!r}")
        if mesh.size(axis) != size:
            raise ValueError(f"the plan was made for {axis} {size}, but the mesh's axis {axis!r} has size "
                             f"{mesh.size(axis)}: plan again with tp={mesh.size(axis)}")
