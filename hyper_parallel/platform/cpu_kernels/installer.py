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
"""Puts the stand-ins in place of MindSpore's functions, and takes them out again."""
import importlib
from typing import List, Tuple

from hyper_parallel.platform.cpu_kernels import (  # noqa: F401  pylint: disable=unused-import
    activation, attention, bfloat16, cell, creation, distributed, indexing, inplace, loss, moe, norm, randomness,
    rotary, sorting, split)
from hyper_parallel.platform.cpu_kernels.dispatch import REPLACEMENTS

# What `uninstall` puts back: owner, attribute name, original, whether the owner itself held the attribute.
_saved: List[Tuple[object, str, object, bool]] = []


def _resolve(target: str):
    """`(owner, attribute name)` of a `module:attribute` or `module:Class.attribute`; owner None if it is not there.

    A name that this MindSpore does not have needs no stand-in.
    """
    module_name, _, path = target.partition(":")
    *parents, name = path.split(".")
    try:
        owner = importlib.import_module(module_name)
        for parent in parents:
            owner = getattr(owner, parent)
    except (ImportError, AttributeError):
        return None, name
    return (owner if hasattr(owner, name) else None), name


def installed() -> bool:
    """Whether the stand-ins are in place."""
    return bool(_saved)


def install() -> None:
    """Replaces every function that has a stand-in; a second call does nothing."""
    if installed():
        return
    for replacement in REPLACEMENTS:
        built = {}
        for target in replacement.targets:
            owner, name = _resolve(target)
            if owner is None:
                continue
            original = getattr(owner, name)
            # One object known under several names stays one object.
            if id(original) not in built:
                built[id(original)] = replacement.build(original)
            _saved.append((owner, name, original, name in vars(owner)))
            setattr(owner, name, built[id(original)])


def uninstall() -> None:
    """Restores every original; a second call does nothing."""
    while _saved:
        owner, name, original, was_own = _saved.pop()
        if was_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
