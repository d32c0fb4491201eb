"""Checks on numbers of the splits that laws of values do not express: parts of products over any monoid (no operator
gives the carrier of a monoid), sequences one by one and rows under a pattern (which depend on the batch). Carriers of
ranks are merged in rationals, or, if there is an exponential, in intervals that include all rounding; a wrong merge
shares no number with the interval."""

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
from opmatrix.algebra.operators import gated_delta_rule, gelu, given, pick, product, relation, scan, shift, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import Pattern, among, causal, everyone, sequence, window
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.backward_kinds import backwards
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

MANY, QUERY_ROWS, SEQUENCES = 9, 7, (4, 1, 3, 5)  # keys; rows; lengths of sequences
THIN, CLOSE = 1e-9, 1e-12  # relative tolerances: of intervals, of float64
MERGED = tuple(over for over in monoids.MONOIDS if mergeable(over))
UNEQUAL = "no operator gives what a monoid carries"
BATCHES = "who sees whom is said by the batch"
GATES = "whom a row asks is said by the numbers of its gate"
LINKS = relation("links", "T", "T")


@dataclass(frozen=True, eq=False, repr=False)
class SplitCheck(FunctionDeclaration):
    """One check: `body` tries a number of pieces, over a monoid. `rules` are the rules that it justifies, `reason`
    says why there is no proof. The body raises VerificationError if the ranks' results differ from that of the whole.
    """

    body: Callable[[type[Monoid], int, np.random.Generator], None]
    rules: tuple[RuleKey, ...]
    reason: str
    over: tuple[type[Monoid], ...]


CHECKS: list[SplitCheck] = []
CheckBody = Callable[[type[Monoid], int, np.random.Generator], None]


def try_parts(*rules: RuleKey, reason: str, over: Iterable[type[Monoid]] = MERGED) -> Callable[[CheckBody], SplitCheck]:
    """Declare a check of rules."""

    def declare(body: CheckBody) -> SplitCheck:
        CHECKS.append(SplitCheck(body, rules, reason, tuple(over)))
        return CHECKS[-1]

    return declare


