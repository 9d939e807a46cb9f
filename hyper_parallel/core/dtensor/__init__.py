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
"""Distributed tensors: meshes, placements, layouts, slice maps, redistribution, operator dispatch.

The names below are loaded when they are first asked for, so that `placement_types` and the planner can be imported on
their own.
"""
import importlib

_HOMES = {
    "DFunction": "dfunction", "DTensor": "dtensor", "DeviceMesh": "device_mesh", "Layout": "layout",
    "Partial": "placement_types", "Placement": "placement_types", "Replicate": "placement_types", "Section": "slice_map",
    "Shard": "placement_types", "SkipDTensorDispatch": "dispatch", "SliceMap": "slice_map",
    "StridedShard": "placement_types", "distribute_tensor": "dtensor", "empty": "creation",
    "explain_redistribute": "redistribute_explain", "full": "creation", "init_device_mesh": "device_mesh",
    "ones": "creation", "parse_placement": "placement_types", "parts_differ": "random", "rand": "creation",
    "randn": "creation", "zeros": "creation",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
