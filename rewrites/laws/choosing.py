"""Chosen columns, `x @ P` with one 1 in each column of P, pass every operator that treats columns alike. They lead from
a weight with rows of zeros to smaller weights before it (rewrites/approximate/structured.py). The search has no use for
them, as it never widens a value."""

from rewrites.laws.law import choice, collect, entrywise, law, matrix, n, p, value

SOURCE = "columns apart"


@law(source=SOURCE, without=(dict(P=matrix[n, p]),))
def choose_entries(x: value[n], f: entrywise, P: choice[n, p]):
    """A function of single entries may be taken of the chosen columns alone."""
    return (x @ f) @ P, (x @ P) @ f


@law(source=SOURCE, without=(dict(P=matrix[n, p]),))
def choose_of_product(x: value[n], y: value[n], P: choice[n, p]):
    """Columns of an entrywise product are products of columns: a gate loses what its fellow loses."""
    return (x * y) @ P, (x @ P) * (y @ P)


@law(source="linearity")
def choose_of_sum(x: value[n], y: value[n], P: choice[n, p]):
    """Columns of a sum are sums of columns. True of any P that is a matrix."""
    return (x + y) @ P, x @ P + y @ P


CHOOSING_LAWS = collect(globals())
