"""The rules by which a term is sharded over ranks (opmatrix/parallel/sharding/rules.py), each as equations of
operators: the left side is the computation of one rank, the right side the results of n ranks on their shards.
Equations of symbols are for any size and are proved (tests/support/split_rules.py). Equations that hold numbers,
since laws have no sizes of heads, are evaluated in rationals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.nodes import compose
from opmatrix.algebra.nodes import row as beside
from opmatrix.algebra.operators import (
    I,
    cols,
    gelu,
    heads,
    keep_top,
    product,
    repeat,
    scan,
    symbol,
    total,
    turn,
    weight,
)
from opmatrix.algebra.positions.patterns import causal
from opmatrix.algebra.shapes import LiveSize, Shape, T, size
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import all_bounds
from opmatrix.parallel.sharding.moe_dispatch import AT, BACK, CUT, TO
from rewrites.laws.kinds import left, right, with_heads
from rewrites.laws.law import FunctionDeclaration

RuleKey = tuple[str, str]  # an operation, and the rule by which it is sharded
Pair = tuple[Operator, Operator]
M, K, P = size("m"), size("k"), size("p")
ALL_HEADS, HEAD_COLUMNS = 6, 2  # sizes in the equations of numbers


@dataclass(frozen=True, eq=False, repr=False)
class SplitEquation(FunctionDeclaration):
    """One equation: `body` returns both sides for n shards, as pairs. `rules`: the rules that it justifies. `says`: the
    equation as people read it. `exact`: it holds numbers."""

    body: Callable[[int], Sequence[Pair]]
    rules: tuple[RuleKey, ...]
    says: str
    exact: bool = False


EQUATIONS: list[SplitEquation] = []
STATED: dict[RuleKey, str] = {}  # the equation of each rule, as text

# Rules that no term states, since no operator returns the state of a monoid, and the batch decides which rows a query
# sees: they are tested on numbers (tests/support/split_checks.py).
CARRIED = "{x} over {M} = finish(merge(what rank 1 carries, .., what rank n carries))"
UNPROVED: dict[RuleKey, str] = {
    **dict.fromkeys(
        (("act", "rows of a matrix"), ("product", "contraction"), ("move", "all_reduce"), ("move", "reduce_scatter")),
        CARRIED,
    ),
    ("ring", "ring of keys"): "z · v over {M} = finish(merge(own block, block of the left neighbour, ..))",
    ("product", "sequences"): "[z1; ..; zn] · [v1; ..; vn] within sequences = [z1 · v1; ..; zn · vn]",
    ("scan", "sequences"): "scan([a1; ..; an], [b1; ..; bn]) over {M} = [scan(a1, b1); ..; scan(an, bn)]",
    ("delta_rule", "sequences"): "delta_rule([q1; ..; qn], ..) = [delta_rule(q1, ..); ..; delta_rule(qn, ..)]",
    ("delta_rule", "heads"): "delta_rule([q1 .. qn], ..) = [delta_rule(q1, ..) .. delta_rule(qn, ..)], whole heads",
    ("product", "rows"): "[z1; ..; zn] · v under a pattern = [z1 · v; ..; zn · v], at the rows' own positions",
    ("pick", "picked rows"): "[x1; ..; xn] @ pick = [x1 @ pick; ..; xn @ pick]",
    ("pick", "rows that are picked"): "[x1; ..; xn] @ pick = x1 @ pick + .. + xn @ pick, zeros for rows of others",
    ("shift", "sequences"): "[x1; ..; xn] @ shift = [x1 @ shift; ..; xn @ shift], whole sequences",
    **dict.fromkeys((("shift", "columns"), ("shift", "heads")), "[x1 .. xn] @ shift = [x1 @ shift .. xn @ shift]"),
    ("backwards", "sequences"): "[x1; ..; xn] @ backwards = [x1 @ backwards; ..; xn @ backwards], whole sequences",
    **dict.fromkeys(
        (("backwards", "columns"), ("backwards", "heads")),
        "[x1 .. xn] @ backwards = [x1 @ backwards .. xn @ backwards]",
    ),
    ("product", "halo"): "[R1; ..; Rn] · v over {M} = [R1 · v1; ..; Rn · vn], vi the rows that entries of Ri name",
    ("among", "halo"): "z · v over {M} at entries = [z1 · v1; ..; zn · vn], vi the rows that entries of rank i name",
    ("pick", "halo"): "x @ pick = [x1 @ pick; ..; xn @ pick], xi the rows that rank i picks",
    ("move", "halo"): "rows that entries name = own ones and those of others, in order",
    **dict.fromkeys(
        (("visit", TO), ("dispatch", TO)),
        "sum of answers times gates = sum of those alone whose gate is not 0, row by row",
    ),
}


def equation(
    *rules: RuleKey, says: str, exact: bool = False
) -> Callable[[Callable[[int], Sequence[Pair]]], SplitEquation]:
    """Declare an equation of rules."""

    def declare(body: Callable[[int], Sequence[Pair]]) -> SplitEquation:
        """Enter the equation into the tables, as the justification of its rules."""
        EQUATIONS.append(SplitEquation(body, rules, says, exact))
        STATED.update(dict.fromkeys(rules, says))
        return EQUATIONS[-1]

    return declare


def statement(rule: RuleKey, over: type[Monoid] = monoids.sum) -> str:
    """Return the equation that justifies a rule, as people read it; for merged results, over a monoid. Raises KeyError
    for a rule that has none."""
    if rule in UNPROVED and (not over.ordinary or rule not in STATED):
        return UNPROVED[rule].format(x="x" if rule[0] == "move" else "x · v", M=over.__name__)
    return STATED[rule]


def key_of(op: str, rule: str) -> RuleKey:
    """Return the operation under which a rule is declared, and the rule: a slice applies to any operation; a ring is a
    product, and so is attention at the entries of a relation."""
    if rule == "slice":
        return "slice", rule
    return ("product" if op in ("ring", "among") and rule not in ("ring of keys", "halo") else op), rule


# Values of symbols, and values of shards.


def some_values(name: str, n: int, rows: str | LiveSize, columns: str | LiveSize, deep: int = 0) -> list[Operator]:
    """Return a value for each shard; a size given by name differs from shard to shard."""

    def own(given: str | LiveSize, at: int) -> LiveSize:
        """Name a size of one shard; a size that is no name is that of all."""
        return size(f"{given}{at}") if isinstance(given, str) else given

    return [
        symbol(f"{name}{at}", None, Shape(deep + at if deep else 1, own(rows, at), own(columns, at))) for at in range(n)
    ]


def value(name: str, rows: LiveSize, columns: LiveSize) -> Operator:
    """Return an unknown value of one head."""
    return symbol(name, None, Shape(1, rows, columns))


def abreast(parts: Sequence[Operator]) -> Operator:
    """Put values side by side, columns beside columns."""
    return reduce(beside, parts)


def piled(parts: Sequence[Operator]) -> Operator:
    """Put values below one another, rows behind rows."""
    return turn(abreast([turn(part) for part in parts]))


def grouped(parts: Sequence[Operator]) -> Operator:
    """Put the heads of values behind one another."""
    return reduce(with_heads, parts)


def summed(parts: Sequence[Operator]) -> Operator:
    """Add values entry by entry."""
    return reduce(lambda a, b: a + b, parts)


def each(f: Operator, parts: Sequence[Operator]) -> list[Operator]:
    """Apply an operator to the value of each shard."""
    return [compose(part, f) for part in parts]


def parted(whole: Operator, like: Sequence[Operator]) -> list[Operator]:
    """Return columns in pieces, as wide as those of `like`."""
    pieces: list[Operator] = []
    for one in like[:-1]:
        pieces, whole = [*pieces, left(whole, one)], right(whole, one)
    return [*pieces, whole]


# ---- matrices


@equation(("act", "columns of a matrix"), says="x @ W = [x @ W1 .. x @ Wn]")
def columns_of_a_matrix(n: int) -> list[Pair]:
    """Each rank has some columns of the matrix and gives those of the product."""
    x, parts = value("x", M, K), some_values("W", n, K, "p")
    return [(product(x, abreast(parts)), abreast([product(x, W) for W in parts]))]


@equation(
    ("act", "rows of a matrix"), ("product", "contraction"), says="[x1 .. xn] @ [W1; ..; Wn] = x1 @ W1 + .. + xn @ Wn"
)
def rows_of_a_matrix(n: int) -> list[Pair]:
    """Each rank has some rows of the matrix, and columns of x for them: what it gives is one part of a sum."""
    xs, parts = some_values("x", n, M, "k"), some_values("W", n, "k", P)
    return [(product(abreast(xs), piled(parts)), summed([product(x, W) for x, W in zip(xs, parts, strict=True)]))]


@equation(("act", "rows of a table"), says="[t1 .. tn] @ [E1; ..; En] = t1 @ E1 + .. + tn @ En")
def rows_of_a_table(n: int) -> list[Pair]:
    """Each rank has the vectors of some tokens; for others its one-hot rows are zeros."""
    xs, parts = some_values("t", n, M, "v"), some_values("E", n, "v", P)
    return [(product(abreast(xs), piled(parts)), summed([product(x, W) for x, W in zip(xs, parts, strict=True)]))]


@equation(
    ("act", "rows one by one"),
    ("split", "rows one by one"),
    ("join", "rows one by one"),
    ("repeat", "rows one by one"),
    ("total", "rows one by one"),
    ("visit", "rows one by one"),
    ("dispatch", "rows one by one"),
    ("answer", "rows one by one"),
    ("combine", "rows one by one"),
    ("leave", "rows one by one"),
    says="[x1; ..; xn] @ f = [x1 @ f; ..; xn @ f]",
)
def rows_one_by_one(n: int) -> list[Pair]:
    """An operator that acts on each row by itself acts on the rows of each rank."""
    xs, f = some_values("x", n, "m", K), symbol("f", K, P, row_wise=True, uniform=True)
    return [(compose(piled(xs), f), piled(each(f, xs)))]


@equation(("act", "columns"), says="[x1 .. xn] @ f = [x1 @ f .. xn @ f]")
def columns_each(n: int) -> list[Pair]:
    """A function of single entries, and a number for each column, leave columns where they are."""
    xs, gains = some_values("x", n, M, "k"), some_values("g", n, M, "k")
    return [
        (compose(abreast(xs), gelu), abreast(each(gelu, xs))),
        (abreast(xs) * abreast(gains), abreast([x * g for x, g in zip(xs, gains, strict=True)])),
    ]


@equation(("act", "heads"), says="heads(x1, .., xn) @ W = heads(x1 @ W1, .., xn @ Wn)")
def heads_by_head(n: int) -> list[Pair]:
    """One matrix for each head, or a function of single entries, goes through the heads of each rank."""
    xs, parts = some_values("x", n, T, K, 1), some_values("W", n, K, P, 1)
    return [
        (product(grouped(xs), grouped(parts)), grouped([product(x, W) for x, W in zip(xs, parts, strict=True)])),
        (compose(grouped(xs), gelu), grouped(each(gelu, xs))),
    ]


# ---- entries, turns, columns side by side


@equation(("add", "entry by entry"), says="[x1 .. xn] + [y1 .. yn] = [x1 + y1 .. xn + yn]")
def sums_of_pieces(n: int) -> list[Pair]:
    """Values that are cut alike are added piece by piece: columns, rows or heads."""
    return [(join(x) + join(y), join([a + b for a, b in zip(x, y, strict=True)])) for join, x, y in alike(n)]


@equation(("mul", "entry by entry"), says="[x1 .. xn] * [y1 .. yn] = [x1 * y1 .. xn * yn]")
def products_of_pieces(n: int) -> list[Pair]:
    """Values that are cut alike are multiplied piece by piece: columns, rows or heads."""
    return [(join(x) * join(y), join([a * b for a, b in zip(x, y, strict=True)])) for join, x, y in alike(n)]


def alike(n: int) -> list[tuple[Callable[[Sequence[Operator]], Operator], list[Operator], list[Operator]]]:
    """Return two values in pieces of columns, of rows, of heads."""
    return [
        (abreast, some_values("x", n, M, "k"), some_values("y", n, M, "k")),
        (piled, some_values("x", n, "m", K), some_values("y", n, "m", K)),
        (grouped, some_values("x", n, M, K, 1), some_values("y", n, M, K, 1)),
    ]


@equation(("add", "sums"), says="(x1 + .. + xn) + (y1 + .. + yn) = (x1 + y1) + .. + (xn + yn)")
def sums_of_parts(n: int) -> list[Pair]:
    """Two parts of sums that each rank has are added before anything crosses."""
    xs, ys = some_values("x", n, M, K), some_values("y", n, M, K)
    return [(summed(xs) + summed(ys), summed([x + y for x, y in zip(xs, ys, strict=True)]))]


@equation(("turn", "turned"), says="[x1 .. xn].T = [x1.T; ..; xn.T]")
def turned_pieces(n: int) -> list[Pair]:
    """Columns of a rank are rows, rows are columns, heads stay."""
    wide, tall, deep = some_values("x", n, M, "k"), some_values("x", n, "m", K), some_values("x", n, M, K, 1)
    return [
        (turn(abreast(wide)), piled([turn(x) for x in wide])),
        (turn(piled(tall)), abreast([turn(x) for x in tall])),
        (turn(grouped(deep)), grouped([turn(x) for x in deep])),
    ]


@equation(("beside", "side by side"), says="[[x1; ..; xn] [y1; ..; yn]] = [[x1 y1]; ..; [xn yn]]")
def side_by_side(n: int) -> list[Pair]:
    """Each rank puts its rows, or heads, beside each other."""
    return [
        (beside(join(x), join(y)), join([beside(a, b) for a, b in zip(x, y, strict=True)]))
        for join, x, y in alike(n)[1:]
    ]


# ---- products over a monoid


@equation(
    ("product", "heads"),
    ("product", "heads for rows"),
    says="heads(u1, .., un) · heads(v1, .., vn) = heads(u1 · v1, .., un · vn)",
)
def attention_by_heads(n: int) -> list[Pair]:
    """Heads do not see each other, so a rank attends with those that it has."""
    queries, keys, rows = (some_values(name, n, T, K, 1) for name in "qkv")
    scale = I * symbol("s", None, 1, constant=True, uniform=True)

    def attend(q: Operator, k: Operator, v: Operator) -> Operator:
        """Attend causally with scaled scores."""
        attended: Operator = product(compose(product(q, turn(k)), scale), v, softmax, causal)
        return attended

    return [
        (
            attend(grouped(queries), grouped(keys), grouped(rows)),
            grouped([attend(*head) for head in zip(queries, keys, rows, strict=True)]),
        )
    ]


@equation(("product", "columns of the product"), says="z · [v1 .. vn] = [z · v1 .. z · vn]")
def columns_of_a_product(n: int) -> list[Pair]:
    """A column of a product needs a column of its right factor, over any monoid; so scores of some keys."""
    z, rows = value("z", T, T), some_values("v", n, T, "p")
    keys, q = some_values("k", n, "m", K), value("q", T, K)
    return [
        (product(z, abreast(rows), softmax, causal), abreast([product(z, v, softmax, causal) for v in rows])),
        (product(q, turn(piled(keys))), abreast([product(q, turn(k)) for k in keys])),
    ]


@equation(("product", "rows"), says="[z1; ..; zn] · v = [z1 · v; ..; zn · v]")
def rows_of_a_product(n: int) -> list[Pair]:
    """A row of a product needs a row of its left factor, over any monoid."""
    parts, v = some_values("z", n, "m", K), value("v", K, P)
    return [(product(piled(parts), v, softmax), piled([product(z, v, softmax) for z in parts]))]


@equation(("scan", "columns"), says="scan([a1 .. an], [b1 .. bn]) = [scan(a1, b1) .. scan(an, bn)]")
def columns_of_a_scan(n: int) -> list[Pair]:
    """Rows are merged column by column."""
    parts = [*zip(*(some_values(name, n, T, "p") for name in "ab"), strict=True)]
    lefts, rights = (abreast(side) for side in zip(*parts, strict=True))
    return [(scan(lefts, rights, softmax), abreast([scan(a, b, softmax) for a, b in parts]))]


@equation(("scan", "heads"), says="scan(heads(a1, .., an), heads(b1, .., bn)) = heads(scan(a1, b1), .., scan(an, bn))")
def heads_of_a_scan(n: int) -> list[Pair]:
    """Rows of a head are merged with those of that head."""
    lefts, rights = (some_values(name, n, T, K, 1) for name in "ab")
    return [
        (
            scan(grouped(lefts), grouped(rights), softmax),
            grouped([scan(a, b, softmax) for a, b in zip(lefts, rights, strict=True)]),
        )
    ]


@equation(("total", "sum of heads"), says="sum of heads = sum of the first + .. + sum of the last")
def sum_of_heads(n: int) -> list[Pair]:
    """The sum of all heads is that of what each rank sums."""
    xs = some_values("x", n, T, K, 1)
    return [(compose(grouped(xs), total), summed(each(total, xs)))]


# ---- experts: their answers, a head each, times their columns of a gate, summed


def summed_answers(answers: Sequence[Operator], gates: Sequence[Operator]) -> Operator:
    """Return answers of some experts, or of some groups of them, times their gates, summed."""
    answer: Operator = compose(grouped(answers) * grouped(gates), total)
    return answer


@equation(
    ("answer", AT),
    ("combine", BACK),
    ("leave", BACK),
    says="sum of heads(a1, .., an) * heads(g1, .., gn) = sum of a1 * g1 + .. + sum of an * gn",
)
def experts_by_rank(n: int) -> list[Pair]:
    """Each rank has the answers of some experts, and the sum of all is that of what each rank's come to."""
    answers, gates = some_values("a", n, T, K, 1), some_values("g", n, T, K, 1)
    parts = [compose(a * g, total) for a, g in zip(answers, gates, strict=True)]
    return [(summed_answers(answers, gates), summed(parts))]


