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
"""One call of every operator that has a propagation rule: what the simulated and the distributed tests run.

Dims are multiples of 4,
so that two axes of 2 ranks can cut any of them. A case whose function is one dispatched operator
can be simulated in one process; the others (compositions of stand-ins) run on ranks only.
"""
from typing import Callable, NamedTuple, Sequence

import numpy as np
from mindspore import Tensor, mint, ops
from mindspore import dtype as mstype

F = mint.nn.functional


class Case(NamedTuple):
    """An operator's call.

    Attributes:
        name: of the case.
        function: takes tensors, plain or distributed.
        arrays: the whole inputs.
        gradient: whether float inputs get a gradient.
        single: whether the function is one dispatched operator.
        close: relative tolerance.
    """

    name: str
    function: Callable
    arrays: Sequence[np.ndarray]
    gradient: bool = True
    single: bool = True
    close: float = 1e-5


def floats(*shape, seed=0, positive=False):
    """Different numbers, away from zero when positive."""
    drawn = np.random.default_rng(seed + 7 * len(shape)).normal(size=shape).astype(np.float32)
    return np.abs(drawn) + 0.5 if positive else drawn


def whole_numbers(high, *shape, seed=0):
    """Indices below `high`."""
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int64)


def distinct(*shape):
    """No two numbers are equal, so that orders are unambiguous."""
    return (np.random.default_rng(3).permutation(int(np.prod(shape))).reshape(shape) / 7 - 2).astype(np.float32)


A, B, ROW, COLUMN = floats(4, 8), floats(4, 8, seed=1), floats(8, seed=2), floats(4, 1, seed=3)
POSITIVE, MASK = floats(4, 8, positive=True), floats(4, 8, seed=5) > 0
CUBE, WEIGHT, OTHER_CUBE = floats(4, 8, 4), floats(8, 4, seed=1), floats(4, 4, 8, seed=6)
DISTINCT, IDS = distinct(4, 8), whole_numbers(8, 4, 4)
CHOSEN = np.array([True, False, True, True])
SHORT = Tensor(np.array([2, 0, 3]))


def _unary():
    functions = dict(
        neg=lambda x: -x, exp=mint.exp, silu=F.silu, sigmoid=mint.sigmoid, tanh=mint.tanh, relu=F.relu,
        square=mint.square,
        abs=lambda x: x.abs(), sin=mint.sin, cos=mint.cos, scale=lambda x: x * 2.5, scale_left=lambda x: 3 * x,
        shift=lambda x: x + 1, lower=lambda x: x - 1, over=lambda x: x / 2,
        cast_half=lambda x: x.astype(mstype.float16),
        to_float=lambda x: x.float(), power=lambda x: x ** 2, clamp=lambda x: mint.clamp(x, -1, 1),
        stop=ops.stop_gradient, erf=mint.erf, expm1=mint.expm1, from_one=lambda x: 1 - x, softplus=ops.softplus)
    for name, function in functions.items():
        yield Case(name, function, [A], gradient=name not in ("cast_half", "stop"), single=name != "softplus",
                   close=5e-3 if name == "cast_half" else 1e-4)
    for name, function in dict(rsqrt=mint.rsqrt, sqrt=mint.sqrt, log=mint.log, reciprocal=mint.reciprocal,
                               one_over=lambda x: 1 / x, log1p=mint.log1p).items():
        yield Case(name, function, [POSITIVE], close=1e-4)
    yield Case("to_int", lambda x: x.astype(mstype.int32), [A * 10], gradient=False)
    yield Case("logical_not", mint.logical_not, [MASK], gradient=False)


