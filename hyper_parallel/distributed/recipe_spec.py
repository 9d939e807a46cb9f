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
"""The data that the planner writes and everything else reads: one spec per boundary, by plain names."""
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from hyper_parallel.core.dtensor.placement_types import (  # re-exported: specs and placements are written together
    NamedPlacement, Partial, Placement, Replicate, Shard, format_placement, parse_placement, resolve_placements)

__all__ = ["ModuleShardingSpec", "NamedPlacement", "Partial", "Placement", "Replicate", "Shard", "format_placement",
           "parse_placement", "resolve_placements"]


@dataclass
class ModuleShardingSpec:
    """The contract of one boundary: where its parameters lie, and the layouts at its edges.

    `None` means *not said, inherit from the template*; `{}` means *said, and empty*.

    Args:
        params: `{parameter name relative to the module: NamedPlacement}`.
        in_src: `{argument of the module's forward: the layout it arrives in}`.
        in_dst: `{argument of the module's forward: the layout the body wants}`.
        out_src: the layout the body's result has.
        out_dst: the layout the result leaves in.
        tp_divide_attrs: names of int attributes of the module that the tp size divides, beside the known head counts.
        region_dispatch: False makes the boundary a local region in validate mode: its body sees local tensors.
        local_compute_fn: registry name or import path of a replacement for the module's forward.

    Examples:
        >>> ModuleShardingSpec(params={"q_proj.weight": {"tp": Shard(0)}, "o_proj.weight": {"tp": Shard(1)}},
        ...                    in_src={"hidden_states": {}}, in_dst={"hidden_states": {}},
        ...                    out_src={"tp": Partial()}, out_dst={"tp": Replicate()})
    """

    params: Optional[Dict[str, NamedPlacement]] = None
    in_src: Optional[Dict[str, NamedPlacement]] = None
    in_dst: Optional[Dict[str, NamedPlacement]] = None
    out_src: Optional[NamedPlacement] = None
    out_dst: Optional[NamedPlacement] = None
    tp_divide_attrs: Optional[Tuple[str, ...]] = None
    region_dispatch: Optional[bool] = None
    local_compute_fn: Optional[str] = None
    _tp_local_attr_plan: Optional[Any] = field(default=None, repr=False)
