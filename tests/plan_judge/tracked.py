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
"""Torch tensors that numpy code computes with: the judge's forwards run on them as they are, and autograd follows."""
import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

_SAME_NAME = ("add", "subtract", "multiply", "divide", "matmul", "power", "exp", "sqrt", "sin", "cos", "tanh", "log",
              "log1p", "maximum", "minimum", "negative")


def _torch(value):
    if isinstance(value, Tracked):
        return value.tensor
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    return torch.tensor(float(value), dtype=torch.float64) if np.isscalar(value) else value


class Tracked(NDArrayOperatorsMixin):
    """A float64 torch tensor behind numpy's functions and operators.

    Args:
        tensor: the tensor.
    """

    def __init__(self, tensor):
        self.tensor = tensor

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        assert method == "__call__" and ufunc.__name__ in _SAME_NAME and not kwargs, f"{ufunc} {method}"
        return Tracked(getattr(torch, {"power": "pow"}.get(ufunc.__name__, ufunc.__name__))(*map(_torch, inputs)))

    def __array_function__(self, function, types, args, kwargs):
        return globals()[f"_{function.__name__}"](*args, **kwargs)

    def __getitem__(self, key):
        keys = key if isinstance(key, tuple) else (key,)
        return Tracked(self.tensor[tuple(_torch(one) if isinstance(one, np.ndarray) else one for one in keys)])

    def __len__(self):
        return len(self.tensor)

    @property
    def shape(self):
        """As a tuple."""
        return tuple(self.tensor.shape)

    @property
    def T(self):  # pylint: disable=invalid-name
        """Transposed."""
        return Tracked(self.tensor.T)

    def reshape(self, *shape):
        """Another shape."""
        return Tracked(self.tensor.reshape(*shape))

    def transpose(self, *dims):
        """Dims in another order."""
        return Tracked(self.tensor.permute(*dims))

    def sum(self, axis, keepdims=False):
        """Over a dim."""
        return Tracked(self.tensor.sum(axis, keepdim=keepdims))

    def mean(self, axis, keepdims=False):
        """Over a dim."""
        return Tracked(self.tensor.mean(axis, keepdim=keepdims))

    def max(self, axis, keepdims=False):
        """Over a dim; used as a shift, which has no gradient."""
        return Tracked(self.tensor.detach().amax(axis, keepdim=keepdims))

    def erf(self):
        """The error function."""
        return Tracked(torch.erf(self.tensor))


def _einsum(formula, *operands):
    return Tracked(torch.einsum(formula, *map(_torch, operands)))


def _concatenate(parts, axis=0):
    return Tracked(torch.cat([_torch(part) for part in parts], axis))


def _stack(parts, axis=0):
    return Tracked(torch.stack([_torch(part) for part in parts], axis))


def _repeat(x, count, axis):
    return Tracked(torch.repeat_interleave(x.tensor, count, axis))


def _split(x, at, axis=0):
    parts = torch.tensor_split(x.tensor, at, axis)
    return [Tracked(part) for part in parts]


def _argsort(x, axis=-1):
    return np.argsort(x.tensor.detach().numpy(), axis)


def _take_along_axis(x, indices, axis):
    return Tracked(torch.take_along_dim(x.tensor, _torch(indices), axis))


def _zeros_like(x):
    return np.zeros(x.shape)


def _broadcast_to(x, shape):
    return Tracked(x.tensor.expand(shape))


def _clip(x, low, high):
    return Tracked(x.tensor.clamp(low, high))
