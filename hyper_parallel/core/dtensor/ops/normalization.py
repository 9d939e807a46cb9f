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
"""Softmax and norms: what they normalise over stays whole, everything around it may be cut."""
from hyper_parallel.core.dtensor.ops.common import along, tensors
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import Spec, dims_of, own_labels


@rule("Softmax", "LogSoftmax")
def softmax(input, axis=-1):
    """Over one dim, or several."""
    return along(input, *dims_of(axis, input.ndim))


@rule("LogSoftmaxExt", "SoftmaxExt")
def softmax_with_dtype(input, dim=-1, dtype=None):
    """Over one dim."""
    del dtype
    return along(input, dim)


def _trailing(x, first, weights, statistics, keeps_dims):
    """Normalises the dims from `first` on with whole weights; statistics follow the result."""
    labels = own_labels(x, range(first, x.ndim))
    inputs = {x: labels, **{weight: (None,) * weight.ndim for weight in weights}}
    return Spec(inputs, [labels] + [labels if keeps_dims else labels[:first]] * statistics)


@rule("RmsNorm")
def rms_norm(x, gamma, epsilon=1e-6):
    """`(y, 1 / rms)`; gamma has the normalised dims."""
    del epsilon
    return _trailing(x, x.ndim - gamma.ndim, [gamma], 1, True)


@rule("LayerNormExt")
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """`y`, or `(y, mean, 1 / deviation)`."""
    del eps
    return _trailing(input, input.ndim - len(normalized_shape), tensors(weight, bias), 2, True)


@rule("LayerNorm", "LayerNormV3")
def layer_norm_legacy(x, gamma, beta, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7):
    """`(y, mean, variance)`."""
    del begin_params_axis, epsilon
    return _trailing(x, begin_norm_axis % x.ndim, [gamma, beta], 2, True)


@rule("GroupNorm")
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """`(y, mean, 1 / deviation)` over groups of channels: only the batch may be cut."""
    del num_groups, eps
    labels = own_labels(input, range(1, input.ndim))
    weights = {weight: (None,) * weight.ndim for weight in tensors(weight, bias)}
    return Spec({input: labels, **weights}, [labels, (0, None), (0, None)])
