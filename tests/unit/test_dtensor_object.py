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
"""A DTensor as an object: shapes, copies, printing, pickling, parameters, creation, in one process."""
import copy
import pickle

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from hyper_parallel.core import dtensor as package
from hyper_parallel.core.distributed_checkpoint import global_layout
from hyper_parallel.core.dtensor import creation, device_mesh
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh
from hyper_parallel.core.dtensor.dispatch import SkipDTensorDispatch, dispatch_is_skipped
from hyper_parallel.core.dtensor.dtensor import DFunction, DTensor, distribute_tensor
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard, StridedShard
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward

R, P, S = Replicate(), Partial(), Shard
ALONE = DeviceMesh("cpu", (1,), ("tp",))
PAIR = DeviceMesh("cpu", (2,), ("tp",))
GRID = DeviceMesh("cpu", (2, 2), ("fsdp", "tp"))


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cpu_kernels.maybe_install()
    enable_backward()


@pytest.fixture(name="rank")
def _rank(monkeypatch):
    def become(number):
        monkeypatch.setattr(device_mesh, "current_rank", lambda: number)
    return become


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_shapes_and_placements():
    made = DTensor.from_local(Tensor(numbers(2, 6)), GRID, (R, S(-2)))
    assert (made.shape, made.local_shape, made.ndim, made.dtype) == ((4, 6), (2, 6), 2, ms.float32)
    assert made.placements == (R, S(0)) and made.device_mesh is GRID and made.slice_map is None
    assert made.layout.tensor_map == (0, -1)


def test_to_local_is_the_storage():
    local = Tensor(numbers(2, 2))
    made = DTensor.from_local(local, PAIR, (S(0),))
    assert made.to_local() is local and made.data is local
    made.to_local().copy_(Tensor(numbers(2, 2) + 1))
    np.testing.assert_array_equal(made.data.asnumpy(), numbers(2, 2) + 1)


def test_printing_shows_placements_and_the_part():
    made = DTensor.from_local(Tensor(numbers(1, 2)), GRID, (P, S(0)))
    assert repr(made) == ("DTensor(shape=(2, 2), local_shape=(1, 2), dtype=Float32, fsdp: Partial(op='sum'), "
                          "tp: Shard(dim=0))")
    assert str(made) == repr(made) + ", local part:\n[[0. 1.]]"
    stored = Parameter(DTensor(Tensor(numbers(2)), ALONE, (R,)), name="w")
    assert repr(stored).startswith("Parameter DTensor(name='w', shape=(2,)")
    mapped = DTensor(Tensor(numbers(3, 1)), PAIR, (S(0),), SliceMap.plain((5, 1), 0, 2, pad=True))
    assert "rows cut in 2: [5 + 1 padding]" in repr(mapped) and mapped.shape == (5, 1)


@pytest.mark.parametrize("arguments, text", [
    (((R,),), "1 placements .* for a mesh of 2 axes"), ((("shard", R),), "give one placement per axis"),
    (((R, S(2)),), "axis 'tp': Shard\\(dim=2\\) on a tensor of 2 dims: valid dims are -2 to 1"),
    (((StridedShard(0, 3), S(0)),), "axis 'fsdp'"),
])
def test_placements_are_checked(arguments, text):
    with pytest.raises(ValueError, match=text):
        DTensor.from_local(Tensor(numbers(4, 4)), GRID, *arguments, shape=(16, 4))


def test_a_part_that_does_not_fit_the_whole():
    with pytest.raises(ValueError, match=r"part of shape \(3, 2\) at \{'tp': 0\}.*has shape \(2, 2\)"):
        DTensor.from_local(Tensor(numbers(3, 2)), PAIR, (S(0),), shape=(3, 2))


def test_a_dtensor_is_not_relabelled():
    made = DTensor.from_local(Tensor(numbers(2, 2)), PAIR, (S(0),))
    assert DTensor.from_local(made, PAIR, (S(-2),)).to_local() is made.to_local()
    with pytest.raises(ValueError, match="use redistribute"):
        DTensor.from_local(made, PAIR, (R,))


@pytest.mark.parametrize("number, rows", [(0, [0, 1]), (1, [2, 3]), (2, [4]), (3, [])])
def test_uneven_parts(number, rows, rank):
    rank(number)
    made = distribute_tensor(Tensor(numbers(5, 2)), DeviceMesh("cpu", (4,), ("tp",)), (S(0),))
    assert made.shape == (5, 2)
    np.testing.assert_array_equal(made.to_local().asnumpy(), numbers(5, 2)[rows])


