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
"""scripts/compare_runs.py: the judge of two loss curves."""
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare_runs  # noqa: E402


def write(path, losses, **more):
    path.write_text(json.dumps({"loss": losses, "tp": 1, "dp": 1, **more}))
    return str(path)


def test_equal_and_close_runs_pass_and_the_largest_difference_is_named(tmp_path, capsys):
    first = write(tmp_path / "a.json", [4.0, 2.0, 1.0])
    second = write(tmp_path / "b.json", [4.0, 2.002, 1.0], tp=2, dp=2)
    assert compare_runs.main([first, second]) == 0
    out = capsys.readouterr().out
    assert "loss tp=1  loss tp=2 dp=2" in out
    assert "    2    2.000000" in out
    assert out.endswith("largest relative difference: 1.000e-03\n")


@pytest.mark.parametrize("losses", [[4.0, 2.02, 1.0], [4.0, None, 1.0], [4.0, float("nan"), 1.0]])
def test_far_missing_or_non_finite_losses_fail(tmp_path, losses):
    first, second = write(tmp_path / "a.json", [4.0, 2.0, 1.0]), write(tmp_path / "b.json", losses)
    assert compare_runs.main([first, second]) == 1
    assert compare_runs.main([second, first]) == 1


def test_runs_of_different_length_are_refused(tmp_path, capsys):
    first, second = write(tmp_path / "a.json", [4.0, 2.0]), write(tmp_path / "b.json", [4.0])
    assert compare_runs.main([first, second]) == 1
    assert "the runs have 2 and 1 steps" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "{}", '{"loss": []}', '{"loss": ["a"]}', "not json"])
def test_what_is_not_a_record_is_refused(tmp_path, capsys, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert compare_runs.main([str(path), str(path)]) == 1
    assert "is not the record of a run" in capsys.readouterr().err


def test_table_is_sampled_with_first_and_last_step():
    record = {"loss": [float(i + 1) for i in range(100)], "tp": 1}
    lines = compare_runs.side_by_side(record, record, rows=5).splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [1, 26, 51, 75, 100]
    assert "loss tp=1 A" in lines[0] and "loss tp=1 B" in lines[0]


def test_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    first = write(tmp_path / "a.json", [4.0, 2.0, 1.0])
    assert compare_runs.main([first, first, "--plot", str(tmp_path / "new" / "loss.png")]) == 0
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "loss.png" in capsys.readouterr().out
