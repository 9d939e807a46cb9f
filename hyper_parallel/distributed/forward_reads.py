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
import re
from functools import lru_cache
from typing import Dict, FrozenSet, Iterator, Mapping, Optional, Sequence, Set, Tuple

from mindspore import nn

from hyper_parallel.distributed.forward_flow import Flow
from hyper_parallel.distributed.forward_source import syntax_of
from hyper_parallel.distributed.forward_values import WIDTH, integers
from hyper_parallel.distributed.model_facts import CONFIG_KEYS
from hyper_parallel.distributed.recipe_spec import ModuleShardingSpec, ShardingPlan
from hyper_parallel.distributed.tensor_parallel import templates
from hyper_parallel.distributed.tensor_parallel.head_count import TpLocalAttrPlan
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

# sizes of one head and places in a list, which stay what they are
_NOT_COUNTS = re.compile(r".*head_(dim|size)|.*size_per_head|kv_channels|d_head|d_kv|dim_head|key_value_proj_dim|"
                         r".*_rank|layer_(idx|id|number|index)|nope|rope|qk_(nope|rope).*|v_dim")
_CONFIG_COUNTS = tuple(key.rpartition(".")[2] for field in ("heads", "kv_heads") for key in CONFIG_KEYS[field])
_NOT_FORWARD = ("__init__", "__repr__", "extend_repr", "reset_parameters", "init_weights")


def is_size_of_one_head(name: str) -> bool:
    """True for attributes that stay what they are however many heads a rank has."""
    return _NOT_COUNTS.fullmatch(name) is not None


@lru_cache(maxsize=None)
def attribute_chains(module_class: type) -> FrozenSet[Tuple[str, ...]]:
    """Attribute chains on `self` that a class reads in its forward: `self.wte.weight` is `("wte", "weight")`.

    Methods of MindSpore's own Cell are left out; a method whose source cannot be had says nothing.
    """
    return frozenset(chain for tree in trees_of_forward(module_class) for chain in _chains_of(tree))


def trees_of_forward(module_class: type) -> Iterator[ast.AST]:
    """The syntax of every method that may run in a forward; of MindSpore's own Cell there is none."""
    for owner in module_class.__mro__:
        if owner in nn.Cell.__mro__:
            continue
        for name, method in vars(owner).items():
            if name not in _NOT_FORWARD and inspect.isfunction(method):
                yield _tree_of(method)


def chains_of(method) -> Set[Tuple[str, ...]]:
    """Attribute chains on `self` in one method; empty where its source cannot be had."""
    return _chains_of(_tree_of(method))


def _chains_of(tree: ast.AST) -> Set[Tuple[str, ...]]:
    found = set()
    for node in ast.walk(tree):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id == "self":
            found.add(tuple(reversed(chain)))
    return found