@pytest.mark.parametrize("number", range(4))
def test_strided_parts(number, rank):
    """tp outside, fsdp inside."""
    rank(number)
    made = distribute_tensor(Tensor(numbers(8)), GRID, (StridedShard(0, 2), S(0)))
    fsdp, tp = divmod(number, 2)
    np.testing.assert_array_equal(made.to_local().asnumpy(), numbers(8).reshape(2, 2, 2)[tp, fsdp])
    assert made.layout.shard_orders == (("tp", "fsdp"),)


def test_a_rank_outside_the_mesh_holds_nothing(rank):
    rank(3)
    assert distribute_tensor(Tensor(numbers(4, 2)), PAIR, (S(0),)).local_shape == (0, 0)


def test_distribute_keeps_dtype_and_parameters():
    made = distribute_tensor(Parameter(Tensor(numbers(4, 2)), name="w", requires_grad=False), PAIR, (S(0),))
    assert isinstance(made, Parameter) and isinstance(made, DTensor)
    assert (made.name, made.requires_grad, made.local_shape) == ("w", False, (2, 2))
    for dtype in (ms.bfloat16, ms.int32, ms.bool_):
        assert distribute_tensor(Tensor(numbers(4, 2)).astype(dtype), PAIR, (S(0),)).to_local().dtype == dtype
    with pytest.raises(ValueError, match="axis 'tp'"):
        distribute_tensor(Tensor(numbers(4)), PAIR, (P,))


def test_meta_tensors_are_cut_by_shape_only():
    with ms.DeviceCtx("meta"):
        whole = mint.empty((4, 2))
    made = distribute_tensor(whole, PAIR, (S(0),))
    assert made.to_local().is_meta and made.local_shape == (2, 2) and "local part" not in str(made)
    assert made.redistribute(placements=(S(1),)).local_shape == (4, 1)
    assert made.clone("zeros").to_local().is_meta


def test_redistributing_to_the_same_is_no_copy():
    made = DTensor.from_local(Tensor(numbers(2, 2)), PAIR, (S(1),))
    assert made.redistribute(PAIR, (S(-1),)) is made
    assert made.redistribute(placements=(S(1),), device_mesh=PAIR) is made
    assert DTensor.from_local(Tensor(numbers(2)), ALONE, (R,)).redistribute().placements == (R,)


def test_a_mesh_of_one_rank_needs_no_world():
    made = DTensor.from_local(Tensor(numbers(2, 2)), ALONE, (P,))
    for placement in (R, S(0), S(1), P):
        moved = made.redistribute(placements=(placement,))
        assert moved.placements == (placement,) and moved.shape == (2, 2)
        np.testing.assert_array_equal(moved.full_tensor().asnumpy(), numbers(2, 2))
    np.testing.assert_array_equal(made.asnumpy(), numbers(2, 2))


def test_gradients_reach_the_local_tensor():
    def loss(x):
        made = DTensor.from_local(x, ALONE, (S(0),)).redistribute(placements=(R,))
        return (made.to_local(grad_placements=(P,)) * Tensor(numbers(2, 2))).sum() + made.full_tensor().sum()
    np.testing.assert_array_equal(ms.grad(loss)(Tensor(numbers(2, 2))).asnumpy(), numbers(2, 2) + 1)


@pytest.mark.parametrize("leaf", [True, False])
def test_a_parameter_gets_its_gradient(leaf):
    """Also where the part came out of an operator."""
    local = Parameter(Tensor(numbers(2)), name="w") if leaf else Tensor(numbers(2)) * 1
    stored = Parameter(DTensor(local, ALONE, (R,)), name="w")
    enable_backward()
    (stored.to_local() * 3).sum().backward()
    assert stored.grad.placements == (R,)
    np.testing.assert_array_equal(stored.grad.to_local().asnumpy(), [3, 3])
    stored.grad = None
    assert stored.grad is None and stored.main_grad is None
    stored.requires_grad = False
    assert not stored.to_local().requires_grad


