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
"""Weights with what belongs to them: one unit per linear, table, norm or bare parameter."""
import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Set, Tuple

from hyper_parallel.distributed.inventory import IN_OUT, ParameterRecord

MAIN_LEAVES = ("weight", "embedding_table", "embedding_weight", "gamma")
BIAS_LEAVES = ("bias", "beta")
_WRAPPERS = ("base_layer", "base_model", "_orig_mod", "module", "modules_to_save", "default", "original_module")
_BARE_BIAS = re.compile(r"(.+)_bias$")
_NUMBER = re.compile(r"\d+")


@dataclass
class Unit:
    """One weight, or one bare parameter, and the biases that go with it.

    Args:
        path: of the module that holds the weight, or of the bare parameter.
        main: the weight.
        extras: its biases.
        is_bare: the parameter has no module of its own (`experts.gate_up_proj`, `sinks`).
    """

    path: str
    main: ParameterRecord
    extras: List[ParameterRecord] = field(default_factory=list)
    is_bare: bool = False

    def __post_init__(self):
        self.segments: Tuple[str, ...] = tuple(
            segment for segment in self.path.lower().split(".") if segment not in _WRAPPERS) or ("",)

    @property
    def scope(self) -> str:
        """Path of the module around the unit."""
        return self.path.rpartition(".")[0]

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of the weight."""
        return self.main.shape

    @property
    def dims(self) -> int:
        """Dims of the weight."""
        return len(self.main.shape)

    @property
    def name(self) -> str:
        """Last segment, lower case."""
        return self.segments[-1]

    @property
    def number_segments(self) -> Tuple[int, ...]:
        """Positions of whole-number segments in the path."""
        return tuple(at for at, segment in enumerate(self.path.split(".")) if _NUMBER.fullmatch(segment))

    def stored_in_out(self) -> Optional[bool]:
        """True for `[in, out]`, False for `[out, in]`, None where neither class nor bias says it."""
        if self.main.layout is not None:
            return self.main.layout == IN_OUT
        if self.dims == 2 and self.extras and len(self.extras[0].shape) == 1 and self.shape[0] != self.shape[1]:
            length = self.extras[0].shape[0]
            if length in self.shape:
                return length == self.shape[1]
        return None


def build_units(parameters: Mapping[str, ParameterRecord]) -> List[Unit]:
    """All units, in the order of their weights."""
    by_owner: Dict[str, List[ParameterRecord]] = {}
    for record in parameters.values():
        by_owner.setdefault(record.owner, []).append(record)
    units: List[Unit] = []
    for owner, records in by_owner.items():
        main = next((record for leaf in MAIN_LEAVES for record in records if record.leaf == leaf), None)
        bare: Dict[str, Unit] = {}
        rest = []
        if main is not None:
            units.append(Unit(owner, main, [record for record in records if record.leaf in BIAS_LEAVES]))
        for record in records:
            if record is main or (main is not None and record.leaf in BIAS_LEAVES):
                continue
            rest.append(record)
        names = {record.leaf for record in rest}
        weight_of = {record.leaf: _bare_weight_of(record.leaf, names) for record in rest}
        for record in rest:
            if weight_of[record.leaf] is None:
                bare[record.leaf] = Unit(record.path, record, [], True)
                units.append(bare[record.leaf])
        for record in rest:
            if weight_of[record.leaf] in bare:
                bare[weight_of[record.leaf]].extras.append(record)
    position = {path: at for at, path in enumerate(parameters)}
    return sorted(units, key=lambda unit: position[unit.main.path])


def _bare_weight_of(leaf: str, names: Set[str]) -> Optional[str]:
    """The bare parameter beside it whose bias it is (`down_proj_bias`, `in_proj_bias` of `in_proj_weight`), or None."""
    found = _BARE_BIAS.fullmatch(leaf)
    if found is None:
        return None
    return next((name for name in (found.group(1), f"{found.group(1)}_weight") if name in names), None)
