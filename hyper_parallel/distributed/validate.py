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
"""Validate mode: parameters are DTensors, operators are dispatched, and each boundary's real layout is held to the plan.

It finds a wrong plan, and is not for training. A region that placements cannot describe (fused sections, copied kv heads,
a padded vocabulary) or whose boundary says `region_dispatch=False` is a *local region*: its body runs on local tensors as
in production, and what can be checked there is its edges, and that what is called whole is the same on all ranks.
"""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.collectives.counter import CollectiveRecord, count_collectives
from hyper_parallel.core.dtensor.dtensor import DTensor, distribute_tensor
from hyper_parallel.core.dtensor.placement_types import NamedPlacement, Placement, Replicate, Shard
from hyper_parallel.distributed import local_compute
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.loss import cut_head
from hyper_parallel.distributed.tensor_parallel.templates import AXIS

# Regions whose forward depends on values (routing) or whose operators have no rules run on local tensors; of blocks that
# share an entry or an exit, no boundary by itself says how a tensor has to lie.
_DISPATCHED_KINDS = (templates.ATTENTION, templates.MLP, templates.EMBEDDING, templates.LM_HEAD, templates.ROW_LINEAR,
                     templates.BLOCK_ENTRY, templates.FINAL_NORM, "attention_entry", "mlp_entry", "heads",
                     *(f"whole_{kind}" for kind in templates.REGIONS))
_SHARED_EDGES = (templates.PARALLEL_BLOCK, templates.FIRST_PARALLEL_BLOCK, templates.PARALLEL_ATTENTION,
                 templates.PARALLEL_MLP, templates.RESIDUAL_READER, templates.FIRST_ENTRY)
_DISPATCHED = (None, "vocabulary_parallel_embedding", "bias_after_reduction")
DIFFERENT = "not the same on all ranks"


class PlacementMismatchError(ValueError):
    """A tensor at a boundary's edge does not lie as the plan says.

    Args:
        module_name: path of the boundary's module; "" is the model.
        expected: what the plan says.
        actual: what was found, a placement or words.
        stage: the field of the boundary that says it: `in_src`, `out_src`, `out_dst`, or `params` where operators of its
            body had to move something, so that a weight or an argument lies wrong.
    """

    def __init__(self, module_name: str, expected: Any, actual: Any, stage: str):
        self.module_name, self.expected, self.actual, self.stage = module_name, expected, actual, stage
        super().__init__(f"{module_name or 'the model'}: {stage} of the plan says {expected}, found {actual}")


class _Body(NamedTuple):
    """A forward that is running, and the collectives of its operators so far.

    Args:
        path: of its module; "" is the model.
        context: what counts.
        record: what was counted.
        paused_at: lengths of the record at which the plan's own transitions began.
    """

    path: str
    context: Any
    record: CollectiveRecord
    paused_at: List[int]


