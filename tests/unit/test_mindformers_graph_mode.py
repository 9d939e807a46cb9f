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
"""`parallel_config.auto_tp` in MindFormers' graph-mode configurations, as YAML and as a dict."""
import numpy as np
import pytest
import yaml
from mindspore import Tensor, nn, ops

pytest.importorskip("mindformers")

from mindformers.core.parallel_config import build_parallel_config, reset_parallel_config  # noqa: E402
from mindformers.tools.register import (  # noqa: E402
    MindFormerConfig, MindFormerModuleType, MindFormerRegister, register, template)

from hyper_parallel.graph import GraphStrategies  # noqa: E402
from hyper_parallel.graph.strategies import has_strategy  # noqa: E402
from hyper_parallel.integrations.mindformers import graph_mode  # noqa: E402

SIZES = {"data_parallel": 2, "model_parallel": 4, "context_parallel": 1, "expert_parallel": 1, "pipeline_stage": 1}


@pytest.fixture(autouse=True)
def _installed():
    graph_mode.install()


def built(section):
    """The section as MindFormers' trainer hands it on, from a dict."""
    config = MindFormerConfig(parallel_config={**SIZES, **section})
    build_parallel_config(config)
    return config


def test_importing_mindformers_installs_it_once():
    wrapped = template.ConfigTemplate.apply_template
    assert hasattr(wrapped, "_hyper_parallel")
    graph_mode.install()
    assert template.ConfigTemplate.apply_template is wrapped


def test_yaml_and_dict_reach_the_same_switch(tmp_path):
    section = {**SIZES, "auto_tp": True, "use_seq_parallel": True, "auto_tp_config": {"vocab_padding": False}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"run_mode": "train", "parallel_config": section}), encoding="utf-8")
    from_yaml = MindFormerConfig(str(file))
    assert from_yaml.parallel_config.auto_tp is True and from_yaml.parallel_config.micro_batch_num == 1
    build_parallel_config(from_yaml)
    expected = graph_mode.GraphSwitch(4, 2, True, {"vocab_padding": False})
    assert from_yaml.parallel_config.auto_tp_switch == expected
    config = built(section)
    assert config.parallel_config.auto_tp_switch == expected
    reset_parallel_config(config, reset_diff_config=False)
    assert config.parallel_config["auto_tp"] is True, "the dict form keeps the switch"


def test_without_the_switch_nothing_changes(tmp_path):
    assert built({}).parallel_config.auto_tp_switch is None
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"run_mode": "train", "parallel_config": {"autotp": True}}), encoding="utf-8")
    with pytest.raises(KeyError, match="unexpected key: autotp"):
        MindFormerConfig(str(file))
    file.write_text(yaml.safe_dump({"run_mode": "train"}), encoding="utf-8")
    assert MindFormerConfig(str(file)).parallel_config.model_parallel == 1


@pytest.mark.parametrize("section, message", [
    ({"auto_tp": "yes"}, "write true or false"),
    ({"auto_tp": True, "model_parallel": 0}, "parallel_config.model_parallel is 0: a positive whole number"),
    ({"auto_tp": True, "expert_parallel": 2}, "parallel_config.expert_parallel is 2"),
    ({"auto_tp": True, "auto_tp_config": {"vocab_pading": True}}, "did you mean 'vocab_padding'"),
    ({"auto_tp_config": {"unknown": "replicate"}}, "auto_tp is not true"),
])
def test_what_the_switch_cannot_do_is_refused_by_its_key(section, message):
    with pytest.raises(ValueError) as error:
        built(section)
    assert message in str(error.value)


class Config:
    """What the planner and MindFormers' register look up."""

    hidden_size, intermediate_size, num_attention_heads, seq_length, vocab_size = 8, 16, 4, 8, 16

    def __init__(self, parallel_config=None):
        self.parallel_config = parallel_config


class MLP(nn.Cell):
    """A feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Dense(8, 16, has_bias=False)
        self.down_proj = nn.Dense(16, 8, has_bias=False)
        self.relu = ops.ReLU()

    def construct(self, x):
        """Of `[batch, sequence, hidden]`."""
        return self.down_proj(self.relu(self.up_proj(x)))


class Block(nn.Cell):
    """A table and a feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(16, 8)
        self.mlp = MLP()

    def construct(self, input_ids):
        """Of `[batch, sequence]`."""
        return self.mlp(self.embed_tokens(input_ids))


@pytest.fixture(name="shard_calls")
def _shard_calls(monkeypatch):
    calls = []
    monkeypatch.setattr(nn.Cell, "shard", lambda self, **given: calls.append(given))
    return calls


def test_a_registered_network_is_planned_and_gets_its_strategies(tmp_path, shard_calls, capsys):
    report = tmp_path / "plan.json"
    config = built({"auto_tp": True, "model_parallel": 2, "auto_tp_config": {"report": str(report)}})
    if not MindFormerRegister.is_exist(MindFormerModuleType.MODELS, "GraphModeBlock"):
        MindFormerRegister.register_cls(Block, MindFormerModuleType.MODELS, alias="GraphModeBlock")
    made = register.MindFormerRegister.get_instance_from_cfg(
        {"type": "GraphModeBlock"}, MindFormerModuleType.MODELS,
        default_args={"config": Config(config.parallel_config)})
    assert made.mlp.up_proj.matmul.attrs["in_strategy"] == ((2, 1), (2, 1))
    assert made.mlp.down_proj.matmul.attrs["in_strategy"] == ((2, 2), (1, 2))
    assert len(shard_calls) == 1 and "up_proj.weight" in capsys.readouterr().out
    assert GraphStrategies.load(tmp_path / "plan.strategies.json").mesh_axes == ("dp", "tp") and report.is_file()


def test_a_network_with_strategies_of_its_own_keeps_them(shard_calls):
    network = Block(Config())
    network.mlp.up_proj.matmul.shard(((1, 1), (1, 1)))
    assert graph_mode.plan_network(network, graph_mode.GraphSwitch(2, 1)) is None
    assert not has_strategy(network.mlp.down_proj.matmul) and not shard_calls


def test_networks_without_the_switch_are_left_alone(shard_calls):
    if not MindFormerRegister.is_exist(MindFormerModuleType.MODELS, "GraphModeBlock"):
        MindFormerRegister.register_cls(Block, MindFormerModuleType.MODELS, alias="GraphModeBlock")
    for section in (None, built({}).parallel_config, {"model_parallel": 2}):
        made = register.MindFormerRegister.get_instance_from_cfg(
            {"type": "GraphModeBlock"}, MindFormerModuleType.MODELS, default_args={"config": Config(section)})
        assert not has_strategy(made.mlp.up_proj.matmul)
    assert not shard_calls and made(Tensor(np.ones((2, 4), np.int32))).shape == (2, 4, 8)
