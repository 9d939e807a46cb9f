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
"""The switch takes hold where MindFormers' trainer reads its configuration, and leaves everything else alone."""
import pytest
import yaml

pytest.importorskip("mindformers")

from hyper_parallel.integrations.mindformers import install as module  # noqa: E402
from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat  # noqa: E402
from tests.models import mindformers_qwen3  # noqa: E402


@pytest.fixture
def trainer():
    """MindFormers' trainer module after the trainer's own first call into this package."""
    from mindformers.pynative.trainer import trainer as found
    enable_mindspore_backward_compat()
    yield found
    module._active = None


def test_installing_twice_wraps_once(trainer):
    wrapped = trainer.Trainer._init_config
    module.install()
    assert trainer.Trainer._init_config is wrapped


def test_a_configuration_without_the_switch_is_left_alone(trainer):
    parsed = trainer.Trainer._init_config(mindformers_qwen3.config())
    assert parsed.parallelism.tensor_parallel == 1 and parsed.parallelism.data_parallel_shard == -1
    assert module.active_switch() is None


def test_sizes_are_mapped_into_mindformers_own_section(trainer, monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "get_world_size", lambda: 4)
    file = tmp_path / "config.yaml"
    config = {**mindformers_qwen3.config(), "parallel_config": {"auto_tp": True, "model_parallel": 2}}
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    parsed = trainer.Trainer._init_config(str(file))
    assert parsed.parallelism.tensor_parallel == 2
    assert parsed.parallelism.data_parallel_shard == 1, "replicas, not FSDP over them"
    assert module.active_switch().dp == 2


@pytest.mark.parametrize("config, world, message", [
    ({"parallel_config": {"auto_tp": True, "model_parallel": 2}}, 3, "does not match the job's 3 processes"),
    ({"parallel_config": {"auto_tp": True, "modelparallel": 2}}, 2, "did you mean 'model_parallel'?"),
    ({"parallel_config": {"auto_tp": True, "model_parallel": 2}, "swap": {"enable": True}}, 2, "swap.enable asks for"),
])
def test_errors_come_before_any_process_group(trainer, monkeypatch, config, world, message):
    monkeypatch.setattr(trainer, "get_world_size", lambda: world)
    with pytest.raises(ValueError) as error:
        trainer.Trainer._init_config({**mindformers_qwen3.config(), **config})
    assert message in str(error.value)


def test_a_missing_file_is_mindformers_own_error(trainer):
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        trainer.Trainer._init_config("nowhere.yaml")
