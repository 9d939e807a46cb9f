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
"""Features of later versions are refused at start, by the key that asks for them."""
import pytest

pytest.importorskip("mindformers")

from hyper_parallel.integrations.mindformers.refusals import refuse_unsupported  # noqa: E402
from tests.models import mindformers_qwen3  # noqa: E402


def parsed(**sections):
    """MindFormers' own parsed configuration, with these changes."""
    from mindformers.pynative.config.config import TrainConfig
    config = {**mindformers_qwen3.config(), "parallelism": {"data_parallel_shard": 1}}
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    return TrainConfig.from_dict(config)


@pytest.mark.parametrize("key, sections", [
    ("parallelism.pipeline_parallel", {"parallelism": {"pipeline_parallel": 2}}),
    ("parallelism.context_parallel", {"parallelism": {"context_parallel": 2}}),
    ("parallelism.expert_parallel", {"parallelism": {"expert_parallel": 2}}),
    ("parallelism.enable_mc2", {"parallelism": {"enable_mc2": True}}),
    ("parallelism.enable_loss_parallel", {"parallelism": {"enable_loss_parallel": True}}),
    ("parallelism.dense_fsdp_shard_size", {"parallelism": {"dense_fsdp_shard_size": 2}}),
    ("swap.enable", {"swap": {"enable": True}}),
    ("recompute.mode", {"recompute": {"mode": "full", "full_recompute_layer": ["0-1"]}}),
    ("recompute_comm.enable", {"recompute_comm": {"enable": True}}),
    ("optimizer.type", {"optimizer": {"type": "Muon"}}),
    ("lora_config", {"lora_config": {"target_modules": ".*linear_qkv"}}),
    ("model.mtp_num_layers", {"model": {"mtp_num_layers": 1}}),
    ("model.track_max_attention_logit", {"model": {"track_max_attention_logit": True}}),
])
def test_each_feature_of_a_later_version_is_refused_by_its_key(key, sections):
    config = parsed(**sections)
    with pytest.raises(ValueError) as error:
        refuse_unsupported(config, world=2, auto_tp=True)
    assert str(error.value).startswith(f"{key} asks for ") and "supported: tensor parallelism" in str(error.value)
    refuse_unsupported(config, world=1, auto_tp=False)


def test_fsdp_offload_and_mindformers_own_plan_for_latent_attention_are_accepted():
    for sections in ({"data_parallel_shard": -1}, {"data_parallel_shard": -1, "cpu_offload": True}):
        refuse_unsupported(parsed(parallelism=sections), world=2, auto_tp=False)
        refuse_unsupported(parsed(parallelism=sections), world=2, auto_tp=True)
    latent = {"parallelism": {"tensor_parallel": 2, "enable_loss_parallel": True}, "model": {"kv_lora_rank": 16}}
    refuse_unsupported(parsed(**latent), world=2, auto_tp=False)


def test_mindformers_own_plan_is_refused_where_it_fails_with_the_switch_that_works():
    with pytest.raises(ValueError, match="latent attention only .DeepSeek.: set parallel_config.auto_tp: true"):
        refuse_unsupported(parsed(parallelism={"tensor_parallel": 2, "data_parallel_shard": 1}), world=2, auto_tp=False)
    tied = {"parallelism": {"data_parallel_shard": -1}, "model": {"tie_word_embeddings": True}}
    with pytest.raises(ValueError, match="data_parallel_shard 2 with model.tie_word_embeddings"):
        refuse_unsupported(parsed(**tied), world=2, auto_tp=False)
    refuse_unsupported(parsed(**tied), world=2, auto_tp=True)
