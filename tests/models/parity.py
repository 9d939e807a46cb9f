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
"""How far a sharded model's numbers are from the whole model's, measured on every rank of a job.

The judges are the whole model in the same process, and another library's gradients (`registry`); a plan's own slice
maps only put the parts together.
"""
import functools
from dataclasses import dataclass
from typing import Dict

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import (
    ACTIVATION, PARAMETER_GRADIENT, CollectiveRecord, count_collectives)
from hyper_parallel.distributed.estimate import estimate
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel import templates
from tests.models import registry

STEPS = 20
# A true gradient below this part of the model's largest may be zero, and what is measured only rounding.
FLOOR = 1e-6
GRADIENT_TOLERANCE, REFERENCE_TOLERANCE = 1e-4, 1e-3


def loss_of(logits, ids):
    """Mean cross entropy of each position's logits against the next id.

    Args:
        logits: `[batch, sequence, vocabulary]`.
        ids: `[batch, sequence]`, those that the logits belong to.
    """
    vocabulary = logits.shape[-1]
    scores = ops.log_softmax(logits[:, :-1].reshape((-1, vocabulary)), -1)
    return -ops.mean(ops.gather_elements(scores, 1, ids[:, 1:].reshape((-1, 1))))


@dataclass(frozen=True)
class Run:
    """What one model gave.

    Args:
        loss: of the first step.
        logits: of the first step.
        gradients: of the first step, by path of the trainable parameters.
        losses: of all steps.
        weights: after them, by path.
        record: collectives of the first step.
    """

    loss: float
    logits: np.ndarray
    gradients: Dict[str, np.ndarray]
    losses: np.ndarray
    weights: Dict[str, np.ndarray]
    record: CollectiveRecord


def run(cell, arguments, steps=STEPS):
    """Some steps of gradient descent with momentum; an error that adds up shows in later ones.

    Args:
        cell: whole or sharded.
        arguments: of its forward; the last are the ids that the logits belong to.
        steps: how many.
    """
    paths, parameters = zip(*[(path, parameter) for path, parameter in cell.parameters_and_names()
                              if parameter.requires_grad])
    parameters = mindspore.ParameterTuple(parameters)
    optimizer = nn.Momentum(parameters, learning_rate=0.02, momentum=0.9)

    def forward(*tensors):
        logits = cell(*tensors)
        return loss_of(logits, tensors[-1]), logits

    step, losses = mindspore.value_and_grad(forward, None, parameters, has_aux=True), []
    with count_collectives() as record:
        (loss, logits), gradients = step(*arguments)
    first = (float(loss.asnumpy()), logits.asnumpy(),
             {path: gradient.asnumpy() for path, gradient in zip(paths, gradients)})
    for _ in range(steps):
        optimizer(gradients)
        (loss, _), gradients = step(*arguments)
        losses.append(float(loss.asnumpy()))
    return Run(*first, np.array(losses), {path: parameter.asnumpy() for path, parameter in zip(paths, parameters)},
               record)


def relative_differences(found, reference, tolerance):
    """Largest difference over largest reference value, by name; where the reference is below the floor, the difference
    over what brings the floor to the tolerance.

    Args:
        found: arrays by name.
        reference: arrays by the same names.
        tolerance: that the differences will be held against.
    """
    assert found.keys() == reference.keys(), found.keys() ^ reference.keys()
    floor = FLOOR * max(np.abs(array).max() for array in reference.values())
    return {name: _gap(found[name], array) / _scale(array, floor, tolerance) for name, array in reference.items()}


def _gap(found, reference):
    assert found.shape == reference.shape, (found.shape, reference.shape)
    return float(np.abs(found - reference).max())


def _scale(array, floor, tolerance):
    largest = float(np.abs(array).max())
    return largest if largest > floor else floor / tolerance


def of_all_ranks(arrays, group):
    """`[{name: array}, …]` of every rank, in one collective; every rank's arrays have the same names and shapes."""
    flat = np.concatenate([array.ravel() for array in arrays.values()])
    stacked = functional.all_gather(Tensor(flat[None].astype(np.float32)), 0, group).asnumpy()
    places = np.cumsum([array.size for array in arrays.values()])[:-1]
    return [{name: part.reshape(arrays[name].shape) for name, part in zip(arrays, np.split(row, places))}
            for row in stacked]


def whole_of(parts, plan):
    """The whole of every parameter-like array from all ranks' parts."""
    return {name: plan.unshard(name, [part[name] for part in parts]) for name in parts[0]}


def worst_over_ranks(parts, reference, plan, tolerance):
    """Largest relative difference of any rank's part of any array, and of the wholes put together: a copy that only one
    rank holds wrong counts."""
    worst = max(relative_differences(whole_of(parts, plan), reference, tolerance).values())
    floor = FLOOR * max(np.abs(array).max() for array in reference.values())
    for rank, part in enumerate(parts):
        for name, array in reference.items():
            worst = max(worst, _gap(part[name], plan.shard(name, array, rank)) / _scale(array, floor, tolerance))
    return worst


