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
"""Random numbers: replicas draw the same, parts draw different ones,
and a filled weight does not depend on the mesh."""
from mindspore import mint, ops

from hyper_parallel.core.dtensor.ops.common import pointwise
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.random import STRIDE, seed_moved


@rule("FuncDropoutExt")
def dropout(input, p, training, inplace, seed, offset):
    """Each part draws from its own seed."""
    del p, training, seed, offset
    return pointwise(input, inplace=bool(inplace), compute=_own_seed(4))


@rule("DropoutExt")
def dropout_with_mask(input, p, seed, offset):
    """`(out, mask)`; the mask's layout in memory is the kernel's own, so it is not for use by others."""
    del p, seed, offset
    spec = pointwise(input, compute=_own_seed(2))
    spec.outputs.append(None)
    return spec


@rule("Dropout")
def dropout_primitive(x, keep_prob, seed0=0, seed1=0):
    """`(out, mask)` of the primitive inside `nn.Dropout`.

    Its kernel draws from a state of its own, which differs between ranks; here the numbers are the generator's.
    """
    del keep_prob, seed0, seed1

    def compute(cut):
        def run(func, args, kwargs):
            del func, kwargs
            local, keep = args[:2]
            with seed_moved(cut.index()):
                kept = mint.nn.functional.dropout(mint.ones_like(local), 1 - keep, True)
            return ops.mul(local, kept), ops.cast(ops.not_equal(kept, 0), local.dtype)
        return run

    spec = pointwise(x, compute=compute)
    spec.outputs.append(spec.outputs[0])
    return spec


def _own_seed(position):
    def compute(cut):
        if not cut.labels:
            return None
        shift = cut.index() * STRIDE

        def run(func, args, kwargs):
            return func(*args[:position], args[position] + shift, *args[position + 1:], **kwargs)
        return run
    return compute


@rule("InplaceNormal", "InplaceUniform", "InplaceRandom")
def fill_random(x, *numbers):
    """The numbers of the whole are drawn, and each part takes its own: they do not depend on the mesh."""
    del numbers
    labels = tuple(range(x.ndim))

    def compute(cut):
        if not cut.labels:
            return None
        areas = [cut.area(label) for label in labels]

        def run(func, args, kwargs):
            whole = func(mint.empty(x.shape, dtype=args[0].dtype), *args[1:], **kwargs)
            for dim, (start, rows) in enumerate(areas):
                whole = mint.narrow(whole, dim, start, rows)
            return args[0].copy_(whole.contiguous())
        return run

    return pointwise(x, inplace=True, compute=compute)
