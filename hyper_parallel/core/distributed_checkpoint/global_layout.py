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
"""Every rank's layout of every parameter, in the terms that MindFormers' checkpoint code reads."""
from typing import Dict

from mindspore.communication import get_group_size

from hyper_parallel.core.dtensor.dtensor import DTensor


def _describe(parameter) -> Dict:
    facts = {"type": str(parameter.dtype), "full_shape": tuple(parameter.shape)}
    if not isinstance(parameter, DTensor):
        return facts
    if parameter.slice_map is not None and not parameter.slice_map.is_even_chunks:
        raise ValueError(
            f"parameter {parameter.name!r} is laid out as {parameter.slice_map.describe()}, which a tensor map cannot "
            "express: turn off checkpoint.enable_save, or choose a tensor parallel size that needs no copies or padding")
    layout = parameter.layout
    try:
        layout.get_local_shape(parameter.shape)
    except ValueError as error:
        raise ValueError(f"parameter {parameter.name!r} lies in uneven parts, which a tensor map cannot express ({error}): "
                         "choose sizes that divide, or turn off checkpoint.enable_save") from None
    facts.update(device_matrix=tuple(layout.mesh_shape), tensor_map=tuple(layout.tensor_map),
                 interleaved_parallel=False, alias_name=tuple(layout.alias_name), rank_list=tuple(layout.rank_list))
    return facts


def get_global_layout(cell) -> Dict[str, Dict[str, Dict]]:
    """Layout of each parameter on each rank.

    No communication: parameters lie on meshes that span the ranks of their stage, so one rank knows them all.

    Args:
        cell (Cell): a model or an optimizer; DTensor and plain parameters.

    Returns:
        `{str(rank): {parameter.name: facts}}`, facts being type and full_shape, and for a DTensor also
        device_matrix, tensor_map, interleaved_parallel, alias_name and rank_list.

    Raises:
        ValueError: a parameter's parts cannot be told by a tensor map (KV copies, padding, cut sections, uneven parts).
    """
    world = range(get_group_size())
    layouts: Dict[str, Dict[str, Dict]] = {str(other): {} for other in world}
    for _, parameter in cell.parameters_and_names():
        facts = _describe(parameter)
        for other in facts.get("rank_list", world):
            layouts[str(other)][parameter.name] = dict(facts)
    return layouts
