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
"""Which modules own a contract: regions between column and row weights, embedding and head.

A region is closed at the innermost module that holds a complete set of parts. Where its column and row weights are not
side by side (BERT's `attention.self.query` and `attention.output.dense`, OPT's `fc1` and `fc2` beside the attention),
the module around them also adds residuals and norms; then the contract is split: activations enter at the column
weights' module and leave at the row weight.
"""
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from hyper_parallel.distributed.families import find_adapter
from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.tensor_parallel import evidence, parts, templates, words
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

_WRAPPER = ".base_layer"
REGION_KINDS = (templates.ATTENTION, templates.CROSS_ATTENTION, templates.MLP, templates.MOE, templates.STATE_SPACE)


@dataclass
class Boundary:
    """A module with a contract, and the parameters that belong to it.

    Args:
        path: of the module.
        kind: one of the kinds in `templates`.
        members: paths of the parameters whose contract this is.
        entries: modules at which activations enter; empty when that is the boundary itself.
        exits: row linears at which results leave; empty when that is the boundary itself.
    """

    path: str
    kind: str
    members: List[str] = field(default_factory=list)
    entries: Tuple[str, ...] = ()
    exits: Tuple[str, ...] = ()

    @property
    def is_split(self) -> bool:
        """Activations enter and leave at modules inside of it."""
        return bool(self.entries)

    def holds(self, path: str) -> bool:
        """The path lies between its entry and its exit."""
        inside = self.entries + self.exits if self.is_split else (self.path,)
        return any(path == module or path.startswith(f"{module}.") or not module for module in inside)


def find_boundaries(inventory: Inventory, decisions: Mapping[str, Decision],
                    kept_whole: Callable[[str], Optional[str]] = lambda path: None) -> Dict[str, Boundary]:
    """Boundaries by module path, in the inventory's order.

    A parameter that has no part in a region belongs to the innermost region that holds it (a norm on local heads), or
    to none (whole everywhere).

    Raises:
        ValueError: a region lacks its column or row weight.
    """
    found = _Regions(inventory, decisions, kept_whole).find()
    for path, decision in decisions.items():
        if decision.part in (parts.TOKENS, parts.HEAD) and not decision.factor and \
                decision.role in (ParamRole.EMBED, ParamRole.LM_HEAD):
            kind = templates.EMBEDDING if decision.part == parts.TOKENS else templates.LM_HEAD
            region = decision.region
            if kind == templates.LM_HEAD and decision.part == parts.HEAD and path.rpartition(".")[2] == "bias" and \
                    not any(other.region == region and other.part == parts.HEAD and not other.is_bias and
                            other_path.rpartition(".")[2] != "bias" for other_path, other in decisions.items()):
                region = find_adapter(inventory.facts).head_module or region
            boundary = found.setdefault(region, Boundary(region, kind))
            if boundary.kind == kind:
                boundary.members.append(path)
    for path in decisions:
        region = innermost_region(path, found)
        if region and path not in region.members:
            region.members.append(path)
    _add_tied_head(inventory, decisions, found)
    position = {path: at for at, path in enumerate(inventory.parameters)}
    return dict(sorted(found.items(), key=lambda item: position.get(next(iter(item[1].members), ""), len(position))))


