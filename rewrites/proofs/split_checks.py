"""What laws of values do not express of splits is tried: parts of products over any monoid (no operator gives what a
monoid carries), sequences one by one and rows under a pattern (which depend on the batch). What ranks carry is merged
in rationals, or, where there is an exponential, in intervals that hold all that rounding does; a wrong merge has no
number in common with them."""
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import Sparse
from opmatrix.algebra.monoid import Carrier, Monoid
from opmatrix.algebra.operators import gelu, given, pick, product, relation, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import Pattern, among, causal, everyone, sequence, window
from opmatrix.algebra.term import Operator
from opmatrix.parallel.ranks.moe_experts import combined, rows_asked, whom
from opmatrix.parallel.ranks.ranks import Message, Meter
from opmatrix.parallel.ranks.related import merge_entries, pick_held
from opmatrix.parallel.ranks.virtual import exchange_rows
from opmatrix.parallel.sharding.axis_states import all_bounds, mergeable
from opmatrix.parallel.sharding.block_mask import visibility
from opmatrix.parallel.sharding.haloed import named_rows, own_rows, part_of_relation
from opmatrix.parallel.sharding.moe_dispatch import TO
from rewrites.laws.law import FunctionDeclaration, apart
from rewrites.laws.splitting import RuleKey
from rewrites.proofs.enclosure import Between
from rewrites.verify.failure import VerificationError

MANY, QUERY_ROWS, SEQUENCES = 9, 7, (4, 1, 3, 5)           # of a check: keys, rows, sequences of unequal length
THIN, CLOSE = 1e-9, 1e-12                                 # relative: of intervals, of float64
MERGED = tuple(over for over in monoids.MONOIDS if mergeable(over))
UNEQUAL = "no operator gives what a monoid carries"
BATCHES = "who sees whom is said by the batch"
GATES = "whom a row asks is said by the numbers of its gate"
LINKS = relation("links", "T", "T")


@dataclass(frozen=True, eq=False, repr=False)
class SplitCheck(FunctionDeclaration):
    """One check: `body` tries so many pieces, over a monoid. `rules`: what it justifies. `reason`: why it is no
    proof. It raises VerificationError where what ranks have is not what the whole has."""
    body: Callable[[type[Monoid], int, np.random.Generator], None]
    rules: tuple[RuleKey, ...]
    reason: str
    over: tuple[type[Monoid], ...]


CHECKS: list[SplitCheck] = []
CheckBody = Callable[[type[Monoid], int, np.random.Generator], None]


def try_parts(*rules: RuleKey, reason: str, over: Iterable[type[Monoid]] = MERGED) -> Callable[[CheckBody], SplitCheck]:
    """Declares a check of rules."""
    def declare(body: CheckBody) -> SplitCheck:
        CHECKS.append(SplitCheck(body, rules, reason, tuple(over)))
        return CHECKS[-1]
    return declare


