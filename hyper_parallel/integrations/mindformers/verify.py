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
"""`verify` for a MindFormers PyNative configuration: the model as its trainer runs it, against the same one on one rank."""
import copy
from typing import Any, Dict, Mapping

import mindspore
import numpy as np
from mindspore import Tensor

from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.distributed.applier import applied_state
from hyper_parallel.distributed.verify import Numbers, Subject, compare
from hyper_parallel.distributed.verify_report import VerifyReport
from hyper_parallel.distributed.verify_trace import to_numpy
from hyper_parallel.integrations.mindformers.cpu_gradients import make_gradients_contiguous
from hyper_parallel.integrations.mindformers.exact_casts import float32_casts
from hyper_parallel.integrations.mindformers.parallelize import parallelize
from hyper_parallel.integrations.mindformers.switch import SECTION, read_switch
from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat

# In lower precision the order of sums alone makes differences that would hide a wrong one.
_EXACT = ("params_dtype", "compute_dtype", "layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype")
_WITHOUT_DROPOUT = ("hidden_dropout", "attention_dropout")


def exact_config(config: Mapping[str, Any], length: int) -> Dict[str, Any]:
    """A copy of a configuration whose model computes in float32 and draws nothing.

    Args:
        config: as nested dicts.
        length: longest sequence; a longer `model.seq_length` is shortened.

    Raises:
        ValueError: it has no section `model`.
    """
    if not isinstance(config.get("model"), Mapping):
        raise ValueError("the configuration has no section 'model': give a MindFormers PyNative configuration, or a Cell "
                         "with --build MODULE:FUNCTION")
    changed = copy.deepcopy(dict(config))
    model = changed["model"]
    model.update({key: "float32" for key in _EXACT})
    model.update({key: 0.0 for key in _WITHOUT_DROPOUT if key in model})
    model["seq_length"] = min(int(model.get("seq_length", length)), length)
    return changed


def verify_config(config: Mapping[str, Any], tp: int, *, tolerance: float = 1e-4, seed: int = 1, length: int = 64,
                  batch: int = 2) -> VerifyReport:
    """Loss and every gradient of a MindFormers model at tp=N against tp=1. Every rank of a job of N calls it.

    The model is computed in float32, MindFormers' own casts to float16 and bfloat16 included, and without dropout; the
    sharded one is parallelised, drawn and started backwards as MindFormers' trainer does it.

    Args:
        config: a PyNative training configuration; of `parallel_config`, all but the sizes counts.
        tp: must be the number of ranks of the job.
        tolerance: largest relative difference that passes.
        seed: of the weights and tokens.
        length: longest sequence.
        batch: sequences.

    Raises:
        ValueError: the plan or the configuration is refused.
    """
    config = exact_config(config, length)
    section = {key: value for key, value in (config.pop(SECTION, None) or {}).items() if key != "data_parallel"}
    switch = read_switch({SECTION: {**section, "auto_tp": True, "model_parallel": tp},
                          "checkpoint": {"enable_save": False}}, tp)
    tokens = np.random.default_rng(seed).integers(
        1, int(config["model"]["vocab_size"]), (batch, config["model"]["seq_length"] + 1)).astype(np.int32)
    inputs = {"input_ids": Tensor(tokens[:, :-1].copy()), "labels": Tensor(tokens[:, 1:].copy())}
    enable_mindspore_backward_compat()
    whole, sharded = build_on_meta(config), build_on_meta(config)
    parallelize(sharded, switch)
    for model in (whole, sharded):
        _draw(model, seed)
    # the trainer starts its backward with 1 / (dp · tp)
    return compare(_subject(whole, inputs, 1), _subject(sharded, inputs, tp), applied_state(sharded).plan, tolerance)


def build_on_meta(config: Mapping[str, Any]):
    """The model of a PyNative configuration as MindFormers' trainer builds it, without memory."""
    from mindformers.pynative.config.config import TrainConfig
    from mindformers.pynative.trainer.trainer import _build_model, patch_pynative_modules
    patch_pynative_modules()
    with mindspore.DeviceCtx("meta"):
        return _build_model(TrainConfig.from_dict(copy.deepcopy(config)))


def _draw(model, seed: int):
    mindspore.set_seed(seed)
    mindspore.manual_seed(seed)
    model.to_empty()
    with mindspore.graph.api._no_grad():
        model.init_states()
    model.set_train(True)
    if cpu_kernels.installed():
        make_gradients_contiguous([model])


def _subject(model, inputs, parts: int) -> Subject:
    def forward():
        with float32_casts():
            result = model(**inputs)
        return result[0] if isinstance(result, tuple) else result

    def run():
        loss = forward()
        loss.backward(Tensor([1.0 / parts]))
        gradients = {}
        for path, parameter in model.parameters_and_names():
            if parameter.requires_grad:
                found = parameter.main_grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
                gradients[path] = to_numpy(found.contiguous())
        return Numbers({"loss": to_numpy(loss)}, gradients)

    return Subject(model, run, forward)
