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
"""Sizes that modules cache and read in their forward: made local where a cut weight proves which dim they count.

`x.split(self.intermediate_size)` in a feed-forward layer, `x.reshape(shape + (self.out_features,))` in a linear,
`(self.embedding_size,)` in a table that is cut by columns. Head counts and what follows from them are the business of
`tensor_parallel.head_count`.
"""
import copy
import re
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Set

from mindspore import nn

from hyper_parallel.distributed.forward_reads import attribute_chains
from hyper_parallel.distributed.inventory import IN_OUT, TABLE, Inventory
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ParameterSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import head_count_transaction as transaction
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.head_count import restore_head_counts

# a count of things or a place among them is no width, whatever its value
_NO_WIDTH = re.compile(r"(num|top)_?.*|n_(?!inner|embd|embed).*|.*_(id|ids|idx|index|rank|groups?|heads?|layers?|k)|"
                       r".*_axis|axis|dim_.*|.*eps.*|head_dim|head_size|group|rank|k")
_OUT_NAMES = ("out_channels", "out_features", "output_size", "output_dim", "out_dim", "dim_out", "nf", "out_size",
              "embedding_size", "embedding_dim")
_IN_NAMES = ("in_channels", "in_features", "input_size", "input_dim", "in_dim", "dim_in", "nx", "in_size", "vocab_size",
             "num_embeddings")
_INNER_NAMES = re.compile(r"(moe_|expert_|shared_)*(intermediate|ffn|inner|mlp|expert|ff).*|d_ff|n_inner|hidden_features")
_OUTER_NAMES = ("hidden_size", "d_model", "n_embd", "n_embed", "embed_dim", "model_dim", "dim", "width")


def find_local_sizes(plan: ShardingPlan, inventory: Inventory, modules: Mapping) -> Dict[str, Dict[str, int]]:
    """`{boundary: {attribute, dotted from the boundary: its local value}}`.

    An attribute counts when the forward of its class reads it. Its value says which dim it counts: a size of cut dims
    only, or of whole dims only; where both have it, its name may say.

    Args:
        plan: with boundaries bound.
        inventory: the Cell's.
        modules: `{path: Cell}`.

    Raises:
        ValueError: an attribute may be either; names it, and the ways out.
    """
    held: Dict[str, List[ParameterSpec]] = {}
    boundary_of: Dict[str, str] = {}
    for spec in plan.parameters.values():
        for path in (spec.path,) + spec.aliases:
            owner = path.rpartition(".")[0]
            for module in _up(owner):
                held.setdefault(module, []).append(spec)
                if module in plan.boundaries:
                    boundary_of.setdefault(owner, module)
    found: Dict[str, Dict[str, int]] = {}
    for module, specs in held.items():
        boundary = boundary_of.get(module) or next((path for path in _up(module) if path in plan.boundaries), None)
        if boundary is None or not any(spec.slice_map.cuts for spec in specs):
            continue
        kind = plan.boundaries[boundary]
        is_leaf = any(spec.slice_map.cuts and module == path.rpartition(".")[0]
                      for spec in specs for path in (spec.path,) + spec.aliases)
        if kind.tp_divide_attrs is not None or kind.semantic_role == templates.STATE_SPACE or not (
                is_leaf or kind.semantic_role in (templates.MLP, templates.MOE)):
            continue
        known = _known(kind)
        for name, value in inventory.modules[module].counts.items():
            dotted = f"{module}.{name}"[len(boundary) + 1 if boundary else 0:]
            if (name,) not in attribute_chains(type(modules[module])) or _NO_WIDTH.fullmatch(name) and \
                    name not in _IN_NAMES or dotted in known:
                continue
            local = _local_value(f"{module}.{name}", name, value, specs, inventory)
            if local != value:
                found.setdefault(boundary, {})[dotted] = local
    return found


def apply_local_sizes(module, where: str, sizes: Mapping[str, int], tp: int) -> Callable[[], None]:
    """Write the local values, or none of them.

    A size that a configuration holds is written to a copy of it, which this module alone reads: the object itself is
    the whole model's.

    Returns:
        What undoes it.
    """
    changes, views = [], {}
    for name, local in sizes.items():
        owner_path, attr = transaction.split(name)
        owner = transaction.find(module, owner_path)
        if isinstance(owner, nn.Cell):
            changes.append(transaction.Change(owner, name, transaction.full_int(owner, attr), local))
        else:
            views.setdefault(owner_path, {})[attr] = local
    transaction.commit(transaction.pending(changes, where, tp))
    replaced = []
    for owner_path, local in views.items():
        holder_path, attr = transaction.split(owner_path)
        holder = transaction.find(module, holder_path)
        whole = getattr(holder, attr)
        view = copy.copy(whole)
        for name, value in local.items():
            object.__setattr__(view, name, value)
        object.__setattr__(holder, attr, view)
        replaced.append((holder, attr, whole))

    def undo():
        for holder, attr, whole in replaced:
            object.__setattr__(holder, attr, whole)
        restore_head_counts(module)

    return undo


def _up(path: str) -> Iterator[str]:
    """A module's path and those of the modules above it, innermost first."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _known(spec: ModuleShardingSpec) -> Set[str]:
    """Attributes that the head counts' rules have decided about."""
    counts = spec._tp_local_attr_plan
    return set() if counts is None else set(counts.auto_divide + counts.user_divide + tuple(dict(counts.targets)))


def _local_value(path: str, name: str, value: int, specs: List[ParameterSpec], inventory: Inventory) -> int:
    cut: Dict[int, int] = {}
    whole: Set[int] = set()
    for spec in specs:
        for dim, (size, local) in enumerate(zip(spec.shape, spec.local_shape)):
            is_cut = any(one.dim == dim for one in spec.slice_map.cuts) and not spec.first_rank_only
            if is_cut:
                cut[size] = local
            else:
                whole.add(size)
    if value not in cut:
        return value
    if value not in whole:
        return cut[value]
    is_cut = _cut_by_name(name, specs, inventory)
    if is_cut is None:
        raise ValueError(
            f"{path!r}: its forward reads {name} = {value}, which is a size that the plan cuts and one that it leaves "
            f"whole ({', '.join(f'{spec.path} {list(spec.shape)}' for spec in specs[:4])}), and nothing says which is "
            "meant: give the attribute a name that says it (intermediate_size, out_features), or say it with "
            f"auto_tp_config.overrides: [{{match: \"{path.rpartition('.')[0]}\", tp_divide_attrs: [{name}]}}], or "
            "tp_divide_attrs: [] if it stays as it is")
    return cut[value] if is_cut else value


def _cut_by_name(name: str, specs: List[ParameterSpec], inventory: Inventory) -> Optional[bool]:
    """Whether the dim that a name means is cut; None when the name means nothing."""
    matrices = [spec for spec in specs if len(spec.shape) == 2]
    if name in _OUT_NAMES + _IN_NAMES and len(matrices) == 1:
        layout = inventory.parameters[matrices[0].path].layout
        # a table's rows are what goes in; `[out, in]` unless it is said
        means_first_dim = (name in _IN_NAMES) == (layout in (TABLE, IN_OUT))
        return any(cut.dim == (0 if means_first_dim else 1) for cut in matrices[0].slice_map.cuts)
    if _INNER_NAMES.fullmatch(name):
        return True
    return False if name in _OUTER_NAMES else None
