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
"""Which modules own a contract: regions around a column and a row weight, norms, embedding and head."""
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from hyper_parallel.distributed.inventory import Inventory
from hyper_parallel.distributed.tensor_parallel import evidence, templates
from hyper_parallel.distributed.tensor_parallel.evidence import Decision
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole


@dataclass
class Boundary:
    """A module with a contract, and the parameters that belong to it.

    Args:
        path: of the module.
        kind: one of the kinds in `templates`.
        members: paths of the parameters whose contract this is.
    """

    path: str
    kind: str
    members: List[str] = field(default_factory=list)


def find_boundaries(inventory: Inventory, decisions: Mapping[str, Decision]) -> Dict[str, Boundary]:
    """Boundaries by module path, in the inventory's order.

    A parameter that is neither in a region nor has a kind of its own belongs to the innermost region around it (a norm
    on local heads), or to none (whole everywhere).

    Raises:
        ValueError: a region lacks its column or row weight, mixes attention and MLP, or holds a role that this version
            has no template for.
    """
    boundaries: Dict[str, Boundary] = {}
    for path, decision in decisions.items():
        _refuse_unsupported(path, decision)
        kind = _kind_of(decision)
        if kind is None:
            continue
        boundary = boundaries.setdefault(decision.region, Boundary(decision.region, kind))
        if boundary.kind != kind:
            raise ValueError(f"module {boundary.path!r} holds weights of {boundary.kind} and of {kind} ({path!r}): this "
                             "version plans them in modules of their own; keep it whole with "
                             f"auto_tp_config.overrides: [{{match: \"{boundary.path}.*\", replicate: true}}]")
        boundary.members.append(path)
    _check_regions(boundaries, decisions)
    for path in decisions:
        region = innermost_region(path, boundaries)
        if region and path not in region.members:
            region.members.append(path)
    _add_tied_head(inventory, decisions, boundaries)
    return boundaries


def _kind_of(decision: Decision) -> Optional[str]:
    if decision.part in evidence.ATTENTION_PARTS:
        return templates.ATTENTION
    if decision.part in evidence.MLP_PARTS:
        return templates.MLP
    if decision.part == evidence.TOKENS:
        return templates.EMBEDDING
    if decision.part == evidence.HEAD:
        return templates.LM_HEAD
    return None


_WITHOUT_TEMPLATE = (ParamRole.MOE_EXPERT, ParamRole.MOE_GATE, ParamRole.SHARED_EXPERT, ParamRole.SPECIAL)


def _refuse_unsupported(path: str, decision: Decision):
    if decision.role in _WITHOUT_TEMPLATE or (decision.part == evidence.OTHER and decision.role in (
            ParamRole.COLWISE, ParamRole.ROWWISE)):
        raise ValueError(f"{path!r} has role {decision.role.name} ({decision.reasons[0]}), and this version has no "
                         "template for the module it stands in; keep it whole with auto_tp_config.overrides: "
                         f"[{{match: \"{path}\", replicate: true}}]")


def innermost_region(path: str, boundaries: Mapping[str, Boundary]) -> Optional[Boundary]:
    """The attention or MLP boundary around a parameter, or None."""
    module = path.rpartition(".")[0]
    while True:
        found = boundaries.get(module)
        if found is not None and found.kind in (templates.ATTENTION, templates.MLP):
            return found
        if not module:
            return None
        module = module.rpartition(".")[0]


def _check_regions(boundaries: Mapping[str, Boundary], decisions: Mapping[str, Decision]):
    for boundary in boundaries.values():
        parts = {decisions[path].part for path in boundary.members}
        if boundary.kind == templates.ATTENTION:
            complete = evidence.ATTENTION_OUT in parts and (
                evidence.QKV in parts or {evidence.QUERY, evidence.KEY, evidence.VALUE} <= parts)
            wanted = "query, key and value (or qkv) and attention_out"
        elif boundary.kind == templates.MLP:
            complete = evidence.DOWN in parts and bool({evidence.UP, evidence.GATE_UP} & parts)
            wanted = "up or gate_up, and down"
        else:
            continue
        if not complete:
            raise ValueError(f"module {boundary.path!r} looks like {boundary.kind} but has only {', '.join(sorted(parts))}; "
                             f"wanted: {wanted}. Say what its weights are with auto_tp_config.rules")


def _add_tied_head(inventory: Inventory, decisions: Mapping[str, Decision], boundaries: Dict[str, Boundary]):
    """The head of a tied model has no parameter of its own, and needs its boundary all the same."""
    if any(boundary.kind == templates.LM_HEAD for boundary in boundaries.values()):
        return
    tables = [path for path, decision in decisions.items() if decision.part == evidence.TOKENS]
    aliases = [alias for path in tables for alias in inventory.parameters[path].aliases]
    heads = {alias.rpartition(".")[0] for alias in aliases}
    if not heads and inventory.facts.tied:
        heads = {path for path in inventory.modules
                 if evidence.part_of_segment(path.rpartition(".")[2]) == evidence.HEAD}
    for head in heads:
        boundaries[head] = Boundary(head, templates.LM_HEAD, list(tables))


def split_blocks(inventory: Inventory, boundaries: Mapping[str, Boundary]) -> Tuple[List[str], List[str]]:
    """(paths of the transformer blocks in order, paths of the norm modules outside of them).

    A block is the parent of an attention region. Only sequence parallel needs to know.
    """
    blocks = []
    for boundary in boundaries.values():
        if boundary.kind == templates.ATTENTION:
            block = boundary.path.rpartition(".")[0]
            if block not in blocks:
                blocks.append(block)
    outside = []
    for record in inventory.parameters.values():
        owner = record.owner
        if len(record.shape) == 1 and owner not in outside and owner not in boundaries and not any(
                owner == block or owner.startswith(f"{block}.") for block in blocks):
            outside.append(owner)
    return blocks, outside
