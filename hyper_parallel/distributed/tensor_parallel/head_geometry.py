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
"""How many heads an attention has, by its configuration, its modules' own counts, and its weights' shapes."""
from dataclasses import dataclass
from typing import Mapping, Optional

from hyper_parallel.distributed.model_facts import KEY_OF, ModelFacts
from hyper_parallel.distributed.tensor_parallel import parts
from hyper_parallel.distributed.tensor_parallel.head_count import Q_HEAD_ATTRS


@dataclass(frozen=True)
class HeadGeometry:
    """Heads of one attention.

    Args:
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: rows of one query and key head.
        value_dim: rows of one value head; 0 means as many.
        query_unit: rows of one head in the query weight, a gate beside it included; 0 means head_dim.
        is_latent: keys and values come from a latent that is whole on every rank (MLA).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    query_unit: int = 0
    is_latent: bool = False

    def valid_sizes(self, kv_replication: bool):
        """Tensor-parallel sizes that this attention can be cut in."""
        return [size for size in range(1, self.heads + 1) if self.heads % size == 0
                and (self.kv_heads % size == 0 or (kv_replication and size % self.kv_heads == 0))]

    def check(self, path: str, tp: int, kv_replication: bool):
        """Refuse a size that does not fit.

        Raises:
            ValueError: names the module, both numbers, the valid sizes and the keys that change it.
        """
        valid = self.valid_sizes(kv_replication)
        if tp in valid:
            return
        number, what = (self.heads, KEY_OF["heads"]) if self.heads % tp else (self.kv_heads, KEY_OF["kv_heads"])
        way_out = "choose parallel_config.model_parallel among them, or keep the attention whole with " \
                  f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]"
        if not kv_replication and self.heads % tp == 0 and tp % self.kv_heads == 0:
            way_out += ", or set auto_tp_config.kv_replication: true to copy kv heads"
        raise ValueError(f"{path!r}: {what} {number} is not divisible by a tensor parallel size of {tp} "
                         f"({self.heads} heads, "
                         f"{self.kv_heads} kv heads); valid sizes: {', '.join(map(str, valid))}. Way out: {way_out}")


def find_heads(path: str, shapes: Mapping[str, tuple], facts: ModelFacts, counts: Mapping[str, int]) -> HeadGeometry:
    """Head geometry of one attention region.

    The weights' rows win over the configuration's kv heads: some families keep a stray number there.

    Args:
        path: of the module.
        shapes: `{part: (output rows, input columns)}` of its weights.
        facts: the configuration.
        counts: plain integer attributes of the module.

    Raises:
        ValueError: nothing says how many heads there are, or the numbers contradict one another.
    """
    heads = facts.heads or _first(counts, Q_HEAD_ATTRS)
    columns = shapes[parts.ATTENTION_OUT][1]
    if not heads:
        raise ValueError(f"{path!r}: nothing says how many heads it has; give a configuration with "
                         f"{KEY_OF['heads']}, or set an attribute {Q_HEAD_ATTRS[0]!r} on the module")
    if columns % heads:
        raise ValueError(f"{path!r}: its output projection reads {columns} columns, no whole number for {heads} heads")
    value_dim = columns // heads
    if parts.KEY_VALUE in shapes and (parts.LATENT in shapes or facts.kv_lora_rank):
        return _latent(path, shapes, heads, value_dim)
    if parts.QKV in shapes:
        rows = shapes[parts.QKV][0]
        kv_rows, odd = divmod(rows - heads * value_dim, 2)
        head_dim, query_unit = value_dim, value_dim
    else:
        rows = shapes[parts.QUERY][0]
        if rows % heads:
            raise ValueError(f"{path!r}: {rows} query rows are no whole number for {heads} heads")
        query_unit = rows // heads
        head_dim, odd = value_dim, 0
        if parts.KEY_VALUE in shapes:
            kv_rows, odd = divmod(shapes[parts.KEY_VALUE][0], 2)
        else:
            kv_rows = shapes[parts.VALUE][0]
    if odd or kv_rows <= 0 or kv_rows % value_dim:
        raise ValueError(f"{path!r}: {kv_rows} value rows are no whole number of heads of {value_dim} "
                         f"({heads} query heads, output projection of {columns} columns)")
    kv_heads = kv_rows // value_dim
    if parts.KEY in shapes:
        key_rows = shapes[parts.KEY][0]
        if key_rows % kv_heads:
            raise ValueError(f"{path!r}: {key_rows} key rows are no whole number for {kv_heads} kv heads")
        head_dim = key_rows // kv_heads
    if query_unit not in (head_dim, 2 * head_dim):
        raise ValueError(f"{path!r}: a query head has {query_unit} rows and a key head {head_dim}; {KEY_OF['heads']} "
                         f"{heads} may be another attention's")
    if heads % kv_heads:
        raise ValueError(f"{path!r}: {heads} heads are no multiple of {kv_heads} kv heads")
    return HeadGeometry(heads, kv_heads, head_dim, value_dim, query_unit)


def _latent(path: str, shapes, heads: int, value_dim: int) -> HeadGeometry:
    for part in (parts.QUERY, parts.KEY_VALUE):
        if part in shapes and shapes[part][0] % heads:
            raise ValueError(f"{path!r}: {shapes[part][0]} rows of its {part} projection are no whole number for "
                             f"{heads} heads")
    head_dim = shapes[parts.QUERY][0] // heads if parts.QUERY in shapes else _joint_query_dim(path, shapes, heads, value_dim)
    return HeadGeometry(heads, heads, head_dim, value_dim, head_dim, True)


def _joint_query_dim(path: str, shapes, heads: int, value_dim: int) -> int:
    """Rows of one query head in a projection that holds the queries beside the latent.

    With H heads, n and r the plain and the rotated rows of a head, c columns of the projection up and v rows of a value:
    the projection down has H (n + r) + c + r rows, the one up H (n + v).
    """
    up_rows, latent = shapes[parts.KEY_VALUE]
    plain = up_rows // heads - value_dim
    rotated, odd = divmod(shapes[parts.LATENT][0] - latent - heads * plain, heads + 1)
    if odd or plain < 0 or rotated < 0:
        raise ValueError(
            f"{path!r}: {shapes[parts.LATENT][0]} rows of its projection down are no queries of {heads} heads beside a "
            f"latent of {latent} (its projection up has {up_rows} rows, {value_dim} of each head's are values): say what "
            "the parameters are with auto_tp_config.rules, or keep it whole with "
            f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
    return plain + rotated


def _first(counts: Mapping[str, int], names) -> Optional[int]:
    return next((counts[name] for name in names if name in counts), None)
