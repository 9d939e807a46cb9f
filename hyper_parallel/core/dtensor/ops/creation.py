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
"""New tensors in the likeness of one that is distributed."""
from hyper_parallel.core.dtensor.ops.common import pointwise
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import MOVES, Passing, Spec


@rule("ZerosLike", "ZerosLikeExt", "OnesLike", "OnesLikeExt", "FullLike", "EmptyLike")
def like(x, *others, **named):
    """Cut as the model is; the values do not depend on it."""
    del others, named
    return pointwise(x, partial=[Passing(MOVES, (x,), "replicate")])


@rule("NewZeros", "NewOnes", "NewFull", "NewEmpty")
def new(x, size, *others, **named):
    """Of another shape, and replicated."""
    del size, others, named
    labels = tuple(range(x.ndim))
    return Spec({x: labels}, [None], reduces=dict.fromkeys(labels, "replicate"),
                partial=[Passing(MOVES, (x,), "replicate")])
