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
"""A state-space layer on this rank's heads: the sizes that its modules keep, and its convolution over channels.

The layer's own forward runs as it is written, on local sizes: heads, inner channels and what is made of them are divided;
B and C go with their groups, which several ranks may share.
"""
import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set, Tuple

from mindspore.ops import Primitive

from hyper_parallel.distributed.forward_reads import attribute_chains
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.distributed.tensor_parallel.head_count_operators import rebuild

_HEADS = re.compile(r".*n?_?heads?|nheads|num_v_heads")
_GROUPS = re.compile(r"n_?groups|num_groups|.*ngroups|n_group")
_WHOLE = re.compile(r".*(state|rank|kernel|chunk|head_?dim|headdim|layer|stride|pad|dilation|hidden_size|d_model).*|"
                    r"d_conv|dim|axis")
_CHANNELS = ("group", "out_channel", "out_channels", "in_channels", "groups")


def find_state_sizes(path: str, members: Sequence[ParameterSpec], inventory: Inventory,
                     modules: Mapping) -> Dict[str, int]:
    """`{attribute, dotted from the layer: its local value}` of the integers that the layer's forward reads.

    Args:
        path: of the layer.
        members: its parameters.
        inventory: the Cell's.
        modules: `{path: Cell}`.

    Raises:
        ValueError: a number may be several sizes; names it, and the way out.
    """
    local_of = _local_values(members)
    vectors = {spec.shape[0]: spec.local_shape[0] for spec in members if len(spec.shape) == 1 and _is_by_head(spec)}
    groups_are_shared = any(spec.copies > 1 for spec in members)
    tp = next(cut.parts for spec in members for cut in spec.slice_map.cuts)
    found: Dict[str, int] = {}
    for module, record in inventory.modules.items():
        if module != path and not module.startswith(f"{path}."):
            continue
        for name, value in record.counts.items():
            if (name,) not in attribute_chains(type(modules[module])):
                continue
            if _GROUPS.fullmatch(name):
                local = max(1, value // tp) if groups_are_shared or value % tp == 0 else value
            elif _HEADS.fullmatch(name) and value in vectors:
                local = vectors[value]
            elif _WHOLE.fullmatch(name) or value not in local_of:
                continue
            elif len(local_of[value]) > 1:
                raise ValueError(
                    f"{path!r}: its forward reads {name} = {value}, which may be {len(local_of[value])} different sizes "
                    f"of this layer: keep it whole with auto_tp_config.overrides: [{{match: \"{path}.*\", "
                    "replicate: true}]")
            else:
                (local,) = local_of[value]
            if local != value:
                found[f"{module}.{name}"[len(path) + 1:]] = local
    return found


def _is_by_head(spec: ParameterSpec) -> bool:
    return any(len(cut.sections) == 1 for cut in spec.slice_map.cuts)


def _local_values(members: Sequence[ParameterSpec]) -> Dict[int, Set[int]]:
    """What a number of rows becomes, by every section and every whole dim that has so many."""
    found: Dict[int, Set[int]] = {}
    for spec in members:
        for cut in spec.slice_map.cuts:
            found.setdefault(cut.rows, set()).add(cut.local_rows)
            for section in cut.sections:
                if section.copies == 1:
                    found.setdefault(section.rows, set()).add(section.padded // cut.sharers)
    return found


def localize_convolution(cell, parameters: Mapping[str, ParameterSpec]) -> Callable[[], None]:
    """Rebuild the operators of a convolution over channels with this rank's channels.

    Args:
        cell: a module whose operators keep `group` and `out_channel`; one without is left alone.
        parameters: its own parameters' plans, by name.

    Returns:
        What undoes it.
    """
    channels: List[Tuple[int, int]] = [(spec.shape[0], spec.local_shape[0]) for spec in parameters.values()
                                       if len(spec.shape) > 2 and spec.slice_map.cuts]
    changed: List[Tuple[str, Any]] = []
    for whole, local in channels:
        for name, operator in list(vars(cell).items()):
            kept = getattr(operator, "init_attrs", None) if isinstance(operator, Primitive) else None
            counts = {key: local for key in _CHANNELS if kept and kept.get(key) == whole}
            if counts:
                changed.append((name, operator))
                setattr(cell, name, rebuild(operator, counts))

    def undo():
        for name, operator in changed:
            setattr(cell, name, operator)

    return undo
