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
"""How a plain local Parameter lies on a mesh, for those who store it as a DTensor later."""
from typing import NamedTuple, Optional, Tuple

from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.placement_types import Placement
from hyper_parallel.core.dtensor.slice_map import SliceMap

_ATTRIBUTE = "_hp_part"


class PartRecord(NamedTuple):
    """What a DTensor would know of the parameter.

    Attributes:
        mesh: the mesh of the placements.
        placements: one per axis.
        shape: of the whole.
        slice_map: record of the parts where placements cannot say it, or None.
    """

    mesh: DeviceMesh
    placements: Tuple[Placement, ...]
    shape: Tuple[int, ...]
    slice_map: Optional[SliceMap] = None


def record_part(parameter, record: Optional[PartRecord]):
    """Note how a parameter lies, or forget it with None."""
    if record is None:
        parameter.__dict__.pop(_ATTRIBUTE, None)
    else:
        setattr(parameter, _ATTRIBUTE, record)


def recorded_part(parameter) -> Optional[PartRecord]:
    """What `record_part` has noted, or None."""
    return getattr(parameter, _ATTRIBUTE, None)
