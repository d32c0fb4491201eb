"""What sums, products and compositions mean, as laws of any values and operators, stored or not. They serve the proof
that two statements are equal (equal.py), not the search."""

from opmatrix.algebra.monoids import max as maximum
from opmatrix.algebra.monoids import mean, softmax
from opmatrix.algebra.monoids import sum as summed
from opmatrix.algebra.operators import (
    I,
    const,
    exp,
    gated_linear_attention,
    heads,
    keep_top,
    linear_attention,
    ones,
    pick,
    product,
    repeat,
    row,
    scan,
    share,
    shift,
    total,
    turn,
)
from opmatrix.algebra.term import KINDS
from rewrites.laws.kinds import adjoint, behind, blank, by_head, joined, left, right
from rewrites.laws.law import (
    Sort,
    array,
    collect,
    column,
    constant,
    count,
    h,
    k,
    lag,
    law,
    matrix,
    n,
    normalised,
    operator,
    over,
    p,
    placed,
    prefix,
    q,
    reflexive,
    relation,
    right_linear,
    scalar,
    shift_invariant,
    up_to_each,
    where,
)

value, scores = Sort("value"), Sort("scores")  # any value, whether or not it depends on the input
level = Sort("level", ("level",))
alike = Sort("alike_rows", ("by_key",))
factors = Sort("column", ("column",))  # a number for each row
additive, by_rows = Sort("matrix", ("additive",)), Sort("rotation", ("row_linear",))
number = Sort("scalar", ("constant", "column"))  # for all rows, or one for each position


by_each_row = Sort("operator", ("row_wise", "uniform", "maps_zero_to_zero"))


@law(both=True)
def associative(x: value[n], A: operator[n, k], B: operator[k, p]):
    """Composition of maps."""
    return (x @ A) @ B, x @ (A @ B)


@law()
def identity(x: value[n]):
    """The identity follows without effect."""
    return KINDS["compose"](x, I), x


@law()
def shifts_add(x: value[n], i: lag, j: lag):
    """A row before a row before is one further back."""
    return (x @ shift(i)) @ shift(j), x @ shift(i + j)


@law()
def shifts_commute(x: value[n], A: by_each_row[n, p], k: lag):
    """A shift, from the left of rows, and what all rows go through and zeros stay zeros in."""
    return (x @ shift(k)) @ A, (x @ A) @ shift(k)


@law()
def whatever(x: value[n], c: placed[n]):
    """A constant is the same behind anything, if another at each position."""
    return x @ c, c


@law()
def add_commutes(x: value[n], y: value[n]):
    """Numbers add in any order."""
    return x + y, y + x


@law(both=True)
def add_associates(x: value[n], y: value[n], z: value[n]):
    """Numbers add in any grouping."""
    return (x + y) + z, x + (y + z)


@law()
def mul_commutes(x: value[n], y: value[n]):
    """Numbers multiply in any order."""
    return x * y, y * x


@law(both=True)
def sum_behind(x: value[n], A: operator[n, p], B: operator[n, p]):
    """The sum of operators, by definition."""
    return x @ (A + B), x @ A + x @ B


@law(both=True)
def product_behind(x: value[n], A: operator[n, p], B: operator[n, p]):
    """The entrywise product of operators, by definition."""
    return x @ (A * B), (x @ A) * (x @ B)


@law(both=True)
def row_behind(x: value[n], A: operator[n, p], B: operator[n, q]):
    """Operators side by side, by definition."""
    return x @ row(A, B), row(x @ A, x @ B)


@law(both=True, without=(dict(A=operator[n, p]),))
def additivity(x: value[n], y: value[n], A: additive[n, p]):
    """What additive means."""
    return (x + y) @ A, x @ A + y @ A


@law(both=True)
def scaled_rows(x: value[n], y: value[n], r: column):
    """Multiplication distributes over addition."""
    return (x + y) * r, x * r + y * r


@law(both=True)
def turned_sum(x: value[n], y: value[n]):
    """Numbers are turned one by one."""
    return turn(x + y), turn(x) + turn(y)


@law(both=True, without=(dict(M=over),))
def weighted_sum(s: Sort("scores")[k], v: value[k, n], w: value[k, n], M: over[right_linear], P: where):
    """What right-linear means."""
    return product(s, v + w, M, P), product(s, v, M, P) + product(s, w, M, P)


@law(both=True, without=(dict(A=operator[n, n]),))
def homogeneity(x: value[n], r: factors, A: by_rows[n, n]):
    """What row-linear means, beside additive: a map for every row, which numbers of rows pass."""
    return (x * r) @ A, (x @ A) * r


@law(without=(dict(M=over), dict(t=scores[h])))
def shift_invariance(s: scores[h], t: level[h], v: value[h, n], M: over[shift_invariant], P: where):
    """What shift-invariant means."""
    return product(s + t, v, M, P), product(s, v, M, P)


