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
"""One module's rewrite as a transaction: compute every change, then make all of them or none.

Whole values are recorded on the object that holds them (`_hp_full_head_counts` and its siblings), so that a repeat
recognises itself, a submodule shared by two modules is rewritten once, and `restore` needs no plan.
"""
import math
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Tuple

from hyper_parallel.distributed.tensor_parallel.head_count_derived import (
    DERIVED_SIZE_ATTRS, RATIO_ATTRS, HeadFacts, local_ratio, local_size, measured_widths, read_facts)
from hyper_parallel.distributed.tensor_parallel.head_count_facts import (
    _OPERATORS_ATTR, _ORIGINALS_ATTR, _RECORDS, _TP_LOCAL_ORIGINALS_ATTR, KV_HEAD_ATTRS, Q_HEAD_ATTRS, count_owners,
    find, full_int, recorded, walk)
from hyper_parallel.distributed.tensor_parallel.head_count_operators import count_args, find_operators, rebuild

HEAD_ATTRS = Q_HEAD_ATTRS + KV_HEAD_ATTRS


@dataclass(frozen=True)
class Change:
    """One attribute of one object: its whole value, its local one, and the record that keeps the whole one."""

    owner: Any
    name: str
    full: Any
    local: Any
    record: str = _ORIGINALS_ATTR

    @property
    def attr(self) -> str:
        """The attribute's name on its owner: the last part of the dotted name."""
        return split(self.name)[1]


def split(name: str) -> Tuple[str, str]:
    """`(path, attribute)` of a dotted name."""
    path, _, attr = name.rpartition(".")
    return path, attr


def join(path: str, attr: str) -> str:
    """The inverse of `split`."""
    return f"{path}.{attr}" if path else attr


def divisors(value: int) -> str:
    """The divisors of a positive number, as messages list them.

    Examples:
        >>> divisors(52)
        '1, 2, 4, 13, 26, 52'
    """
    return ", ".join(str(size) for size in range(1, value + 1) if value % size == 0)


def facts_by_path(module: Any, cut: Dict[str, bool], local: Dict[str, int]) -> Dict[str, Tuple[Any, HeadFacts]]:
    """`{path: (object, its facts)}` of the module and the submodules whose counts go with its heads.

    Args:
        module: the boundary's module.
        cut: `{relative name of a q/k/v weight: whether its output dim is cut}`.
        local: `{dotted name: local value}` of the counts that change.
    """
    found: Dict[str, Tuple[Any, HeadFacts]] = {}
    for path, owner in count_owners(module, cut):
        above = path
        while above and above not in found:
            above = split(above)[0]
        own_local = {split(name)[1]: value for name, value in local.items() if split(name)[0] == path}
        facts = read_facts(owner, own_local, found[above][1] if above in found else None)
        own_cut = {name: is_cut for name, is_cut in cut.items() if not path or name.startswith(f"{path}.")}
        facts.widths |= measured_widths(module, own_cut, facts)
        found[path] = (owner, facts)
    return found


def collect(module: Any, cut: Dict[str, bool]) -> Tuple[str, ...]:
    """Dotted names of the head counts, then of the sizes derived from them, object by object."""
    names: List[str] = []
    for path, (owner, facts) in facts_by_path(module, cut, {}).items():
        names += [join(path, attr) for attr in HEAD_ATTRS if (full_int(owner, attr) or 0) > 0]
        names += [join(path, attr) for attr in DERIVED_SIZE_ATTRS
                  if full_int(owner, attr) is not None and local_size(attr, full_int(owner, attr), facts) is not None]
    return tuple(names)


def full_values(module: Any, where: str, names: Iterable[str]) -> Dict[str, int]:
    """`{dotted name: whole value}`.

    Raises:
        ValueError: the module has no such attribute: the plan was made for another class.
    """
    full = {}
    for name in names:
        path, attr = split(name)
        full[name] = full_int(find(module, path), attr)
        if full[name] is None:
            raise ValueError(f"{where}: the plan divides {name}, but {type(module).__name__} holds no plain int there; "
                             "plan this module again")
    return full


