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
"""Small helpers the stand-ins share: dtypes the CPU cannot compute in, host copies, dimension numbers."""
import numpy as np
from mindspore import Tensor
from mindspore.common import dtype as mstype

HALF_TYPES = (mstype.float16, mstype.bfloat16)
FLOAT_TYPES = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)


def as_float32(value):
    """`value` in float32 if it is a float16 or bfloat16 tensor, unchanged otherwise; differentiable."""
    if isinstance(value, Tensor) and value.dtype in HALF_TYPES:
        return value.astype(mstype.float32)
    return value


def to_host(tensor: Tensor) -> np.ndarray:
    """A numpy copy; bfloat16, which numpy does not know, becomes float32."""
    return as_float32(tensor).asnumpy()


def positive_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front.

    Raises:
        ValueError: if `dim` is outside `[-rank, rank)`.
    """
    if not -rank <= dim < max(rank, 1):
        raise ValueError(f"dim {dim} is out of range for a tensor of {rank} dims: use {-rank} to {rank - 1}.")
    return dim % max(rank, 1)
