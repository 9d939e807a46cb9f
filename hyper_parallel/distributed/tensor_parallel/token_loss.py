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
"""The loss of each token from logits cut over the vocabulary, with a backward that communicates nothing.

Letters: N tokens, V whole vocabulary, C columns of a rank (padding included), ε label smoothing, w class weights,
W their sum, t the label. With lse = log Σⱼ exp xⱼ, the loss of a token is

    w_t (1 − ε) (lse − x_t)  +  ε/V (W lse − Σⱼ wⱼ xⱼ)  +  z lse²

label smoothing and weights as in torch.nn.CrossEntropyLoss, the last term as in PaLM (arXiv:2204.02311, section 5).
Nothing but the logits and lse is kept for the backward, where the probabilities are exp(xⱼ − lse).
"""
import functools
from typing import NamedTuple, Optional

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common._grad_function import _Function

from hyper_parallel.core.collectives import local
from hyper_parallel.core.collectives.functional import make
from hyper_parallel.core.collectives.groups import Group

LOSS = "loss"  # what the counter files the collectives under
# below every logit, and far enough from float32's limits to be subtracted from
_LOWEST = -1e30


class Terms(NamedTuple):
    """What the loss of a token is made of.

    Args:
        ignore_index: label of tokens that do not count.
        label_smoothing: ε.
        z_loss: z.
        weight: w of the whole vocabulary, or None.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    weight: Optional[np.ndarray] = None


class TokenLoss(nn.Cell):
    """`(logits [N, C], labels [N]) -> (loss [N], lse [N])`, float32, equal on all ranks.

    Args:
        group (Group, optional): the ranks that hold the columns; None where each holds all of them.
        vocabulary (int, optional): V; None takes the number of columns, for whole logits.
        terms (Terms): what the loss is made of.
    """

    def __init__(self, group: Optional[Group], vocabulary: Optional[int], terms: Terms):
        super().__init__(auto_prefix=False)
        self.ranks, self.index = (1, 0) if group is None else (group.size, group.index)
        self.vocabulary = vocabulary or 0
        self.ignore_index, self.smoothing, self.z_loss = terms.ignore_index, terms.label_smoothing, terms.z_loss
        self.has_weight = terms.weight is not None
        if self.has_weight:
            self.vocabulary = len(terms.weight)
            padded = np.zeros(self.ranks * -(-self.vocabulary // self.ranks), np.float32)
            padded[:self.vocabulary] = terms.weight
            self.weight = Tensor(terms.weight)
            self.local_weight = Tensor(padded.reshape(self.ranks, -1)[self.index])
            self.weight_sum = float(terms.weight.sum())
        alone = self.ranks == 1
        self._maximum = local.identity if alone else make("all_reduce", group, "max", purpose=LOSS)
        self._sum = local.identity if alone else make("all_reduce", group, "sum", purpose=LOSS)

    def __call__(self, logits, labels):
        if mindspore.get_context("mode") == mindspore.PYNATIVE_MODE:
            return _PyNativeTokenLoss.apply(logits, labels, self)
        return super().__call__(logits, labels)

    def construct(self, logits, labels):
        """The forward, as the compiler reads it."""
        return self.losses(logits, labels)

    def bprop(self, logits, labels, out, dout):
        """The backward, as the compiler reads it."""
        return self.gradient(logits, labels, out[1], dout[0]), ops.zeros_like(labels)

    def losses(self, logits, labels):
        """(loss, lse) of every token."""
        columns, real = self.local_columns(logits.shape)
        x = self._real_logits(logits, real)
        top = self._maximum(ops.amax(x, -1))
        shifted = x - ops.expand_dims(top, 1)
        hit = ops.cast(ops.equal(ops.expand_dims(labels, 1), columns), mindspore.float32)
        sums = (ops.sum(ops.exp(shifted), -1), ops.sum(hit * shifted, -1), ops.sum(hit, -1))
        if self.smoothing:
            of_classes = self.local_weight if self.has_weight else ops.cast(real, mindspore.float32)
            sums = sums + (ops.sum(shifted * of_classes, -1),)
        sums = ops.unstack(self._sum(ops.stack(sums)), 0)
        above = ops.log(sums[0])
        loss = self.weight_of(labels) * (1 - self.smoothing) * (above - sums[1])
        if self.smoothing:
            loss = loss + self._per_class(columns) * (self._sum_of_weights(columns) * above - sums[3])
        lse = above + top
        if self.z_loss:
            loss = loss + self.z_loss * lse * lse
        counts = labels != self.ignore_index
        # a label outside of the vocabulary is nobody's: without this it would pass as a logit of 0
        loss = ops.select(sums[2] > 0.5, loss, ops.full_like(loss, float("nan")))
        return ops.select(counts, loss, ops.zeros_like(loss)), lse

    def gradient(self, logits, labels, lse, dloss):
        """Of the logits `[N, C]`, from the loss's `[N]`."""
        columns, real = self.local_columns(logits.shape)
        probabilities = ops.exp(self._real_logits(logits, real) - ops.expand_dims(lse, 1))
        dloss = ops.select(labels != self.ignore_index, dloss, ops.zeros_like(dloss))
        of_label = dloss * self.weight_of(labels) * (1 - self.smoothing)
        of_all = of_label
        if self.z_loss:
            of_all = of_all + dloss * (2 * self.z_loss) * lse
        if self.smoothing:
            of_all = of_all + dloss * (self._per_class(columns) * self._sum_of_weights(columns))
        hit = ops.cast(ops.equal(ops.expand_dims(labels, 1), columns), mindspore.float32)
        found = ops.expand_dims(of_all, 1) * probabilities - ops.expand_dims(of_label, 1) * hit
        if self.smoothing:
            of_classes = self.local_weight if self.has_weight else ops.cast(real, mindspore.float32)
            found = found - ops.expand_dims(dloss * self._per_class(columns), 1) * of_classes
        return ops.cast(found, logits.dtype)

    def _real_logits(self, logits, real):
        """In float32; padded columns never win and have no probability."""
        x = ops.cast(logits, mindspore.float32)
        if self.vocabulary % self.ranks:
            return ops.select(ops.broadcast_to(real, x.shape), x, ops.full_like(x, _LOWEST))
        return x

    def local_columns(self, shape):
        return _ids_of_columns(shape[-1], self.vocabulary, self.ranks, self.index)

    def weight_of(self, labels):
        """w_t of every token, 1 without weights; of a label that is none, something that is not used."""
        if not self.has_weight:
            return 1.0
        return ops.gather(self.weight, ops.clamp(labels, 0, self.vocabulary - 1), 0)

    def _per_class(self, columns):
        return self.smoothing / (self.vocabulary or columns.shape[0])

    def _sum_of_weights(self, columns):
        return self.weight_sum if self.has_weight else float(self.vocabulary or columns.shape[0])


