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
"""Networks with strategies from a plan, as the compiler's process builds them."""
import mindspore
import numpy as np
from mindspore import Tensor
from mindspore.communication import get_group_size

import hyper_parallel as hp
from tests.graph import nets


def planned(shape, data=1, batch=None, sequence_parallel=False, break_it=None, **changes):
    """A network of `nets` under the plan for this job, with `data` data-parallel ranks.

    Args:
        shape: family.
        data: size of the axis `dp`.
        batch: sequences of the whole batch; one a data rank by default.
        sequence_parallel: cut activations between regions.
        break_it: `(path of a primitive, strategy)` that is set in place of the right one.
    """
    world = get_group_size()
    cell = nets.build(shape, **changes)
    plan = hp.plan(cell, tp=world // data, sequence_parallel=sequence_parallel)
    strategies = hp.to_mindspore_strategies(cell, plan, {"dp": data, "tp": world // data}, set_on_cell=False)
    if break_it is not None:
        path, strategy = break_it
        owner, _, name = path.rpartition(".")
        dict(cell.cells_and_names())[owner]._primitives[name].shard(tuple(tuple(one) for one in strategy))
    strategies.set_on(cell)
    return cell, (Tensor(np.zeros((batch or data, nets.LENGTH), np.int32), mindspore.int32),)
