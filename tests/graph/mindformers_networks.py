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
"""MindFormers' own graph-mode networks, small, with the strategies that their authors wrote by hand."""
import importlib
import sys
import types

import mindspore
import numpy as np
from mindspore import Tensor, nn
from mindspore.nn.utils import no_init_parameters

import hyper_parallel as hp
from hyper_parallel.distributed.inventory import take_inventory

LENGTH = 16
_FLOAT32 = {name: "float32" for name in ("params_dtype", "compute_dtype", "layernorm_compute_dtype",
                                         "softmax_compute_dtype", "rotary_dtype")}
_SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "max_position_embeddings": LENGTH,
          "seq_length": LENGTH, "use_flash_attention": False, **_FLOAT32}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_grouped_gemm": True,
            "moe_router_topk_scaling_factor": 1.0}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
           "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
           "moe_grouped_gemm": True}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
# (configuration module, its class, network module, its class, sizes)
NETWORKS = {
    "qwen3": ("qwen3.configuration_qwen3", "Qwen3Config", "qwen3.modeling_qwen3_train", "TrainingQwen3ForCausalLM", {}),
    "qwen3_moe": ("qwen3_moe.configuration_qwen3_moe", "Qwen3MoeConfig", "qwen3_moe.modeling_qwen3_moe_train",
                  "TrainingQwen3MoeForCausalLM", _EXPERTS),
    "deepseek_v3": ("deepseek3.configuration_deepseek_v3", "DeepseekV3Config", "deepseek3.modeling_deepseek_v3_train",
                    "TrainingDeepseekV3ForCausalLM", {**_ROUTED, **_LATENT, "num_nextn_predict_layers": 0}),
    "glm4_moe": ("glm4_moe.configuration_glm4_moe", "Glm4MoeConfig", "glm4_moe.modeling_glm4_moe",
                 "Glm4MoeForCausalLM", _ROUTED),
    "telechat3": ("telechat3.configuration_telechat3", "TeleChat3Config", "telechat3.modeling_telechat3_train",
                  "TrainingTeleChat3ForCausalLM", {}),
}


class _ParallelConfig(dict):
    """MindFormers asks a configuration for both `items()` and `to_dict()`."""

    def to_dict(self):
        """Itself."""
        return dict(self)


class WithLabels(nn.Cell):
    """The network as its trainer calls it."""

    def __init__(self, inner):
        super().__init__(auto_prefix=False)
        self.inner = inner

    def construct(self, input_ids, labels, loss_mask):
        """The loss."""
        return self.inner(input_ids, None, None, None, labels, None, None, loss_mask)


def network(name, model_parallel, data_parallel):
    """One of `NETWORKS` without initialised weights; MindFormers builds it on the CPU whatever the device target."""
    configuration, configuration_class, modeling, modeling_class, sizes = NETWORKS[name]
    importlib.import_module("mindformers")
    contexts = sys.modules["mindformers.core.context.build_context"]
    # A trainer would have made the context; networks ask it whether they are legacy ones.
    settings = {"use_legacy": False, "run_mode": "train"}
    contexts.MFContextOperator.get_mf_ctx_instance = staticmethod(
        lambda: types.SimpleNamespace(get_context=settings.get))
    config = getattr(importlib.import_module(f"mindformers.models.{configuration}"), configuration_class)(
        **{**_SIZES, **sizes})
    # MindFormers refuses experts beside tensor parallelism without sequence parallelism
    config.parallel_config = _ParallelConfig(data_parallel=data_parallel, model_parallel=model_parallel,
                                             use_seq_parallel="moe_grouped_gemm" in sizes)
    with no_init_parameters(), mindspore.DeviceCtx("CPU"):
        return getattr(importlib.import_module(f"mindformers.models.{modeling}"), modeling_class)(config)


def build(name, data=1):
    """For the compiler: the network with its own strategies, its inputs, and our plan's local shapes as a note."""
    from mindspore.communication import get_group_size
    tp = get_group_size() // data
    inner = network(name, tp, data)
    made = WithLabels(inner).set_train()
    try:
        plan = hp.plan(take_inventory(inner), tp=tp, sequence_dim=0)
        made.notes = {"planned": {parameter.name: plan.parameters[path].local_shape
                                  for path, parameter in inner.parameters_and_names()},
                      "whole": {parameter.name: parameter.shape for parameter in inner.get_parameters()}}
    except ValueError as error:
        made.notes = {"refused": str(error)}
    ids = Tensor(np.zeros((max(data, 1), LENGTH), np.int32))
    return made, (ids, ids, Tensor(np.ones((max(data, 1), LENGTH), np.float32)))


def own_network(data=1, file="configs/graph_auto_tp.yaml", model_parallel=None):
    """The documented network of one's own, built by MindFormers from the documented YAML."""
    from pathlib import Path

    from mindformers import MindFormerConfig
    from mindformers.core.parallel_config import build_parallel_config
    from mindformers.models.build_model import build_network
    from mindspore.communication import get_group_size
    root = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(root / "configs"))
    importlib.import_module("graph_network")
    config = MindFormerConfig(str(root / file))
    config.parallel_config.data_parallel = data
    config.parallel_config.model_parallel = model_parallel or get_group_size() // data
    build_parallel_config(config)
    with mindspore.DeviceCtx("CPU"):
        made = build_network(config.model, default_args={"parallel_config": config.parallel_config})
    ids = Tensor(np.zeros((data, made.config.seq_length), np.int32))
    return made.set_train(), (ids, ids)
