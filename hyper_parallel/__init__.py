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
"""Tensor parallelism for MindSpore: a written, checked plan from the model, and the same numbers on every rank."""
from hyper_parallel.platform import cpu_kernels as _cpu_kernels

# MindFormers binds operators by name when it is imported, so what the CPU lacks has to be there before.
_cpu_kernels.maybe_install()

# pylint: disable=wrong-import-position
from hyper_parallel.core.collectives.counter import count_collectives  # noqa: E402
from hyper_parallel.core.dtensor.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from hyper_parallel.core.dtensor.dtensor import DFunction, DTensor, SkipDTensorDispatch, distribute_tensor  # noqa: E402
from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard  # noqa: E402
from hyper_parallel.core.dtensor.visualize import visualize  # noqa: E402
from hyper_parallel.core.fully_shard.api import MixedPrecisionPolicy, fully_shard  # noqa: E402
from hyper_parallel.core.fully_shard.finite import gradients_are_finite  # noqa: E402
from hyper_parallel.core.fully_shard.utils import CPUOffloadPolicy  # noqa: E402
from hyper_parallel.core.pipeline_parallel import PipelineStage  # noqa: E402
from hyper_parallel.core.shard.shard_module import shard_module  # noqa: E402
from hyper_parallel.distributed.applier import apply, restore  # noqa: E402
from hyper_parallel.distributed.auto_tp import auto_tp  # noqa: E402
from hyper_parallel.distributed.gradient_norm import clip_grad_norm_, grad_norm  # noqa: E402
from hyper_parallel.distributed.planner import plan  # noqa: E402
from hyper_parallel.distributed.recipe_spec import ShardingPlan  # noqa: E402
from hyper_parallel.distributed.tensor_parallel.loss import VocabParallelCrossEntropy  # noqa: E402
from hyper_parallel.distributed.validate import PlacementMismatchError  # noqa: E402
from hyper_parallel.distributed.verify import verify  # noqa: E402
from hyper_parallel.graph import to_mindspore_strategies  # noqa: E402
from hyper_parallel.version import __version__  # noqa: E402

__all__ = ["CPUOffloadPolicy", "DFunction", "DTensor", "DeviceMesh", "MixedPrecisionPolicy", "Partial",
           "PipelineStage", "PlacementMismatchError", "Replicate", "Shard", "ShardingPlan", "SkipDTensorDispatch",
           "VocabParallelCrossEntropy", "__version__", "apply", "auto_tp", "clip_grad_norm_", "count_collectives",
           "distribute_tensor", "fully_shard", "grad_norm", "gradients_are_finite",
           "init_device_mesh", "plan", "restore", "shard_module", "to_mindspore_strategies", "verify", "visualize"]
