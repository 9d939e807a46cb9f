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
"""Embedding tables: cut along the rows, each rank gives the rows it holds and zeros, and the sum is the embedding."""
from hyper_parallel.core.dtensor.ops.indexing import gathered
from hyper_parallel.core.dtensor.ops.registry import rule


@rule("Embedding", "EmbeddingExt")
def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False):
    """`input [i...], weight [V h] -> [i... h]`; what looks at the whole table needs it whole."""
    del norm_type
    spec = gathered(weight, input, 0)
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq:
        spec.whole |= {0}
    masked = spec.compute

    def compute(cut):
        run = masked(cut)
        if run is None:
            return None
        # The rule of gather has the table first.
        return lambda func, args, kwargs: run(lambda table, rows: func(rows, table, *args[2:], **kwargs),
                                              (args[1], args[0]), {})

    spec.compute = compute
    return spec
