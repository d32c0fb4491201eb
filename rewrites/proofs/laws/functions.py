"""Functions of single numbers by others: what each is made of, what it is of a negated number, which undo each other.
By these laws entries have one form (rewrites/proofs/function_forms.py), each used by the shape of its left side."""
from opmatrix.algebra.nodes import exp, magnitude, reciprocal
from opmatrix.algebra.operators import (
    I,
    const,
    elu,
    expm1,
    gelu,
    gelu_tanh,
    log,
    relu,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    square,
    tanh,
)
from rewrites.law import SIMPLIFY, Sort, collect, law, n

DEFINITION, REFLECTION, INVERSE, SIGN = "definition", "f(-u) by f(u)", "inverse functions", "no number is negative"
some = Sort("value")                                        # numbers, whatever they depend on
SMALL = 1.0                                                 # beyond it e to the power u is no number of float64


def minus(x): return x @ (I * -1.0)


# ---- what a function is made of

@law(phase=SIMPLIFY, source=DEFINITION)
def square_is(x: some[n]):
    """A number times itself."""
    return x @ square, x * x


@law(phase=SIMPLIFY, source=DEFINITION)
def silu_is(x: some[n]):
    """A number times its logistic function."""
    return x @ silu, x * (x @ sigmoid)


@law(phase=SIMPLIFY, source=DEFINITION)
def tanh_is(x: some[n]):
    """The logistic function of twice the number, stretched to lie between -1 and 1."""
    return x @ tanh, (x @ (I * 2.0)) @ sigmoid @ (I * 2.0) + const(-1.0)


@law(phase=SIMPLIFY, source=DEFINITION)
def magnitude_is(x: some[n]):
    """Twice what is positive, less all."""
    return x @ magnitude, x @ relu @ (I * 2.0) + minus(x)


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def expm1_is(x: some[n]):
    """One less than the power."""
    return x @ expm1, x @ exp + const(-1.0)


@law(phase=SIMPLIFY, source=DEFINITION)
def elu_is(x: some[n]):
    """What is positive, and the power of what is not, less one."""
    return x @ elu, (x @ relu + (x + minus(x @ relu)) @ exp) + const(-1.0)


# ---- of a negated number

@law(phase=SIMPLIFY, source=REFLECTION)
def relu_of_minus(x: some[n]):
    """relu(u) - relu(-u) = u."""
    return minus(x) @ relu, x @ relu + minus(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def gelu_of_minus(x: some[n]):
    """gelu(u) - gelu(-u) = u, since a normal number is as often above -u as below u."""
    return minus(x) @ gelu, x @ gelu + minus(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def gelu_tanh_of_minus(x: some[n]):
    """The same of gelu's approximation, as tanh is odd."""
    return minus(x) @ gelu_tanh, x @ gelu_tanh + minus(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def softplus_of_minus(x: some[n]):
    """softplus(u) - softplus(-u) = u."""
    return minus(x) @ softplus, x @ softplus + minus(x)


@law(phase=SIMPLIFY, source=REFLECTION)
def sigmoid_of_minus(x: some[n]):
    """sigmoid(u) + sigmoid(-u) = 1."""
    return minus(x) @ sigmoid, minus(x @ sigmoid) + const(1.0)


# ---- of another function

@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL)
def log_of_exp(x: some[n]):
    """The logarithm undoes the power; the power undoes the logarithm of positive numbers alone."""
    return x @ exp @ log, x


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def reciprocal_of_exp(x: some[n]):
    """One over a power is that of the negated number."""
    return x @ exp @ reciprocal, minus(x) @ exp


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def rsqrt_of_exp(x: some[n]):
    """One over the root of a power is that of minus half the number."""
    return x @ exp @ rsqrt, x @ (I * -0.5) @ exp


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def reciprocal_of_one_and_exp(x: some[n]):
    """1 / (1 + e^u) is the logistic function of -u."""
    return (x @ exp + const(1.0)) @ reciprocal, minus(x) @ sigmoid


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def log_of_one_and_exp(x: some[n]):
    """A smooth relu."""
    return (x @ exp + const(1.0)) @ log, x @ softplus


@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL)
def exp_of_softplus(x: some[n]):
    """The power undoes its logarithm, as 1 + e^u is positive."""
    return x @ softplus @ exp, x @ exp + const(1.0)


@law(phase=SIMPLIFY, source=INVERSE, largest=SMALL)
def log_of_sigmoid(x: some[n]):
    """The logarithm of 1 / (1 + e^-u), as it is computed where that is next to nothing."""
    return x @ sigmoid @ log, minus(minus(x) @ softplus)


@law(phase=SIMPLIFY, source=INVERSE)
def reciprocal_twice(x: some[n]):
    """One over one over a number is the number."""
    return x @ reciprocal @ reciprocal, x


# ---- no number of these is negative

@law(phase=SIMPLIFY, source=SIGN)
def relu_of_relu(x: some[n]):
    """What is not negative stays."""
    return x @ relu @ relu, x @ relu


@law(phase=SIMPLIFY, source=SIGN, largest=SMALL)
def relu_of_exp(x: some[n]):
    """A power is positive."""
    return x @ exp @ relu, x @ exp


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_sigmoid(x: some[n]):
    """A logistic function is positive."""
    return x @ sigmoid @ relu, x @ sigmoid


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_softplus(x: some[n]):
    """A smooth relu is positive."""
    return x @ softplus @ relu, x @ softplus


@law(phase=SIMPLIFY, source=SIGN)
def relu_of_rsqrt(x: some[n]):
    """One over a root is positive, where there is a root."""
    return x @ rsqrt @ relu, x @ rsqrt


# ---- products of a function with itself or another

@law(phase=SIMPLIFY, source="relu(u) is u or 0")
def relu_squared(x: some[n]):
    """Where relu is not zero it is the number."""
    return (x @ relu) * (x @ relu), x * (x @ relu)


@law(phase=SIMPLIFY, source=DEFINITION, largest=SMALL)
def exp_by_sigmoid(x: some[n]):
    """e^-u / (1 + e^-u) is the logistic function of -u."""
    return (minus(x) @ exp) * (x @ sigmoid), minus(x @ sigmoid) + const(1.0)


FUNCTION_LAWS = collect(globals())
