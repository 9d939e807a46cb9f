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
"""Where the bytes of a weight live: by the dim its part is cut in, in units that its region understands."""
from typing import Dict, Optional, Tuple

from hyper_parallel.core.dtensor import slice_layouts
from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.model_facts import KEY_OF
from hyper_parallel.distributed.overrides import Overrides, PlanOptions
from hyper_parallel.distributed.tensor_parallel import fused_layout, parts, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry
from hyper_parallel.distributed.tensor_parallel.state_space import StateGeometry
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

WITHIN_HEADS = (parts.QUERY, parts.KEY, parts.VALUE, parts.QKV, parts.KEY_VALUE, parts.ATTENTION_OUT, parts.HEAD_GATE,
                parts.HEAD_VECTOR, parts.HEAD_TABLE)


class WeightCuts:
    """Cuts of the weights of one plan.

    Args:
        inventory: the model.
        options: the switches.
        overrides: the user's words.
        heads: geometry of the attentions that are cut, by the region's path.
        states: geometry of the state-space layers that are cut, by the region's path.
    """

    def __init__(self, inventory: Inventory, options: PlanOptions, overrides: Overrides,
                 heads: Dict[str, HeadGeometry], states: Dict[str, StateGeometry]):
        self._inventory = inventory
        self._options = options
        self._overrides = overrides
        self._tp = options.tp
        self._heads = heads
        self._states = states

    def cut(self, record: ParameterRecord, decision: Decision, region) -> Tuple[Optional[Cut], Optional[str]]:
        """The cut of a weight, None where it is whole, and the evidence for its layout.

        Raises:
            ValueError: a size that tp does not divide, or nothing says what meets the weight.
        """
        part, dims = decision.part, len(record.shape)
        out_dim = dims - 1 if decision.transposed else max(0, dims - 2)
        in_dim = max(0, dims - 2) if decision.transposed else dims - 1
        if part in (parts.TOKENS, parts.HEAD):
            return self._vocabulary_cut(record, out_dim if part == parts.HEAD else 0), None
        if part in WITHIN_HEADS:
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
