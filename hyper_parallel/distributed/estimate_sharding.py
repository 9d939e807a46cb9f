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
"""What data-parallel sharding keeps and moves on one rank, from a plan: no device, no group.

A unit of parameters is gathered by one all-gather per dtype, and its gradients leave by one reduce-scatter. On the wire
a parameter of r rows on n ranks has n · ceil(r / n) of them. A ring moves (n - 1) / n of the full tensor for either.
"""
import fnmatch
import math
from dataclasses import dataclass
from typing import Dict, Sequence

from hyper_parallel.core.fully_shard.joint_placement import dim_to_cut
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.report import dtype_bytes


@dataclass(frozen=True)
class ShardingEstimate:
    """Numbers of one rank.

    Args:
        parameters: bytes kept between the steps.
        gathered_peak: bytes of the two largest gathered units, which are on the rank together at most.
        gradients: bytes of float32 main gradients.
        optimizer: bytes of two float32 moments, and of a float32 copy where the weight is narrower.
        gather_bytes: wire bytes of the all-gathers of one forward and backward.
        reduce_bytes: wire bytes of the reduce-scatters of one backward.
        all_gathers: their number in one forward and backward.
        reduce_scatters: their number in one backward.
    """

    parameters: int
    gathered_peak: int
    gradients: int
    optimizer: int
    gather_bytes: float
    reduce_bytes: float
    all_gathers: int
    reduce_scatters: int


def estimate_sharding(plan: ShardingPlan, shard: int, units: Sequence[str] = (), *,
                      reshard_after_forward: bool = True) -> ShardingEstimate:
    """Bytes and collectives of `fully_shard` over `shard` ranks, inside whatever the plan cuts.

    Args:
        plan: bound or not; of size 1 where there is no tensor parallelism.
        shard: ranks that share each parameter's rows.
        units: glob patterns of the paths of the modules that `fully_shard` is called on, before it is called on the
            model, smaller modules first; the outermost unit, which takes the rest, keeps its parameters from the
            forward to the backward.
        reshard_after_forward: the other units do not.

    Examples:
        >>> estimate_sharding(hp.plan(model, tp=2), shard=4, units=["layers.*"]).gathered_peak
        1212416
    """
    by_unit: Dict[str, Dict] = {}
    parameters = gradients = optimizer = 0
    for path, spec in plan.parameters.items():
        shape, width = tuple(spec.local_shape), dtype_bytes(spec.dtype)
        is_part = shape != tuple(spec.shape)
        dim = dim_to_cut(shape, 0, shard, uneven=not is_part)
        count = math.prod(shape)
        wire = count if dim is None else -(-shape[dim] // shard) * shard * (count // shape[dim])
        kept = count if dim is None else wire // shard
        parameters += kept * width
        if not spec.frozen:
            gradients += 4 * kept
            optimizer += (8 if width >= 4 else 12) * kept
        if dim is not None:
            unit = by_unit.setdefault(_unit_of(path, units), {"gathered": 0, "wire": {}, "reduced": 0})
            unit["gathered"] += count * width
            unit["wire"][spec.dtype] = unit["wire"].get(spec.dtype, 0) + wire * width
            unit["reduced"] += 0 if spec.frozen else 4 * wire
    share = (shard - 1) / shard
    times = {unit: 2 if unit and reshard_after_forward else 1 for unit in by_unit}
    return ShardingEstimate(
        parameters, sum(sorted(unit["gathered"] for unit in by_unit.values())[-2:]), gradients, optimizer,
        share * sum(times[name] * sum(unit["wire"].values()) for name, unit in by_unit.items()),
        share * sum(unit["reduced"] for unit in by_unit.values()),
        sum(times[name] * len(unit["wire"]) for name, unit in by_unit.items()),
        sum(bool(unit["reduced"]) for unit in by_unit.values()))


def _unit_of(path: str, units: Sequence[str]) -> str:
    """The module of the first pattern that one of the parameter's owners matches, "" for the outermost unit."""
    names = path.split(".")
    owners = [".".join(names[:count]) for count in range(len(names) - 1, 0, -1)]
    for pattern in units:
        for owner in owners:
            if fnmatch.fnmatchcase(owner, pattern) and owner.count(".") == pattern.count("."):
                return owner
    return ""
