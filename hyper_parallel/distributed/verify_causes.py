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
"""Why do the numbers differ? Each cause is tried out on the numbers, and named only where it fits them."""
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from mindspore import Tensor, ops

from hyper_parallel.core.collectives import functional
from hyper_parallel.core.dtensor.dtensor import DTensor
from hyper_parallel.core.dtensor.placement_types import Shard
from hyper_parallel.core.dtensor.slice_cut import Cut
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.forward_reads import attribute_chains, is_size_of_one_head
from hyper_parallel.distributed.recipe_spec import ParameterSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import fused_layout
from hyper_parallel.distributed.tensor_parallel.templates import AXIS
from hyper_parallel.distributed.verify_report import (
    BIAS_TWICE, FUSED_LAYOUT, HEAD_COUNT, MISSING_REDUCTION, REDUCED_TWICE, Suspect)
from hyper_parallel.distributed.verify_trace import Trace, part_of, to_numpy, trace


def gather_ranks(array: np.ndarray, group) -> np.ndarray:
    """The arrays of all ranks, `[ranks, …]`."""
    return functional.all_gather(Tensor(np.ascontiguousarray(array)[None]), 0, group).asnumpy()


def fits(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Equal up to a little more than the tolerance: a sum of parts has more rounding than the parts."""
    return found.shape == expected.shape and bool(
        np.abs(found - expected).max(initial=0.0) <= 10 * tolerance * max(np.abs(expected).max(initial=0.0), 1e-30))


class ForwardCauses:
    """Looks for the first boundary whose result is wrong, and tries the causes out on it.

    Args:
        whole (Subject): the reference.
        sharded (Subject): with the plan applied.
        plan: the plan.
        group: the ranks of the tensor-parallel axis.
        tolerance: largest relative difference that passes.
    """

    def __init__(self, whole, sharded, plan: ShardingPlan, group, tolerance: float):
        self._whole, self._sharded = dict(whole.cell.cells_and_names()), dict(sharded.cell.cells_and_names())
        self._whole_subject, self._sharded_subject = whole, sharded
        self._whole_root, self._sharded_root = whole.cell, sharded.cell
        self._plan, self._group, self._tolerance = plan, group, tolerance

    def find(self) -> Tuple[str, List[Suspect]]:
        """(path of the first wrong boundary or "", what is suspected there)."""
        expected, found = self._watch(self._whole_subject), self._watch(self._sharded_subject)
        keys = [key for key in expected if key in found and not self._is_inside(key[0])]
        wrong = [not self._is_right(found[key], expected[key]) for key in keys]
        wrong_anywhere = gather_ranks(np.array([wrong], np.float32), self._group).max((0, 1)) if keys else []
        first = next((key for key, bad in zip(keys, wrong_anywhere) if bad), None)
        if first is None:
            return "", []
        path = first[0]
        suspect = self._sum_of_ranks(path, found[first], expected[first]) or \
            self._bias(path, found[first], expected[first]) or self._layout(first, expected[first]) or \
            self.head_count(path)
        return path, [suspect] if suspect else []

    def _watch(self, subject) -> Trace:
        return trace(subject.cell, subject.forward, list(self._plan.boundaries))

    def _is_inside(self, path: str) -> bool:
        """The result stays this rank's columns, inside of a region: a fused one's columns are no plain part."""
        leaves = self._plan.boundaries[path].out_dst
        return leaves is not None and leaves.get(AXIS) == Shard(-1)

    def _expected(self, found: np.ndarray, whole: np.ndarray) -> Optional[np.ndarray]:
        return part_of(whole, found.shape, self._group.index, self._group.size)

    def _is_right(self, found: np.ndarray, whole: np.ndarray) -> bool:
        expected = self._expected(found, whole)
        return expected is not None and fits(found, expected, self._tolerance / 10)

    def _sum_of_ranks(self, path, found, whole) -> Optional[Suspect]:
        if found.shape != whole.shape:
            return None
        total = gather_ranks(found, self._group).sum(0)
        # a bias is in every rank's part
        biases = [bias for _, bias in self._biases(path) if bias.shape == whole.shape[-1:]]
        if not any(fits(total - (self._group.size - 1) * bias, whole, self._tolerance) for bias in [0.0, *biases]):
            return None
        return Suspect(MISSING_REDUCTION, path, "the ranks' results sum to the right one: its exit (out_src, out_dst) has "
                       "no reduction")

    def _bias(self, path, found, whole) -> Optional[Suspect]:
        expected = self._expected(found, whole)
        suspect = None
        if expected is not None:
            extra = (found - expected).reshape(-1, found.shape[-1])
            for name, bias in self._biases(path):
                if bias.shape != extra.shape[-1:] or not np.any(bias):
                    continue
                times = float(extra.mean(0) @ bias / (bias @ bias))
                if abs(times) > 10 * self._tolerance and fits(extra, np.broadcast_to(times * bias, extra.shape),
                                                              max(self._tolerance, 1e-4)):
                    suspect = Suspect(
                        BIAS_TWICE, f"{path}.{name}" if path else name,
                        f"the result holds it {times + 1:.3g} times instead of once: it has to be added after the "
                        "reduction (local_compute_fn: bias_after_reduction), or on one rank only")
        return suspect if self._everywhere(suspect is not None) else None

    def _biases(self, path: str) -> Iterator[Tuple[str, np.ndarray]]:
        """(name below the module, values) of its vectors."""
        for name, parameter in self._whole[path].parameters_and_names():
            if parameter.ndim == 1:
                yield name, to_numpy(parameter)

    def _everywhere(self, here: bool) -> bool:
        return bool(gather_ranks(np.array([here], np.float32), self._group).all())

    def _layout(self, first: Tuple[str, int], whole: np.ndarray) -> Optional[Suspect]:
        """Cut each fused weight of the boundary by every other layout of its kind, and look at the result again."""
        path, rank = first[0], self._group.index
        around = self._region_around(path)
        for name, spec in self._plan.parameters.items():
            if len(spec.shape) < 2 or not (name.startswith(f"{around}.") or not around) or len(spec.slice_map.cuts) != 1:
                continue
            for layout, cut in self._other_layouts(name, spec):
                followers = self._same_cut(name, spec)
                kept = {other: to_numpy(self._parameter(self._sharded_root, other)).copy() for other in followers}
                for other in followers:
                    dim = self._plan.parameters[other].slice_map.cuts[0].dim
                    shape = self._plan.parameters[other].shape
                    moved = SliceMap.of(shape, Cut(cut.axis, dim, cut.parts, cut.sections, cut.blocks))
                    self._set(other, moved.shard(to_numpy(self._parameter(self._whole_root, other)), rank))
                found = self._watch(self._sharded_subject).get(first)
                for other, values in kept.items():
                    self._set(other, values)
                if self._everywhere(found is not None and self._is_right(found, whole)):
                    return Suspect(
                        FUSED_LAYOUT, name, f"the plan cuts its {spec.slice_map.describe()}; with the rows read as "
                        f"{layout} the numbers are right: add auto_tp_config.overrides: "
                        f"[{{match: \"{name}\", fused_layout: {layout}}}]")
        return None

    def _region_around(self, path: str) -> str:
        """The module that holds a region's weights: a row linear's is its parent."""
        return path.rpartition(".")[0] if self._plan.boundaries[path].semantic_role == "row_linear" else path

    def _other_layouts(self, name: str, spec: ParameterSpec) -> Iterator[Tuple[str, Cut]]:
        (now,) = spec.slice_map.cuts
        for layout, make in _layouts(spec, now, self._heads_of(name)):
            try:
                cut = make()
                local = SliceMap.of(spec.shape, cut).local_shape()
            except (ValueError, ZeroDivisionError):
                continue  # not a way to cut these rows
            if cut.sections != now.sections and local == spec.local_shape:
                yield layout, cut

    def _heads_of(self, name: str) -> Optional[Tuple[int, int, int]]:
        return next((heads for path, heads in self._plan.heads.items() if name.startswith(f"{path}.") or not path), None)

    def _same_cut(self, name: str, spec: ParameterSpec) -> List[str]:
        """The weight, and the bias beside it that is cut alike."""
        owner = name.rpartition(".")[0]
        return [other for other, one in self._plan.parameters.items() if other.rpartition(".")[0] == owner
                and one.slice_map.cuts and one.slice_map.cuts[0].sections == spec.slice_map.cuts[0].sections]

    @staticmethod
    def _parameter(root, path: str):
        parameter = dict(root.parameters_and_names())[path]
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def _set(self, path: str, values: np.ndarray):
        parameter = self._parameter(self._sharded_root, path)
        parameter.set_data(ops.cast(Tensor(np.ascontiguousarray(values)), parameter.dtype))

    def head_count(self, path: str = "") -> Optional[Suspect]:
        """A count of all heads that the forward of an attention still reads after the plan was applied.

        Args:
            path: a boundary; "" looks at every attention.
        """
        for owner, (heads, kv_heads, _) in self._plan.heads.items():
            if path and not (f"{path}.".startswith(f"{owner}.") or f"{owner}.".startswith(f"{path}.") or not owner):
                continue
            module = self._sharded[owner]
            read = {chain[0] for chain in attribute_chains(type(module))}
            for name, value in vars(module).items():
                if isinstance(value, int) and not isinstance(value, bool) and value > 1 and name in read \
                        and value in (heads, kv_heads) and not is_size_of_one_head(name):
                    what = "heads" if value == heads else "kv heads"
                    return Suspect(
                        HEAD_COUNT, f"{owner}.{name}" if owner else name,
                        f"the forward reads {value}, the count of all {what}, and a rank has {value}/{self._plan.tp}: "
                        f"add auto_tp_config.overrides: [{{match: \"{owner}\", tp_divide_attrs: [{name}]}}]")
        return None


def _layouts(spec: ParameterSpec, now: Cut, heads) -> Iterator[Tuple[str, Callable[[], Cut]]]:
    """(name, what makes the cut) of every layout that rows of this number can have."""
    rows, tp, dim = spec.shape[now.dim], now.parts, now.dim
    if heads is not None:
        number, kv_number, size = heads
        if rows == (number + 2 * kv_number) * size:
            for name in fused_layout.QKV_LAYOUTS:
                if number == kv_number or name not in ("per_head", "four_blocks"):
                    yield name, lambda name=name: fused_layout.qkv_cut(name, number, kv_number, size, tp, dim)
        elif rows == 2 * kv_number * size:
            for name in fused_layout.KEY_VALUE_LAYOUTS:
                yield name, lambda name=name: fused_layout.key_value_cut(name, number, kv_number, rows, tp, dim)
        return
    if rows % 2 == 0:
        for name in fused_layout.GATE_UP_LAYOUTS:
            yield name, lambda name=name: fused_layout.gate_up_cut(name, rows // 2, tp, dim)


class GradientCauses:
    """Tries the causes out on each wrong gradient of a model whose forward is right.

    Args:
        plan: the plan.
        group: the ranks of the tensor-parallel axis.
        tolerance: largest relative difference that passes.
    """

    def __init__(self, plan: ShardingPlan, group, tolerance: float):
        self._plan, self._group, self._tolerance = plan, group, tolerance

    def find(self, wrong: Sequence[str], local: Mapping[str, np.ndarray], whole: Mapping[str, np.ndarray]
             ) -> Tuple[Dict[str, str], List[Suspect]]:
        """`{path: cause}`, and one suspect for each cause.

        Args:
            wrong: paths whose gradient differs, the same on all ranks.
            local: this rank's gradients.
            whole: the reference.
        """
        causes: Dict[str, str] = {}
        for path in wrong:
            cause = self._cause(self._plan.parameters[path], gather_ranks(local[path], self._group), whole[path])
            if cause:
                causes[path] = cause
        return causes, [self._suspect(cause, [path for path in wrong if causes.get(path) == cause], len(wrong))
                        for cause in sorted(set(causes.values()))]

    def _cause(self, spec: ParameterSpec, ranks: np.ndarray, whole: np.ndarray) -> str:
        slice_map, tp = spec.slice_map, self._group.size
        expected = [slice_map.shard(whole, rank if slice_map.cuts else None) for rank in range(tp)]
        kept = [_without_padding(slice_map, one, rank) for rank, one in enumerate(ranks)]
        sharing = [slice_map.copy_group(rank) if slice_map.cuts else tuple(range(tp)) for rank in range(tp)]
        if all(len(others) > 1 and fits(sum(kept[other] for other in others), expected[rank], self._tolerance)
               for rank, others in enumerate(sharing)):
            return MISSING_REDUCTION
        if all(fits(one, len(others) * expected[rank], self._tolerance) for rank, (one, others) in enumerate(
                zip(kept, sharing if len(sharing[0]) > 1 else [range(tp)] * tp))):
            return REDUCED_TWICE
        return ""

    def _suspect(self, cause: str, paths: Sequence[str], wrong: int) -> Suspect:
        more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
        if cause == REDUCED_TWICE:
            return Suspect(cause, f"{paths[0]}{more}", "each rank has a multiple of the gradient: it is summed once too "
                           "often, or the backward starts with too much")
        if len(paths) == wrong:
            return Suspect(cause, f"{paths[0]}{more}", "the ranks' gradients sum to the right one, and nothing else is "
                           "wrong: the plan does not sum it (grad_sum_axes, or copies of kv heads)")
        return Suspect(cause, f"{paths[0]}{more}", "the ranks' gradients sum to the right one, and more is wrong before "
                       "it: the region that it feeds has no reduction at its entry (in_src, in_dst)")


def _without_padding(slice_map: SliceMap, local: np.ndarray, rank: int) -> np.ndarray:
    if not slice_map.has_padding:
        return local
    kept = np.zeros_like(local)
    for _, local_slices in slice_map.pieces(rank):
        kept[local_slices] = local[local_slices]
    return kept
