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
"""MindSpore's own parallel compiler as a judge: what it makes of strategies, on a machine without accelerators.

`ask(world, cases)` starts one process that stands for rank 0 of a job of `world` ranks, lets it compile every case, and
returns what the compiler decided: each parameter's local shape, every collective with its ranks, or its own error.
"""
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from tests.graph import stand_in_libraries

ROOT = Path(__file__).resolve().parents[2]
SEMI_AUTO, PROPAGATION = "semi_auto_parallel", "sharding_propagation"
_NODE = re.compile(r"^  %\d+\([^)]*\) = (?:PrimFunc_)?(AllReduce|AllGather|ReduceScatter|AlltoAllV?|AllSwap)\(")


@dataclass(frozen=True)
class Case:
    """One network to compile.

    Args:
        build: `module:function`; the function returns `(cell, inputs)` once the parallel context is set.
        mode: `SEMI_AUTO` or `PROPAGATION`.
        arguments: keyword arguments of the function.
        backward: compile the gradients of all trainable parameters too.
    """

    build: str
    mode: str = SEMI_AUTO
    arguments: Dict = field(default_factory=dict)
    backward: bool = False


class Collective(NamedTuple):
    """One collective of the compiled graph.

    Args:
        kind: `AllReduce`, `AllGather`, `ReduceScatter`, `AlltoAll`, …
        ranks: who takes part.
        phase: `forward`, `backward` (of an activation) or `parameter_gradient`.
        scope: path of the operator that it serves.
        shape: of its result.
    """

    kind: str
    ranks: Tuple[int, ...]
    phase: str
    scope: str
    shape: Tuple[int, ...]


class Compiled(NamedTuple):
    """What the compiler made of a case.

    Args:
        error: its words, or None.
        parameters: `{name: local shape}`.
        collectives: of the graph, in order.
        notes: what the function that built the cell left in its attribute `notes`.
    """

    error: str
    parameters: Dict[str, Tuple[int, ...]]
    collectives: List[Collective]
    notes: Dict = {}

    def count(self, phase: str, stride: int = None) -> Dict[str, int]:
        """`{kind: number}` of a phase; with `stride` only those whose ranks are that far apart (1 is the last axis)."""
        found = {}
        for one in self.collectives:
            if one.phase == phase and (stride is None or one.ranks[1] - one.ranks[0] == stride):
                found[one.kind] = found.get(one.kind, 0) + 1
        return found


def ask(world: int, cases: Sequence[Case], rank: int = 0, timeout: float = 600) -> List[Compiled]:
    """Compile the cases as one rank of a job; see the module.

    Raises:
        RuntimeError: the process ended before it had answered; the message holds its last words.
    """
    environment = {**os.environ, **stand_in_libraries.environment(world, rank), "GLOG_v": "3",
                   "MS_DEV_DUMP_IR_PASSES": "validate",
                   "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "tests.graph.offline_compiler", json.dumps(
            [asdict(case) for case in cases])], cwd=folder, env=environment, capture_output=True, text=True,
                              timeout=timeout, check=False)
    answers = [json.loads(line[len("ANSWER "):]) for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if len(answers) != len(cases):
        raise RuntimeError(f"the compiler answered {len(answers)} of {len(cases)} cases and ended:\n"
                           f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return [Compiled(answer["error"], {name: tuple(shape) for name, shape in answer["parameters"].items()},
                     [Collective(kind, tuple(ranks), phase, scope, tuple(shape))
                      for kind, ranks, phase, scope, shape in answer["collectives"]], answer["notes"])
            for answer in answers]


def collectives_of(text: str, world: int) -> List[Collective]:
    """The collectives in the text of a graph that was compiled for a job of `world` ranks."""
    found, lines = [], text.splitlines()
    for at, line in enumerate(lines):
        node = _NODE.match(line)
        if node is None:
            continue
        named = re.search(r"group_rank_ids: \(([^)]*)\)", line)  # not there for all ranks
        ranks = tuple(int(rank) for rank in named[1].split(",")) if named else tuple(range(world))
        sizes = re.search(r"-> \(<Tensor\[\w+\], \(([^)]*)\)", lines[at + 1])[1]
        shape = tuple(int(size) for size in re.findall(r"\d+", sizes))
        scope = next(re.search(r"Fullname with scope: \((.*)\)", line)[1] for line in lines[at + 2:]
                     if "Fullname with scope" in line)
        if "_MirrorOperator" in scope:
            phase = "parameter_gradient"
        else:
            phase = "backward" if scope.startswith("Gradients") else "forward"
        found.append(Collective(node[1], ranks, phase, scope, shape))
    return found


def _compile(case: Case, folder: str) -> Compiled:
    """In the rank's process."""
    import mindspore as ms
    from mindspore import nn
    from mindspore.communication import get_group_size
    from mindspore.graph.api import _cell_graph_executor

    class Gradients(nn.Cell):
        """The network's gradients with respect to its parameters."""

        def __init__(self, network):
            super().__init__(auto_prefix=False)
            self.network = network
            self.weights = ms.ParameterTuple(network.trainable_params())
            self.gradient = ms.ops.GradOperation(get_by_list=True)

        def construct(self, *inputs):
            """One gradient for each parameter."""
            return self.gradient(self.network, self.weights)(*inputs)

    ms.context.reset_auto_parallel_context()
    ms.context.set_context(save_graphs=1, save_graphs_path=folder)
    searched = {"search_mode": PROPAGATION} if case.mode == PROPAGATION else {}
    ms.context.set_auto_parallel_context(
        parallel_mode="auto_parallel" if searched else case.mode, device_num=get_group_size(), full_batch=True,
        **searched)
    module, _, function = case.build.partition(":")
    try:
        cell, inputs = getattr(importlib.import_module(module), function)(**case.arguments)
        network = Gradients(cell).set_train() if case.backward else cell
        # exported graphs end where the parallel compiler has done its work, before kernels are chosen for a device
        _cell_graph_executor.compile(network, *inputs, phase="export.parallel")
    except Exception as error:  # pylint: disable=broad-except  # the compiler's own words are the answer
        return Compiled(f"{type(error).__name__}: {error}", {}, [], {})
    layouts = network.parameter_layout_dict
    shapes = {name: layouts[name][2] if name in layouts else parameter.shape
              for name, parameter in ((one.name, one) for one in cell.get_parameters())}
    (graph,) = Path(folder).rglob("*_validate_*.ir")
    return Compiled(None, shapes, collectives_of(graph.read_text(encoding="utf-8"), get_group_size()),
                    getattr(cell, "notes", {}))


def _answer(cases: Sequence[Case]):
    import mindspore as ms
    from mindspore.communication import init
    ms.context.set_context(device_target="GPU", mode=ms.GRAPH_MODE)
    init()
    for at, case in enumerate(cases):
        print("ANSWER " + json.dumps(_compile(case, f"graphs_{at}")._asdict()), flush=True)
    os._exit(0)  # the stand-in runtime cannot be torn down in order


if __name__ == "__main__":
    _answer([Case(**case) for case in json.loads(sys.argv[1])])
