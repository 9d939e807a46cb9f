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
"""Does a block compute `x + attention(norm(x)) + mlp(norm(x))`? Read from the source of its forward.

Only then may attention and MLP share one reduction. What is not plainly of this form is not believed to be.
"""
import ast
from typing import Any, Callable, Dict, FrozenSet, NamedTuple, Optional, Tuple, Union

from mindspore import nn

from hyper_parallel.distributed.forward_source import syntax_of

_LINEAR = ("Dropout", "Identity")  # modules that may stand between a summand and the sum
_ADDS = ("add",)


class ParallelFlow(NamedTuple):
    """The children of a block by what they do with the residual stream.

    Args:
        branches: their results are summands of the block's result, beside the residual stream itself.
        readers: they take the residual stream as their first argument.
    """

    branches: FrozenSet[str]
    readers: FrozenSet[str]


class _Other(NamedTuple):
    """Whole values: what comes from other arguments, or from the residual stream through its readers."""


class _Sum(NamedTuple):
    """A sum of results of branches, with the residual stream or without it."""

    branches: FrozenSet[str]
    has_stream: bool = False


class _Result(NamedTuple):
    """What a call gave: one value, or a tuple whose first value it is."""

    child: str


class _Unreadable(Exception):
    """The source does something whose effect on a sum is not known."""


_Value = Union[_Other, _Sum, _Result, tuple]
_STREAM = _Sum(frozenset(), True)


def parallel_flow(block: nn.Cell) -> Optional[ParallelFlow]:
    """How a block uses its first argument; None where it is not plainly a sum of it and of branches that read it.

    Args:
        block: a transformer block.

    Examples:
        >>> parallel_flow(model.layers[0])     # x + self.attn(self.ln(x)) + self.mlp(self.ln(x))
        ParallelFlow(branches=frozenset({'attn', 'mlp'}), readers=frozenset({'ln'}))
    """
    try:
        return _Reader(block).read(syntax_of(type(block).construct).body[0])
    except (OSError, TypeError, SyntaxError, _Unreadable):
        return None


def flows_of(model: Any) -> Optional[Callable[[str], Optional[ParallelFlow]]]:
    """`parallel_flow` by module path; None for what is no Cell."""
    if not isinstance(model, nn.Cell):
        return None
    modules = dict(model.cells_and_names())
    return lambda path: parallel_flow(modules[path])


