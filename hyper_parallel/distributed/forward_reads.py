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
"""What a forward's source says that no parameter shows: sizes of all heads, and tables that are read outside of a lookup.

A plan cuts heads and vocabulary; code that still counts them whole would run and give wrong numbers. Where the source
can be read, such code is refused before anything is cut.
"""
import ast
import inspect
import textwrap
from functools import lru_cache
from typing import FrozenSet, Mapping, Optional, Sequence, Set, Tuple

from mindspore import nn

from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.head_count import TpLocalAttrPlan
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

# sizes of one head and places in a list, which stay what they are
_NOT_COUNTS = ("head_dim", "head_size", "attention_head_size", "size_per_head", "kv_channels", "d_head", "d_kv",
               "layer_idx", "layer_id", "layer_number", "layer_index")


@lru_cache(maxsize=None)
def attribute_chains(module_class: type) -> FrozenSet[Tuple[str, ...]]:
    """Attribute chains on `self` that a class reads outside of `__init__`: `self.wte.weight` is `("wte", "weight")`.

    Methods of MindSpore's own Cell are left out; a method whose source cannot be had says nothing.
    """
    chains = set()
    for owner in module_class.__mro__:
        if owner in nn.Cell.__mro__:
            continue
        for name, method in vars(owner).items():
            if name != "__init__" and inspect.isfunction(method):
                chains |= chains_of(method)
    return frozenset(chains)


def chains_of(method) -> Set[Tuple[str, ...]]:
    """Attribute chains on `self` in one method; empty where its source cannot be had."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return set()
    found = set()
    for node in ast.walk(tree):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id == "self":
            found.add(tuple(reversed(chain)))
    return found


def check_head_sizes(path: str, module, counts: Mapping[str, int], heads: Sequence[int],
                     local: Optional[TpLocalAttrPlan], spec: ModuleShardingSpec):
    """Refuse a forward that reads a size of all heads which nobody makes local.

    Args:
        path: of the attention.
        module: the Cell.
        counts: its plain integer attributes.
        heads: (heads, kv heads, head size), of the whole.
        local: the attributes that become local.
        spec: its boundary; `tp_divide_attrs`, even empty, is the user's word and ends the matter.

    Raises:
        ValueError: names the attribute, its value and the override that decides it.
    """
    if spec.tp_divide_attrs is not None:
        return
    number, kv_number, size = heads
    whole = {kv_number * size: "width of all kv heads", number * size: "width of all heads", kv_number: "kv heads",
             number: "heads"}
    made_local = set(local.auto_divide + local.user_divide + tuple(name for name, _ in local.targets)) if local else set()
    counts_heads = any(counts.get(name) == number for name in made_local)
    for chain in sorted(attribute_chains(type(module))):
        name = chain[0]
        if name not in counts or name in made_local or name in _NOT_COUNTS or counts[name] not in whole:
            continue
        if counts[name] in (number, kv_number) and counts_heads:
            continue  # the heads are counted by another attribute, so that this number means something else
        raise ValueError(
            f"{path!r}: its forward reads self.{name} = {counts[name]}, which is its {whole[counts[name]]}, and nothing "
            f"says whether it is to be divided by the tensor parallel size. Say it with auto_tp_config.overrides: "
            f"[{{match: \"{path}\", tp_divide_attrs: [{name}]}}], or tp_divide_attrs: [] if it stays as it is")


def check_tables(plan: ShardingPlan, modules: Mapping):
    """Refuse a head that multiplies by the embedding's table inside another module's forward: it has no boundary.

    Raises:
        ValueError: names the module that reads the table, and two ways out.
    """
    has_head = any(spec.semantic_role == templates.LM_HEAD for spec in plan.boundaries.values()) or any(
        spec.role == ParamRole.LM_HEAD.name for spec in plan.parameters.values())
    if has_head:
        return
    for path, spec in plan.boundaries.items():
        if spec.semantic_role != templates.EMBEDDING:
            continue
        for name in spec.params or ():
            for parent, chain in _ancestors(f"{path}.{name}" if path else name):
                if parent != path and chain in attribute_chains(type(modules[parent])):
                    raise ValueError(
                        f"{type(modules[parent]).__name__} ({parent or 'the model'}) reads self.{'.'.join(chain)}, the "
                        "embedding's table, in its own forward, and the plan cuts it over the vocabulary: let a Cell of "
                        "its own do it (self.lm_head = nn.Dense(…); self.lm_head.weight = the table), or keep the table "
                        f"whole with auto_tp_config.overrides: [{{match: \"{path}.{name}\", replicate: true}}]")


def _ancestors(path: str):
    """(path of a module above, the attribute chain from it) for each module above a parameter."""
    segments = path.split(".")
    for depth in range(len(segments)):
        yield ".".join(segments[:depth]), tuple(segments[depth:])
