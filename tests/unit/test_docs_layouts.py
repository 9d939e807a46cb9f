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
"""The page on layouts: its examples run, its pictures exist and are small; what the package exports can be imported."""
import doctest
import importlib
import re
from pathlib import Path

import hyper_parallel as hp
from hyper_parallel.core import dtensor

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "layouts.md"


def test_examples_give_what_the_page_says():
    """Every `>>>` of the page."""
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10 and not result.failed


def test_pictures_are_there_and_small():
    """No more than 60 KB each."""
    names = re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(names) >= 5
    for name in names:
        assert 0 < (DOCS / name).stat().st_size < 60_000


def test_exported_names_exist():
    """At the top level and in core.dtensor, where submodules of the same name do not hide them."""
    for module in (hp, dtensor):
        for name in module.__all__:
            assert getattr(module, name) is not None
    for name in ("DTensor", "Partial", "Replicate", "Shard"):
        assert getattr(hp, name) is getattr(dtensor, name)
    assert callable(hp.visualize) and importlib.import_module("hyper_parallel.core.dtensor.visualize")
    assert "Layout" in dtensor.__all__ and len(hp.__all__) <= 30