@law(without=(dict(M=over), dict(P=where)))
def normality(s: scores[h], c: constant[h, n], M: over[normalised], P: where[reflexive]):
    """What normalised means: of equal values their own is left, where there is one."""
    return product(s, c, M, P), c


@law(both=True, without=(dict(M=over), dict(A=operator[h, n, p])))
def mapped_values(s: scores[h], v: value[n], A: matrix[h, n, p], M: over[right_linear], P: where):
    """What right-linear means, of linear maps of the values."""
    return product(s, v @ A, M, P), product(s, v, M, P) @ A


@law(both=True, without=(dict(A=operator[h, n, p]),))
def adjointness(a: value[h, p], b: value[n], A: matrix[h, n, p]):
    """What the adjoint is."""
    return product(a, turn(b @ A)), product(a @ adjoint(A), turn(b))


@law(both=True, when=("(single A)",), without=(dict(A=operator[h * q, p]),))
def joined_rows(x: value[h, q], A: matrix[h * q, p], H: count):
    """What the rows of a matrix by heads are."""
    return (x @ heads(H).T) @ A, (x @ by_head(A, H)) @ total


@law(source="block matrices")
def scores_beside(a: value[h, n], u: value[h, p], b: value[h, n], w: value[h, p]):
    """Products of rows of two parts are sums of the products of each."""
    return product(row(a, u), turn(row(b, w))), product(a, turn(b)) + product(u, turn(w))


@law(source="a head for all (Shazeer 2019)")
def scores_of_copies(a: value[h, n], b: value[n], H: count):
    """A head of keys is read by all heads of queries, copied or not."""
    return product(a, turn(b @ repeat(H))), product(a, turn(b))


@law(source="a head for all (Shazeer 2019)")
def one_copy(x: value[n]):
    """A value that is repeated to one head has that head alone."""
    return x @ repeat(1), x


@law(both=True)
def factor_out(a: value[n], b: value[n], s: number):
    """A number leaves a sum of products."""
    return product(a * s, turn(b)), product(a, turn(b)) * s


@law(both=True)
def scaled_array(a: array[k, n], b: array[n, p], s: scalar):
    """A number leaves a product of arrays, whose rows are of any space."""
    return product(a @ (I * s), b), product(a, b) @ (I * s)


@law(both=True)
def associative_products(a: array[k, n], b: array[n, p], c: array[p, q]):
    """Products of arrays are compositions of maps."""
    return product(product(a, b), c), product(a, product(b, c))


@law(both=True)
def associative_means(a: array[k, n], b: array[n, p], c: array[p, q]):
    """A mean of rows is a sum, divided by how many there are."""
    return product(product(a, b), c, mean), product(a, product(b, c, mean))


@law(when=("(alike x z)",))
def added_rows(x: value[n], y: value[p], z: value[n], w: value[p]):
    """Side by side, each with its own."""
    return row(x, y) + row(z, w), row(x + z, y + w)


@law(both=True)
def scaled_row(x: value[n], y: value[p], s: number):
    """A number multiplies both."""
    return row(x, y) * s, row(x * s, y * s)


@law(when=("(alike x A)",))
def first_columns(x: value[n], y: value[p], A: operator[k, n]):
    """As many as A gives."""
    return left(row(x, y), A), x


@law(when=("(alike x A)",))
def last_columns(x: value[n], y: value[p], A: operator[k, n]):
    """Those behind as many as A gives."""
    return right(row(x, y), A), y


@law(both=True)
def joined_behind(x: value[n], A: operator[h, n, p], B: operator[k, n, q]):
    """Operators side by side with their heads, by definition."""
    return x @ joined(A, B), joined(x @ A, x @ B)


@law(when=("(like x z)", "(like y w)"))
def added_parts(x: value[h, n], y: value[k, p], z: value[h, n], w: value[k, p]):
    """Side by side, each with its own."""
    return joined(x, y) + joined(z, w), joined(x + z, y + w)


@law(both=True)
def scaled_parts(x: value[h, n], y: value[k, p], s: number):
    """A number multiplies both."""
    return joined(x, y) * s, joined(x * s, y * s)


@law(when=("(like x A)",))
def first_of_joined(x: value[h, n], y: value[k, p], A: operator[h, q, n]):
    """As many columns as A gives, in as many heads."""
    return left(joined(x, y), A), x


@law(when=("(like x A)", "(like y B)"))
def last_of_joined(x: value[h, n], y: value[k, p], A: operator[h, q, n], B: operator[k, q, p]):
    """Those behind as many as A gives, in as many heads as B gives."""
    return behind(joined(x, y), A, B), y