@pytest.mark.parametrize("placement, of_gradient", [(R, P), (P, R), (S(0), S(0)), (Partial("avg"), R)])
def test_a_gradient_says_how_it_lies(placement, of_gradient):
    """Of a replicated part each rank has a term; who sums the terms says so."""
    stored = Parameter(DTensor(Parameter(Tensor(numbers(2)), name="w"), PAIR, (placement,)), name="w")
    enable_backward()
    (stored.to_local() * 3).sum().backward()
    assert stored.grad.placements == (of_gradient,) and copy.copy(stored).grad.placements == (of_gradient,)
    stored.grad = stored.grad
    stored.grad = Tensor(numbers(2))
    assert stored.grad.placements == (of_gradient,)
    np.testing.assert_array_equal(stored.grad.to_local().asnumpy(), numbers(2))
    stored._gradient_is_summed = True
    assert stored.grad.placements == (placement,) == copy.copy(stored).grad.placements


def test_copies():
    made = DTensor.from_local(Tensor(numbers(2, 2)), PAIR, (S(0),))
    for copied in (made.clone(), made.copy(), copy.deepcopy(made)):
        assert (copied.placements, copied.shape, copied.device_mesh) == ((S(0),), (4, 2), PAIR)
        assert copied.to_local() is not made.to_local()
        np.testing.assert_array_equal(copied.to_local().asnumpy(), numbers(2, 2))
    assert copy.copy(made).to_local() is made.to_local()
    assert made.clone("zeros").to_local().asnumpy().max() == 0
    assert made.clone("ones").to_local().asnumpy().min() == 1 and made.clone(3).to_local().asnumpy().min() == 3
    with pytest.raises(ValueError, match="'same', 'zeros', 'ones' or a number"):
        made.clone("random")
    np.testing.assert_array_equal(ms.grad(lambda x: (DTensor(x, PAIR, (R,)).clone().to_local() * 2).sum())(
        Tensor(numbers(2))).asnumpy(), [2, 2])


def test_copies_of_a_parameter_are_new_leaves():
    stored = Parameter(DTensor(Parameter(Tensor(numbers(2)), name="w"), ALONE, (R,)), name="w")
    for copied in (stored.clone(), stored.copy(), stored.clone("zeros"), copy.deepcopy(stored)):
        assert isinstance(copied, Parameter) and copied.name == "w" and isinstance(copied.to_local(), Parameter)
        copied.to_local().copy_(Tensor(numbers(2) + 5))
    np.testing.assert_array_equal(stored.to_local().asnumpy(), numbers(2))


def test_data_and_set_data_take_the_part():
    made = DTensor.from_local(Tensor(numbers(2, 2)), PAIR, (S(0),))
    made.data = Tensor(numbers(2, 2) + 1)
    np.testing.assert_array_equal(made.to_local().asnumpy(), numbers(2, 2) + 1)
    made.set_data(DTensor.from_local(Tensor(numbers(2, 2) + 2), PAIR, (S(0),)), False)
    np.testing.assert_array_equal(made.to_local().asnumpy(), numbers(2, 2) + 2)
    stored = Parameter(DTensor(Tensor(numbers(2)), ALONE, (R,)), name="w")
    stored.set_data(Tensor(numbers(2) + 7))
    np.testing.assert_array_equal(stored.to_local().asnumpy(), numbers(2) + 7)
    for change in (lambda: made.set_data(Tensor(numbers(4, 2))), lambda: setattr(made, "data", Tensor(numbers(4, 2)))):
        with pytest.raises(ValueError, match=r"\(4, 2\) for a part of shape \(2, 2\)"):
            change()


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.int32])
def test_pickling(dtype):
    made = DTensor.from_local(Tensor(numbers(2, 2)).astype(dtype), GRID, (StridedShard(0, 2), S(0)))
    back = pickle.loads(pickle.dumps(made))
    assert (back.placements, back.shape, back.dtype) == (made.placements, (8, 2), dtype) and back.device_mesh is GRID
    np.testing.assert_array_equal(back.to_local().astype(ms.float32).asnumpy(), numbers(2, 2))


def test_pickling_a_parameter_and_a_sub_mesh():
    made = DTensor(Tensor(numbers(2)), GRID["tp"], (R,), SliceMap.whole((2,)))
    stored = Parameter(made, name="w", requires_grad=False)
    back = pickle.loads(pickle.dumps(stored))
    assert isinstance(back, Parameter) and (back.name, back.requires_grad) == ("w", False)
    assert back.device_mesh is GRID["tp"] and back.slice_map == SliceMap.whole((2,))


