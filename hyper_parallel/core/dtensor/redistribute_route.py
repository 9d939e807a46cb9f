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
"""From a layout on one mesh to a layout on another: one plan where the meshes have common axes, else several legs."""
import functools
import math
from typing import NamedTuple, Optional, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.mesh_relation import common_mesh, covers_at_once, ranks_of, refine_state
from hyper_parallel.core.dtensor.placement_state import State, state_of
from hyper_parallel.core.dtensor.redistribute_plan import RedistributePlan, plan_states


class Leg(NamedTuple):
    """A plan on one mesh, or a change of ranks.

    Attributes:
        kind: "plan"; "broadcast" of the whole from the first rank of the smaller mesh to a larger one; "drop": ranks
            that are not in a smaller mesh let go of the whole.
        mesh: of the plan, or the mesh whose ranks take part.
        plan: the plan, None for the other kinds.
        what: a few words on a change of ranks.
        wire_elements: elements that a rank sends at a change of ranks.
        ranks: the ranks that hold the whole before a broadcast, or after a drop.
    """

    kind: str
    mesh: DeviceMesh
    plan: Optional[RedistributePlan] = None
    what: str = ""
    wire_elements: float = 0
    ranks: Tuple[int, ...] = ()


class Route(NamedTuple):
    """Legs in order; none when there is nothing to do."""

    legs: Tuple[Leg, ...]


@functools.lru_cache(maxsize=8192)
def find_route(shape, src_mesh: DeviceMesh, src, dst_mesh: DeviceMesh, dst) -> Route:
    """The way from placements `src` on one mesh to `dst` on another, all of them normalised.

    Raises:
        ValueError: neither mesh contains the other, or placements that do not fit.
    """
    start = state_of(src, src_mesh.mesh_shape, len(shape), src_mesh.mesh_dim_names)
    goal = state_of(dst, dst_mesh.mesh_shape, len(shape), dst_mesh.mesh_dim_names)
    common = common_mesh(src_mesh, dst_mesh)
    if common is not None:
        start_there = refine_state(start, shape, src_mesh, common.mesh, common.first)
        goal_there = refine_state(goal, shape, dst_mesh, common.mesh, common.second)
        if start_there is not None and goal_there is not None:
            return Route(_planned(shape, common.mesh, start_there, goal_there))
    whole = tuple(State(((),) * len(shape), (None,) * mesh.ndim) for mesh in (src_mesh, dst_mesh))
    return Route(_planned(shape, src_mesh, start, whole[0]) + _change_of_ranks(shape, src_mesh, dst_mesh)
                 + _planned(shape, dst_mesh, whole[1], goal))


def _planned(shape, mesh, start, goal):
    ascending = all(list(copy) == sorted(copy) for copy in mesh._copies)
    plan = plan_states(shape, mesh.mesh_shape, start, goal, joint=ascending)
    return (Leg("plan", mesh, plan),) if plan.steps else ()


def _change_of_ranks(shape, src_mesh, dst_mesh):
    before, after = ranks_of(src_mesh), ranks_of(dst_mesh)
    if before == after:
        return ()
    if before < after and covers_at_once(dst_mesh):
        sent = math.prod(shape) * (len(after) - 1) / len(after)
        return (Leg("broadcast", dst_mesh, what=f"the whole from rank {min(before)}", wire_elements=sent,
                    ranks=tuple(sorted(before))),)
    if after < before:
        return (Leg("drop", src_mesh, what=f"the whole outside ranks {sorted(after)}", ranks=tuple(sorted(after))),)
    raise ValueError(f"redistribute between {src_mesh!r} and {dst_mesh!r}: the ranks of one must contain those of the "
                     "other")
