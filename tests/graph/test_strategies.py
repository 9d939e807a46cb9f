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
"""What `to_mindspore_strategies` decides and sets, without a compiler: data, refusals, and a Cell left as it was."""
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.core.dtensor.slice_map import Section, SliceMap
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec, Shard, ShardingPlan
from hyper_parallel.graph import GraphStrategies
from hyper_parallel.graph.refusals import refuse_inexpressible
from hyper_parallel.graph.strategies import has_strategy
from tests.graph import nets
from tests.models.decoder import Decoder, DecoderConfig

MESH = {"dp": 2, "tp": 4}


def decided(shape="llama", **options):
    """A network and what was decided for it."""
    cell = nets.build(shape)
    return cell, hp.to_mindspore_strategies(cell, hp.plan(cell, tp=4, **options), MESH, set_on_cell=False)


def test_primitives_of_dense_embedding_and_norms_get_the_plans_layouts():
    _, strategies = decided("gpt2")
    inputs = {path: one.inputs for path, one in strategies.operators.items()}
    assert inputs["embed_tokens.gather"] == ((("tp",), ()), (("dp",),))
    assert inputs["layers.0.self_attn.q_proj.matmul"] == ((("dp",), ()), (("tp",), ()))
    assert inputs["layers.0.self_attn.q_proj.bias_add"] == ((("dp",), ("tp",)), (("tp",),))
    assert inputs["layers.0.self_attn.o_proj.matmul"] == ((("dp",), ("tp",)), ((), ("tp",)))
    assert inputs["layers.0.self_attn.o_proj.bias_add"] == ((("dp",), ()), ((),))
    assert inputs["layers.0.self_attn.scores"] == ((("dp",), ("tp",), (), ()),) * 2
    assert inputs["layers.0.self_attn.add_mask"] == ((("dp",), ("tp",), (), ()), ((), (), (), ()))
    assert inputs["layers.0.input_layernorm.layer_norm"] == ((("dp",), (), ()), ((),), ((),))
    assert strategies.parameters["layers.0.mlp.fc.weight"] == (("tp",), ())
    assert strategies.parameters["layers.0.mlp.proj.weight"] == ((), ("tp",))
    assert strategies.inputs == ((("dp",), ()),)


def test_sequence_parallel_cuts_norms_along_the_sequence_and_scatters_what_leaves_a_region():
    _, strategies = decided(sequence_parallel=True)
    norm = strategies.operators["layers.0.input_layernorm.square"]
    row = strategies.operators["layers.0.mlp.down_proj.matmul"]
    assert norm.inputs == ((("dp",), ("tp",), ()),)
    assert row.output == (("dp", "tp"), ())
    assert strategies.operators["layers.0.self_attn.q_proj.matmul"].inputs[0] == (("dp",), ())
    assert strategies.operators["norm.weigh"].inputs[0] == (("dp",), ("tp",), ())


def test_a_plan_that_keeps_a_region_whole_gives_whole_operators():
    _, strategies = decided(overrides=[{"match": "layers.0.mlp.*", "replicate": True}])
    assert strategies.operators["layers.0.mlp.gate_proj.matmul"].inputs == ((("dp",), ()), ((), ()))


def test_the_record_is_plain_data_and_comes_back(tmp_path):
    _, strategies = decided("qwen3")
    read = GraphStrategies.load(strategies.save(tmp_path / "out" / "strategies.json"))
    assert read == strategies
    assert read.to_dict()["operators"]["layers.0.self_attn.o_proj.matmul"] == {
        "operator": "MatMul", "inputs": [["dp", "tp"], ["None", "tp"]]}


def test_following_the_forward_leaves_the_cell_and_mindspore_as_they_were():
    cell = nets.build("gpt2")
    objects, constants = dict(cell.parameters_and_names()), cell.places
    call, primitive_call = nn.Cell.__call__, ops.BatchMatMul.__call__
    hp.to_mindspore_strategies(cell, hp.plan(cell, tp=2), {"tp": 2}, set_on_cell=False)
    assert dict(cell.parameters_and_names()) == objects and cell.places is constants
    assert nn.Cell.__call__ is call and ops.BatchMatMul.__call__ is primitive_call
    assert not any(has_strategy(primitive) for _, module in cell.cells_and_names()
                   for primitive in module._primitives.values() if primitive is not None)


