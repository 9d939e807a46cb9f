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
"""The report as one HTML page: a table to sort and search, a picture of the mesh, nothing from the network."""
import html
import json
from typing import List

from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.report import gradient_words, make_report, placement_words, shape_words, size_words

_COLUMNS = ("parameter", "count", "role", "whole", "per rank", "bytes per rank", "placement", "gradient", "because")
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#1b1f24;background:#fff}
h1{font-size:20px}table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 8px;border-bottom:1px solid #d9dee3;vertical-align:top}
th{cursor:pointer;position:sticky;top:0;background:#f4f6f8;user-select:none}
td.n{text-align:right;font-variant-numeric:tabular-nums}td.name{font-family:ui-monospace,monospace}
input{padding:6px 8px;width:360px;margin:12px 0;border:1px solid #b6bec6;border-radius:4px;font:inherit}
.mesh{display:flex;gap:6px;margin:12px 0;flex-wrap:wrap}.mesh div{border:1px solid #8aa4bf;background:#eaf2fb;
border-radius:4px;padding:6px 10px;min-width:70px;text-align:center}small{color:#58626d}
"""
_SCRIPT = """
const rows=JSON.parse(document.getElementById('data').textContent),body=document.querySelector('tbody'),
search=document.getElementById('search'),shown=document.getElementById('shown');let order=-1,down=false;
function draw(){const words=search.value.toLowerCase().split(/\\s+/).filter(Boolean);
let found=rows.filter(r=>words.every(w=>r.text.includes(w)));
if(order>=0)found=[...found].sort((a,b)=>{const x=a.keys[order],y=b.keys[order];
return (x<y?-1:x>y?1:0)*(down?-1:1)});body.replaceChildren(...found.map(r=>{const tr=document.createElement('tr');
r.cells.forEach((c,i)=>{const td=document.createElement('td');td.textContent=c;
if(i==0)td.className='name';if(i==1||i==5)td.className='n';tr.append(td)});return tr}));
shown.textContent=found.length+' of '+rows.length+' templates'}
document.querySelectorAll('th').forEach((th,i)=>th.addEventListener('click',()=>{
down=order===i&&!down;order=i;draw()}));
search.addEventListener('input',draw);draw();
"""


def html_report(plan: ShardingPlan) -> str:
    """A self-contained page.

    Args:
        plan: bound or not.
    """
    report = make_report(plan)
    rows: List[dict] = []
    for row in report.rows:
        spec = row.spec
        cells = [row.name, str(row.count), spec.role, shape_words(spec.shape), shape_words(spec.local_shape),
                 size_words(row.local_bytes), placement_words(spec), gradient_words(spec), "; ".join(spec.reasons)]
        keys = [row.name, row.count, spec.role, row.global_bytes, row.local_bytes, row.local_bytes] + cells[6:]
        rows.append({"cells": cells, "keys": keys, "text": " ".join(cells).lower()})
    # a closing tag inside a name would end the script element
    data = json.dumps(rows).replace("</", "<\\/")
    mesh = "".join(f"<div>tp {rank}<br><small>1/{plan.tp} of each cut weight</small></div>" for rank in range(plan.tp))
    lines = list(report.totals) + [f"{kind} ({count}): forward {forward}; backward {backward}"
                                   for kind, count, forward, backward in report.collectives]
    lines += [f"large and whole: {line}" for line in report.large]
    lines += [f"decided by you: {line}" for line in report.overrides]
    lines += list(report.notes)
    listed = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return (f"<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{html.escape(report.title)}</title>"
            f"<style>{_STYLE}</style></head><body><h1>{html.escape(report.title)}</h1><div class=\"mesh\">{mesh}</div>"
            f"<ul>{listed}</ul><input id=\"search\" placeholder=\"search: attn norm replicate\" aria-label=\"search\"> "
            f"<small id=\"shown\"></small><table><thead><tr>{head}</tr></thead><tbody></tbody></table>"
            f"<script type=\"application/json\" id=\"data\">{data}</script><script>{_SCRIPT}</script></body></html>\n")
