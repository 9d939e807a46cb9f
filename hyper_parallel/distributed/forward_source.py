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
"""The syntax of a method, for those who read a forward instead of running it."""
import ast
import functools
import inspect
import textwrap


@functools.lru_cache(maxsize=None)
def syntax_of(function) -> ast.Module:
    """Its definition, the one statement of a module; parsed once for a class, however many layers it has.

    Args:
        function: a plain function, as it stands in a class.

    Raises:
        OSError, TypeError, SyntaxError: its source cannot be had.
    """
    return ast.parse(textwrap.dedent(inspect.getsource(function)))
