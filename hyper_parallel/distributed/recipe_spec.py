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
import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from hyper_parallel.core.dtensor.slice_map import SliceMap

from hyper_parallel.core.dtensor.placement_types import (  # re-exported: specs and placements are written together
    NamedPlacement, Partial, Placement, Replicate, Shard, format_placement, parse_placement, resolve_placements)
from hyper_parallel.distributed.json_file import write_json

__all__ = ["ModuleShardingSpec", "NamedPlacement", "ParameterSpec", "Partial", "Placement", "Replicate", "Shard",
           "ShardingPlan", "format_placement", "parse_placement", "resolve_placements"]

SCHEMA_VERSION = 1


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
        semantic_role: the kind of boundary (`attention`, `mlp`, `norm`, `embedding`, `lm_head`, …).
        out_size: size of the gathered dim of the result without padding; None leaves it.
        head_arguments: `{argument of the module's forward: the dim that counts heads}`: the argument is made for all
            heads (ALiBi), and the body wants this rank's.
        local_sizes: `{int attribute of the module or, dotted, of one below it: its local value}`; written by `bind`.
        local_compute_arguments: what `local_compute_fn` has to know of the module; of a norm, written by `bind`.
        local_dropouts: dropout modules below that drop this rank's part of an activation, so that ranks draw different
            numbers; written by `bind`.
        local_window: `opens` and `closes`: modules below between which dropout functions drop this rank's part; written
            by `bind`.

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
    semantic_role: Optional[str] = None
    out_size: Optional[int] = None
    head_arguments: Optional[Dict[str, int]] = None
    local_sizes: Optional[Dict[str, int]] = None
    local_compute_arguments: Optional[Dict[str, Any]] = None
    local_dropouts: Optional[Tuple[str, ...]] = None
    local_window: Optional[Dict[str, Tuple[str, ...]]] = None
    _tp_local_attr_plan: Optional[Any] = field(default=None, repr=False)


class ParameterSpec(NamedTuple):
    """Everything a consumer needs to know of one parameter; none of them looks at its name to decide anything.

    Args:
        path: dotted path in the model.
        shape: whole shape.
        dtype: name of the dtype.
        role: name of its ParamRole.
        placement: layout on the mesh, by axis.
        slice_map: which part of the whole each rank holds.
        copies: consecutive ranks that hold the same rows and sum their gradients among themselves (KV copies).
        grad_sum_axes: axes over which its gradient is partial, so that it has to be summed.
        frozen: not trained.
        aliases: other paths of the same object (tied weights).
        reasons: the evidence, strongest first.
        rejected: what else was possible, and why it lost.
        first_rank_only: the values live on the first rank, the rest is zero padding that has to stay zero: gradients of
            the padding are not zero by themselves and have to be dropped.
    """

    path: str
    shape: Tuple[int, ...]
    dtype: str
    role: str
    placement: NamedPlacement
    slice_map: SliceMap
    copies: int = 1
    grad_sum_axes: Tuple[str, ...] = ()
    frozen: bool = False
    aliases: Tuple[str, ...] = ()
    reasons: Tuple[str, ...] = ()
    rejected: Tuple[str, ...] = ()
    first_rank_only: bool = False

    @property
    def local_shape(self) -> Tuple[int, ...]:
        """Shape of one rank's part."""
        return self.slice_map.local_shape()


