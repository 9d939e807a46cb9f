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
"""Tensor methods that write into their tensor, expressed by `copy_`, the one in-place kernel that works on CPU.

Some of the others have no kernel. The arithmetic ones (`add_`, `sub_`, `mul_`, `div_`, `exp_`) are worse: they return
the right numbers in a new tensor and leave their own as it was, without an error.
"""
from mindspore import Tensor, mint

from hyper_parallel.platform.cpu_kernels.dispatch import CpuOperator, operator, replaces
from hyper_parallel.platform.cpu_kernels.indexing import scattered
from hyper_parallel.platform.cpu_kernels.memory import write_into


@operator("InplaceCopy")
def copy_operator(input, src):
    return write_into(input, src)


@replaces("mindspore:Tensor.copy_")
def copy_(self, src, non_blocking=False):
    return copy_operator.dispatch(self, src)


@operator("InplaceZero", "mindspore:Tensor.zero_")
def zero_(input):
    return write_into(input, mint.zeros(input.shape, dtype=input.dtype))


@operator("InplaceFillScalar")
def fill_scalar(input, value):
    return write_into(input, Tensor(value, dtype=input.dtype).broadcast_to(input.shape))


@operator("InplaceFillTensor")
def fill_tensor(input, value):
    return write_into(input, value.broadcast_to(input.shape))


@replaces("mindspore:Tensor.fill_")
def fill_(self, value):
    return (fill_tensor if isinstance(value, Tensor) else fill_scalar).dispatch(self, value)


@operator("InplaceScatterValue")
def scatter_value(input, dim, index, value):
    return write_into(input, scattered(input, dim, index, value))


@operator("InplaceScatterSrc")
def scatter_src(input, dim, index, src):
    return write_into(input, scattered(input, dim, index, src))


@replaces("mindspore:Tensor.scatter_")
def scatter_(self, dim, index, src=None, *, value=None):
    source = value if src is None else src
    return (scatter_src if isinstance(source, Tensor) else scatter_value).dispatch(self, dim, index, source)


@operator("InplaceExp", "mindspore:Tensor.exp_")
def exp_(input):
    return write_into(input, mint.exp(input))


def _arithmetic(name, compute):
    def write_result(input, other):
        # The gradient by `other` needs the values that are about to be overwritten.
        needed = isinstance(other, Tensor) and other._requires_grad  # pylint: disable=protected-access
        return write_into(input, compute(input.copy() if needed else input, other))
    return CpuOperator(name, write_result)


_ADD = {True: _arithmetic("InplaceAddExt", mint.add), False: _arithmetic("InplaceAddsExt", mint.add)}
_SUB = {True: _arithmetic("InplaceSubExt", mint.sub), False: _arithmetic("InplaceSubScalar", mint.sub)}
_MUL = {True: _arithmetic("InplaceMul", mint.mul), False: _arithmetic("InplaceMuls", mint.mul)}
_DIV = {True: _arithmetic("InplaceDiv", mint.div), False: _arithmetic("InplaceDivs", mint.div)}
_ROUNDING = {"trunc": mint.trunc, "floor": mint.floor}


def _scaled(other, alpha):
    return other if alpha == 1 else other * alpha


@replaces("mindspore:Tensor.add_", "mindspore:Tensor.__iadd__")
def add_(self, other, *, alpha=1):
    return _ADD[isinstance(other, Tensor)].dispatch(self, _scaled(other, alpha))


@replaces("mindspore:Tensor.sub_", "mindspore:Tensor.__isub__")
def sub_(self, other, *, alpha=1):
    return _SUB[isinstance(other, Tensor)].dispatch(self, _scaled(other, alpha))


@replaces("mindspore:Tensor.mul_", "mindspore:Tensor.__imul__")
def mul_(self, other):
    return _MUL[isinstance(other, Tensor)].dispatch(self, other)


@replaces("mindspore:Tensor.div_", "mindspore:Tensor.__itruediv__")
def div_(self, other, *, rounding_mode=None):
    """With a `rounding_mode`, `trunc` or `floor`, the quotient is rounded before it is written."""
    if rounding_mode is None:
        return _DIV[isinstance(other, Tensor)].dispatch(self, other)
    if rounding_mode not in _ROUNDING:
        raise ValueError(f"rounding_mode must be None, 'trunc' or 'floor', but got {rounding_mode!r}.")
    return copy_operator.dispatch(self, _ROUNDING[rounding_mode](mint.div(self, other)))
