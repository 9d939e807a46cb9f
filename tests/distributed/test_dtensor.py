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
"""DTensors among ranks: the same values whatever the mesh, parameters in training steps, mixed use with optimizers."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.mint import distributed as dist

from hyper_parallel.core.dtensor import creation
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dispatch import SkipDTensorDispatch
from hyper_parallel.core.dtensor.dtensor import DTensor, distribute_tensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward

if not dist.is_initialized() or dist.get_world_size() not in (2, 4, 8):
    pytest.skip("needs an msrun job of 2, 4 or 8 ranks", allow_module_level=True)

RANK, SIZE = dist.get_rank(), dist.get_world_size()
R, P, S = Replicate(), Partial(), Shard
LINE = DeviceMesh("cpu", (SIZE,), ("tp",))
GRID = DeviceMesh("cpu", (2, SIZE // 2), ("fsdp", "tp"))


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cpu_kernels.maybe_install()
    enable_backward()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LAYOUTS = [(LINE, (R,)), (LINE, (S(0),)), (LINE, (S(1),)), (GRID, (S(0), S(1)))] + (
    [(GRID, (StridedShard(0, SIZE // 2), S(0)))] if SIZE > 2 else [])


@pytest.mark.parametrize("draw", [creation.randn, creation.rand], ids=["randn", "rand"])
def test_random_values_do_not_depend_on_the_mesh(draw):
    wholes = []
    for mesh, placements in LAYOUTS:
        ms.manual_seed(11)
        wholes.append(draw((8, 6), mesh, placements).full_tensor().asnumpy())
    for whole in wholes[1:]:
        np.testing.assert_array_equal(whole, wholes[0])


@pytest.mark.parametrize("mesh, placements", LAYOUTS)
def test_filling_in_place_does_not_depend_on_the_mesh(mesh, placements):
    # MindSpore forbids writing into a leaf while operators are recorded, of a plain parameter too
    with ms._no_grad():
        ms.manual_seed(3)
        stored = Parameter(creation.zeros((8, 6), mesh, placements), name="w")
        stored.normal_(mean=0.0, std=0.5)
        ms.manual_seed(3)
        plain = ms.mint.empty((8, 6)).normal_(mean=0.0, std=0.5)
        np.testing.assert_array_equal(stored.full_tensor().asnumpy(), plain.asnumpy())
        stored.fill_(2.0)
        stored.mul_(3.0)
        stored.add_(distribute_tensor(Tensor(numbers(8, 6)), mesh, placements))
        np.testing.assert_allclose(stored.full_tensor().asnumpy(), numbers(8, 6) + 6, rtol=1e-6)
        stored.copy_(distribute_tensor(Tensor(numbers(8, 6, seed=1)), mesh, placements))
        np.testing.assert_array_equal(stored.full_tensor().asnumpy(), numbers(8, 6, seed=1))
        stored.zero_()
        assert not stored.full_tensor().asnumpy().any() and stored.placements == placements


def test_a_step_of_training_equals_one_rank():
    """y = (x W1) W2 with W1 cut by columns and W2 by rows, and nn.AdamWeightDecay, against whole weights."""
    x, target = Tensor(numbers(3, 8)), Tensor(numbers(3, 8, seed=9))
    plain = [Parameter(Tensor(numbers(8, 4 * SIZE, seed=1)), name="w1"),
             Parameter(Tensor(numbers(4 * SIZE, 8, seed=2)), name="w2")]
    cut = [distribute_tensor(Parameter(Tensor(weight.asnumpy()), name=weight.name), LINE, (placement,))
           for weight, placement in zip(plain, (S(1), S(0)))]

    def plain_loss(x):
        return ((x.matmul(plain[0]).matmul(plain[1]) - target) ** 2).sum()

    def cut_loss(x):
        hidden = DTensor.from_local(x, LINE, (R,)).to_local().matmul(cut[0].to_local())
        out = DTensor.from_local(hidden.matmul(cut[1].to_local()), LINE, (P,)).redistribute(LINE, (R,))
        # every rank computes the loss: with true adjoints each of them counts
        return ((out.to_local() - target) ** 2).sum() / SIZE

    optimizers = [nn.AdamWeightDecay(plain, learning_rate=0.1), nn.AdamWeightDecay(cut, learning_rate=0.1)]
    for _ in range(3):
        loss, gradients = ms.value_and_grad(plain_loss, None, weights=plain)(x)
        optimizers[0](gradients)
        cut_value, gradients = ms.value_and_grad(cut_loss, None, weights=cut)(x)
        with SkipDTensorDispatch():
            optimizers[1](gradients)
        np.testing.assert_allclose(float(cut_value) * SIZE, float(loss), rtol=1e-5)
    for whole, stored in zip(plain, cut):
        np.testing.assert_allclose(stored.full_tensor().asnumpy(), whole.asnumpy(), rtol=1e-4, atol=1e-5)


def test_gradients_add_up_over_two_uses_and_two_backwards():
    enable_backward()
    stored = distribute_tensor(Parameter(Tensor(numbers(2 * SIZE, 2)), name="w"), LINE, (S(0),))
    for _ in range(2):
        (stored.full_tensor().sum() + stored.redistribute(LINE, (S(1),)).to_local().sum()).backward()
    gradient = stored.grad
    assert gradient.placements == (S(0),)
    np.testing.assert_array_equal(gradient.full_tensor().asnumpy(), np.full((2 * SIZE, 2), 2 * (SIZE + 1)))


def test_the_gradient_of_a_replicated_parameter_is_a_sum_of_terms():
    """Each rank's backward gives its own; assigned reduced ones are the same sum again, and further ones add up."""
    stored = distribute_tensor(Parameter(Tensor(numbers(2, 2)), name="w"), LINE, (R,))
    total = sum(range(1, SIZE + 1))
    for uses in (1, 3):
        (stored.to_local() * (RANK + 1)).sum().backward()
        assert stored.grad.placements == (P,)
        np.testing.assert_array_equal(stored.grad.full_tensor().asnumpy(), np.full((2, 2), uses * total))
        stored.grad = stored.grad.redistribute(LINE, (R,)) * 2
        assert stored.grad.placements == (P,)
        np.testing.assert_array_equal(stored.grad.full_tensor().asnumpy(), np.full((2, 2), 2 * uses * total))


def test_values_are_read_from_the_whole():
    """A pending loss is summed before it is looked at, and parts are gathered."""
    loss = DTensor.from_local(Tensor(float(RANK + 1)), LINE, (P,))
    assert loss.item() == float(loss) == SIZE * (SIZE + 1) / 2
    assert DTensor.from_local(Tensor([RANK]), LINE, (S(0),)).tolist() == list(range(SIZE))
