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
"""Errors that say which collective, over which ranks."""
import contextlib


@contextlib.contextmanager
def naming_errors(kind: str, group):
    """Turns an error of MindSpore's into one of the same type that names the collective and the group."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise type(error)(f"{kind} over group {group.name} of ranks {group.ranks}, on rank "
                          f"{group.ranks[group.index]}: {error}") from error