@equation(
    ("answer", CUT),
    ("combine", CUT),
    ("leave", CUT),
    says="f(x @ [U1 .. Un]) @ [D1; ..; Dn] * g = f(x @ U1) @ D1 * g + .. + f(x @ Un) @ Dn * g",
)
def units_of_experts(n: int) -> list[Pair]:
    """Each rank has some hidden units of an expert, and so a part of its answer, which a gate may be multiplied by
    before parts are summed."""
    x, g = value("x", M, K), value("g", M, P)
    up, down = some_values("U", n, K, "f"), some_values("D", n, "f", P)
    parts = [product(compose(product(x, U), gelu), D) for U, D in zip(up, down, strict=True)]
    return [
        (product(compose(product(x, abreast(up)), gelu), piled(down)), summed(parts)),
        (summed(parts) * g, summed([part * g for part in parts])),
    ]


# ---- redistribution


@equation(("slice", "slice"), ("move", "all_gather"), says="x = [x1 .. xn]")
def cut_in_pieces(n: int) -> list[Pair]:
    """A value is its pieces side by side."""
    like = some_values("c", n, M, "k")
    x = value("x", M, sum(part.out.cols for part in like))
    return [(abreast(parted(x, like)), x)]


@equation(("move", "all_reduce"), says="x = x1 + .. + xn, in any order")
def merged_parts(n: int) -> list[Pair]:
    """Parts of a sum may be merged from either end."""
    xs = some_values("x", n, M, K)
    return [(summed(xs), summed(xs[::-1])), (summed(xs), reduce(lambda a, b: b + a, xs[-2::-1], xs[-1]))]


