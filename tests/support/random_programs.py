"""Random well-typed programs over all that the algebra declares, for hypothesis; and what must be true of each of
them."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from opmatrix.algebra import monoids, operators
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.monoids import MONOIDS
from opmatrix.algebra.operators import (
    I,
    centre,
    cols,
    const,
    diag,
    given,
    layernorm,
    ones,
    over,
    place,
    product,
    rmsnorm,
    total,
    weight,
)
from opmatrix.algebra.oracles import DenseReading, dense, entrywise
from opmatrix.algebra.positions.patterns import causal, coarse, everyone, hubs, mask, scattered, sequence, window
from opmatrix.algebra.term import KINDS, Data, formula, read
from opmatrix.runtime.program import Program
from rewrites.egraph.egraph import fitting, saturate
from rewrites.egraph.template import Template, spell_values
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.laws.law import apart
from rewrites.search.search import search
from rewrites.verify import unrounded, verify_steps
from rewrites.verify.graphs import disagreements
from rewrites.verify.routed import Reference

VOCABULARY, LONGEST, TYPES = 9, 6, 3
WIDTHS = (2, 3, 4, 6)
LIMIT = 40  # operators of a program, its numbers not counted
FUNCTIONS = [
    kind()
    for kind in KINDS.values()
    if kind.signature.parameters.keys() == set()
    and kind().entrywise
    and kind.name not in ("I", "rsqrt", "reciprocal", "log")
]
PATTERNS = (
    everyone,
    sequence,
    causal,
    sequence & causal,
    sequence & (causal | window(1)),
    window(2),
    sequence & window(1),
    sequence & coarse(window(0) | hubs(1) | scattered(1), 2),
    mask(Data(np.tri(LONGEST) + np.eye(LONGEST, k=2), "seen")) & sequence,
)
BACKWARDS, LINKS = (operators.relation(name, "T", "T") for name in ("backwards", "links"))
WITHIN = (sequence, sequence & causal, sequence & window(1))
STORED = "weight", "const", "given", "diag"  # leaves that hold numbers: no operators


class Grower:
    """Grows values out of one another. `draw` chooses, `rng` gives the numbers; `plain` keeps to what kernels
    compute."""

    def __init__(self, draw, rng, x, plain):
        self.draw, self.rng, self.plain = draw, rng, plain
        self.pool = [x @ weight(self.numbers(VOCABULARY, self.width()))]

    def pick(self, *among):
        return among[self.draw(st.integers(0, len(among) - 1))]

    def width(self):
        return self.pick(*WIDTHS)

    def numbers(self, *shape):
        return Data(self.rng.normal(size=shape) / (shape[-2] if len(shape) > 1 else 1) ** 0.5)

    def any(self):
        return self.pool[-1] if self.draw(st.booleans()) else self.pick(*self.pool)

    def to(self, v, width):
        """The value at another width."""
        return v if v.cols == width else v @ weight(self.numbers(v.cols, width))

    def function(self):
        return self.pick(*FUNCTIONS)

    def monoid(self, *, tokens=False):
        """Over tokens no number of columns may depend on how many there are."""
        return self.pick(*(m for m in MONOIDS if not (tokens and m.width is None)))

    def linear(self, v):
        return v @ weight(self.numbers(v.cols, self.width()))

    def affine(self, v):
        return self.linear(v) + const(self.numbers(1)) if self.plain else self.linear(v) + 0.5

    def bias(self, v):
        return v + const(self.numbers(v.cols))

    def activate(self, v):
        return v @ self.function()

    def gate(self, v):
        return (v @ self.function()) * self.to(self.any(), v.cols)

    def residual(self, v):
        return v + self.to(self.any(), v.cols)

    def gain(self, v):
        return v * const(self.numbers(v.cols))

    def normed(self, v):
        return v @ self.pick(layernorm(0.25), rmsnorm(0.25)) * const(self.numbers(v.cols)) + const(self.numbers(v.cols))

    def block(self, v):
        return v @ (I + weight(self.numbers(v.cols, 4)) @ self.function() @ weight(self.numbers(4, v.cols)))

    def positions(self, v):
        return v + given("positions", LONGEST) @ weight(self.numbers(LONGEST, v.cols))

    def kinds(self, v):
        return v + given("kinds", TYPES) @ weight(self.numbers(TYPES, v.cols))

    def shifted(self, v):
        return (v + const(self.numbers(v.cols))) @ weight(self.numbers(v.cols, self.width()))

    def projection(self, n, p):
        """A matrix, with a bias or not."""
        W = weight(self.numbers(n, p))
        return W + const(self.numbers(p)) if self.draw(st.booleans()) else W

    def attend(self, v):
        """Attention, in groups or not, with or without biases, scale and pattern."""
        h, groups, d = self.pick((1, 1, 3), (2, 2, 2), (3, 3, 2), (4, 2, 2), (2, 1, 3))
        q, k, u = (v @ self.projection(v.cols, many * d) @ operators.heads(many) for many in (h, groups, groups))
        if groups != h:
            k, u = k @ operators.repeat(h), u @ operators.repeat(h)
        s = q @ k.T * self.pick(0.5, 1.25) if self.draw(st.booleans()) else q @ k.T
        m, where = (
            (monoids.softmax, self.pick(*WITHIN)) if self.plain else (self.monoid(tokens=True), self.pick(*PATTERNS))
        )
        y = product(s, u, over=m, where=where)
        return y @ operators.heads(h).T

    def biased(self, v):
        """Attention within sequences with a number for each distance."""
        h = self.pick(1, 2, 3)
        q, k, u = (v @ self.projection(v.cols, 2 * h) @ operators.heads(h) for _ in range(3))
        if self.draw(st.booleans()):
            s = q @ k.T * 0.5 + operators.by_distance(Data(self.rng.normal(size=(h, 5))), 2)
        else:
            s = q @ k.T + q @ operators.at_distances(Data(self.rng.normal(size=(h, 2, 5))))
        return product(s, u, over=monoids.softmax, where=self.pick(*WITHIN)) @ operators.heads(h).T

    # what no kernel computes

    def scanned(self, v):
        """Rows merged with those before them, or with all of their sequence."""
        scores = self.to(self.any(), v.cols) @ KINDS["tanh"]()
        return operators.scan(scores, v, self.monoid(tokens=True), self.pick(sequence, sequence & causal))

    def recurrent(self, v):
        """Attention without softmax, as products with a state, with decays or without."""
        h, d = self.pick(1, 2), self.pick(1, 3)
        q, k = (v @ self.projection(v.cols, h * d) @ operators.heads(h) for _ in range(2))
        u, where = v @ self.projection(v.cols, h * 2) @ operators.heads(h), self.pick(sequence, sequence & causal)
        if self.draw(st.booleans()):
            return self.corrected(v, h, d)
        if self.draw(st.booleans()):
            return operators.linear_attention(q, k, u, where) @ operators.heads(h).T
        a = v @ self.projection(v.cols, h * self.pick(1, d)) @ KINDS["sigmoid"]() @ operators.heads(h)
        return operators.gated_linear_attention(q, k, u, a, where) @ operators.heads(h).T

    def corrected(self, v, h, d):
        """Attention by the delta rule, on keys of unit length, with decays or without."""
        q, k = (v @ self.projection(v.cols, h * d) @ operators.heads(h) for _ in range(2))
        u, betas = (v @ self.projection(v.cols, h * count) @ operators.heads(h) for count in (2, 1))
        parts = q, k @ operators.unit_length(1e-6), u, betas @ KINDS["sigmoid"]()
        if self.draw(st.booleans()):
            return operators.delta_rule(*parts) @ operators.heads(h).T
        a = v @ self.projection(v.cols, h * self.pick(1, d)) @ KINDS["sigmoid"]() @ operators.heads(h)
        return operators.gated_delta_rule(*parts, a) @ operators.heads(h).T

    def lagged(self, v):
        """A row with rows before it."""
        return v + v @ operators.shift(self.pick(1, 2, LONGEST))

    def reduced(self, v):
        return v @ over(weight(self.numbers(v.cols, 2)), self.monoid())

    def summed(self, v):
        return v @ over(ones, self.monoid()) if v.cols > 2 else v @ ones

    def rooted(self, v):
        return (v @ KINDS["square"]() + 0.5) @ KINDS["rsqrt"]()

    def inverted(self, v):
        return (v @ KINDS["square"]() + 0.5) @ KINDS["reciprocal"]()

    def shared(self, v):
        return v @ operators.share

    def routed(self, v):
        """The largest of a row's shares, of all columns or of some heads."""
        h, d = self.pick((1, 4), (2, 2), (2, 3))
        p = v @ weight(self.numbers(v.cols, h * d)) @ operators.heads(h) @ operators.share
        return operators.keep_top(p, p, self.pick(1, d)) @ operators.heads(h).T

    def centred(self, v):
        return v @ centre

    def scaled(self, v):
        return v @ diag(self.numbers(v.cols))

    def negated(self, v):
        return -v

    def times_row(self, v):
        return v * (self.any() @ ones @ KINDS["tanh"]())

    def beside(self, v):
        return KINDS["row"](v, self.any())

    def cut(self, v):
        return v @ cols(0, v.cols - 1) if v.cols > 1 else v

    def placed(self, v):
        return v @ place(1, v.cols + 2)

    def turned(self, v):
        return v.T.T

    def entering(self, v):
        return v + given(f"more{v.cols}", v.cols, "T")

    def picked(self, v):
        return v @ operators.pick(BACKWARDS)

    def linked(self, v):
        return product(operators.given(LINKS), v, over=self.monoid(tokens=True))

    def rotated(self, v):
        return self.to(v, 4) @ operators.rotary(LONGEST, *self.pick((4, 1e4, 0), (2, 50.0, 2)))

    def by_head(self, v):
        return (
            v @ weight(self.numbers(2, v.cols, 3)) @ self.function() @ weight(self.numbers(2, 3, self.width())) @ total
        )

    def through_heads(self, v):
        v = self.to(v, 6)
        return (v @ operators.heads(3) @ self.function() + const(self.numbers(3, 1, 2))) @ operators.heads(3).T

    def mixed(self, v):
        q, k = self.to(v, 3), self.to(self.any(), 3)
        return product((q @ k.T) * 0.5, v, over=self.monoid(tokens=True), where=self.pick(*PATTERNS))


