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
"""Which rule an operator has.

A rule is a function with the operator's own arguments, in which an `Operand` stands for every tensor; it returns a
`Spec`. It is registered under the names by which MindSpore dispatches the operator (`func.name`)::

    @rule("Softmax")
    def softmax(x, dim=-1):
        return along(x, dim)

A rule that has to know more than the arguments (an attribute of a legacy primitive) takes `primitive`.
"""
import inspect
from typing import Callable, Dict, Optional, Sequence

from hyper_parallel.core.dtensor.ops.spec import Spec

RULES: Dict[str, Callable] = {}
_TAKES_PRIMITIVE = set()


def rule(*names: str) -> Callable:
    """Registers the decorated function as the rule of the named operators.

    Raises:
        ValueError: an operator has a rule already.
    """
    def register(function):
        for name in names:
            if name in RULES:
                raise ValueError(f"operator {name} has a rule already: {RULES[name].__module__}")
            RULES[name] = function
        if "primitive" in inspect.signature(function).parameters:
            _TAKES_PRIMITIVE.add(function)
        return function
    return register


def find_rule(name: str) -> Optional[Callable]:
    """The rule of an operator, None if it has none."""
    return RULES.get(name)


def apply_rule(name: str, args: Sequence, kwargs: dict, primitive=None) -> Spec:
    """What the rule of `name` says of a call, tensors replaced by operands.

    Raises:
        TypeError: the operator does not take these arguments.
    """
    function = RULES[name]
    if function in _TAKES_PRIMITIVE:
        kwargs = {**kwargs, "primitive": primitive}
    return function(*args, **kwargs)
