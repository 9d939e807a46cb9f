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
"""What a plan can ask for and MindSpore's Layouts cannot say: equal, consecutive parts of a dim are all they know."""
from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan

_OVERRIDE = "auto_tp_config.overrides: [{{match: \"{path}\", replicate: true}}]"


def refuse_inexpressible(plan: ShardingPlan):
    """Raise for the first parameter whose parts no Layout describes.

    Raises:
        ValueError: names the parameter, what it needs, and the ways out.
    """
    for path, spec in plan.parameters.items():
        if spec.first_rank_only:
            raise ValueError(
                f"{path!r} is added before a reduction, so that one rank alone may hold it, which no Layout of graph "
                f"mode says: keep its module whole with {_keep_whole(path)}")
        if spec.slice_map.cuts and not spec.slice_map.is_even_chunks:
            raise ValueError(f"{path!r} {list(spec.shape)} {_reason(spec, plan.tp)}")


def _reason(spec: ParameterSpec, tp: int) -> str:
    laid = f"(laid out as {spec.slice_map.describe()})"
    if spec.copies > 1:
        return (f"holds kv heads that {spec.copies} ranks of {tp} have to copy {laid}, and a Layout of graph mode cuts "
                f"into equal parts only: choose parallel_config.model_parallel so that it divides the kv heads "
                f"(num_key_value_heads), or keep the attention whole with {_keep_whole(spec.path)}")
    if spec.slice_map.has_padding:
        size = next(spec.shape[cut.dim] for cut in spec.slice_map.cuts)
        return (f"has {size} rows, which {tp} does not divide {laid}, and a Layout of graph mode has no padding: make "
                f"the vocabulary {-(-size // tp) * tp} (vocab_size), choose parallel_config.model_parallel so that it "
                f"divides {size}, or keep it whole with {_keep_whole(spec.path)}")
    return (f"holds several weights one after another {laid}, and a Layout of graph mode cuts a dim into consecutive "
            f"parts: split it into one parameter for each, interleave its rows by head or by (gate, up) pair, or keep "
            f"it whole with {_keep_whole(spec.path)}")


def _keep_whole(path: str) -> str:
    return _OVERRIDE.format(path=path)
