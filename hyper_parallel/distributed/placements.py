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
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard
from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.boundaries import Boundary, innermost_region
from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.norm_cuts import ATTENTIONS, NormCuts
from hyper_parallel.distributed.overrides import Overrides, PlanOptions
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.distributed.side_cuts import bias_cut, factor_cut
from hyper_parallel.distributed.tensor_parallel import parts, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry, find_heads
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.state_space import StateGeometry, find_state
from hyper_parallel.distributed.tensor_parallel.templates import AXIS
from hyper_parallel.distributed.weight_cuts import WITHIN_HEADS, WeightCuts

_WHOLE: NamedPlacement = {AXIS: Replicate()}
_WHOLE_ROLES = (ParamRole.REPLICATED, ParamRole.SKIP, ParamRole.MOE_GATE)
_DECIDES_REGION = WITHIN_HEADS + parts.MLP_PARTS + (parts.STATE_IN, parts.STATE_OUT, parts.TOKENS, parts.HEAD)


@dataclass(frozen=True)
class Filled:
    """The parameters' specs, and the head geometry of each attention that is cut."""

    parameters: Dict[str, ParameterSpec]
    heads: Dict[str, HeadGeometry]
    whole_regions: Dict[str, str]
    sharded_norms: Tuple[str, ...]


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
        self._states: Dict[str, StateGeometry] = {}
        self._region_of: Dict[str, Optional[Boundary]] = {}
        self._cuts: Dict[str, Optional[Cut]] = {}
        self._weights = WeightCuts(inventory, options, overrides, self._heads, self._states)
        self._norms = NormCuts(inventory, decisions, options.tp, self._heads, self._states)

    def fill(self) -> Filled:
        """Every parameter's spec, in the inventory's order.

        Raises:
            ValueError: a size that tp does not divide; the message gives the valid ones.
        """
        self._member_of = {path: boundary for boundary in self._boundaries.values() for path in boundary.members
                           if boundary.kind not in (templates.EMBEDDING, templates.LM_HEAD)
                           or self._decisions[path].part in (parts.TOKENS, parts.HEAD)}
        self._region_of = {path: innermost_region(path, self._boundaries) for path in self._decisions}
        whole_regions = self._whole_regions()
        for boundary in self._boundaries.values():
            if self._tp == 1 or boundary.path in whole_regions:
                continue
            if boundary.kind in ATTENTIONS:
                heads = self._geometry(boundary)
                heads.check(boundary.path, self._tp, self._options.kv_replication)
                self._heads[boundary.path] = heads
                if heads.is_latent:
                    boundary.kind = templates.LATENT_ATTENTION
            elif boundary.kind == templates.STATE_SPACE:
                self._states[boundary.path] = self._state(boundary)
        records = self._inventory.parameters
        weights_first = sorted(records, key=lambda path: bool(self._decisions[path].of))
        specs = {path: self._spec(records[path], whole_regions) for path in weights_first}
        return Filled({path: specs[path] for path in records}, self._heads, whole_regions,
                      tuple(self._norms.over_cut_dim))

    def _whole_regions(self) -> Dict[str, str]:
        """Regions that an override keeps whole: one whole weight makes the whole region whole, since its other weights
        would meet activations of the wrong width."""
        whole = {}
        for boundary in self._boundaries.values():
            for path in boundary.members:
                word = self._overrides.replicates(path)
                decision = self._decisions[path]
                if word and decision.part in _DECIDES_REGION and not decision.is_bias and not decision.factor:
                    whole.setdefault(boundary.path, word)
        return whole

    def _logical(self, path: str) -> Tuple[int, int]:
        """(out, in) of a weight."""
        shape, decision = self._inventory.parameters[path].shape, self._decisions[path]
        return tuple(shape[-2:][::-1]) if decision.transposed else tuple(shape[-2:])

    def _weights_of(self, boundary: Boundary) -> List[str]:
        return [path for path in boundary.members if not self._decisions[path].of
                and not self._decisions[path].is_bias and not self._decisions[path].factor
                and len(self._inventory.parameters[path].shape) >= 2]

    def _geometry(self, boundary: Boundary) -> HeadGeometry:
        shapes = {self._decisions[path].part: self._logical(path) for path in self._weights_of(boundary)}
        module = self._inventory.modules.get(boundary.path) or self._inventory.modules.get(
            boundary.entries[0] if boundary.entries else "")
        return find_heads(boundary.path, shapes, self._inventory.facts_of(boundary.path),
                          module.counts if module else {})

    def _state(self, boundary: Boundary) -> StateGeometry:
        weights = self._weights_of(boundary)
        inner = next(self._logical(path)[1] for path in weights if self._decisions[path].part == parts.STATE_OUT)
        inputs = [self._logical(path) for path in weights if self._decisions[path].part == parts.STATE_IN]
        convolution = next((self._inventory.parameters[path].shape[0] for path in weights
                            if self._decisions[path].part == parts.STATE_CONV), None)
        state = find_state(boundary.path, inputs, convolution, inner, self._inventory.facts)
        state.check(self._tp)
        return state

    def _spec(self, record: ParameterRecord, whole_regions: Mapping[str, str]) -> ParameterSpec:
        decision = self._decisions[record.path]
        region = self._member_of.get(record.path) or self._region_of[record.path]
        override = self._overrides.replicates(record.path) or (whole_regions.get(region.path) if region else None)
        reasons = decision.reasons
        cut, why = (None, None) if override or self._tp == 1 else self._cut_of(record, decision, region)
        if override and region is not None and region.path not in whole_regions:
            self._check_may_be_whole(record, decision, region, override)
        placed = self._overrides.placement(record.path)
        if placed is not None and not override and self._tp > 1:
            self._check_said(record, placed, cut)
            why = "; ".join(filter(None, (f"user override placement '{placed[0]}'", why)))
        self._cuts[record.path] = cut
        if override:
            reasons = (f"kept whole by override '{override}'",) + reasons
        slice_map = SliceMap.of(record.shape, cut) if cut else SliceMap.whole(record.shape)
        placement: NamedPlacement = {AXIS: Shard(cut.dim)} if cut else dict(_WHOLE)
        copies = max((section.copies for section in cut.sections), default=1) if cut else 1
        first_rank = self._is_first_rank_bias(decision) and cut is not None
        return ParameterSpec(
            record.path, record.shape, record.dtype, decision.role.name, placement, slice_map, copies,
            self._grad_sum_axes(record, decision, whole_regions, cut), not record.trainable, record.aliases,
            reasons + ((why,) if why else ()), decision.rejected, first_rank)

    def _check_may_be_whole(self, record: ParameterRecord, decision: Decision, region, override: str):
        """What follows a weight that is cut cannot be whole beside it.

        Raises:
            ValueError: names the parameter and what it follows.
        """
        decides = decision.part in (parts.TOKENS, parts.HEAD) and not decision.is_bias
        if self._tp == 1 or decides or self._cut_of(record, decision, region)[0] is None:
            return
        leader = decision.of or region.path
        raise ValueError(f"auto_tp_config.overrides: {override!r} keeps {record.path!r} whole, but it follows "
                         f"{leader!r}, which is cut: keep that whole as well, or neither")

    @staticmethod
    def _check_said(record: ParameterRecord, placed, cut: Optional[Cut]):
        """A placement is a word that has to agree: what meets the weight is decided by its region.

        Raises:
            ValueError: the region wants another dim, or the whole.
        """
        word, placement = placed
        wanted = "whole" if cut is None else f"cut in dim {cut.dim}"
        if not -len(record.shape) <= placement.dim < len(record.shape):
            raise ValueError(f"auto_tp_config.overrides: {word!r}: {record.path!r} of shape {list(record.shape)} has "
                             f"no dim {placement.dim}; valid: 0 to {len(record.shape) - 1}")
        if cut is None or placement.dim % len(record.shape) != cut.dim:
            raise ValueError(
                f"auto_tp_config.overrides: {word!r} places {record.path!r} in {placement}, but what meets it in its "
                f"region wants it {wanted}: say what the parameter is with auto_tp_config.rules, or keep it "
                "whole with replicate")

    def _cut_of(self, record: ParameterRecord, decision: Decision, region) -> Tuple[Optional[Cut], Optional[str]]:
        if self._is_first_rank_bias(decision):
            rows = record.shape[0]
            return Cut(AXIS, 0, self._tp, (Section(rows, rows, padding=rows * (self._tp - 1)),)), \
                "kept on the first rank, zeros elsewhere: it is added before the reduction"
        if decision.role in (ParamRole.BIAS,) + _WHOLE_ROLES:
            return None, None
        if decision.factor:
            return factor_cut(record, decision, self._cuts.get(decision.of), self._shape_of(decision.of),
                              self._inventory.facts.quantised_block), None
        if decision.is_bias and decision.of:
            return bias_cut(record, decision, self._cuts.get(decision.of), self._shape_of(decision.of)), None
        if decision.role is ParamRole.NORM or decision.part == parts.STATE_NORM:
            return self._norms.cut(record, decision, region), None
        return self._weights.cut(record, decision, region)

    def _shape_of(self, path: str) -> Tuple[int, ...]:
        return self._inventory.parameters[path].shape

    @staticmethod
    def _is_first_rank_bias(decision: Decision) -> bool:
        """The bias of an expert's row weight: routing multiplies it before the reduction, so that it cannot wait."""
        return decision.is_bias and decision.part == parts.DOWN and decision.role in (ParamRole.MOE_EXPERT,
                                                                                      ParamRole.SHARED_EXPERT)

    def _grad_sum_axes(self, record, decision, whole_regions, cut) -> Tuple[str, ...]:
        """A whole parameter's gradient is partial when it is used between a region's entry and exit, or on a part of
        the sequence."""
        if cut or self._tp == 1 or decision.role is ParamRole.SKIP:
            return ()
        region = self._region_of[record.path]
        inside = region is not None and region.path not in whole_regions
        if inside and decision.role is not ParamRole.BIAS:
            return (AXIS,)
        on_sequence_part = (decision.role is ParamRole.BIAS and inside) or (region is None and any(
            record.owner == module or record.owner.startswith(f"{module}.") for module in self._on_sequence))
        return (AXIS,) if on_sequence_part and self._options.sequence_parallel else ()
