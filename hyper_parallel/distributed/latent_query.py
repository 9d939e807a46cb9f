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
"""Queries that one projection gives beside the latent of keys and values: `[q of all heads | latent | rotated part]`.

The latent is needed whole on every rank, so that the projection stays whole, and a rank goes on with its own heads of
the queries. The projection of the other ranks' heads is computed in vain; in return the weight is one plain replicated
parameter, which every optimizer, norm and checkpoint can read.
"""
import ast
from typing import Any, Dict, Mapping

from mindspore import nn, ops

from hyper_parallel.distributed import edges
from hyper_parallel.distributed.forward_reads import attribute_chains, trees_of_forward

LOCAL_COMPUTE = "latent_query_of_this_rank"


def find_query_size(path: str, module, query_rows: int, tp: int) -> Dict[str, int]:
    """`{attribute: its local value}` of the integer that the forward splits the queries off with.

    Args:
        path: of the attention.
        module: the Cell.
        query_rows: rows of the queries of all heads.
        tp: size of the axis.

    Raises:
        ValueError: the forward's source does not show an attribute with that value by which the queries are split off the
            front of what the projection gives; shapes do not tell the order.
    """
    read = sorted(chain[0] for chain in attribute_chains(type(module)) if len(chain) == 1
                  and getattr(module, chain[0], None) == query_rows)
    found = [name for name in read if _splits_off_the_front(type(module), name)]
    if len(found) != 1:
        raise ValueError(
            f"{path!r} ({type(module).__name__}): one projection gives {query_rows} rows of queries beside the latent, and "
            "its forward does not show that the queries come first: split them off with an attribute that counts them "
            "(x.split([self.q_rank, ...])), or keep the attention whole with "
            f"auto_tp_config.overrides: [{{match: \"{path}.*\", replicate: true}}]")
    return {found[0]: query_rows // tp}


def _splits_off_the_front(module_class: type, name: str) -> bool:
    """The attribute is the first of a list of sizes, or the end of a slice that begins at 0, wherever it is in one."""
    def is_it(node):
        return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, ast.Name) and \
            node.value.id == "self"

    found = []
    for tree in trees_of_forward(module_class):
        for node in ast.walk(tree):
            if isinstance(node, (ast.List, ast.Tuple)) and any(map(is_it, node.elts)):
                found.append(is_it(node.elts[0]) and not any(map(is_it, node.elts[1:])))
            elif isinstance(node, ast.Slice) and is_it(node.upper):
                found.append(node.lower is None)
    return bool(found) and all(found)


def keep_own_queries(modules: Mapping[str, Any], path: str, arguments: Mapping[str, Any], group) -> edges.Undo:
    """Leave this rank's queries and the whole latent of what the projection gives.

    Args:
        modules: `{path: Cell}` of the model.
        path: of the attention.
        arguments: `linear`, the projection's path below the attention, and `query_rows`.
        group: the ranks of the axis.

    Returns:
        What undoes it.
    """
    linear = f"{path}.{arguments['linear']}" if path else arguments["linear"]
    return edges.leave_through(modules[linear], linear, OwnQueries(arguments["query_rows"], group.size, group.index))


class OwnQueries(nn.Cell):
    """`[.., Q + L] -> [.., Q / t + L]`: this rank's part of the first Q columns, and the others.

    Args:
        query_rows (int): Q.
        ranks (int): t.
        index (int): of this rank.
    """

    def __init__(self, query_rows: int, ranks: int, index: int):
        super().__init__(auto_prefix=False)
        self.query_rows = query_rows
        self.first = query_rows // ranks * index
        self.last = self.first + query_rows // ranks

    def construct(self, x):
        """The columns that this rank goes on with."""
        return ops.concat((x[..., self.first:self.last], x[..., self.query_rows:]), -1)
