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
"""Puts the process group and the collectives behind MindSpore's three interfaces to them.

`mindspore.mint.distributed` writes into its output argument and returns a handle. `mindspore.ops.function.comm_func`
(also known as `mindspore.ops.communication`) does that too, or returns `(output, handle)` after
`set_comm_ops_inplace(False)`. `mindspore.communication.comm_func` always returns `(output, handle)`.

A handle is None, as MindSpore returns it for a blocking call, or one whose `wait` does nothing: everything here blocks.
"""
import mindspore
from mindspore import mint
from mindspore.mint import distributed as dist
from mindspore.ops.function.comm_func import default_handle, is_inplace_func

from hyper_parallel.platform.cpu_kernels import collectives
from hyper_parallel.platform.cpu_kernels.dispatch import replaces
from hyper_parallel.platform.cpu_kernels.memory import write_into

_MINT = "mindspore.mint.distributed"
_OPS = ("mindspore.ops.function.comm_func", "mindspore.ops.communication")
_FUNCTIONAL = "mindspore.communication.comm_func"


def _ops(name):
    return tuple(f"{module}:{name}" for module in _OPS)


def _handle(async_op):
    return default_handle if async_op else None


def _deliver(name, output, into, async_op):
    """What `comm_func` returns for `name`: the output, or nothing but a handle once it is written into `into`."""
    if is_inplace_func(name):
        write_into(into, output)
        return _handle(async_op)
    return output, _handle(async_op)


@replaces(f"{_MINT}:init_process_group", *_ops("init_process_group"))
def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None,
                       group_name="", pg_options=None, device_id=None):
    """Joins the world group of the launcher; a second call does nothing.

    MindSpore starts its CPU backend through `mindspore.communication.init()` alone, without naming it.

    Raises:
        ValueError: if `world_size` is given and is not the number of processes.
    """
    if not dist.is_initialized():
        mindspore.communication.init()
    size = dist.get_world_size()
    if world_size not in (-1, size):
        raise ValueError(f"world_size is {world_size}, but the launcher started {size} processes.")


@replaces(*_ops("all_reduce"))
def ops_all_reduce(tensor, op="sum", group=None, async_op=False):
    return _deliver("all_reduce", collectives.all_reduce(tensor, op, group), tensor, async_op)


@replaces(f"{_FUNCTIONAL}:all_reduce")
def functional_all_reduce(tensor, op="sum", group=None, async_op=False):
    return collectives.all_reduce(tensor, op, group), _handle(async_op)


@replaces(f"{_MINT}:all_reduce")
def mint_all_reduce(tensor, op="sum", group=None, async_op=False):
    write_into(tensor, collectives.all_reduce(tensor, op, group))
    return _handle(async_op)


@replaces(*_ops("all_gather_into_tensor"))
def ops_all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    return _deliver("all_gather_into_tensor", collectives.all_gather(input_tensor, group), output_tensor, async_op)


@replaces(f"{_FUNCTIONAL}:all_gather_into_tensor")
def functional_all_gather_into_tensor(tensor, group=None, async_op=False):
    return collectives.all_gather(tensor, group), _handle(async_op)


@replaces(f"{_MINT}:all_gather_into_tensor")
def mint_all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    write_into(output_tensor, collectives.all_gather(input_tensor, group))
    return _handle(async_op)


@replaces(*_ops("reduce_scatter_tensor"))
def ops_reduce_scatter_tensor(output, input, op="sum", group=None, async_op=False):
    return _deliver("reduce_scatter_tensor", collectives.reduce_scatter(input, op, group), output, async_op)


@replaces(f"{_FUNCTIONAL}:reduce_scatter_tensor")
def functional_reduce_scatter_tensor(tensor, op="sum", group=None, async_op=False):
    return collectives.reduce_scatter(tensor, op, group), _handle(async_op)


@replaces(f"{_MINT}:reduce_scatter_tensor")
def mint_reduce_scatter_tensor(output, input, op="sum", group=None, async_op=False):
    write_into(output, collectives.reduce_scatter(input, op, group))
    return _handle(async_op)


@replaces(*_ops("all_to_all_single"))
def ops_all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None,
                          async_op=False):
    received = collectives.all_to_all(input, input_split_sizes, output_split_sizes, group)
    return _deliver("all_to_all_single", received, output, async_op)


@replaces(f"{_MINT}:all_to_all_single")
def mint_all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None,
                           async_op=False):
    write_into(output, collectives.all_to_all(input, input_split_sizes, output_split_sizes, group))
    return _handle(async_op)


def _all_to_all_list(outputs, inputs, group):
    """The received tensors, in the shapes of `outputs` (tensors or shapes)."""
    shapes = [tuple(getattr(output, "shape", output)) for output in outputs]
    counts = [mint.zeros(shape).size for shape in shapes]
    flat = collectives.all_to_all(mint.cat([mint.reshape(tensor, (-1,)) for tensor in inputs], 0),
                                  [tensor.size for tensor in inputs], counts, group)
    received, start = [], 0
    for shape, count in zip(shapes, counts):
        received.append(mint.reshape(mint.narrow(flat, 0, start, count), shape))
        start += count
    return tuple(received)


def _write_all(outputs, received):
    for output, tensor in zip(outputs, received):
        write_into(output, tensor)


@replaces(*_ops("all_to_all"))
def ops_all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    received = _all_to_all_list(output_tensor_list, input_tensor_list, group)
    if is_inplace_func("all_to_all"):
        _write_all(output_tensor_list, received)
        return _handle(async_op)
    return received, _handle(async_op)


@replaces(f"{_MINT}:all_to_all")
def mint_all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    _write_all(output_tensor_list, _all_to_all_list(output_tensor_list, input_tensor_list, group))
    return _handle(async_op)


@replaces(f"{_MINT}:barrier", *_ops("barrier"))
def barrier(group=None, async_op=False, device_ids=None):
    collectives.barrier(group)
    return _handle(async_op)


@replaces(f"{_FUNCTIONAL}:barrier")
def functional_barrier(group=None):
    collectives.barrier(group)


@replaces(f"{_MINT}:broadcast_object_list", *_ops("broadcast_object_list"))
def broadcast_object_list(object_list, src=0, group=None, device=None):
    """Replaces the objects in `object_list` by those of the rank `src`, a rank of the world."""
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, list(object_list), group)
    sender = src if group is None else dist.get_group_rank(group, src)
    object_list[:] = gathered[sender]