def compute(module: Any, where: str, plan: Any, tp_size: int, cut: Dict[str, bool], *,
            with_operators: bool) -> List[Change]:
    """Every change that a plan means for a module, those already made included; nothing is written.

    Args:
        module: the boundary's module.
        where: its name, for messages.
        plan: a TpLocalAttrPlan.
        tp_size: the size of the tp axis, above 1.
        cut: `{relative name of a q/k/v weight: whether its output dim is cut}`.
        with_operators: whether operators that were built with a head count are rebuilt.

    Raises:
        ValueError: a value has no whole local one, the plan does not fit the module, or an operator cannot be rebuilt.
    """
    twice = [name for name in plan.user_divide if name in plan.auto_divide or name in dict(plan.targets)]
    if twice:
        raise ValueError(f"{where}: {twice[0]} is in tp_divide_attrs and would be divided automatically as well; take "
                         "it out of tp_divide_attrs")
    full = full_values(module, where, dict.fromkeys([*plan.auto_divide, *dict(plan.targets)]))
    local = _local_counts(where, full, dict(plan.targets), tp_size)
    by_path = facts_by_path(module, cut, local)
    try:
        local.update(_local_sizes({name: value for name, value in full.items() if name not in local}, by_path,
                                  _copies(full, local, tp_size), tp_size))
        changes = [Change(find(module, split(name)[0]), name, value, local[name]) for name, value in full.items()]
        for path, (owner, facts) in by_path.items():
            changes += _ratio_changes(path, owner, facts, plan.user_divide)
            if with_operators:
                changes += _operator_changes(path, owner, facts, tp_size)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    changes += user_changes(module, where, plan.user_divide, tp_size)
    return changes


