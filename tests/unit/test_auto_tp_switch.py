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
"""The YAML switch: what is accepted, and one clear error for each thing that is wrong."""
import pytest

from hyper_parallel.integrations.mindformers.graph_mode import read_graph_switch
from hyper_parallel.integrations.mindformers.switch import AutoTpSwitch, read_switch


def config(parallelism=None, checkpoint=None, **section):
    """A configuration with this section `parallel_config`."""
    return {"parallel_config": section, **({"parallelism": parallelism} if parallelism else {}),
            **({"checkpoint": checkpoint} if checkpoint else {})}


def test_the_two_lines_of_the_readme():
    assert read_switch(config(auto_tp=True, model_parallel=2), 2) == AutoTpSwitch(2, 1, saves_checkpoints=True)


def test_replicas_are_the_rest_of_the_job_unless_they_are_said():
    assert read_switch(config(auto_tp=True, model_parallel=2), 8).dp == 4
    assert read_switch(config(auto_tp=True, model_parallel=2, data_parallel=4), 8).dp == 4


def test_off_or_absent_is_none():
    assert read_switch({}, 4) is None
    assert read_switch({"parallel_config": None}, 4) is None
    assert read_switch(config(auto_tp=False), 4) is None
    assert read_switch(config(auto_tp=False, data_parallel=4), 4) is None


def test_the_size_may_stand_in_either_section_and_must_agree():
    assert read_switch(config({"tensor_parallel": 2}, auto_tp=True), 2).tp == 2
    assert read_switch(config({"tensor_parallel": 2}, auto_tp=True, model_parallel=2), 2).tp == 2
    with pytest.raises(ValueError, match="model_parallel is 2 and parallelism.tensor_parallel is 4"):
        read_switch(config({"tensor_parallel": 4}, auto_tp=True, model_parallel=2), 4)


def test_options_reach_the_planner_and_the_report_its_file():
    switch = read_switch(config(auto_tp=True, model_parallel=2, use_seq_parallel=True, checkpoint={"enable_save": False},
                                auto_tp_config={"unknown": "replicate", "report": "output/plan.json",
                                                "overrides": [{"match": "a.*", "replicate": True}]}), 2)
    assert switch.sequence_parallel and switch.report == "output/plan.json" and not switch.saves_checkpoints
    assert switch.options == {"unknown": "replicate", "overrides": [{"match": "a.*", "replicate": True}]}


@pytest.mark.parametrize("section, message", [
    ({"auto_tp": True, "model_paralel": 2}, "unknown key 'model_paralel' in parallel_config; did you mean "
                                            "'model_parallel'?"),
    ({"auto_tp": True, "auto_tp_config": {"kv_replicaton": True}}, "did you mean 'kv_replication'?"),
    ({"auto_tp": "yes"}, "auto_tp is 'yes': write true or false"),
    ({"auto_tp": True, "model_parallel": 0}, "model_parallel is 0: a positive whole number is needed"),
    ({"auto_tp": True, "model_parallel": "2"}, "model_parallel is '2'"),
    ({"auto_tp": True, "model_parallel": True}, "model_parallel is True"),
    ({"auto_tp": True, "use_seq_parallel": 1}, "use_seq_parallel is 1: write true or false"),
    ({"auto_tp": True, "pipeline_stage": 2}, "pipeline_stage is 2: pipeline parallelism is not available"),
    ({"auto_tp": True, "context_parallel": 2}, "context parallelism is not available"),
    ({"auto_tp": True, "expert_parallel": 4}, "expert parallelism is not available"),
    ({"auto_tp": True, "auto_tp_config": {"unknown": "guess"}}, "unknown is 'guess': valid are error, replicate"),
    ({"auto_tp": True, "auto_tp_config": {"rules": [{"match": "a", "role": "COLUMN"}]}}, "'COLUMN' is no role"),
    ({"auto_tp": True, "auto_tp_config": {"overrides": [{"match": "a", "replicate_": True}]}}, "did you mean"),
    ({"auto_tp": False, "model_parallel": 2}, "auto_tp is not true"),
    ({"model_parallel": 2}, "auto_tp is not true"),
])
def test_what_is_wrong_is_named_with_its_key(section, message):
    with pytest.raises(ValueError) as error:
        read_switch({"parallel_config": section}, 1)
    assert message in str(error.value)


@pytest.mark.parametrize("section, world, message", [
    ({"model_parallel": 2}, 1, "model_parallel 2 does not match the job's 1 process"),
    ({"model_parallel": 2}, 3, "model_parallel 2 does not match the job's 3 processes"),
    ({"model_parallel": 2, "data_parallel": 2}, 8, "model_parallel 2 × data_parallel 2 does not match the job's 8"),
])
def test_a_world_that_does_not_match_is_named_with_the_command_that_does(section, world, message):
    with pytest.raises(ValueError) as error:
        read_switch({"parallel_config": {"auto_tp": True, **section}}, world)
    assert message in str(error.value) and "--worker_num=" in str(error.value)


def test_a_section_that_is_no_mapping():
    with pytest.raises(ValueError, match="holds 'auto_tp' instead of keys"):
        read_switch({"parallel_config": "auto_tp"}, 1)


def test_the_shard_axis_and_its_words_come_from_mindformers_section():
    assert read_switch(config(auto_tp=True, model_parallel=2), 8).shard == 1, "replicas, where nobody asks for shards"
    assert read_switch(config({"data_parallel_shard": 2}, auto_tp=True, model_parallel=2), 8).shard == 2
    switch = read_switch(config({"data_parallel_shard": -1, "reshard_after_forward_policy": "never", "cpu_offload": True},
                                auto_tp=True, model_parallel=2), 8)
    assert (switch.shard, switch.reshard_after_forward, switch.cpu_offload) == (4, False, True)
    for words, message in (({"data_parallel_shard": 3}, "3 does not divide the 4 data-parallel ranks: valid are 1, 2, 4"),
                           ({"data_parallel_shard": 0}, "is 0: write a number of ranks, or -1 for all"),
                           ({"reshard_after_forward_policy": "maybe"}, "'maybe': valid are default, always, never")):
        with pytest.raises(ValueError, match=message):
            read_switch(config(words, auto_tp=True, model_parallel=2), 8)


@pytest.mark.parametrize("read", [lambda section: read_switch({"parallel_config": section}, 2), read_graph_switch])
def test_the_parallel_loss_is_refused_because_models_compute_their_own(read):
    with pytest.raises(ValueError, match="auto_tp_config.loss_parallel: MindFormers' models compute their loss"):
        read({"auto_tp": True, "model_parallel": 2, "auto_tp_config": {"loss_parallel": True}})