@law(both=True)
def gained_total(x: value[h, p], c: constant[p]):
    """One gain for all heads passes their sum."""
    return (x @ (I * c)) @ total, (x @ total) @ (I * c)


@law(when=("(alike A B)",))
def first_place(z: value[n + p], A: operator[k, p], B: operator[k, p]):
    """A place is as many columns as A gives, whatever they are."""
    return left(z, A), left(z, B)


@law(when=("(alike A B)",))
def last_place(z: value[n + p], A: operator[k, p], B: operator[k, p]):
    """The same of the columns behind."""
    return right(z, A), right(z, B)


@law()
def kept_of_twice(s: value[n], y: value[n], top: count):
    """Numbers twice as large are in the same order."""
    return keep_top(s, y + y, top), keep_top(s, y, top)


@law()
def kept_of_a_shift(s: value[n], y: value[n], r: factors, top: count):
    """What is added to a whole row changes no order in it."""
    return keep_top(s, y + r, top), keep_top(s, y, top)


@law()
def kept_of_columns(s: value[n], y: value[n], c: placed[n], top: count):
    """A choice among columns, each times its number, which may be another for each row."""
    return keep_top(s @ (I * c), y, top), keep_top(s, y, top) @ (I * c)


@law()
def shared_shift(x: value[n], r: factors):
    """A factor of all shares and of their sum."""
    return (x + r) @ share, x @ share


@law(when=("(alike x A)",))
def adds_nothing(x: value[n], A: operator[k, n]):
    """Zeros."""
    return x + blank(A), x


@law()
def stays_nothing(A: operator[k, n], s: number):
    """Zeros."""
    return blank(A) * s, blank(A)


@law()
def two_signs(x: value[n], y: value[n]):
    """A product of two negative numbers is positive."""
    return (x * const(-1.0)) * (y * const(-1.0)), x * y


@law()
def signs_of_scores(a: value[h, n], x: value[h, n], b: value[h, n], y: value[h, n]):
    """A score of two factors with opposite signs is what it was."""
    return product(a * (x * const(-1.0)), turn(b * (y * const(-1.0)))), product(a * x, turn(b * y))


@law(both=True)
def scaled_behind(x: value[n], A: operator[n, p]):
    """A number behind an operator may be a part of it."""
    return x @ (A * const(-1.0)), (x @ A) * const(-1.0)


@law()
def chosen_rows(x: value[n], y: value[n], r: relation):
    """Rows of a product are products of rows."""
    return (x * y) @ pick(r), (x @ pick(r)) * (y @ pick(r))


@law()
def one_of_shares(v: factors):
    """The softmax of one score is 1."""
    return product(const(1.0), turn(v), softmax), product(const(1.0), turn(v))


@law()
def one_of_largest(v: factors):
    """The largest of one number is it."""
    return product(const(1.0), turn(v), maximum), product(const(1.0), turn(v))


@law(both=True)
def factors_of_sums(a: value[h, n], b: value[h, n], P: where[prefix]):
    """Terms of a sum are products, of factors in any order."""
    return scan(a, b, summed, P), scan(b, a, summed, P)


@law(both=True)
def merged_in_order(a: factors, v: value[h, n], M: over, P: where[prefix]):
    """Rows of one score for each key, by definition of a scan."""
    return product(turn(a), v, M, P), scan(a, v, M, P)


@law()
def scores_of_alike_queries(a: alike[h, k], b: value[h, k], v: value[h, n], M: over, P: where[prefix]):
    """A score is a sum of products, one number of each key where all queries are one."""
    return product(product(a, turn(b)), v, M, P), product(turn((b * a) @ ones), v, M, P)


@law(both=True)
def states_of_sums(a: value[h, k], b: value[h, k], v: value[h, n], P: where[prefix]):
    """A query reads the sum of keys times values, by definition."""
    return product(product(a, turn(b)), v, summed, P), linear_attention(a, b, v, P)


@law(both=True, largest=1.0)
def states_that_decay(a: value[h, k], b: value[h, k], v: value[h, n], g: factors, P: where[up_to_each]):
    """Powers of sums are products of powers: those of decays, by which a state is multiplied in turn."""
    sums = scan(const(1.0), g)
    between = sums + product(const(1.0), turn(sums @ (I * -1.0)))
    return product(product(a, turn(b)) * (between @ exp), v, summed, P), gated_linear_attention(a, b, v, g @ exp, P)


@law(both=True, largest=1.0)
def columns_that_decay(a: value[h, k], b: value[h, k], v: value[h, n], g: value[h, k], P: where[up_to_each]):
    """The same in each column of keys."""
    sums = scan(const(1.0), g)
    scores = product(a * (sums @ exp), turn(b * (sums @ (I * -1.0) @ exp)))
    return product(scores, v, summed, P), gated_linear_attention(a, b, v, g @ exp, P)


LAWS = collect(globals())
