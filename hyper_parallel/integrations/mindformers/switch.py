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
"""The section `parallel_config` of a PyNative training configuration, read and checked."""
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

from hyper_parallel.distributed.overrides import PlanOptions, check_key, read_user_words

SECTION = "parallel_config"
_KEYS = ("auto_tp", "model_parallel", "data_parallel", "use_seq_parallel", "auto_tp_config", "pipeline_stage",
         "context_parallel", "expert_parallel")
_AUTO_TP_KEYS = ("loss_parallel", "kv_replication", "vocab_padding", "unknown", "report", "rules", "overrides")
# sizes of the same section that graph-mode configurations carry; only 1 has a meaning here
_LATER_SIZES = {"pipeline_stage": "pipeline parallelism", "context_parallel": "context parallelism",
                "expert_parallel": "expert parallelism"}


@dataclass(frozen=True)
class AutoTpSwitch:
    """What the user switched on.

    Args:
        tp: ranks of the tensor-parallel axis.
        dp: data-parallel ranks: replicas of `shard` ranks each.
        sequence_parallel: `use_seq_parallel`.
        options: keyword arguments for the planner.
        report: file for the plan as JSON, or None.
        saves_checkpoints: `checkpoint.enable_save`.
        shard: ranks that share each parameter's rows, `parallelism.data_parallel_shard`; 1 where it is left out.
        reshard_after_forward: `parallelism.reshard_after_forward_policy`, as `fully_shard` takes it.
        cpu_offload: `parallelism.cpu_offload`.
    """

    tp: int
    dp: int
    sequence_parallel: bool = False
    options: Dict[str, Any] = field(default_factory=dict)
    report: Optional[str] = None
    saves_checkpoints: bool = False
    shard: int = 1
    reshard_after_forward: Optional[bool] = None
    cpu_offload: bool = False


def read_switch(config: Mapping[str, Any], world: int) -> Optional[AutoTpSwitch]:
    """The switch of a raw configuration, or None where `auto_tp` is off.

    Args:
        config: the whole configuration as nested dicts.
        world: number of processes of the job.

    Raises:
        ValueError: an unknown key, a size that is no positive integer, sizes that contradict one another or the number
            of processes; the message names the key.
    """
    section = config.get(SECTION) or {}
    if not isinstance(section, Mapping):
        raise ValueError(f"{SECTION} holds {section!r} instead of keys")
    auto_tp = section.get("auto_tp", False)
    if not isinstance(auto_tp, bool):
        raise ValueError(f"{SECTION}.auto_tp is {auto_tp!r}: write true or false")
    if not auto_tp:
        _refuse_ignored_sizes(section)
        return None
    for key in section:
        check_key(key, _KEYS, SECTION)
    for key, feature in _LATER_SIZES.items():
        if positive_size(section, key, 1) != 1:
            raise ValueError(f"{SECTION}.{key} is {section[key]}: {feature} is not available in this version; set it to 1")
    tp = _tensor_parallel(section, config.get("parallelism") or {})
    dp = positive_size(section, "data_parallel", max(world // tp, 1))
    if tp * dp != world:
        named = f"{SECTION}.model_parallel {tp}" + (f" × data_parallel {dp}" if "data_parallel" in section else "")
        raise ValueError(f"{named} does not match the job's {world} process{'es' if world > 1 else ''}: start "
                         f"{tp * dp} with msrun --worker_num={tp * dp}, or change {SECTION}")
    return _with_options(section, config, tp, dp)


def read_words(words: Mapping[str, Any], tp: int, sequence_parallel: bool) -> Dict[str, Any]:
    """Keyword arguments for the planner of a section `auto_tp_config`, checked.

    Args:
        words: the section.
        tp: ranks of the tensor-parallel axis.
        sequence_parallel: `use_seq_parallel`.

    Raises:
        ValueError: an unknown key, a value that the planner does not know, or loss parallel: MindFormers' models compute
            their loss themselves, and would do so from a part of the logits.
    """
    for key in words:
        check_key(key, _AUTO_TP_KEYS, f"{SECTION}.auto_tp_config")
    options = {key: value for key, value in words.items() if key != "report"}
    if options.get("loss_parallel"):
        raise ValueError(f"{SECTION}.auto_tp_config.loss_parallel: MindFormers' models compute their loss themselves, "
                         "from whole logits; set it to false")
    PlanOptions(tp, sequence_parallel,
                **{key: value for key, value in options.items() if key not in ("rules", "overrides")})
    read_user_words(options.get("rules"), options.get("overrides"))
    return options


def _with_options(section, config, tp, dp) -> AutoTpSwitch:
    words = section.get("auto_tp_config") or {}
    sequence_parallel = section.get("use_seq_parallel", False)
    if not isinstance(sequence_parallel, bool):
        raise ValueError(f"{SECTION}.use_seq_parallel is {sequence_parallel!r}: write true or false")
    options = read_words(words, tp, sequence_parallel)
    saves = (config.get("checkpoint") or {}).get("enable_save", True)
    parallelism = config.get("parallelism") or {}
    return AutoTpSwitch(tp, dp, sequence_parallel, options, words.get("report"), bool(saves), _shard(parallelism, dp),
                        _reshard(parallelism), bool(parallelism.get("cpu_offload", False)))


def _shard(parallelism: Mapping, dp: int) -> int:
    """MindFormers' own default, -1 for all data-parallel ranks, has to be written down: a switch that nobody touched
    leaves replicas."""
    shard = parallelism.get("data_parallel_shard", 1)
    if isinstance(shard, bool) or not isinstance(shard, int) or shard == 0 or shard < -1:
        raise ValueError(f"parallelism.data_parallel_shard is {shard!r}: write a number of ranks, or -1 for all")
    shard = dp if shard == -1 else shard
    if dp % shard:
        valid = ", ".join(str(size) for size in range(1, dp + 1) if dp % size == 0)
        raise ValueError(f"parallelism.data_parallel_shard {shard} does not divide the {dp} data-parallel ranks: valid are "
                         f"{valid}, or -1 for all")
    return shard


def _reshard(parallelism: Mapping) -> Optional[bool]:
    policy = parallelism.get("reshard_after_forward_policy", "default")
    choices = {"default": None, "always": True, "never": False}
    if policy not in choices:
        raise ValueError(f"parallelism.reshard_after_forward_policy is {policy!r}: valid are {', '.join(choices)}")
    return choices[policy]


def positive_size(section: Mapping, key: str, default: int) -> int:
    """A size of the section.

    Raises:
        ValueError: it is no positive whole number.
    """
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{SECTION}.{key} is {value!r}: a positive whole number is needed")
    return value


def _tensor_parallel(section: Mapping, parallelism: Mapping) -> int:
    said = parallelism.get("tensor_parallel")
    if said is not None and "model_parallel" in section and said != section["model_parallel"]:
        raise ValueError(f"{SECTION}.model_parallel is {section['model_parallel']} and parallelism.tensor_parallel is "
                         f"{said}: give one of them, or the same number")
    return positive_size({"model_parallel": said} if said is not None else section, "model_parallel", 1)


def _refuse_ignored_sizes(section: Mapping):
    """MindFormers' PyNative trainer does not read this section, so sizes in it would be ignored without a word."""
    for key in ("model_parallel", "use_seq_parallel", "auto_tp_config"):
        if section.get(key) not in (None, 1, False):
            raise ValueError(f"{SECTION}.{key} is {section[key]!r}, but {SECTION}.auto_tp is not true, and MindFormers' "
                             f"PyNative trainer does not read {SECTION}: set {SECTION}.auto_tp: true, or take {key} out")
