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
"""How one tensor lies along one mesh axis: cut, whole, or waiting for a reduction.

A mesh has *axes*, a tensor has *dims*. A placement says what one axis does to a tensor; a tensor on a mesh has one
placement per axis, in mesh order.
"""
import re
from dataclasses import dataclass
from typing import Dict, List, Sequence

REDUCE_OPS = ("sum", "avg", "max", "min")


class Placement:
    """Base of the placements; only its subclasses are instantiated."""

    def is_shard(self, dim=None) -> bool:
        """True for a `Shard`, of any dim or of exactly `dim`."""
        return isinstance(self, Shard) and (dim is None or self.dim == dim)

    def is_replicate(self) -> bool:
        """True for `Replicate`."""
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        """True for `Partial`, whatever its reduction."""
        return isinstance(self, Partial)


@dataclass(frozen=True, repr=False)
class Shard(Placement):
    """The tensor's `dim` is cut along the axis, in rank order.

    Args:
        dim (int): a tensor dim; negative dims count from the end until `normalize` is told the rank of the tensor.

    Examples:
        >>> Shard(-1).normalize(3)
        Shard(dim=2)
    """

    dim: int

    def __post_init__(self):
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise ValueError(f"Shard takes an int dim, got {self.dim!r}")

    def normalize(self, ndim: int) -> "Shard":
        """The same placement with a dim in `[0, ndim)`.

        Raises:
            ValueError: the tensor has no such dim.
        """
        if not -ndim <= self.dim < ndim:
            raise ValueError(f"{self!r} on a tensor of {ndim} dims: valid dims are {-ndim} to {ndim - 1}")
        return self if self.dim >= 0 else Shard(self.dim + ndim)

    def __repr__(self):
        return f"Shard(dim={self.dim})"


@dataclass(frozen=True, repr=False)
class StridedShard(Shard):
    """The tensor's `dim` is cut along the axis after later axes of the mesh have already cut it.

    Placements stand in mesh order, and where several axes cut one dim the earlier axis is the outer one. Tensor
    parallel outside and FSDP inside, on a mesh `(fsdp, tp)`, is the other order, and `split_factor` says so: into how
    many parts the later axes that lie outside cut the dim before this axis does::

        mesh (fsdp=2, tp=2), rows ABCDEFGH     (Shard(0), Shard(0))             AB CD / EF GH
                                               (StridedShard(0, 2), Shard(0))   AB EF / CD GH

    Args:
        dim (int): as in `Shard`.
        split_factor (int): at least 2; an axis with nothing outside it is a plain `Shard`.

    Examples:
        >>> StridedShard(0, split_factor=4)
        StridedShard(dim=0, split_factor=4)
    """

    split_factor: int = 2

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.split_factor, bool) or not isinstance(self.split_factor, int) or self.split_factor < 2:
            raise ValueError(f"StridedShard takes a split_factor of 2 or more, got {self.split_factor!r}: an axis that "
                             "cuts first is a plain Shard")

    def normalize(self, ndim: int) -> "StridedShard":
        """The same placement with a dim in `[0, ndim)`."""
        return self if self.dim >= 0 and self.dim < ndim else StridedShard(super().normalize(ndim).dim,
                                                                           self.split_factor)

    def __repr__(self):
        return f"StridedShard(dim={self.dim}, split_factor={self.split_factor})"


@dataclass(frozen=True, repr=False)
class Replicate(Placement):
    """Every rank of the axis holds the whole tensor."""

    def __repr__(self):
        return "Replicate()"


@dataclass(frozen=True, repr=False)
class Partial(Placement):
    """Every rank of the axis holds a summand; the tensor is their reduction.

    Args:
        op (str): "sum", "avg", "max" or "min".
    """

    op: str = "sum"

    def __post_init__(self):
        if self.op not in REDUCE_OPS:
            raise ValueError(f"Partial(op={self.op!r}): valid reductions are {', '.join(REDUCE_OPS)}")

    def __repr__(self):
        return f"Partial(op={self.op!r})"


NamedPlacement = Dict[str, Placement]
"""`{axis name: placement}`; an axis that is not named replicates."""

_GRAMMAR = "shard(DIM), shard(DIM, split_factor=N), replicate, partial or partial(sum|avg|max|min)"


def parse_placement(text) -> Placement:
    """The placement that a user wrote in YAML; spaces and case do not count.

    Args:
        text (str | Placement): `shard(0)`, `shard(-1)`, `shard(0, split_factor=4)` (a `StridedShard`), `replicate`,
            `partial`, `partial(max)`; an optional `dim=` or `op=` inside the parentheses is accepted. A Placement is
            returned as it is.

    Raises:
        ValueError: anything else; the message shows the grammar.

    Examples:
        >>> parse_placement(" Shard( 0 ) ")
        Shard(dim=0)
    """
    if isinstance(text, Placement):
        return text
    if isinstance(text, str):
        word = re.sub(r"\s+", "", text).lower()
        found = re.fullmatch(r"shard\((?:dim=)?([+-]?\d+)\)", word)
        if found:
            return Shard(int(found.group(1)))
        found = re.fullmatch(r"(?:strided)?shard\((?:dim=)?([+-]?\d+),split_factor=(\d+)\)", word)
        if found and int(found.group(2)) > 1:
            return StridedShard(int(found.group(1)), int(found.group(2)))
        if re.fullmatch(r"replicate(\(\))?", word):
            return Replicate()
        found = re.fullmatch(r"partial(?:\((?:op=)?['\"]?(\w*)['\"]?\))?", word)
        if found and (found.group(1) or "sum") in REDUCE_OPS:
            return Partial(found.group(1) or "sum")
    raise ValueError(f"no placement can be read from {text!r}: write {_GRAMMAR}")


def format_placement(placement: Placement) -> str:
    """The inverse of `parse_placement`: `shard(0)`, `shard(0, split_factor=4)`, `replicate`, `partial(sum)`."""
    if isinstance(placement, StridedShard):
        return f"shard({placement.dim}, split_factor={placement.split_factor})"
    if isinstance(placement, Shard):
        return f"shard({placement.dim})"
    if isinstance(placement, Partial):
        return f"partial({placement.op})"
    return "replicate"


def resolve_placements(named: NamedPlacement, mesh_dim_names: Sequence[str]) -> List[Placement]:
    """Placements in mesh order; an axis that is not named replicates.

    Args:
        named: `{axis: placement}`; None counts as empty.
        mesh_dim_names: the mesh's axes, in order.

    Raises:
        ValueError: `named` has an axis that the mesh has not.

    Examples:
        >>> resolve_placements({"tp": Shard(0)}, ("dp", "tp"))
        [Replicate(), Shard(dim=0)]
    """
    named = named or {}
    unknown = [axis for axis in named if axis not in mesh_dim_names]
    if unknown:
        raise ValueError(f"placement names axis {unknown[0]!r}, but the mesh's axes are {', '.join(mesh_dim_names)}")
    return [named.get(axis, Replicate()) for axis in mesh_dim_names]
