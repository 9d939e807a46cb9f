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
"""One small file per family, for what names and structure cannot tell. Each defines `ADAPTERS`."""
import importlib
import pkgutil
from functools import lru_cache
from typing import Dict

from hyper_parallel.distributed.model_adapter import UNKNOWN_FAMILY, ModelAdapterSpec
from hyper_parallel.distributed.model_facts import ModelFacts

__all__ = ["find_adapter", "known_families"]


@lru_cache(maxsize=1)
def known_families() -> Dict[str, ModelAdapterSpec]:
    """`{model_type or architecture: adapter}` of every file in this folder."""
    found: Dict[str, ModelAdapterSpec] = {}
    for module in pkgutil.iter_modules(__path__):
        for adapter in importlib.import_module(f"{__name__}.{module.name}").ADAPTERS:
            for key in adapter.model_types + adapter.architectures:
                assert key not in found, f"two families are named {key}"
                found[key] = adapter
    return found


def find_adapter(facts: ModelFacts) -> ModelAdapterSpec:
    """The adapter of a model's family, by `model_type` (of a text section as well: `glm4v_text`), then by
    `architectures`; an empty one for an unknown family."""
    known = known_families()
    family = facts.model_type or ""
    for key in (family, family.removesuffix("_text")) + tuple(facts.architectures):
        if key in known:
            return known[key]
    return UNKNOWN_FAMILY