PLAIN = ("linear", "bias", "activate", "gate", "residual", "gain", "normed", "block", "attend", "shifted", "attend")
OTHERS = (
    "affine",
    "positions",
    "kinds",
    "reduced",
    "summed",
    "rooted",
    "inverted",
    "shared",
    "routed",
    "centred",
    "scaled",
    "negated",
    "times_row",
    "beside",
    "cut",
    "placed",
    "turned",
    "rotated",
    "entering",
    "picked",
    "linked",
    "by_head",
    "through_heads",
    "biased",
    "mixed",
    "scanned",
    "recurrent",
    "lagged",
)


class Choices:
    """Draws without hypothesis."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, strategy):
        low, high = (
            (0, 1) if strategy == st.booleans() else (strategy.wrapped_strategy.start, strategy.wrapped_strategy.end)
        )
        found = int(self.rng.integers(low, high + 1))
        return bool(found) if strategy == st.booleans() else found


def size(term):
    """Operators of a term: its numbers are none."""
    return sum(node.kind.name not in STORED for node in term.walk())


@st.composite
def programs(draw, plain=None):
    """A program of tokens, and a ragged batch for it."""
    plain = draw(st.booleans()) if plain is None else plain
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def grown(x):
        grower = Grower(draw, rng, x, plain)
        for _ in range(draw(st.integers(1, 12))):
            grower.pool.append(getattr(grower, grower.pick(*PLAIN, *(() if plain else OTHERS)))(grower.any()))
            if size(grower.pool[-1].term) > LIMIT or grower.pool[-1].cols > 12:
                grower.pool.pop()
        return grower.pool[-1]

    lengths = draw(st.lists(st.integers(1, LONGEST - 1), min_size=1, max_size=3))
    return formula(grown), ragged(rng, lengths), rng


def ragged(rng, lengths):
    """A batch with relations and matrices that the programs may read."""
    tokens, types = ([rng.integers(0, limit, n) for n in lengths] for limit in (VOCABULARY, TYPES))
    links = rng.normal(size=(sum(lengths), sum(lengths))) * (rng.random((sum(lengths), sum(lengths))) < 0.5) + np.eye(
        sum(lengths)
    )
    more = {f"more{width}": rng.normal(size=(sum(lengths), width)).astype(np.float32) for width in range(1, 13)}
    return Batch(tokens, types, {"backwards": np.eye(sum(lengths))[::-1], "links": links}, more)


# ---- what must be true


class Anything:
    """A machine on which every kernel takes a random time, so that any lowered program may be the cheapest."""

    def __init__(self, rng):
        self.rng, self.known = rng, {}

    def seconds(self, kernel, **size):
        key = kernel, *sorted(size.items())
        return self.known.setdefault(key, self.rng.exponential() * 1e-6)


def chosen(graph, template, rng):
    """A random acyclic choice of a member for each class, as operators."""
    built, todo = {}, [graph.nodes[i] for i in rng.permutation(len(graph.nodes))]
    while todo:
        rest = []
        for node in todo:
            if node.cls in built or (
                (fits := all(c in built for c in node.children))
                and (term := fitting(node, built, template.values)) is None
            ):
                continue
            if fits:
                built[node.cls] = term
            else:
                rest.append(node)
        if len(rest) == len(todo):
            break
        todo = rest
    return built


def at(term, batch):
    return read(term, DenseReading(np.zeros((batch.rows, 1)), batch), {}).array.reshape(batch.rows, -1)


def check_logical(model, batch, rng, small=True):
    """Both oracles, every class of the graph that the laws make, and random programs out of it."""
    with np.errstate(all="ignore"):
        wanted = dense(model, batch)
        if small:
            assert apart(wanted, entrywise(model, batch).reshape(wanted.shape).astype(float)) < 1e-9, (
                "the oracles differ"
            )
        if not np.isfinite(wanted).all() or abs(wanted).max() > 1e6:
            return None
        template = spell_values(Template.of({"full": flat(model, given("tokens", VOCABULARY))}), EXACT_LAWS)
        graph = saturate(template, EXACT_LAWS, rounds=6, budget=1500)
        root = graph.named["$full"]
        for _ in range(3):
            term = chosen(graph, template, rng).get(root)
            assert term is not None, "no program of the root"
            assert apart(at(term, batch), wanted) < 1e-7, f"not the model: {term}"
        found = disagreements(graph, template, rng)
        assert not found, str(found[0])
    return wanted


def check_lowered(model, batch, rng, wanted):
    """The cheapest programs on random machines: exact, in float32, step by step, saved and loaded. How many there
    were."""
    count = 0
    for laws, fusion in (((), False), (EXACT_LAWS, True), (EXACT_LAWS, True)):
        try:
            structure = search(model, laws, Anything(rng), batch.extents(*collect_needs(model)), fusion=fusion)
        except Infeasible:
            return count
        program, emitter = structure.program({})
        meant = Reference(partial(dense, model, batch))  # rows go where those of what is beside it went
        assert apart(*meant.along(partial(program.exact, batch, unrounded(structure, emitter)))) < 1e-7, (
            f"lowered, not the model\n{program}"
        )
        verify_steps(program, [batch])
        rough = apart(dense(model, batch, dtype=np.float32).astype(float), wanted)
        ran, along = meant.along(partial(program.run, batch))
        assert apart(ran.astype(float), along) <= 1e-4 + 100 * rough, f"run, not the model\n{program}"
        with tempfile.TemporaryDirectory() as folder:
            program.save(Path(folder) / "p")
            assert (Program.load(Path(folder) / "p").run(batch) == ran).all()
        count += 1
    return count


def check(example):
    """All of it. How many lowered programs were run, none where numbers are too large to compare."""
    model, batch, rng = example
    wanted = check_logical(model, batch, rng)
    return 0 if wanted is None else check_lowered(model, batch, rng, wanted)
