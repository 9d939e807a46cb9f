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
"""Every real model, sharded every way, against one rank: runs the parity tests and writes what was measured as a table.

    python scripts/parity_matrix.py [--tp 2 4] [--models llama gpt2] [--modes pynative graph] [--output docs/parity.md]

Needs no accelerator: the ranks are processes on the CPU, started with msrun, one job per size. The models are tiny ones
with random weights of real architectures; without their folders (see tests/models/registry.py) there is nothing to run.
With both sizes and modes it takes about an hour on 2 cores. Exit code 0 if every measured difference is within its
tolerance and every count of collectives is the planned one.
"""
import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEST = ROOT / "tests" / "distributed" / "test_model_parity.py"
MODES = ("pynative", "graph")
# key of a record, column, tolerance
COLUMNS = (("logits", "logits", "1e-4"), ("loss", "loss", "1e-5"), ("gradient", "worst gradient", "1e-4"),
           ("gradient_norm", "gradient norm", "1e-5"), ("reference", "worst gradient, other library", "1e-3"),
           ("curve", "20 losses", "1e-4"), ("weight", "worst weight after 20 steps", "1e-4"))
TEXT = """# The same numbers: the matrix

Tiny models of real architectures, with random weights, as MindSpore Cells that know nothing of parallelism
(`tests/models`), planned by `hp.plan` and sharded by `hp.apply` over tp ranks, against the same Cell on one rank. Every
figure is the largest relative difference over all ranks: the largest absolute difference over the largest reference
value of the tensor. "worst gradient" is that of the parameter that differs most; every parameter is compared, put
together from all ranks' parts, and every rank's part on its own. "other library" holds the sharded gradients against
those that PyTorch computed for the same weights. "20 losses" and "worst weight" are from 20 steps of gradient descent
with momentum, which bring the loss to a few percent of where it starts. "collectives" are those of one forward and one
backward of the activations, counted, and equal to what the plan states; compiled graphs are not counted.

{count} cases measured, float32, {made}. Made by
`{command}`; a case that is not in the table has not been measured.

{table}
"""


def cell_of(value):
    """A figure in two digits."""
    return f"{value:.1e}" if value else "0"


def collectives_of(counted):
    """`5 all_reduce, 1 all_gather; backward 5 all_reduce`."""
    if not counted:
        return "-"
    words = [", ".join(f"{count} {kind}" for kind, count in sorted(counted[phase].items(), reverse=True))
             for phase in ("forward", "backward")]
    return "; backward ".join(one or "none" for one in words)


def table_of(records):
    """The records as a Markdown table, in the order model, tp, mode; of a case measured twice the last counts."""
    latest = {}
    for one in records:
        case = one["model"], one["tp"], one["sequence_parallel"]
        # a refusal speaks for every mode, and a measurement ends it
        for mode in MODES if one["mode"] == "any" else ("any",):
            latest.pop((*case, mode), None)
        latest[(*case, one["mode"])] = one
    heads = ["model", "tp", "mode", "sequence parallel", *(f"{title} (≤ {limit})" for _, title, limit in COLUMNS),
             "collectives"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    worst = {key: max((one[key] for one in latest.values() if key in one), default=0.0) for key, _, _ in COLUMNS}
    lines.append("| **largest** | | | | " + " | ".join(f"**{cell_of(worst[key])}**" for key, _, _ in COLUMNS) + " | |")
    for (model, tp, sequence_parallel, mode), one in sorted(latest.items(), key=lambda item: item[0]):
        start = [model, str(tp), mode, "on" if sequence_parallel else "off"]
        if "refused" in one:
            rest = [f"refused: {one['refused']}"] + [""] * len(COLUMNS)
        else:
            rest = [cell_of(one[key]) for key, _, _ in COLUMNS] + [collectives_of(one.get("counted"))]
        lines.append("| " + " | ".join(start + rest) + " |")
    return "\n".join(lines)


def page_of(records, command):
    """The document."""
    import mindspore  # pylint: disable=import-outside-toplevel
    made = (f"{datetime.date.today():%d %B %Y}, MindSpore {mindspore.__version__}, Python "
            f"{platform.python_version()}, {os.cpu_count()} CPU cores")
    measured = sum("refused" not in one for one in records)
    return TEXT.format(count=measured, made=made, command=command, table=table_of(records))


def selection(models, modes):
    """pytest's `-k` for what was asked; refusals belong to every mode."""
    by_mode = " or ".join([*modes, "refused"])
    if not models:
        return f"({by_mode})"
    return f"({by_mode}) and (" + " or ".join(f"[{name}-" for name in models) + ")"


def read_records(path):
    """The lines that rank 0 wrote."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def main(arguments=None):
    """Runs the jobs, writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 4], choices=[2, 4], help="sizes; one job each")
    parser.add_argument("--models", nargs="+", default=[], help="names of tests/models/registry.py; all by default")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--output", type=Path, help="write the page here; without it, it is printed")
    parser.add_argument("--record", type=Path, help="append to this file, and make the page of all in it")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds for each job")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    from tests.distributed import launch  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as folder:
        record = options.record or Path(folder) / "parity.jsonl"
        record.touch()
        os.environ["HYPER_PARALLEL_PARITY_RECORD"] = str(record.resolve())
        failed = [tp for tp in options.tp
                  if launch.launch(tp, options.timeout, [str(TEST), "-k", selection(options.models, options.modes)])]
        records = read_records(record)
    command = "python scripts/parity_matrix.py --output docs/parity.md"
    page = page_of(records, command)
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    else:
        print(page)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
