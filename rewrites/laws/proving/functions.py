"""Functions of single numbers: their definitions by other functions, their values at a negated number, and pairs that
undo each other. By these laws entries have one form (rewrites/proofs/function_forms.py), each used by the shape of its
left side."""

from opmatrix.algebra.nodes import SCALAR_FUNCTIONS, exp, magnitude, reciprocal
from opmatrix.algebra.operators import I, const, gelu, gelu_tanh, relu, rsqrt, sigmoid, silu, softplus, square, tanh
from rewrites.laws.law import SIMPLIFY, Sort, collect, law, n

DEFINITION, REFLECTION, INVERSE, SIGN = "definition", "f(-u) by f(u)", "inverse functions", "no number is negative"
any_numbers = Sort("value")  # numbers that may depend on the input
SMALL_NUMBERS = 1.0  # for larger numbers e^u overflows float64


def negated(x):
    """Multiply by minus one."""
    return x @ (I * -1.0)


# ---- definitions


@law(phase=SIMPLIFY, source=DEFINITION)
def square_is(x: any_numbers[n]):
    """A number times itself."""
    return x @ square, x * x


@law(phase=SIMPLIFY, source=DEFINITION)
def silu_is(x: any_numbers[n]):
    """A number times its logistic function."""
    return x @ silu, x * (x @ sigmoid)


@law(phase=SIMPLIFY, source=DEFINITION)
def tanh_is(x: any_numbers[n]):
    """The logistic function of twice the number, stretched to lie between -1 and 1."""
    return x @ tanh, (x @ (I * 2.0)) @ sigmoid @ (I * 2.0) + const(-1.0)


@law(phase=SIMPLIFY, source=DEFINITION)
def magnitude_is(x: any_numbers[n]):
    """Twice what is positive, less all."""
    return x @ magnitude, x @ relu @ (I * 2.0) + negated(x)


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def expm1_is(x: any_numbers[n]):
    """One less than the power."""
    return x @ SCALAR_FUNCTIONS["expm1"], x @ exp + const(-1.0)


@law(phase=SIMPLIFY, source=DEFINITION)
def elu_is(x: any_numbers[n]):
    """The positive part, plus e to the negative part, less one."""
    return x @ SCALAR_FUNCTIONS["elu"], (x @ relu + (x + negated(x @ relu)) @ exp) + const(-1.0)


# ---- functions of a negated number


