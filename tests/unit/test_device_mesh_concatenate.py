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
"""Sub-meshes side by side, and the public names of flatten and unflatten."""
import itertools

import pytest

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh

GRID = DeviceMesh("npu", (2, 3, 2), ("dp", "cp", "tp"))


@pytest.mark.parametrize("names", [names for count in (1, 2, 3)
                                   for names in itertools.permutations(("dp", "cp", "tp"), count)])
def test_of_axes_it_is_the_sub_mesh(names):
    """Equal meshes are one object."""
    assert DeviceMesh.concatenate([GRID[name] for name in names]) is GRID[names]


def test_of_a_flattened_axis():
    data = GRID["dp", "cp"].flatten("data")
    mesh = DeviceMesh.concatenate([data, GRID["tp"]])
    assert mesh.mesh_shape == (6, 2) and mesh.mesh_dim_names == ("data", "tp")
    for rank in range(12):
        dp, cp, tp = GRID.get_coordinate(rank)
        assert mesh.get_coordinate(rank) == (dp * 3 + cp, tp)


def test_of_an_unflattened_axis():
    mesh = DeviceMesh("npu", (8,), ("world",)).unflatten(0, (2, 4), ("dp", "tp"))
    assert DeviceMesh.concatenate([mesh["tp"], mesh["dp"]]).get_coordinate(6) == (2, 1)


@pytest.mark.parametrize("meshes, text", [
    ([], "got none"), ([GRID["tp"], DeviceMesh("npu", (2,), ("dp",))], "one root mesh"),
    ([GRID["tp"], GRID["tp"]], "different axis names|overlap"),
    ([GRID["dp", "tp"].flatten("pairs"), GRID["tp"]], "overlap"),
])
def test_refusals(meshes, text):
    with pytest.raises(ValueError, match=text):
        DeviceMesh.concatenate(meshes)


def test_thousands_of_ranks():
    mesh = DeviceMesh("npu", (16, 32, 8), ("pp", "dp", "tp"))
    assert DeviceMesh.concatenate([mesh["pp"], mesh["tp"]]).get_coordinate(4095) == (15, 7)
