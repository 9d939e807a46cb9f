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
"""What this version's applier can execute. A plan may be right and still ask for more; then `apply` says so by name."""
from typing import List

from hyper_parallel.distributed import latent_query, parallel_block_edges
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates

SUPPORTED_ROLES = (templates.ATTENTION, templates.MLP, templates.EMBEDDING, templates.LM_HEAD, templates.ROW_LINEAR,
                   templates.MOE, templates.LATENT_ATTENTION, templates.CROSS_ATTENTION, templates.INNER_ROW,
                   templates.SHARDED_NORM, templates.BLOCK_ENTRY, templates.FINAL_NORM, templates.PARALLEL_BLOCK,
                   templates.FIRST_PARALLEL_BLOCK, templates.PARALLEL_ATTENTION, templates.PARALLEL_MLP,
                   templates.RESIDUAL_READER, templates.FIRST_ENTRY, templates.STATE_SPACE, templates.AUXILIARY_LOSS, "attention_entry",
                   "cross_attention_entry", "mlp_entry", "heads", *(f"whole_{kind}" for kind in templates.REGIONS))
SUPPORTED_LOCAL_COMPUTE = (None, "vocabulary_parallel_embedding", "bias_after_reduction", "norm_over_cut_dim",
                           "state_space_local", latent_query.LOCAL_COMPUTE, *parallel_block_edges.LOCAL_COMPUTE)


def check_supported(plan: ShardingPlan):
    """Refuse what the applier would do wrongly or not at all.

    Args:
        plan: bound or not.

    Raises:
        NotImplementedError: names the first module or parameter, what it needs, and what is supported.
    """
    missing = unsupported(plan)
    if missing:
        more = f" ({len(missing) - 1} more like it)" if len(missing) > 1 else ""
        raise NotImplementedError(
            f"the plan is complete, but this version cannot apply it: {missing[0]}{more}. Supported boundaries: "
            f"{', '.join(SUPPORTED_ROLES[:10])}; local computations: "
            f"{', '.join(str(name) for name in SUPPORTED_LOCAL_COMPUTE if name)}. Keep what is not supported whole "
            "with auto_tp_config.overrides: [{match: GLOB, replicate: true}]")


def unsupported(plan: ShardingPlan) -> List[str]:
    """One phrase for each thing that the applier cannot do; empty for a plan that it executes."""
    found = []
    if plan.tp == 1:
        return found
    for path, spec in plan.boundaries.items():
        if spec.semantic_role not in SUPPORTED_ROLES:
            found.append(f"{path!r} is a boundary of kind {spec.semantic_role}")
        elif spec.local_compute_fn not in SUPPORTED_LOCAL_COMPUTE:
            found.append(f"{path!r} needs the local computation {spec.local_compute_fn!r}")
    return found