@pytest.mark.parametrize("draw, plain", [
    (lambda *args: creation.zeros(*args), lambda: np.zeros((6, 4))),
    (lambda *args: creation.ones(*args), lambda: np.ones((6, 4))),
    (lambda size, *rest: creation.full(size, 7, *rest), lambda: np.full((6, 4), 7)),
    (lambda *args: creation.randn(*args), lambda: mint.randn(6, 4).asnumpy()),
    (lambda *args: creation.rand(*args), lambda: mint.rand(6, 4).asnumpy()),
])
def test_created_values_do_not_depend_on_the_mesh(draw, plain, rank):
    """They are those of the plain constructor."""
    ms.manual_seed(5)
    expected = plain()
    for mesh, placements in ((ALONE, (R,)), (PAIR, (S(0),)), (GRID, (S(1), S(0))), (GRID, (StridedShard(0, 2), S(0)))):
        whole = np.full((6, 4), np.nan)
        for number in range(mesh.size()):
            rank(number)
            ms.manual_seed(5)
            made = draw((6, 4), mesh, placements)
            assert made.shape == (6, 4) and made.placements == placements
            slices = creation.local_slices((6, 4), mesh, placements)
            whole[slices] = made.to_local().asnumpy()
        np.testing.assert_array_equal(whole, expected.astype(np.float64))


def test_creation_checks_its_arguments():
    assert creation.zeros(3, PAIR).placements == (R,)
    assert creation.zeros((4,), PAIR, (P,)).placements == (P,)
    assert creation.empty((4, 2), PAIR, (S(0),), dtype=ms.int32).local_shape == (2, 2)
    with pytest.raises(ValueError, match="axis 'tp': 1 on every rank would add up"):
        creation.ones((4,), PAIR, (P,))
    with pytest.raises(ValueError, match="cannot become Partial"):
        creation.randn((4,), PAIR, (P,))


def test_skipping_is_nested_and_survives_errors():
    stored = DTensor.from_local(Tensor(numbers(2)), PAIR, (S(0),))
    with SkipDTensorDispatch():
        with pytest.raises(RuntimeError), SkipDTensorDispatch():
            raise RuntimeError
        assert dispatch_is_skipped()
        assert not isinstance(stored * 2, DTensor)
    assert not dispatch_is_skipped()


class Halve(DFunction):
    """Halves a DTensor; notes how the gradient lies."""

    seen = []

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return DTensor.from_local(x.to_local() * factor, x.device_mesh, x.placements), x

    @staticmethod
    def backward(ctx, gradient, _):
        Halve.seen.append(gradient.placements)
        return DTensor.from_local(gradient.to_local() * ctx.factor, gradient.device_mesh, gradient.placements), None


class WithContext(DFunction):
    """The form with a separate context; plain tensors pass through as they are."""

    @staticmethod
    def forward(x):
        if not isinstance(x, DTensor):
            return x * 3
        return DTensor.from_local(x.to_local() * 3, x.device_mesh, x.placements)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = 3

    @staticmethod
    def backward(ctx, gradient):
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        return local * ctx.factor


@pytest.mark.parametrize("placement, of_gradient", [(S(0), S(0)), (P, R), (R, R)])
def test_functions_of_dtensors(placement, of_gradient):
    Halve.seen.clear()
    gradient = ms.grad(lambda x: (Halve.apply(DTensor(x, ALONE, (placement,)), 0.5)[0].to_local() * 4).sum())(
        Tensor(numbers(2)))
    np.testing.assert_array_equal(gradient.asnumpy(), [2, 2])
    assert Halve.seen == [(of_gradient,)]


def test_functions_with_setup_context():
    np.testing.assert_array_equal(ms.grad(lambda x: WithContext.apply(x).sum())(Tensor(numbers(2))).asnumpy(), [3, 3])
    gradient = ms.grad(lambda x: WithContext.apply(DTensor(x, ALONE, (R,))).to_local().sum())(Tensor(numbers(2)))
    np.testing.assert_array_equal(gradient.asnumpy(), [3, 3])
    with pytest.raises(ValueError, match="positional arguments only, got x by name"):
        WithContext.apply(x=DTensor(Tensor(numbers(2)), ALONE, (R,)))


