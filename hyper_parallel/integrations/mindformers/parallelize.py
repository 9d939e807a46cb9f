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
"""Our plan in MindFormers' trainer: plan the meta model, apply, and store its parameters as MindFormers expects them."""
from typing import List, Tuple

from mindspore import nn
from mindspore.mint.distributed import get_rank

from hyper_parallel.core.dtensor.device_mesh import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard
from hyper_parallel.core.fully_shard.utils import CPUOffloadPolicy
from hyper_parallel.distributed.applier import apply
from hyper_parallel.distributed.planner import plan as make_plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.integrations.mindformers.switch import AutoTpSwitch

# MindFormers' activations are [sequence, batch, hidden]
SEQUENCE_DIM = 0
_AXES = ("dp_replicate", "fsdp", "tp")


def parallelize(model, switch: AutoTpSwitch) -> Tuple:
    """What MindFormers calls a parallelize function, with our plan.

    Args:
        model (Cell): on the meta device.
        switch: what the user switched on.

    Returns:
        `(model, None, True, True)`: the model, no pipeline schedule, and it has the first and the last stage.

    Raises:
        ValueError: the plan refuses the model, or MindFormers cannot handle what the plan needs.
    """
    mesh = init_device_mesh("npu", (switch.dp // switch.shard, switch.shard, switch.tp), mesh_dim_names=_AXES)
    plan = make_plan(model, switch.tp, sequence_parallel=switch.sequence_parallel, sequence_dim=SEQUENCE_DIM,
                     **switch.options)
    _check_fits_mindformers(plan, switch)
    if get_rank() == 0:
        print(plan.explain(), flush=True)
        if switch.report:
            plan.save(switch.report)
    apply(model, plan, mesh["tp"], sense_is_split=True)
    shard_over_data(model, plan, mesh["dp_replicate", "fsdp"], switch)
    # the trainer's backward starts with 1 / (dp · tp), so summing over the replicas is the mean
    model.set_reduce_op_type("sum")
    return model, None, True, True


def _check_fits_mindformers(plan: ShardingPlan, switch: AutoTpSwitch):
    copied = [path for path, spec in plan.parameters.items() if spec.copies > 1]
    if copied:
        raise ValueError(
            f"{copied[0]!r} needs kv heads copied over {plan.parameters[copied[0]].copies} ranks at a tensor parallel size "
            f"of {switch.tp}, and MindFormers' gradient norm would count the copies more than once: choose "
            "parallel_config.model_parallel so that it divides the kv heads (num_query_groups)")
    uneven = [path for path, spec in plan.parameters.items() if not spec.slice_map.is_even_chunks]
    if uneven and switch.saves_checkpoints:
        raise ValueError(
            f"{uneven[0]!r} is laid out as {plan.parameters[uneven[0]].slice_map.describe()}, which MindFormers' checkpoints "
            "cannot express: set checkpoint.enable_save: false, or a vocabulary that the tensor parallel size divides")


def shard_over_data(model, plan: ShardingPlan, mesh, switch: AutoTpSwitch):
    """`fully_shard` on every block, on the embedding and the head where they have weights of their own, and on the
    model.

    Args:
        model (Cell): the plan has been applied to it.
        plan: tells which modules are the embedding and the head.
        mesh: replicas × shards.
        switch: when to free, and where parts are kept.
    """
    options = {"mesh": mesh, "reshard_after_forward": switch.reshard_after_forward,
               "offload_policy": CPUOffloadPolicy() if switch.cpu_offload else None}
    if switch.saves_checkpoints:
        # MindFormers' checkpoints know equal parts only
        options["replicate_params"] = [one for one in model.get_parameters()
                                       if one.ndim and one.shape[0] % switch.shard]
    if switch.shard > 1:
        modules = dict(model.cells_and_names())
        ends = [modules[path] for path, spec in plan.boundaries.items()
                if spec.semantic_role in (templates.EMBEDDING, templates.LM_HEAD)]
        tied = len({id(one) for end in ends for one in end.get_parameters()}) < len(ends)
        for module in ([] if tied else ends) + _blocks(model):
            fully_shard(module, **options)
    fully_shard(model, **{**options, "reshard_after_forward": None})


def _blocks(cell) -> List:
    """The items of the outermost lists of Cells."""
    found = []
    for child in cell.cells():
        found += list(child) if isinstance(child, (nn.CellList, nn.SequentialCell)) else _blocks(child)
    return found
