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
"""Is a list of parameters in the order of modules, or of names? Only the first is evidence."""
import re
from typing import List, Tuple

from hyper_parallel.distributed.inventory import Inventory

_BLOCK = re.compile(r"(?:.*?\.)?\d+\.")


def is_registration_order(inventory: Inventory) -> bool:
    """Are the parameters listed as their modules registered them?

    Files list them by name. There a bias stands before its weight; without biases registration shows in the outline:
    the vocabulary's table before the blocks and before other tables beside it, nothing of its size but the head after
    the blocks, and all of a block's attention before its feed-forward layer.
    """
    if inventory.modules:
        return True
    paths = list(inventory.parameters)
    position = {path: at for at, path in enumerate(paths)}
    biased = [(position[path], position[f"{path[:-4]}weight"]) for path in paths
              if path.endswith(".bias") and f"{path[:-4]}weight" in position]
    if biased:
        return all(weight < bias for bias, weight in biased)
    vocabulary = inventory.facts.vocab_size
    tables = [at for at, path in enumerate(paths) if len(inventory.parameters[path].shape) == 2
              and inventory.parameters[path].shape[0] == vocabulary]
    if not tables:
        return False
    blocks = [at for at, path in enumerate(paths) if _BLOCK.search(path) and at > tables[0]]
    if not blocks or any(at < blocks[0] for at in tables[1:]) or any(
            _BLOCK.match(paths[at]).group(0).rpartition(".")[0].rpartition(".")[0] ==
            _BLOCK.match(paths[blocks[0]]).group(0).rpartition(".")[0].rpartition(".")[0]
            for at in range(tables[0]) if _BLOCK.match(paths[at])):
        return False
    block = _BLOCK.match(paths[blocks[0]]).group(0)
    shapes = [inventory.parameters[path].shape for path in paths if path.startswith(block)]
    return _attention_comes_first([shape for shape in shapes if len(shape) == 2], inventory.facts)


def _attention_comes_first(shapes: List[Tuple[int, ...]], facts) -> bool:
    """In a block's matrices, those of a feed-forward layer's width come last."""
    heads_width = facts.heads * facts.head_dim if facts.heads and facts.head_dim else None
    kv_width = facts.kv_heads * facts.head_dim if facts.kv_heads and facts.head_dim else None
    certain = [(at, shape) for at, shape in enumerate(shapes) if kv_width not in shape and min(shape) > 1]
    wide = [at for at, shape in certain if _is_feed_forward(shape, facts, heads_width) or facts.experts in shape]
    narrow = [at for at, shape in certain if at not in wide]
    return bool(wide) and bool(narrow) and max(narrow) < min(wide)


def _is_feed_forward(shape, facts, heads_width) -> bool:
    others = [size for size in shape if size != facts.hidden_size]
    return any(size in others or 2 * size in others for size in facts.ffn_sizes + (4 * (facts.hidden_size or 0),)
               if size and size not in (heads_width,))