class _PyNativeTokenLoss(_Function):
    """The same in PyNative, where a Cell's bprop would keep more than it needs."""

    @staticmethod
    def forward(ctx, logits, labels, cell):
        """(loss, lse)."""
        loss, lse = cell.losses(logits, labels)
        ctx.cell = cell
        ctx.save_for_backward(logits, labels, lse)
        ctx.mark_non_differentiable(lse)
        return loss, lse

    @staticmethod
    def backward(ctx, dloss, _):
        """Of the logits; labels and Cell have none."""
        logits, labels, lse = ctx.saved_tensors
        return ctx.cell.gradient(logits, labels, lse, dloss), None, None


@ops.constexpr
def _ids_of_columns(count, vocabulary, ranks, index):
    """(ids of this rank's columns [C], which of them are in the vocabulary [C]).

    Raises:
        ValueError: the logits have another number of columns.
    """
    return _columns_of(count, vocabulary, ranks, index)


@functools.lru_cache(maxsize=16)
def _columns_of(count, vocabulary, ranks, index):
    expected = -(-vocabulary // ranks) if vocabulary else count
    if count != expected:
        raise ValueError(f"logits of {count} columns, but each of {ranks} ranks holds {expected} of a vocabulary of "
                         f"{vocabulary}: the loss takes the logits as the model's head gives them")
    ids = np.arange(index * count, (index + 1) * count, dtype=np.int32)
    return Tensor(ids), Tensor(ids < (vocabulary or count))
