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
"""The loss of logits that are cut over the vocabulary: value and gradient of the whole computation, in numpy float64."""
import contextlib

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.collectives.counter import count_collectives
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.applier import applied_state
from hyper_parallel.distributed.tensor_parallel.token_loss import Terms, TokenLoss
from tests.models.decoder import Decoder, DecoderConfig, randomize
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder, token_ids
from tests.models.loss_reference import IGNORED, drawn, reference

WORLD = mindspore.communication.get_group_size()
RANK = mindspore.communication.get_rank()


def tp_mesh():
    """All ranks on one axis."""
    return hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",))


@contextlib.contextmanager
def mode_of(name):
    """PyNative or GRAPH_MODE."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE if name == "graph" else mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def cut_loss(size, reduction="mean", **terms):
    """The loss as a Cell for logits cut over all ranks."""
    loss = hp.VocabParallelCrossEntropy(reduction=reduction)
    weight = terms.pop("weight", None)
    loss.of_tokens = TokenLoss(tp_mesh().get_group("tp"), size, Terms(
        IGNORED, terms.get("label_smoothing", 0.0), terms.get("z_loss", 0.0),
        None if weight is None else np.asarray(weight, np.float32)))
    return loss


CASES = {
    "plain": {}, "smoothed": {"label_smoothing": 0.1}, "z": {"z_loss": 1e-2},
    "weights": {"weight": True}, "all": {"label_smoothing": 0.2, "z_loss": 1e-3, "weight": True},
}


@pytest.mark.parametrize("size", [8, 11])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode, reduction", [("pynative", "mean"), ("pynative", "none"),
                                             pytest.param("graph", "sum", marks=pytest.mark.slow)])
def test_value_and_gradient_are_those_of_the_whole_logits(case, size, mode, reduction):
    terms = dict(CASES[case])
    if "weight" in terms:
        terms["weight"] = np.random.default_rng(1).uniform(0.5, 2.0, size)
    logits, labels = drawn(size)
    # padded columns hold the largest of all logits: they must not count
    part = SliceMap.plain(logits.shape, 1, WORLD, pad=True)
    local = part.shard(logits, RANK)
    for _, mine in part.pieces(RANK):
        local[:, mine[1].stop:] = 1e4
    loss_of = cut_loss(size, reduction, **terms)


    def summed(x, tokens):
        return ops.sum(loss_of(x, tokens))

    with mode_of(mode):
        value, gradient = mindspore.value_and_grad(summed)(Tensor(local), Tensor(labels))
    expected, whole_gradient = reference(logits, labels, terms.get("label_smoothing", 0.0), terms.get("z_loss", 0.0),
                                         terms.get("weight"), reduction)
    assert abs(float(value.asnumpy()) - np.sum(expected)) <= 1e-5 * abs(np.sum(expected))
    expected_gradient = part.shard(whole_gradient.astype(np.float32), RANK)
    assert np.abs(gradient.asnumpy() - expected_gradient).max() <= 1e-5 * np.abs(whole_gradient).max()


def test_F04_plain_and_smoothed_values():
    local = SliceMap.plain((1, 8), 1, WORLD).shard(np.arange(8, dtype=np.float32)[None], RANK)
    labels = Tensor(np.array([3], np.int32))
    assert abs(float(cut_loss(8)(Tensor(local), labels).asnumpy()) - 4.458340) < 1e-5
    assert abs(float(cut_loss(8, label_smoothing=0.1)(Tensor(local), labels).asnumpy()) - 4.408340) < 1e-5


def test_the_shape_of_tokens_is_kept_and_low_precision_logits_get_low_precision_gradients():
    logits, labels = drawn(8)
    local = Tensor(SliceMap.plain(logits.shape, 1, WORLD).shard(logits, RANK).reshape(2, 3, -1)).astype(mindspore.float16)
    loss_of, tokens = cut_loss(8, "none"), Tensor(labels.reshape(2, 3).astype(np.int64))
    losses = loss_of(local, tokens)
    assert losses.shape == (2, 3) and losses.dtype == mindspore.float32
    expected, _ = reference(logits.astype(np.float16), labels, reduction="none")
    assert np.allclose(losses.asnumpy().ravel(), expected, rtol=1e-4, atol=1e-5)
    gradient = mindspore.grad(lambda x: ops.sum(loss_of(x, tokens)))(local)
    assert gradient.dtype == mindspore.float16 and gradient.shape == local.shape


def test_a_label_that_is_none_makes_nan_and_an_ignored_one_nothing():
    logits, labels = drawn(8)
    labels[3:5] = [8, -1]
    local = Tensor(SliceMap.plain(logits.shape, 1, WORLD).shard(logits, RANK))
    losses = cut_loss(8, "none")(local, Tensor(labels)).asnumpy()
    assert np.isnan(losses).tolist() == [False, False, False, True, True, False] and losses[2] == 0
    ignored = Tensor(np.full(6, IGNORED, np.int32))
    assert np.isnan(cut_loss(8)(local, ignored).asnumpy()) and cut_loss(8, "sum")(local, ignored).asnumpy() == 0


def test_logits_are_never_gathered():
    logits, labels = drawn(8)
    local = Tensor(SliceMap.plain(logits.shape, 1, WORLD).shard(logits, RANK))
    with count_collectives() as record:
        mindspore.grad(cut_loss(8), 0)(local, Tensor(labels))
    assert record.counts() == {"all_reduce": 2} and record.counts(purpose="loss") == {"all_reduce": 2}
    assert record.logical_bytes() == (1 + 3) * 6 * 4


class LanguageModel(nn.Cell):
    """A model and its loss, for value_and_grad in every mode."""

    def __init__(self, model, loss):
        super().__init__(auto_prefix=False)
        self.model, self.loss = model, loss

    def construct(self, input_ids, labels):
        """The loss."""
        return self.loss(self.model(input_ids), labels)


def trained(cell, loss, steps, vocabulary, mode="pynative"):
    """Losses of plain gradient descent, equal data on all ranks."""
    weights = mindspore.ParameterTuple(cell.trainable_params())
    optimizer = nn.Momentum(weights, learning_rate=0.05, momentum=0.9)
    both, seen = LanguageModel(cell, loss), []
    with mode_of(mode):
        step = mindspore.value_and_grad(both, None, weights)
        for _ in range(steps):
            value, gradients = step(token_ids(vocabulary), token_ids(vocabulary, seed=8))
            optimizer(gradients)
            seen.append(float(value.asnumpy()))
    return seen


def test_F06_a_loss_curve_with_cut_logits_follows_whole_ones_at_every_step():
    def own_loss(logits, labels):
        return ops.cross_entropy(ops.reshape(logits, (-1, 33)), ops.reshape(labels, (-1,)), label_smoothing=0.1)

    expected = trained(fused_decoder(vocabulary=33, head_bias=True), own_loss, 5, 33)
    cell = fused_decoder(vocabulary=33, head_bias=True)
    hp.auto_tp(cell, tp_mesh(), overrides=[RIGHT_LAYOUT], loss_parallel=True)
    assert cell(token_ids(33)).shape[-1] == -(-33 // WORLD)
    found = trained(cell, hp.VocabParallelCrossEntropy(cell, label_smoothing=0.1), 5, 33)
    assert np.allclose(found, expected, rtol=1e-4) and expected[-1] < 0.95 * expected[0]


def test_F06_the_same_without_a_plan_and_with_whole_logits():
    cell = fused_decoder(vocabulary=33)
    expected = trained(cell, lambda logits, labels: ops.cross_entropy(
        ops.reshape(logits, (-1, 33)), ops.reshape(labels, (-1,))), 2, 33)
    cell = fused_decoder(vocabulary=33)
    assert np.allclose(trained(cell, hp.VocabParallelCrossEntropy(cell), 2, 33), expected, rtol=1e-5)
    cell = fused_decoder(vocabulary=33)
    hp.auto_tp(cell, tp_mesh(), overrides=[RIGHT_LAYOUT])
    assert np.allclose(trained(cell, hp.VocabParallelCrossEntropy(cell), 2, 33), expected, rtol=1e-5)


def test_verify_gathers_the_logits_and_compares_every_gradient():
    report = hp.verify(lambda: fused_decoder(vocabulary=33), token_ids(33), tp=WORLD, overrides=[RIGHT_LAYOUT],
                       loss_parallel=True)
    assert report.ok and report.worst.relative < 1e-5, str(report)


def test_sequence_parallel_beside_it():
    report = hp.verify(lambda: randomize(Decoder(DecoderConfig(num_key_value_heads=4, num_hidden_layers=1, vocab_size=33))),
                       token_ids(33, length=8), tp=WORLD, loss_parallel=True, sequence_parallel=True)
    assert report.ok and report.worst.relative < 1e-5, str(report)


def test_the_planned_collectives_are_counted():
    cell = fused_decoder()
    hp.auto_tp(cell, tp_mesh(), overrides=[RIGHT_LAYOUT], loss_parallel=True)
    plan = applied_state(cell).plan
    loss = LanguageModel(cell, hp.VocabParallelCrossEntropy(cell))
    with count_collectives() as record:
        mindspore.value_and_grad(loss, None, mindspore.ParameterTuple(cell.trainable_params()))(token_ids(), token_ids())
    assert plan.expected["lm_head"] == {"forward": {}, "backward": {"all_reduce": 1}}
    assert record.count("all_gather") == 0 and record.counts(purpose="loss") == {"all_reduce": 2}
    assert record.counts(purpose="activation", phase="backward") == {"all_reduce": 3}


class OwnLoss(nn.Cell):
    """Computes its loss itself."""

    def __init__(self):
        super().__init__()
        self.body = fused_decoder()
        self.config = self.body.config

    def construct(self, input_ids, labels):
        """The loss of the logits, by their own number of columns."""
        logits = self.body(input_ids)
        return ops.cross_entropy(ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(labels, (-1,)))


class HiddenLoss(nn.Cell):
    """Where the source does not show it."""

    def __init__(self):
        super().__init__()
        self.body = fused_decoder()
        self.config = self.body.config

    def construct(self, input_ids, labels):
        """A loss of another name."""
        return another_name(self.body(input_ids), labels)


def another_name(logits, labels):
    """A loss."""
    return ops.sum(logits) + ops.sum(labels)


def test_a_model_that_computes_its_own_loss_is_refused():
    with pytest.raises(ValueError, match=r"OwnLoss \(the model\) computes a loss in its own forward \(cross_entropy\)"):
        hp.plan(OwnLoss(), tp=WORLD, overrides=[{**RIGHT_LAYOUT, "match": "body.attn.qkv.*"}], loss_parallel=True)
    cell = HiddenLoss()
    hp.auto_tp(cell, tp_mesh(), overrides=[{**RIGHT_LAYOUT, "match": "body.attn.qkv.*"}], loss_parallel=True)
    with pytest.raises(ValueError, match=r"returns a first result of shape \(\).*loss_parallel: false"):
        cell(token_ids(), token_ids())
    hp.restore(cell)
    assert cell(token_ids(), token_ids()).shape == ()


def test_arguments_out_of_range_are_refused():
    for words, said in (({"reduction": "average"}, "valid are mean, sum, none"), ({"label_smoothing": 1.0}, "less than 1"),
                        ({"z_loss": -1.0}, "z_loss is -1.0"), ({"weight": [[1.0]]}, "one number for each class")):
        with pytest.raises(ValueError, match=said):
            hp.VocabParallelCrossEntropy(**words)
    cell = fused_decoder(vocabulary=33)
    hp.auto_tp(cell, tp_mesh(), overrides=[RIGHT_LAYOUT], loss_parallel=True)
    with pytest.raises(ValueError, match="whole vocabulary, 33"):
        hp.VocabParallelCrossEntropy(cell, weight=[1.0, 2.0])
    with pytest.raises(ValueError, match=f"logits of 33 columns, but each of {WORLD} ranks holds {-(-33 // WORLD)} of"):
        hp.VocabParallelCrossEntropy(cell)(Tensor(np.zeros((1, 33), np.float32)), Tensor(np.zeros(1, np.int32)))


def test_a_plan_without_a_cut_head_is_refused():
    with pytest.raises(ValueError, match="no head of this model is cut"):
        hp.plan(fused_decoder(), tp=WORLD, loss_parallel=True,
                overrides=[RIGHT_LAYOUT, {"match": "lm_head.*", "replicate": True}])
