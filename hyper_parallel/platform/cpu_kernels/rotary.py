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
"""Rotary position embedding."""
from mindspore import mint

from hyper_parallel.platform.cpu_kernels.dispatch import (
    REPLACEMENTS, Replacement, operator, original_place, replaces, runs_here)
from hyper_parallel.platform.cpu_kernels.numeric import as_float32


@operator("RotaryPositionEmbedding")
def rotary_position_embedding_operator(x, cos, sin, mode=0):
    wide = as_float32(x)
    if mode == 0:
        first, second = mint.chunk(wide, 2, -1)
        rotated = mint.cat([mint.neg(second), first], -1)
    elif mode == 1:
        pairs = mint.reshape(wide, (*wide.shape[:-1], -1, 2))
        even, odd = mint.narrow(pairs, -1, 0, 1), mint.narrow(pairs, -1, 1, 1)
        rotated = mint.reshape(mint.cat([mint.neg(odd), even], -1), wide.shape)
    else:
        raise NotImplementedError(f"Rotary mode {mode} has no CPU stand-in; supported are 0 (halves) and 1 "
                                  f"(interleaved).")
    return mint.add(mint.mul(wide, as_float32(cos)), mint.mul(rotated, as_float32(sin))).astype(x.dtype)


@replaces("mindspore.ops:rotary_position_embedding", "mindspore.ops.auto_generate:rotary_position_embedding")
def rotary_position_embedding(x, cos, sin, mode=0):
    """`x * cos + rotate(x) * sin`; mode 0 rotates the two halves of the last dim, mode 1 its neighbours."""
    return rotary_position_embedding_operator.dispatch(x, cos, sin, mode)


def _primitive(original):
    """A subclass of the primitive, so that `isinstance` and graph mode stay as they were."""

    class RotaryPositionEmbedding(original):
        """RotaryPositionEmbedding that computes on CPU."""

        def __call__(self, x, cos, sin, mode=0):
            if not runs_here((x, cos, sin), {}):
                with original_place((x, cos, sin), {}):
                    return super().__call__(x, cos, sin, mode)
            return rotary_position_embedding(x, cos, sin, mode)

    return RotaryPositionEmbedding


REPLACEMENTS.append(Replacement(
    ("mindspore.ops.auto_generate:RotaryPositionEmbedding",
     "mindspore.ops.auto_generate.gen_ops_prim:RotaryPositionEmbedding"), _primitive))
