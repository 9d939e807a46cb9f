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
"""Apply a plan: the Cell runs on this rank's part of its weights, with collectives only at the boundaries' edges."""
import hashlib
from typing import Callable, List, Optional

import mindspore
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.collectives import functional, transitions
from hyper_parallel.core.collectives.counter import PARAMETER_GRADIENT
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.distributed import edges, local_compute, local_parameter, parallel_block_edges
from hyper_parallel.distributed.binding import head_view
from hyper_parallel.distributed.checks import check_mesh
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec, ShardingPlan
from hyper_parallel.distributed.support import check_supported
from hyper_parallel.distributed.tensor_parallel.head_count import maybe_update_head_counts, restore_head_counts

AXIS = "tp"
_STATE = "_hp_applied"


class AppliedState:
    """What `apply` did to a Cell, kept on it so that `restore` can undo it.

    Args:
        plan: the bound plan.
        mesh: the mesh it was applied on.
    """

    def __init__(self, plan: ShardingPlan, mesh):
        self.plan = plan
        self.mesh = mesh
        self.handles: List = []
        self.undo: List[Callable[[], None]] = []


def applied_state(cell) -> Optional[AppliedState]:
    """The record of `apply` on this Cell, or None."""
    return getattr(cell, _STATE, None)


def apply(cell, plan: ShardingPlan, mesh, *, sense_is_split: bool = False):
    """Shard a Cell in place by its plan; production mode.

    Inside a boundary the model sees plain local tensors. Parameters keep their objects, names and paths, so that
    optimizers made afterwards, tied weights and checkpoints find what they look for. Axes of the mesh that the plan
    does not cut over are data parallel: gradients are averaged over them.

    Args:
        cell (Cell): whole parameters, equal on all ranks, real or meta.
        plan: bound, or to be bound here.
        mesh (DeviceMesh): has the plan's axes in the plan's sizes.
        sense_is_split: the host starts the backward with 1/tp of the gradient on every rank, as MindFormers' trainer
            does; the model's own output then multiplies it back.

    Returns:
        The cell.

    Raises:
        ValueError: the mesh does not fit the plan, ranks hold different plans, or another plan has been applied.
        NotImplementedError: the plan asks for more than this version can execute; see `support`.

    Examples:
        >>> mesh = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
        >>> hp.apply(model, hp.plan(model, tp=2), mesh)
    """
    done = applied_state(cell)
    if done is not None:
        if done.plan.hash == plan.hash:
            return cell
        raise ValueError(f"another plan (hash {done.plan.hash[:12]}) has been applied to this {type(cell).__name__}; "
                         "call hp.restore(cell) first")
    plan = plan if plan.bound else plan.bind(cell)
    check_mesh(plan.mesh_axes, mesh)
    check_supported(plan)
    state = AppliedState(plan, mesh)
    if _needs_communication(mesh):
        _check_same_on_all_ranks(plan)
    if plan.tp > 1:
        _shard(cell, state, sense_is_split)
    _reduce_gradients(cell, state)
    object.__setattr__(cell, _STATE, state)
    return cell


def restore(cell):
    """Undo `apply`: whole parameters (with the values that training has given them), head counts, forwards, hooks.

    Communicates: all ranks of the tensor-parallel axis call it.

    Returns:
        The cell.

    Raises:
        ValueError: no plan has been applied to it.
    """
    state = applied_state(cell)
    if state is None:
        raise ValueError(f"no plan has been applied to this {type(cell).__name__}: nothing to restore")
    for handle in state.handles:
        handle.remove()
    for undo in reversed(state.undo):
        undo()
    if state.plan.tp > 1:
        group = state.mesh.get_group(AXIS)
        for parameter, spec in _parameters(cell, state.plan):
            local_parameter.uncut(parameter, spec, group)
    object.__delattr__(cell, _STATE)
    return cell


def _needs_communication(mesh) -> bool:
    return mesh.size() > 1


def _check_same_on_all_ranks(plan: ShardingPlan):
    """Every rank must have decided the same: a difference would end in a hang or in wrong numbers."""
    world = get_group(tuple(range(mindspore.communication.get_group_size())))
    digest = np.frombuffer(hashlib.sha256(plan.hash.encode()).digest()[:16], dtype=np.int32)
    hashes = functional.all_gather(Tensor(digest[None, :].copy()), 0, world).asnumpy()
    different = [rank for rank, other in enumerate(hashes) if not np.array_equal(other, digest)]
    if different:
        raise ValueError(f"ranks {different} made another plan than this rank (hash {plan.hash[:12]}): all ranks must "
                         "plan the same model with the same configuration")


