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
"""A norm whose width is cut: its mean square, or mean and variance, runs over all ranks.

What a class computes is found out by running it on numbers and comparing with the known formulas, not by its name; a
class that computes something else is refused.
"""
import itertools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

from hyper_parallel.core.collectives import transitions
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.distributed.edges import replace_construct

RMS, LAYER = "rms", "layer"
_GATES = (None, "before", "after")
_USUAL_EPSILONS = (1e-6, 1e-5, 1e-12, 1e-8, 1e-7, 0.0)
_TOLERANCE = 1e-4


def identify_norm(cell, path: str, arguments: int) -> Dict[str, Any]:
    """What a norm computes, as plain data for `ModuleShardingSpec.local_compute_arguments`.

    Args:
        cell: with whole parameters, real or meta; its values do not matter and are not changed.
        path: its name, for the message.
        arguments: number of its forward's arguments; a second one is a gate.

    Returns:
        `kind` (rms or layer), `epsilon`, `scale` and `bias` (names of parameters, or None), `offset` (what is added to
        the scale), `gate` (None; `before` or `after` the norm, through SiLU).

    Raises:
        ValueError: it computes none of the known formulas.

    Examples:
        >>> identify_norm(nn.LayerNorm((64,)), "norm", 1)                                       # doctest: +SKIP
        {'kind': 'layer', 'epsilon': 1e-07, 'scale': 'gamma', 'bias': 'beta', 'offset': 0.0, 'gate': None}
    """
    vectors = {name: tuple(parameter.shape) for name, parameter in cell._params.items() if parameter is not None}
    width = max(shape[0] for shape in vectors.values())
    generator = np.random.default_rng(0)
    values = {name: generator.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in vectors.items()}
    # rows of several scales, so that epsilon shows
    rows = generator.standard_normal((5, width)) + 0.3
    x = (rows * np.array([1.0, 1e-2, 1e-3, 1e-5, 3e-6])[:, None]).astype(np.float32)
    gate = generator.standard_normal(x.shape).astype(np.float32)
    takes_gate = arguments > 1
    found = _run(cell, values, (x, gate) if takes_gate else (x,))
    are_vectors = all(shape == (width,) for shape in vectors.values())
    for form in _forms(list(vectors), _epsilons(cell), takes_gate) if found is not None and are_vectors else ():
        expected = _compute(form, values, x.astype(np.float64), gate.astype(np.float64))
        scale = np.abs(expected).max(-1, keepdims=True)
        if found.shape == expected.shape and np.all(np.abs(found - expected) <= _TOLERANCE * scale):
            return form
    raise ValueError(
        f"{path!r} ({type(cell).__name__}) normalises over a width that the plan cuts, and what it computes is neither "
        "a root mean square norm nor a layer norm (scale w or 1 + w, bias, a SiLU gate): write it as one of them, or "
        f"keep the attention around it whole with auto_tp_config.overrides: "
        f"[{{match: \"{path.rpartition('.')[0]}.*\", replicate: true}}]")


def norm_over_cut_dim(cell, form: Mapping[str, Any], group, path: str) -> Callable[[], None]:
    """Replace the norm's forward by one over all ranks' columns; one sum of one or two numbers a token.

    Args:
        cell: with this rank's part of its parameters.
        form: what `identify_norm` found.
        group: the ranks of the axis.
        path: the module's, for the counter.

    Returns:
        What undoes it.
    """
    total = Transition(transitions.REDUCE_FOR_LOCAL_MATH, group, where=path)
    ranks, epsilon, offset = group.size, form["epsilon"], form["offset"]
    scale_name, bias_name = form["scale"], form["bias"]
    is_layer, before, after = form["kind"] == LAYER, form["gate"] == "before", form["gate"] == "after"

    def construct(self, x, gate=None):
        y = ops.cast(x, mindspore.float32)
        if before and gate is not None:
            y = y * _silu(ops.cast(gate, mindspore.float32))
        width = y.shape[-1] * ranks
        squares = ops.sum(y * y, -1, keepdim=True)
        if is_layer:
            both = total(ops.concat((ops.sum(y, -1, keepdim=True), squares), -1)) / width
            mean = both[..., :1]
            y = (y - mean) * ops.rsqrt(both[..., 1:] - mean * mean + epsilon)
        else:
            y = y * ops.rsqrt(total(squares) / width + epsilon)
        if after and gate is not None:
            y = y * _silu(ops.cast(gate, mindspore.float32))
        y = ops.cast(y, x.dtype)
        if scale_name is not None:
            y = y * (getattr(self, scale_name) + offset)
        if bias_name is not None:
            y = y + getattr(self, bias_name)
        return y

    return replace_construct(cell, construct)


def _silu(x):
    return x * ops.sigmoid(x)


def _run(cell, values: Mapping[str, np.ndarray], inputs) -> Optional[np.ndarray]:
    """The forward on stand-ins of the parameters, in PyNative; None when it does not run on these inputs."""
    held, mode = dict(cell._params), mindspore.get_context("mode")
    try:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        for name, array in values.items():
            cell._params[name] = Parameter(Tensor(array), name=held[name].name, requires_grad=False)
        result = cell.construct(*(Tensor(array) for array in inputs))
        return result.asnumpy().astype(np.float64) if isinstance(result, Tensor) else None
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None  # what it needs is not known here
    finally:
        cell._params.update(held)
        mindspore.set_context(mode=mode)


def _epsilons(cell) -> List[float]:
    """Small numbers that the module or its operators keep, then the usual ones."""
    kept = [value for value in vars(cell).values() if isinstance(value, float)]
    for operator in vars(cell).values():
        kept += [value for value in (getattr(operator, "init_attrs", None) or {}).values() if isinstance(value, float)]
    return list(dict.fromkeys([value for value in kept if 0 <= value < 0.1] + list(_USUAL_EPSILONS)))


def _forms(names: List[str], epsilons: List[float], takes_gate: bool) -> Iterator[Dict[str, Any]]:
    scales: List[Tuple[Optional[str], Optional[str]]] = list(itertools.permutations(names, 2))
    scales += [(name, None) for name in names] + ([(None, None)] if not names else [])
    gates = _GATES[1:] if takes_gate else _GATES[:1]
    for kind, epsilon, (scale, bias), offset, gate in itertools.product(
            (RMS, LAYER), epsilons, scales, (0.0, 1.0), gates):
        if len(names) == (scale is not None) + (bias is not None):
            yield {"kind": kind, "epsilon": epsilon, "scale": scale, "bias": bias, "offset": offset, "gate": gate}


def _compute(form: Mapping[str, Any], values: Mapping[str, np.ndarray], x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    silu = gate / (1 + np.exp(-gate))
    if form["gate"] == "before":
        x = x * silu
    if form["kind"] == LAYER:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + form["epsilon"])
    if form["gate"] == "after":
        x = x * silu
    x = x * (values[form["scale"]] + form["offset"]) if form["scale"] else x
    return x + values[form["bias"]] if form["bias"] else x