def uneven(units: int, n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return n neighbouring ranges, some of which may be empty."""
    return [*pairwise([0, *sorted(int(at) for at in rng.integers(0, units + 1, n - 1)), units])]


# ---- carriers

Lifted = list[Carrier]


def draw_carriers(over: type[Monoid], rng: np.random.Generator) -> Lifted:
    """Draw carriers: in rationals if the monoid computes in them, else in intervals."""
    drawn = rng.integers(-20, 21, (MANY, 2))

    def of(number: Callable[[int], object]) -> Lifted:
        return [over.lifted(number(x), number(w)) for x, w in drawn.tolist()]

    try:
        carriers = of(lambda u: Fraction(u, 4))
        over.finish(*merge_carriers(over, carriers))
        return carriers
    except TypeError:
        return of(lambda u: Between(u / 4))


def merge_carriers(over: type[Monoid], carriers: Iterable[Carrier]) -> Carrier:
    """Merge all carriers in order. Merged units are whole numbers, which numpy divides to floats; these become
    rationals again."""

    def merged(a: Carrier, b: Carrier) -> Carrier:
        return tuple(
            Fraction(float(number)) if isinstance(number, np.floating) and np.isfinite(number) else number
            for number in over.merged(a, b)
        )

    return reduce(merged, carriers, over.unit())


def same_carriers(one: Carrier, other: Carrier) -> bool:
    """True if two carriers are equal in rationals, or may be equal in narrow intervals."""
    return all(same_number(a, b) for a, b in zip(one, other, strict=True))


def same_number(a: object, b: object) -> bool:
    a, b = (number.item() if isinstance(number, np.ndarray) else number for number in (a, b))
    if not (isinstance(a, Between) or isinstance(b, Between)):
        return bool(a == b)
    a, b = (
        number if isinstance(number, Between) else Between(float(number))  # type: ignore[arg-type]
        for number in (a, b)
    )
    if a.low == b.low and a.high == b.high:
        return True
    wide = THIN * max(abs(a).high, abs(b).high, 1.0)
    return a.low <= b.high and b.low <= a.high and a.high - a.low <= wide and b.high - b.low <= wide


@try_parts(
    ("act", "rows of a matrix"),
    ("product", "contraction"),
    ("move", "all_reduce"),
    ("move", "reduce_scatter"),
    reason=UNEQUAL,
)
def carriers_in_order(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that carriers of neighbours, merged in the order of ranks, are the carrier of all; a rank may have no
    entries."""
    every = draw_carriers(over, rng)
    ranks = [merge_carriers(over, every[lo:hi]) for lo, hi in uneven(MANY, n, rng)]
    compare_carriers("carriers_in_order", over, merge_carriers(over, ranks), merge_carriers(over, every))


@try_parts(("ring", "ring of keys"), reason=UNEQUAL, over=[over for over in MERGED if over.commutative])
def carriers_in_a_ring(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check the ring: each rank begins with its own block, goes on to the left, and skips blocks of which it sees no
    key."""
    every, blocks = draw_carriers(over, rng), uneven(MANY, n, rng)
    for r in range(n):
        seen = (rng.random(MANY) < 0.6) & np.repeat(rng.random(n) < 0.7, [hi - lo for lo, hi in blocks])
        seen[slice(*blocks[r])] = True
        carrier = over.unit()
        for lo, hi in (blocks[(r - d) % n] for d in range(n)):
            if not seen[lo:hi].any():
                continue
            carrier = over.merged(carrier, merge_carriers(over, [every[at] for at in range(lo, hi) if seen[at]]))
        whole = merge_carriers(over, [every[at] for at in np.flatnonzero(seen)])
        compare_carriers("carriers_in_a_ring", over, carrier, whole)


def compare_carriers(name: str, over: type[Monoid], found: Carrier, wanted: Carrier) -> None:
    """Raise VerificationError if the merged carrier, or its finished value, differs from that of the whole."""
    if not same_carriers(found, wanted) or not same_number(over.finish(*found), over.finish(*wanted)):
        raise VerificationError(2, f"{name} over {over.__name__}", f"ranks merge {found}, and the whole is {wanted}")


# ---- sequences and rows under patterns

WITHIN: tuple[Pattern, ...] = (sequence, causal & sequence, window(1) & sequence)


def scored(rng: np.random.Generator, over: type[Monoid], where: Pattern) -> Operator:
    """Return a product over a monoid of scores of rows, under a pattern."""
    q, k, v = (weight(rng.normal(size=(5, 3))) @ gelu for _ in range(3))
    term: Operator = product(product(q, turn(k)), v, over, where)
    return term


def compare_pieces(name: str, what: object, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    """Raise VerificationError if the ranks' numbers differ from those of the whole."""
    if not apart(found, wanted) <= CLOSE:
        raise VerificationError(2, f"{name} over {what}", "ranks have other numbers", difference=apart(found, wanted))


def by_sequences(term: Operator, n: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the result of a term for the sequences of each rank, joined, and for all sequences."""
    x = rng.normal(size=(sum(SEQUENCES), 5))
    ends, parts = [0, *accumulate(SEQUENCES)], []
    for lo, hi in uneven(len(SEQUENCES), n, rng):
        if lo < hi:
            parts.append(np.asarray(dense(term, x[ends[lo] : ends[hi]], zeros(SEQUENCES[lo:hi]))))
    return np.concatenate(parts), np.asarray(dense(term, x, zeros(SEQUENCES)))


def zeros(lengths: Sequence[int]) -> Batch:
    return Batch([np.zeros(length, int) for length in lengths])


@try_parts(("product", "sequences"), reason=BATCHES)
def sequences_one_by_one(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that under a pattern within sequences no row needs a row of another rank's sequences."""
    for where in WITHIN:
        parts, wanted = by_sequences(scored(rng, over, where), n, rng)
        compare_pieces("sequences_one_by_one", f"{over.__name__} where {where}", parts, wanted)


@try_parts(("scan", "sequences"), reason=BATCHES)
def scanned_sequences_one_by_one(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that no row is merged with a row of another rank's sequences."""
    for where in (sequence, causal & sequence):
        a, b = (weight(rng.normal(size=(5, 3))) @ gelu for _ in range(2))
        parts, wanted = by_sequences(scan(a, b, over, where), n, rng)
        compare_pieces("scanned_sequences_one_by_one", f"{over.__name__} where {where}", parts, wanted)


@try_parts(("delta_rule", "sequences"), ("delta_rule", "heads"), reason=BATCHES, over=(monoids.sum,))
def corrected_one_by_one(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that no row corrects the state of another rank's sequences, or of another head; all may share keys."""

    def some(rows: int, heads: int) -> NDArray[np.float64]:
        return rng.normal(size=(5, rows)) if heads == 1 else rng.normal(size=(heads, 5, rows))

    q, k, v, betas, decays = some(3, MANY), some(3, 1), some(2, MANY), some(1, MANY), some(1, 1)
    term = gated_delta_rule(*(weight(part) for part in (q, k, v, betas, decays)))
    x, batch = rng.normal(size=(sum(SEQUENCES), 5)), zeros(SEQUENCES)
    whole, ends = np.asarray(dense(term, x, batch)), np.cumsum([0, *SEQUENCES])
    parts = [
        np.asarray(dense(term, x[ends[lo] : ends[hi]], zeros(SEQUENCES[lo:hi])))
        for lo, hi in uneven(len(SEQUENCES), n, rng)
        if lo < hi
    ]
    compare_pieces("corrected_one_by_one", "sequences", np.concatenate(parts, 1), whole)
    for lo, hi in uneven(MANY, n, rng):
        if lo < hi:
            own = [q[lo:hi], k, v[lo:hi], betas[lo:hi], decays]
            part = np.asarray(dense(gated_delta_rule(*(weight(each) for each in own)), x, batch))
            compare_pieces("corrected_one_by_one", "heads", part.reshape(whole[lo:hi].shape), whole[lo:hi])


@try_parts(("pick", "picked rows"), reason=BATCHES, over=(monoids.softmax,))
def rows_that_are_picked(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that a picked row of each sequence is on the rank of its sequence."""
    for name in ("first", "last"):
        parts, wanted = by_sequences(scored(rng, over, sequence) @ pick(name), n, rng)
        compare_pieces("rows_that_are_picked", name, parts, wanted)


@try_parts(("product", "rows"), reason=BATCHES)
def rows_at_their_positions(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that a rank with some rows of scores masks them by their positions in the whole."""
    for where in (everyone, *WITHIN):
        term, x = scored(rng, over, where), rng.normal(size=(QUERY_ROWS, 5))
        z, v = (np.asarray(dense(operand, x)) for operand in term.args[:2])
        parts = []
        for lo, hi in uneven(QUERY_ROWS, n, rng):
            seen = visibility(where, np.arange(lo, hi), np.arange(QUERY_ROWS))
            parts.append((over.closed or over.product)(z[lo:hi], v, seen))
        compare_pieces(
            "rows_at_their_positions",
            f"{over.__name__} where {where}",
            np.concatenate(parts),
            np.asarray(dense(term, x, zeros([QUERY_ROWS]))),
        )


@try_parts(
    *((op, sharded) for op in ("shift", "backwards") for sharded in ("sequences", "columns", "heads")),
    reason=BATCHES,
    over=(monoids.sum,),
)
def rows_moved(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that a rank shifts its sequences, its columns and its heads as the whole is shifted, and turns them
    round."""
    x = rng.normal(size=(sum(SEQUENCES), MANY))
    ends, batch = np.cumsum([0, *SEQUENCES]), zeros(SEQUENCES)
    for moved in (shift(int(rng.integers(1, 4))), backwards()):
        whole = np.asarray(dense(moved, x, batch))
        pieces = [
            np.asarray(dense(moved, x[ends[lo] : ends[hi]], zeros(SEQUENCES[lo:hi])))
            for lo, hi in uneven(len(SEQUENCES), n, rng)
            if lo < hi
        ]
        compare_pieces("rows_moved", "sequences", np.concatenate(pieces), whole)
        columns = [np.asarray(dense(moved, x[:, lo:hi], batch)) for lo, hi in uneven(MANY, n, rng)]
        compare_pieces("rows_moved", "columns", np.concatenate(columns, 1), whole)
        deep = np.asarray(dense(moved, x.T[..., None], batch))
        compare_pieces("rows_moved", "heads", deep[..., 0].T, whole)


# ---- relations: rows that entries name


def linked(rng: np.random.Generator) -> tuple[Sparse, Batch]:
    """Return entries between rows, some rows without any, and the batch that holds them."""
    entries = np.where(rng.random((MANY, MANY)) < 0.3, rng.normal(size=(MANY, MANY)), 0)
    entries[rng.integers(MANY)] = 0
    return Sparse.of(entries, "entries of a check"), Batch([np.zeros(MANY, int)], relations={LINKS.name: entries})


@try_parts(("product", "halo"), reason=BATCHES)
def rows_with_their_halo(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that a rank with some rows of a relation can multiply them with the rows that its entries name."""
    whole, batch = linked(rng)
    x, term = rng.normal(size=(MANY, 5)), weight(rng.normal(size=(5, 3)))
    v, parts = np.asarray(dense(term, x)), []
    for r, rows in enumerate(all_bounds(MANY, n)):
        part, wanted = part_of_relation(whole, rows, (0, MANY)), named_rows(whole, n, r)
        merged = merge_entries(over, part, part.numbers, v[wanted], wanted)
        parts.append(over.finished(merged.carrier, (rows[1] - rows[0], v.shape[1])))
    compare_pieces(
        "rows_with_their_halo",
        over.__name__,
        np.concatenate(parts),
        np.asarray(dense(product(given(LINKS), term, over), x, batch)),
    )


@try_parts(("among", "halo"), reason=BATCHES)
def attention_with_its_halo(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that queries of a rank need only the keys that the rank's entries name."""
    whole, batch = linked(rng)
    term, x = scored(rng, over, among(LINKS)), rng.normal(size=(MANY, 5))
    z, v = (np.asarray(dense(operand, x, batch)) for operand in term.args[:2])
    seen, parts = whole.dense() != 0, []
    for r, (lo, hi) in enumerate(all_bounds(MANY, n)):
        wanted = named_rows(whole, n, r)
        parts.append((over.closed or over.product)(z[lo:hi][:, wanted], v[wanted], seen[lo:hi][:, wanted]))
    compare_pieces("attention_with_its_halo", over.__name__, np.concatenate(parts), np.asarray(dense(term, x, batch)))


@try_parts(("move", "halo"), ("pick", "halo"), ("pick", "rows that are picked"), reason=BATCHES, over=(monoids.sum,))
def rows_that_others_have(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that the rows that a rank's entries name are its own and those that other ranks send, each once; and that
    a picked row is a sum in which all ranks but one have zeros."""
    whole, _ = linked(rng)
    x = rng.normal(size=(MANY, 3))
    for q in range(n):
        wanted, sent = named_rows(whole, n, q), [own_rows(whole, n, q, r) for r in range(n)]
        compare_pieces("rows_that_others_have", "halos", np.concatenate([x[rows] for rows in sent]), x[wanted])
        parts = [pick_held(x[lo:hi], np.arange(lo, hi), wanted) for lo, hi in all_bounds(MANY, n)]
        compare_pieces("rows_that_others_have", "picked rows", reduce(lambda a, b: a + b, parts), x[wanted])


# ---- experts


@try_parts(("dispatch", TO), reason=GATES, over=(monoids.sum,))
def rows_that_ask(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that rows of each rank are sent to the ranks of the experts that their gates name, and the answers back; a
    row with gate 0 adds nothing to the sum. All numbers are whole, so that no sum is rounded."""
    experts, ends = 2 * n, uneven(MANY, n, rng)
    x, gate = (rng.integers(-9, 10, (MANY, columns)).astype(np.float64) for columns in (3, experts))
    gate *= rng.random(gate.shape) < 0.4
    matrices = rng.integers(-9, 10, (experts, 3, 2)).astype(np.float64)
    asked = [whom(gate[lo:hi], 0, False) for lo, hi in ends]
    came = swapped([rows_asked(x[lo:hi], mine) for (lo, hi), mine in zip(ends, asked, strict=True)])
    back = swapped(
        [tuple(rows @ matrices[2 * r + at % 2] for at, rows in enumerate(received)) for r, received in enumerate(came)]
    )
    parts = [combined(answers, gate[lo:hi], mine) for answers, (lo, hi), mine in zip(back, ends, asked, strict=True)]
    compare_pieces(
        "rows_that_ask", "ranks of experts", np.concatenate(parts), np.einsum("ti,eij,te->tj", x, matrices, gate)
    )


@try_parts(("visit", TO), reason=GATES, over=(monoids.sum,))
def rows_that_visit(over: type[Monoid], n: int, rng: np.random.Generator) -> None:
    """Check that a row is sent once to each of n nodes with an expert that its gate names, and that its answers are
    summed there."""
    x, gate = (rng.integers(-9, 10, (MANY, columns)).astype(np.float64) for columns in (3, 2 * n))
    gate *= rng.random(gate.shape) < 0.4
    matrices = rng.integers(-9, 10, (2 * n, 3, 2)).astype(np.float64)
    sums = np.zeros((MANY, 2))
    for lo in range(0, 2 * n, 2):
        here = whom(gate[:, lo : lo + 2], 0, False)
        rows = here.any(1)
        answers = tuple(
            asking @ matrix
            for asking, matrix in zip(rows_asked(x[rows], here[rows]), matrices[lo : lo + 2], strict=True)
        )
        sums[rows] += combined(answers, gate[rows, lo : lo + 2], here[rows])
    compare_pieces("rows_that_visit", "nodes of experts", sums, np.einsum("ti,eij,te->tj", x, matrices, gate))


def swapped(arrays: Sequence[tuple[NDArray[np.float64], ...]]) -> list[tuple[NDArray[np.float64], ...]]:
    """Return for each rank its share of the arrays of every rank."""
    return exchange_rows([Message("exchange", 0, share, 0) for share in arrays], [Meter() for _ in arrays], "ep")
