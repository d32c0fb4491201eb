"""Twenty true laws of a user's own: some that pay, some that are of no use, some that subsume what is cheaper, some
that make graphs larger than their budget."""

from opmatrix.algebra.operators import magnitude, product, relu, turn
from opmatrix.algebra.term import KINDS
from rewrites.laws.law import SIMPLIFY, array, collect, column, law, matrix, n, p, q, value

square, silu, sigmoid = (KINDS[name]() for name in ("square", "silu", "sigmoid"))


@law()
def abs_squared(u: value[n]):
    return (u @ magnitude) * (u @ magnitude), u * u


@law()
def squared_abs(u: value[n]):
    return u @ magnitude @ square, u @ square


@law(phase=SIMPLIFY, canonical=True)
def square_as_product(u: value[n]):
    return u @ square, u * u


@law()
def product_as_square(u: value[n]):
    return u * u, u @ square


@law(phase=SIMPLIFY, canonical=True)
def relu_once(u: value[n]):
    return u @ relu @ relu, u @ relu


@law(both=True)
def relu_of_one(u: value[n]):
    return (u @ relu) * (u @ relu), (u @ relu) * u


@law(phase=SIMPLIFY, canonical=True)
def relu_is_positive(u: value[n]):
    return u @ relu @ magnitude, u @ relu


@law(phase=SIMPLIFY, canonical=True)
def silu_as_product(u: value[n]):
    return u @ silu, u * (u @ sigmoid)


@law()
def sum_the_other_way(u: value[n], v: value[n]):
    return u + v, v + u


@law(canonical=True)
def product_the_other_way(u: value[n], v: value[n]):
    return u * v, v * u


@law(both=True)
def sums_associate(u: value[n], v: value[n], w: value[n]):
    return (u + v) + w, u + (v + w)


@law(both=True)
def products_associate(u: value[n], v: value[n], w: value[n]):
    return (u * v) * w, u * (v * w)


@law(both=True)
def distribute(u: value[n], v: value[n], w: value[n]):
    return (u + v) * w, u * w + v * w


@law(both=True)
def abs_of_product(u: value[n], v: value[n]):
    return (u * v) @ magnitude, (u @ magnitude) * (v @ magnitude)


@law(both=True)
def sum_through(u: value[n], v: value[n], A: matrix[n, p]):
    return (u + v) @ A, u @ A + v @ A


@law(both=True)
def scale_early(u: value[n], r: column, A: matrix[n, p]):
    return (u * r) @ A, (u @ A) * r


@law(both=True)
def turned_twice(u: value[n]):
    return turn(turn(u)), u


@law(both=True)
def keys_first(u: value[n], v: value[n], w: value[p]):
    return product(product(u, turn(v)), w), product(u, product(turn(v), w))


@law()
def sum_of_scores(u: value[n], v: value[n], w: array[n, q]):
    return product(u + v, w), product(u, w) + product(v, w)


@law()
def sums_in_any_order(u: value[n], v: value[n], w: value[n]):
    return (u + v) + w, (w + u) + v


TRUE_LAWS = collect(globals())