def planned_collectives(plan, name):
    """`{phase: {kind: count}}` of one forward and backward, as the plan states them; a table of an encoder and a decoder
    is looked up by both."""
    planned = {"forward": {}, "backward": {}}
    for spec in plan.boundaries.values():
        calls = len(registry.inputs(name)) if spec.semantic_role == templates.EMBEDDING else 1
        for phase, kinds in plan.expected.get(spec.semantic_role, {}).items():
            for kind, count in kinds.items():
                planned[phase][kind] = planned[phase].get(kind, 0) + count * calls
    return planned


def estimated_bytes(plan, name):
    """Bytes that the estimate puts on the wire for the reference inputs; None where encoder and decoder differ."""
    config = ModelFacts.from_config(registry.config_of(name))
    if len(registry.inputs(name)) > 1:
        return None
    batch, length = registry.inputs(name)[0].shape
    return estimate(plan, config.hidden_size, config.heads, config.layers, batch=batch, sequence=length,
                    activation_bytes=4).communication


def counted_bytes(record, plan):
    """Bytes that one rank sent for activations, without the head's: its logits are not the residual stream's width."""
    heads = [path for path, spec in plan.boundaries.items() if spec.semantic_role == templates.LM_HEAD]
    of_heads = sum(record.wire_bytes(purpose=ACTIVATION, where=path) for path in heads)
    return record.wire_bytes(purpose=ACTIVATION) - of_heads


@functools.lru_cache(maxsize=1)
def reference_of(name):
    """What the whole model gives in PyNative."""
    return run(registry.build(name), registry.inputs(name))


def norm_of(arrays):
    """Euclidean norm of all elements."""
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values())))


def measure(name, mesh, graph_mode=False, **options):
    """Apply a plan and compare; every rank of the mesh's one axis `tp` calls it.

    Args:
        name: of the model, in `registry.MODELS`.
        mesh: one axis, `tp`.
        graph_mode: forward, backward and optimizer are compiled.
        **options: as for `hp.plan`, for example `sequence_parallel=True`.

    Returns:
        Relative differences `logits`, `loss`, `gradient` (worst parameter), `gradient_norm`, `reference` (worst
        gradient against the other library's), `curve` (worst loss of the steps), `weight` (worst parameter after them);
        in PyNative also `counted` and `planned` collectives, `wire_bytes` and `estimated_bytes`, and `sums` of
        parameter gradients.

    Raises:
        NotImplementedError: `hp.apply` cannot do it.
    """
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    whole = reference_of(name)
    cell, group = registry.build(name), mesh.get_group("tp")
    plan = hp.plan(cell, mesh.size("tp"), **options)
    hp.apply(cell, plan, mesh)
    mindspore.set_context(mode=mindspore.GRAPH_MODE if graph_mode else mindspore.PYNATIVE_MODE)
    try:
        found = run(cell, registry.inputs(name))
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    gradients, weights = of_all_ranks(found.gradients, group), of_all_ranks(found.weights, group)
    figures = {
        "logits": _gap(found.logits, whole.logits) / np.abs(whole.logits).max(),
        "loss": abs(found.loss - whole.loss) / abs(whole.loss),
        "gradient": worst_over_ranks(gradients, whole.gradients, plan, GRADIENT_TOLERANCE),
        "gradient_norm": abs(norm_of(whole_of(gradients, plan)) / norm_of(whole.gradients) - 1),
        "reference": worst_over_ranks(gradients, registry.reference_gradients(name), plan, REFERENCE_TOLERANCE),
        "curve": np.abs(found.losses / whole.losses - 1).max(),
        "weight": worst_over_ranks(weights, whole.weights, plan, GRADIENT_TOLERANCE),
    }
    # what one rank sees is not what another sees: the largest counts
    seen = of_all_ranks({key: np.array(value) for key, value in figures.items()}, group)
    figures = {key: max(float(part[key]) for part in seen) for key in figures}
    figures["falls"] = whole.losses[-1] / whole.loss
    if not graph_mode:
        figures["counted"] = {phase: dict(found.record.counts(purpose=ACTIVATION, phase=phase))
                              for phase in ("forward", "backward")}
        figures["planned"] = planned_collectives(plan, name)
        figures["wire_bytes"] = counted_bytes(found.record, plan)
        figures["estimated_bytes"] = estimated_bytes(plan, name)
        figures["sums"] = found.record.count(purpose=PARAMETER_GRADIENT)
        figures["planned_sums"] = sum(len(spec.grad_sum_axes) + (spec.copies > 1) for spec in plan.parameters.values()
                                      if not spec.frozen)
    return figures