def user_changes(module: Any, where: str, names: Iterable[str], tp_size: int) -> List[Change]:
    """The changes of attributes that the user listed."""
    changes = []
    for name, full in full_values(module, where, names).items():
        if full % tp_size:
            raise ValueError(f"{where}: tp size {tp_size} does not divide {name}={full} of tp_divide_attrs; valid tp "
                             f"sizes are {divisors(full)}")
        changes.append(Change(module, name, full, full // tp_size, _TP_LOCAL_ORIGINALS_ATTR))
    return changes


def _local_counts(where: str, full: Dict[str, int], targets: Dict[str, int], tp_size: int) -> Dict[str, int]:
    """`{dotted name: local value}` of the head counts and of whatever has a target."""
    local = dict(targets)
    counts = {name: value for name, value in full.items() if split(name)[1] in HEAD_ATTRS}
    for name, value in counts.items():
        for known, target in targets.items():
            if full[known] == value and _is_kv(known) == _is_kv(name) and split(known)[1] in HEAD_ATTRS:
                local.setdefault(name, target)
    plain = {name: value for name, value in counts.items() if name not in local}
    for name, value in plain.items():
        if value % tp_size:
            raise ValueError(f"{where}: {name}={value} cannot be divided by tp size {tp_size}; valid tp sizes are "
                             f"{divisors(math.gcd(*plain.values()))}. {_ways_out(name, value, counts, tp_size)}")
        local[name] = value // tp_size
    return local


def _is_kv(name: str) -> bool:
    return split(name)[1] in KV_HEAD_ATTRS


def _ways_out(name: str, value: int, counts: Dict[str, int], tp_size: int) -> str:
    text = ("Change parallel_config.model_parallel, or keep the projections of this module whole with an entry in "
            "auto_tp_config.overrides (replicate: true)")
    queries = [count for other, count in counts.items() if not _is_kv(other)]
    if _is_kv(name) and tp_size % value == 0 and all(count % tp_size == 0 for count in queries):
        text += (", or set auto_tp_config.kv_replication: true, which gives every key/value head to "
                 f"{tp_size // value} ranks")
    return text


def _copies(full: Dict[str, int], local: Dict[str, int], tp_size: int) -> bool:
    """True when some count is not a plain quotient: key/value heads are copied."""
    return any(value != local[name] * tp_size for name, value in full.items() if name in local)


def _local_sizes(sizes: Dict[str, int], by_path: Dict[str, Tuple[Any, HeadFacts]], copies: bool,
                 tp_size: int) -> Dict[str, int]:
    """Local values of derived sizes: proven ones by their counts, the others by plain division.

    The proof can be gone when a plan is applied (the parameters are cut already), which does no harm as long as every
    count is a plain quotient.
    """
    local = {}
    for name, value in sizes.items():
        path, attr = split(name)
        local[name] = local_size(attr, value, by_path[path][1]) if path in by_path else None
        if local[name] is None:
            if value % tp_size or (copies and set(DERIVED_SIZE_ATTRS.get(attr, ())) - {"q"}):
                raise ValueError(f"{name}={value} has no plain quotient by tp size {tp_size}, and no head count times "
                                 "a width explains it; name its local value in the plan's targets")
            local[name] = value // tp_size
    return local


def _ratio_changes(path: str, owner: Any, facts: HeadFacts, user_names: Iterable[str]) -> List[Change]:
    changes = []
    for attr in RATIO_ATTRS:
        full = full_int(owner, attr)
        if full is not None and join(path, attr) not in user_names:
            local = local_ratio(full, facts)
            if local not in (None, full):
                changes.append(Change(owner, join(path, attr), full, local))
    return changes


def _operator_changes(path: str, owner: Any, facts: HeadFacts, tp_size: int) -> List[Change]:
    changes = []
    for attr, operator in find_operators(owner):
        original = recorded(owner, _OPERATORS_ATTR).get(attr, operator)
        whole, local = count_args(attr, original), {}
        for arg, value in whole.items():
            known = dict((facts.kv or facts.q) if arg in KV_HEAD_ATTRS else facts.q)
            if value not in known and value % tp_size:
                raise ValueError(f"operator {join(path, attr)} was built with {arg}={value}, which tp size {tp_size} "
                                 f"does not divide; valid tp sizes are {divisors(value)}. Change "
                                 "parallel_config.model_parallel, or give the boundary a local_compute_fn")
            local[arg] = known.get(value, value // tp_size)
        if local != whole:
            changes.append(Change(owner, join(path, attr), original, rebuild(original, local), _OPERATORS_ATTR))
    return changes


def pending(changes: Iterable[Change], where: str, tp_size: int) -> List[Change]:
    """The changes that are still to be made.

    Raises:
        ValueError: one was made before, with another result: for another tp size.
    """
    def shown(change, value):
        return count_args(change.attr, value) if change.record == _OPERATORS_ATTR else value

    left = []
    for change in changes:
        current = shown(change, getattr(change.owner, change.attr))
        if change.attr not in recorded(change.owner, change.record):
            left.append(change)
        elif current != shown(change, change.local):
            raise ValueError(f"{where}: {change.name} was rewritten already: original {shown(change, change.full)}, "
                             f"current {current}, expected {shown(change, change.local)} at tp size {tp_size}; call "
                             "restore_head_counts first")
    return left


def commit(changes: List[Change]) -> int:
    """Makes all changes, or none; returns how many attributes got another value."""
    begun = []
    try:
        for change in changes:
            begun.append(change)
            record = recorded(change.owner, change.record)
            setattr(change.owner, change.record, {**record, change.attr: change.full})
            setattr(change.owner, change.attr, change.local)
    except Exception:
        for change in reversed(begun):
            _put_back(change.owner, change.record, change.attr)
        raise
    return sum(change.full is not change.local and change.full != change.local for change in changes)


def restore(module: Any) -> None:
    """Puts every recorded value of the module and of everything below it back, and forgets the records."""
    for _, owner in walk(module):
        for record in _RECORDS:
            for attr in list(recorded(owner, record)):
                _put_back(owner, record, attr)


def _put_back(owner: Any, record: str, attr: str) -> None:
    whole = dict(recorded(owner, record))
    if attr not in whole:
        return
    full = whole.pop(attr)
    # A count that the class holds was shadowed on the instance; uncovering it leaves the instance as it was.
    if attr in getattr(owner, "__dict__", ()) and getattr(type(owner), attr, owner) is full:
        delattr(owner, attr)
    elif getattr(owner, attr) is not full:
        setattr(owner, attr, full)
    if whole:
        setattr(owner, record, whole)
    else:
        delattr(owner, record)
