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
"""How much a rank holds and moves, by formulas, before anything runs.

Parameters, gradients and optimizer moments are counted from the plan's slice maps. Activations follow Korthikanti et
al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), equations 2, 4 and 6,
which are for two-byte activations of a layer with s tokens, batch b, hidden h, a heads and t ranks::

    tensor parallel                    s·b·h·(10 + 24/t + 5·a·s/(h·t))
    tensor and sequence parallel       s·b·h/t·(34 + 5·a·s/h)
    attention recomputed               without the term in s²
    everything recomputed              2·s·b·h

Wire bytes per rank are a ring's: all-reduce 2(t-1)/t of the tensor, all-gather and reduce-scatter (t-1)/t.
"""
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hyper_parallel.distributed.inventory import Inventory, take_inventory
from hyper_parallel.distributed.planner import plan as make_plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.report import dtype_bytes, size_words
from hyper_parallel.distributed.tensor_parallel import templates

_UNITS = {"": 1, "K": 10 ** 3, "M": 10 ** 6, "G": 10 ** 9, "T": 10 ** 12,
          "KI": 2 ** 10, "MI": 2 ** 20, "GI": 2 ** 30, "TI": 2 ** 40}
RECOMPUTE = ("none", "attention", "full")
# of a device's memory; the rest is for workspaces, buffers of collectives and fragmentation
_USABLE = 0.9
_WIRE = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank.

    Args:
        parameters: of the weights.
        gradients: in float32, of trainable weights.
        optimizer: two float32 moments, and a float32 copy where the weight is narrower.
        activations: kept for the backward, all layers.
        communication: on the wire in one step's forward and backward, activations only.
        communication_per_layer: the same of one layer.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    communication: int
    communication_per_layer: int

    @property
    def total(self) -> int:
        """Bytes held."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Recommendation:
    """Sizes of the axes, with the reasons line by line."""

    tp: int
    dp: int
    reasons: Tuple[str, ...]


def estimate(plan: ShardingPlan, hidden_size: int, heads: int, layers: int, *, batch: int = 1, sequence: int = 4096,
             activation_bytes: int = 2, recompute: str = "none") -> Estimate:
    """Bytes held and moved by one rank.

    Args:
        plan: bound or not.
        hidden_size: width of the residual stream.
        heads: query heads.
        layers: blocks.
        batch: sequences in a micro batch.
        sequence: tokens of a sequence.
        activation_bytes: of one activation element.
        recompute: `none`, `attention` (selective) or `full`.

    Raises:
        ValueError: another word for recompute.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute {recompute!r}: valid are {', '.join(RECOMPUTE)}")
    parameters = gradients = optimizer = 0
    for spec in plan.parameters.values():
        count, width = math.prod(spec.local_shape), dtype_bytes(spec.dtype)
        parameters += count * width
        if not spec.frozen:
            gradients += 4 * count
            optimizer += (8 if width >= 4 else 12) * count
    per_layer = _activation_bytes(plan, hidden_size, heads, batch, sequence, recompute) * activation_bytes / 2
    tokens = batch * sequence * hidden_size * activation_bytes
    moved = _moved(plan, tokens)
    inner = _moved(plan, tokens, templates.REGIONS + (templates.PARALLEL_BLOCK, templates.FIRST_PARALLEL_BLOCK))
    return Estimate(parameters, gradients, optimizer, round(per_layer * layers), round(moved),
                    round(inner / max(1, layers)))


def _activation_bytes(plan: ShardingPlan, hidden: int, heads: int, batch: int, sequence: int, recompute: str) -> float:
    size, tp = sequence * batch * hidden, plan.tp
    scores = 5 * heads * sequence / hidden if recompute == "none" else 0
    if recompute == "full":
        return 2 * size / (tp if plan.options.get("sequence_parallel") else 1)
    if plan.options.get("sequence_parallel"):
        return size / tp * (34 + scores)
    return size * (10 + 24 / tp + scores / tp)


def _moved(plan: ShardingPlan, tensor_bytes: float, kinds: Optional[Sequence[str]] = None) -> float:
    total = 0.0
    for spec in plan.boundaries.values():
        by = plan.expected.get(spec.semantic_role)
        if by is None or (kinds is not None and spec.semantic_role not in kinds):
            continue
        if spec.semantic_role in (templates.LM_HEAD, templates.SHARDED_NORM):
            continue  # one number a token, and logits, whose width is not the residual stream's
        for phase in by.values():
            total += sum(_WIRE.get(name, 0.0) * count for name, count in phase.items())
    return total * tensor_bytes * (plan.tp - 1) / plan.tp


def parse_bytes(text: str) -> int:
    """`64GB`, `80GiB`, `512MB` or a number.

    Raises:
        ValueError: none of these.

    Examples:
        >>> parse_bytes("64GB"), parse_bytes("1GiB")
        (64000000000, 1073741824)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", text, re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is no size: write 64GB or 80GiB")
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


def recommend(model: Any, device_bytes: int, world: int, options: Dict[str, Any]) -> Recommendation:
    """The smallest tp that fits, since every doubling moves more bytes and computes smaller matrices.

    Args:
        model: what `plan` takes.
        device_bytes: memory of one device.
        world: number of devices; tp divides it.
        options: as for `plan`.

    Raises:
        ValueError: no size fits; the reasons say why.
    """
    inventory: Inventory = take_inventory(model)
    facts = inventory.facts
    reasons: List[str] = []
    for tp in (size for size in range(1, world + 1) if world % size == 0):
        try:
            made = make_plan(inventory, tp=tp, **options)
        except ValueError as refused:
            reasons.append(f"tp {tp}: not possible ({str(refused).split('. ')[0]})")
            continue
        found = estimate(made, facts.hidden_size or 1, facts.heads or 1, facts.layers or 1)
        room = device_bytes * _USABLE
        words = (f"tp {tp}: {size_words(found.total)} a rank (weights {size_words(found.parameters)}, gradients "
                 f"{size_words(found.gradients)}, optimizer {size_words(found.optimizer)}, activations of 4096 tokens "
                 f"{size_words(found.activations)}) of {size_words(room)} usable")
        if found.total <= room:
            reasons.append(f"{words}: fits, so that {world // tp} replicas share the data")
            return Recommendation(tp, world // tp, tuple(reasons))
        reasons.append(f"{words}: too much")
    raise ValueError(f"no tensor-parallel size fits {size_words(device_bytes)} on {world} devices: "
                     f"{'; '.join(reasons)}")