def test_setting_keeps_strategies_that_are_there_and_sets_the_others(monkeypatch):
    cell, strategies = decided()
    shard_calls = []
    monkeypatch.setattr(nn.Cell, "shard", lambda self, **given: shard_calls.append(given))
    cell.layers[0].mlp.gated.shard(((1, 1, 1), (1, 1, 1)))
    assert strategies.set_on(cell) == ["layers.0.mlp.gated"]
    assert cell.layers[0].mlp.gated.attrs["in_strategy"] == ((1, 1, 1), (1, 1, 1))
    assert cell.layers[0].mlp.down_proj.matmul.attrs["in_strategy"] == ((2, 4), (1, 4))
    assert cell.embed_tokens.gather.attrs["in_strategy"] == ((4, 1), (2,))
    (given,) = shard_calls
    assert given["in_strategy"][0].to_dict()["tensor_map"] == (1, -1) and given["parameter_plan"] is None


class Functional(nn.Cell):
    """Multiplies by a weight without holding the operator; uses one primitive for two things."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Dense(8, 16, has_bias=False)
        self.down = Parameter(Tensor(np.ones((8, 16), np.float32)), name="down")
        self.relu = ops.ReLU()

    def construct(self, x):
        """Of `[batch, hidden]`."""
        return ops.matmul(self.relu(self.up_proj(self.relu(x))), self.down.T)


def functional_plan():
    """A plan for it, written by hand."""
    def spec(path, dim):
        shape = (16, 8) if dim == 0 else (8, 16)
        return ParameterSpec(path, shape, "float32", "COLWISE", {"tp": Shard(dim)}, SliceMap.plain(shape, dim, 2))
    return ShardingPlan({"tp": 2}, {}, {"down": spec("down", 1), "up_proj.weight": spec("up_proj.weight", 0)},
                        options={"sequence_parallel": False}, bound=True)


def test_a_weight_of_a_function_is_laid_out_by_itself_and_a_shared_primitive_is_left_to_mindspore(monkeypatch):
    cell = Functional()
    monkeypatch.setattr(nn.Cell, "shard", lambda self, **given: setattr(self, "given", given))
    inputs = [Tensor(np.ones((4, 8), np.float32))]
    strategies = hp.to_mindspore_strategies(cell, functional_plan(), {"tp": 2}, inputs=inputs)
    assert strategies.by_parameter == ("down",)
    assert list(cell.given["parameter_plan"]) == ["down"]
    assert "hold one for each use" in strategies.derived["relu"]
    assert list(strategies.operators) == ["up_proj.matmul"]


def test_a_forward_that_asks_for_other_inputs_says_so():
    cell = nets.build("llama")
    with pytest.raises(ValueError, match=r"cannot be followed without values .* was given \(2, 5\): pass inputs="):
        hp.to_mindspore_strategies(cell, hp.plan(cell, tp=2), {"dp": 2, "tp": 2}, inputs=[(2, 5)])


def test_a_mesh_that_does_not_fit_is_refused():
    cell = nets.build("llama")
    with pytest.raises(ValueError, match="made for tp 2, but the mesh's axis 'tp' has size 4"):
        hp.to_mindspore_strategies(cell, hp.plan(cell, tp=2), MESH)


def one_parameter(slice_map, **more):
    """A plan with one parameter."""
    spec = ParameterSpec("attn.qkv.weight", slice_map.shape, "float32", "FUSED_QKV", {"tp": Shard(0)}, slice_map,
                         **more)
    return ShardingPlan({"tp": 2}, {}, {"attn.qkv.weight": spec})


@pytest.mark.parametrize("plan, words", [
    (one_parameter(SliceMap.sectioned((12, 4), 0, 2, [Section(4), Section(4), Section(4)])),
     "split it into one parameter for each"),
    (one_parameter(SliceMap.sectioned((4, 4), 0, 2, [Section(4, copies=2)]), copies=2), "num_key_value_heads"),
    (one_parameter(SliceMap.plain((33, 4), 0, 2, pad=True)), "make the vocabulary 34"),
    (one_parameter(SliceMap.whole((4,)), first_rank_only=True), "no Layout of graph mode says"),
])
def test_what_no_layout_describes_is_refused_with_the_way_out(plan, words):
    with pytest.raises(ValueError, match="'attn.qkv.weight'") as error:
        refuse_inexpressible(plan)
    assert words in str(error.value) and 'overrides: [{match: "attn.qkv.weight", replicate: true}]' in str(error.value)


def test_even_parts_are_not_refused():
    refuse_inexpressible(one_parameter(SliceMap.plain((12, 4), 0, 2)))


def test_a_decoder_of_functions_is_followed_too():
    """Views, slices and Python operators: only what its Cells hold has a strategy."""
    cell = Decoder(DecoderConfig(num_attention_heads=8, num_key_value_heads=8, head_dim=4))
    strategies = hp.to_mindspore_strategies(cell, hp.plan(cell, tp=4), MESH, inputs=[(2, 8)], set_on_cell=False)
    assert strategies.operators["layers.1.self_attn.o_proj.matmul"].inputs == ((("dp",), ("tp",)), ((), ("tp",)))
    assert not any("norm" in path for path in strategies.operators) and not strategies.derived


class Branches(nn.Cell):
    """Takes a keyword, gives two results, indexes, and holds an operator that no rule covers."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Dense(8, 16, has_bias=False)
        self.product, self.split = ops.CumProd(), ops.Split(2, 2)

    def construct(self, x, scale):
        """Two results."""
        assert x.dtype == scale.dtype
        first, _ = self.split(x[:, None, ..., :])
        return self.product(self.up_proj(x * scale), 1), first[0, ..., 2:]


