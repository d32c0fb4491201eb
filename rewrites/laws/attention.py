"""Laws of generalised products; attention is one, over softmax. No law here depends on a whole attention."""

from dataclasses import replace

from opmatrix.algebra.monoids import mean, sum
from opmatrix.algebra.operators import (
    I,
    const,
    exp,
    gated_linear_attention,
    given,
    heads,
    linear_attention,
    ones,
    product,
    repeat,
    row,
    scan,
    total,
    turn,
)
from rewrites.laws.kinds import adjoint, by_head, first_rows
from rewrites.laws.law import (
    SIMPLIFY,
    alike_rows,
    any_relation,
    array,
    collect,
    column,
    constant,
    count,
    distances,
    entrywise,
    h,
    k,
    law,
    level,
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
    right_linear,
    rotation,
    scalar,
    scores,
    shift_invariant,
    up_to_each,
    value,
    varying,
    where,
)


@law(phase=SIMPLIFY, canonical=True, source="linearity of the dot product", without=(dict(s=varying[1]),))
def scale_scores(a: value[h, n], b: value[h, n], s: scalar):
    """1/√d belongs to the queries: n numbers a row instead of one for each pair of tokens. True of a number for each
    position, too; one number folds into a weight."""
    return product(a, turn(b)) @ (I * s), product(a @ (I * s), turn(b))


@law(
    phase=SIMPLIFY,
    canonical=True,
    source="linearity in each row; Su et al. 2021, RoPE",
    without=(dict(R=operator[n, n]), dict(s=varying[1])),
)
def scale_rotated(x: value[h, n], R: rotation[n, n], s: scalar):
    """1/√d passes a rotation by positions, on its way into the weight of the queries. True of a number for each
    position, too; one number folds."""
    return (x @ R) @ (I * s), (x @ (I * s)) @ R


@law(phase=SIMPLIFY, canonical=True, source="linearity of the dot product")
def split_keys(a: value[h, n], b: value[h, n], c: constant[h, n]):
    """A bias of the keys adds one number to all scores of a row. True of any c; constant, what it adds is level."""
    return product(a, turn(b + c)), product(a, turn(b)) + product(a, turn(c))


@law(phase=SIMPLIFY, canonical=True, source="Vaswani et al. 2017, eq. 1", without=(dict(t=scores[h]), dict(M=over)))
def shift_scores(s: scores[h], t: level[h], v: value[h, n], M: over[shift_invariant], P: where):
    """Softmax ignores what is added to a whole row, so a key bias drops."""
    return product(s + t, v, M, P), product(s, v, M, P)


@law(phase=SIMPLIFY, canonical=True, source="Vaswani et al. 2017, eq. 1", without=(dict(t=scores[h]), dict(M=over)))
def shift_biased(s: scores[h], t: level[h], b: distances[h], v: value[h, n], M: over[shift_invariant], P: where):
    """A number that is added to a whole row drops before a bias by distance, too. True of any b; of distances alone
    few sums match."""
    return product((s + t) + b, v, M, P), product(s + b, v, M, P)


@law(
    phase=SIMPLIFY,
    source="weights of a row sum to one",
    without=(dict(M=over), dict(P=where), dict(c=value[h, n]), dict(c=placed[h, n])),
)
def value_bias(s: scores[h], v: value[h, n], c: constant[h, n], M: over[normalised], P: where[reflexive]):
    """A bias of the values comes out unchanged where every row's weights sum to one; it may stay where the product that
    makes them adds one anyway, and the next does not."""
    return product(s, v + c, M, P), product(s, v, M, P) + c


@law(source="associativity; Wv·Wo of a head", without=(dict(A=operator[h, n, p]), dict(M=over)))
def late_values(s: scores[h], v: value[n], A: matrix[h, n, p], M: over[right_linear], P: where):
    """A linear map leaves the product on the right, so Wv and Wo of a head can fold."""
    return product(s, v @ A, M, P), product(s, v, M, P) @ A


@law(both=True, source="associativity; Hamilton et al. 2017, GraphSAGE", without=(dict(W=operator[n, p]), dict(M=over)))
def narrow_first(x: value[n], W: matrix[n, p], r: any_relation, M: over[right_linear]):
    """A weighted sum over a relation is linear, so what makes rows narrower may come before it, and what widens them
    behind."""
    return product(given(r), x, M) @ W, product(given(r), x @ W, M)


