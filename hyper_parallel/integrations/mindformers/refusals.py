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
"""Features that a configuration can ask for and this version has not: refused at start, by name, on all ranks."""
from typing import Any, Callable, List, Tuple

from hyper_parallel.core.later_tiers import SUPPORTED

# (configuration key, feature, whether this configuration asks for it)
_WITH_AUTO_TP: List[Tuple[str, str, Callable[[Any], bool]]] = [
    ("parallelism.enable_loss_parallel", "MindFormers' vocabulary-parallel loss together with parallel_config.auto_tp",
     lambda c: c.parallelism.enable_loss_parallel),
    ("parallelism.dense_fsdp_shard_size", "FSDP over part of the ranks together with parallel_config.auto_tp",
     lambda c: c.parallelism.dense_fsdp_shard_size not in (None, 1)),
]
_ALWAYS: List[Tuple[str, str, Callable[[Any], bool]]] = [
    ("parallelism.pipeline_parallel", "pipeline parallelism", lambda c: c.parallelism.pipeline_parallel > 1),
    ("parallelism.context_parallel", "context parallelism", lambda c: c.parallelism.context_parallel > 1),
    ("parallelism.expert_parallel", "expert parallelism", lambda c: c.parallelism.expert_parallel > 1),
    ("parallelism.enable_mc2", "MC2 (fused matmul and communication)", lambda c: c.parallelism.enable_mc2),
    ("swap.enable", "activation swapping", lambda c: c.swap.enable),
    ("recompute.mode", "activation recomputation", lambda c: c.recompute.mode != "None"),
    ("recompute_comm.enable", "recomputation of communication", lambda c: c.recompute_comm.enable),
    ("optimizer.type", "the Muon optimizer", lambda c: "muon" in str(getattr(c.optimizer, "type", "")).lower()),
    ("lora_config", "LoRA under MindFormers' trainer", lambda c: getattr(c, "lora_config", None) is not None),
    ("model.mtp_num_layers", "multi-token prediction",
     lambda c: bool(getattr(c.model, "mtp_num_layers", None) or getattr(c.model, "num_nextn_predict_layers", None))),
    ("model.track_max_attention_logit", "tracking of the largest attention logit",
     lambda c: bool(getattr(c.model, "track_max_attention_logit", False))),
]


def refuse_unsupported(config: Any, world: int, auto_tp: bool):
    """Raise for the first thing that a run on several processes cannot do.

    Args:
        config: MindFormers' parsed `TrainConfig`, after the switch has been mapped into it.
        world: number of processes; one process runs MindFormers alone, and nothing is refused.
        auto_tp: our plan is used.

    Raises:
        ValueError: names the key and the feature.
    """
    if world == 1:
        return
    for key, feature, asks in _ALWAYS + (_WITH_AUTO_TP if auto_tp else []):
        if asks(config):
            raise ValueError(f"{key} asks for {feature}, which is not available in this version; supported: {SUPPORTED}. "
                             f"Take {key} out of the configuration")
    if not auto_tp:
        _refuse_own_plan(config, world)


def _refuse_own_plan(config, world):
    """What MindFormers' own plan cannot do, said before it fails in the middle of building the model."""
    parallelism = config.parallelism
    tp = parallelism.tensor_parallel
    latent = bool(getattr(config.model, "kv_lora_rank", None))
    if tp > 1 and not latent:
        raise ValueError(f"parallelism.tensor_parallel is {tp} without auto_tp, and MindFormers' own plan is for latent "
                         "attention only (DeepSeek): set parallel_config.auto_tp: true")
    tied = bool(getattr(config.model, "tie_word_embeddings", False))
    ranks = world // tp
    shard = parallelism.data_parallel_shard if parallelism.data_parallel_shard > 0 else ranks
    if shard > 1 and tied:
        raise ValueError(f"parallelism.data_parallel_shard {shard} with model.tie_word_embeddings: MindFormers gathers the "
                         "table for the embedding only, and the head would see a part of it: set "
                         "parallelism.data_parallel_shard: 1 (replicas), or parallel_config.auto_tp: true")
