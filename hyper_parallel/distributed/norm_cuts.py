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
"""Where the bytes of a norm inside a region live: whole on one head, cut with what is cut.

A norm over a dim that is cut (all heads, a feed-forward layer's inner width) needs the mean square of all ranks.
"""
import re
from typing import Dict, List, Mapping, Optional

from hyper_parallel.core.dtensor import slice_layouts
from hyper_parallel.core.dtensor.slice_cut import Cut
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.tensor_parallel import parts, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.head_geometry import HeadGeometry
from hyper_parallel.distributed.tensor_parallel.state_space import StateGeometry
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

ATTENTIONS = (templates.ATTENTION, templates.CROSS_ATTENTION, templates.LATENT_ATTENTION)
# names of norms of queries and keys, and of what lies between the heads and the output projection
_OVER_HEADS = re.compile(r"(^|_)(q|k|qk|query|key|sub|inner)(_|$|norm|ln|layernorm)")


class NormCuts:
    """Cuts of the norms of one plan.

    Args:
        inventory: the model.
        decisions: what each parameter is.
        tp: size of the axis.
        heads: geometry of the attentions that are cut, by the region's path.
        states: geometry of the state-space layers that are cut, by the region's path.
    """

    def __init__(self, inventory: Inventory, decisions: Mapping[str, Decision], tp: int,
                 heads: Dict[str, HeadGeometry], states: Dict[str, StateGeometry]):
        self._inventory = inventory
        self._decisions = decisions
        self._tp = tp
        self._heads = heads
        self._states = states
        self.over_cut_dim: List[str] = []

    def cut(self, record: ParameterRecord, decision: Decision, region) -> Optional[Cut]:
        """The cut of a norm, None where it is whole; notes the norm in `over_cut_dim` where it needs all ranks.

        Raises:
            ValueError: nothing says over what the norm runs.
        """
        if region is None or not region.holds(record.path):
            return None
        if region.kind == templates.STATE_SPACE:
            return self._of_state(record, region) if decision.part == parts.STATE_NORM else None
        if region.kind not in ATTENTIONS:
            return self._of_feed_forward(record, region)
        heads = self._heads.get(region.path)
        return None if heads is None or heads.is_latent else self._of_heads(record, region, heads)

    def _of_state(self, record: ParameterRecord, region) -> Optional[Cut]:
        state = self._states[region.path]
        cut = state.vector_cut(record.shape, self._tp)
        if cut is None:
            return None
        over = "whole" if state.groups == 1 else find_adapter(self._inventory.facts).state_norm
        if over is None or (over == "groups" and state.groups % self._tp):
            why = "it norms each of them by itself, and a rank would hold a part of one" if over else \
                "nothing says whether it norms each of them by itself or all of them"
            raise ValueError(f"{record.path!r} stands on the {state.groups} groups (n_groups) of {region.path!r}, and "
                             f"{why}; keep the layer whole with auto_tp_config.overrides: "
                             f"[{{match: \"{region.path}.*\", replicate: true}}]")
        if over == "whole":
            self._note(record)
        return cut

    def _of_feed_forward(self, record: ParameterRecord, region) -> Optional[Cut]:
        """A norm between the column weights and the row weight is as wide as what the row weight reads."""
        around = record.owner.rpartition(".")[0]
        rows = [path for path in region.members if self._decisions[path].part == parts.DOWN
                and not self._decisions[path].of and not self._decisions[path].is_bias
                and not self._decisions[path].factor]
        near = [path for path in rows if path.startswith(f"{around}.")] or rows
        widths = {shape[-2] if self._decisions[path].transposed else shape[-1]
                  for path, shape in ((path, self._inventory.parameters[path].shape) for path in near)}
        if record.shape[0] not in widths:
            return None
        self._check_is_over_cut_dim(record, region, "the layer's inner width")
        self._note(record)
        return SliceMap.plain(record.shape, 0, self._tp, AXIS).cuts[0]

    def _note(self, record: ParameterRecord):
        if record.leaf != "bias":
            self.over_cut_dim.append(record.path)

    def _of_heads(self, record: ParameterRecord, region, heads: HeadGeometry) -> Optional[Cut]:
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
        self._check_is_over_cut_dim(record, region, "all heads")
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
        self._note(record)
        return cut

    def _check_is_over_cut_dim(self, record: ParameterRecord, region, what: str):
        """A norm as wide as the residual stream may stand on it (ALBERT's, behind the residual), or on what is cut.

        Raises:
            ValueError: neither its width nor its name says on which.
        """
        hidden = self._inventory.facts_of(record.path).hidden_size
        if record.shape[0] == hidden and not _OVER_HEADS.search(record.owner.rpartition(".")[2].lower()):
            raise ValueError(
                f"{record.path!r} of {hidden} elements stands inside {region.path!r}, and nothing says whether it norms"
                f" {what} (then it is cut) or the residual stream (then it is whole, and the module is more "
                "than a region); keep it whole with auto_tp_config.overrides: "
                f"[{{match: \"{region.path}.*\", replicate: true}}]")
