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
from typing import Callable, List, Optional, Set

import mindspore
import numpy as np
from mindspore import Tensor

from hyper_parallel.core.collectives import functional, transitions
from hyper_parallel.core.collectives.groups import get_group
from hyper_parallel.core.collectives.transitions import Transition
from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.core.shard.part_record import PartRecord, record_part
from hyper_parallel.distributed import edges, latent_query, local_compute, local_parameter, parallel_block_edges
from hyper_parallel.distributed.auxiliary_loss import share_auxiliary_loss
from hyper_parallel.distributed.binding import head_view
from hyper_parallel.distributed.checks import check_mesh
from hyper_parallel.distributed.gradient_sums import gradient_hook
from hyper_parallel.distributed.inventory import arguments_of
from hyper_parallel.distributed.head_slice import HeadSlice
from hyper_parallel.distributed.local_random import draw_own_numbers, draw_own_numbers_between
from hyper_parallel.distributed.local_sizes import apply_local_sizes
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec, ShardingPlan
from hyper_parallel.distributed.repeats import paused_collection
from hyper_parallel.distributed.sharded_norm import norm_over_cut_dim
from hyper_parallel.distributed.state_space_local import localize_convolution
from hyper_parallel.distributed.support import check_supported
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.head_count import maybe_update_head_counts, restore_head_counts
from hyper_parallel.distributed.tensor_parallel.loss import require_cut_logits
from hyper_parallel.distributed.tensor_parallel.templates import AXIS
from hyper_parallel.distributed.validate import Validator

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
        self.kept_whole: Set[str] = set()

    def take_back(self):
        """Remove the hooks and undo the rewrites; parameters are not touched."""
        for handle in self.handles:
            handle.remove()
        for undo in reversed(self.undo):
            undo()
        self.handles, self.undo = [], []


def applied_state(cell) -> Optional[AppliedState]:
    """The record of `apply` on this Cell, or None."""
    return getattr(cell, _STATE, None)


