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
"""How state-space, gated-delta and short-convolution layers are cut: packed projections section by section.

Rows of the packed input projections (I inner width, G groups, S state, H heads, P = I / H)::

    Mamba 2        [z I | x I | B G·S | C G·S | dt H]     convolution [x I | B G·S | C G·S]
    Mamba 1        [x I | z I]                            convolution [x I]
    gated delta    per key head [q k v·R z·R], [b·R a·R]  convolution [q | k | v]
    LFM2           [B I | C I | x I]                      convolution [I]
"""
from dataclasses import dataclass
from typing import List, Optional, Tuple

from hyper_parallel.core.dtensor.slice_cut import Cut, Section
from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel.templates import AXIS



@dataclass(frozen=True)
class StateGeometry:
    """Sizes of one layer.

    Args:
        path: of the module, for messages.
        kind: `mamba2`, `mamba1`, `gated_delta` or `short_conv`.
        inner: columns that the output projection reads.
        heads: heads of Mamba 2, or value heads of gated delta.
        groups: groups that share B and C, or key heads of gated delta.
        state: state per group, or width of a key head.
    """

    path: str
    kind: str
    inner: int
    heads: int = 1
    groups: int = 1
    state: int = 1

    def check(self, tp: int):
        """Refuse a size that does not fit.

        Raises:
            ValueError: names the module, the numbers and the valid sizes.
        """
        valid = [size for size in range(1, max(self.heads, self.groups, 2) + 1) if self._fits(size)]
        if self.kind in ("mamba1", "short_conv"):
            valid = [size for size in range(1, self.inner + 1) if self.inner % size == 0][:12]
        if not self._fits(tp):
            raise ValueError(
                f"{self.path!r}: a {self.kind} layer of {self.heads} heads and {self.groups} groups (inner width "
                f"{self.inner}) is not divisible by a tensor parallel size of {tp}; valid sizes: "
                f"{', '.join(map(str, valid))}. Change parallel_config.model_parallel, or keep it whole with "
                f"auto_tp_config.overrides: [{{match: \"{self.path}.*\", replicate: true}}]")

    def _fits(self, tp: int) -> bool:
        if self.kind in ("mamba1", "short_conv"):
            return self.inner % tp == 0
        if self.kind == "gated_delta":
            return self.groups % tp == 0 and self.heads % tp == 0
        return self.heads % tp == 0 and (self.groups % tp == 0 or tp % self.groups == 0)

    def input_cut(self, rows: int, tp: int, dim: int) -> Optional[Cut]:
        """The cut of a packed input projection, None where its rows fit nothing."""
        sections = self._input_sections(rows, tp)
        if sections is None:
            return None
        per_group, found = sections
        return Cut(AXIS, dim, tp, found, self.groups if per_group else 1)

    def _input_sections(self, rows: int, tp: int) -> Optional[Tuple[bool, Tuple[Section, ...]]]:
        inner = self.inner
        if self.kind == "mamba1":
            return (False, (Section(inner, name="x"), Section(inner, name="z"))) if rows == 2 * inner else None
        if self.kind == "short_conv":
            return (False, tuple(Section(inner, name=name) for name in "BCx")) if rows == 3 * inner else None
        if self.kind == "mamba2":
            shared = self._shared_sections(tp)
            unit = inner // self.heads
            return False, (Section(inner, unit, name="z"), Section(inner, unit, name="x")) + shared + (
                Section(self.heads, name="dt"),)
        ratio = self.heads // self.groups
        width = inner // self.heads
        key, value = self.state, ratio * width
        if rows == self.groups * (2 * key + 2 * value):
            return True, (Section(key, name="q"), Section(key, name="k"), Section(value, name="v"),
                          Section(value, name="z"))
        if rows == 2 * self.heads:
            return True, (Section(ratio, name="b"), Section(ratio, name="a"))
        if rows == 2 * self.groups * key + inner:
            return False, self._convolution_sections(tp)
        if rows in (inner, self.heads):
            return False, (Section(rows, unit=rows // self.heads, name="value heads"),)
        return None

    def _shared_sections(self, tp: int) -> Tuple[Section, ...]:
        copies = max(1, tp // self.groups)
        return tuple(Section(self.groups * self.state, self.state, copies, name=name) for name in "BC")

    def _convolution_sections(self, tp: int) -> Tuple[Section, ...]:
        if self.kind == "mamba2":
            return (Section(self.inner, self.inner // self.heads, name="x"),) + self._shared_sections(tp)
        if self.kind == "gated_delta":
            key = Section(self.groups * self.state, self.state, name="q")
            return key, Section(key.rows, key.unit, name="k"), Section(self.inner, self.inner // self.heads, name="v")
        return (Section(self.inner, name="x"),)

    def convolution_cut(self, tp: int) -> Cut:
        """The cut of the depthwise convolution's channels."""
        return Cut(AXIS, 0, tp, self._convolution_sections(tp))

    def vector_cut(self, shape: Tuple[int, ...], tp: int) -> Optional[Cut]:
        """The cut of what there is one of per head or per channel, None where the length is another."""
        rows = shape[0]
        if rows == self.inner:
            return Cut(AXIS, 0, tp, (Section(rows, max(1, self.inner // self.heads) if self.heads > 1 else 1),))
        if rows == self.heads and self.heads > 1:
            return Cut(AXIS, 0, tp, (Section(rows),))
        return None


def find_state(path: str, inputs: List[Tuple[int, int]], convolution: Optional[int], inner: int,
               facts: ModelFacts) -> StateGeometry:
    """The geometry of one layer, from its weights' sizes and the configuration.

    Args:
        path: of the module.
        inputs: (rows, columns) of its input projections.
        convolution: channels of its depthwise convolution.
        inner: columns that its output projection reads.
        facts: the configuration.

    Raises:
        ValueError: the sizes fit no layer that this version knows.
    """
    rows = max((size for size, _ in inputs), default=0)
    if facts.linear_value_heads and facts.linear_key_heads and facts.linear_key_head_dim:
        return StateGeometry(path, "gated_delta", inner, facts.linear_value_heads, facts.linear_key_heads,
                             facts.linear_key_head_dim)
    if convolution == inner and rows == 3 * inner:
        return StateGeometry(path, "short_conv", inner)
    if convolution == inner and rows == 2 * inner:
        return StateGeometry(path, "mamba1", inner)
    if convolution is not None and convolution > inner and (convolution - inner) % 2 == 0:
        shared = (convolution - inner) // 2
        heads = rows - 2 * inner - 2 * shared
        groups = facts.state_groups or (shared // facts.state_size if facts.state_size else None)
        if groups is None and heads > 0 and inner % heads == 0:
            raise ValueError(f"{path!r}: nothing says in how many groups its {shared} rows of B and C are: give "
                             "n_groups or state_size in the configuration, or keep the layer whole with "
                             f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
        if heads > 0 and inner % heads == 0 and groups and shared % groups == 0:
            return StateGeometry(path, "mamba2", inner, heads, groups, shared // groups)
    raise ValueError(f"{path!r}: input projections {inputs}, a convolution of {convolution} channels and an inner "
                     f"width of {inner} fit no state-space layer that this version knows; keep it whole with "
                     f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
