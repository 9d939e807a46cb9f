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
"""Values of a forward that is read instead of run: tags of what they were made of, shapes, modules, settings.

A value's tags are the names of the forward's arguments that it was made of, `LOCAL` behind a column weight, and `PARTIAL`
behind the row weight. A size has the tags of the integers that it was computed from: `<int PATH>` of an attribute, `WIDTH`
of an argument's last dim.
"""
from typing import Any, FrozenSet

LOCAL, PARTIAL, WIDTH = "<local>", "<partial>", "<width>"
INT, WEIGHT = "<int ", "<weight "
Tags = FrozenSet[str]
NOTHING: Tags = frozenset()


class Shape(frozenset):
    """The shape of a value with these tags."""


class Settings:
    """A plain object that holds settings, and its name."""

    def __init__(self, value: Any, name: str):
        self.value, self.name = value, name


class Cells(tuple):
    """Modules that an expression may mean."""


def tags_of(value: Any) -> Tags:
    """All tags of a value, of whatever kind it is."""
    if isinstance(value, Shape):
        return NOTHING
    if isinstance(value, frozenset):
        return value
    if isinstance(value, (Cells, Settings)) or value is None:
        return NOTHING
    return frozenset().union(*(tags_of(one) for one in value)) if value else NOTHING


def solid(tags: Tags) -> Tags:
    """Without the tags of sizes."""
    return frozenset(tag for tag in tags if not tag.startswith(INT) and tag != WIDTH)


def integers(tags: Tags) -> Tags:
    """Dotted names of the integers among the tags."""
    return frozenset(tag[len(INT):-1] for tag in tags if tag.startswith(INT))


def merge(first: Any, second: Any) -> Any:
    """A value that is one or the other."""
    if isinstance(first, Settings) and isinstance(second, Settings) and first.value is second.value:
        return first
    if type(first) is tuple and type(second) is tuple and len(first) == len(second):
        return tuple(merge(one, other) for one, other in zip(first, second))
    if isinstance(first, Cells) and isinstance(second, Cells):
        return Cells(dict.fromkeys(first + second))
    return tags_of(first) | tags_of(second)


def width_of(shape: Shape) -> Tags:
    """The last dim of a shape: the whole model's where nothing cut has made it."""
    return NOTHING if LOCAL in shape or PARTIAL in shape or not shape else frozenset((WIDTH,))