class Validator:
    """Prepares one Cell for validate mode.

    Args:
        cell: whole, the same on all ranks.
        state: the record of `apply`: plan, mesh, hooks and what undoes it.
        cut: called as `cut(parameter, spec)`: leaves this rank's part in a parameter.
        install: called as `install(path, spec)`: the production edges of a boundary.
        arguments: names of each boundary's forward arguments.
    """

    def __init__(self, cell, state, cut: Callable, install: Callable[[str, ModuleShardingSpec], None],
                 arguments: Dict[str, Tuple]):
        self._cell, self._state, self._arguments = cell, state, arguments
        self._cut, self._install = cut, install
        self._plan: ShardingPlan = state.plan
        self._mesh = state.mesh[AXIS]
        self._group = state.mesh.get_group(AXIS)
        self._modules = dict(cell.cells_and_names())
        self._local_roots = local_regions(self._plan)
        self._bodies: List[_Body] = []

    def prepare(self):
        """Parameters, then hooks, deepest first."""
        if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
            raise NotImplementedError("validate mode dispatches each operator in PyNative: call "
                                      "mindspore.set_context(mode=mindspore.PYNATIVE_MODE)")
        shared = [path for path, spec in self._plan.boundaries.items() if spec.semantic_role in _SHARED_EDGES]
        if shared:
            raise NotImplementedError(f"validate mode: {shared[0]!r} is a block whose parts share an entry or an exit "
                                      f"({self._plan.boundaries[shared[0]].semantic_role}); use hp.verify")
        self._place_parameters()
        self._state.undo.append(self._close_all)
        self._state.handles.append(self._cell.register_forward_pre_hook(self._enter_model))
        for path, spec in sorted(self._plan.boundaries.items(), key=lambda item: -item[0].count(".")):
            root = self._root_of(path)
            if root is None:
                self._check_boundary(path, spec)
            elif root == path:
                self._open_local_region(path, spec)
            else:
                self._install(path, spec)
        self._state.handles.append(self._cell.register_forward_hook(self._leave_model))

    def _root_of(self, path: str) -> Optional[str]:
        return next((root for root in self._local_roots if _is_below(path, root)), None)

    def _place_parameters(self):
        """Cut parameters of dispatched regions become DTensors, those of local regions this rank's parts."""
        made: Dict[int, Parameter] = {}
        for path, module in self._cell.cells_and_names():
            for name, parameter in list(module._params.items()):
                if parameter is None:
                    continue
                full = f"{path}.{name}" if path else name
                spec = self._plan.parameters.get(full)
                if id(parameter) not in made and (spec is None or not spec.slice_map.cuts or self._root_of(full)):
                    if spec is not None and spec.slice_map.cuts:
                        self._cut(parameter, spec)
                    continue
                if id(parameter) not in made:
                    placements = [spec.placement.get(axis, Replicate()) for axis in self._mesh.mesh_dim_names]
                    whole = Tensor(parameter.asnumpy(), parameter.dtype)
                    made[id(parameter)] = Parameter(distribute_tensor(whole, self._mesh, placements),
                                                    name=parameter.name, requires_grad=parameter.requires_grad)
                    self._state.kept_whole.add(spec.path)
                module._params[name] = made[id(parameter)]
                self._state.undo.append(lambda module=module, name=name, parameter=parameter: module._params.update(
                    {name: parameter}))

    def _check_boundary(self, path: str, spec: ModuleShardingSpec):
        module = self._modules[path]
        if spec.in_src:
            self._state.handles.append(module.register_forward_pre_hook(self._entry(path, spec), with_kwargs=True))
        self._state.handles.append(module.register_forward_pre_hook(lambda cell, args: self._open(path)))
        self._state.handles.append(module.register_forward_hook(lambda cell, args, output: self._close(path)))
        is_biased_row = spec.local_compute_fn == "bias_after_reduction"
        if is_biased_row:
            self._state.undo.append(local_compute.bias_after_reduction(module))
        if spec.out_src is not None:
            self._state.handles.append(module.register_forward_hook(self._exit(path, spec)))
        if is_biased_row:
            self._state.handles.append(module.register_forward_hook(_add_bias))

    def _entry(self, path: str, spec: ModuleShardingSpec):
        def enter(cell, args, kwargs):
            def move(name, value):
                expected = _on_axis(spec.in_src[name], value.ndim)
                self._require(path, expected, value, "in_src")
                return self._move(value, _on_axis(spec.in_dst[name], value.ndim))

            return self._each_argument(path, args, kwargs, spec.in_src, move)

        return enter

    def _exit(self, path: str, spec: ModuleShardingSpec):
        def leave(cell, args, output):
            first = output[0] if isinstance(output, tuple) else output
            self._require(path, _on_axis(spec.out_src, first.ndim), first, "out_src")
            if spec.out_dst is not None:
                first = self._move(first, _on_axis(spec.out_dst, first.ndim))
            return (first,) + output[1:] if isinstance(output, tuple) else first

        return leave

    def _open_local_region(self, path: str, spec: ModuleShardingSpec):
        """Local tensors on the way in, the production edges, a DTensor again on the way out."""
        module = self._modules[path]
        sources = spec.in_src or {}

        def enter(cell, args, kwargs):
            def to_local(name, value):
                if name in sources:
                    self._require(path, _on_axis(sources[name], value.ndim), value, "in_src")
                elif isinstance(value, DTensor) and value.placements[0].is_partial():
                    raise PlacementMismatchError(path, Replicate(), value.placements[0], "in_src")
                return value.to_local() if isinstance(value, DTensor) else value

            return self._each_argument(path, args, kwargs, None, to_local)

        def leave(cell, args, output):
            first = output[0] if isinstance(output, tuple) else output
            expected = _on_axis(self._leaves(path, spec), first.ndim)
            if isinstance(expected, Replicate):
                self._require(path, expected, first, "out_dst")
            first = DTensor.from_local(first, self._mesh, (expected,))
            return (first,) + output[1:] if isinstance(output, tuple) else first

        self._state.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self._state.handles.append(module.register_forward_pre_hook(lambda cell, args: self._pause()))
        self._install(path, spec)
        self._state.handles.append(module.register_forward_hook(lambda cell, args, output: self._resume()))
        self._state.handles.append(module.register_forward_hook(leave))

    def _leaves(self, path: str, spec: ModuleShardingSpec) -> NamedPlacement:
        """Where the result of a region lies; one whose edges are at its linears leaves as its row linear does."""
        if spec.out_dst is not None:
            return spec.out_dst
        return next((other.out_dst for inner, other in self._plan.boundaries.items() if _is_below(inner, path)
                     and other.semantic_role == templates.ROW_LINEAR), {})

    def _each_argument(self, path, args, kwargs, only, change) -> Tuple[Tuple, Dict]:
        """The arguments after `change(name, tensor)`; `only` names those that are meant, None means all tensors."""
        names = self._arguments[path]
        changed = [change(names[at] if at < len(names) else "", value)
                   if isinstance(value, Tensor) and (only is None or (at < len(names) and names[at] in only)) else value
                   for at, value in enumerate(args)]
        named = {name: change(name, value) if isinstance(value, Tensor) and (only is None or name in only) else value
                 for name, value in kwargs.items()}
        return tuple(changed), named

    def _move(self, value, placement: Placement) -> DTensor:
        """A transition of the plan, which the bodies around it do not answer for."""
        self._pause()
        moved = self._as_dtensor(value).redistribute(placements=(placement,))
        self._resume()
        return moved

    def _open(self, path: str):
        context = count_collectives()
        self._bodies.append(_Body(path, context, context.__enter__(), []))

    def _pause(self):
        for body in self._bodies:
            body.paused_at.append(len(body.record))

    def _resume(self):
        for body in self._bodies:
            del body.record.collectives[body.paused_at.pop():]

    def _close(self, path: str):
        """A body whose weights lie right needs no collective: the plan has them at edges only.

        Raises:
            PlacementMismatchError: operators of the body moved something.
        """
        body = self._bodies.pop()
        body.context.__exit__(None, None, None)
        moved = dict(body.record.counts())
        if moved:
            raise PlacementMismatchError(path, "no collective inside", ", ".join(
                f"{count} {kind}" for kind, count in moved.items()), "params")

    def _close_all(self):
        """Bodies that an error has left open."""
        while self._bodies:
            self._bodies.pop().context.__exit__(None, None, None)

    def _enter_model(self, cell, args):
        self._close_all()
        self._open("")

    def _require(self, path: str, expected: Placement, value, stage: str):
        if isinstance(value, DTensor):
            actual = value.placements[0]
            if isinstance(actual, Shard):
                actual = actual.normalize(value.ndim)
        else:
            actual = Replicate() if self._is_same_everywhere(value) else DIFFERENT
        if actual != expected:
            raise PlacementMismatchError(path, expected, actual, stage)

    def _is_same_everywhere(self, value: Tensor) -> bool:
        self._pause()
        ranks = functional.all_gather(value.reshape((1,) + tuple(value.shape)), 0, self._group).asnumpy()
        self._resume()
        largest = float(np.abs(ranks[0]).max(initial=0.0))
        return bool(np.allclose(ranks, ranks[:1], rtol=1e-4, atol=1e-5 * max(1.0, largest)))

    def _as_dtensor(self, value) -> DTensor:
        return value if isinstance(value, DTensor) else DTensor.from_local(value, self._mesh, (Replicate(),))

    def _leave_model(self, cell, args, output):
        """What the model returns is plain again; logits under loss parallel are this rank's columns."""
        self._close("")
        is_cut = cut_head(self._plan) is not None

        def plain(value, at):
            if not isinstance(value, DTensor):
                return value
            self._require("", Shard(value.ndim - 1) if is_cut and at == 0 else Replicate(), value, "out_dst")
            return value.to_local()

        if isinstance(output, tuple):
            return tuple(plain(value, at) for at, value in enumerate(output))
        return plain(output, 0)


