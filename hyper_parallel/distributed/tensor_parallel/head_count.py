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
"""Rewrites cached head counts where a forward sees local tensors.

`q.view(b, s, self.num_heads, self.head_dim)` needs the count of one rank once q is cut. The counts are ints that module
instances cached in `__init__`; they are rewritten there, never in the config, which others read as the whole model's.
Production mode rewrites every head-sharded module; validate mode only its local regions, because an ordinary boundary
dispatches on the global shape there.

A module's rewrite is one transaction: counts, sizes derived from them, group ratios, counts of submodules and operators
built with a count change together or not at all. `restore_head_counts` is its inverse.
"""
import keyword
import logging
import numbers
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hyper_parallel.distributed.tensor_parallel import head_count_transaction as transaction
from hyper_parallel.distributed.tensor_parallel.head_count_facts import (  # re-exported: names that others import
    KV_HEAD_ATTRS, Q_HEAD_ATTRS, _ORIGINALS_ATTR, _QKV_WEIGHT_SUFFIXES, _TP_LOCAL_ORIGINALS_ATTR, cut_projections,
    full_int, is_plain_int as _is_plain_int, projection_kind, recorded)

__all__ = ["KV_HEAD_ATTRS", "Q_HEAD_ATTRS", "TpLocalAttrPlan", "build_tp_local_attr_plan", "collect_auto_head_attrs",
           "maybe_update_head_counts", "normalize_tp_divide_attrs", "restore_head_counts", "update_module_head_counts"]

_FORBIDDEN_USER_ATTRS = frozenset(("head_dim", "attention_head_size", "head_size", "num_key_value_groups", "training",
                                   "dtype", "device"))
_FORBIDDEN_PREFIX = "_hp_"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TpLocalAttrPlan:
    """Which int attributes of one module become local, as plain data.

    A name is relative to the module and dotted where a submodule holds the attribute (`core_attention.head_num`).

    Args:
        auto_divide: head counts and sizes derived from them, which the tp size divides.
        user_divide: attributes that the user listed in `tp_divide_attrs`.
        targets: `(name, exact local value)`, for values that are no plain quotient: with key/value heads copied,
            `max(1, K // tp)`. A target wins over `auto_divide`, and holds for every count of the same list that had the
            same whole value.

    Examples:
        >>> TpLocalAttrPlan(auto_divide=("num_heads",), targets=(("num_key_value_heads", 1),))
        TpLocalAttrPlan(auto_divide=('num_heads',), user_divide=(), targets=(('num_key_value_heads', 1),))
    """

    auto_divide: Tuple[str, ...] = ()
    user_divide: Tuple[str, ...] = ()
    targets: Tuple[Tuple[str, int], ...] = ()


def _tp_degree(mesh: Any, mesh_dim_names: Sequence[str]) -> int:
    """The size of the mesh's tp axis; 1 when it has none."""
    names = tuple(mesh_dim_names or ())
    if "tp" not in names:
        return 1
    axis = names.index("tp")
    readings = (lambda: mesh.mesh_shape[axis], lambda: mesh.size("tp"), lambda: mesh.size(axis),
                lambda: mesh["tp"].size(), lambda: mesh.shape[axis])
    for reading in readings:
        try:
            size = reading()
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            continue  # another kind of mesh
        if isinstance(size, numbers.Integral) and not isinstance(size, bool):
            return int(size)
    raise ValueError(f"{type(mesh).__name__} does not tell the size of its tp axis: it needs size('tp'), size({axis}), "
                     "mesh_shape or shape")


def _is_head_sharded(spec: Any, mesh_dim_names: Sequence[str], module: Any = None) -> bool:
    """True when the spec cuts the output dim of a q/k/v projection along the tp axis.

    Args:
        spec: a ModuleShardingSpec; None, or one without params, is not head-sharded.
        mesh_dim_names: the mesh's axes.
        module: the boundary's module. With it, the operators say whether weights are `[out, in]` or `[in, out]`;
            without it, only names that some class stores as Conv1D (`c_attn`, `q_attn`) may be cut along dim 1.
    """
    return any(cut_projections(spec, mesh_dim_names, module).values())


