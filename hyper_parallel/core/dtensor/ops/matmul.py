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
"""Products of matrices: rows and columns may be cut, and the inner dim, whose products are then summands."""
from hyper_parallel.core.dtensor.ops.common import alone, together
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import LINEAR, Operand, Spec, aligned_labels, broadcast_shape


def _batched(x, y, x_matrix, y_matrix, outer):
    """`[batch..., *x_matrix] x [batch..., *y_matrix] -> [batch..., *outer]`, batches broadcast."""
    batches = [Operand(-1, operand.shape[:operand.ndim - len(matrix)])
               for operand, matrix in ((x, x_matrix), (y, y_matrix))]
    shape = broadcast_shape(*batches)
    x_batch, y_batch = (aligned_labels(batch, shape) for batch in batches)
    return Spec({x: (*x_batch, *x_matrix), y: (*y_batch, *y_matrix)}, [(*range(len(shape)), *outer)],
                reduces={"k": "sum"}, partial=alone(LINEAR, x, y))


@rule("MatMulExt", "Matmul")
def matmul(x, y):
    """As numpy: a vector has no row or no column."""
    return _batched(x, y, ("m", "k") if x.ndim > 1 else ("k",), ("k", "n") if y.ndim > 1 else ("k",),
                    (("m",) if x.ndim > 1 else ()) + (("n",) if y.ndim > 1 else ()))


@rule("MatMul", "BatchMatMul")
def matmul_transposed(x, y, transpose_a=False, transpose_b=False):
    """With either matrix transposed."""
    return _batched(x, y, ("k", "m") if transpose_a else ("m", "k"), ("n", "k") if transpose_b else ("k", "n"),
                    ("m", "n"))


@rule("BatchMatMulExt", "Mm", "MmExt", "Bmm")
def plain_matmul(x, y):
    """Matrices, or batches of equal size."""
    return _batched(x, y, ("m", "k"), ("k", "n"), ("m", "n"))


@rule("Mv")
def matrix_vector(x, y):
    """`[m k] x [k] -> [m]`."""
    return matmul(x, y)


@rule("Dot")
def dot(x, y):
    """`[k] x [k] -> []`."""
    return matmul(x, y)


@rule("Outer", "Ger")
def outer(x, y):
    """`[m] x [n] -> [m n]`."""
    return Spec({x: ("m",), y: ("n",)}, [("m", "n")], partial=alone(LINEAR, x, y))


@rule("Dense")
def dense(x, w, b=None):
    """`x [... k] x w [n k] + b [n]`; where k is cut, one rank adds the bias."""
    rows = tuple(range(x.ndim - 1))
    columns = ("n",) if w.ndim > 1 else ()
    inputs = {x: (*rows, "k"), w: (*columns, "k")}
    if b is None:
        return Spec(inputs, [(*rows, *columns)], reduces={"k": "sum"}, partial=alone(LINEAR, x, w))
    inputs[b] = columns
    return Spec(inputs, [(*rows, *columns)], reduces={"k": "sum"}, compute=_bias_on_first,
                partial=together(LINEAR, x, b) + together(LINEAR, w, b))


def _bias_on_first(cut):
    if cut.parts("k") == 1 or cut.area("k")[0] == 0:
        return None
    # Multiplied, not left out: the collectives of the bias' own backward have to run on every rank.
    return lambda func, args, kwargs: func(args[0], args[1], args[2] * 0)


@rule("BiasAdd")
def bias_add(x, b, data_format="NCHW"):
    """The bias lies along dim 1, or along the last dim of NHWC."""
    del data_format
    labels = tuple(range(x.ndim))
    return Spec({x: labels, b: (1,)}, [labels], partial=together(LINEAR, x, b))


@rule("Addmm", "Baddbmm")
def add_matmul(added, x, y, beta=1, alpha=1):
    """`beta * added + alpha * x @ y`; the inner dim stays whole, since `added` counts once."""
    del beta, alpha
    product = _batched(x, y, ("m", "k"), ("k", "n"), ("m", "n"))
    out = product.outputs[0]
    shape = (*x.shape[:-1], y.shape[-1])
    offset = len(shape) - added.ndim
    labels = tuple(out[offset + dim] if size == shape[offset + dim] else None for dim, size in enumerate(added.shape))
    return Spec({**product.inputs, added: labels}, [out],
                partial=together(LINEAR, added, x) + together(LINEAR, added, y))