def _add_bias(cell, args, output):
    """What was held back of a row linear, behind its exit."""
    return output + cell.bias


def local_regions(plan: ShardingPlan) -> Tuple[str, ...]:
    """Paths of the outermost boundaries of every region whose body has to run on local tensors."""
    found: List[str] = []
    for path, spec in plan.boundaries.items():
        if _is_dispatched(path, spec, plan):
            continue
        around = [other for other, one in plan.boundaries.items() if _is_below(path, other)
                  and one.semantic_role not in (templates.BLOCK_ENTRY,)]
        found.append(min(around, key=len))
    return tuple(dict.fromkeys(found))


def _is_dispatched(path: str, spec: ModuleShardingSpec, plan: ShardingPlan) -> bool:
    if spec.region_dispatch is not None:
        return spec.region_dispatch
    names = {other for name in spec.params or {} for other in (f"{path}.{name}" if path else name, name)}
    slice_maps = [one.slice_map for one in plan.parameters.values() if names & {one.path, *one.aliases}]
    return spec.semantic_role in _DISPATCHED_KINDS and spec.local_compute_fn in _DISPATCHED and \
        all(one.is_even_chunks for one in slice_maps)


def _is_below(path: str, root: str) -> bool:
    return not root or path == root or path.startswith(f"{root}.")


def _on_axis(named: Optional[NamedPlacement], ndim: int) -> Placement:
    placement = (named or {}).get(AXIS, Replicate())
    return placement.normalize(ndim) if isinstance(placement, Shard) else placement