@equation(("move", "reduce_scatter"), says="piece r of x1 + .. + xn = piece r of x1 + .. + piece r of xn")
def merged_pieces(n: int) -> list[Pair]:
    """A piece of a sum is the sum of the pieces of its parts."""
    like = some_values("c", n, M, "k")
    xs = some_values("x", n, M, sum(part.out.cols for part in like))
    return [*zip(parted(summed(xs), like), map(summed, zip(*(parted(x, like) for x in xs), strict=True)), strict=True)]


@equation(("move", "all_to_all"), says="[[a1; a2] [b1; b2]] = [[a1 b1]; [a2 b2]]")
def blocks_exchanged(n: int) -> list[Pair]:
    """Pieces of columns are pieces of rows, block by block."""
    table = [some_values(f"x{at}.", n, "m", size(f"k{at}")) for at in range(n)]
    return [(abreast([piled(column) for column in table]), piled([abreast(line) for line in zip(*table, strict=True)]))]


@equation(("stage", "stages"), says="x @ (A @ B) = (x @ A) @ B")
def stages(n: int) -> list[Pair]:
    """Layers follow each other, so some ranks have the first ones and hand on what they give."""
    x, layers = symbol("x", None, K), [symbol(f"F{at}", K, K) for at in range(n)]
    return [(x @ reduce(lambda a, b: a @ b, layers), reduce(lambda a, b: a @ b, layers, x))]


