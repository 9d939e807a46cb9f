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
"""Operators that write into their first tensor: it stays as it lies, and the others are brought to it."""
from hyper_parallel.core.dtensor.ops.common import alone, pointwise, tensors, together
from hyper_parallel.core.dtensor.ops.indexing import scatter
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import LINEAR, MOVES, Passing


@rule("InplaceAddExt", "InplaceSubExt")
def add_(x, y, alpha=1):
    """A pending sum takes pending sums."""
    del alpha
    return pointwise(x, y, partial=together(LINEAR, x, y), inplace=True)


@rule("InplaceAddsExt", "InplaceSubScalar", "InplaceExp", "InplaceFloor", "InplaceFloorDivide", "InplaceFloorDivides",
      "InplaceClampScalar", "InplaceClampTensor", "InplaceReLU", "InplaceSiLU", "InplaceSigmoid", "InplaceTanh",
      "InplaceErfinv", "InplaceRemainderTensorScalar", "InplaceRemainderTensorTensor", "InplaceMaskedFillScalar",
      "InplaceMaskedFillTensor", "InplaceThreshold", "InplaceElu", "InplaceLog", "InplaceStopGradient")
def nonlinear_(x, *others, **named):
    """Nothing that is pending can be written."""
    return pointwise(x, *tensors(*others, *named.values()), inplace=True)


@rule("InplaceMul", "InplaceMuls", "InplaceDiv", "InplaceDivs")
def scale_(x, y):
    """A pending sum can be scaled by what is whole."""
    return pointwise(x, *tensors(y), partial=alone(LINEAR, x), inplace=True)


@rule("InplaceCopy")
def copy_(x, src, *others):
    """Cut as the target is; a pending target takes a pending source."""
    del others
    return pointwise(x, src, partial=together(MOVES, x, src), inplace=True)


@rule("InplaceZero")
def zero_(x):
    """Zeros add up to zeros."""
    return pointwise(x, partial=alone(MOVES, x), inplace=True)


@rule("InplaceFillScalar", "InplaceFillTensor")
def fill_(x, value):
    """A pending maximum, minimum or average of equal numbers is the number; a pending sum is not."""
    return pointwise(x, *tensors(value), partial=[Passing(("avg", "max", "min"), (x,))], inplace=True)


@rule("InplaceScatterValue", "InplaceScatterSrc", "InplaceScatterAdd", "InplaceScatterSrcReduce",
      "InplaceScatterValueReduce")
def scatter_(x, dim, index, src, *others):
    """Along a whole dim."""
    spec = scatter(x, dim, index, src, *others)
    spec.inplace = True
    return spec
