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
"""Errors that say which collective, over which ranks.

MindSpore runs PyNative operators asynchronously: the error of a collective that timed out often surfaces at a later,
unrelated line. So the last collectives that this rank started are remembered, and named when such an error ends the
process.
"""
import collections
import sys
from typing import Callable

_STARTED = collections.deque(maxlen=4)
_KERNEL_ERROR = "Launch kernel failed"
_NAMED = (NotImplementedError, RuntimeError, TypeError, ValueError)


def start(call: Callable, inputs: tuple, kind: str, group):
    """`call(*inputs)`, a collective; its error, of the same kind, names the collective, the group and this rank."""
    _STARTED.append((kind, group))
    try:
        return call(*inputs)
    except _NAMED as error:
        named = next(base for base in _NAMED if isinstance(error, base))
        raise named(f"{_describe(kind, group)}, on rank {group.ranks[group.index]}: {error}") from error


def last_started() -> str:
    """The last collectives that this rank started, oldest first; empty when there were none."""
    return "; ".join(_describe(kind, group) for kind, group in _STARTED)


def name_late_errors() -> None:
    """Makes an uncaught error of a kernel's launch name the collectives that were started last; once a process."""
    previous = sys.excepthook
    if getattr(previous, "names_collectives", False):
        return

    def hook(kind, error, trace):
        if _STARTED and _KERNEL_ERROR in str(error):
            print(f"The last collectives that this rank started, one of which may have failed or timed out because "
                  f"another rank did not join: {last_started()}", file=sys.stderr, flush=True)
        previous(kind, error, trace)

    hook.names_collectives = True
    sys.excepthook = hook


def _describe(kind, group):
    return f"{kind} over group {group.name} of ranks {group.ranks}"