# ---- heads of numbers: sizes of heads are attributes, which laws do not have


def numbers(*shape: int) -> Operator:
    """Return a matrix, or one for each head, of small integers that are all different."""
    matrix: Operator = weight(Data(np.arange(1.0, 1 + np.prod(shape)).reshape(shape) * (-1.0) ** np.arange(shape[-1])))
    return matrix


def some_heads(lo: int, hi: int, of: int = ALL_HEADS) -> Operator:
    """Return heads lo to hi, without hi, of a value of `of` heads."""
    whole = numbers(of, 3, HEAD_COLUMNS).args[0].array
    chosen: Operator = I @ weight(Data(whole[lo:hi] if hi - lo > 1 else whole[lo]))
    return chosen


@equation(("split", "heads"), says="[x1 .. xn] in heads = heads(x1 in heads, .., xn in heads)", exact=True)
def columns_into_heads(n: int) -> list[Pair]:
    """Columns that are cut between heads are heads that are cut."""
    x = numbers(3, ALL_HEADS * HEAD_COLUMNS)
    return [
        (
            x @ heads(ALL_HEADS),
            grouped(
                [x @ cols(lo * HEAD_COLUMNS, hi * HEAD_COLUMNS) @ heads(hi - lo) for lo, hi in all_bounds(ALL_HEADS, n)]
            ),
        )
    ]


