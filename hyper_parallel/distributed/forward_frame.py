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
"""The statements and expressions of one method, followed over values that are tags."""
import ast
import inspect
from typing import Any, Dict, List, Optional, Tuple

from mindspore import Parameter, Tensor, nn

from hyper_parallel.distributed.forward_values import (
    INT, NOTHING, PARTIAL, WEIGHT, Cells, Settings, Shape, Tags, integers, merge, solid, tags_of, width_of)

_SIZES = ("shape", "dtype", "ndim", "size", "itemsize", "dim", "device", "rank")
# a sum of such results is the result of the sum
_LINEAR = ("reshape", "view", "transpose", "permute", "swapaxes", "contiguous", "astype", "to", "cast", "squeeze",
           "unsqueeze", "expand_dims", "flatten", "float", "half", "dropout", "moveaxis", "swapdims", "identity")
# calls whose results are made of nothing that a gradient reaches
_CONSTANT = ("zeros_like", "zeros", "ones_like", "ones", "new_zeros", "full_like", "empty_like", "full", "stop_gradient",
             "detach")
# calls whose arguments are sizes of the value that they are called on
_SHAPED = ("reshape", "view", "split", "expand", "broadcast_to", "chunk", "tensor_split", "narrow", "split_with_sizes",
           "unflatten")


