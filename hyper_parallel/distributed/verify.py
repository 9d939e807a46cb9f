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
import dataclasses
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mindspore
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.collectives.groups import get_group, world_size
from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.applier import apply
from hyper_parallel.distributed.planner import plan as make_plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.tensor_parallel.loss import cut_head
from hyper_parallel.distributed.tensor_parallel.templates import AXIS
from hyper_parallel.distributed.verify_causes import ForwardCauses, GradientCauses, gather_ranks
from hyper_parallel.distributed.verify_report import Difference, VerifyReport
from hyper_parallel.distributed.verify_trace import in_mode, to_numpy

__all__ = ["Difference", "Numbers", "Subject", "VerifyReport", "compare", "run", "verify"]

MODES = ("pynative", "jit", "graph")
# A true gradient can be zero (a key's bias under softmax) and comes out as rounding noise, whose relative difference says
# nothing: below this share of the model's largest gradient it only has to stay below it.
_FLOOR = 1e-6
_MESSAGE = 600


class Numbers(NamedTuple):
    """What one forward and backward gave.

    Args:
        outputs: by name.
        gradients: of every trainable parameter, by path; this rank's part where the parameter is cut.
    """

    outputs: Dict[str, np.ndarray]
    gradients: Dict[str, np.ndarray]


class Subject(NamedTuple):
    """One of the two models that are compared.

    Args:
        cell: the model.
        run: one forward and backward.
        forward: one forward, to watch its boundaries where numbers differ.
    """

    cell: Any
    run: Callable[[], Numbers]
    forward: Callable[[], Any]


def verify(build_model: Callable[[], Any], inputs: Union[Any, Sequence], tp: int, *, mode: str = "pynative",
           plan: Optional[ShardingPlan] = None, tolerance: float = 1e-4, seed: int = 1, **options) -> VerifyReport:
    """Compare a model at tp=1 with the same model at tp=N. Every rank of the job calls it.

    The model is built twice on every rank, with equal weights; one of them is planned and applied. Gradients are those
    of the sum of the first output times fixed random numbers, so that nothing cancels. Where numbers differ, the first
    boundary whose result is wrong is searched, and known causes are tried out on it; see `VerifyReport.suspects`.

    Args:
        build_model: makes the Cell; called twice after the same seed, it must give the same weights on every rank.
        inputs: the forward's inputs, one or a sequence, equal on all ranks.
        tp: must be the number of ranks of the job.
        mode: how both models run: "pynative", "jit" (forward and backward under mindspore.jit) or "graph" (GRAPH_MODE).
        plan: a plan to put to the proof; None plans the model with `options`.
        tolerance: largest relative difference that passes.
        seed: of the weights and of the random numbers.
        **options: as for `plan`.

    Returns:
        VerifyReport: equal on all ranks; print it.

    Raises:
        ValueError: the job has another number of ranks, the two builds have different weights, no such mode, or the plan
            is refused.

    Examples:
        >>> report = hp.verify(lambda: Decoder(config), input_ids, tp=2)
        >>> assert report.ok, report
    """
    if mode not in MODES:
        raise ValueError(f"verify has no mode {mode!r}: valid are {', '.join(MODES)}")
    ranks = world_size() or 1
    if ranks != tp:
        raise ValueError(f"verify at tp={tp} runs on {tp} ranks, but this job has {ranks}: start it with "
                         f"msrun --worker_num={tp} --local_worker_num={tp}, after mindspore.communication.init()")
    if plan is not None and options:
        raise ValueError(f"verify got a plan, and {', '.join(options)} besides: those are for making one")
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    whole, sharded = _build(build_model, seed), _build(build_model, seed)
    _check_same_weights(whole, sharded)
    plan = make_plan(sharded, tp, **options) if plan is None else plan
    apply(sharded, plan, init_device_mesh("npu", (tp,), mesh_dim_names=(AXIS,)))
    head = cut_head(plan)
    logits = CutLogits(head[1].out_size, get_group(tuple(range(tp)))) if head else None
    return compare(Subject(whole, lambda: run(whole, inputs, seed, mode), lambda: whole(*inputs)),
                   Subject(sharded, lambda: run(sharded, inputs, seed, mode, logits), lambda: sharded(*inputs)),
                   plan, tolerance, mode)


