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
"""Arguments that speak of all heads (ALiBi, relative position biases), cut to this rank's heads on their way in."""
from typing import Dict, Mapping, Sequence

from mindspore import nn

from hyper_parallel.core.collectives import transitions
from hyper_parallel.core.collectives.transitions import Transition

HEADS_DIM = -3
"""Scores are `[batch, heads, queries, keys]`; what is added to them counts its heads there, or batch * heads."""
_ARGUMENTS = ("alibi", "alibi_bias", "position_bias", "attn_bias", "attention_bias", "rel_pos_bias", "relative_bias",
              "relative_position_bias", "rel_pos", "pos_bias", "slopes", "alibi_slopes", "alibi_tensor")


def find_head_arguments(said: Mapping[str, int], arguments: Sequence[str]) -> Dict[str, int]:
    """`{argument: the dim that counts heads}` of an attention's forward: those of its family, and those whose name says
    that they are added to the scores."""
    return {name: HEADS_DIM for name in arguments if name in said or name in _ARGUMENTS}


class HeadSlice(nn.Cell):
    """This rank's heads of a tensor for all heads; its gradient is gathered.

    `[.., H, .., ..] -> [.., H / t, .., ..]` and `[B * H, .., ..] -> [B * H / t, .., ..]`. A tensor that has one for all
    heads, or this rank's already (a bias that another attention of the rank has computed), passes.

    Args:
        group (Group): the ranks of the axis.
        heads (int): H, of the whole.
        dim (int): the dim that counts heads.
        path (str): the attention's, for the counter and the message.
    """

    def __init__(self, group, heads: int, dim: int, path: str):
        super().__init__(auto_prefix=False)
        self.heads, self.local, self.dim, self.path = heads, heads // group.size, dim, path
        self.cut = Transition(transitions.SLICE, group, dim, where=path)

    def construct(self, x):
        """The part of x `[batch * heads, q, k]`, `[batch, heads, q, k]`, or `[heads]`."""
        if x.ndim < -self.dim:
            return self._vector(x)
        size = x.shape[self.dim]
        if size == self.heads:
            return self.cut(x)
        if size in (1, self.local):
            return x
        if x.ndim == -self.dim and size % self.heads == 0:
            rest = x.shape[1:]
            by_batch = self.cut(x.reshape((size // self.heads, self.heads) + rest))
            return by_batch.reshape((size // self.heads * self.local,) + rest)
        raise ValueError(f"{self.path}: an argument of shape {x.shape} is added to the scores of {self.heads} heads, "
                         f"and its dim {self.dim} counts {size}: no multiple of them, nor one for all")

    def _vector(self, x):
        if x.ndim == 1 and x.shape[0] == self.heads:
            return self.cut(x.reshape((self.heads, 1, 1))).reshape((self.local,))
        return x
