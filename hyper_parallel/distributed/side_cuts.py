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
"""Where the bytes live of what follows a weight: its bias, its low-rank factors, its scales."""
from dataclasses import replace
from typing import Optional, Sequence

from hyper_parallel.core.dtensor.slice_cut import Cut
from hyper_parallel.distributed.inventory import ParameterRecord
from hyper_parallel.distributed.tensor_parallel import parts, side_tensors
from hyper_parallel.distributed.tensor_parallel.evidence import Decision


def bias_cut(record: ParameterRecord, decision: Decision, base: Optional[Cut], shape: Sequence[int]) -> Optional[Cut]:
    """A bias follows the output rows of its weight.

    Args:
        record: the bias.
        decision: what it is.
        base: the cut of its weight, None where that is whole.
        shape: of its weight.
    """
    out_dim = len(shape) - 1 if decision.transposed else max(0, len(shape) - 2)
    if decision.part == parts.STATE_CONV:
        out_dim = 0  # a convolution is [channels, 1, width]
    if base is None or (base.dim != out_dim and decision.part in parts.ROW_PARTS):
        return None
    assert base.dim == out_dim, f"{record.path}: its weight is cut in dim {base.dim}, its output is dim {out_dim}"
    return along(base, len(record.shape) - 1)


def factor_cut(record: ParameterRecord, decision: Decision, base: Optional[Cut], shape: Sequence[int],
               quantised_block: Optional[Sequence[int]]) -> Optional[Cut]:
    """Low-rank factors follow the dim that they share with the weight; scales follow its blocks.

    Args:
        record: the factor.
        decision: what it is.
        base: the cut of the weight that it belongs to, None where that is whole.
        shape: of that weight.
        quantised_block: rows and columns that share a scale, where the configuration says so.

    Raises:
        ValueError: the factor does not fit the weight, or a rank would split a block.
    """
    if base is None:
        return None
    if decision.factor == "scale":
        return _scale_cut(record, shape, base, quantised_block)
    dim = {"a": len(record.shape) - 1, "b": 0}.get(
        decision.factor, max(range(len(record.shape)), key=lambda dim: record.shape[dim]))
    if record.shape[dim] != shape[base.dim]:
        raise ValueError(f"{record.path!r} {list(record.shape)} does not fit the weight {decision.of!r} "
                         f"{list(shape)} that it adapts: {record.shape[dim]} and {shape[base.dim]} differ")
    return along(base, dim)


def _scale_cut(record: ParameterRecord, shape, base: Cut, quantised_block) -> Optional[Cut]:
    block = side_tensors.scale_block(shape, record.shape, quantised_block)
    if not record.shape or base.dim >= len(record.shape) or block is None or record.shape[base.dim] == 1:
        return None
    rows = block[base.dim]
    sections = []
    for section in base.sections:
        per_rank = section.padded * section.copies // base.sharers
        if section.rows % rows or per_rank % rows:
            raise ValueError(
                f"{record.path!r}: blocks of {rows} rows share a scale, and a tensor parallel size of {base.parts} "
                f"cuts {per_rank} rows a rank: choose parallel_config.model_parallel so that {rows} divides "
                f"{section.rows} / model_parallel, or keep the module whole with auto_tp_config.overrides")
        sections.append(replace(section, rows=section.rows // rows, unit=max(1, section.unit // rows),
                                padding=section.padding // rows))
    return Cut(base.axis, base.dim, base.parts, tuple(sections), base.blocks)


def along(base: Cut, dim: int) -> Cut:
    """The same rows of another tensor's dim."""
    return base if base.dim == dim else replace(base, dim=dim)