def _parameters(cell, plan: ShardingPlan):
    """(parameter object, its spec), each object once."""
    for path, parameter in cell.parameters_and_names():
        yield parameter, plan.parameters[path]


def _shard(cell, state: AppliedState, sense_is_split: bool):
    plan, mesh = state.plan, state.mesh
    group, rank = mesh.get_group(AXIS), mesh.get_local_rank(AXIS)
    modules = dict(cell.cells_and_names())
    arguments = {path: record.arguments for path, record in take_inventory(cell).modules.items()
                 if path in plan.boundaries}
    for parameter, spec in _parameters(cell, plan):
        local_parameter.cut(parameter, spec, rank)
    deepest_first = sorted(plan.boundaries.items(), key=lambda item: -item[0].count("."))
    for path, spec in deepest_first:
        module = modules[path]
        if spec._tp_local_attr_plan is not None:
            maybe_update_head_counts(module, head_view(spec, module), path, mesh, mesh.mesh_dim_names)
            state.undo.append(lambda module=module: restore_head_counts(module))
        _install(module, path, spec, arguments[path], plan, group, rank, state)
    if sense_is_split:
        state.handles.append(edges.hook_exit(cell, Transition(transitions.TERMINAL_REPLICATED, group)))


def _install(module, path: str, spec: ModuleShardingSpec, arguments, plan: ShardingPlan, group, rank: int,
             state: AppliedState):
    """Local computation first, then the exit, then what comes after it, and the entry."""
    if spec.local_compute_fn == "vocabulary_parallel_embedding":
        (table,) = (parameter for parameter in module.get_parameters(expand=False) if parameter.ndim == 2)
        rows = table.shape[0]
        state.undo.append(local_compute.vocabulary_parallel_embedding(module, rows, rank * rows))
    if spec.local_compute_fn in ("bias_after_reduction", parallel_block_edges.BIAS_ON_FIRST_RANK):
        state.undo.append(local_compute.bias_after_reduction(module))
    leaving = edges.exit_transition(spec.out_src, spec.out_dst, group, path)
    if leaving is not None:
        state.undo.append(edges.leave_through(module, path, leaving, spec.out_size))
    if spec.local_compute_fn == "bias_after_reduction":
        state.undo.append(local_compute.add_bias_last(module, path))
    if spec.local_compute_fn in parallel_block_edges.LOCAL_COMPUTE:
        state.undo.append(parallel_block_edges.install(module, path, spec, arguments, group, rank))
        return
    if spec.in_dst:
        (name,) = spec.in_dst
        has_cut_weights = any(placement.get(AXIS) is not None and placement[AXIS].is_shard()
                              for placement in (spec.params or {}).values())
        entering = edges.entry_transition(spec.in_src[name], spec.in_dst[name], group, has_cut_weights, path)
        if entering is not None:
            state.undo.append(edges.enter_through(module, path, entering, name, arguments.index(name)))


def _reduce_gradients(cell, state: AppliedState):
    """One hook per parameter: copies among themselves, partial sums over the axis, then the average over the data."""
    plan, mesh = state.plan, state.mesh
    data_axes = [axis for axis in mesh.mesh_dim_names if axis not in plan.mesh_axes and mesh.size(axis) > 1]
    paths = {id(parameter): path for path, parameter in cell.parameters_and_names()}
    for parameter, spec in _parameters(cell, plan):
        if spec.frozen:
            continue
        where = paths[id(parameter)].rpartition(".")[0]
        reductions = _tensor_parallel_reductions(spec, mesh, where) + [
            functional.make("all_reduce", mesh.get_group(axis), "avg", purpose=PARAMETER_GRADIENT, phase="backward",
                            where=where) for axis in data_axes]
        if reductions:
            state.handles.append(parameter.register_hook(_gradient_hook(reductions)))


def _tensor_parallel_reductions(spec: ParameterSpec, mesh, where: str) -> List[Callable]:
    groups = [mesh.get_group(axis) for axis in spec.grad_sum_axes]
    if spec.copies > 1:
        rank, ranks = mesh.get_local_rank(AXIS), mesh.get_rank_list_along_axis(AXIS)
        groups.append(get_group(tuple(ranks[other] for other in spec.slice_map.copy_group(rank))))
    return [functional.make("all_reduce", group, "sum", purpose=PARAMETER_GRADIENT, phase="backward",
                            where=where) for group in groups]


def _gradient_hook(reductions: List[Callable]):
    # a named function: GRAPH_MODE refuses a lambda as a hook
    def reduce_gradient(gradient):
        reduced = ops.cast(gradient, mindspore.float32)
        for reduction in reductions:
            reduced = reduction(reduced)
        return ops.cast(reduced, gradient.dtype)

    return reduce_gradient
