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
"""What stands around a unit: its block, its experts, the widths of its tower. Facts that witnesses ask for."""
from collections import Counter
from typing import Dict, List, Optional, Tuple

from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.tensor_parallel import parts, words
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.units import Unit, build_units


class Surroundings:
    """Units of a model, found by path, module and block.

    Args:
        inventory: the model.
    """

    def __init__(self, inventory: Inventory):
        self.inventory = inventory
        self.facts = inventory.facts
        self.adapter = find_adapter(inventory.facts)
        self.units = build_units(inventory.parameters)
        self.by_path = {unit.path: unit for unit in self.units}
        self.by_scope: Dict[str, List[Unit]] = {}
        self.by_block: Dict[str, List[Unit]] = {}
        for unit in self.units:
            self.by_scope.setdefault(unit.scope, []).append(unit)
            self.by_block.setdefault(block_of(unit), []).append(unit)
        self.hidden = self._find_hidden()
        self.expert_scopes = self._find_expert_scopes()
        self.state_scopes = self._find_state_scopes()
        self.block_roots = self._find_block_roots()

    def _find_hidden(self) -> Optional[int]:
        """Width of the residual stream: configured, or the length that most norms have."""
        if self.facts.hidden_size:
            return self.facts.hidden_size
        lengths = Counter(unit.shape[0] for unit in self.units if unit.dims == 1 and unit.name != "bias")
        columns = Counter(unit.shape[1] for unit in self.units if unit.dims == 2)
        both = {length: count for length, count in lengths.items() if length in columns}
        return max(both, key=both.get) if both else (columns.most_common(1)[0][0] if columns else None)

    def width(self, unit: Unit) -> Optional[int]:
        """Width of the residual stream around a unit: the tower's or the language model's."""
        tower = words.vision_segment(unit.segments)
        if tower is not None and self.facts.tower is not None:
            return self.facts.tower.hidden_size
        return self.hidden

    def facts_of(self, unit: Unit):
        """The configuration that speaks for a unit."""
        return self.inventory.facts_of(unit.path)

    def _find_block_roots(self) -> Tuple[str, ...]:
        """The containers of numbered blocks, largest first: `model.layers`. A block holds at least three matrices."""
        matrices: Counter = Counter()
        for unit in self.units:
            numbers = unit.number_segments
            if numbers and unit.dims >= 2:
                matrices[tuple(unit.path.split(".")[:numbers[0] + 1])] += 1
        roots: Counter = Counter()
        for block, count in matrices.items():
            if count >= 3:
                roots[".".join(block[:-1])] += count
        return tuple(root for root, _ in roots.most_common())

    def _find_expert_scopes(self) -> Dict[str, str]:
        """`{scope of an expert's weights: why}` for experts that only structure shows: as many numbered modules of one
        make as the configuration has experts, below a block."""
        experts = self.facts.experts
        found: Dict[str, str] = {}
        if not experts or experts < 2:
            return found
        members: Dict[str, Dict[str, set]] = {}
        for unit in self.units:
            numbers = unit.number_segments
            if len(numbers) < 2:
                continue
            split = unit.path.split(".")
            container = ".".join(split[:numbers[-1]])
            members.setdefault(container, {}).setdefault(split[numbers[-1]], set()).add(
                (".".join(split[numbers[-1] + 1:]), unit.shape))
        for container, by_number in members.items():
            makes = {frozenset(make) for make in by_number.values()}
            if len(by_number) == experts and len(makes) == 1:
                found[container] = f"{experts} numbered modules of one make are the experts"
        return found

    def _find_state_scopes(self) -> Dict[str, str]:
        """Scopes of state-space, gated-delta and short-convolution layers: who has a depthwise convolution or decay."""
        found = {}
        for unit in self.units:
            if unit.name in ("a_log", "time_decay", "time_first"):
                found[unit.scope] = f"'{unit.name}' beside it"
            elif unit.dims >= 3 and unit.shape[1] == 1 and unit.shape[-1] <= 16 and unit.shape[0] > 1 and \
                    words.vision_segment(unit.segments) is None and unit.number_segments:
                found.setdefault(unit.scope, f"depthwise convolution '{unit.name}' beside it")
        for unit in self.units:  # RWKV's channel mixing has no decay of its own
            if unit.name.startswith("time_mix_") and unit.scope not in found:
                found[unit.scope] = f"'{unit.name}' beside it"
        return found

    def stands_outside(self, unit: Unit) -> bool:
        """The unit stands in no numbered block."""
        return not any(unit.path.startswith(f"{root}.") and unit.number_segments for root in self.block_roots)

    def name_part(self, unit: Unit) -> Tuple[Optional[str], str]:
        """`(part, why)` that the unit's name says, experts beside it considered."""
        part, why = words.part_of(unit.segments)
        if part is None and unit.name in ("gate", "router") and self.has_experts_beside(unit):
            return parts.ROUTER, f"'{unit.name}' beside experts"
        if part is None and len(unit.segments) > 1 and unit.segments[-2] in ("gate", "router") and \
                self.has_experts_beside(unit, up=2):
            return parts.ROUTER, f"'{unit.segments[-2]}' beside experts"
        if unit.is_bare and unit.name in ("weight1", "weight2") and any(map(words.is_experts, unit.segments)):
            return (parts.GATE_UP if unit.name == "weight1" else parts.DOWN), f"'{unit.name}' of grouped experts"
        if part == parts.ROUTER and unit.dims == 2 and unit.shape[0] == 1 and unit.name != "e_score_correction_bias":
            return parts.SCALAR_GATE, "one row"
        return part, why

    def has_experts_beside(self, unit: Unit, up: int = 1) -> bool:
        """Experts stand in the module that is `up` levels above the unit."""
        scope = unit.path.rsplit(".", up)[0]
        return any(other.path.startswith(f"{scope}.") and (any(map(words.is_experts, other.segments))
                                                           or self.is_structural_expert(other)
                                                           or self.is_expert_shape(other)) and other is not unit
                   for other in self.by_block[block_of(unit)]) or any(
                       container.startswith(f"{scope}.") for container in self.expert_scopes)

    def is_structural_expert(self, unit: Unit) -> bool:
        """A numbered list of as many equal modules as the configuration has experts holds it."""
        numbers = unit.number_segments
        return len(numbers) > 1 and ".".join(unit.path.split(".")[:numbers[-1]]) in self.expert_scopes

    def is_expert(self, unit: Unit) -> bool:
        """The unit belongs to a routed expert."""
        for segment in reversed(unit.segments):
            if words.is_shared(segment):
                return False
            if words.is_experts(segment):
                return True
        return self.is_structural_expert(unit) or self.is_expert_shape(unit)

    def is_expert_shape(self, unit: Unit) -> bool:
        """A 3-D weight with one matrix per expert."""
        return unit.dims == 3 and unit.shape[0] == (self.facts.experts or -1) and min(unit.shape[1:]) > 1

    def is_shared(self, unit: Unit) -> bool:
        """The unit belongs to a shared expert."""
        return any(map(words.is_shared, unit.segments))

    def is_latent_scope(self, unit: Unit) -> bool:
        """The attention around the unit projects keys and values up from a latent."""
        if self.facts.kv_lora_rank and not words.vision_segment(unit.segments):
            return True
        return any(other.name in ("linear_kvb", "kv_b_proj", "linear_kv_up_proj", "wkv_b")
                   for other in self.by_scope[unit.scope])

    def container_role(self, unit: Unit, part: str) -> Optional[ParamRole]:
        """The role that an experts' container gives a part, or None."""
        if part not in parts.MLP_PARTS:
            return None
        if self.is_shared(unit):
            return ParamRole.SHARED_EXPERT
        is_stack = unit.dims == 3 and words.place_of(unit.segments) == words.FEED_FORWARD
        return ParamRole.MOE_EXPERT if is_stack or self.is_expert(unit) else None

    def has_matrices_beside(self, unit: Unit) -> bool:
        """Linears stand in the same module."""
        return sum(other.dims == 2 and not other.is_bare for other in self.by_scope[unit.scope]) >= 2 or any(
            other.scope == f"{unit.scope}.{other.path[len(unit.scope) + 1:].split('.')[0]}" and other.dims == 2
            for other in self.by_block[block_of(unit)] if other.path.startswith(f"{unit.scope}."))

    def norm_lengths(self, unit: Unit) -> set:
        """Lengths that a norm around the unit can have."""
        facts = self.facts_of(unit)
        lengths = {self.width(unit), facts.head_dim, facts.q_lora_rank, facts.kv_lora_rank, facts.qk_rope_head_dim}
        if facts.heads and facts.head_dim:
            lengths |= {facts.heads * facts.head_dim, (facts.kv_heads or facts.heads) * facts.head_dim}
        return lengths - {None} or {unit.shape[0]}

    def stands_beside_experts(self, unit: Unit) -> bool:
        """A feed-forward layer inside the module that holds the experts."""
        above = unit.scope.rpartition(".")[0]
        return any(container.startswith(f"{above}.") and container.count(".") <= unit.scope.count(".")
                   for container in self.expert_scopes) and bool(above) and \
            any(".".join(container.split(".")[:-1]) == above for container in self.expert_scopes)


def ancestors(path: str) -> List[str]:
    """The path and every module around it, innermost first."""
    found = []
    while path:
        found.append(path)
        path = path.rpartition(".")[0]
    return found


def owner_name(unit: Unit) -> str:
    """The last segment that is no number: `norms.0` is named by `norms`."""
    return next((segment for segment in reversed(unit.segments) if not segment.isdigit()), "")


def block_of(unit: Unit) -> str:
    """Path of the block around a unit, by the first number in its path."""
    numbers = unit.number_segments
    return ".".join(unit.path.split(".")[:numbers[0] + 1]) if numbers else ""
