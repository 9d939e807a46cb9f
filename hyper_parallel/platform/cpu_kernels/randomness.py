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
"""Random numbers, drawn on the host from the seed and offset of MindSpore's own generators.

`mindspore.manual_seed` and `Generator` objects therefore steer these draws too, and the same seed gives the same
numbers; they are not the numbers an Ascend kernel draws.
"""
import numpy as np
from mindspore import Tensor, mint
from mindspore.common import dtype as mstype
from mindspore.common.generator import default_generator

from hyper_parallel.platform.cpu_kernels.dispatch import operator, replaces
from hyper_parallel.platform.cpu_kernels.memory import write_into

# The step the Ascend kernels advance their generator by; keeps the offset moving between two draws.
_STEP = 12


def _next_state(generator):
    source = default_generator if generator is None else generator
    return source._step(Tensor(_STEP, mstype.int64))  # pylint: disable=protected-access


def _host_generator(seed, offset) -> np.random.Generator:
    return np.random.default_rng([int(seed.asnumpy()) & (2 ** 63 - 1), int(offset.asnumpy())])


def _host_value(value):
    return value.asnumpy() if isinstance(value, Tensor) else value


def _shape(size) -> tuple:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (list, tuple)) else tuple(size)


def _normal_numbers(shape, mean, std, seed, offset) -> np.ndarray:
    return _host_generator(seed, offset).normal(_host_value(mean), _host_value(std), shape).astype(np.float32)


def _uniform_numbers(shape, low, high, seed, offset) -> np.ndarray:
    draws = _host_generator(seed, offset).random(shape, dtype=np.float32)
    return _host_value(low) + draws * (_host_value(high) - _host_value(low))


@operator("InplaceNormal")
def inplace_normal(input, mean, std, seed, offset):
    return write_into(input, Tensor(_normal_numbers(input.shape, mean, std, seed, offset)))


@replaces("mindspore:Tensor.normal_")
def normal_(self, mean=0, std=1, *, generator=None):
    return inplace_normal.dispatch(self, mean, std, *_next_state(generator))


@operator("InplaceUniform")
def inplace_uniform(input, from_, to, seed, offset):
    return write_into(input, Tensor(_uniform_numbers(input.shape, from_, to, seed, offset), mstype.float32))


@replaces("mindspore:Tensor.uniform_")
def uniform_(self, from_=0, to=1, *, generator=None):
    return inplace_uniform.dispatch(self, from_, to, *_next_state(generator))


@replaces("mindspore.mint:rand")
def rand(*size, generator=None, dtype=None, device=None):
    return Tensor(_uniform_numbers(_shape(size), 0, 1, *_next_state(generator)), dtype or mstype.float32)


@replaces("mindspore.mint:randn")
def randn(*size, generator=None, dtype=None, device=None):
    return Tensor(_normal_numbers(_shape(size), 0, 1, *_next_state(generator)), dtype or mstype.float32)


@replaces("mindspore.mint:normal")
def normal(mean=0.0, std=1.0, size=None, generator=None):
    if size is None:
        size = np.broadcast_shapes(np.shape(_host_value(mean)), np.shape(_host_value(std)))
    return Tensor(_normal_numbers(tuple(size), mean, std, *_next_state(generator)), mstype.float32)


@replaces("mindspore.mint:randint")
def randint(*args, generator=None, dtype=None, device=None):
    low, high, size = args if len(args) == 3 else (0, *args)
    numbers = _host_generator(*_next_state(generator)).integers(low, high, tuple(size))
    return Tensor(numbers, dtype or mstype.int64)


@replaces("mindspore.mint:randperm")
def randperm(n, *, generator=None, dtype=mstype.int64):
    return Tensor(_host_generator(*_next_state(generator)).permutation(n), dtype)


def random_keep_mask(shape, keep_prob) -> Tensor:
    """A float32 tensor of 0 and 1, each 1 with probability `keep_prob`."""
    return Tensor((_host_generator(*_next_state(None)).random(shape) < keep_prob).astype(np.float32))


@operator("FuncDropoutExt")
def dropout_operator(input, p, training, inplace, seed, offset):
    if not training or p == 0:
        return input
    if p == 1:
        out = mint.mul(input, 0.0)
    else:
        keep = _host_generator(seed, offset).random(input.shape) >= p
        out = mint.mul(input, Tensor((keep / (1 - p)).astype(np.float32)).astype(input.dtype))
    return write_into(input, out) if inplace else out


@replaces("mindspore.mint.nn.functional:dropout")
def dropout(input, p=0.5, training=True, inplace=False):
    """Kept elements are scaled by `1 / (1 - p)`."""
    if not 0 <= p <= 1:
        raise ValueError(f"The dropout probability must be between 0 and 1, but got {p}.")
    return dropout_operator.dispatch(input, p, training, inplace, *_next_state(None))
