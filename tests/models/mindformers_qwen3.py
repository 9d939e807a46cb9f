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
"""MindFormers' own PyNative Qwen3, small, and its two hard-coded down-casts in float32 for exact comparisons."""
import mindspore
import numpy as np
from mindspore import Tensor

from hyper_parallel.integrations.mindformers.exact_casts import float32_casts  # noqa: F401  pylint: disable=unused-import
from hyper_parallel.integrations.mindformers.verify import build_on_meta

LAYERS, HIDDEN, HEADS, GROUPS, HEAD_SIZE, FFN, VOCABULARY, LENGTH = 2, 32, 8, 4, 8, 48, 64, 16


def config(**changes):
    """A MindFormers PyNative training configuration as nested dicts; `changes` go into the section `model`."""
    return {
        "training": {"steps": 3, "global_batch_size": 4, "local_batch_size": 2, "seed": 11, "max_norm": 1.0},
        "model": {
            "model_type": "qwen3", "architectures": "Qwen3ForCausalLM", "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD_SIZE, "seq_length": LENGTH,
            "max_position_embeddings": LENGTH, "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "params_dtype": "float32", "compute_dtype": "float32",
            "layernorm_compute_dtype": "float32", "softmax_compute_dtype": "float32", "rotary_dtype": "float32",
            "hidden_dropout": 0.0, "attention_dropout": 0.0, **changes},
        "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0},
        "lr_scheduler": {"type": "ConstantWarmUpLR", "learning_rate": 1e-2, "warmup_steps": 0},
        "train_dataset": {"dataloader": {"type": "MindDataset"}},
        "checkpoint": {"enable_save": False},
        "context": {"mode": 1, "device_target": "CPU"},
    }


def build(**changes):
    """The model on the meta device, as MindFormers' trainer builds it."""
    return build_on_meta(config(**changes))


def materialise(model, seed=11):
    """Allocate and draw the weights, as the trainer does after parallelising."""
    mindspore.set_seed(seed)
    mindspore.manual_seed(seed)
    model.to_empty()
    with mindspore.graph.api._no_grad():
        model.init_states()
    model.set_train(True)
    return model


def batch(seed=3, size=2):
    """Tokens and the tokens that follow them, equal on all ranks."""
    tokens = np.random.default_rng(seed).integers(1, VOCABULARY, (size, LENGTH + 1)).astype(np.int32)
    return {"input_ids": Tensor(tokens[:, :-1].copy()), "labels": Tensor(tokens[:, 1:].copy())}
