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
import re
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from hyper_parallel.core.dtensor import slice_layouts
from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Replicate, Shard
from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.boundaries import Boundary, innermost_region
from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.model_facts import KEY_OF
from hyper_parallel.distributed.overrides import Overrides, PlanOptions
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.distributed.tensor_parallel import fused_layout, parts, side_tensors, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry, find_heads
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.state_space import StateGeometry, find_state

AXIS = "tp"
_WHOLE: NamedPlacement = {AXIS: Replicate()}
_ATTENTIONS = (templates.ATTENTION, templates.CROSS_ATTENTION, templates.LATENT_ATTENTION)
_WHOLE_ROLES = (ParamRole.REPLICATED, ParamRole.SKIP, ParamRole.MOE_GATE)
_WITHIN_HEADS = (parts.QUERY, parts.KEY, parts.VALUE, parts.QKV, parts.KEY_VALUE, parts.ATTENTION_OUT, parts.HEAD_GATE,
                 parts.HEAD_VECTOR, parts.HEAD_TABLE)
# names of norms of queries and keys, and of what lies between the heads and the output projection
_OVER_HEADS = re.compile(r"(^|_)(q|k|qk|query|key|sub|inner)(_|$|norm|ln|layernorm)")
_DECIDES_REGION = _WITHIN_HEADS + parts.MLP_PARTS + (parts.STATE_IN, parts.STATE_OUT, parts.TOKENS, parts.HEAD)


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
        self._sharded_norms: List[str] = []

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
            if boundary.kind in _ATTENTIONS:
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
        return Filled({path: specs[path] for path in records}, self._heads, whole_regions, tuple(self._sharded_norms))

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

    def _weights(self, boundary: Boundary) -> List[str]:
        return [path for path in boundary.members if not self._decisions[path].of
                and not self._decisions[path].is_bias and not self._decisions[path].factor
                and len(self._inventory.parameters[path].shape) >= 2]

    def _geometry(self, boundary: Boundary) -> HeadGeometry:
        shapes = {self._decisions[path].part: self._logical(path) for path in self._weights(boundary)}
        module = self._inventory.modules.get(boundary.path) or self._inventory.modules.get(
            boundary.entries[0] if boundary.entries else "")
        return find_heads(boundary.path, shapes, self._inventory.facts_of(boundary.path),
                          module.counts if module else {})

    def _state(self, boundary: Boundary) -> StateGeometry:
        weights = self._weights(boundary)
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
            return self._side_cut(record, decision), None
        if decision.is_bias and decision.of:
            return self._bias_cut(record, decision), None
        if decision.role is ParamRole.NORM or decision.part == parts.STATE_NORM:
            return self._norm_cut(record, decision, region), None
        return self._weight_cut(record, decision, region)

    @staticmethod
    def _is_first_rank_bias(decision: Decision) -> bool:
        """The bias of an expert's row weight: routing multiplies it before the reduction, so that it cannot wait."""
        return decision.is_bias and decision.part == parts.DOWN and decision.role in (ParamRole.MOE_EXPERT,
                                                                                      ParamRole.SHARED_EXPERT)

    def _bias_cut(self, record: ParameterRecord, decision: Decision) -> Optional[Cut]:
        """A bias follows the output rows of its weight."""
        base = self._cuts.get(decision.of)
        shape = self._inventory.parameters[decision.of].shape
        out_dim = len(shape) - 1 if decision.transposed else max(0, len(shape) - 2)
        if decision.part == parts.STATE_CONV:
            out_dim = 0  # a convolution is [channels, 1, width]
        if base is None or (base.dim != out_dim and decision.part in parts.ROW_PARTS):
            return None
        assert base.dim == out_dim, f"{record.path}: its weight is cut in dim {base.dim}, its output is dim {out_dim}"
        return _along(base, len(record.shape) - 1)

    def _side_cut(self, record: ParameterRecord, decision: Decision) -> Optional[Cut]:
        """Low-rank factors follow the dim that they share with the weight; scales follow its blocks."""
        base = self._cuts.get(decision.of)
        if base is None:
            return None
        shape = self._inventory.parameters[decision.of].shape
        if decision.factor == "scale":
            return self._scale_cut(record, shape, base)
        dim = {"a": len(record.shape) - 1, "b": 0}.get(
            decision.factor, max(range(len(record.shape)), key=lambda dim: record.shape[dim]))
        if record.shape[dim] != shape[base.dim]:
            raise ValueError(f"{record.path!r} {list(record.shape)} does not fit the weight {decision.of!r} "
                             f"{list(shape)} that it adapts: {record.shape[dim]} and {shape[base.dim]} differ")
        return _along(base, dim)

    def _scale_cut(self, record: ParameterRecord, shape, base: Cut) -> Optional[Cut]:
        block = side_tensors.scale_block(shape, record.shape, self._inventory.facts.quantised_block)
        if not record.shape or base.dim >= len(record.shape) or block is None or record.shape[base.dim] == 1:
            return None
        rows = block[base.dim]
        sections = []
        for section in base.sections:
            per_rank = section.padded * section.copies // base.sharers
            if section.rows % rows or per_rank % rows:
                raise ValueError(
                    f"{record.path!r}: blocks of {rows} rows share a scale, and a tensor parallel size of {self._tp} "
                    f"cuts {per_rank} rows a rank: choose parallel_config.model_parallel so that {rows} divides "
                    f"{section.rows} / model_parallel, or keep the module whole with auto_tp_config.overrides")
            sections.append(replace(section, rows=section.rows // rows, unit=max(1, section.unit // rows),
                                    padding=section.padding // rows))
        return Cut(AXIS, base.dim, self._tp, tuple(sections), base.blocks)

    def _check_is_over_heads(self, record: ParameterRecord, region):
        """A norm as wide as the residual stream may stand on it (ALBERT's, behind the residual), or on all heads.

        Raises:
            ValueError: neither its width nor its name says on which.
        """
        hidden = self._inventory.facts_of(record.path).hidden_size
        if record.shape[0] == hidden and not _OVER_HEADS.search(record.owner.rpartition(".")[2].lower()):
            raise ValueError(
                f"{record.path!r} of {hidden} elements stands inside {region.path!r}, and nothing says whether it norms "
                "all heads (then it is cut with them) or the residual stream (then it is whole, and the attention is more "
                "than a region); keep the attention whole with auto_tp_config.overrides: "
                f"[{{match: \"{region.path}.*\", replicate: true}}]")

    def _norm_cut(self, record: ParameterRecord, decision: Decision, region) -> Optional[Cut]:
        if region is None or not region.holds(record.path):
            return None
        if region.kind == templates.STATE_SPACE:
            cut = self._states[region.path].vector_cut(record.shape, self._tp) \
                if decision.part == parts.STATE_NORM else None
            if cut is not None and record.leaf != "bias":
                self._sharded_norms.append(record.path)
            return cut
        heads = self._heads.get(region.path)
        if heads is None or heads.is_latent or region.kind not in _ATTENTIONS:
            return None
        size = record.shape[0]
        if len(record.shape) == 2:  # a norm of its own for every head
            if size == heads.heads:
                return SliceMap.plain(record.shape, 0, self._tp, AXIS).cuts[0]
            if size == heads.kv_heads:
                return slice_layouts.kv_heads_alone(heads.heads, heads.kv_heads, 1, self._tp, 0)
        if size in (heads.head_dim, heads.value_dim) and heads.heads > 1:
            if any(segment.isdigit() for segment in record.owner[len(region.path):].split(".")):
                raise ValueError(f"{record.owner!r} is one of a list of norms, one for each head, which this version "
                                 f"cannot cut; keep the attention whole with auto_tp_config.overrides: "
                                 f"[{{match: \"{region.path}.*\", replicate: true}}]")
            return None
        self._check_is_over_heads(record, region)
        if size == heads.heads * heads.head_dim:
            cut = SliceMap.plain(record.shape, 0, self._tp, AXIS, heads.head_dim).cuts[0]
        elif size == heads.kv_heads * heads.head_dim:
            cut = slice_layouts.kv_heads_alone(heads.heads, heads.kv_heads, heads.head_dim, self._tp, 0)
        elif size == heads.heads * heads.value_dim:
            cut = SliceMap.plain(record.shape, 0, self._tp, AXIS, heads.value_dim).cuts[0]
        else:
            raise ValueError(
                f"{record.path!r} of {size} elements stands inside {region.path!r}, whose {heads.heads} heads have "
                f"{heads.head_dim} each and whose {heads.kv_heads} kv heads as many: it is neither one head nor all of "
                f"them; keep the attention whole with auto_tp_config.overrides: "
                f"[{{match: \"{region.path}.*\", replicate: true}}]")
        if record.leaf != "bias":
            self._sharded_norms.append(record.path)
        return cut

    def _weight_cut(self, record: ParameterRecord, decision: Decision, region) -> Tuple[Optional[Cut], Optional[str]]:
        part, dims = decision.part, len(record.shape)
        out_dim = dims - 1 if decision.transposed else max(0, dims - 2)
        in_dim = max(0, dims - 2) if decision.transposed else dims - 1
        if part in (parts.TOKENS, parts.HEAD):
            return self._vocabulary_cut(record, out_dim if part == parts.HEAD else 0), None
        if part in _WITHIN_HEADS:
            heads = self._heads.get(region.path) if region else None
            if heads is None:
                raise ValueError(self._without_region(record, decision))
            return self._attention_cut(record, decision, heads, out_dim, in_dim)
        if part in parts.STATE_PARTS:
            return self._state_cut(record, decision, region, out_dim, in_dim), None
        if part in parts.MLP_PARTS and part != parts.CHANNEL_GATE:
            if region is None:
                raise ValueError(self._without_region(record, decision))
            return self._feed_forward_cut(record, decision, out_dim, in_dim)
        return None, None

    @staticmethod
    def _without_region(record: ParameterRecord, decision: Decision) -> str:
        return (f"{record.path!r} has role {decision.role.name} ({decision.reasons[0]}), and no region around it says "
                f"what meets it; keep it whole with auto_tp_config.overrides: "
                f"[{{match: \"{record.path}\", replicate: true}}]")

    def _feed_forward_cut(self, record, decision: Decision, out_dim: int, in_dim: int):
        part, stacked = decision.part, decision.stacked
        dim = in_dim if part == parts.DOWN else out_dim
        is_stacked_dim = stacked > 1 and (record.shape[dim] % stacked == 0) and dim == 0
        if part == parts.GATE_UP:
            layout, why = fused_layout.choose_layout(
                record.path, part, self._inventory.facts_of(record.path), self._overrides.fused_layout(record.path))
            pairs = record.shape[dim] // 2 // (stacked if is_stacked_dim else 1)
            self._check_divides(record.path, pairs, "gate/up pairs", KEY_OF["ffn_size"])
            return fused_layout.gate_up_cut(layout, pairs, self._tp, dim, stacked if is_stacked_dim else 1), \
                f"rows are {layout}: {why}"
        if is_stacked_dim:
            rows = record.shape[dim] // stacked
            self._check_divides(record.path, rows, "rows of an expert", KEY_OF["ffn_size"])
            return Cut(AXIS, dim, self._tp, (Section(rows),) * stacked), f"{stacked} experts one below the other"
        return self._plain(record, dim), None

    def _attention_cut(self, record, decision, heads: HeadGeometry, out_dim: int, in_dim: int):
        part = decision.part
        if part == parts.QKV:
            layout, why = fused_layout.choose_layout(record.path, parts.QKV, self._inventory.facts_of(record.path),
                                                     self._overrides.fused_layout(record.path))
            if layout in ("per_head", "four_blocks") and heads.heads != heads.kv_heads:
                raise ValueError(f"{record.path!r}: layout {layout} needs as many kv heads as heads, got "
                                 f"{heads.kv_heads} and {heads.heads}; use per_group")
            return fused_layout.qkv_cut(layout, heads.heads, heads.kv_heads, heads.head_dim, self._tp,
                                        out_dim), f"rows are {layout}: {why}"
        if part in (parts.KEY, parts.VALUE):
            size = heads.head_dim if part == parts.KEY else heads.value_dim
            return slice_layouts.kv_heads_alone(heads.heads, heads.kv_heads, size, self._tp, out_dim), None
        if part == parts.KEY_VALUE:
            layout, why = ("per_head", "latent attention") if heads.is_latent else fused_layout.choose_layout(
                record.path, part, self._inventory.facts, self._overrides.fused_layout(record.path))
            return fused_layout.key_value_cut(layout, heads.heads, heads.kv_heads, record.shape[out_dim], self._tp,
                                              out_dim), f"rows are {layout}: {why}"
        if part == parts.QUERY and heads.query_unit == 2 * heads.head_dim and not heads.is_latent:
            layout, why = fused_layout.choose_layout(record.path, part, self._inventory.facts,
                                                     self._overrides.fused_layout(record.path))
            if layout == "query_gate_halves":
                half = Section(heads.heads * heads.head_dim, heads.head_dim)
                return Cut(AXIS, out_dim, self._tp, (half, half)), f"rows are {layout}: {why}"
            return slice_layouts.query_gate_per_head(heads.heads, heads.head_dim, self._tp, out_dim), \
                f"rows are {layout}: {why}"
        if part == parts.HEAD_TABLE:
            out_dim = len(record.shape) - 1 if record.shape[-1] == heads.heads else 0
        dim = in_dim if part == parts.ATTENTION_OUT else out_dim
        rows = record.shape[dim]
        if rows % heads.heads or (part in (parts.HEAD_VECTOR, parts.HEAD_TABLE) and rows != heads.heads):
            raise ValueError(f"{record.path!r}: dim {dim} of {list(record.shape)} is no whole number for {heads.heads} "
                             f"heads ({KEY_OF['heads']})")
        return self._plain(record, dim, rows // heads.heads), None

    def _state_cut(self, record, decision, region, out_dim: int, in_dim: int) -> Optional[Cut]:
        part = decision.part
        if part == parts.STATE_MIX:
            return None
        state = self._states.get(region.path) if region else None
        if state is None:  # RWKV's time mixing: one decay per channel of a plain column weight
            return self._plain(record, 0) if region is not None and region.kind == templates.MLP else None
        if part == parts.STATE_CONV:
            return state.convolution_cut(self._tp)
        if part in (parts.STATE_OUT, parts.STATE_SMALL):
            dim = in_dim
            return Cut(AXIS, dim, self._tp, (Section(record.shape[dim], max(1, state.inner // state.heads)
                                                     if state.heads > 1 else 1),))
        if part == parts.STATE_IN:
            cut = state.input_cut(record.shape[out_dim], self._tp, out_dim)
            if cut is not None:
                return cut
        elif part == parts.STATE_STEP and record.shape[out_dim] == state.inner:
            return self._plain(record, out_dim)
        else:
            cut = state.vector_cut(record.shape, self._tp)
            if cut is not None:
                return cut
        raise ValueError(f"{record.path!r} {list(record.shape)}: its rows fit nothing of a {state.kind} layer of inner "
                         f"width {state.inner} and {state.heads} heads; keep it whole with auto_tp_config.overrides: "
                         f"[{{match: \"{region.path}.*\", replicate: true}}]")

    def _plain(self, record: ParameterRecord, dim: int, unit: int = 1) -> Cut:
        self._check_divides(record.path, record.shape[dim] // unit, "units" if unit > 1 else f"rows of dim {dim}",
                            KEY_OF["ffn_size"])
        return SliceMap.plain(record.shape, dim, self._tp, AXIS, unit).cuts[0]

    def _vocabulary_cut(self, record: ParameterRecord, dim: int) -> Cut:
        rows = record.shape[dim]
        if rows % self._tp and not self._options.vocab_padding:
            valid = [size for size in range(1, rows + 1) if rows % size == 0][:8]
            raise ValueError(f"{record.path!r}: a vocabulary of {rows} is not divisible by a tensor parallel size of "
                             f"{self._tp}; valid sizes: {', '.join(map(str, valid))} …, or set "
                             "auto_tp_config.vocab_padding: true")
        return SliceMap.plain(record.shape, dim, self._tp, AXIS, pad=True).cuts[0]

    def _check_divides(self, path: str, count: int, what: str, key: str):
        if count % self._tp:
            valid = [size for size in range(1, count + 1) if count % size == 0]
            raise ValueError(
                f"{path!r}: {count} {what} ({key}) are not divisible by a tensor parallel size of {self._tp}; valid "
                f"sizes: {', '.join(map(str, valid))}. Change parallel_config.model_parallel, or keep the module whole "
                f"with auto_tp_config.overrides: [{{match: \"{path}\", replicate: true}}]")

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


def _along(base: Cut, dim: int) -> Cut:
    """The same rows of another tensor's dim."""
    return base if base.dim == dim else replace(base, dim=dim)