def update_module_head_counts(module: Any, tp_size: int, module_fqn: str = "", *, strict: bool = False) -> int:
    """Divides the module's cached head counts by the tp size.

    The whole values are kept in `module._hp_full_head_counts`. A repeat with the same tp size changes nothing.

    Args:
        module: a Cell, or any object with int attributes.
        tp_size: the size of the tp axis; 1 and less do nothing.
        module_fqn: the module's dotted name, for messages.
        strict: False is the plain form: only the module's own counts, each on its own, and one that tp does not divide
            is left with a warning. True is the transaction that the plan and the applier use.

    Returns:
        How many attributes were rewritten.

    Raises:
        ValueError: the counts were rewritten for another tp size; with `strict`, tp does not divide a count.

    Examples:
        >>> from types import SimpleNamespace
        >>> attention = SimpleNamespace(num_heads=8, num_key_value_heads=4, head_dim=16)
        >>> update_module_head_counts(attention, 2), attention.num_heads, attention.num_key_value_heads
        (2, 4, 2)
        >>> update_module_head_counts(attention, 2)
        0
    """
    if tp_size <= 1:
        return 0
    where = _where(module, module_fqn)
    if strict:
        changes = transaction.compute(module, where, TpLocalAttrPlan(transaction.collect(module, {})), tp_size, {},
                                      with_operators=True)
        return transaction.commit(transaction.pending(changes, where, tp_size))
    changes = []
    for attr in transaction.HEAD_ATTRS:
        full = full_int(module, attr)
        if full is None or full <= 0:
            continue
        if full % tp_size and attr not in recorded(module, _ORIGINALS_ATTR):
            _warn(f"{where}: {attr}={full} is left as it is: tp size {tp_size} does not divide it")
        changes.append(transaction.Change(module, attr, full, full if full % tp_size else full // tp_size))
    return transaction.commit(transaction.pending(changes, where, tp_size))


def collect_auto_head_attrs(module: Any, spec: Any, mesh_dim_names: Sequence[str]) -> Tuple[str, ...]:
    """The attributes that will be divided without the user's word.

    Returns:
        Head counts, then sizes derived from them, of the module and of the submodules that share its heads (dotted
        names). Empty when the spec cuts no q/k/v projection; many recent classes cache no count, which is fine.
    """
    cut = cut_projections(spec, mesh_dim_names, module)
    return transaction.collect(module, cut) if any(cut.values()) else ()


def normalize_tp_divide_attrs(attrs: Optional[Sequence[str]], *, module: Any, module_fqn: str,
                              tp_size: int) -> Tuple[str, ...]:
    """The user's `tp_divide_attrs` as a tuple, every entry checked against the module.

    Args:
        attrs: the user's list; None means none.
        module: the module that holds the attributes.
        module_fqn: its dotted name, for messages.
        tp_size: the size of the tp axis.

    Raises:
        ValueError: no list or tuple, or an entry that is no identifier, protected, named twice, missing, no plain int,
            not positive, or not divisible by the tp size.
    """
    if attrs is None:
        return ()
    where = _where(module, module_fqn)
    if not isinstance(attrs, (list, tuple)):
        raise ValueError(f"{where}: tp_divide_attrs is {attrs!r}; write a list of attribute names")
    seen: List[str] = []
    for attr in attrs:
        if not isinstance(attr, str) or not attr.isidentifier() or keyword.iskeyword(attr):
            raise ValueError(f"{where}: tp_divide_attrs has {attr!r}, which is no attribute name")
        if attr in _FORBIDDEN_USER_ATTRS or attr.startswith(_FORBIDDEN_PREFIX):
            raise ValueError(f"{where}: tp_divide_attrs has {attr!r}, which is protected: widths per head, ratios and "
                             f"the module's own state never depend on tp ({', '.join(sorted(_FORBIDDEN_USER_ATTRS))} "
                             f"and names that start with {_FORBIDDEN_PREFIX})")
        if attr in seen:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r} twice")
        value = full_int(module, attr)
        if value is None:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r}, but the module holds no plain int of that "
                             f"name ({getattr(module, attr, 'no such attribute')!r})")
        if value <= 0:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r}, but {attr}={value} is not positive")
        if value % tp_size:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r}, but tp size {tp_size} does not divide "
                             f"{attr}={value}; valid tp sizes are {transaction.divisors(value)}. Change "
                             f"parallel_config.model_parallel, or take {attr} out of tp_divide_attrs")
        seen.append(attr)
    return tuple(seen)


