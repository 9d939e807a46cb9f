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
"""A plan's gradients: torch follows the forwards rank by rank, and the plan says which ranks' gradients are summed.

A parameter that is whole on every rank is a leaf of its own on each. Inside a region every rank uses its own, so that
each holds a part of the gradient, and `grad_sum_axes` has to say so; outside only the first rank's is used, which
stands for all ranks computing the same.
"""
from pathlib import Path

import numpy as np
import pytest

from decoders import DECODERS
from emulate import Ranks
from other_decoders import t5
from special_decoders import OTHERS

torch = pytest.importorskip("torch", reason="torch is the optional extra 'judge' (torch==2.13.0)")
from tracked import Tracked  # noqa: E402  pylint: disable=wrong-import-position

FOLDERS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "models"
NAMES = sorted({**DECODERS, **OTHERS, "t5": t5})


class GradientRanks(Ranks):
    """`Ranks` whose local weights are leaves of torch's graph."""

    def __init__(self, folder, tp):
        super().__init__(folder, tp)
        self.local = [{name: Tracked(torch.tensor(array, requires_grad=True)) for name, array in held.items()}
                      for held in self.local]

    def gradients(self, name):
        """Every rank's, None where the rank did not use it."""
        return [held[name].tensor.grad for held in self.local]

    def whole_gradient(self, name):
        """The gradient of the whole parameter as the plan puts it together.

        Raises:
            AssertionError: ranks hold partial gradients and the plan does not sum them, or the reverse.
        """
        spec, found = self.plan.parameters[name], self.gradients(name)
        arrays = [np.zeros(spec.local_shape) if one is None else one.numpy() for one in found]
        if spec.slice_map.cuts:
            # the adjoint of `shard`: what several ranks hold, gets all of their gradients
            whole, held = np.zeros(spec.shape), np.zeros(spec.shape, int)
            for rank, array in enumerate(arrays):
                for there, here in spec.slice_map.pieces(rank):
                    whole[there] += array[here]
                    held[there] += 1
            assert held.min() >= 1 and (held.max() > 1) == (spec.copies > 1), f"{name}: copies {spec.copies}"
            return whole
        used_by_others = any(one is not None for one in found[1:])
        is_first_only = self.plan.boundaries.get(name.rpartition(".")[0]) is not None and self.plan.boundaries[
            name.rpartition(".")[0]].local_compute_fn == "bias_on_first_rank"
        assert used_by_others == bool(spec.grad_sum_axes) or is_first_only, \
            f"{name}: other ranks {'use' if used_by_others else 'do not use'} it, grad_sum_axes {spec.grad_sum_axes}"
        return sum(arrays) if spec.grad_sum_axes else arrays[0]


def loss_of(name, ranks, reference):
    """Mean cross-entropy of every position's logits against the next id."""
    total, count = 0.0, 0
    targets = reference["decoder_input_ids" if name == "t5" else "input_ids"]
    for at, ids in enumerate(reference["input_ids"]):
        logits = t5(ranks, ids, targets[at]) if name == "t5" else {**DECODERS, **OTHERS}[name](ranks, ids)
        total = total + torch.nn.functional.cross_entropy(logits.tensor[:-1], torch.from_numpy(targets[at][1:]).long(),
                                                          reduction="sum")
        count += len(targets[at]) - 1
    return total / count


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_the_plan_puts_every_gradient_together(name, tp):
    ranks = GradientRanks(FOLDERS / name, tp)
    loss_of(name, ranks, np.load(FOLDERS / name / "reference.npz")).backward()
    expected = dict(np.load(FOLDERS / name / "gradients.npz"))
    # the references are float32: some true gradients are zero, and theirs is rounding
    rounding = 1e-7 * max(np.abs(gradient).max() for gradient in expected.values())
    wrong = {path: float(np.abs(ranks.whole_gradient(path) - gradient).max() /
                         (np.abs(gradient).max() + 1e4 * rounding))
             for path, gradient in expected.items() if path in ranks.plan.parameters}
    assert len(wrong) >= len(ranks.plan.parameters) - 2
    assert {path: error for path, error in wrong.items() if error > 1e-4} == {}


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
@pytest.mark.parametrize("name,path", [("qwen3", "model.layers.0.self_attn.q_norm.weight"),
                                       ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
                                       ("phi", "model.layers.0.input_layernorm.weight"),
                                       ("deepseek_v3", "model.layers.0.self_attn.kv_a_layernorm.weight")])
def test_the_judge_sees_a_gradient_that_is_not_summed(name, path):
    ranks = GradientRanks(FOLDERS / name, 2)
    ranks.plan.parameters[path] = ranks.plan.parameters[path]._replace(grad_sum_axes=())
    loss_of(name, ranks, np.load(FOLDERS / name / "reference.npz")).backward()
    with pytest.raises(AssertionError, match="other ranks use it"):
        ranks.whole_gradient(path)