def _binary():
    functions = dict(add=lambda x, y: x + y, sub=lambda x, y: x - y, mul=lambda x, y: x * y, div=lambda x, y: x / y,
                     maximum=mint.maximum, minimum=mint.minimum, sub_alpha=lambda x, y: mint.sub(x, y, alpha=2))
    for name, function in functions.items():
        for kind, second in dict(same=np.abs(B) + 0.5, row=np.abs(ROW) + 0.5, column=np.abs(COLUMN) + 0.5).items():
            yield Case(f"{name}_{kind}", function, [A, second], single=name != "sub_alpha", close=1e-4)
    for name, function in dict(greater=lambda x, y: x > y, less=lambda x, y: x < y, equal=lambda x, y: x == y,
                               not_equal=lambda x, y: x != y, at_least=lambda x, y: x >= y).items():
        yield Case(name, function, [A, B], gradient=False)
    yield Case("above_number", lambda x: x > 0, [A], gradient=False)
    yield Case("logical_and", mint.logical_and, [MASK, ~MASK], gradient=False)
    yield Case("pow", mint.pow, [POSITIVE, B], close=1e-4)
    yield Case("addn", lambda x, y: ops.addn([x, y]), [A, B])
    yield Case("where", mint.where, [MASK, A, B])
    yield Case("masked_fill", lambda x, m: ops.masked_fill(x, m, 1.5), [A, MASK])
    yield Case("masked_fill_method", lambda x, m: x.masked_fill(m, -2.0), [A, MASK])
    yield Case("lerp", lambda x, y: mint.lerp(x, y, 0.25), [A, B])
    yield Case("floor_div", lambda x: x // 2, [A], gradient=False)


def _products():
    yield Case("matmul", mint.matmul, [A, WEIGHT])
    yield Case("matmul_batched", mint.matmul, [CUBE, floats(4, 4, 8, seed=4)])
    yield Case("matmul_broadcast", mint.matmul, [CUBE, floats(4, 4, seed=4)])
    yield Case("matmul_heads", mint.matmul, [floats(2, 4, 4, 8), floats(4, 8, 4, seed=1)])
    yield Case("matmul_vector", mint.matmul, [A, ROW])
    yield Case("matmul_vectors", mint.matmul, [ROW, ROW + 1])
    yield Case("bmm", mint.bmm, [CUBE, OTHER_CUBE])
    yield Case("matmul_primitive", ops.MatMul(transpose_b=True), [A, B])
    yield Case("matmul_primitive_left", ops.MatMul(transpose_a=True), [A, B])
    yield Case("batch_matmul_primitive", ops.BatchMatMul(transpose_b=True), [CUBE, CUBE + 1])
    yield Case("linear", F.linear, [CUBE, floats(8, 4, seed=1)])
    yield Case("linear_bias", F.linear, [A, B, floats(4, seed=9)])
    yield Case("bias_add", ops.BiasAdd(), [A, ROW])
    yield Case("outer", mint.outer, [ROW, floats(4)])


def _reductions():
    for name, function in dict(sum=mint.sum, mean=mint.mean).items():
        yield Case(f"{name}_all", function, [A])
        for dim in (0, 1, -1):
            yield Case(f"{name}_{dim}", lambda x, f=function, d=dim: f(x, dim=d), [CUBE])
        yield Case(f"{name}_two_kept", lambda x, f=function: f(x, dim=(0, 2), keepdim=True), [CUBE])
    yield Case("sum_method", lambda x: x.sum(), [A])
    yield Case("mean_method", lambda x: x.mean(-1), [A])
    yield Case("reduce_sum_primitive", lambda x: ops.ReduceSum(keep_dims=True)(x, 1), [A])
    yield Case("amax", lambda x: mint.amax(x, 1), [DISTINCT])
    yield Case("amin", lambda x: ops.amin(x, 0), [DISTINCT])
    yield Case("max_all", lambda x: x.max(), [DISTINCT])
    yield Case("min_all", lambda x: x.min(), [DISTINCT])
    yield Case("max_dim", lambda x: mint.max(x, dim=1), [DISTINCT])
    yield Case("min_dim", lambda x: mint.min(x, 0, True), [DISTINCT])
    yield Case("max_method", lambda x: x.max(axis=1), [DISTINCT])
    yield Case("min_method", lambda x: x.min(axis=0, keepdims=True), [DISTINCT])
    yield Case("max_method_with_index", lambda x: x.max(axis=1, return_indices=True), [DISTINCT], gradient=False)
    yield Case("argmax_method", lambda x: x.argmax(-1), [DISTINCT], gradient=False)
    yield Case("var_method", lambda x: x.var(axis=1), [A], gradient=False, close=1e-4)
    yield Case("equals_number", lambda x: x == 2, [IDS], gradient=False)
    yield Case("argmax", ops.Argmax(1), [DISTINCT], gradient=False)
    yield Case("topk", lambda x: ops.topk(x, 3), [DISTINCT], gradient=False)
    yield Case("mint_topk", lambda x: mint.topk(x, 2, 0), [DISTINCT], gradient=False, single=False)
    yield Case("sort", lambda x: ops.Sort(axis=0)(x), [DISTINCT], gradient=False)
    yield Case("cumsum", lambda x: ops.cumsum(x, 0), [A])
    yield Case("all", mint.all, [MASK], gradient=False)
    yield Case("any_dim", lambda x: mint.any(x, 1), [MASK], gradient=False)
    yield Case("prod", lambda x: ops.ReduceProd()(x, 1), [POSITIVE], close=1e-4)


def _norms():
    yield Case("softmax", lambda x: mint.softmax(x, -1), [CUBE])
    yield Case("softmax_inner", lambda x: F.softmax(x, dim=1), [CUBE])
    yield Case("softmax_primitive", ops.Softmax(0), [A])
    yield Case("log_softmax", lambda x: ops.log_softmax(x, -1), [A])
    yield Case("rms_norm", lambda x, w: ops.rms_norm(x, w)[0], [CUBE, floats(4, seed=8)])
    yield Case("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), [CUBE, floats(4), floats(4, seed=1)],
    close=1e-4)
    yield Case("layer_norm_primitive", lambda x, w, b: ops.LayerNorm(1, 1)(x, w, b)[0], [A, ROW, ROW + 1], close=1e-3)


def _shapes():
    functions = dict(
        merge=lambda x: x.reshape(32, 4), merge_last=lambda x: mint.reshape(x, (4, -1)), flatten=lambda x: x.flatten(),
        flatten_inner=lambda x: mint.flatten(x, 1, 2), split_first=lambda x: x.reshape(2, 2, 8, 4),
        heads=lambda x: mint.reshape(x, (4, 4, 2, 4)),
        same=lambda x: x.reshape(4, 8, 4), ones=lambda x: x.reshape(4, 1, 8, 4), regroup=lambda x: x.reshape(8, 16),
        view=lambda x: x.view(-1),
        transpose=lambda x: mint.transpose(x, 0, 2), permute=lambda x: x.permute(2, 0, 1),
        order=lambda x: ops.transpose(x, (1, 2, 0)),
        swap=lambda x: x.swapaxes(0, 1), reverse=lambda x: x.T, unsqueeze=lambda x: mint.unsqueeze(x, 1),
        expand_dims=lambda x: ops.expand_dims(x, -1),
        tile=lambda x: mint.tile(x, (1, 2, 1)), tile_more=lambda x: ops.tile(x, (2, 1, 1, 1)),
        flip=lambda x: mint.flip(x, (1,)),
        triu=lambda x: mint.triu(x), contiguous=lambda x: x.contiguous(), broadcast=lambda x: mint.broadcast_to(x, (2,
        4, 8, 4)),
        split=lambda x: mint.split(x, 2, dim=1), split_sizes=lambda x: mint.split(x, [1, 3], dim=-1),
        split_legacy=lambda x: ops.split(x, 4, axis=1), chunk=lambda x: mint.chunk(x, 2, dim=0),
        unbind=lambda x: mint.unbind(x, 1),
        narrow=lambda x: mint.narrow(x, 1, 2, 4), narrow_whole=lambda x: mint.narrow(x, 1, 0, 8),
        select=lambda x: mint.select(x, 1, 3),
        slice=lambda x: ops.slice(x, (0, 1, 0), (4, 2, 4)), strided=lambda x: ops.strided_slice(x, (0, 2, 0), (4, 8,
        4), (1, 1, 1)),
        strided_gone=lambda x: ops.strided_slice(x, (0, 3, 0), (4, 4, 4), (1, 1, 1), shrink_axis_mask=2),
        item=lambda x: x[1], item_last=lambda x: x[..., -1], ranges=lambda x: x[:, 2:6], steps=lambda x: x[::2, :, 1:],
        new=lambda x: x[:, None], two=lambda x: x[1, :, 2], rows=lambda x: x[SHORT], columns=lambda x: x[:, SHORT],
        listed=lambda x: x[[0, 2]], whole=lambda x: x[:], pair=lambda x: x[SHORT, SHORT],
        repeat=lambda x: ops.repeat_interleave(x, 2, 1))
    for name, function in functions.items():
        yield Case(f"shape_{name}", function, [CUBE], single=name not in ("repeat", "contiguous"))
    one = floats(4, 1, 8)
    yield Case("squeeze", lambda x: mint.squeeze(x, 1), [one])
    yield Case("squeeze_all", lambda x: x.squeeze(), [one])
    yield Case("squeeze_nothing", lambda x: mint.squeeze(x, 0), [one])
    yield Case("expand", lambda x: x.expand((4, 4, 8)), [one])
    yield Case("expand_kept", lambda x: mint.broadcast_to(x, (4, 4, 8)), [one])
    yield Case("repeat_heads", lambda x: mint.tile(x, (1, 4, 1)), [one])
    yield Case("cat", lambda x, y: mint.cat([x, y], 0), [A, B])
    yield Case("cat_last", lambda x, y: ops.cat((x, y), -1), [CUBE, CUBE + 1])
    yield Case("concat_primitive", lambda x, y: ops.Concat(1)((x, y)), [A, B])
    yield Case("stack", lambda x, y: ops.stack([x, y], 1), [A, B])
    yield Case("mint_stack", lambda x, y: mint.stack([x, y], -1), [A, B])


def _indices():
    yield Case("gather", lambda x, i: ops.gather(x, i, 0), [WEIGHT, IDS])
    yield Case("gather_columns", lambda x, i: ops.gather(x, i, 1), [A, IDS])
    yield Case("gather_method", lambda x, i: x.gather(i, 0), [WEIGHT, IDS])
    yield Case("gather_elements", lambda x, i: mint.gather(x, 1, i), [A, whole_numbers(8, 4, 4)])
    yield Case("gather_elements_rows", lambda x, i: mint.gather(x, 0, i), [A, whole_numbers(4, 8, 8)])
    yield Case("gather_batched", lambda x, i: ops.gather(x, i, 2, 1), [CUBE, whole_numbers(4, 4, 8)])
    yield Case("gather_batched_rows", lambda x, i: ops.gather(x, i, 1, 1), [CUBE, whole_numbers(8, 4, 4)])
    yield Case("rows_by_mask", lambda x: x[Tensor(CHOSEN)], [CUBE])
    yield Case("columns_by_mask", lambda x: x[:, Tensor(CHOSEN.repeat(2))], [CUBE])
    yield Case("two_dims_by_mask", lambda x, m: x[m], [CUBE, MASK])
    yield Case("embedding", F.embedding, [IDS, WEIGHT])
    yield Case("index_select", lambda x, i: mint.index_select(x, 1, i), [A, whole_numbers(8, 4)])
    yield Case("one_hot", lambda i: ops.one_hot(i, 8, Tensor(1.0), Tensor(0.0)), [IDS], gradient=False)
    yield Case("indexed_by_dtensor", lambda x, i: x[i], [A, whole_numbers(4, 8)])
    yield Case("scatter", lambda x, i, s: mint.scatter(x, 1, i, s),
               [A, np.tile(np.arange(4, dtype=np.int64), (4, 1)), floats(4, 4, seed=3)])


def _creations():
    yield Case("zeros_like", mint.zeros_like, [A], gradient=False)
    yield Case("ones_like", ops.ones_like, [A], gradient=False)
    yield Case("full_like", lambda x: mint.full_like(x, 2.0), [A], gradient=False)
    yield Case("new_zeros", lambda x: x.new_zeros((2, 3)), [A], gradient=False)


def _compositions():
    yield Case("gelu", ops.gelu, [A], single=False, close=1e-4)
    yield Case("swiglu", lambda x: F.silu(x[..., :4]) * x[..., 4:], [A], single=False)
    yield Case("hand_rms_norm", lambda x, w: x * mint.rsqrt(mint.mean(mint.square(x), dim=-1, keepdim=True) + 1e-6) * w,
               [CUBE, floats(4, seed=8)], single=False, close=1e-4)
    yield Case("mlp", lambda x, up, down: F.linear(F.silu(F.linear(x, up)), down), [A, floats(8, 8), floats(4, 8,
    seed=2)],
               single=False, close=1e-4)
    yield Case("attention", _attention, [floats(4, 4, 8, seed=s) for s in range(3)], single=False, close=1e-4)
    yield Case("plain_first", lambda x: Tensor(B) * x, [A], single=False)
    yield Case("plain_cat", lambda x: mint.cat([Tensor(B), x], 1), [A], single=False)
    yield Case("used_twice", lambda x: x * x + x, [A], single=False)


def _attention(q, k, v):
    def heads(x):
        return mint.transpose(x.reshape(4, 4, 4, 2), 1, 2)
    scores = mint.softmax(mint.matmul(heads(q), mint.transpose(heads(k), 2, 3)) * 0.5, -1)
    return mint.transpose(mint.matmul(scores, heads(v)), 1, 2).reshape(4, 4, 8)


def all_cases():
    """Every case."""
    return [*_unary(), *_binary(), *_products(), *_reductions(), *_norms(), *_shapes(), *_indices(), *_creations(),
            *_compositions()]
