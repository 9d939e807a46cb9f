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
"""What MindFormers imports by name and this version does not do: it can be imported, and refuses to work by name."""
import pytest

import hyper_parallel
from hyper_parallel.core.activation_checkpoint import SwapManager, checkpoint_wrapper, swap_wrapper
from hyper_parallel.core.context_parallel.async_context_parallel import AsyncContextParallel
from hyper_parallel.core.context_parallel.context_parallel import ContextParallel
from hyper_parallel.core.pipeline_parallel.hook_coordinator import HookCoordinator
from hyper_parallel.platform import get_platform


@pytest.mark.parametrize("call, key", [
    (lambda: hyper_parallel.PipelineStage(submodule=None, stage_index=0, stage_num=2), "pipeline_parallel"),
    (lambda: ContextParallel(seq_dim=0, head_dim=2, ulysses_degree=1, qkv_indices=(0, 1, 2)), "context_parallel"),
    (lambda: AsyncContextParallel(seq_dim=0, head_dim=2), "context_parallel"),
    (lambda: checkpoint_wrapper(None), "recompute.mode"),
    (lambda: swap_wrapper(None), "swap.enable"),
    (SwapManager, "swap.enable"),
    (lambda: get_platform().differentiable_sync_hook(None, "A", None), "overlap_b_f"),
    (lambda: get_platform().differentiable_all_to_all_single_async(None, [], [], None), "expert_parallel"),
])
def test_refused_with_what_is_supported_and_the_key_to_change(call, key):
    with pytest.raises(NotImplementedError) as error:
        call()
    assert key in str(error.value) and "supported: tensor parallelism" in str(error.value)


def test_mindformers_can_subclass_what_it_subclasses_at_import():
    class Stage(hyper_parallel.PipelineStage):
        """As in MindFormers' pipeline module."""

    class Function(hyper_parallel.DFunction):
        """As in MindFormers' fused operators."""

    assert issubclass(Stage, hyper_parallel.PipelineStage) and issubclass(Function, hyper_parallel.DFunction)
    assert HookCoordinator().is_enabled() is False
    assert get_platform() is get_platform()


def test_experimental_operators_stay_unimportable():
    """MindFormers tests for the ImportError and then takes its own path."""
    with pytest.raises(ImportError):
        import hyper_parallel.custom_ops.experimental  # noqa: F401
