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
"""The page of `hyper-parallel plan --html` in a browser: its table, sorting, search, and that it asks nobody."""
import html
import json
import re
import shutil
import subprocess

import pytest

import inventories
from hyper_parallel.distributed.html_report import html_report
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.report import make_report
from inventories import record

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PARAMETER, COUNT, WHOLE, BYTES = 0, 1, 3, 5

# what a reader does, and what the page shows after each step
VISIT = """
<pre id="seen"></pre><script>
const seen={},names=()=>[...document.querySelectorAll('tbody tr')].map(r=>r.cells[0].textContent),
look=step=>{seen[step]={names:names(),shown:document.getElementById('shown').textContent}},
type=text=>{search.value=text;search.dispatchEvent(new Event('input'))},
click=column=>document.querySelectorAll('th')[column].click();
window.addEventListener('load',()=>{
look('opened');
for(const column of [0,1,3,5]){click(column);look('up '+column);click(column);look('down '+column)}
click(0);type('MLP  rowwise');look('two words');type('no such parameter');look('nothing');type('');look('all again');
seen.first=[...document.querySelector('tbody tr').cells].map(c=>c.textContent);
seen.head=[...document.querySelectorAll('th')].map(c=>c.textContent);
seen.mesh=document.querySelectorAll('.mesh div').length;
seen.fetched=performance.getEntriesByType('resource').map(e=>e.name);
document.getElementById('seen').textContent=JSON.stringify(seen)});
</script></body>"""


@pytest.fixture(name="report", scope="module")
def _report():
    """A plan whose names try to break out of the page."""
    model = inventories.folders()["llama"]
    shapes = {path: one["shape"] for path, one in model["parameters"].items()}
    shapes = {**shapes, "model.</script><b>projector.weight": (64, 64)}
    made = plan({**record(shapes), "config": model["config"]}, tp=2, unknown="replicate")
    return made, make_report(made)


@pytest.fixture(name="seen", scope="module")
def _seen(report, tmp_path_factory):
    """What the browser shows, by step."""
    if BROWSER is None:
        pytest.skip("no chromium here (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("page")
    page = html_report(report[0])
    assert page.count("</body>") == 1
    file = folder / "plan.html"
    file.write_text(page.replace("</body>", VISIT), encoding="utf-8")
    done = subprocess.run([BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL).group(1)))


def test_the_table_holds_every_template_in_the_order_of_the_model(report, seen):
    names = [row.name for row in report[1].rows]
    assert seen["opened"] == {"names": names, "shown": f"{len(names)} of {len(names)} templates"}
    assert "model.</script><b>projector.weight" in names and "model.layers.[0-1].self_attn.q_proj.weight" in names
    assert seen["head"][PARAMETER] == "parameter" and seen["head"][BYTES] == "bytes per rank" and len(seen["head"]) == 9
    assert len(seen["first"]) == 9 and seen["mesh"] == 2


@pytest.mark.parametrize("column, key", [
    (PARAMETER, lambda row: row.name), (COUNT, lambda row: row.count), (WHOLE, lambda row: row.global_bytes),
    (BYTES, lambda row: row.local_bytes)])
def test_a_click_on_a_head_sorts_and_a_second_one_turns(report, seen, column, key):
    rows = {row.name: key(row) for row in report[1].rows}
    up, down = ([rows[name] for name in seen[f"{way} {column}"]["names"]] for way in ("up", "down"))
    assert up == sorted(rows.values()) and down == up[::-1] and len(set(up)) > 1


def test_search_wants_every_word_in_any_case(report, seen):
    total = len(report[1].rows)
    found = seen["two words"]["names"]
    wanted = sorted(row.name for row in report[1].rows if ".mlp." in row.name and row.spec.role == "ROWWISE")
    assert found == wanted and 0 < len(found) < total
    assert seen["two words"]["shown"] == f"{len(found)} of {total} templates"
    assert seen["nothing"] == {"names": [], "shown": f"0 of {total} templates"}
    assert seen["all again"]["names"] == sorted(row.name for row in report[1].rows)


def test_the_page_asks_nobody(seen):
    assert seen["fetched"] == []