@dataclass
class ShardingPlan:
    """A tensor-parallel plan: plain data, decided from a model before any process group exists.

    Args:
        mesh_axes: `{axis: size}`.
        boundaries: spec by module path, in the model's order.
        parameters: spec by parameter path, in the model's order.
        heads: `{attention module: (heads, kv heads, head size)}`, of the whole.
        options: the switches it was made with.
        sequence_dim: dim of the sequence in an activation.
        expected: collectives of one forward and one backward, `{boundary kind: {"forward": …, "backward": …}}`.
        bound: checked against a real Cell; argument names are its own.
        notes: what a reader of the plan should know (a region kept whole, copies, padding).

    Examples:
        >>> plan = hp.plan("checkpoints/llama", tp=4)
        >>> plan.save("plan.json"); hp.ShardingPlan.load("plan.json").hash == plan.hash
        True
    """

    mesh_axes: Dict[str, int]
    boundaries: Dict[str, ModuleShardingSpec]
    parameters: Dict[str, ParameterSpec]
    heads: Dict[str, Tuple[int, int, int]] = field(default_factory=dict)
    options: Dict[str, Any] = field(default_factory=dict)
    sequence_dim: int = 1
    expected: Dict[str, Dict[str, Dict[str, int]]] = field(default_factory=dict)
    bound: bool = False
    notes: Tuple[str, ...] = ()

    @property
    def tp(self) -> int:
        """Size of the tensor-parallel axis."""
        return self.mesh_axes.get("tp", 1)

    @property
    def hash(self) -> str:
        """Stable over processes and machines, whatever file the plan came from; ranks compare it before they apply."""
        from hyper_parallel.distributed.plan_json import plan_digest
        return plan_digest(self)

    def bind(self, cell, config=None) -> "ShardingPlan":
        """The plan checked against a real Cell: names, argument names, head counts.

        Raises:
            ValueError: what does not fit, by name.
        """
        from hyper_parallel.distributed.binding import bind
        from hyper_parallel.distributed.repeats import paused_collection
        with paused_collection():
            return bind(self, cell)

    def shard(self, name: str, array: np.ndarray, rank: int) -> np.ndarray:
        """A rank's part of a whole parameter.

        Args:
            name: path of the parameter, or of one of its aliases.
            array: the whole.
            rank: coordinate on the tensor-parallel axis.

        Raises:
            ValueError: no such parameter, or an array of another shape.
        """
        slice_map = self._parameter(name).slice_map
        return slice_map.shard(array, rank if slice_map.cuts else None)

    def unshard(self, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The whole of a parameter from every rank's part; the inverse of `shard`.

        Raises:
            ValueError: no such parameter, or arrays of another number or shape.
        """
        return self._parameter(name).slice_map.unshard(list(arrays))

    def _parameter(self, name: str) -> ParameterSpec:
        spec = self.parameters.get(name)
        if spec is None:
            spec = next((one for one in self.parameters.values() if name in one.aliases), None)
        if spec is None:
            near = difflib.get_close_matches(name, list(self.parameters), n=3, cutoff=0.0)
            raise ValueError(f"the plan has no parameter {name!r}; nearest: {', '.join(near)}")
        return spec

    def tied_groups(self) -> List[Tuple[str, ...]]:
        """The names of every parameter that has several."""
        return [(spec.path,) + spec.aliases for spec in self.parameters.values() if spec.aliases]

    def explain(self, path: Optional[str] = None) -> str:
        """The report as text: a table of all parameters (layers folded), or all there is to say about one.

        Args:
            path: a parameter's path; None asks for the table.
        """
        from hyper_parallel.distributed.explain import explain
        return explain(self, path)

    def to_dict(self) -> Dict[str, Any]:
        """Plain data for JSON; `from_dict` is the inverse."""
        from hyper_parallel.distributed.plan_json import plan_to_dict
        return plan_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ShardingPlan":
        """Read what `to_dict` wrote.

        Raises:
            ValueError: another schema version, or no plan at all.
        """
        from hyper_parallel.distributed.plan_json import plan_from_dict
        return plan_from_dict(data)

    def save(self, file: Union[str, Path]) -> Path:
        """Write the plan as JSON; folders are made."""
        return write_json(file, self.to_dict())

    @classmethod
    def load(cls, file: Union[str, Path]) -> "ShardingPlan":
        """Read a plan that `save` wrote.

        Raises:
            ValueError: the file does not exist or holds no plan.
        """
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"no plan at {str(path)!r}")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{str(path)!r} holds no plan: {error}") from error
        return cls.from_dict(data)
