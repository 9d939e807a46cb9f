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
"""Operator lists of a redistribution, in the form that MindFormers' Muon optimizer reads."""
import itertools
import math
from typing import List, Sequence, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.layout import Layout
from hyper_parallel.core.dtensor.redistribute_plan import find_plan


class RedistributionOperatorInfer:
    """The operators that lead from one tensor map to another.

    Args:
        dev_mat: the mesh's shape.
        in_tensor_map: the tensor map before, as in `Layout`.
        out_tensor_map: the tensor map after.

    Raises:
        ValueError: a tensor map does not fit the mesh, or the two are not of the same number of dims.

    Examples:
        >>> inferrer = RedistributionOperatorInfer(dev_mat=(2, 2), in_tensor_map=[0, -1], out_tensor_map=[-1, -1])
        >>> inferrer.infer_ops_list(3, (0, 1, 2, 3))
        [('all_concat', (0, 2, (2, 3)))]
    """

    def __init__(self, dev_mat: Sequence[int], in_tensor_map: Sequence, out_tensor_map: Sequence):
        if len(in_tensor_map) != len(out_tensor_map):
            raise ValueError(f"tensor maps of one tensor have the same length, got {in_tensor_map} and "
                             f"{out_tensor_map}")
        self._mesh = DeviceMesh("npu", tuple(dev_mat))
        self._placements = [Layout.from_tensor_map(self._mesh, tuple(item)).placements
                            for item in (in_tensor_map, out_tensor_map)]
        # any size that every axis divides: the operators do not depend on it
        self._shape = (math.prod(dev_mat),) * len(in_tensor_map)

    def infer_ops_list(self, rank_id: int, rank_list: Sequence[int]) -> List[Tuple[str, tuple]]:
        """The operators that a rank carries out, in order; none when nothing changes.

        Args:
            rank_id: a global rank.
            rank_list: the global ranks of the mesh in row-major order.

        Returns:
            `("all_concat", (dim, parts, ranks))`, `("all_split", (dim, parts, ranks))` and
            `("all_to_all", (split_dim, concat_dim, parts, ranks))`; `ranks` are the global ranks of the group, in the
            order of their parts.

        Raises:
            ValueError: the rank is not in the list.
        """
        ranks = [int(rank) for rank in rank_list]
        if rank_id not in ranks:
            raise ValueError(f"rank {rank_id} is not among the layout's ranks {tuple(ranks)}")
        coordinate = self._mesh.get_coordinate(rank=ranks.index(rank_id))
        plan = find_plan(self._shape, self._mesh.mesh_shape, *self._placements, joint=ranks == sorted(ranks))
        return [self._operator(step, coordinate, ranks) for step in plan.steps]

    def _operator(self, step, coordinate, ranks):
        sizes = [self._mesh.mesh_shape[axis] for axis in step.axes]
        members = []
        for steps in itertools.product(*map(range, sizes)):
            place = list(coordinate)
            for axis, position in zip(step.axes, steps):
                place[axis] = position
            index = 0
            for size, position in zip(self._mesh.mesh_shape, place):
                index = index * size + position
            members.append(ranks[index])
        group = (math.prod(sizes), tuple(members))
        if step.kind == "all_to_all":
            return "all_to_all", (step.to_dim, step.dim, *group)
        return {"all_gather": "all_concat", "slice": "all_split"}[step.kind], (step.dim, *group)
