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
"""How the switch takes hold: MindFormers' trainer calls this package before it reads its configuration."""
import functools
from pathlib import Path
from typing import Any, Dict, Optional

import yaml

from hyper_parallel.integrations.mindformers.refusals import refuse_unsupported
from hyper_parallel.integrations.mindformers.switch import AutoTpSwitch, read_switch

_active: Optional[AutoTpSwitch] = None


def active_switch() -> Optional[AutoTpSwitch]:
    """The switch of the trainer that is being built; None where `auto_tp` is off."""
    return _active


def install():
    """Wrap what MindFormers' trainer calls next: reading its configuration, parallelising, and its gradient hooks.

    Idempotent. Nothing changes for a configuration without `parallel_config.auto_tp`, except that features which would
    fail in the middle of a run are refused at start.
    """
    from mindformers.pynative.trainer import trainer
    from mindspore.ops import communication

    # MindFormers' vocabulary-parallel loss takes the result that is returned, not the tensor that it has passed
    communication.set_comm_ops_inplace(False)
    if hasattr(trainer.Trainer._init_config, "_hyper_parallel"):
        return
    trainer.Trainer._init_config = staticmethod(_marked(_wrap_init_config(trainer.Trainer._init_config, trainer)))
    trainer.parallelize_model = _marked(_wrap_parallelize_model(trainer.parallelize_model))
    trainer.Trainer._register_grad_hooks = _marked(_wrap_register_grad_hooks(trainer.Trainer._register_grad_hooks))


def _marked(function):
    function._hyper_parallel = True
    return function


def _wrap_init_config(original, trainer):
    @functools.wraps(original)
    def init_config(config, run_mode="train"):
        global _active
        parsed = original(config, run_mode)
        world = trainer.get_world_size()
        _active = read_switch(_raw(config), world)
        if _active is not None:
            parsed.parallelism.tensor_parallel = _active.tp
            # MindFormers' default, -1, would mean FSDP over the replicas
            parsed.parallelism.data_parallel_shard = _active.shard
        refuse_unsupported(parsed, world, _active is not None)
        return parsed
    return init_config


def _raw(config: Any) -> Dict:
    """The configuration as its author wrote it: the parsed one no longer tells a default from a word."""
    if isinstance(config, dict):
        return config
    return yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {}


def _wrap_parallelize_model(original):
    @functools.wraps(original)
    def parallelize_model(model, parallel_dims, parallelism, recompute, recompute_comm, swap, **kwargs):
        if _active is None:
            return original(model=model, parallel_dims=parallel_dims, parallelism=parallelism, recompute=recompute,
                            recompute_comm=recompute_comm, swap=swap, **kwargs)
        from hyper_parallel.integrations.mindformers.parallelize import parallelize
        return parallelize(model, _active)
    return parallelize_model


def _wrap_register_grad_hooks(original):
    @functools.wraps(original)
    def register_grad_hooks(self):
        original(self)
        from hyper_parallel.platform import cpu_kernels
        if cpu_kernels.installed():
            from hyper_parallel.integrations.mindformers.cpu_gradients import make_gradients_contiguous
            make_gradients_contiguous(self.model)
    return register_grad_hooks