class _Reader:
    """Follows the residual stream through one forward."""

    def __init__(self, block):
        self._block = block
        self._values: Dict[str, _Value] = {}
        self._readers: set = set()
        self._calls: Dict[str, int] = {}
        self._consumed: set = set()

    def read(self, function: ast.FunctionDef) -> Optional[ParallelFlow]:
        """The flow of a forward."""
        arguments = function.args.posonlyargs + function.args.args
        if len(arguments) < 2:
            return None
        self._values[arguments[1].arg] = _STREAM
        returned = None
        for at, statement in enumerate(function.body):
            if isinstance(statement, ast.Return):
                if at != len(function.body) - 1:
                    raise _Unreadable
                returned = self._value(statement.value)
            else:
                self._statement(statement)
        result = returned[0] if isinstance(returned, tuple) and not hasattr(returned, "_fields") and returned \
            else returned
        if isinstance(result, _Result):
            raise _Unreadable
        if result is not returned and any(not isinstance(other, _Other) for other in returned[1:]):
            raise _Unreadable
        if not isinstance(result, _Sum) or not result.has_stream or len(result.branches) < 2:
            return None
        if any(self._calls.get(name) != 1 for name in result.branches) or \
                result.branches & (self._consumed | self._readers):
            return None
        return ParallelFlow(result.branches, frozenset(self._readers))

    def _statement(self, statement):
        if isinstance(statement, ast.Assign):
            value = self._value(statement.value)
            for target in statement.targets:
                self._assign(target, value)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            both = ast.BinOp(ast.Name(statement.target.id), statement.op, statement.value)
            self._assign(statement.target, self._value(both))
        elif isinstance(statement, ast.If):
            for inner in (statement.body if self._decided(statement.test) else statement.orelse):
                self._statement(inner)
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            raise _Unreadable

    def _assign(self, target, value: _Value):
        if isinstance(target, ast.Name):
            self._values[target.id] = value
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise _Unreadable
        names = target.elts
        if isinstance(value, _Result):
            values: Tuple = (_Sum(frozenset({value.child})),) + (_Other(),) * (len(names) - 1)
        elif isinstance(value, _Other):
            values = (value,) * len(names)
        elif type(value) is tuple and len(value) == len(names):
            values = value
        else:
            raise _Unreadable
        for name, one in zip(names, values):
            self._assign(name, one)

    def _decided(self, test) -> bool:
        """The outcome of a test on the block's own attributes."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return not self._decided(test.operand)
        if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) and test.value.id == "self":
            value = getattr(self._block, test.attr, None)
            if isinstance(value, (bool, int, str)):
                return bool(value)
        raise _Unreadable

    def _value(self, node) -> _Value:
        if isinstance(node, ast.Name):
            return self._values.get(node.id, _Other())
        if isinstance(node, ast.Constant):
            return _Other()
        if isinstance(node, ast.Tuple):
            return tuple(self._value(one) for one in node.elts)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Attribute):
            chain = ast.unparse(node).split(".")
            held = self._values.get(chain[0], _Other())
            if held == _Other() or chain[1:] in (["shape"], ["dtype"]):
                return _Other()
        if isinstance(node, ast.Subscript):
            return self._part(node)
        raise _Unreadable

    def _part(self, node) -> _Value:
        held = self._value(node.value)
        if isinstance(held, _Other):
            return held
        first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        if isinstance(held, _Result) and first:
            return _Sum(frozenset({held.child}))
        rest = isinstance(node.slice, ast.Slice) and isinstance(node.slice.lower, ast.Constant) and \
            node.slice.lower.value == 1 and node.slice.upper is None
        if isinstance(held, _Result) and (rest or isinstance(node.slice, ast.Constant)):
            return _Other()
        raise _Unreadable

    def _operation(self, node) -> _Value:
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.op, ast.Add):
            if type(left) is tuple and (type(right) is tuple or isinstance(right, _Other)):
                return left + (right if type(right) is tuple else (_Other(),))
            return self._add(left, right)
        if isinstance(node.op, ast.Mult):
            sums = [one for one in (_summand(left), _summand(right)) if isinstance(one, _Sum)]
            if len(sums) == 1 and not sums[0].has_stream:
                return sums[0]
        if _summand(left) == _summand(right) == _Other():
            return _Other()
        raise _Unreadable

    @staticmethod
    def _add(left: _Value, right: _Value) -> _Value:
        left, right = _summand(left), _summand(right)
        if isinstance(left, _Other) and isinstance(right, _Other):
            return left
        if not (isinstance(left, _Sum) and isinstance(right, _Sum)) or left.branches & right.branches or \
                (left.has_stream and right.has_stream):
            raise _Unreadable
        return _Sum(left.branches | right.branches, left.has_stream or right.has_stream)

    def _call(self, node) -> _Value:
        called = ast.unparse(node.func)
        values = [self._value(one) for one in node.args] + [self._value(one.value) for one in node.keywords]
        if called.split(".")[-1] in _ADDS and len(values) == 2 and not node.keywords:
            return self._add(*values)
        child = getattr(self._block, called[5:], None) if called.startswith("self.") else None
        if not isinstance(child, nn.Cell):
            if any(not isinstance(value, _Other) for value in values):
                raise _Unreadable
            return _Other()
        name = called[5:]
        if type(child).__name__ in _LINEAR and len(values) == 1:
            summand = _summand(values[0])
            if isinstance(summand, _Sum) and summand.has_stream:
                raise _Unreadable
            return summand
        self._calls[name] = self._calls.get(name, 0) + 1
        if values and values[0] == _STREAM:
            self._readers.add(name)
            values = values[1:]
        if any(not isinstance(value, (_Other, _Result)) for value in values):
            raise _Unreadable
        self._consumed |= {value.child for value in values if isinstance(value, _Result)}
        return _Result(name)


def _summand(value: _Value) -> _Value:
    return _Sum(frozenset({value.child})) if isinstance(value, _Result) else value
