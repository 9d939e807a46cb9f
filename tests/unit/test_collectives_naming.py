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
"""Errors name the collective, the group and the rank: at once, or when they come late."""
import sys

import pytest

from hyper_parallel.core.collectives import naming
from hyper_parallel.core.collectives.groups import Group

PAIR = Group("hp_4-7", (4, 7), 1)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(naming, "_STARTED", naming.collections.deque(maxlen=2))


def fail_with(error):
    """A call that fails."""
    def call(*_):
        raise error
    return call


@pytest.mark.parametrize("kind", (NotImplementedError, RuntimeError, TypeError, ValueError))
def test_an_error_at_the_call(kind):
    """Same kind, more text, the cause kept."""
    with pytest.raises(kind, match=r"all_gather over group hp_4-7 of ranks \(4, 7\), on rank 7: timed out") as caught:
        naming.start(fail_with(kind("timed out")), (1,), "all_gather", PAIR)
    assert isinstance(caught.value.__cause__, kind)
    assert naming.start(lambda x: x + 1, (1,), "all_gather", PAIR) == 2


def test_the_last_few_are_remembered():
    """Oldest first."""
    assert naming.last_started() == ""
    for kind in ("all_gather", "all_reduce", "barrier"):
        naming.start(lambda: None, (), kind, PAIR)
    assert naming.last_started() == ("all_reduce over group hp_4-7 of ranks (4, 7); "
                                     "barrier over group hp_4-7 of ranks (4, 7)")


def test_a_late_error_of_a_kernel_is_explained(monkeypatch, capsys):
    """Only such an error, only once, and the former hook still runs."""
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: seen.append(arguments))
    naming.name_late_errors()
    hook = sys.excepthook
    naming.name_late_errors()
    assert sys.excepthook is hook
    late = RuntimeError("Launch kernel failed, name:Default/AllReduce-op1")
    hook(RuntimeError, late, None)
    assert capsys.readouterr().err == ""
    naming.start(lambda: None, (), "reduce_scatter", PAIR)
    hook(KeyError, KeyError("else"), None)
    assert capsys.readouterr().err == ""
    hook(RuntimeError, late, None)
    assert "another rank did not join: reduce_scatter over group hp_4-7 of ranks (4, 7)" in capsys.readouterr().err
    assert len(seen) == 3