def build_tp_local_attr_plan(module: Any, spec: Any, module_fqn: str, tp_size: int, mesh_dim_names: Sequence[str], *,
                             kv_replication: bool = False,
                             targets: Sequence[Tuple[str, int]] = ()) -> TpLocalAttrPlan:
    """Decides, before anything is cut, which attributes of a module become local.

    Args:
        module: the boundary's module, with whole parameters.
        spec: its ModuleShardingSpec; `tp_divide_attrs` is the user's list.
        module_fqn: its dotted name, for messages.
        tp_size: the size of the tp axis.
        mesh_dim_names: the mesh's axes.
        kv_replication: key/value heads fewer than tp are copied: their local count is 1, written to `targets`.
        targets: exact local values that the caller knows; see `TpLocalAttrPlan`.

    Returns:
        The plan. A size that the user lists is the user's even where it could be proven; a head count is not.

    Raises:
        ValueError: a count cannot be divided, the user lists what is divided anyway or what cannot be divided, the
            projections are cut in a way that no head count describes, or an operator cannot be rebuilt.

    Examples:
        >>> build_tp_local_attr_plan(attention, spec, "model.layers.0.self_attn", 8, ("tp",),       # doctest: +SKIP
        ...                          kv_replication=True)
        TpLocalAttrPlan(auto_divide=('num_heads',), user_divide=(), targets=(('num_key_value_heads', 1),))
    """
    where = _where(module, module_fqn)
    user = normalize_tp_divide_attrs(getattr(spec, "tp_divide_attrs", None), module=module, module_fqn=module_fqn,
                                     tp_size=tp_size)
    cut = cut_projections(spec, mesh_dim_names, module)
    auto = collect_auto_head_attrs(module, spec, mesh_dim_names)
    for attr in user:
        if attr in auto and attr in transaction.HEAD_ATTRS:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r}, a head count that is divided automatically; "
                             f"take it out of tp_divide_attrs (automatic here: {', '.join(auto)})")
    exact = dict(targets)
    if tp_size > 1 and any(cut.values()):
        exact.update(_kv_targets(module, where, auto, exact, cut, tp_size, kv_replication))
        changes = transaction.compute(module, where, TpLocalAttrPlan(auto, (), tuple(exact.items())), tp_size, cut,
                                      with_operators=True)
        exact.update({change.name: change.local for change in changes
                      if change.name in auto and change.full != change.local * tp_size})
    for attr in user:
        if attr in exact:
            raise ValueError(f"{where}: tp_divide_attrs names {attr!r}, but its local value is {exact[attr]}, not its "
                             f"quotient by tp size {tp_size}: key/value heads are copied; take it out of "
                             "tp_divide_attrs")
    return TpLocalAttrPlan(tuple(name for name in auto if name not in user and name not in exact), user,
                           tuple(exact.items()))