@law(source="associativity; Wq·Wkᵀ of a head (DeepSeek-V2, 2024, sec. 2.1)", without=(dict(A=operator[h, n, p]),))
def absorb_keys(a: value[h, p], b: value[n], A: matrix[h, n, p]):
    """(b A)ᵀ = Aᵀ bᵀ: the key's matrix can move to the query."""
    return product(a, turn(b @ A)), product(a @ adjoint(A), turn(b))


@law(phase=SIMPLIFY, canonical=True, source="linearity in each row", without=(dict(s=varying[1]),))
def scale_beside(a: value[h, n], b: value[h, p], s: scalar):
    """1/√d of queries in two parts, such as one that is rotated and one that is not, belongs to each of them. True of a
    number for each position, too; one number folds."""
    return row(a, b) @ (I * s), row(a @ (I * s), b @ (I * s))


LATENT = "DeepSeek-V2 (2024), section 2.1.2 and appendix B"


@law(source=LATENT, without=(dict(A=operator[h, n, p]),))
def absorb_beside(a: value[h, p], u: value[h, q], b: value[n], A: matrix[h, n, p], w: value[q], H: count):
    """A part of the keys may be rotated and shared by all heads: the matrix of the other part moves to the queries, and
    one row a key is kept for all heads."""
    keys = row(b @ repeat(1) @ A, w @ repeat(1) @ repeat(H))
    return product(row(a, u), turn(keys)), product(row(a @ adjoint(A), u), turn(row(b, w)))


@law(source="a head for all (Shazeer 2019)")
def repeat_once(x: value[n]):
    """A value that is repeated to one head has that head alone."""
    return x @ repeat(1), x


@law(source=LATENT, without=(dict(B=operator[h, n, p]), dict(M=over)))
def keys_hold_values(a: value[h, n + q], b: value[n], w: value[q], B: matrix[h, n, p], M: over[right_linear], P: where):
    """Values that are linear in columns of the keys need no rows of their own: the keys are merged, and multiplied
    behind."""
    keys = row(b, w)
    scores = product(a, turn(keys))
    return product(scores, b @ B, M, P), product(scores, keys, M, P) @ (adjoint(first_rows(I, b, w)) @ B)


@law(phase=SIMPLIFY, canonical=True, source="block structure of the columns")
def stack_columns(x: value[n], A: matrix[n, h * p], H: count):
    """Splitting into heads after a product is one matrix for each head. True of any A; matrices can be stored."""
    return (x @ A) @ heads(H), x @ (A @ heads(H))


@law(
    phase=SIMPLIFY,
    canonical=True,
    when=("(single A)",),
    source="block structure of the rows",
    without=(dict(A=operator[h * q, p]),),
)
def stack_rows(x: value[h, q], A: matrix[h * q, p], H: count):
    """Joining heads before a product is a sum over heads of one matrix each."""
    return (x @ heads(H).T) @ A, (x @ by_head(A, H)) @ total


@law(phase=SIMPLIFY, canonical=True, source="additivity of reshaping")
def split_shift(x: value[h * p], c: constant[h * p], H: count):
    """A bias is split into heads like what it is added to. True of any c."""
    return (x + c) @ heads(H), x @ heads(H) + c @ heads(H)


@law(phase=SIMPLIFY, canonical=True, source="additivity of reshaping")
def join_shift(x: value[h, q], c: constant[h, q], H: count):
    """A bias of heads is joined like what it is added to. True of any c."""
    return (x + c) @ heads(H).T, x @ heads(H).T + c @ heads(H).T


@law(phase=SIMPLIFY, source="additivity of copies")
def repeat_shift(x: value[h, p], c: constant[h, p], H: count[n]):
    """A bias of shared heads is shared like what it is added to, so a bias of shared keys drops too. True of any c. One
    of shared values may stay where it was."""
    return (x + c) @ repeat(H), x @ repeat(H) + c @ repeat(H)


@law(phase=SIMPLIFY, source="additivity of sums")
def total_shift(x: value[h, q], c: constant[h, q], A: matrix[h * q, p], H: count):
    """A bias of heads is summed like what it is added to: both have as many, behind one matrix for each head.
    True of any c; A is stored."""
    B = by_head(A, H)
    return (x @ B + c @ B) @ total, (x @ B) @ total + (c @ B) @ total


table = replace(array, facts=("act",))  # numbers of the input; stored values fold otherwise
summing = replace(matrix, facts=("linear",))  # a matrix of any width, such as a sum, is not stored
LINEAR_ATTENTION = "associativity; Katharopoulos et al. 2020, eq. 6"


