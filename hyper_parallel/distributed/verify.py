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
"""The judge: does a model give the same numbers on many ranks as on one? Outputs and every gradient."""
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import mindspore
import numpy as np
from mindspore import Tensor, ops
from rich.console import Console
from rich.table import Table

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.groups import get_group, world_size
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.distributed import local_parameter
from hyper_parallel.distributed.applier import apply
from hyper_parallel.distributed.planner import plan as make_plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan

# A true gradient can be zero (a key's bias under softmax) and comes out as rounding noise, whose relative difference says
# nothing: below this share of the model's largest gradient it only has to stay below it.
_FLOOR = 1e-6


@dataclass(frozen=True)
class Difference:
    """One compared tensor.

    Args:
        name: `output`, `output[i]`, or a parameter's path.
        relative: largest absolute difference over the largest absolute reference, with a floor.
        absolute: largest absolute difference, over all ranks.
        rank: where it is.
    """

    name: str
    relative: float
    absolute: float
    rank: int


@dataclass(frozen=True)
class VerifyReport:
    """The outcome: every compared tensor, the worst first.

    Args:
        tp: ranks of the tensor-parallel axis.
        tolerance: largest relative difference that passes.
        differences: all of them, worst first.
        plan: the plan that was applied.
    """

    tp: int
    tolerance: float
    differences: Tuple[Difference, ...]
    plan: ShardingPlan

    @property
    def ok(self) -> bool:
        """True when no difference exceeds the tolerance."""
        return self.worst.relative <= self.tolerance

    @property
    def worst(self) -> Difference:
        """The largest relative difference."""
        return self.differences[0]

    def table(self, rows: int = 20) -> str:
        """The worst `rows` as text."""
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                      title=f"tp {self.tp} against 1: {'the same' if self.ok else 'DIFFERENT'} numbers "
                            f"(largest relative difference {self.worst.relative:.2e}, tolerance {self.tolerance:.0e})")
        for column in ("tensor", "relative", "absolute", "rank", "role"):
            table.add_column(column, overflow="fold")
        for one in self.differences[:rows]:
            spec = self.plan.parameters.get(one.name)
            table.add_row(one.name, f"{one.relative:.2e}", f"{one.absolute:.2e}", str(one.rank),
                          spec.role if spec else "")
        console = Console(width=140, color_system=None)
        with console.capture() as capture:
            console.print(table)
        return capture.get()

    __str__ = table


def verify(build_model: Callable[[], Any], inputs: Union[Any, Sequence], tp: int, *, tolerance: float = 1e-4,
           seed: int = 1, **options) -> VerifyReport:
    """Compare a model at tp=1 with the same model at tp=N. Every rank of the job calls it.

    The model is built twice on every rank, with equal weights; one of them is planned and applied. Gradients are those
    of the sum of the first output times fixed random numbers, so that nothing cancels.

    Args:
        build_model: makes the Cell; called twice after the same seed, it must give the same weights on every rank.
        inputs: the forward's inputs, one or a sequence, equal on all ranks.
        tp: must be the number of ranks of the job.
        tolerance: largest relative difference that passes.
        seed: of the weights and of the random numbers.
        **options: as for `plan`.

    Returns:
        VerifyReport: equal on all ranks; print it.

    Raises:
        ValueError: the job has another number of ranks, or the two builds have different weights.

    Examples:
        >>> report = hp.verify(lambda: Decoder(config), input_ids, tp=2)
        >>> assert report.ok, report
    """
    ranks = world_size() or 1
    if ranks != tp:
        raise ValueError(f"verify at tp={tp} runs on {tp} ranks, but this job has {ranks}: start it with "
                         f"msrun --worker_num={tp} --local_worker_num={tp}, after mindspore.communication.init()")
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    whole, sharded = _build(build_model, seed), _build(build_model, seed)
    _check_same_weights(whole, sharded)
    mesh = init_device_mesh("npu", (tp,), mesh_dim_names=("tp",))
    plan = make_plan(sharded, tp, **options)
    apply(sharded, plan, mesh)
    group = get_group(tuple(range(tp)))
    reference_outputs, reference_gradients = run(whole, inputs, seed)
    outputs, gradients = run(sharded, inputs, seed)
    differences = [_difference(name, outputs[name], reference, np.abs(reference).max(), group)
                   for name, reference in reference_outputs.items()]
    floor = _FLOOR * max((np.abs(gradient).max() for gradient in reference_gradients.values()), default=0.0)
    for path, reference in reference_gradients.items():
        gradient = local_parameter.gather(Tensor(gradients[path]), plan.parameters[path], group)
        largest = np.abs(reference).max()
        differences.append(_difference(path, gradient, reference, largest if largest > floor else floor / tolerance, group))
    differences.sort(key=lambda one: -one.relative)
    return VerifyReport(tp, tolerance, tuple(differences), plan)


def run(cell, inputs: Sequence, seed: int = 1) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Outputs by name, and the gradient of every trainable parameter by path, of one forward and backward.

    Args:
        cell (Cell): whole or sharded.
        inputs: the forward's inputs.
        seed: of the random numbers that the first output is weighted with.
    """
    paths, parameters = zip(*[(path, parameter) for path, parameter in cell.parameters_and_names()
                              if parameter.requires_grad])

    def weighted(*arguments):
        result = cell(*arguments)
        first = result[0] if isinstance(result, tuple) else result
        weights = Tensor(np.random.default_rng(seed).standard_normal(first.shape).astype(np.float32))
        return ops.sum(ops.cast(first, mindspore.float32) * weights), result

    (_, result), gradients = mindspore.value_and_grad(weighted, None, mindspore.ParameterTuple(parameters),
                                                      has_aux=True)(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    outputs = {"output" if len(results) == 1 else f"output[{index}]": _to_numpy(one)
               for index, one in enumerate(results) if isinstance(one, Tensor)}
    return outputs, {path: _to_numpy(gradient) for path, gradient in zip(paths, gradients)}


def _to_numpy(tensor) -> np.ndarray:
    return ops.cast(tensor, mindspore.float32).asnumpy()


def _build(build_model, seed: int):
    mindspore.set_seed(seed)
    np.random.seed(seed)
    cell = build_model()
    for _, parameter in cell.parameters_and_names():
        parameter.init_data()
    return cell


def _check_same_weights(first, second):
    others = dict(second.parameters_and_names())
    for path, parameter in first.parameters_and_names():
        if not np.array_equal(_to_numpy(parameter), _to_numpy(others[path])):
            raise ValueError(f"build_model gave other weights the second time ({path!r}): draw them from MindSpore's "
                             "or numpy's global generator, or load them, so that the same seed gives the same model")


def _difference(name: str, found: np.ndarray, reference: np.ndarray, scale: float, group) -> Difference:
    """The largest difference over all ranks: a wrong number on one rank alone is wrong."""
    if found.shape != reference.shape:
        raise ValueError(f"{name} has shape {found.shape} on {group.size} ranks and {reference.shape} on one: a size that "
                         "the forward still counts whole, or a table that it reads outside of its lookup")
    gap = np.abs(found - reference).max() if found.size else 0.0
    mine = Tensor(np.array([np.inf if np.isnan(gap) else gap], np.float32))
    gaps: List[float] = list(functional.all_gather(mine, 0, group).asnumpy())
    rank = int(np.argmax(gaps))
    return Difference(name, float(gaps[rank]) / max(float(scale), 1e-30), float(gaps[rank]), rank)