def compare(whole: Subject, sharded: Subject, plan: ShardingPlan, tolerance: float, mode: str = "pynative"
            ) -> VerifyReport:
    """Run both and compare; every rank of the job calls it.

    Args:
        whole: the reference.
        sharded: the same model with the plan applied.
        plan: the plan.
        tolerance: largest relative difference that passes.
        mode: how they run, for the report.
    """
    group = get_group(tuple(range(plan.tp)))
    reference = whole.run()
    causes = ForwardCauses(whole, sharded, plan, group, tolerance)
    try:
        found = sharded.run()
    except Exception as error:  # pylint: disable=broad-except
        # whatever the model raises is the finding: it runs whole and does not run sharded
        suspect = causes.head_count()
        return VerifyReport(plan.tp, tolerance, (), plan, mode, (suspect,) if suspect else (),
                            f"{type(error).__name__}: {_says(error)}")
    differences = _differences(reference, found, plan, group, tolerance)
    report = VerifyReport(plan.tp, tolerance, differences, plan, mode)
    return report if report.ok or plan.tp == 1 else _with_causes(report, causes, reference, found, group)


def _says(error: Exception) -> str:
    """What an error says, without the rulers that MindSpore draws around its compiler's messages."""
    lines = [line.strip() for line in str(error).splitlines() if any(letter.isalpha() for letter in line)]
    return " ".join(lines)[:_MESSAGE]


def _with_causes(report: VerifyReport, forward: ForwardCauses, reference: Numbers, found: Numbers, group
                 ) -> VerifyReport:
    first, suspects = forward.find()
    named: Mapping[str, str] = {}
    if first:
        named = {path: one.cause for one in suspects for path in report.plan.parameters
                 if path == one.where or path.startswith(f"{first}.")}
    else:
        wrong = [one.name for one in report.differences
                 if one.relative > report.tolerance and one.name in report.plan.parameters]
        named, suspects = GradientCauses(report.plan, group, report.tolerance).find(
            wrong, found.gradients, reference.gradients)
    differences = tuple(dataclasses.replace(one, cause=named.get(one.name, "")) if one.relative > report.tolerance else one
                        for one in report.differences)
    return dataclasses.replace(report, differences=differences, suspects=tuple(suspects), first_difference=first)


class CutLogits(NamedTuple):
    """The first result of a model under loss parallel: this rank's columns of a vocabulary.

    Args:
        vocabulary: its size, without padding.
        group: the ranks that hold the columns.
    """

    vocabulary: int
    group: Any

    def part(self, whole: np.ndarray) -> np.ndarray:
        """This rank's columns of the last dim, zeros where it is padded."""
        return self._map(whole.shape).shard(whole, self.group.index)

    def gather(self, local: np.ndarray) -> np.ndarray:
        """The whole."""
        whole = self._map(local.shape[:-1] + (self.vocabulary,))
        return whole.unshard(list(gather_ranks(local, self.group)))

    def _map(self, shape) -> SliceMap:
        return SliceMap.plain(shape, -1, self.group.size, pad=True)


