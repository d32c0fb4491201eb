"""Random operators for the main job, drawn by a seed: all kinds, monoids, relations and patterns of
tests/support/random_programs.py, and what is rare in models that people trained: weights of zeros, whole numbers,
one array under two names and two arrays under one, columns that nothing reaches, sentences of one token, a batch of
one row, inputs without tokens, no weights at all, rows of sequences and of other spaces, several outputs.

Degenerate ones (`degenerate_operator`) are mostly of what changes nothing, forgets what it is given, or has one
column: results that are operands, constants, the same value under two names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from random_programs import LIMIT, OTHERS, PLAIN, VOCABULARY, Choices, Grower, size

from opmatrix.algebra import operators
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.operators import (
    I,
    cols,
    const,
    diag,
    given,
    heads,
    ones,
    over,
    pick,
    place,
    product,
    row,
    share,
    total,
    weight,
)
from opmatrix.algebra.positions.patterns import mask, sequence
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import Data, Operator, Value
from rewrites.egraph.layers import outputs

WIDTHS = 1, 2, 3, 4, 6, 8, 12, 32, 64
WIDEST, LONGEST, SPACE_ROWS = 64, 5, 4
NAMES = "W", "b", None, None
LAST = "pooled", "picked_rows"  # steps that leave the rows of tokens
MORE = "weightless", "named_mask", "doubled", "halved_away", "gathered"
START = "tokens", "tokens", "tokens", "input", "nothing"
LENGTHS = (1,), (1, 1, 1), (LONGEST,), (), (), ()  # of sentences; empty: some are drawn


class Rare(Grower):
    """Grows values out of one another, of rare numbers too."""

    def __init__(self, choices, rng, x, start):
        self.draw, self.rng, self.plain, self.known = choices, rng, False, []
        self.pool = [self.begun(x, start)]

    def begun(self, x, start):
        if start == "tokens":
            return x @ weight(self.numbers(VOCABULARY, self.width()))
        value = Value(given("features", self.width(), "T"))
        return value @ weight(self.numbers(value.cols, self.width())) if start == "input" else value

    def width(self):
        return self.pick(*WIDTHS)

    def numbers(self, *shape):
        """An array that was there before, numbers of a rare kind, or just numbers; by a name that others may have."""
        same = [each for each in self.known if each.shape == shape]
        if same and self.rng.random() < 0.15:
            found = same[self.rng.integers(len(same))].array
        else:
            plain = self.rng.normal(size=shape) / (shape[-2] if len(shape) > 1 else 1) ** 0.5
            found = self.pick(
                *[lambda: plain] * 8,
                lambda: np.zeros(shape),
                lambda: np.round(plain * 4),
                lambda: np.where(self.rng.random(shape) < 0.5, plain, 0.0),
                lambda: plain * (np.arange(shape[-1]) % 2),
                lambda: np.full(shape, 0.5),
                lambda: plain.astype(np.float16).astype(np.float32),
            )()
        self.known.append(Data(found, self.pick(*NAMES)))
        return self.known[-1]

    def weightless(self, v):
        return v @ (operators.I + self.function())

    def doubled(self, v):
        return v + v @ self.function() + v @ self.function()

    def halved_away(self, v):
        return v @ operators.relu * self.pick(0.0, 0.5) + (v - v)

    def named_mask(self, v):
        """Masks of one name and other numbers."""
        table = Data(self.rng.integers(0, 2, (LONGEST + 1, LONGEST + 1)) | np.eye(LONGEST + 1, dtype=int), "seen")
        q, k = self.to(v, 3), self.to(self.any(), 3)
        return product(q @ k.T, v, over=self.monoid(tokens=True), where=mask(table) & sequence)

    def gathered(self, v):
        """Over a relation whose rows may be empty."""
        return product(given(operators.relation("sparse", "T", "T")), v, over=self.monoid(tokens=True))

    def pooled(self, v):
        return product(given(self.pick("members", "members_by_root")), v, over=self.monoid(tokens=True))

    def picked_rows(self, v):
        return v @ pick(self.pick("first", "last"))


SAME = (  # what changes nothing
    lambda v: v,
    lambda v: v @ I,
    lambda v: v @ cols(0, v.cols),
    lambda v: v @ place(0, v.cols),
    lambda v: v.T.T,
    lambda v: v @ heads(1) @ total,
    lambda v: v @ heads(v.cols) @ heads(v.cols).T,
    lambda v: v * 1.0,
    lambda v: v + 0.0,
    lambda v: (-v) * -1.0,
    lambda v: v @ diag(np.ones(v.cols)),
    lambda v: row(v @ cols(0, 1), v) @ cols(1, v.cols + 1),
)
FORGETFUL = (  # what does not read what it is given
    lambda v, numbers: v @ const(numbers(v.cols)),
    lambda v, numbers: v @ const(numbers(1)),
    lambda v, numbers: v @ ones @ const(numbers(5)),
    lambda v, numbers: v @ heads(v.cols) @ const(numbers(v.cols, 1, 1)),
    lambda v, numbers: v @ heads(v.cols) @ const(numbers(v.cols, 1, 2)) @ heads(v.cols).T,
    lambda v, numbers: v * 0.0,
    lambda v, numbers: v - v + const(numbers(v.cols)),
)
NARROWING = (  # what leaves one column
    lambda v, numbers: v @ ones,
    lambda v, numbers: v @ cols(v.cols - 1, v.cols),
    lambda v, numbers: v @ weight(numbers(v.cols, 1)),
    lambda v, numbers: v @ ones @ share,
    lambda v, numbers: v @ over(ones, "max"),
    lambda v, numbers: v @ heads(v.cols) @ total,
)
DEGENERATE = "same", "same", "forgotten", "narrowed", "repeated"


class Degenerate(Rare):
    """Grows values that are one another, constants, or of one column."""

    def same(self, v):
        return self.pick(*SAME)(v)

    def forgotten(self, v):
        return self.pick(*FORGETFUL)(v, self.numbers)

    def narrowed(self, v):
        return self.pick(*NARROWING)(v, self.numbers)

    def repeated(self, v):
        return self.pick(row(v, v), v + v, v * v, row(v, v @ const(self.numbers(v.cols))))

    def elsewhere(self, v):
        return Value(given("elsewhere", self.width(), "V"))

    def leaving(self, v):
        """Rows of another space, and what is made of them alone."""
        v = getattr(self, self.pick(*LAST, "elsewhere"))(v)
        for _ in range(self.pick(0, 1, 1, 2)):
            v = getattr(self, self.pick(*DEGENERATE))(v)
        return v


@dataclass(frozen=True)
class Drawn:
    """A model, the batch that it is to be made cheapest for, and a draw of others like it."""

    seed: int
    model: Operator | Mapping[str, Operator]
    lengths: tuple[int, ...]

    def batch(self, seed: int, count: int | None = None) -> Batch:
        """One with all that the model reads: of its own lengths, or of so many that are drawn among them."""
        rng = np.random.default_rng([self.seed, seed])
        lengths = self.lengths if count is None else rng.choice(self.lengths, count)
        _, ports, relations = collect_needs(*outputs(self.model).values())
        spaces = {"T": int(sum(lengths)), "S": len(lengths)}
        picked = {
            node.args[0] for term in outputs(self.model).values() for node in term.walk() if node.kind.name == "pick"
        }

        def matrix(relation):
            rows, cols = (spaces.get(str(each), SPACE_ROWS) for each in (relation.rows, relation.cols))
            if relation in picked:
                return np.eye(cols)[rng.permutation(cols)[:rows]]
            return rng.normal(size=(rows, cols)) * (rng.random((rows, cols)) < 0.4)

        tokens, kinds = ([rng.integers(0, limit, n) for n in lengths] for limit in (VOCABULARY, 3))
        return Batch(
            tokens,
            kinds,
            {each.name: matrix(each) for each in relations if each.custom},
            {
                port.name: rng.normal(size=(spaces.get(port.space, SPACE_ROWS), port.columns)).astype(np.float32)
                for port in ports
            },
        )


def grow(grower: Rare, names: Iterable[str]) -> None:
    """Steps by name, each of any value so far; what is too large is dropped, and what splits a value by heads again."""
    for name in names:
        try:
            grower.pool.append(getattr(grower, name)(grower.any()))
        except ShapeError:
            continue
        if size(grower.pool[-1].term) > LIMIT or grower.pool[-1].cols > WIDEST:
            grower.pool.pop()


def drawn_lengths(rng: np.random.Generator) -> tuple[int, ...]:
    """Lengths of sentences."""
    lengths = LENGTHS[rng.integers(len(LENGTHS))]
    return lengths or tuple(map(int, rng.integers(1, LONGEST + 1, rng.integers(1, 7))))


def degenerate_operator(seed: int) -> Drawn:
    """The degenerate operator of a seed: one value, or up to four by name, among them the first, which may be an input,
    and values that have two names; of some a last one has rows of another space."""
    rng = np.random.default_rng([seed, 2])
    grower = Degenerate(Choices(seed), rng, Value(I), START[rng.integers(len(START))])
    others = [*PLAIN, *OTHERS, *MORE]
    steps = [str(rng.choice(DEGENERATE if rng.random() < 0.7 else others)) for _ in range(rng.integers(0, 6))]
    grow(grower, steps)
    terms = [value.term for value in grower.pool]
    several = [terms[-1], *(terms[at] for at in rng.integers(0, len(terms), rng.integers(0, 4)))]
    alone = rng.random() < 0.5
    named = dict(zip("abcd", several, strict=False))
    lengths = drawn_lengths(rng)
    if rng.random() < 0.3:
        terms[-1] = named["e"] = grower.leaving(grower.pool[-1]).term
    model = terms[-1] if alone else named
    return Drawn(seed, model, lengths)


def random_operator(seed: int) -> Drawn:
    """The operator of a seed, with the lengths of sentences that it is for."""
    rng = np.random.default_rng([seed, 1])
    grower = Rare(Choices(seed), rng, Value(I), START[rng.integers(len(START))])
    grow(grower, rng.choice([*PLAIN, *OTHERS, *MORE], rng.integers(0, 9)))
    if rng.random() < 0.2:
        grower.pool.append(getattr(grower, str(rng.choice(LAST)))(grower.pool[-1]))
    terms = [value.term for value in grower.pool]
    if len(terms) > 1 and rng.random() < 0.2:
        model = {
            name: terms[at] for name, at in zip("abc", {len(terms) - 1, *rng.integers(0, len(terms), 2)}, strict=False)
        }
    else:
        model = terms[-1]
    return Drawn(seed, model, drawn_lengths(rng))