def step_by_hand(parameters, gradients):
    """A plain loop, as optimizers of the mint kind write it."""
    with SkipDTensorDispatch():
        for parameter, gradient in zip(parameters, gradients):
            parameter.to_local().copy_(parameter - gradient * 0.5)


def test_inside_optimizers():
    """nn.AdamWeightDecay and a loop by hand move the part as they move a plain parameter."""
    plain = Parameter(Tensor(numbers(2, 2)), name="w")
    stored = Parameter(DTensor(Parameter(Tensor(numbers(2, 2)), name="w"), PAIR, (S(0),)), name="w")
    gradient = Tensor(numbers(2, 2) - 1)
    nn.AdamWeightDecay([plain], learning_rate=0.1)((gradient,))
    with SkipDTensorDispatch():
        nn.AdamWeightDecay([stored], learning_rate=0.1)((gradient,))
    np.testing.assert_allclose(stored.to_local().asnumpy(), plain.asnumpy())
    step_by_hand([stored], [DTensor.from_local(gradient, PAIR, (S(0),))])
    np.testing.assert_allclose(stored.to_local().asnumpy(), plain.asnumpy() - gradient.asnumpy() / 2)
    assert stored.placements == (S(0),) and stored.shape == (4, 2)


def test_names_of_the_package():
    assert package.DTensor is DTensor and package.randn is creation.randn
    with pytest.raises(AttributeError, match="no attribute 'tensor'"):
        package.tensor  # pylint: disable=pointless-statement
    assert set(package.__all__) >= {"DTensor", "Layout", "explain_redistribute"}


def test_gradient_of_a_cast():
    """astype keeps the layout, and its gradient the dtype."""
    made = DTensor.from_local(Tensor(numbers(2, 2)), PAIR, (S(0),)).astype(ms.float16)
    assert (made.dtype, made.placements, made.shape) == (ms.float16, (S(0),), (4, 2))
    assert ops.cast(made, ms.float32).placements == (S(0),)


def test_numbers_of_the_whole():
    """What counts elements counts those of the whole; what reads values reads the whole, reductions done."""
    made = DTensor.from_local(Tensor(numbers(2, 3)), PAIR, (S(0),))
    assert (made.size, made.numel(), made.nelement(), len(made)) == (12, 12, 12, 4)
    one = DTensor.from_local(Tensor(2.5), ALONE, (P,))
    assert (one.item(), float(one), int(one), bool(one), one.tolist()) == (2.5, 2.5, 2, True, 2.5)
    np.testing.assert_array_equal(DTensor.from_local(Tensor(numbers(3)), ALONE, (S(0),)).numpy(), numbers(3))


def test_detached():
    stored = Parameter(DTensor(Tensor(numbers(2)), ALONE, (R,)), name="w")
    assert not isinstance(stored.detach(), Parameter) and stored.detach().placements == (R,)
    gradient = ms.grad(lambda x: (DTensor(x, ALONE, (R,)).detach().to_local() * x).sum())(Tensor(numbers(2)))
    np.testing.assert_array_equal(gradient.asnumpy(), numbers(2))


@pytest.mark.parametrize("rows", [4, 5])
def test_uneven_parts_are_kept_out_of_checkpoints(rows, monkeypatch):
    """A tensor map would tell the loader wrong offsets."""
    monkeypatch.setattr(global_layout, "get_group_size", lambda: 2)
    cell = nn.Cell()
    cell.insert_param_to_cell("weight", Parameter(DTensor.from_local(Tensor(numbers(-(-rows // 2), 2)), PAIR, (S(0),),
                                                                     shape=(rows, 2)), name="weight"))
    if rows == 4:
        assert global_layout.get_global_layout(cell)["1"]["weight"]["tensor_map"] == (0, -1)
    else:
        with pytest.raises(ValueError, match="'weight' lies in uneven parts.*dim 0 of size 5"):
            global_layout.get_global_layout(cell)


def test_explaining_a_dtensor_knows_its_shape_and_dtype():
    made = DTensor.from_local(Tensor(numbers(2, 4)).astype(ms.float16), PAIR, (S(0),))
    told = package.explain_redistribute(made, (S(1),))
    assert told.wire_bytes == 8 / 2 * 2 and [step.kind for step in told.steps] == ["all_to_all"]
    assert [step.what for step in package.explain_redistribute(made, (P,)).steps] == ["dim 0"]