class _Regions:
    """Closes regions bottom up."""

    def __init__(self, inventory: Inventory, decisions: Mapping[str, Decision],
                 kept_whole: Callable[[str], Optional[str]]):
        self._kept_whole = kept_whole
        self._inventory = inventory
        self._decisions = decisions
        self._open: Dict[str, str] = {}  # parameter path -> module from which it still looks for its region
        self._found: Dict[str, Boundary] = {}

    def find(self) -> Dict[str, Boundary]:
        """All regions."""
        # vectors, tables and small state tensors follow the region that holds them; these make one
        wanted = (parts.QUERY, parts.KEY, parts.VALUE, parts.QKV, parts.KEY_VALUE, parts.ATTENTION_OUT, parts.LATENT,
                  parts.HEAD_GATE, parts.STATE_IN, parts.STATE_OUT) + parts.MLP_PARTS + parts.MOE_PARTS
        waiting: Dict[str, List[str]] = {}
        for path, decision in self._decisions.items():
            if decision.part in wanted and decision.role not in (ParamRole.SKIP,) and not decision.factor and \
                    not (decision.role is ParamRole.REPLICATED and decision.part == parts.OTHER):
                waiting.setdefault(_module_of(path, self._inventory), []).append(path)
        by_depth: Dict[int, set] = {}
        for module in waiting:
            by_depth.setdefault(_depth(module), set()).add(module)
        depth = max(by_depth, default=-1)
        while depth >= 0:
            for module in sorted(by_depth.get(depth, ())):
                left = self._close(module, waiting.pop(module, []))
                if left and module:
                    above = module.rpartition(".")[0]
                    waiting.setdefault(above, []).extend(left)
                    by_depth.setdefault(_depth(above), set()).add(above)
                elif any(not self._kept_whole(path) for path in left):
                    self._refuse(left)
            depth -= 1
        return self._found

    def _close(self, module: str, members: List[str]) -> List[str]:
        """Take complete sets out of the members; what is left looks further out."""
        by_kind: Dict[str, List[str]] = {}
        for path in members:
            by_kind.setdefault(self._kind(path), []).append(path)
        left: List[str] = []
        has_shared = bool(by_kind.get("shared"))
        for kind, paths in by_kind.items():
            if kind == "shared":
                continue
            if kind == templates.MOE and self._is_moe(paths):
                self._add(module, templates.MOE, paths + by_kind.get("shared", []))
                has_shared = False
            elif kind != templates.MOE and self._is_complete(kind, paths):
                self._add(module, kind, paths)
            else:
                left += paths
        if has_shared:
            left += self._close_shared(module, by_kind["shared"])
        return left

    def _close_shared(self, module: str, paths: List[str]) -> List[str]:
        """Shared experts join the experts' region where one module holds both and nothing else."""
        below = [boundary for path, boundary in self._found.items() if path.startswith(f"{module}.")]
        if len(below) == 1 and below[0].kind == templates.MOE:
            moe = self._found.pop(below[0].path)
            self._add(module, templates.MOE, moe.members + paths)
            return []
        if below and self._is_complete(templates.MLP, paths):
            owner = _common([_module_of(path, self._inventory) for path in paths])
            self._add(owner, templates.MLP, paths)
            return []
        return paths

    def _kind(self, path: str) -> str:
        decision = self._decisions[path]
        if decision.role is ParamRole.SHARED_EXPERT or decision.part == parts.SCALAR_GATE:
            return "shared"
        if decision.role is ParamRole.MOE_EXPERT or decision.part == parts.ROUTER:
            return templates.MOE
        if decision.part in parts.ATTENTION_PARTS:
            return templates.ATTENTION
        if decision.part in parts.STATE_PARTS:
            return templates.STATE_SPACE
        return templates.MLP

    def _is_moe(self, paths: List[str]) -> bool:
        roles = {self._decisions[path].role for path in paths}
        return ParamRole.MOE_EXPERT in roles and any(self._decisions[path].part == parts.ROUTER for path in paths)

    def _is_complete(self, kind: str, paths: List[str]) -> bool:
        held = {self._decisions[path].part for path in paths if not self._decisions[path].is_bias}
        if kind == templates.ATTENTION:
            return parts.ATTENTION_OUT in held and (parts.QKV in held or {parts.QUERY, parts.KEY, parts.VALUE} <= held
                                                    or {parts.QUERY, parts.KEY_VALUE} <= held
                                                    or {parts.LATENT, parts.KEY_VALUE} <= held)
        if kind == templates.STATE_SPACE:
            return parts.STATE_OUT in held and parts.STATE_IN in held
        return parts.DOWN in held and bool({parts.UP, parts.GATE_UP, parts.GATE} & held)

    def _add(self, module: str, kind: str, members: List[str]):
        if kind == templates.ATTENTION and words.is_cross(module.lower().split(".")):
            kind = templates.CROSS_ATTENTION
        if kind == templates.MLP:
            self._check_rows(module, members)
        boundary = Boundary(module, kind, [path for path in self._decisions if path in set(members)])
        if kind != templates.MOE:
            boundary.entries, boundary.exits = self._split(module, members)
        if module in self._found:  # two regions in one module: each enters and leaves at its own weights
            module = boundary.entries[0] if boundary.entries else module
        self._found[module] = boundary

    def _split(self, module: str, members: List[str]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
        """Where activations enter and leave, when that is not the module itself."""
        weights = [path for path in members if not self._decisions[path].is_bias]
        rows = [path for path in weights if self._decisions[path].part in parts.ROW_PARTS]
        columns = [path for path in weights if path not in rows and self._decisions[path].part not in (
            parts.HEAD_VECTOR, parts.HEAD_TABLE, parts.STATE_VECTOR, parts.STATE_NORM, parts.STATE_CONV,
            parts.STATE_MIX, parts.LATENT)]
        shares = any(path.startswith(f"{module}.") for path in self._found) if module else bool(self._found)
        row_owner, column_owners = _owner(rows[0]), [_owner(path) for path in columns]
        holders = {owner.rpartition(".")[0] for owner in column_owners}
        if not shares and holders | {row_owner.rpartition(".")[0]} == {module} or row_owner == module:
            return (), ()
        if self._decisions[rows[0]].part == parts.STATE_OUT and not shares:
            return (), ()
        inner = _common(column_owners if len(column_owners) > 1 else [column_owners[0]])
        if shares or inner == module or any(path.startswith(f"{inner}.") or inner == path for path in self._found):
            entries = tuple(dict.fromkeys(column_owners))
        else:
            entries = (inner,)
        return entries, (row_owner,)

    def _said(self, module: str) -> str:
        """What the user's rules say of the weights of a module, as the beginning of a refusal."""
        said = [f"{path!r} {decision.role.name}" for path, decision in self._decisions.items()
                if (path.startswith(f"{module}.") or not module) and not decision.is_bias and any(
                    reason.startswith("user rule") for reason in decision.reasons)]
        return f"auto_tp_config.rules make {', '.join(said[:3])}; but then " if said else ""

    def _check_rows(self, module: str, members: List[str]):
        """A user's rule may not give a feed-forward layer a second row weight."""
        rows = [path for path in members if self._decisions[path].part == parts.DOWN
                and not self._decisions[path].is_bias]
        because = self._said(module) if len(rows) > 1 else ""
        if because:
            raise ValueError(f"{because}{module!r} has {len(rows)} row weights ({', '.join(rows)}) and can have one: "
                             "the one that reads what the column weights put out. Correct the rule")

    def _refuse(self, left: List[str]):
        first = left[0]
        kind = self._kind(first)
        block = _owner(first).rpartition(".")[0]
        held = ", ".join(f"{path} ({self._decisions[path].part})" for path in left[:6])
        wanted = {templates.ATTENTION: "query, key and value (or qkv) and attention_out",
                  templates.STATE_SPACE: "state_in and state_out", templates.MOE: "a router and experts",
                  "shared": "experts beside it"}.get(kind, "up or gate_up, and down")
        because = self._said(_owner(first).rpartition(".")[0])
        raise ValueError(
            f"{because}{first!r} looks like a part of {kind}, but the rest of it is nowhere: found only {held}; "
            f"wanted: {wanted}. Say what its weights are with auto_tp_config.rules, or keep it whole with "
            f"auto_tp_config.overrides: [{{match: \"{block}.*\", replicate: true}}]")


def _module_of(path: str, inventory: Inventory) -> str:
    """The module around a weight's own module; around a bare parameter, the module that holds it."""
    record = inventory.parameters[path]
    bare = record.leaf not in ("weight", "bias", "embedding_table", "gamma", "beta", "embedding_weight")
    return record.owner if bare else _owner(path).rpartition(".")[0]


def _owner(path: str) -> str:
    """Path of the linear that holds a weight; the wrapper of an adapter counts as the linear."""
    owner, _, leaf = path.rpartition(".")
    if leaf not in ("weight", "bias", "embedding_table"):
        return path
    return owner[:-len(_WRAPPER)] if owner.endswith(_WRAPPER) else owner


def _depth(module: str) -> int:
    return module.count(".") + 1 if module else 0


def _common(modules: List[str]) -> str:
    """The innermost module that holds all of them."""
    split = [module.split(".") for module in modules]
    shared = []
    for segments in zip(*split):
        if len(set(segments)) > 1:
            break
        shared.append(segments[0])
    return ".".join(shared)


def innermost_region(path: str, boundaries: Mapping[str, Boundary]) -> Optional[Boundary]:
    """The region between whose entry and exit a parameter lies, or None."""
    module = path.rpartition(".")[0]
    while True:
        found = boundaries.get(module)
        if found is not None and found.kind in REGION_KINDS and found.holds(path):
            return found
        if not module:
            return None
        module = module.rpartition(".")[0]


def _add_tied_head(inventory: Inventory, decisions: Mapping[str, Decision], boundaries: Dict[str, Boundary]):
    """The head of a tied model has no parameter of its own, and needs its boundary all the same."""
    tables = [path for path, decision in decisions.items() if decision.part == parts.TOKENS and not decision.factor]
    heads = [boundary for boundary in boundaries.values() if boundary.kind == templates.LM_HEAD]
    for boundary in heads:
        if all(path.rpartition(".")[2] == "bias" for path in boundary.members):
            boundary.members += tables
    if heads or not tables:
        return
    aliases = [alias for path in tables for alias in inventory.parameters[path].aliases]
    found = {alias.rpartition(".")[0] for alias in aliases}
    if not found and inventory.facts.tied and inventory.modules:
        found = {path for path in inventory.modules
                 if evidence.part_of_segment(path.rpartition(".")[2]) == parts.HEAD}
    if not found and not inventory.modules and inventory.facts.has_language_head:
        found = {find_adapter(inventory.facts).head_module or "lm_head"}
    for head in sorted(found):
        boundaries[head] = Boundary(head, templates.LM_HEAD, list(tables))


def split_blocks(inventory: Inventory, boundaries: Mapping[str, Boundary], decisions: Mapping[str, Decision]
                 ) -> Tuple[List[str], List[str]]:
    """(paths of the transformer blocks in order, paths of the norm modules outside of them).

    A block is the numbered module around an attention or state-space region. Only sequence parallel needs to know.
    """
    blocks = []
    for boundary in boundaries.values():
        if boundary.kind in (templates.ATTENTION, templates.STATE_SPACE):
            block = boundary.path if boundary.is_split else boundary.path.rpartition(".")[0]
            while block and not block.rpartition(".")[2].isdigit() and any(part.isdigit() for part in block.split(".")):
                block = block.rpartition(".")[0]
            if block not in blocks:
                blocks.append(block)
    outside = []
    for record in inventory.parameters.values():
        owner = record.owner
        is_norm = decisions[record.path].role is ParamRole.NORM
        if is_norm and owner not in outside and owner not in boundaries and not any(
                owner == block or owner.startswith(f"{block}.") for block in blocks):
            outside.append(owner)
    return blocks, outside