def apply(cell, plan: ShardingPlan, mesh, *, sense_is_split: bool = False, validate: bool = False):
    """Shard a Cell in place by its plan.

    Inside a boundary the model sees plain local tensors. Parameters keep their objects, names and paths, so that
    optimizers made afterwards, tied weights and checkpoints find what they look for. Axes of the mesh that the plan
    does not cut over are data parallel: gradients are averaged over them.

    Args:
        cell (Cell): whole parameters, equal on all ranks, real or meta.
        plan: bound, or to be bound here.
        mesh (DeviceMesh): has the plan's axes in the plan's sizes.
        sense_is_split: the host starts the backward with 1/tp of the gradient on every rank, as MindFormers' trainer
            does; the model's own output then multiplies it back.
        validate: check the plan instead of training with it: parameters are DTensors, operators are dispatched, and a
            forward raises `PlacementMismatchError` at the first boundary whose real layout is not the plan's.

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
    whole: List = []
    try:
        with paused_collection():
            if plan.tp > 1:
                _shard(cell, state, sense_is_split, validate, whole)
            if not validate:
                _reduce_gradients(cell, state)
    except BaseException:
        state.take_back()
        for parameter, values in reversed(whole):
            local_parameter.put_back(parameter, values)
        for parameter, _ in _parameters(cell, plan):
            record_part(parameter, None)
        raise
    object.__setattr__(cell, _STATE, state)
    return cell


def restore(cell):
    """Undo `apply`: whole parameters (with the values that training has given them), head counts, forwards, hooks.

    Communicates: all ranks of the tensor-parallel axis call it.

    Returns:
        The cell.

    Raises:
        ValueError: no plan has been applied to it, or `hp.fully_shard` has been called on it since.
    """
    state = applied_state(cell)
    if state is None:
        raise ValueError(f"no plan has been applied to this {type(cell).__name__}: nothing to restore")
    sharded = [path for path, one in cell.parameters_and_names() if getattr(one, "main_gradient", None) is not None]
    if sharded:
        raise ValueError(f"{sharded[0]!r} is sharded over the data axes by hp.fully_shard, which cannot be undone: read "
                         "the whole model with parameter.full_tensor()")
    state.take_back()
    if state.plan.tp > 1:
        group = state.mesh.get_group(AXIS)
        for parameter, spec in _parameters(cell, state.plan):
            record_part(parameter, None)
            if spec.path in state.kept_whole:
                continue
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


def _shard(cell, state: AppliedState, sense_is_split: bool, validate: bool, whole: List):
    """Cut the parameters, then install the boundaries; `whole` collects (parameter, its whole values)."""
    plan, mesh = state.plan, state.mesh
    group, rank = mesh.get_group(AXIS), mesh.get_local_rank(AXIS)
    modules = dict(cell.cells_and_names())
    arguments = {path: arguments_of(modules[path]) for path in plan.boundaries}

    def cut(parameter, spec):
        values = local_parameter.cut(parameter, spec, rank)
        if values is not None:
            whole.append((parameter, values))
        record_part(parameter, _part_record(spec, mesh))

    def install(path, spec):
        module = modules[path]
        if spec._tp_local_attr_plan is not None:
            maybe_update_head_counts(module, head_view(spec, module), path, mesh, mesh.mesh_dim_names)
            state.undo.append(lambda module=module: restore_head_counts(module))
        if spec.local_sizes:
            state.undo.append(apply_local_sizes(module, path, spec.local_sizes, plan.tp))
        _draw_own_numbers(modules, path, spec, mesh, state)
        if spec.semantic_role == templates.AUXILIARY_LOSS:
            if not sense_is_split:
                state.undo.append(share_auxiliary_loss(module, path, spec, arguments[path], group))
            return
        if spec.local_compute_fn == latent_query.LOCAL_COMPUTE:
            state.undo.append(latent_query.keep_own_queries(modules, path, spec.local_compute_arguments, group))
        _install(module, path, spec, arguments[path], plan, group, rank, state)

    if validate:
        Validator(cell, state, cut, install, arguments).prepare()
        return
    for parameter, spec in _parameters(cell, plan):
        cut(parameter, spec)
    for path, spec in sorted(plan.boundaries.items(), key=lambda item: -item[0].count(".")):  # deepest first
        install(path, spec)
    logits_check = require_cut_logits(cell, plan)
    if logits_check is not None:
        state.handles.append(logits_check)
    if sense_is_split:
        state.handles.append(edges.hook_exit(cell, Transition(transitions.TERMINAL_REPLICATED, group)))


def _part_record(spec: ParameterSpec, mesh) -> PartRecord:
    """How the parameter lies, for whoever shards it over a data axis afterwards."""
    placement = spec.placement.get(AXIS, Replicate())
    slice_map = None if spec.slice_map.is_even_chunks else spec.slice_map
    return PartRecord(mesh[AXIS], (placement,), tuple(spec.shape), slice_map)


def _draw_own_numbers(modules, path: str, spec: ModuleShardingSpec, mesh, state: AppliedState):
    def at(name):
        return modules[f"{path}.{name}" if path else name]

    for name in spec.local_dropouts or ():
        state.undo.append(draw_own_numbers(at(name), mesh, f"{path}.{name}"))
    if spec.local_window:
        state.handles += draw_own_numbers_between([at(name) for name in spec.local_window["opens"]],
                                                  [at(name) for name in spec.local_window["closes"]], mesh, path)


def _install(module, path: str, spec: ModuleShardingSpec, arguments, plan: ShardingPlan, group, rank: int,
             state: AppliedState):
    """Local computation first, then the exit, then what comes after it, and the entry."""
    if spec.local_compute_fn == "vocabulary_parallel_embedding":
        (table,) = (parameter for parameter in module.get_parameters(expand=False) if parameter.ndim == 2)
        rows = table.shape[0]
        state.undo.append(local_compute.vocabulary_parallel_embedding(module, rows, rank * rows))
    if spec.local_compute_fn in ("bias_after_reduction", parallel_block_edges.BIAS_ON_FIRST_RANK):
        state.undo.append(local_compute.bias_after_reduction(module))
    if spec.local_compute_fn == "state_space_local":
        for name, below in module.cells_and_names():
            own = {leaf: plan.parameters[".".join(filter(None, (path, name, leaf)))] for leaf in below._params}
            state.undo.append(localize_convolution(below, own))
    if spec.local_compute_fn == "norm_over_cut_dim":
        state.undo.append(norm_over_cut_dim(module, spec.local_compute_arguments, group, path))
    leaving = edges.exit_transition(spec.out_src, spec.out_dst, group, path,
                                    spec.semantic_role == templates.INNER_ROW)
    if leaving is not None:
        others = Transition(transitions.LEAVE_REPLICATED, group) if spec.semantic_role == templates.MOE else None
        state.undo.append(edges.leave_through(module, path, leaving, spec.out_size, others))
    if spec.local_compute_fn == "bias_after_reduction":
        state.undo.append(local_compute.add_bias_last(module, path))
    if spec.local_compute_fn in parallel_block_edges.LOCAL_COMPUTE:
        state.undo.append(parallel_block_edges.install(module, path, spec, arguments, group, rank))
        return
    has_cut_weights = any(placement.get(AXIS) is not None and placement[AXIS].is_shard()
                          for placement in (spec.params or {}).values())
    entries = [(edges.entry_transition(spec.in_src[name], wanted, group, has_cut_weights, path), name,
                arguments.index(name)) for name, wanted in (spec.in_dst or {}).items()]
    entries = [entry for entry in entries if entry[0] is not None]
    entries += [(HeadSlice(group, plan.heads[path][0], dim, path), name, arguments.index(name))
                for name, dim in (spec.head_arguments or {}).items()]
    if entries:
        state.undo.append(edges.enter_through(module, path, entries))


def _reduce_gradients(cell, state: AppliedState):
    """One hook for each parameter whose local gradient is not the whole truth."""
    paths = {id(parameter): path for path, parameter in cell.parameters_and_names()}
    for parameter, spec in _parameters(cell, state.plan):
        hook = None if spec.frozen else gradient_hook(spec, state.mesh, paths[id(parameter)].rpartition(".")[0])
        if hook is not None:
            state.handles.append(parameter.register_hook(hook))
