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
"""Replicated data-parallel sharding on one process: storage, gradients, and what is refused."""
import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Replicate
from hyper_parallel.core.fully_shard.api import HSDPModule, MixedPrecisionPolicy
from hyper_parallel.core.fully_shard.utils import OffloadPolicy
from hyper_parallel.platform.mindspore.autograd_compat import enable_backward
from tests.models.decoder import Decoder, DecoderConfig


class Linear(nn.Cell):
    """x @ weight.T + bias, with a second alias of the weight."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(2, np.float32)), name="bias")

    def construct(self, x):
        """The linear map."""
        return ops.matmul(x, self.weight.T) + self.bias


class Model(nn.Cell):
    """Two uses of one weight."""

    def __init__(self):
        super().__init__()
        self.first = Linear()
        self.second = Linear()
        self.second.weight = self.first.weight

    def construct(self, x):
        """Sum of both."""
        return self.first(x) + self.second(x)


@pytest.fixture
def mesh():
    """One rank, two axes: replicas and shards."""
    enable_backward()
    return hp.init_device_mesh("npu", (1, 1), mesh_dim_names=("dp_replicate", "fsdp"))


def backward(model):
    """One backward of the sum over a fixed input."""
    ops.sum(model(Tensor(np.array([[1.0, 2.0, 3.0]], np.float32)))).backward()


def test_parameters_become_dtensors_and_the_forward_sees_plain_ones(mesh):
    model = Model()
    expected = model(Tensor(np.ones((1, 3), np.float32))).asnumpy()
    assert hp.fully_shard(model, mesh=mesh) is model and isinstance(model, HSDPModule)
    assert type(model).__name__ == "ShardedModel"
    stored = dict(model.parameters_and_names())
    assert set(stored) == {"first.weight", "first.bias", "second.bias"}, "aliases stay one object"
    assert all(isinstance(parameter, DTensor) for parameter in stored.values())
    assert type(model.first.weight) is not type(stored["first.weight"]) and model.first.weight is model.second.weight
    assert np.array_equal(model(Tensor(np.ones((1, 3), np.float32))).asnumpy(), expected)


def test_main_gradient_is_float32_accumulates_and_is_forgotten(mesh):
    model = hp.fully_shard(Model(), mesh=mesh)
    weight = dict(model.parameters_and_names())["first.weight"]
    assert weight.main_grad is None
    backward(model)
    assert weight.main_grad.to_local().asnumpy().tolist() == [[2.0, 4.0, 6.0]] * 2, "used twice"
    backward(model)
    assert weight.main_grad.to_local().asnumpy().tolist() == [[4.0, 8.0, 12.0]] * 2
    assert weight.main_grad.dtype == mindspore.float32 and weight.main_grad.placements == weight.placements
    model.zero_grad()
    assert weight.main_grad is None and weight.grad is None


def test_a_module_around_another_covers_what_is_left(mesh):
    model = Model()
    hp.fully_shard(model.first, mesh=mesh)
    first = model.first._params["weight"]
    hp.fully_shard(model, mesh=mesh)
    assert model.first._params["weight"] is first and isinstance(model.second._params["bias"], DTensor)


def test_ignored_parameters_stay_plain(mesh):
    model = Model()
    bias = model.first.bias
    hp.fully_shard(model, mesh=mesh, ignored_params=[bias], replicate_params=[], mp_policy=MixedPrecisionPolicy(),
                   offload_policy=OffloadPolicy(), reshard_after_forward=False, shard_placement_fn=None)
    assert model.first._params["bias"] is bias
    backward(model)
    model.zero_grad()
    assert bias.grad is None


def test_reduction_words(mesh):
    model = hp.fully_shard(Model(), mesh=mesh)
    model.set_reduce_op_type("sum")
    assert {parameter.main_gradient.unit.reduce_op for parameter in model.trainable_params()} == {"sum"}
    with pytest.raises(ValueError, match="valid are 'sum' and 'avg'"):
        model.set_reduce_op_type("max")


def test_a_mesh_of_three_axes_and_a_second_call_are_refused(mesh):
    cube = hp.init_device_mesh("npu", (1, 1, 1), mesh_dim_names=("a", "b", "c"))
    with pytest.raises(ValueError, match="one axis .shard. or two"):
        hp.fully_shard(Model(), mesh=cube)
    with pytest.raises(ValueError, match="has already been called on this ShardedModel"):
        hp.fully_shard(hp.fully_shard(Model(), mesh=mesh), mesh=mesh)


def test_a_placement_that_is_no_shard_is_refused(mesh):
    with pytest.raises(ValueError, match=r"gave Replicate\(\) for 'first.weight': valid are Shard\(dim\) and None"):
        hp.fully_shard(Model(), mesh=mesh, shard_placement_fn=lambda parameter: Replicate())


def test_meta_parameters_are_allocated_behind_the_same_objects(mesh):
    with mindspore.DeviceCtx("meta"):
        model = Model()
    hp.fully_shard(model, mesh=mesh)
    leaf = model.first.weight
    model.to_empty()
    assert model.first.weight is leaf and not leaf.is_meta
    with mindspore.graph.api._no_grad():
        model.first.weight.fill_(2.0)
    assert model.first._params["weight"].to_local().asnumpy().tolist() == [[2.0] * 3] * 2


def test_freezing_the_stored_parameter_freezes_the_leaf(mesh):
    model = hp.fully_shard(Model(), mesh=mesh)
    model.first._params["weight"].requires_grad = False
    assert not model.first.weight.requires_grad
    assert "first.weight" not in [name for name, one in model.parameters_and_names() if one.requires_grad]


def test_a_gradient_that_is_no_number_is_found(mesh):
    model = hp.fully_shard(Model(), mesh=mesh)
    backward(model)
    assert hp.gradients_are_finite(model)
    model.zero_grad()
    ops.sum(model(Tensor(np.array([[1.0, np.inf, 3.0]], np.float32)))).backward()
    assert not hp.gradients_are_finite(model)
    plain = Model()
    assert hp.gradients_are_finite(plain), "nothing is wrong before a backward"
    ops.sum(plain(Tensor(np.array([[1.0, np.nan, 3.0]], np.float32)))).backward()
    assert not hp.gradients_are_finite(plain)


def test_a_plan_under_sharded_parameters_is_not_restored(mesh):
    cell = Decoder(DecoderConfig())
    hp.apply(cell, hp.plan(cell, tp=1), hp.init_device_mesh("npu", (1,), mesh_dim_names=("tp",)))
    hp.fully_shard(cell, mesh=mesh)
    with pytest.raises(ValueError, match="is sharded over the data axes by hp.fully_shard"):
        hp.restore(cell)
