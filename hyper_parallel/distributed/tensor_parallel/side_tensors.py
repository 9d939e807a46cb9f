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
"""Tensors that stand beside a weight: adapters of low rank, and the scales of packed weights."""
import re
from typing import NamedTuple, Optional, Sequence

from hyper_parallel.distributed.inventory import ParameterRecord

_LORA = re.compile(
    r"(?P<base>.+?)\.(?:(?P<a>lora_A|lora_a|mindpet_delta_lora_a|lora_embedding_A)|"
    r"(?P<b>lora_B|lora_b|mindpet_delta_lora_b|lora_embedding_B)|(?P<m>lora_magnitude_vector))"
    r"(?:\.[\w-]+)*?(?:\.weight)?$")
_PACKED_LEAVES = ("qweight", "qzeros", "g_idx", "qscales", "absmax", "quant_map", "nested_absmax", "nested_quant_map",
                  "weight_packed", "weight_shape", "weight_zero_point", "SCB", "weight_format", "bitsandbytes__nf4",
                  "bitsandbytes__fp4", "scales", "zeros", "quant_state", "_blocks", "_scales", "weight_g_idx")
_SCALE_LEAVES = ("weight_scale_inv", "weight_scale", "input_scale", "output_scale", "activation_scale", "act_scale",
                 "k_scale", "v_scale", "input_global_scale", "weight_global_scale")


class Adapter(NamedTuple):
    """A tensor of a low-rank adapter: path of the linear it adapts, and which of the two factors it is."""

    base: str
    factor: str


def adapter_of(path: str) -> Optional[Adapter]:
    """The adapter that a parameter belongs to, or None.

    Examples:
        >>> adapter_of("layers.0.q_proj.lora_A.default.weight")
        Adapter(base='layers.0.q_proj', factor='a')
    """
    found = _LORA.match(path)
    if not found:
        return None
    return Adapter(found.group("base"), next(name for name in "abm" if found.group(name)))


def packed_leaf(record: ParameterRecord) -> Optional[str]:
    """The word by which a tensor is a packed weight whose layout this version does not cut, or None."""
    leaf = record.path.rpartition(".")[2]
    return next((word for word in _PACKED_LEAVES
                 if leaf == word or (word.startswith("_") and leaf.endswith(word))), None)


def is_scale(record: ParameterRecord) -> bool:
    """The tensor holds the scales of the weight beside it."""
    return record.leaf in _SCALE_LEAVES


def scale_block(shape: Sequence[int], scale: Sequence[int], said: Optional[Sequence[int]]) -> Optional[tuple]:
    """Rows and columns of the weight that share one scale; None where the two shapes do not fit.

    Args:
        shape: of the weight.
        scale: of its scales.
        said: block that the configuration gives.
    """
    if len(scale) == 0 or all(size == 1 for size in scale):
        return tuple(shape)
    if len(scale) != len(shape):
        return (1,) + tuple(shape[1:]) if len(scale) == 1 and scale[0] == shape[0] else None
    blocks = []
    for dim, (rows, count) in enumerate(zip(shape, scale)):
        block = said[dim] if said and len(said) == len(shape) else -(-rows // count)
        if -(-rows // block) != count:
            return None
        blocks.append(block)
    return tuple(blocks)