@equation(("join", "heads"), says="heads(x1, .., xn) in columns = [x1 in columns .. xn in columns]", exact=True)
def heads_into_columns(n: int) -> list[Pair]:
    """Heads that are cut are columns that are cut between heads."""
    parts = [(some_heads(lo, hi), hi - lo) for lo, hi in all_bounds(ALL_HEADS, n)]
    return [(some_heads(0, ALL_HEADS) @ heads(ALL_HEADS).T, abreast([x @ heads(h).T for x, h in parts]))]


@equation(("repeat", "heads"), says="heads(x1, .., xn) repeated = heads(x1 repeated, .., xn repeated)", exact=True)
def heads_repeated(n: int) -> list[Pair]:
    """A rank repeats the heads of groups that it has, as often as all are repeated."""
    return [
        (
            some_heads(0, ALL_HEADS) @ repeat(times * ALL_HEADS),
            grouped([some_heads(lo, hi) @ repeat(times * (hi - lo)) for lo, hi in all_bounds(ALL_HEADS, n)]),
        )
        for times in (1, 2, 3)
    ]


@equation(
    ("repeat", "copied heads"),
    says="x repeated = heads(head of rank 1 repeated, .., head of rank n repeated)",
    exact=True,
)
def copied_heads(n: int) -> list[Pair]:
    """If there are fewer heads than ranks, each rank has one whole head, and repeats it for its own queries."""
    ranks, queries = 2 * n, 3  # two ranks a head, three queries a rank
    held = [r * n // ranks for r in range(ranks)]
    return [
        (
            some_heads(0, n, n) @ repeat(queries * ranks),
            grouped([some_heads(g, g + 1, n) @ repeat(queries) for g in held]),
        )
    ]


@equation(
    ("keep_top", "rows one by one"),
    says="the largest of [s1; ..; sn] by [z1; ..; zn] = [the largest of s1 by z1; ..; the largest of sn by zn]",
    exact=True,
)
def largest_of_rows(n: int) -> list[Pair]:
    """The choice of the largest numbers of a row depends on that row alone."""
    parts = [some_heads(r, r + 1) for r in range(n)]
    return [
        (
            keep_top(piled(parts), piled(parts[::-1]), k),
            piled([keep_top(*pair, k) for pair in zip(parts, parts[::-1], strict=True)]),
        )
        for k in (1, HEAD_COLUMNS)
    ]


@equation(
    ("keep_top", "heads"), says="the largest of heads(s1, .., sn) = heads(the largest of s1, .., of sn)", exact=True
)
def largest_of_heads(n: int) -> list[Pair]:
    """Each head has its own largest numbers."""
    parts, whole = [some_heads(lo, hi) for lo, hi in all_bounds(ALL_HEADS, n)], some_heads(0, ALL_HEADS)
    return [(keep_top(whole, -whole, 1), grouped([keep_top(part, -part, 1) for part in parts]))]


@equation(("repeat", "columns"), ("total", "columns"), says="[x1 .. xn] @ f = [x1 @ f .. xn @ f]", exact=True)
def columns_within_heads(n: int) -> list[Pair]:
    """Copies and sums of heads leave columns where they are."""
    whole = numbers(ALL_HEADS, 3, 2 * n).args[0].array
    parts = [weight(Data(whole[..., 2 * r : 2 * r + 2])) for r in range(n)]
    return [(weight(Data(whole)) @ f, abreast([part @ f for part in parts])) for f in (repeat(2 * ALL_HEADS), total)]
