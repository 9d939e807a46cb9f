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
"""Element by element, with broadcasting."""
from hyper_parallel.core.dtensor.ops.common import alone, pointwise, tensors, together
from hyper_parallel.core.dtensor.ops.registry import rule
from hyper_parallel.core.dtensor.ops.spec import LINEAR, MOVES, Operand

UNARY = ("Abs", "Acos", "Asin", "Atan", "AtanExt", "BitwiseNot", "Ceil", "Cos", "Cosh", "Elu", "EluExt", "Erf", "Erfc",
         "Erfinv", "Exp", "Exp2", "Expm1", "Floor", "GeLU", "GeluExt", "HShrink", "HSigmoid", "HSwish", "IsFinite",
         "IsInf",
         "IsNan", "LeakyReLU", "LeakyReLUExt", "Log", "Log10", "Log1p", "Log2", "LogicalNot", "LogSigmoid",
         "LogSigmoidExt", "Mish", "NanToNum", "PowTensorScalar", "Reciprocal", "ReLU", "ReLU6", "RemainderTensorScalar",
         "Round", "Rsqrt", "Sigmoid", "Sign", "SiLU", "Silu", "Sin", "Sinc", "Sinh", "SoftplusExt", "Softplus",
         "Softshrink",
         "Sqrt", "Square", "Tan", "Tanh", "Trunc", "ClampScalar", "Clip", "AddScalar", "SubScalar", "ThresholdExt",
         "Threshold", "FastGeLU")
"""One tensor, not linear; whatever else they take are numbers."""

BINARY = ("Atan2", "Atan2Ext", "BitwiseAndScalar", "BitwiseAndTensor", "BitwiseOrScalar", "BitwiseOrTensor",
          "BitwiseXorScalar", "BitwiseXorTensor", "ClampTensor", "DivMod", "DivMods", "Equal", "FloorDiv",
          "FloorDivScalar",
          "FloorMod", "Fmod", "FmodScalar", "FmodTensor", "Greater", "GreaterEqual", "GreaterEqualScalar",
          "GreaterScalar",
          "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalXor", "Mod", "NotEqual", "NeScalar", "EqualScalar", "EqScalar",
          "Pow", "PowScalarTensor", "RemainderScalarTensor", "RemainderTensorTensor", "SquaredDifference", "Xlogy",
          "XLogYScalarOther", "XLogYScalarSelf", "DivNoNan", "TruncateDiv", "TruncateMod", "PReLU", "SiLUGrad",
          "ApproximateEqual", "LogAddExp", "IsClose", "Hypot")
"""Tensors and numbers, not linear in any of them."""


@rule(*UNARY, *BINARY)
def nonlinear(*arguments, **named):
    """Nothing passes while it is Partial."""
    return pointwise(*tensors(*arguments, *named.values()))


@rule("Add", "AddExt", "Sub", "SubExt")
def add(x, y, alpha=1):
    """Sums pass when both tensors are sums; a number would be counted once per rank."""
    del alpha
    operands = tensors(x, y)
    return pointwise(*operands, partial=together(LINEAR, *operands) if len(operands) == 2 else ())


@rule("AddN")
def add_many(operands):
    """Sums pass when all tensors are sums."""
    return pointwise(*operands, partial=together(LINEAR, *operands))


@rule("Mul", "Muls")
def mul(x, y):
    """Linear in each factor."""
    operands = tensors(x, y)
    return pointwise(*operands, partial=alone(LINEAR, *operands))


@rule("Div", "Divs", "RealDiv")
def div(x, y):
    """Linear in the numerator."""
    return pointwise(*tensors(x, y), partial=alone(LINEAR, *tensors(x)))


@rule("Neg")
def neg(x):
    """Linear."""
    return pointwise(x, partial=alone(LINEAR, x))


@rule("Maximum", "Fmax")
def maximum(x, y):
    """The larger of two pending maxima is the maximum of the larger ones."""
    operands = tensors(x, y)
    return pointwise(*operands, partial=together(("max",), *operands) if len(operands) == 2 else ())


@rule("Minimum", "Fmin")
def minimum(x, y):
    """As `maximum`."""
    operands = tensors(x, y)
    return pointwise(*operands, partial=together(("min",), *operands) if len(operands) == 2 else ())


@rule("Cast", "ToDtype", "ToOther")
def cast(x, dtype=None, *others, **named):
    """Between floats every reduction passes, up to the rounding of the narrower type."""
    del others, named
    return pointwise(x, partial=alone(MOVES, x) if _is_float(dtype) and _is_float(x.dtype) else ())


def _is_float(dtype):
    name = str(dtype.dtype if isinstance(dtype, Operand) else dtype)
    # MindSpore passes some dtypes as the numbers of its type ids: 42 to 45 and 48.
    return "loat" in name or name in ("42", "43", "44", "45", "48")


@rule("Clone", "Copy", "Identity", "Contiguous", "StopGradient", "Depend", "ContiguousView")
def copy(x, *others, **named):
    """Moves elements."""
    del others, named
    return pointwise(x, partial=alone(MOVES, x))


@rule("Select", "Where", "SelectV2")
def where(condition, x, y):
    """Sums pass when both branches are sums and the condition is whole."""
    branches = tensors(x, y)
    return pointwise(*tensors(condition), *branches, partial=together(MOVES, *branches) if len(branches) == 2 else ())


@rule("MaskedFill", "MaskedFillScalar", "MaskedFillScalars")
def masked_fill(x, mask, value):
    """The value is no summand, so nothing passes."""
    return pointwise(*tensors(x, mask, value))


@rule("Lerp", "LerpScalar")
def lerp(x, y, weight):
    """`x + weight * (y - x)`: sums pass when both ends are."""
    return pointwise(*tensors(x, y, weight), partial=together(LINEAR, x, y))


@rule("Addcmul", "AddcmulExt", "Addcdiv", "AddcdivExt")
def add_product(x, y, z, value=1):
    """`x + value * y * z`."""
    return pointwise(*tensors(x, y, z, value))