class Frame:
    """Names of one running method.

    Args:
        reader: what follows calls out of it; see `forward_flow`.
        owner: the module whose method it is.
        depth: of the calls that lead to it.
        defined_in: the class that defines the method.
    """

    def __init__(self, reader, owner, depth: int, defined_in: Optional[type]):
        self._reader, self._owner, self._depth, self._defined_in = reader, owner, depth, defined_in
        self.names: Dict[str, Any] = {}
        self.returned: Any = None

    def block(self, statements):
        """Run statements in order."""
        for statement in statements:
            self._statement(statement)

    def _statement(self, node):
        if isinstance(node, ast.Return):
            value = self.value(node.value) if node.value is not None else NOTHING
            self.returned = value if self.returned is None else merge(self.returned, value)
        elif isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self._assign(target, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value))
        elif isinstance(node, ast.AugAssign):
            combined = self._combine(self.value(node.target), self.value(node.value), node.op, node.lineno)
            self._assign(node.target, combined)
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.If):
            self._branches(node)
        elif isinstance(node, (ast.For, ast.While)):
            self._loop(node)
        elif isinstance(node, ast.With):
            self.block(node.body)
        elif isinstance(node, ast.Try):
            self.block(node.body)
            self.block(node.orelse)

    def _branches(self, node: ast.If):
        known = self._known(node.test)
        if known is not None:
            self.block(node.body if known else node.orelse)
            return
        self.value(node.test)
        before = dict(self.names)
        self.block(node.body)
        after, self.names = self.names, before
        self.block(node.orelse)
        for name, value in after.items():
            self.names[name] = merge(self.names[name], value) if name in self.names else value

    def _known(self, test) -> Optional[bool]:
        """The truth of a test on the module's own attributes."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._known(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
            found, known = self._own(test.left)
            if known and isinstance(test.ops[0], (ast.Is, ast.Eq, ast.IsNot, ast.NotEq)):
                same = found == test.comparators[0].value
                return same if isinstance(test.ops[0], (ast.Is, ast.Eq)) else not same
            return None
        found, known = self._own(test)
        if known and test.attr != "training":
            return bool(found) if isinstance(found, (bool, int, float, str, type(None))) else True
        return None

    def _own(self, node) -> Tuple[Any, bool]:
        """(value, True) of a plain attribute of the module, else (None, False)."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self" and \
                hasattr(self._owner, node.attr):
            return getattr(self._owner, node.attr), True
        return None, False

    def _loop(self, node):
        if isinstance(node, ast.For):
            items = self._items(self.value(node.iter))
        else:
            items = [None]
        for _ in range(2):  # the second time sees what the first has assigned
            for item in items:
                if item is not None:
                    self._assign(node.target, item)
                self.block(node.body)
        self.block(node.orelse)

    @staticmethod
    def _items(value: Any) -> List[Any]:
        if isinstance(value, Cells):
            return [Cells((cell,)) for cell in value]
        return list(value) if type(value) is tuple else [value]

    def _assign(self, target, value: Any):
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = self._unpack(value, len(target.elts))
            for one, part in zip(target.elts, parts):
                self._assign(one, part)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self._reader.keeps(target.attr, solid(tags_of(value)))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self.names[target.value.id] = merge(self.names.get(target.value.id, NOTHING), value)

    @staticmethod
    def _unpack(value: Any, count: int) -> List[Any]:
        if type(value) is tuple and len(value) == count:
            return list(value)
        if isinstance(value, Shape):
            return [NOTHING] * (count - 1) + [width_of(value)]
        return [tags_of(value)] * count

    def value(self, node) -> Any:
        """What an expression is made of."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        return frozenset().union(*(tags_of(self.value(child)) for child in ast.iter_child_nodes(node)
                                   if isinstance(child, ast.expr)))

    def _name(self, node):
        return Cells((self._owner,)) if node.id == "self" else self.names.get(node.id, NOTHING)

    def _constant(self, node):
        return NOTHING

    def _lambda(self, node):
        return NOTHING

    def _compare(self, node):
        for child in (node.left, *node.comparators):
            self.value(child)
        return NOTHING

    def _tuple(self, node):
        return tuple(self.value(one) for one in node.elts)

    _list = _tuple

    def _attribute(self, node):
        chain = self._chain(node)
        if chain is not None:
            return chain
        base = self.value(node.value)
        if isinstance(base, Cells):
            return self._member(base, node.attr)
        if node.attr == "shape":
            return Shape(tags_of(base))
        return NOTHING if node.attr in _SIZES else tags_of(base)

    def _chain(self, node) -> Any:
        """What `self.a`, `self.config.a` or `config.a` is when it is an integer or an object of settings, else None."""
        names, inner = [], node
        while isinstance(inner, ast.Attribute):
            names.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            return None
        start = self.names.get(inner.id)
        if inner.id == "self":
            found, name = self._owner, self._reader.path_of(self._owner)
        elif isinstance(start, Settings):
            found, name = start.value, start.name
        else:
            return None
        for one in reversed(names):
            found, name = getattr(found, one, None), f"{name}.{one}" if name else one
        if isinstance(found, int) and not isinstance(found, bool):
            return frozenset((f"{INT}{name}>",))
        is_settings = hasattr(found, "__dict__") and not callable(found) and not isinstance(found, (nn.Cell, Tensor))
        return Settings(found, name) if is_settings else None

    def _member(self, cells, name: str):
        found = []
        for cell in cells:
            member = getattr(cell, name, None)
            if isinstance(member, Parameter):
                path = self._reader.path_of(cell)
                return frozenset((f"{WEIGHT}{path}.{name}>" if path else f"{WEIGHT}{name}>",))
            if isinstance(member, nn.CellList):
                found += list(member)
            elif isinstance(member, nn.Cell):
                found.append(member)
            elif isinstance(member, (list, tuple)) and member and all(isinstance(one, nn.Cell) for one in member):
                found += list(member)
        return Cells(found) if found else NOTHING

    def _subscript(self, node):
        base = self.value(node.value)
        if isinstance(base, Shape):
            return self._size(base, node.slice)
        if type(base) is tuple and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int) and \
                -len(base) <= node.slice.value < len(base):
            return base[node.slice.value]
        if isinstance(base, Cells):
            return base
        self._reader.sizes(tags_of(base), tags_of(self.value(node.slice)), node.lineno, is_shaped=True)
        return tags_of(base)

    def _slice(self, node):
        return frozenset().union(*(tags_of(self.value(one)) for one in (node.lower, node.upper, node.step)
                                   if one is not None))

    @staticmethod
    def _size(shape, index) -> Any:
        """`shape[-1]` is a width; `shape[:-1]` and the like are shapes without it, `shape[1]` is no width."""
        if isinstance(index, ast.UnaryOp) and isinstance(index.operand, ast.Constant) and index.operand.value == 1:
            return width_of(shape)
        if isinstance(index, ast.Constant) and index.value == 2:
            return width_of(shape)
        return NOTHING

    def _binop(self, node):
        return self._combine(self.value(node.left), self.value(node.right), node.op, node.lineno)

    def _combine(self, left: Any, right: Any, operation, line: int) -> Tags:
        first, second = tags_of(left), tags_of(right)
        both = first | second
        if isinstance(operation, (ast.FloorDiv, ast.Div, ast.Mod)) and integers(second) and not solid(first):
            self._reader.quotient(first, second, line)
        if solid(both):
            self._reader.sizes(NOTHING, both, line, is_shaped=False)
            first, second, both = solid(first), solid(second), solid(both)
        if PARTIAL in both:
            is_sum = isinstance(operation, (ast.Add, ast.Sub))
            other = second if PARTIAL in first else first
            is_scale = isinstance(operation, (ast.Mult, ast.Div)) and not other
            if is_sum and PARTIAL not in other:
                self._reader.adds(other, line)
            if not (is_sum and PARTIAL in first and PARTIAL in second or is_scale):
                self._reader.not_linear(f"line {line} of {type(self._owner).__name__}, "
                                        f"{type(operation).__name__.lower()} of the row weight's result and another", both)
        return both

    def _ifexp(self, node):
        known = self._known(node.test)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        return merge(self.value(node.body), self.value(node.orelse))

    def _generatorexp(self, node):
        if len(node.generators) != 1:
            return frozenset().union(*(tags_of(self.value(one.iter)) for one in node.generators))
        made = []
        for item in self._items(self.value(node.generators[0].iter)):
            self._assign(node.generators[0].target, item)
            made.append(self.value(node.elt))
        return tuple(made) if len(made) > 1 else tags_of(made[0] if made else NOTHING)

    _listcomp = _generatorexp

    def _call(self, node):
        arguments = [self.value(one.value if isinstance(one, ast.Starred) else one) for one in node.args]
        keywords = {one.arg or "**": self.value(one.value) for one in node.keywords}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call) and \
                getattr(node.func.value.func, "id", "") == "super" and self._defined_in is not None:
            return self._call_method(self._owner, name, arguments, keywords, self._defined_in)
        base = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if isinstance(base, Cells):
            return self._call_member(node, base, name, arguments, keywords)
        called = self.value(node.func) if not isinstance(node.func, ast.Attribute) else None
        if isinstance(called, Cells):
            return self._reader.call_cells(called, arguments, keywords, self._depth)
        if name in ("enumerate", "zip", "reversed", "iter", "list", "tuple") and arguments and base is None:
            return self._sequence(name, arguments)
        if base is not None and name == "size":
            return width_of(Shape(tags_of(base))) if arguments and self._is_last(node.args[0]) else Shape(tags_of(base))
        if base is not None and name in _SIZES or name in ("len", "range", "isinstance", "int", "getattr", "hasattr"):
            return NOTHING
        if name in _CONSTANT:
            return NOTHING
        if name in ("int", "max", "min", "round") and base is None:
            return tags_of(tuple(arguments))
        given = list(arguments) + list(keywords.values())
        subject = tags_of(base) if solid(tags_of(base)) else tags_of(arguments[0]) if arguments else NOTHING
        self._reader.sizes(subject, tags_of(tuple(given)), node.lineno, is_shaped=name in _SHAPED)
        tags = solid(tags_of(tuple(given)) | tags_of(base))
        if any(isinstance(one, Cells) and self._reader.holds_cut_weights(one) for one in given):
            return frozenset((PARTIAL,))  # a function that calls them, of which no more is known
        if "dropout" in name.lower() and not self._is_switched_off(node):
            self._reader.drops(tags, node.lineno)
        if PARTIAL in tags and not any(word in name.lower() for word in _LINEAR):
            self._reader.not_linear(f"line {node.lineno} of {type(self._owner).__name__}, {name or 'a call'}", tags)
        return tags

    @staticmethod
    def _is_last(node) -> bool:
        return isinstance(node, ast.UnaryOp) or isinstance(node, ast.Constant) and node.value == 2

    def _call_member(self, node, base, name: str, arguments, keywords):
        """`self.child(…)`, `self.method(…)` or `self.operator(…)`."""
        cells = self._member(base, name)
        if isinstance(cells, Cells):
            return self._reader.call_cells(cells, arguments, keywords, self._depth)
        result = None
        for owner in base:
            if inspect.isfunction(inspect.getattr_static(type(owner), name, None)) and name not in dir(nn.Cell):
                found = self._call_method(owner, name, arguments, keywords)
                result = found if result is None else merge(result, found)
        if result is not None:
            return result
        given = list(arguments) + list(keywords.values())
        self._reader.sizes(tags_of(arguments[0]) if arguments else NOTHING, tags_of(tuple(given)), node.lineno,
                           is_shaped=name in _SHAPED)
        tags = solid(tags_of(tuple(given)))
        if "dropout" in name.lower() and not self._is_switched_off(node):
            self._reader.drops(tags, node.lineno)
        if PARTIAL in tags and not any(word in name.lower() for word in _LINEAR):
            self._reader.not_linear(f"line {node.lineno} of {type(self._owner).__name__}, self.{name}", tags)
        return tags

    def _call_method(self, owner, name: str, arguments, keywords, above: Optional[type] = None) -> Any:
        names = list(inspect.signature(getattr(owner, name)).parameters)
        given = {**{one: NOTHING for one in names}, **dict(zip(names, arguments)), **keywords}
        return self._reader.run(owner, name, given, self._depth + 1, above)

    def _is_switched_off(self, node) -> bool:
        """A rate of the module's own that is zero."""
        rates = [one.value for one in node.keywords if one.arg in ("p", "dropout_p")] + node.args[1:2]
        found, known = self._own(rates[0]) if rates else (None, False)
        return known and found == 0

    def _sequence(self, name: str, arguments):
        items = [self._items(one) for one in arguments]
        if name == "enumerate":
            return tuple((NOTHING, item) for item in items[0])
        if name == "zip":
            length = max(len(one) for one in items)
            spread = [one if len(one) == length else one * length for one in items]
            return tuple(zip(*spread))
        return arguments[0]
