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
"""Compares the losses of two recorded runs, step by step: `compare_runs.py A.json B.json [--plot out.png]`."""
import argparse
import json
import math
import sys
from pathlib import Path

TOLERANCE = 5e-3


def read_record(path):
    """The record of a run; ValueError when the file is missing or is not one."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        losses = record["loss"]
        if not losses or not all(value is None or isinstance(value, (int, float)) for value in losses):
            raise TypeError
    except OSError as error:
        raise ValueError(f"cannot read the record {path}: {error.strerror}") from None
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
        raise ValueError(f"{path} is not the record of a run: no list of losses in it") from None
    return record


def relative_differences(reference, other):
    """|other - reference| / |reference| for every step, in float64; a loss that is missing or not finite gives inf."""
    if len(reference) != len(other):
        raise ValueError(f"the runs have {len(reference)} and {len(other)} steps; only equal numbers can be compared")
    return [abs(b - a) / max(abs(a), sys.float_info.min) if _finite(a) and _finite(b) else math.inf
            for a, b in zip(reference, other)]


def largest_difference_line(differences):
    """The one line that a run is judged by."""
    return f"largest relative difference: {max(differences):.3e}"


def side_by_side(reference, other, rows=15):
    """The two loss curves as a table of about `rows` steps, first and last among them."""
    names = [f"loss {_label(record)}" for record in (reference, other)]
    if names[0] == names[1]:
        names = [f"{name} {mark}" for name, mark in zip(names, "AB")]
    losses = [record["loss"] for record in (reference, other)]
    differences = relative_differences(*losses)
    count = len(differences)
    picked = sorted({round(i * (count - 1) / (rows - 1)) for i in range(rows)})
    widths = [max(len(name), 10) for name in names]
    lines = [f"{'step':>5}  {names[0]:>{widths[0]}}  {names[1]:>{widths[1]}}  {'difference':>10}"]
    for step in picked:
        values = [f"{curve[step]:.6f}" if _finite(curve[step]) else "not finite" for curve in losses]
        lines.append(f"{step + 1:>5}  {values[0]:>{widths[0]}}  {values[1]:>{widths[1]}}  {differences[step]:>10.1e}")
    return "\n".join(lines)


def plot(reference, other, path):
    """Both curves above, their relative difference below, as a picture."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    differences = relative_differences(reference["loss"], other["loss"])
    steps = range(1, len(differences) + 1)
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), height_ratios=(3, 1),
                                             constrained_layout=True)
    above.plot(steps, reference["loss"], linewidth=3, alpha=0.4, label=_label(reference))
    above.plot(steps, other["loss"], linewidth=1.2, linestyle="--", color="black", label=_label(other))
    above.set_ylabel("loss")
    above.legend()
    above.grid(alpha=0.3)
    below.semilogy(steps, [max(value, 1e-9) for value in differences], linewidth=1)
    below.set_ylabel("relative difference")
    below.set_xlabel("step")
    below.grid(alpha=0.3)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _finite(value):
    return value is not None and math.isfinite(value)


def _label(record):
    return f"tp={record.get('tp', '?')}" + (f" dp={record['dp']}" if record.get("dp", 1) != 1 else "")


def main(argv=None):
    """Prints table and verdict; 0 when the runs agree within the tolerance, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", metavar="A.json", help="record of the run to compare with")
    parser.add_argument("other", metavar="B.json", help="record of the run to judge")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw both curves into this file")
    parser.add_argument("--rows", type=int, default=15, help="rows of the table (default %(default)s)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE,
                        help="largest relative difference that is accepted (default %(default)s)")
    args = parser.parse_args(argv)
    try:
        reference, other = read_record(args.reference), read_record(args.other)
        table = side_by_side(reference, other, max(args.rows, 2))
        differences = relative_differences(reference["loss"], other["loss"])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table)
    if args.plot:
        plot(reference, other, args.plot)
        print(f"picture: {args.plot}")
    print(largest_difference_line(differences))
    return 0 if max(differences) <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
