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

The judges are the whole model in the same process, and another library's gradients (`registry`); a plan's own slice maps
only put the parts together.
"""
import functools

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import ACTIVATION, PARAMETER_GRADIENT, count_collectives
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


def trainable(cell):
    """Paths and parameters, in the model's order."""
    return zip(*[(path, parameter) for path, parameter in cell.parameters_and_names() if parameter.requires_grad])


def step_of(cell):
    """The function of the inputs that gives (loss, logits) and the gradients of the trainable parameters."""
    _, parameters = trainable(cell)

    def forward(*tensors):
        logits = cell(*tensors)
        return loss_of(logits, tensors[-1]), logits

    return mindspore.value_and_grad(forward, None, mindspore.ParameterTuple(parameters), has_aux=True)


def loss_and_gradients(cell, arguments):
    """Loss, logits, and the gradients by path of the trainable parameters, as numpy arrays."""
    (loss, logits), gradients = step_of(cell)(*arguments)
    paths, _ = trainable(cell)
    return (float(loss.asnumpy()), logits.asnumpy(),
            {path: gradient.asnumpy() for path, gradient in zip(paths, gradients)})


def train(cell, arguments):
    """The losses of some steps of gradient descent with momentum; an error that adds up shows."""
    paths, parameters = trainable(cell)
    optimizer = nn.Momentum(mindspore.ParameterTuple(parameters), learning_rate=0.02, momentum=0.9)
    step, losses = step_of(cell), []
    for _ in range(STEPS):
        (loss, _), gradients = step(*arguments)
        optimizer(gradients)
        losses.append(float(loss.asnumpy()))
    return np.array(losses), {path: parameter.asnumpy() for path, parameter in zip(paths, parameters)}


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


def planned_collectives(plan):
    """`{phase: {kind: count}}` of one forward and backward, as the plan states them."""
    planned = {"forward": {}, "backward": {}}
    for spec in plan.boundaries.values():
        for phase, kinds in plan.expected.get(spec.semantic_role, {}).items():
            for kind, count in kinds.items():
                planned[phase][kind] = planned[phase].get(kind, 0) + count
    return planned


def estimated_bytes(plan, name):
    """Bytes that the plan's estimate puts on the wire for the reference inputs; None where encoder and decoder differ."""
    config = ModelFacts.from_config(registry.config_of(name))
    if len(registry.inputs(name)) > 1:
        return None
    batch, length = registry.inputs(name)[0].shape
    return estimate(plan, config.hidden_size, config.heads, config.layers, batch=batch, sequence=length,
                    activation_bytes=4).communication


def counted_bytes(record, plan):
    """Bytes that one rank sent for activations, without the head's: its logits are not the residual stream's width."""
    heads = [path for path, spec in plan.boundaries.items() if spec.semantic_role == templates.LM_HEAD]
    return record.wire_bytes(purpose=ACTIVATION) - sum(record.wire_bytes(purpose=ACTIVATION, where=path) for path in heads)


@functools.lru_cache(maxsize=1)
def reference_of(name):
    """What the whole model gives in PyNative: loss, logits, gradients, losses of the steps, weights after them."""
    cell, arguments = registry.build(name), registry.inputs(name)
    return (*loss_and_gradients(cell, arguments), *train(cell, arguments))


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
    loss, logits, gradients, losses, weights = reference_of(name)
    cell, arguments, group = registry.build(name), registry.inputs(name), mesh.get_group("tp")
    plan = hp.plan(cell, mesh.size("tp"), **registry.PLAN_OPTIONS.get(name, {}), **options)
    hp.apply(cell, plan, mesh)
    mindspore.set_context(mode=mindspore.GRAPH_MODE if graph_mode else mindspore.PYNATIVE_MODE)
    try:
        with count_collectives() as record:
            found_loss, found_logits, found_gradients = loss_and_gradients(cell, arguments)
        found_losses, found_weights = train(cell, arguments)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    gradient_parts, weight_parts = of_all_ranks(found_gradients, group), of_all_ranks(found_weights, group)
    figures = {
        "logits": _gap(found_logits, logits) / np.abs(logits).max(),
        "loss": abs(found_loss - loss) / abs(loss),
        "gradient": worst_over_ranks(gradient_parts, gradients, plan, GRADIENT_TOLERANCE),
        "gradient_norm": abs(norm_of(whole_of(gradient_parts, plan)) / norm_of(gradients) - 1),
        "reference": worst_over_ranks(gradient_parts, registry.reference_gradients(name), plan, REFERENCE_TOLERANCE),
        "curve": np.abs(found_losses / losses - 1).max(),
        "weight": worst_over_ranks(weight_parts, weights, plan, GRADIENT_TOLERANCE),
    }
    # what one rank sees is not what another sees: the largest counts
    seen = of_all_ranks({key: np.array(value) for key, value in figures.items()}, group)
    figures = {key: max(float(part[key]) for part in seen) for key in figures}
    figures["falls"] = losses[-1] / losses[0]
    if not graph_mode:
        figures["counted"] = {phase: dict(record.counts(purpose=ACTIVATION, phase=phase))
                              for phase in ("forward", "backward")}
        figures["planned"] = planned_collectives(plan)
        figures["wire_bytes"], figures["estimated_bytes"] = counted_bytes(record, plan), estimated_bytes(plan, name)
        figures["sums"] = record.count(purpose=PARAMETER_GRADIENT)
        figures["planned_sums"] = sum(len(spec.grad_sum_axes) + (spec.copies > 1) for spec in plan.parameters.values()
                                      if not spec.frozen)
    return figures