class Caller(nn.Cell):
    """Calls it by keyword."""

    def __init__(self):
        super().__init__()
        self.inner = Branches()

    def construct(self, x):
        """The second result."""
        return self.inner(x, scale=x)[1]


def test_keywords_several_results_indices_and_operators_without_a_rule():
    shape, cut = (16, 8), {"tp": Shard(1)}
    plan = ShardingPlan(
        {"tp": 2},
        {"inner": ModuleShardingSpec(in_src={"scale": cut}, in_dst={"scale": cut}, out_src=cut, out_dst=cut)},
        {"inner.up_proj.weight": ParameterSpec("inner.up_proj.weight", shape, "float32", "COLWISE", {"tp": Shard(0)},
                                               SliceMap.plain(shape, 0, 2))}, options={"sequence_parallel": True})
    cell = Caller()
    strategies = hp.to_mindspore_strategies(cell, plan, {"dp": 2, "tp": 2}, set_on_cell=False,
                                            inputs=[Tensor(np.ones((4, 2, 8), np.float32))])
    assert "no propagation rule" in strategies.derived["inner.product"]
    assert strategies.operators["inner.up_proj.matmul"].inputs[1] == (("tp",), ())


def test_auto_parallel_lays_the_dataset_out_as_the_plan_does(monkeypatch):
    class AutoParallel:
        """Notes what it is given."""

        def __init__(self, network, mode):
            self.network, self.mode = network, mode

        def dataset_strategy(self, layouts):
            """Notes the layouts."""
            self.layouts = [layout.to_dict()["tensor_map"] for layout in layouts]

    import mindspore.parallel.auto_parallel as module
    monkeypatch.setattr(module, "AutoParallel", AutoParallel)
    cell, strategies = decided()
    wrapped = strategies.auto_parallel(cell, "semi_auto")
    assert (wrapped.network, wrapped.mode, wrapped.layouts) == (cell, "semi_auto", [(1, -1)])