def local_head_sizes(path: str, module, heads: Sequence[int], tp: int, local: Optional[TpLocalAttrPlan],
                     spec: ModuleShardingSpec, flow: Optional[Flow]) -> Dict[str, int]:
    """Sizes of all heads that an attention's forward reads and that the head counts' own rules do not make local.

    What the forward uses only as a size of this rank's heads (`context.reshape(b, s, self.hidden_size)` behind the
    projections) is proven to be one, and so is `self.config.num_attention_heads` in such a place.

    Args:
        path: of the attention.
        module: the Cell.
        heads: (heads, kv heads, head size), of the whole.
        tp: size of the axis.
        local: the attributes that become local.
        spec: its boundary; `tp_divide_attrs`, even empty, is the user's word and ends the matter.
        flow: how the forward uses its sizes; None where it cannot be read.

    Returns:
        `{attribute, dotted from the module: its local value}`.

    Raises:
        ValueError: nothing proves what a number is, or the forward divides a whole width by a local count; names the
            attribute, its value and the override that decides it.
    """
    if spec.tp_divide_attrs is not None:
        return {}
    number, kv_number, size = heads
    local_kv = max(1, kv_number // tp)
    whole = {kv_number * size: ("width of all kv heads", local_kv * size),
             number * size: ("width of all heads", number // tp * size),
             kv_number: ("kv heads", local_kv), number: ("heads", number // tp)}
    made_local = set(local.auto_divide + local.user_divide + tuple(dict(local.targets))) if local else set()
    counts_heads = any(_value_of(module, name) == number for name in made_local)
    read = {".".join(chain) for chain in attribute_chains(type(module))}
    if flow is not None:
        read |= flow.local_ints | flow.other_ints
    found: Dict[str, int] = {}
    for name in sorted(read):
        value, leaf = _value_of(module, name), name.rpartition(".")[2]
        is_config = _is_of_config(module, name)
        if value not in whole or name in made_local or is_size_of_one_head(leaf) or ("." in name and not is_config):
            continue
        is_other_count = leaf not in _CONFIG_COUNTS if is_config else counts_heads
        if value in (number, kv_number) and is_other_count:
            continue  # the heads are counted by another attribute, so that this number means something else
        if flow is not None and name in flow.local_ints and name not in flow.other_ints:
            found[name] = whole[value][1]
        elif flow is None or name in flow.local_ints or not is_config or leaf in _CONFIG_COUNTS:
            _refuse(path, name, value, whole[value][0])
    if flow is not None:
        _check_widths(path, flow, made_local | set(found))
    return found


def _value_of(module, name: str):
    """The integer at a dotted name, or None."""
    value = module
    for segment in name.split("."):
        value = getattr(value, segment, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_of_config(module, name: str) -> bool:
    """The name leads through an object that is no Cell."""
    first, _, rest = name.partition(".")
    return bool(rest) and not isinstance(getattr(module, first, None), nn.Cell)


def _refuse(path: str, name: str, value: int, what: str):
    ways = (f"[{{match: \"{path}\", tp_divide_attrs: [{name}]}}], or tp_divide_attrs: [] if it stays as it is"
            if "." not in name else f"[{{match: \"{path}.*\", replicate: true}}], or let the forward read an attribute "
            "of the module (self.num_heads) instead of the configuration")
    raise ValueError(f"{path!r}: its forward reads self.{name} = {value}, which is its {what}, and nothing says whether "
                     f"it is to be divided by the tensor parallel size. Say it with auto_tp_config.overrides: {ways}")


def _check_widths(path: str, flow: Flow, made_local: Set[str]):
    """The width of the region's input is no size of this rank's heads."""
    if flow.local_widths:
        raise ValueError(
            f"{path!r}: line {min(flow.local_widths)} of its forward gives this rank's heads a size that was read from "
            "the shape of the whole input: write it by the heads (self.num_heads * self.head_dim, or -1), or keep it "
            f"whole with auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
    for divided, by, line in sorted(flow.quotients, key=lambda one: one[2]):
        counts = {tag for tag in integers(by) if tag in made_local}
        sizes = integers(divided)
        if counts and (WIDTH in divided or sizes and not sizes & made_local):
            raise ValueError(
                f"{path!r}: line {line} of its forward divides "
                f"{', '.join(f'self.{name}' for name in sorted(sizes)) or 'the width of its input'} by "
                f"self.{min(counts)}, which becomes the count of this rank's heads: keep the head size as an attribute"
                " (self.head_dim), or keep the module whole with auto_tp_config.overrides: "
                f"[{{match: \"{path}.*\", replicate: true}}]")


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


_LOSSES = ("cross_entropy", "softmax_cross_entropy", "nll_loss", "log_softmax", "CrossEntropyLoss", "NLLLoss",
           "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "LogSoftmax")


def check_own_loss(plan: ShardingPlan, modules: Mapping):
    """Refuse loss parallel for a model that computes its loss in a forward around the head: it would see a part of the
    logits.

    Raises:
        ValueError: names the module, what it calls, and two ways out.
    """
    for head, spec in plan.boundaries.items():
        if spec.semantic_role != templates.LM_HEAD:
            continue
        for parent, _ in _ancestors(head):
            found = sorted(_called_names(type(modules[parent])) & set(_LOSSES)) or sorted(
                name for name, child in modules[parent].name_cells().items() if isinstance(child, nn.LossBase))
            if found:
                raise ValueError(
                    f"loss_parallel: {type(modules[parent]).__name__} ({parent or 'the model'}) computes a loss in its own "
                    f"forward ({found[0]}), where it would see this rank's part of the logits of {head!r}: let it return "
                    "the logits, and compute the loss with hp.VocabParallelCrossEntropy(model); or set "
                    "auto_tp_config.loss_parallel: false")


@lru_cache(maxsize=None)
def _called_names(module_class: type) -> FrozenSet[str]:
    """The last names of everything that a class calls outside of `__init__`: `ops.cross_entropy(x)` calls
    `cross_entropy`."""
    names = set()
    for owner in module_class.__mro__:
        if owner in nn.Cell.__mro__:
            continue
        for name, method in vars(owner).items():
            if name == "__init__" or not inspect.isfunction(method):
                continue
            for node in ast.walk(_tree_of(method)):
                if isinstance(node, ast.Call):
                    called = node.func
                    names.add(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return frozenset(names)


def _tree_of(method):
    """Its syntax; an empty module where the source cannot be had."""
    try:
        return syntax_of(method)
    except (OSError, TypeError, SyntaxError):
        return ast.parse("")


def _ancestors(path: str):
    """(path of a module above, the attribute chain from it) for each module above a parameter."""
    segments = path.split(".")
    for depth in range(len(segments)):
        yield ".".join(segments[:depth]), tuple(segments[depth:])
