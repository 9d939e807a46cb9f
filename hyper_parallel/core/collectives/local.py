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
"""What a rank does alone at an edge: take its slice, put a slice in its place, scale, share. Every function compiles."""
from mindspore import ops

_zeros_like = ops.ZerosLike()


def identity(x):
    """`x`."""
    return x


def make_slice(group, dim):
    """This rank's part of `dim`, copied: a view would keep the whole tensor alive."""
    size, index = group.size, group.index

    def run(x):
        axis = dim if dim >= 0 else dim + x.ndim
        length = check_divides(x.shape, axis, size)
        begin = (0,) * axis + (index * length,) + (0,) * (x.ndim - 1 - axis)
        return ops.slice(x, begin, x.shape[:axis] + (length,) + x.shape[axis + 1:])

    return run


def make_zero_pad(group, dim):
    """The adjoint of `make_slice`: this rank's part in its place of `dim`, zeros elsewhere."""
    before, after = group.index, group.size - 1 - group.index

    def run(x):
        zeros = _zeros_like(x)
        return ops.concat((zeros,) * before + (x,) + (zeros,) * after, dim)

    return run


def make_scale(group):
    """`x` times the size of the group."""
    size = group.size

    def run(x):
        return x * size

    return run


def make_share(group):
    """`x` divided by the size of the group: the sum over the ranks is `x` again."""
    size = group.size

    def run(x):
        return x / size

    return run


@ops.constexpr
def check_divides(shape, dim, size):
    """The length of a part of `dim`.

    Raises:
        ValueError: the dim does not divide by the size of the group.
    """
    if shape[dim] % size:
        raise ValueError(f"dim {dim} of a tensor of shape {tuple(shape)} does not divide by the {size} ranks of the "
                         f"group")
    return shape[dim] // size
