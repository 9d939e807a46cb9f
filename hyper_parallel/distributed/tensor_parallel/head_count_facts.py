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
"""What a module and its spec say about heads: the names of cached counts, the projections, the owners of counts.

Nothing here changes anything; `head_count` decides and writes.
"""
import functools
import inspect
from typing import Any, Dict, List, Sequence, Tuple

from mindspore import nn

Q_HEAD_ATTRS = ("num_heads", "num_attention_heads", "n_heads", "num_attn_heads", "n_head", "heads", "num_head",
                "head_num", "nhead", "attention_heads", "num_q_heads", "num_query_heads", "n_q_heads", "n_local_heads",
                "num_v_heads", "num_index_heads", "index_n_heads")
"""Names that classes cache the count of query heads under; of a gated-delta layer's two counts, the larger one."""

KV_HEAD_ATTRS = ("num_key_value_heads", "num_kv_heads", "kv_heads", "kv_num_heads", "n_kv_heads", "n_kv_head",
                 "num_query_groups", "num_kv_head", "kv_head_num", "n_local_kv_heads", "num_multi_query_groups",
                 "num_k_heads")
"""Names that classes cache the count of key/value heads under (`num_query_groups`: MindFormers, Megatron)."""

_ORIGINALS_ATTR = "_hp_full_head_counts"
_TP_LOCAL_ORIGINALS_ATTR = "_hp_full_tp_local_attrs"
_OPERATORS_ATTR = "_hp_full_head_operators"
_RECORDS = (_ORIGINALS_ATTR, _TP_LOCAL_ORIGINALS_ATTR, _OPERATORS_ATTR)

_Q_PROJECTIONS = ("q_proj", "q_b_proj", "q_up_proj", "linear_q", "linear_qb", "linear_q_up_proj", "linear_q_proj",
                  "wq", "query", "query_proj", "q", "q_lin", "q_linear", "to_q", "project_q", "q_attn")
_KV_PROJECTIONS = ("k_proj", "v_proj", "k_b_proj", "v_b_proj", "kv_proj", "kv_b_proj", "linear_k", "linear_v",
                   "linear_kv", "linear_kvb", "linear_kv_up_proj", "linear_k_proj", "linear_v_proj", "wk", "wv", "key",
                   "value", "key_proj", "value_proj", "k", "v", "k_lin", "v_lin", "k_linear", "v_linear", "to_k",
                   "to_v", "to_kv", "project_k", "project_v")
_FUSED_PROJECTIONS = ("qkv_proj", "qkv", "fused_qkv", "linear_qkv", "query_key_value", "wqkv", "w_qkv", "w_pack",
                      "c_attn", "to_qkv", "att_proj", "in_proj_qkvz")
# GPT-2 stores these two as Conv1D, [in, out]; GPT-BigCode as Linear, [out, in].
_CONV1D_PROJECTIONS = ("c_attn", "q_attn")

_KIND_OF_SUFFIX = {**{f"{name}.weight": "q" for name in _Q_PROJECTIONS},
                   **{f"{name}.weight": "kv" for name in _KV_PROJECTIONS},
                   **{f"{name}.weight": "qkv" for name in _FUSED_PROJECTIONS}, "in_proj_weight": "qkv"}

_QKV_WEIGHT_SUFFIXES = tuple(_KIND_OF_SUFFIX)
"""Last parts of the names of q/k/v weights, in lower case; they are matched at a dot, so `linear_qkv` is not `qkv`."""


def is_plain_int(value: Any) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def cached_int(owner: Any, attr: str) -> Any:
    """The plain int that `owner.attr` holds, or None; a property is computed, not cached, and counts as None."""
    if isinstance(_of_class(type(owner), attr), property) or (attr not in getattr(owner, "__dict__", ())
                                                              and _is_absent(type(owner), attr)):
        return None
    value = getattr(owner, attr, None)
    return value if is_plain_int(value) else None


@functools.lru_cache(maxsize=None)
def _of_class(cls: type, attr: str) -> Any:
    return inspect.getattr_static(cls, attr, None)


@functools.lru_cache(maxsize=None)
def _answers_any_name(cls: type) -> bool:
    """It computes attributes on demand; what a Cell finds so are its parameters and children, which are no numbers."""
    own = getattr(cls, "__getattr__", None)
    return own is not None and own is not getattr(nn.Cell, "__getattr__")


def recorded(owner: Any, record: str) -> Dict[str, Any]:
    """One of the owner's records of whole values, `{attribute: value before the first rewrite}`; empty without one."""
    found = getattr(owner, "__dict__", {}).get(record)
    return found if isinstance(found, dict) else {}