def maybe_update_head_counts(module: Any, spec: Any, module_fqn: str, mesh: Any, mesh_dim_names: Sequence[str]) -> None:
    """Makes a module's cached ints local, as its plan says, in one transaction.

    Args:
        module: the boundary's module.
        spec: its ModuleShardingSpec. `spec._tp_local_attr_plan` is applied; without one, what
            `build_tp_local_attr_plan` decides now, which can measure widths only while the parameters are whole.
        module_fqn: its dotted name, for messages.
        mesh: the device mesh; without a tp axis, or with one of size 1, nothing happens.
        mesh_dim_names: the mesh's axes.

    Raises:
        ValueError: see `build_tp_local_attr_plan`; the module was rewritten for another tp size. Nothing is changed.
    """
    tp_size = _tp_degree(mesh, mesh_dim_names)
    if tp_size <= 1:
        return
    where = _where(module, module_fqn)
    plan = getattr(spec, "_tp_local_attr_plan", None)
    if plan is None:
        plan = build_tp_local_attr_plan(module, spec, module_fqn, tp_size, mesh_dim_names)
    cut = cut_projections(spec, mesh_dim_names, module)
    with_heads = any(cut.values()) or bool(plan.auto_divide or plan.targets)
    changes = transaction.compute(module, where, plan, tp_size, cut, with_operators=with_heads)
    transaction.commit(transaction.pending(changes, where, tp_size))


def restore_head_counts(module: Any) -> None:
    """Undoes every rewrite of this file on a module and on everything below it.

    Values, operators (the same objects) and the set of attributes are as they were before the first rewrite. A module
    that was never rewritten stays as it is.
    """
    transaction.restore(module)


def _update_user_tp_attrs(module: Any, attrs: Sequence[str], tp_size: int, module_fqn: str = "") -> int:
    """Divides the attributes that the user listed; whole values are kept in `module._hp_full_tp_local_attrs`.

    Returns:
        How many attributes were rewritten; a repeat with the same tp size gives 0.

    Raises:
        ValueError: see `normalize_tp_divide_attrs`; a repeat with another tp size.
    """
    if tp_size <= 1:
        return 0
    names = normalize_tp_divide_attrs(attrs, module=module, module_fqn=module_fqn, tp_size=tp_size)
    where = _where(module, module_fqn)
    changes = transaction.user_changes(module, where, names, tp_size)
    return transaction.commit(transaction.pending(changes, where, tp_size))


def _where(module: Any, module_fqn: str) -> str:
    return module_fqn or type(module).__name__


def _warn(message: str) -> None:
    # The log is what remains of a rank's output; the warning is what a caller can filter or turn into an error.
    logger.warning(message)
    warnings.warn(message, stacklevel=3)


def _kv_targets(module: Any, where: str, auto: Sequence[str], exact: Dict[str, int], cut: Dict[str, bool], tp_size: int,
                kv_replication: bool) -> Dict[str, int]:
    """Exact local values of the key/value counts that are no quotients.

    With the query projections cut, whole key/value projections are right for a single head only: a rank's query heads
    would have to find their own key/value heads among all of them.
    """
    kinds_cut = {projection_kind(name) for name, is_cut in cut.items() if is_cut}
    whole = {kind: [name for name, is_cut in cut.items() if not is_cut and projection_kind(name) == kind]
             for kind in ("q", "kv")}
    counts = {name: value for name, value in transaction.full_values(module, where, auto).items()
              if transaction.split(name)[1] in KV_HEAD_ATTRS and name not in exact}
    found = {}
    for name, value in counts.items():
        if whole["kv"] and value > 1 or whole["q"] and kinds_cut == {"kv"}:
            raise ValueError(f"{where}: {', '.join(whole['kv'] or whole['q'])} stays whole on the tp axis and the "
                             f"other q/k/v projections are cut, which no local value of {name}={value} describes at "
                             f"tp size {tp_size}; cut all of them or none (auto_tp_config.overrides)")
        if whole["kv"] or kv_replication and value < tp_size and tp_size % value == 0:
            found[name] = 1
    return found