def run(cell, inputs: Sequence, seed: int = 1, mode: str = "pynative", logits: Optional[CutLogits] = None) -> Numbers:
    """Outputs by name, and the gradient of every trainable parameter by path, of one forward and backward.

    Args:
        cell (Cell): whole or sharded.
        inputs: the forward's inputs.
        seed: of the random numbers that the first output is weighted with.
        mode: "pynative", "jit" or "graph".
        logits: how the first output is cut over the vocabulary; None for one that is whole.
    """
    paths, parameters = zip(*[(path, parameter) for path, parameter in cell.parameters_and_names()
                              if parameter.requires_grad])

    def weights_for(shape):
        whole = shape if logits is None else shape[:-1] + (logits.vocabulary,)
        drawn = np.random.default_rng(seed).standard_normal(whole).astype(np.float32)
        return Tensor(drawn if logits is None else logits.part(drawn))

    def weighted(*arguments):
        result = cell(*arguments)
        first = result[0] if isinstance(result, tuple) else result
        return ops.sum(ops.cast(first, mindspore.float32) * weights_for(first.shape)), result

    def weighted_in_graph(weights, *arguments):
        result = cell(*arguments)
        first = result[0] if isinstance(result, tuple) else result
        return ops.sum(ops.cast(first, mindspore.float32) * weights), result

    with in_mode(mode):
        if mode == "pynative":
            step, arguments = weighted, tuple(inputs)
        else:
            # the compiler makes no random numbers of a shape: the forward says it first
            result = cell(*inputs)
            first = result[0] if isinstance(result, tuple) else result
            step, arguments = weighted_in_graph, (weights_for(first.shape), *inputs)
        step = mindspore.value_and_grad(step, None, mindspore.ParameterTuple(parameters), has_aux=True)
        (_, result), gradients = (mindspore.jit(step) if mode == "jit" else step)(*arguments)
    results = result if isinstance(result, tuple) else (result,)
    outputs = {"output" if len(results) == 1 else f"output[{index}]": to_numpy(one)
               for index, one in enumerate(results) if isinstance(one, Tensor)}
    if logits is not None:
        first = next(iter(outputs))
        outputs[first] = logits.gather(outputs[first])
    return Numbers(outputs, {path: to_numpy(gradient) for path, gradient in zip(paths, gradients)})


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
        if not np.array_equal(to_numpy(parameter), to_numpy(others[path])):
            raise ValueError(f"build_model gave other weights the second time ({path!r}): draw them from MindSpore's "
                             "or numpy's global generator, or load them, so that the same seed gives the same model")


def _differences(reference: Numbers, found: Numbers, plan: ShardingPlan, group, tolerance: float
                 ) -> Tuple[Difference, ...]:
    """Every rank compares what it holds, copies included: a wrong number on one rank alone is wrong."""
    names: List[str] = []
    gaps: List[float] = []
    scales: List[float] = []
    for name, whole in reference.outputs.items():
        names.append(name)
        gaps.append(_gap(found.outputs[name], whole))
        scales.append(float(np.abs(whole).max(initial=0.0)))
    floor = _FLOOR * max((np.abs(gradient).max(initial=0.0) for gradient in reference.gradients.values()), default=0.0)
    for path, whole in reference.gradients.items():
        slice_map, local = plan.parameters[path].slice_map, found.gradients[path]
        pieces = slice_map.pieces(group.index if slice_map.cuts else None)
        names.append(path)
        gaps.append(max((_gap(local[mine], whole[theirs]) for theirs, mine in pieces), default=0.0))
        largest = float(np.abs(whole).max(initial=0.0))
        scales.append(largest if largest > floor else floor / tolerance)
    by_rank = gather_ranks(np.array(gaps, np.float32), group)
    ranks = by_rank.argmax(0)
    differences = [Difference(name, float(by_rank[rank, at]) / max(scale, 1e-30), float(by_rank[rank, at]), int(rank))
                   for at, (name, scale, rank) in enumerate(zip(names, scales, ranks))]
    return tuple(sorted(differences, key=lambda one: -one.relative))


def _gap(found: np.ndarray, reference: np.ndarray) -> float:
    """Largest absolute difference; infinite where one is no number or the shapes differ."""
    if found.shape != reference.shape:
        return float("inf")
    gap = float(np.abs(found.astype(np.float64) - reference).max(initial=0.0))
    return float("inf") if np.isnan(gap) else gap
