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
"""Whether a tensor has memory of its own, and writing into tensors that may not.

MindSpore's CPU kernels that write take a view, a tensor that looks at a part of another's memory, for something else:
a transposed one for its values in storage order, a leading part for the whole it is a part of.
"""
from mindspore import Tensor

# Taken at import, before it is replaced.
_copy_kernel = Tensor.copy_


def is_view(tensor: Tensor) -> bool:
    """Whether `tensor` looks at a part or another order of another tensor's memory."""
    # The first question misses a leading part, such as `narrow(x, 0, 0, 2)`: its strides and offset are those of a
    # whole tensor, only the storage behind it is larger.
    return tensor._need_contiguous() or (  # pylint: disable=protected-access
        tensor.untyped_storage().size() != tensor.nbytes)


def own_memory(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy if it is a view; differentiable."""
    return tensor.copy() if is_view(tensor) else tensor


def write_into(target: Tensor, value: Tensor) -> Tensor:
    """Gives `target` the values of `value`, broadcast and converted to its shape and dtype; returns `target`.

    A view cannot write to the memory it looks at and gets memory of its own: it then holds the new values, the tensor
    it was a view of keeps the old ones.
    """
    # The kernel would convert too, but hand the gradient back in the target's dtype.
    value = value.astype(target.dtype)
    if is_view(target):
        target.assign_value(value.broadcast_to(target.shape).copy())
    else:
        _copy_kernel(target, own_memory(value))
    return target