@law(phase=SIMPLIFY, source=REFLECTION)
def relu_of_minus(x: any_numbers[n]):
    """relu(u) - relu(-u) = u."""
    return negated(x) @ relu, x @ relu + negated(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def gelu_of_minus(x: any_numbers[n]):
    """gelu(u) - gelu(-u) = u, since a normal number is as often above -u as below u."""
    return negated(x) @ gelu, x @ gelu + negated(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def gelu_tanh_of_minus(x: any_numbers[n]):
    """gelu's approximation by a tanh less that of -u is u, as tanh is odd."""
    return negated(x) @ gelu_tanh, x @ gelu_tanh + negated(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def softplus_of_minus(x: any_numbers[n]):
    """softplus(u) - softplus(-u) = u."""
    return negated(x) @ softplus, x @ softplus + negated(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def sigmoid_of_minus(x: any_numbers[n]):
    """sigmoid(u) + sigmoid(-u) = 1."""
    return negated(x) @ sigmoid, negated(x @ sigmoid) + const(1.0)


# ---- functions of another function


@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL_NUMBERS)
def log_of_exp(x: any_numbers[n]):
    """The logarithm undoes the power; the power undoes the logarithm of positive numbers alone."""
    return x @ exp @ SCALAR_FUNCTIONS["log"], x


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def reciprocal_of_exp(x: any_numbers[n]):
    """One over a power is that of the negated number."""
    return x @ exp @ reciprocal, negated(x) @ exp


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def rsqrt_of_exp(x: any_numbers[n]):
    """One over the root of a power is that of minus half the number."""
    return x @ exp @ rsqrt, x @ (I * -0.5) @ exp


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def reciprocal_of_one_and_exp(x: any_numbers[n]):
    """1 / (1 + e^u) is the logistic function of -u."""
    return (x @ exp + const(1.0)) @ reciprocal, negated(x) @ sigmoid


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def log_of_one_and_exp(x: any_numbers[n]):
    """A smooth relu."""
    return (x @ exp + const(1.0)) @ SCALAR_FUNCTIONS["log"], x @ softplus


@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL_NUMBERS)
def exp_of_softplus(x: any_numbers[n]):
    """The power undoes its logarithm, as 1 + e^u is positive."""
    return x @ softplus @ exp, x @ exp + const(1.0)


@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL_NUMBERS)
def log_of_sigmoid(x: any_numbers[n]):
    """The logarithm of 1 / (1 + e^-u), as it is computed where that is next to nothing."""
    return x @ sigmoid @ SCALAR_FUNCTIONS["log"], negated(negated(x) @ softplus)


@law(phase=SIMPLIFY, source=INVERSE)
def reciprocal_twice(x: any_numbers[n]):
    """One over one over a number is the number."""
    return x @ reciprocal @ reciprocal, x


@law(phase=SIMPLIFY, source=DEFINITION)
def reciprocal_of_magnitude(x: any_numbers[n]):
    """One over a number has its sign."""
    return x @ magnitude @ reciprocal, x @ reciprocal @ magnitude


@law(phase=SIMPLIFY, source=DEFINITION)
def rsqrt_of_reciprocal(x: any_numbers[n]):
    """Roots of one over a number, where there are any, are one over its roots."""
    return x @ reciprocal @ rsqrt, x @ rsqrt @ reciprocal


@law(phase=SIMPLIFY, source=DEFINITION)
def rsqrt_of_square(x: any_numbers[n]):
    """The root of a square has no sign."""
    return x @ square @ rsqrt, x @ reciprocal @ magnitude


@law(phase=SIMPLIFY, source="log(u^c) = c log u")
def log_of_reciprocal(x: any_numbers[n]):
    """The logarithm of one over a number is that of the number, negated: neither has one for numbers below zero."""
    return x @ reciprocal @ SCALAR_FUNCTIONS["log"], negated(x @ SCALAR_FUNCTIONS["log"])


@law(phase=SIMPLIFY, source="log(u^c) = c log u")
def log_of_rsqrt(x: any_numbers[n]):
    """The logarithm of one over a root is half of that of the number, negated."""
    return x @ rsqrt @ SCALAR_FUNCTIONS["log"], x @ SCALAR_FUNCTIONS["log"] @ (I * -0.5)


@law(phase=SIMPLIFY, source="log(u^c) = c log u")
def log_of_square(x: any_numbers[n]):
    """The logarithm of a square is twice that of the number without its sign."""
    return x @ square @ SCALAR_FUNCTIONS["log"], x @ magnitude @ SCALAR_FUNCTIONS["log"] @ (I * 2.0)


# ---- functions without negative values


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_relu(x: any_numbers[n]):
    """Numbers that are not negative stay."""
    return x @ relu @ relu, x @ relu


@law(phase=SIMPLIFY, source=SIGN, largest=SMALL_NUMBERS)
def relu_of_exp(x: any_numbers[n]):
    """A power is positive."""
    return x @ exp @ relu, x @ exp


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_sigmoid(x: any_numbers[n]):
    """A logistic function is positive."""
    return x @ sigmoid @ relu, x @ sigmoid


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_softplus(x: any_numbers[n]):
    """A smooth relu is positive."""
    return x @ softplus @ relu, x @ softplus


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_rsqrt(x: any_numbers[n]):
    """One over a root is positive, where there is a root."""
    return x @ rsqrt @ relu, x @ rsqrt


# ---- products of a function with itself or another


@law(phase=SIMPLIFY, source="relu(u) is u or 0")
def relu_squared(x: any_numbers[n]):
    """relu, where it is not zero, is its number."""
    return (x @ relu) * (x @ relu), x * (x @ relu)


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL_NUMBERS)
def exp_by_sigmoid(x: any_numbers[n]):
    """e^-u / (1 + e^-u) is the logistic function of -u."""
    return (negated(x) @ exp) * (x @ sigmoid), negated(x @ sigmoid) + const(1.0)


FUNCTION_LAWS = collect(globals())
