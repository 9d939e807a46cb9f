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
"""Mixture of experts: grouped matrix product, and tokens to expert order and back."""
import numpy as np
from mindspore import Tensor, mint
from mindspore.common import dtype as mstype

from hyper_parallel.platform.cpu_kernels.dispatch import (
    REPLACEMENTS, Replacement, operator, original_place, runs_here)
from hyper_parallel.platform.cpu_kernels.indexing import index_select
from hyper_parallel.platform.cpu_kernels.numeric import as_float32

# x to group_list; what follows are the attributes of the primitive.
_TENSOR_COUNT = 8


def _group_ends(group_list):
    return [int(end) for end in (group_list.asnumpy() if isinstance(group_list, Tensor) else group_list)]


@operator("GroupedMatmul")
def grouped_matmul(x, weight, bias=None, scale=None, offset=None, antiquant_scale=None, antiquant_offset=None,
                   group_list=None, split_item=0, group_type=-1, transpose_a=False, transpose_b=False):
    """Rows of `x[0]`, in groups that end at the numbers in `group_list`, times one matrix of `weight[0]` each.

    Args:
        x: list of one tensor `[rows, in]`.
        weight: list of one tensor `[groups, in, out]`, or `[groups, out, in]` with `transpose_b`.
        group_list: cumulative row counts, one a group; rows beyond the last are 0 in the result.

    Returns:
        A tuple of one tensor `[rows, out]`.

    Raises:
        NotImplementedError: for everything but this form of the operator.
    """
    extras = (bias, scale, offset, antiquant_scale, antiquant_offset)
    if split_item != 3 or group_type != 0 or transpose_a or any(extra is not None for extra in extras) \
            or len(x) != 1 or len(weight) != 1 or group_list is None:
        raise NotImplementedError(
            f"GroupedMatmul on CPU takes one x and one weight with split_item 3, group_type 0 and a group_list, and no "
            f"bias, quantisation or transpose_a; got split_item {split_item}, group_type {group_type}, {len(x)} x and "
            f"{len(weight)} weight tensors.")
    rows, matrices = as_float32(x[0]), as_float32(weight[0])
    if transpose_b:
        matrices = mint.transpose(matrices, 1, 2)
    products, start = [], 0
    for matrix, end in zip(mint.chunk(matrices, matrices.shape[0], 0), _group_ends(group_list)):
        if end > start:
            products.append(mint.matmul(mint.narrow(rows, 0, start, end - start), mint.squeeze(matrix, 0)))
            start = end
    if start < rows.shape[0] or not products:
        products.append(mint.zeros((rows.shape[0] - start, matrices.shape[2])))
    return (mint.cat(products, 0).astype(x[0].dtype),)


def _primitive(original):
    """A subclass of the primitive, so that `isinstance`, its attributes and graph mode stay as they were."""

    class GroupedMatmul(original):
        """GroupedMatmul that computes on CPU."""

        def __call__(self, *args, **kwargs):
            if not runs_here(args, kwargs):
                with original_place(args, kwargs):
                    return super().__call__(*args, **kwargs)
            operands = grouped_matmul.operands(args, kwargs)[:_TENSOR_COUNT]
            return grouped_matmul.dispatch(*operands, self.split_item, self.group_type, self.transpose_a,
                                           self.transpose_b)

    return GroupedMatmul


REPLACEMENTS.append(Replacement(
    ("mindspore.ops.auto_generate:GroupedMatmul", "mindspore.ops.auto_generate.gen_ops_prim:GroupedMatmul"),
    _primitive))


@operator("MoeTokenPermute", "mindspore.ops:moe_token_permute", "mindspore.ops.auto_generate:moe_token_permute")
def moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """Tokens in the order of their experts, and where each (token, choice) went.

    Args:
        tokens: `[tokens, hidden]`.
        indices: expert of each choice, `[tokens, topk]` or `[tokens]`.
        num_out_tokens: how many of the ordered rows to keep; None or 0 for all.

    Returns:
        `([tokens * topk, hidden], int32 [tokens * topk])`; the second is the row of each choice in the first.
    """
    if padded_mode:
        raise NotImplementedError("moe_token_permute on CPU has no padded mode.")
    topk = 1 if indices.ndim == 1 else indices.shape[1]
    order = np.argsort(indices.asnumpy().reshape(-1), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    rows = order // topk
    if num_out_tokens:
        rows = rows[:num_out_tokens]
    return index_select(tokens, 0, Tensor(rows, mstype.int64)), Tensor(places, mstype.int32)


@operator("MoeTokenUnpermute", "mindspore.ops:moe_token_unpermute",
          "mindspore.ops.auto_generate:moe_token_unpermute")
def moe_token_unpermute(permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    """The inverse of `moe_token_permute`; with `probs` `[tokens, topk]` a token is the weighted sum of its choices.

    Choices whose row was cut off by `num_out_tokens` count as 0.
    """
    if padded_mode:
        raise NotImplementedError("moe_token_unpermute on CPU has no padded mode.")
    places = sorted_indices.asnumpy().reshape(-1)
    kept, hidden = permuted_tokens.shape
    wide = as_float32(permuted_tokens)
    if places.size and places.max() >= kept:
        wide = mint.cat([wide, mint.zeros((1, hidden))], 0)
        places = np.minimum(places, kept)
    choices = index_select(wide, 0, Tensor(places, mstype.int64))
    if probs is not None:
        choices = mint.mul(mint.reshape(choices, (*probs.shape, hidden)), mint.unsqueeze(as_float32(probs), -1))
        choices = mint.sum(choices, 1)
    return choices.astype(permuted_tokens.dtype)
