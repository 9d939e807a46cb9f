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
"""What changed between two plans, in sentences."""
from typing import List

from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.report import named_words, shape_words

_FIELDS = ("role", "copies", "grad_sum_axes", "frozen", "dtype", "first_rank_only")


def diff_plans(old: ShardingPlan, new: ShardingPlan) -> List[str]:
    """One line for each difference, or one line that says there is none.

    Args:
        old: the plan before.
        new: the plan now.

    Examples:
        >>> diff_plans(hp.plan(folder, tp=2), hp.plan(folder, tp=4))[0]
        'tp: 2 -> 4'
    """
    lines = []
    if old.tp != new.tp:
        lines.append(f"tp: {old.tp} -> {new.tp}")
    for name in sorted(set(old.options) | set(new.options)):
        if name != "tp" and old.options.get(name) != new.options.get(name):
            lines.append(f"option {name}: {old.options.get(name)} -> {new.options.get(name)}")
    lines += [f"- {path} {shape_words(spec.shape)} ({spec.role})" for path, spec in old.parameters.items()
              if path not in new.parameters]
    lines += [f"+ {path} {shape_words(spec.shape)} ({spec.role})" for path, spec in new.parameters.items()
              if path not in old.parameters]
    for path, spec in new.parameters.items():
        before = old.parameters.get(path)
        if before is None:
            continue
        changes = [f"{name} {getattr(before, name)} -> {getattr(spec, name)}" for name in _FIELDS
                   if getattr(before, name) != getattr(spec, name)]
        if before.slice_map != spec.slice_map:
            changes.append(f"rows '{before.slice_map.describe()}' -> '{spec.slice_map.describe()}'")
            changes.append(f"per rank {shape_words(before.local_shape)} -> {shape_words(spec.local_shape)}")
        if before.placement != spec.placement:
            changes.append(f"placement {named_words(before.placement)} -> {named_words(spec.placement)}")
        if changes:
            lines.append(f"{path}: {'; '.join(changes)}")
    for path in sorted(set(old.boundaries) | set(new.boundaries)):
        before, after = old.boundaries.get(path), new.boundaries.get(path)
        if before is None or after is None:
            lines.append(f"boundary {path}: {'only before' if after is None else 'new'}")
        elif (before.semantic_role, before.local_compute_fn, before.out_src, before.out_dst) != (
                after.semantic_role, after.local_compute_fn, after.out_src, after.out_dst):
            lines.append(f"boundary {path}: {before.semantic_role} {named_words(before.out_src)} -> "
                         f"{after.semantic_role} {named_words(after.out_src)}")
    return lines or ["nothing changed"]
