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
"""Initialisers called on a part of a parameter draw the whole, so that values do not depend on how many ranks share it."""
import types
from typing import Callable

# in-place methods that draw or fill
_INITIALISERS = ("normal_", "uniform_", "fill_", "zero_")


def draw_by(parameter, draw: Callable):
    """Let the parameter's in-place initialisers do something else; `draw_as_usual` undoes it.

    Args:
        parameter (Parameter): its own methods are replaced, not those of its class.
        draw: called as `draw(name, args, kwargs)` for `parameter.name(*args, **kwargs)`.
    """
    def wrap(name):
        def initialise(self, *args, **kwargs):
            draw(name, args, kwargs)
            return self
        return initialise

    for name in _INITIALISERS:
        setattr(parameter, name, types.MethodType(wrap(name), parameter))


def draw_as_usual(parameter):
    """The initialisers of the parameter's class again."""
    for name in _INITIALISERS:
        parameter.__dict__.pop(name, None)