@law(both=True, source=LINEAR_ATTENTION)
def associate_products(a: table[k, n], b: table[n, p], c: array[p, q]):
    """(q kᵀ) v = q (kᵀ v): scores that no softmax and no pattern changes need not be there, only a matrix as wide as
    keys and values."""
    return product(product(a, b), c), product(a, product(b, c))


@law(both=True, source=LINEAR_ATTENTION)
def associate_means(a: table[k, n], b: table[n, p], c: array[p, q]):
    """A mean over keys is a sum over them, divided by how many there are, so it may be taken before queries come."""
    return product(product(a, b), c, mean), product(a, product(b, c, mean))


@law(both=True, source=LINEAR_ATTENTION, without=(dict(A=entrywise, a=array[k, n], b=array[n, p]),))
def associate_with_matrix(a: table[k, n], b: table[n, p], A: summing[p, q]):
    """(q kᵀ) A = q (kᵀ A): sums of scores, by which linear attention is divided, are those of the keys, times the
    query."""
    return product(a, b) @ A, product(a, b @ A)


@law(source="linearity", without=(dict(s=varying[1]),))
def scale_products(a: table[k, n], b: table[n, p], s: scalar):
    """A number that scales a product of values belongs to its left factor, where it folds as 1/√d does."""
    return product(a, b) @ (I * s), product(a @ (I * s), b)


PREFIXES = "Blelloch 1990, section 1; Katharopoulos et al. 2020, eq. 9"


of_keys = replace(column, facts=("column",))  # one number a row, of the input or not


@law(source=PREFIXES)
def as_scan(a: of_keys[1], v: value[h, n], M: over, P: where[prefix]):
    """Scores that are the same for every query are one number of each key, so rows are merged in one pass. True of any
    P that a scan takes."""
    return product(turn(a), v, M, P), scan(a, v, M, P)


@law(source=PREFIXES, without=(dict(a=value[h, k]),))
def keys_as_scan(a: alike_rows[h, k], b: value[h, k], v: value[h, n], M: over, P: where[prefix]):
    """Queries that are all the same give one number of each key. True of any P that a scan takes."""
    return product(product(a, turn(b)), v, M, P), scan((b * a) @ ones, v, M, P)


@law(both=True, source="Katharopoulos et al. 2020, eq. 6 to 9; Dao and Gu 2024, section 5")
def as_linear_attention(a: value[h, k], b: value[h, k], v: value[h, n], P: where[prefix]):
    """Scores that are products of queries and keys alone need not be there: a row reads the sum of keys times values so
    far. True of any P that a scan takes."""
    return product(product(a, turn(b)), v, sum, P), linear_attention(a, b, v, P)


of_columns = replace(value, facts=())  # of the input or not


@law(
    phase=SIMPLIFY,
    canonical=True,
    source="Yang et al. 2024, GLA, section 4.1",
    without=(dict(P=where[prefix]),),
    largest=1.0,  # exp of larger numbers overflows float64
)
def decay_by_columns(a: value[h, k], b: value[h, k], v: value[h, n], g: of_columns[h, k], P: where[up_to_each]):
    """Queries times exp of sums of logarithms, and keys times exp of what is opposite to these, are those of a state
    whose columns decay by themselves; exp of the opposite of a sum grows with rows, which no decay does."""
    sums = scan(const(1.0), g)
    scores = product(a * (sums @ exp), turn(b * (sums @ (I * -1.0) @ exp)))
    return product(scores, v, sum, P), gated_linear_attention(a, b, v, g @ exp, P)


@law(
    both=True,
    source="Dao and Gu 2024, section 6; Sun et al. 2023, RetNet, eq. 5 and 6",
    without=(dict(P=where[prefix]),),
    largest=1.0,  # exp of larger numbers overflows float64
)
def as_gated_linear_attention(a: value[h, k], b: value[h, k], v: value[h, n], g: of_keys[h, 1], P: where[up_to_each]):
    """Scores times exp of sums of logarithms between rows are those of a state that is multiplied by exp of each before
    its row adds to it. True of any g, which has one column."""
    sums = scan(const(1.0), g)
    between = sums + product(const(1.0), turn(sums @ (I * -1.0)))
    scores = product(a, turn(b)) * (between @ exp)
    return product(scores, v, sum, P), gated_linear_attention(a, b, v, g @ exp, P)


ATTENTION_LAWS = collect(globals())
