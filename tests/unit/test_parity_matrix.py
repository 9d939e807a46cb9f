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
"""scripts/parity_matrix.py: the table of measured differences."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import parity_matrix  # noqa: E402


def record(model="llama", tp=2, gradient=1e-6, **more):
    figures = {key: 1e-7 for key, _, _ in parity_matrix.COLUMNS}
    return {"model": model, "tp": tp, "mode": "pynative", "sequence_parallel": False, **figures, "gradient": gradient,
            "counted": {"forward": {"all_reduce": 5, "all_gather": 1}, "backward": {"all_reduce": 5}}, **more}


def test_rows_are_sorted_the_last_measurement_counts_and_the_largest_stands_on_top():
    rows = parity_matrix.table_of([record("qwen3", gradient=9.0), record("llama", 4), record("llama"),
                                   record("qwen3", gradient=3e-5)]).splitlines()
    assert [row.split(" | ")[:2] for row in rows[3:]] == [["| llama", "2"], ["| llama", "4"], ["| qwen3", "2"]]
    assert "**3.0e-05**" in rows[2] and "9.0" not in "".join(rows)
    assert rows[3].endswith("| 5 all_reduce, 1 all_gather; backward 5 all_reduce |")
    assert {row.count("|") for row in rows} == {5 + len(parity_matrix.COLUMNS) + 1}


def test_a_refusal_and_a_graph_that_nothing_is_counted_in_have_their_rows():
    refused = {"model": "t5", "tp": 2, "mode": "any", "sequence_parallel": True, "refused": "cross_attention"}
    rows = parity_matrix.table_of([refused, record(mode="graph", counted=None)]).splitlines()
    assert rows[3].startswith("| llama | 2 | graph | off | ") and rows[3].endswith(" | - |")
    assert rows[4].startswith("| t5 | 2 | any | on | refused: cross_attention | ")
    page = parity_matrix.page_of([refused, record()], "python scripts/parity_matrix.py")
    assert "\n1 cases measured, float32, " in page and "`python scripts/parity_matrix.py`" in page


def test_a_model_that_is_no_longer_refused_loses_that_row_and_one_that_is_loses_its_figures():
    refused = {"model": "llama", "tp": 2, "mode": "any", "sequence_parallel": False, "refused": "not yet"}
    assert "refused" not in parity_matrix.table_of([refused, record()])
    rows = parity_matrix.table_of([record(), record(mode="graph"), refused]).splitlines()
    assert len(rows) == 4 and "refused: not yet" in rows[3]


def test_models_and_modes_select_tests():
    assert parity_matrix.selection([], ["graph"]) == "(graph or refused)"
    assert parity_matrix.selection(["gpt2", "t5"], ["pynative", "graph"]) == (
        "(pynative or graph or refused) and ([gpt2- or [t5-)")


def test_without_a_job_the_page_is_made_of_what_was_measured_before(tmp_path, monkeypatch, capsys):
    from tests.distributed import launch
    jobs = []
    monkeypatch.setattr(launch, "launch", lambda tp, timeout, arguments: jobs.append(tp) or int(tp == 4))
    monkeypatch.setenv("HYPER_PARALLEL_PARITY_RECORD", "")
    measured, page = tmp_path / "measured.jsonl", tmp_path / "parity.md"
    measured.write_text(json.dumps(record()) + "\n")
    assert parity_matrix.main(["--record", str(measured), "--output", str(page), "--tp", "2", "4"]) == 1
    assert jobs == [2, 4] and "| llama | 2 | pynative | off |" in page.read_text()
    assert parity_matrix.main(["--record", str(measured), "--tp", "2"]) == 0
    assert "| llama | 2 |" in capsys.readouterr().out
