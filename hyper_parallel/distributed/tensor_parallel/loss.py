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
"""Cross entropy of logits whose vocabulary is cut over the ranks: they are never gathered, and the loss is one value."""
from typing import Optional, Sequence, Tuple, Union

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from hyper_parallel.core.dtensor.placement_types import Shard
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.token_loss import Terms, TokenLoss

REDUCTIONS = ("mean", "sum", "none")


def cut_head(plan: ShardingPlan) -> Optional[Tuple[str, ModuleShardingSpec]]:
    """(path, boundary) of the head whose logits leave cut over the vocabulary; None where they leave whole.

    Raises:
        ValueError: there are several of different sizes.
    """
    found = [(path, spec) for path, spec in plan.boundaries.items() if spec.semantic_role == templates.LM_HEAD
             and spec.out_dst and spec.out_dst.get(templates.AXIS) == Shard(-1)]
    if len({spec.out_size for _, spec in found}) > 1:
        raise ValueError(f"loss_parallel: {', '.join(path for path, _ in found)} have vocabularies of different sizes "
                         f"({', '.join(str(spec.out_size) for _, spec in found)}): set loss_parallel: false")
    return found[0] if found else None


class VocabParallelCrossEntropy(nn.Cell):
    """Cross entropy of a model's logits, cut over the vocabulary or whole; equal to the loss of the whole logits.

    With `loss_parallel` in its plan a model returns this rank's columns of the logits, `[…, C]`; without it, or without
    a plan, the whole logits, `[…, V]`. This loss takes either, so that the training script is the same. Works in
    PyNative, mindspore.jit and GRAPH_MODE; logits of any float dtype, computed in float32. Communicates a maximum of
    N numbers and one sum of 3 N for N tokens (4 N with label smoothing) in the forward, nothing in the backward.

    Args:
        model (Cell): with its plan applied, if it has one; only its plan is looked at. None: the logits are whole.
        reduction (str): "mean" over the tokens that count (weighted by class, where weights are given), "sum" or "none".
        ignore_index (int): label of tokens that do not count.
        label_smoothing (float): from 0 to below 1, as in torch.nn.CrossEntropyLoss: spread over all V classes.
        z_loss (float): factor of the square of log Σ exp of the logits, which keeps them from drifting (PaLM,
            arXiv:2204.02311, section 5); class weights do not change it.
        weight (Sequence[float], optional): one weight per class, of the whole vocabulary.

    Inputs:
        - **logits** (Tensor): `[…, C]` or `[…, V]`.
        - **labels** (Tensor): `[…]`, integers, equal on all ranks of the tensor-parallel axis.

    Outputs:
        Tensor: float32, a scalar, or `[…]` for reduction "none"; the same value on all ranks. NaN for a label that is
        neither in the vocabulary nor `ignore_index`, and for the mean of no tokens.

    Raises:
        ValueError: an argument is out of range, or the logits have another number of columns than the plan says.

    Examples:
        >>> hp.auto_tp(model, mesh, loss_parallel=True)
        >>> loss_of = hp.VocabParallelCrossEntropy(model, label_smoothing=0.1)
        >>> loss = loss_of(model(input_ids), labels)
    """

    def __init__(self, model=None, *, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
                 z_loss: float = 0.0, weight: Optional[Union[Sequence[float], Tensor]] = None):
        super().__init__(auto_prefix=False)
        # the applier checks a model's logits with this module
        from hyper_parallel.distributed.applier import applied_state  # pylint: disable=import-outside-toplevel
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}: valid are {', '.join(REDUCTIONS)}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}: give 0 or more, and less than 1")
        if not z_loss >= 0:
            raise ValueError(f"z_loss is {z_loss}: give 0 or more")
        state = applied_state(model) if model is not None else None
        head = cut_head(state.plan) if state is not None else None
        vocabulary = head[1].out_size if head else None
        if weight is not None:
            weight = np.asarray(weight.asnumpy() if isinstance(weight, Tensor) else weight, np.float32)
            if weight.ndim != 1 or vocabulary not in (None, len(weight)):
                raise ValueError(f"weight has shape {weight.shape}: give one number for each class of the whole vocabulary"
                                 f"{f', {vocabulary}' if vocabulary else ''}")
        self.reduction, self.ignore_index = reduction, ignore_index
        self.of_tokens = TokenLoss(state.mesh.get_group(templates.AXIS) if head else None, vocabulary,
                                   Terms(ignore_index, label_smoothing, z_loss, weight))

    def construct(self, logits, labels):
        """The loss; see the class."""
        flat = ops.cast(ops.reshape(labels, (-1,)), mindspore.int32)
        loss, _ = self.of_tokens(ops.reshape(logits, (-1, logits.shape[-1])), flat)
        if self.reduction == "none":
            return ops.reshape(loss, labels.shape)
        if self.reduction == "sum":
            return ops.sum(loss)
        counts = ops.cast(flat != self.ignore_index, mindspore.float32)
        return ops.sum(loss) / ops.sum(counts * self.of_tokens.weight_of(flat))


def require_cut_logits(model, plan: ShardingPlan):
    """Hook a check onto a model under loss parallel: its first result has to be this rank's logits.

    A model that computes its loss itself would compute it from a part of the logits.

    Returns:
        A handle with `remove()`; None where the plan keeps no logits cut.
    """
    head = cut_head(plan)
    if head is None:
        return None
    columns, (path, spec) = -(-head[1].out_size // plan.tp), head

    def check(cell, args, output):
        first = output[0] if isinstance(output, tuple) else output
        if first.shape[-1:] != (columns,):
            raise ValueError(
                f"loss_parallel keeps the logits of {path!r} cut over the vocabulary of {spec.out_size}, {columns} columns "
                f"a rank, and the model returns a first result of shape {first.shape}: return the logits as the head gives "
                "them, and compute the loss outside with hp.VocabParallelCrossEntropy(model), or set "
                "auto_tp_config.loss_parallel: false")

    return model.register_forward_hook(check)
