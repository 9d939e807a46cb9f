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
"""Where each byte lives: slice map, placement and gradient group of every parameter, from role and region."""
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor import slice_layouts
from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard
from hyper_parallel.core.dtensor.slice_cut import Cut
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.boundaries import Boundary, innermost_region
from hyper_parallel.distributed.inventory import IN_OUT, Inventory, ParameterRecord
from hyper_parallel.distributed.model_facts import KEY_OF
from hyper_parallel.distributed.overrides import Overrides, PlanOptions
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.distributed.tensor_parallel import evidence, fused_layout, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry, find_heads
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

AXIS = "tp"
_WHOLE: NamedPlacement = {AXIS: Replicate()}


@dataclass(frozen=True)
class Filled:
    """The parameters' specs, and the head geometry of each attention that is cut."""

    parameters: Dict[str, ParameterSpec]
    heads: Dict[str, HeadGeometry]


class PlacementFiller:
    """Fills the placements of one plan.

    Args:
        inventory: the model.
        decisions: what each parameter is.
        boundaries: which module owns its contract.
        options: the switches.
        overrides: the user's words.
        on_sequence: modules between the first block's entry and the final norm, where sequence parallel cuts.
    """

    def __init__(self, inventory: Inventory, decisions: Mapping[str, Decision], boundaries: Mapping[str, Boundary],
                 options: PlanOptions, overrides: Overrides, on_sequence: Sequence[str] = ()):
        self._on_sequence = tuple(on_sequence)
        self._inventory = inventory
        self._decisions = decisions
        self._boundaries = boundaries
        self._options = options
        self._overrides = overrides
        self._tp = options.tp
        self._heads: Dict[str, HeadGeometry] = {}

    def fill(self) -> Filled:
        """Every parameter's spec, in the inventory's order.

        Raises:
            ValueError: a size that tp does not divide; the message gives the valid ones.
        """
        whole_regions = self._whole_regions()
        for boundary in self._boundaries.values():
            if boundary.kind == templates.ATTENTION and boundary.path not in whole_regions:
                heads = self._geometry(boundary)
                heads.check(boundary.path, self._tp, self._options.kv_replication)
                self._heads[boundary.path] = heads
        parameters = {path: self._spec(record, whole_regions) for path, record in self._inventory.parameters.items()}
        return Filled(parameters, self._heads)

    def _whole_regions(self) -> Dict[str, str]:
        """Regions that an override keeps whole: one whole weight makes the whole region whole, since its other weights
        would meet activations of the wrong width."""
        whole = {}
        for boundary in self._boundaries.values():
            for path in boundary.members:
                word = self._overrides.replicates(path)
                part = self._decisions[path].part
                if word and part not in (evidence.NORM_SCALE, evidence.OTHER):
                    whole.setdefault(boundary.path, word)
        return whole

    def _geometry(self, boundary: Boundary) -> HeadGeometry:
        shapes = {}
        for path in boundary.members:
            record = self._inventory.parameters[path]
            if len(record.shape) == 2:
                shapes[self._decisions[path].part] = record.shape[::-1] if record.layout == IN_OUT else record.shape
        module = self._inventory.modules.get(boundary.path)
        return find_heads(boundary.path, shapes, self._inventory.facts, module.counts if module else {})

    def _spec(self, record: ParameterRecord, whole_regions: Mapping[str, str]) -> ParameterSpec:
        decision = self._decisions[record.path]
        region = innermost_region(record.path, self._boundaries)
        override = self._overrides.replicates(record.path) or whole_regions.get(decision.region)
        reasons = decision.reasons
        cut, why = (None, None) if override or self._tp == 1 else self._cut(record, decision)
        if override:
            reasons = (f"kept whole by override '{override}'",) + reasons
        slice_map = SliceMap(record.shape, (cut,)) if cut else SliceMap.whole(record.shape)
        placement: NamedPlacement = {AXIS: Shard(cut.dim)} if cut else dict(_WHOLE)
        copies = max((section.copies for section in cut.sections), default=1) if cut else 1
        return ParameterSpec(
            record.path, record.shape, record.dtype, decision.role.name, placement, slice_map, copies,
            self._grad_sum_axes(record, decision, region, whole_regions, cut), not record.trainable, record.aliases,
            reasons + ((why,) if why else ()), decision.rejected)

    def _cut(self, record: ParameterRecord, decision: Decision) -> Tuple[Optional[Cut], Optional[str]]:
        part = decision.part
        if decision.role in (ParamRole.BIAS, ParamRole.NORM, ParamRole.REPLICATED, ParamRole.SKIP):
            return None, None
        rows_dim = 1 if record.layout == IN_OUT and len(record.shape) == 2 else 0
        if part in (evidence.QUERY, evidence.KEY, evidence.VALUE, evidence.QKV, evidence.ATTENTION_OUT):
            return self._attention_cut(record, decision, rows_dim)
        if part in (evidence.GATE, evidence.UP):
            return self._plain(record, rows_dim), None
        if part == evidence.DOWN:
            return self._plain(record, 1 - rows_dim), None
        if part == evidence.GATE_UP:
            layout, why = fused_layout.choose_layout(record.path, part, self._inventory.facts,
                                                     self._overrides.fused_layout(record.path))
            pairs = record.shape[rows_dim] // 2
            self._check_divides(record.path, pairs, "gate/up pairs", KEY_OF["ffn_size"])
            return fused_layout.gate_up_cut(layout, pairs, self._tp, rows_dim), f"rows are {layout}: {why}"
        if part in (evidence.TOKENS, evidence.HEAD):
            return self._vocabulary_cut(record), None
        return None, None

    def _attention_cut(self, record, decision, rows_dim) -> Tuple[Cut, Optional[str]]:
        heads = self._heads[decision.region]
        if decision.part == evidence.QKV:
            layout, why = fused_layout.choose_layout(record.path, evidence.QKV, self._inventory.facts,
                                                     self._overrides.fused_layout(record.path))
            if layout == "per_head" and heads.heads != heads.kv_heads:
                raise ValueError(f"{record.path!r}: layout per_head needs as many kv heads as heads, got "
                                 f"{heads.kv_heads} and {heads.heads}; use per_group")
            return fused_layout.qkv_cut(layout, heads.heads, heads.kv_heads, heads.head_dim, self._tp,
                                        rows_dim), f"rows are {layout}: {why}"
        if decision.part in (evidence.KEY, evidence.VALUE):
            return slice_layouts.kv_heads_alone(heads.heads, heads.kv_heads, heads.head_dim, self._tp, rows_dim), None
        dim = 1 - rows_dim if decision.part == evidence.ATTENTION_OUT else rows_dim
        return self._plain(record, dim, heads.head_dim), None

    def _plain(self, record: ParameterRecord, dim: int, unit: int = 1) -> Cut:
        self._check_divides(record.path, record.shape[dim] // unit, "units" if unit > 1 else f"rows of dim {dim}",
                            KEY_OF["ffn_size"])
        return SliceMap.plain(record.shape, dim, self._tp, AXIS, unit).cuts[0]

    def _vocabulary_cut(self, record: ParameterRecord) -> Cut:
        rows = record.shape[0]
        if rows % self._tp and not self._options.vocab_padding:
            valid = [size for size in range(1, rows + 1) if rows % size == 0][:8]
            raise ValueError(f"{record.path!r}: a vocabulary of {rows} is not divisible by a tensor parallel size of "
                             f"{self._tp}; valid sizes: {', '.join(map(str, valid))} …, or set "
                             "auto_tp_config.vocab_padding: true")
        return SliceMap.plain(record.shape, 0, self._tp, AXIS, pad=True).cuts[0]

    def _check_divides(self, path: str, count: int, what: str, key: str):
        if count % self._tp:
            valid = [size for size in range(1, count + 1) if count % size == 0]
            raise ValueError(
                f"{path!r}: {count} {what} ({key}) are not divisible by a tensor parallel size of {self._tp}; valid "
                f"sizes: {', '.join(map(str, valid))}. Change parallel_config.model_parallel, or keep the module whole "
                f"with auto_tp_config.overrides: [{{match: \"{path}\", replicate: true}}]")

    def _grad_sum_axes(self, record, decision, region, whole_regions, cut) -> Tuple[str, ...]:
        """A whole parameter's gradient is partial when it is used between a region's entry and exit, or on a part of
        the sequence. A norm over a dim that is cut is another matter, and refused."""
        if cut or self._tp == 1:
            return ()
        inside = region is not None and region.path not in whole_regions
        if inside and decision.role is ParamRole.NORM and region.kind == templates.ATTENTION:
            heads = self._heads[region.path]
            if record.shape[0] != heads.head_dim and heads.heads > 1:
                raise ValueError(
                    f"{record.path!r} of {record.shape[0]} elements stands inside {region.path!r}, whose heads have "
                    f"{heads.head_dim}: a norm across heads needs the mean over all ranks, which this version has no "
                    f"template for; keep the attention whole with auto_tp_config.overrides: "
                    f"[{{match: \"{region.path}.*\", replicate: true}}]")
            return (AXIS,)
        if inside and decision.role is not ParamRole.BIAS:
            return (AXIS,)
        on_sequence_part = (decision.role is ParamRole.BIAS and inside) or (region is None and any(
            record.owner == module or record.owner.startswith(f"{module}.") for module in self._on_sequence))
        return (AXIS,) if on_sequence_part and self._options.sequence_parallel else ()