def full_int(owner: Any, attr: str) -> Any:
    """The whole model's value of an attribute, rewritten or not; None when it holds no plain int."""
    own = getattr(owner, "__dict__", {})
    for record in (_ORIGINALS_ATTR, _TP_LOCAL_ORIGINALS_ATTR):
        if record in own and attr in recorded(owner, record):
            return recorded(owner, record)[attr]
    # asked for every known name on every module: most are not there
    return None if attr not in own and _is_absent(type(owner), attr) else cached_int(owner, attr)


@functools.lru_cache(maxsize=None)
def _is_absent(cls: type, attr: str) -> bool:
    return _of_class(cls, attr) is None and not _answers_any_name(cls)


def walk(module: Any) -> List[Tuple[str, Any]]:
    """`(dotted path, submodule)` of the module itself, path "", and of everything below it that is a Cell."""
    for method in ("cells_and_names", "named_modules"):
        if callable(getattr(type(module), method, None)):
            return [(path, cell) for path, cell in getattr(module, method)()]
    return [("", module)]


def parameters_of(module: Any) -> Dict[str, Any]:
    """`{dotted name: parameter}`, empty for a plain object."""
    for method in ("parameters_and_names", "named_parameters"):
        if callable(getattr(type(module), method, None)):
            return dict(getattr(module, method)())
    return {}


def find(module: Any, path: str) -> Any:
    """The object at a dotted path below the module, or None."""
    found = module
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    return dict(walk(module)).get(path) if found is None else found


def projection_kind(name: str) -> str:
    """"q", "kv" or "qkv" for the name of a q/k/v weight, else "".

    Examples:
        >>> projection_kind("self_attn.Wqkv.weight"), projection_kind("o_proj.weight")
        ('qkv', '')
    """
    parts = name.lower().replace(".base_layer.", ".").split(".")  # the wrapped linear of a LoRA layer
    return _KIND_OF_SUFFIX.get(".".join(parts[-2:]), "") or _KIND_OF_SUFFIX.get(parts[-1], "")


def output_dims(module: Any, name: str) -> Tuple[int, ...]:
    """Which dims of a projection's weight can be its output dim.

    The owner's operator layout decides when it is known: `Conv1D`, and a linear with `transpose_b=False`, store
    `[in, out]`; every other one `[out, in]`. Without an owner, the names that both layouts use may be either.
    """
    owner = find(module, name.rpartition(".")[0]) if module is not None and "." in name else None
    classes = [cls.__name__ for cls in type(owner).__mro__]
    if "Conv1D" in classes or getattr(owner, "transpose_b", None) is False:
        return (1,)
    is_linear = any(word in cls for cls in classes for word in ("Linear", "Dense"))
    if not is_linear and name.lower().split(".")[-2:-1] and name.lower().split(".")[-2] in _CONV1D_PROJECTIONS:
        return (0, 1)
    return (0,)


def cut_dim(named: Any, ndim: int) -> Any:
    """The dim, counted from 0, along which the tp axis cuts a tensor of `ndim` dims; None when it does not."""
    placement = (named or {}).get("tp")
    return placement.dim % ndim if placement is not None and placement.is_shard() else None


def cut_projections(spec: Any, mesh_dim_names: Sequence[str], module: Any = None) -> Dict[str, bool]:
    """The q/k/v weights that a spec lists.

    Returns:
        `{relative parameter name: whether the tp axis cuts its output dim}`.
    """
    if "tp" not in tuple(mesh_dim_names or ()):
        return {}
    # A q/k/v weight is a matrix: `ndim` 2 makes the dims -2 and -1 equal to 0 and 1.
    return {name: cut_dim(named, 2) in output_dims(module, name)
            for name, named in (getattr(spec, "params", None) or {}).items() if projection_kind(name)}


def count_owners(module: Any, cut: Dict[str, bool]) -> List[Tuple[str, Any]]:
    """The module and the submodules whose cached counts go with its heads, as `(path, object)`.

    A submodule belongs when one of its own projections is cut (a boundary drawn around several attentions), or when it
    holds no weight matrix at all (MindFormers' `core_attention`). One that holds whole matrices computes with whole
    heads (a sparse-attention indexer) and stays.
    """
    with_cut = {name[:at] for name, is_cut in cut.items() if is_cut for at, char in enumerate(name) if char == "."}
    with_matrix = {name[:at] for name, param in parameters_of(module).items()
                   if "weight" in name.rpartition(".")[2] and len(getattr(param, "shape", ())) >= 2
                   for at, char in enumerate(name) if char == "."}
    return [(path, owner) for path, owner in walk(module)
            if not path or path in with_cut or path not in with_matrix]
