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
"""bfloat16 through float32, for operators whose CPU kernels know every dtype but that one; and `mint.mm`.

Arguments are converted to float32, results back to bfloat16, gradients likewise. Elementwise arithmetic has bfloat16
kernels; only where it broadcasts, so that its backward sums, is it computed in float32.
"""
import functools

from mindspore import mint
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.dispatch import (
    REPLACEMENTS, CpuOperator, Replacement, operator, runs_here, tensors_in)
from hyper_parallel.platform.cpu_kernels.memory import write_into
from hyper_parallel.platform.cpu_kernels.numeric import as_float32

_MINT, _FUNCTIONAL, _TENSOR = "mindspore.mint", "mindspore.mint.nn.functional", "mindspore:Tensor"

# Name of the kernel, and the public functions that reach it.
_WITHOUT_KERNEL = {
    "MatMulExt": (f"{_MINT}:matmul", f"{_TENSOR}.matmul", f"{_TENSOR}.__matmul__"),
    "BatchMatMulExt": (f"{_MINT}:bmm",),
    "Dense": (f"{_FUNCTIONAL}:linear",),
    "Softmax": (f"{_MINT}:softmax", f"{_FUNCTIONAL}:softmax"),
    "SiLU": (f"{_FUNCTIONAL}:silu",),
    "Sigmoid": (f"{_MINT}:sigmoid", f"{_FUNCTIONAL}:sigmoid", f"{_TENSOR}.sigmoid"),
    "ReLU": (f"{_FUNCTIONAL}:relu",),
    "Exp": (f"{_MINT}:exp", f"{_TENSOR}.exp"),
    "Log": (f"{_MINT}:log", f"{_TENSOR}.log"),
    "Cos": (f"{_MINT}:cos", f"{_TENSOR}.cos"),
    "Sin": (f"{_MINT}:sin", f"{_TENSOR}.sin"),
    "Tanh": (f"{_MINT}:tanh", f"{_TENSOR}.tanh"),
    "Sqrt": (f"{_MINT}:sqrt", f"{_TENSOR}.sqrt"),
    "Rsqrt": (f"{_MINT}:rsqrt", f"{_TENSOR}.rsqrt"),
    "Square": (f"{_MINT}:square", f"{_TENSOR}.square"),
    "Pow": (f"{_MINT}:pow", f"{_TENSOR}.pow"),
    "SumExt": (f"{_MINT}:sum", f"{_TENSOR}.sum"),
    "MeanExt": (f"{_MINT}:mean", f"{_TENSOR}.mean"),
    "MaxDim": (f"{_MINT}:max", f"{_TENSOR}.max"),
    "AMax": (f"{_MINT}:amax", f"{_TENSOR}.amax"),
    "GatherD": (f"{_MINT}:gather", f"{_TENSOR}.gather"),
    "Select": (f"{_MINT}:where", f"{_TENSOR}.where"),
    "Tile": (f"{_MINT}:tile", f"{_TENSOR}.tile"),
    "ClampScalar": (f"{_MINT}:clamp", f"{_TENSOR}.clamp"),
}
_WITHOUT_BROADCAST_GRADIENT = {
    "AddExt": (f"{_MINT}:add", f"{_TENSOR}.add"),
    "SubExt": (f"{_MINT}:sub", f"{_TENSOR}.sub"),
    "Mul": (f"{_MINT}:mul", f"{_TENSOR}.mul"),
    "Div": (f"{_MINT}:div", f"{_TENSOR}.div"),
}


def _is_bfloat16(values):
    return any(tensor.dtype == mstype.bfloat16 for tensor in tensors_in(values))


def _broadcasts(values):
    return len({tensor.shape for tensor in tensors_in(values)}) > 1


def _narrow(result, dtype):
    if isinstance(result, tuple):
        return tuple(_narrow(part, dtype) for part in result)
    return result.astype(dtype) if result.dtype == mstype.float32 else result


def _through_float32(name, original, only_if=None):
    """`original` with bfloat16 arguments computed in float32; the result is float32 if an argument is."""
    def compute(*args, **kwargs):
        values = [*args, *kwargs.values()]
        wide = any(tensor.dtype == mstype.float32 for tensor in tensors_in(values))
        result = original(*map(as_float32, args), **{key: as_float32(value) for key, value in kwargs.items()})
        return _narrow(result, mstype.float32 if wide else mstype.bfloat16)

    stand_in = CpuOperator(name, compute)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        values = [*args, *kwargs.values()]
        if _is_bfloat16(values) and (only_if is None or only_if(values)) and runs_here(args, kwargs):
            return stand_in.dispatch(*args, **kwargs)
        return original(*args, **kwargs)
    return wrapper


for _name, _targets in _WITHOUT_KERNEL.items():
    REPLACEMENTS.append(Replacement(_targets, functools.partial(_through_float32, _name)))
for _name, _targets in _WITHOUT_BROADCAST_GRADIENT.items():
    REPLACEMENTS.append(Replacement(_targets, functools.partial(_through_float32, _name, only_if=_broadcasts)))


def _getitem(original):
    @functools.wraps(original)
    def __getitem__(self, index):
        if self.dtype == mstype.bfloat16 and runs_here((self,), {}):
            return original(as_float32(self), index).astype(mstype.bfloat16)
        return original(self, index)
    return __getitem__


def _setitem(original):
    @functools.wraps(original)
    def __setitem__(self, index, value):
        if self.dtype == mstype.bfloat16 and runs_here((self,), {}):
            wide = as_float32(self)
            original(wide, index, as_float32(value))
            write_into(self, wide)
        else:
            original(self, index, value)
    return __setitem__


REPLACEMENTS.append(Replacement((f"{_TENSOR}.__getitem__",), _getitem))
REPLACEMENTS.append(Replacement((f"{_TENSOR}.__setitem__",), _setitem))


@operator("Mm", f"{_MINT}:mm", f"{_TENSOR}.mm")
def mm(input, mat2):
    return mint.matmul(input, mat2)