def uneven(units: int, n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Neighbours in n pieces, of which some may be empty."""
    return [*pairwise([0, *sorted(int(at) for at in rng.integers(0, units + 1, n - 1)), units])]


# ---- carriers

Lifted = list[Carrier]


def draw_carriers(over: type[Monoid], rng: np.random.Generator) -> Lifted:
    """What is merged: in rationals where the monoid computes in them, else in intervals."""
    drawn = rng.integers(-20, 21, (MANY, 2))
    def of(number: Callable[[int], object]) -> Lifted:
        return [over.lifted(number(x), number(w)) for x, w in drawn.tolist()]
    try:
        found = of(lambda u: Fraction(u, 4))
        over.finish(*merge_carriers(over, found))
        return found
    except TypeError:
        return of(lambda u: Between(u / 4))


def merge_carriers(over: type[Monoid], carriers: Iterable[Carrier]) -> Carrier:
    """All of them in order. Units that are merged with units are whole numbers, which numpy divides to floats."""
    def merged(a: Carrier, b: Carrier) -> Carrier:
        return tuple(Fraction(float(each)) if isinstance(each, np.floating) and np.isfinite(each) else each
                     for each in over.merged(a, b))
    return reduce(merged, carriers, over.unit())


def same_carriers(one: Carrier, other: Carrier) -> bool:
    """Whether two carriers are equal in rationals, or may be in narrow intervals."""
    return all(same_number(a, b) for a, b in zip(one, other, strict=True))


def same_number(a: object, b: object) -> bool:
    a, b = (each.item() if isinstance(each, np.ndarray) else each for each in (a, b))
    if not (isinstance(a, Between) or isinstance(b, Between)): return bool(a == b)
    a, b = (each if isinstance(each, Between) else Between(float(each)) for each in (a, b))     # type: ignore[arg-type]
    if a.low == b.low and a.high == b.high: return True
    wide = THIN * max(abs(a).high, abs(b).high, 1.0)
    return a.low <= b.high and b.low <= a.high and a.high - a.low <= wide and b.high - b.low <= wide


@try_parts(("act", "rows of a matrix"), ("product", "contraction"), ("move", "all_reduce"), ("move", "reduce_scatter"),
       reason=UNEQUAL)
def carriers_in_order(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Carriers of neighbours, merged in the order of ranks, are the carrier of all; a rank may have none."""
    every = draw_carriers(over, rng)
    ranks = [merge_carriers(over, every[lo:hi]) for lo, hi in uneven(MANY, n, rng)]
    compare_carriers("carriers_in_order", over, merge_carriers(over, ranks), merge_carriers(over, every))


@try_parts(("ring", "ring of keys"), reason=UNEQUAL, over=[over for over in MERGED if over.commutative])
def carriers_in_a_ring(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Each rank begins with its own block and goes on to the left, and leaves out blocks of which it sees nothing."""
    every, blocks = draw_carriers(over, rng), uneven(MANY, n, rng)
    for r in range(n):
        seen = (rng.random(MANY) < 0.6) & np.repeat(rng.random(n) < 0.7, [hi - lo for lo, hi in blocks])
        seen[slice(*blocks[r])] = True
        carrier = over.unit()
        for lo, hi in (blocks[(r - d) % n] for d in range(n)):
            if not seen[lo:hi].any(): continue
            carrier = over.merged(carrier, merge_carriers(over, [every[at] for at in range(lo, hi) if seen[at]]))
        whole = merge_carriers(over, [every[at] for at in np.flatnonzero(seen)])
        compare_carriers("carriers_in_a_ring", over, carrier, whole)


def compare_carriers(name: str, over: type[Monoid], found: Carrier, wanted: Carrier) -> None:
    """Raises VerificationError where what was merged, or what it is finished to, is not what the whole gives."""
    if not same_carriers(found, wanted) or not same_number(over.finish(*found), over.finish(*wanted)):
        raise VerificationError(2, f"{name} over {over.__name__}", f"ranks merge {found}, and the whole is {wanted}")


# ---- sequences and rows under patterns

WITHIN: tuple[Pattern, ...] = (sequence, causal & sequence, window(1) & sequence)


def scored(rng: np.random.Generator, over: type[Monoid], where: Pattern) -> Operator:
    """A product over a monoid of scores of rows, under a pattern."""
    q, k, v = (weight(rng.normal(size=(5, 3))) @ gelu for _ in range(3))
    found: Operator = product(product(q, turn(k)), v, over, where)
    return found


def compare_pieces(name: str, what: object, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    """Raises VerificationError where what ranks have differs from what the whole has."""
    if not apart(found, wanted) <= CLOSE:
        raise VerificationError(2, f"{name} over {what}", "ranks have other numbers", difference=apart(found, wanted))


def by_sequences(term: Operator, n: int, rng: np.random.Generator) -> tuple[
        NDArray[np.float64], NDArray[np.float64]]:
    """What a term gives of all sequences, and of those of each rank."""
    x = rng.normal(size=(sum(SEQUENCES), 5))
    ends, found = [0, *accumulate(SEQUENCES)], []
    for lo, hi in uneven(len(SEQUENCES), n, rng):
        if lo < hi: found.append(np.asarray(dense(term, x[ends[lo]:ends[hi]], zeros(SEQUENCES[lo:hi]))))
    return np.concatenate(found), np.asarray(dense(term, x, zeros(SEQUENCES)))


def zeros(lengths: Sequence[int]) -> Batch: return Batch([np.zeros(length, int) for length in lengths])


@try_parts(("product", "sequences"), reason=BATCHES)
def sequences_one_by_one(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Under a pattern within sequences nobody sees another rank's."""
    for where in WITHIN:
        found, wanted = by_sequences(scored(rng, over, where), n, rng)
        compare_pieces("sequences_one_by_one", f"{over.__name__} where {where}", found, wanted)


@try_parts(("pick", "picked rows"), reason=BATCHES, over=(monoids.softmax,))
def rows_that_are_picked(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """A row of each sequence lies with its sequence."""
    for name in ("first", "last"):
        found, wanted = by_sequences(scored(rng, over, sequence) @ pick(name), n, rng)
        compare_pieces("rows_that_are_picked", name, found, wanted)


@try_parts(("product", "rows"), reason=BATCHES)
def rows_at_their_positions(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """A rank that has some rows of scores masks them by the positions that they have in the whole."""
    for where in (everyone, *WITHIN):
        term, x = scored(rng, over, where), rng.normal(size=(QUERY_ROWS, 5))
        z, v = (np.asarray(dense(each, x)) for each in term.args[:2])
        found = []
        for lo, hi in uneven(QUERY_ROWS, n, rng):
            seen = visibility(where, np.arange(lo, hi), np.arange(QUERY_ROWS))
            found.append((over.closed or over.product)(z[lo:hi], v, seen))
        compare_pieces("rows_at_their_positions", f"{over.__name__} where {where}", np.concatenate(found),
                       np.asarray(dense(term, x, zeros([QUERY_ROWS]))))


# ---- relations: rows that entries name

def linked(rng: np.random.Generator) -> tuple[Sparse, Batch]:
    """Entries between rows, some without any, and the batch that gives them."""
    entries = np.where(rng.random((MANY, MANY)) < 0.3, rng.normal(size=(MANY, MANY)), 0)
    entries[rng.integers(MANY)] = 0
    return Sparse.of(entries, "entries of a check"), Batch([np.zeros(MANY, int)], relations={LINKS.name: entries})


@try_parts(("product", "halo"), reason=BATCHES)
def rows_with_their_halo(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """A rank that has some rows of a relation multiplies them with the rows that they name."""
    whole, batch = linked(rng)
    x, term = rng.normal(size=(MANY, 5)), weight(rng.normal(size=(5, 3)))
    v, found = np.asarray(dense(term, x)), []
    for r, rows in enumerate(all_bounds(MANY, n)):
        own, wanted = part_of_relation(whole, rows, (0, MANY)), named_rows(whole, n, r)
        merged = merge_entries(over, own, own.numbers, v[wanted], wanted)
        found.append(over.finished(merged.carrier, (rows[1] - rows[0], v.shape[1])))
    compare_pieces("rows_with_their_halo", over.__name__, np.concatenate(found),
                   np.asarray(dense(product(given(LINKS), term, over), x, batch)))


@try_parts(("among", "halo"), reason=BATCHES)
def attention_with_its_halo(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Queries of a rank see the keys that its entries name, and no others need be there."""
    whole, batch = linked(rng)
    term, x = scored(rng, over, among(LINKS)), rng.normal(size=(MANY, 5))
    z, v = (np.asarray(dense(each, x, batch)) for each in term.args[:2])
    seen, found = whole.dense() != 0, []
    for r, (lo, hi) in enumerate(all_bounds(MANY, n)):
        wanted = named_rows(whole, n, r)
        found.append((over.closed or over.product)(z[lo:hi][:, wanted], v[wanted], seen[lo:hi][:, wanted]))
    compare_pieces("attention_with_its_halo", over.__name__, np.concatenate(found), np.asarray(dense(term, x, batch)))


@try_parts(("move", "halo"), ("pick", "halo"), ("pick", "rows that are picked"), reason=BATCHES, over=(monoids.sum,))
def rows_that_others_have(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Rows that a rank's entries name are its own ones and those that others send, each once; and a row that is picked
    is a sum in which all ranks but one have zeros."""
    whole, _ = linked(rng)
    x = rng.normal(size=(MANY, 3))
    for q in range(n):
        wanted, sent = named_rows(whole, n, q), [own_rows(whole, n, q, r) for r in range(n)]
        compare_pieces("rows_that_others_have", "halos", np.concatenate([x[each] for each in sent]), x[wanted])
        parts = [pick_held(x[lo:hi], np.arange(lo, hi), wanted) for lo, hi in all_bounds(MANY, n)]
        compare_pieces("rows_that_others_have", "picked rows", reduce(lambda a, b: a + b, parts), x[wanted])


# ---- experts

@try_parts(("dispatch", TO), reason=GATES, over=(monoids.sum,))
def rows_that_ask(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Rows of each rank go to the ranks that have the experts whom their gates name, and the answers back; a row whose
    gate is 0 adds nothing. Of whole numbers, so that nothing is rounded."""
    experts, ends = 2 * n, uneven(MANY, n, rng)
    x, gate = (rng.integers(-9, 10, (MANY, each)).astype(np.float64) for each in (3, experts))
    gate *= rng.random(gate.shape) < 0.4
    matrices = rng.integers(-9, 10, (experts, 3, 2)).astype(np.float64)
    asked = [whom(gate[lo:hi], 0, False) for lo, hi in ends]
    came = swapped([rows_asked(x[lo:hi], mine) for (lo, hi), mine in zip(ends, asked, strict=True)])
    back = swapped([tuple(rows @ matrices[2 * r + at % 2] for at, rows in enumerate(own))
                    for r, own in enumerate(came)])
    found = [combined(own, gate[lo:hi], mine) for own, (lo, hi), mine in zip(back, ends, asked, strict=True)]
    compare_pieces("rows_that_ask", "ranks of experts", np.concatenate(found),
                   np.einsum("ti,eij,te->tj", x, matrices, gate))


@try_parts(("visit", TO), reason=GATES, over=(monoids.sum,))
def rows_that_visit(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """A row goes once to each of n nodes that has an expert whom its gate names, and answers to it are summed there."""
    x, gate = (rng.integers(-9, 10, (MANY, each)).astype(np.float64) for each in (3, 2 * n))
    gate *= rng.random(gate.shape) < 0.4
    matrices = rng.integers(-9, 10, (2 * n, 3, 2)).astype(np.float64)
    found = np.zeros((MANY, 2))
    for lo in range(0, 2 * n, 2):
        here = whom(gate[:, lo:lo + 2], 0, False)
        rows = here.any(1)
        answers = tuple(each @ matrix for each, matrix in zip(rows_asked(x[rows], here[rows]), matrices[lo:lo + 2],
                                                              strict=True))
        found[rows] += combined(answers, gate[rows, lo:lo + 2], here[rows])
    compare_pieces("rows_that_visit", "nodes of experts", found, np.einsum("ti,eij,te->tj", x, matrices, gate))


def swapped(arrays: Sequence[tuple[NDArray[np.float64], ...]]) -> list[tuple[NDArray[np.float64], ...]]:
    """To each rank its share of the arrays of every rank."""
    return exchange_rows([Message("exchange", 0, each, 0) for each in arrays], [Meter() for _ in arrays], "ep")
