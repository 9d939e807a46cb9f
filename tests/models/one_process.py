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
"""A mesh that says it has several ranks, in one process: for what apply does before anything communicates."""
from hyper_parallel.core.collectives.groups import Group


class MeshOfOneProcess:
    """Enough of a mesh for `apply` on one of `ranks` ranks; its group never communicates.

    Args:
        ranks: size of the axis `tp`.
        rank: this rank.
    """

    mesh_dim_names = ("tp",)

    def __init__(self, ranks=2, rank=0):
        self.mesh_shape, self._rank = (ranks,), rank
        self._group = Group("one_process", tuple(range(ranks)), rank)

    def __getitem__(self, axis):
        """The mesh of one axis: there is no other."""
        return self

    def size(self, axis=None):
        """One as a whole, so that ranks do not compare their plans."""
        return 1 if axis is None else self.mesh_shape[0]

    def axis_index(self, axis):
        """There is one axis."""
        return 0

    def get_coordinate(self, rank=None):
        """Where a rank is."""
        return (self._rank if rank is None else rank,)

    def get_group(self, axis):
        """All ranks."""
        return self._group

    def get_local_rank(self, axis):
        """This rank."""
        return self._rank

    def get_rank_list_along_axis(self, axis):
        """All ranks."""
        return list(range(self.mesh_shape[0]))
