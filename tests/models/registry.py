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
"""The models by name: built from their folder's configuration, with its weights, inputs, and what must come out.

    cell = registry.build("llama")
    logits = cell(*registry.inputs("llama"))

A folder holds `config.json`, `model.safetensors`, `reference.npz` (inputs and logits) and `gradients.npz` (the gradient
of every parameter of the mean cross entropy of `logits[:, :-1]` against the ids that follow), computed by another
library.
"""
import json
import types
from pathlib import Path

import numpy as np
from mindspore import Tensor
from safetensors.numpy import load_file

from tests.models.bert import BertForMaskedLM
from tests.models.bloom import BloomForCausalLM
from tests.models.deepseek_v3 import deepseek_v3
from tests.models.falcon import FalconForCausalLM
from tests.models.gemma2 import Gemma2ForCausalLM
from tests.models.glm4 import glm4, glm4_moe
from tests.models.gpt2 import GPT2LMHeadModel
from tests.models.gpt_bigcode import gpt_bigcode
from tests.models.gpt_neox import GPTNeoXForCausalLM
from tests.models.gpt_oss import gpt_oss
from tests.models.llama import llama, qwen3
from tests.models.moe import mixtral, qwen3_moe
from tests.models.mpt import MptForCausalLM
from tests.models.opt import OPTForCausalLM
from tests.models.phi import PhiForCausalLM
from tests.models.phi3 import phi3
from tests.models.qwen2 import qwen2, qwen2_moe
from tests.models.starcoder2 import Starcoder2ForCausalLM
from tests.models.t5 import T5ForConditionalGeneration

FOLDERS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "models"
MODELS = {
    "llama": llama, "qwen3": qwen3, "gpt2": GPT2LMHeadModel, "gpt_neox": GPTNeoXForCausalLM,
    "falcon": FalconForCausalLM, "bloom": BloomForCausalLM, "phi3": phi3, "gemma2": Gemma2ForCausalLM,
    "gpt_bigcode": gpt_bigcode, "bert": BertForMaskedLM, "t5": T5ForConditionalGeneration, "mixtral": mixtral,
    "qwen3_moe": qwen3_moe, "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss, "qwen2": qwen2,
    "qwen2_moe": qwen2_moe, "opt": OPTForCausalLM, "phi": PhiForCausalLM, "mpt": MptForCausalLM,
    "starcoder2": Starcoder2ForCausalLM, "glm4": glm4, "glm4_moe": glm4_moe,
}


def available():
    """The folders are there."""
    return FOLDERS.is_dir()


def config_of(name):
    """The folder's configuration as an object."""
    return types.SimpleNamespace(**json.loads((FOLDERS / name / "config.json").read_text(encoding="utf-8")))


def build(name):
    """The model with the weights of its folder, by their names.

    Raises:
        ValueError: the model's parameters are not those of the file.
    """
    cell = MODELS[name](config_of(name))
    weights = load_file(str(FOLDERS / name / "model.safetensors"))
    parameters = dict(cell.parameters_and_names())
    if parameters.keys() != weights.keys():
        raise ValueError(f"{name}: parameters and file differ in {sorted(parameters.keys() ^ weights.keys())}")
    for path, parameter in parameters.items():
        if tuple(parameter.shape) != weights[path].shape:
            raise ValueError(f"{name}: {path} is {tuple(parameter.shape)}, in the file {weights[path].shape}")
        parameter.set_data(Tensor(weights[path]))
        parameter.name = path
    return cell


def inputs(name):
    """The forward's arguments: ids, and those of the decoder where there is one."""
    reference = np.load(FOLDERS / name / "reference.npz")
    return tuple(Tensor(reference[key].astype(np.int32)) for key in ("input_ids", "decoder_input_ids")
                 if key in reference.files)


def reference_logits(name):
    """What must come out, `[batch, sequence, vocabulary]`."""
    return np.load(FOLDERS / name / "reference.npz")["logits"]


def reference_gradients(name):
    """The gradient of every trainable parameter, by path."""
    return dict(np.load(FOLDERS / name / "gradients.npz"))
