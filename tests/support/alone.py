"""Programs that end in one kernel, with everything that the kernel may be given."""

import numpy as np
from programs import Writer

from formats import Dense, Half, Stacked
from opmatrix.algebra.batch.signature import STATE_SPACE, Port
from opmatrix.algebra.monoids import decay, logsumexp, max
from opmatrix.algebra.nodes import product, related, turn
from opmatrix.algebra.operators import const, over, relu, row, scan, share, shift, symbol, tanh, weight
from opmatrix.algebra.positions.patterns import causal, everyone, sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.program import Program, Step

ROWS = {"residual": "y", "bias": "b", "gain": "g", "shift": "c"}
FUNCTIONS = {"activation": "gelu", "eps": 0.1}


def rows(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def alone(kernel, rng):
    """A program that ends in this kernel, over x (rows of 24), y (of 40) and h (3 heads of 8)."""
    constants = {
        "table": Dense.pack(rows(rng, 26, 24)),
        "other": Half.approximate(rows(rng, 26, 24)),
        "w": Dense.pack(rows(rng, 24, 40)),
        "b": rows(rng, 40),
        "g": rows(rng, 40),
        "c": rows(rng, 40),
        "gain": rows(rng, 24),
        "shift": rows(rng, 24),
        "stack": rows(rng, 3, 8, 5),
    }
    write = Writer({})
    write.steps.append(
        Step(
            "embed",
            {"table0": "table", "table1": "other", "gain": "gain", "shift": "shift"},
            {"fields": "tokens,positions", "eps": 0.1},
            "x",
        )
    )
    write.steps.append(Step("linear", {"x": "x", "weight": "w", "bias": "b"}, {}, "y"))
    write.steps.append(Step("heads", {"x": "x"}, {"heads": 3}, "h"))
    if kernel in ("append", "attention_cached"):
        kept = write.step("append", x="h", cache="cache")
        last = write.step("join", x=write.step("attention_cached", {"scale": 0.3}, q="h", k=kept, v=kept))
        return Program(write.steps, constants, last, inputs=[Port("cache", "C", 8, 3)], state={"cache": kept})
    if kernel in ("keep_rows", "carried_rows", "carried_scan"):
        h = symbol("h", None, Shape(3, T, 8))
        shifted, scanned = (write_term(term, {h: 0})[0] for term in (h @ shift(2), scan(h @ tanh, h, decay)))
        before = write.step("carried_rows", {"term": shifted}, x0="h", s0="last h")
        merged = write.step("carried_scan", {"term": scanned}, x0=before, s0="last merged")
        state = {"last h": write.step("keep_rows", x="h", state="last h")}
        state["last merged"] = write.step("keep_rows", x=merged, state="last merged")
        last, ports = (
            write.step("join", x=merged),
            [Port(name, STATE_SPACE, n, 3) for name, n in zip(state, (24, 8), strict=True)],
        )
        return Program(write.steps, constants, last, inputs=ports, state=state)
    if kernel in ("keep_states", "carried_recurrent"):
        out = write.step(
            "carried_recurrent", {"where": "sequence & causal"}, q="h", k="h", v="h", decays="h", s0="sums"
        )
        state = {"sums": write.step("keep_states", k="h", v="h", decays="h", state="sums")}
        last, ports = write.step("join", x=out), [Port("sums", STATE_SPACE, 64, 3)]
        return Program(write.steps, constants, last, inputs=ports, state=state)
    return Program(write.steps, constants, ENDINGS.get(kernel, attention_in_steps)(write, constants, rng))


def narrowed(write, constants, rng):
    return write.step("join", x=write.step("narrow", x="h"))


def rotated(write, constants, rng):
    constants |= {"cos": rows(rng, 26, 3), "sin": rows(rng, 26, 3)}
    return write.step("join", x=write.step("rotate", x="h", cos="cos", sin="sin"))


def pointwise_heads(write, constants, rng):
    constants |= {"g0": rows(rng, 8), "g1": rows(rng, 8)}
    return write.step(
        "join", x=write.step("pointwise_heads", {"eps": 0.1, "norm": "rms"}, x="h", gain="g0", shift="g1")
    )


def attend_once(write, constants, rng):
    q = write.step("heads", {"heads": 3}, x=write.step("pool", {"how": "last"}, x="x"))
    where = {"scale": 0.3, "where": "sequence & causal", "query": "last"}
    return write.step("join", x=write.step("attend_once", where, q=q, k="h", v="h"))


def headwise(write, constants, rng):
    """Of an array and of a stack."""
    constants["narrow"] = Stacked.approximate(Half, rows(rng, 3, 8, 5))
    both = (write.step("headwise", x="h", weight=each) for each in ("stack", "narrow"))
    first, second = (write.step("join", x=each) for each in both)
    return write.step("pointwise", x=first, residual=second)


def gate(write, constants, rng):
    """Of rows, by others, and of heads."""
    best = write.step("gate", {"k": 7, "shares": 1, "unit": 1}, x="y", by="y")
    apart = write.step("gate", {"k": 2}, x=write.step("heads", {"heads": 8}, x="y"))
    return write.step("pointwise", x=best, residual=write.step("join", x=apart))


def experts(write, constants, rng):
    constants |= {
        "up": Stacked.approximate(Half, rows(rng, 8, 24, 6)),
        "beside": rows(rng, 8, 24, 6),
        "down": Stacked.approximate(Dense, rows(rng, 8, 6, 40)),
        **{name: rows(rng, 48) for name in ("up bias", "beside bias")},
    }
    scores = write.step("columns", {"lo": 0, "hi": 8}, x="y")
    named = write.step("heads", {"heads": 8}, x=write.step("gate", {"k": 2, "shares": 1}, x=scores))
    return write.step(
        "experts",
        {"most": 2, "activation": "silu", "beside_activation": "clamped_factor"},
        x="x",
        gate=named,
        up="up",
        down="down",
        beside="beside",
        residual="y",
        bias="up bias",
        beside_bias="beside bias",
    )


def blend_heads(write, constants, rng):
    """Of rows by one column, and of heads."""
    column = write.step("columns", {"lo": 3, "hi": 4}, x="y")
    heads = write.step("heads", {"heads": 8}, x="y")
    numbers = write.step("heads", {"heads": 8}, x=write.step("columns", {"lo": 0, "hi": 8}, x="y"))
    both = write.step("blend_heads", x=heads, by=numbers)
    return write.step("blend_heads", x=both, by=column, residual=both)


def interpreted(write, constants, rng):
    y = symbol("y", None, 40)
    term, arrays = write_term(y @ relu @ weight(constants["w"].unpack().T), {y: 0})
    constants["turned"] = arrays[0].array
    return write.step("interpret", {"term": term}, x0="y", c0="turned")


def row_term(write, constants, rng):
    """Of two values and a row of numbers: what is reduced, kept and put side by side."""
    x, y = symbol("x", None, 24), symbol("y", None, 40)
    term, arrays = write_term(row((x @ share) * x, y * const(np.arange(40.0) / 40)), {x: 0, y: 1})
    constants["numbers"] = arrays[0].array.astype(np.float32)
    return write.step("row_term", {"term": term}, x0="x", x1="y", c0="numbers")


def shifted_term(write, constants, rng):
    """Of two values: rows before of one, times a row of numbers, beside the other."""
    x, y = symbol("x", None, 24), symbol("y", None, 40)
    term, arrays = write_term(row(x @ shift(2), y + (y @ shift(1)) * const(np.arange(40.0) / 40)), {x: 0, y: 1})
    constants["taps"] = arrays[0].array.astype(np.float32)
    return write.step("shifted_term", {"term": term}, x0="x", x1="y", c0="taps")


def fold_rows(write, constants, rng):
    """Of a value and a stored matrix."""
    y = symbol("y", None, 40)
    term, arrays = write_term(y @ over(weight(constants["w"].unpack().T), max), {y: 0})
    constants["turned"] = arrays[0].array
    return write.step("fold_rows", {"term": term}, x0="y", c0="turned")


def folded(kernel, where, monoid):
    """Of queries and keys, and of scores that are capped."""

    def ending(write, constants, rng):
        h = symbol("h", None, Shape(3, T, 8))
        term, _ = write_term(product(product(h, turn(h)) @ tanh, h, monoid, where), {h: 0})
        return write.step("join", x=write.step(kernel, {"term": term}, x0="h"))

    return ending


def scanned(write, constants, rng):
    """Of heads, each row with those before it."""
    h = symbol("h", None, Shape(3, T, 8))
    term, _ = write_term(scan(h @ tanh, h, logsumexp, sequence & causal), {h: 0})
    return write.step("join", x=write.step("scan_term", {"term": term}, x0="h"))


def fold_entries(write, constants, rng):
    y = symbol("y", None, 40)
    term, _ = write_term(product(related("members_by_place"), y, logsumexp), {y: 0})
    return write.step("fold_entries", {"term": term}, x0="y")


def attention(write, constants, rng):
    """Beside sinks."""
    constants["margin"] = rows(rng, 3)
    return write.step("join", x=write.step("attention", {"scale": 0.3}, q="h", k="h", v="h", margin="margin"))


def recurrent(write, constants, rng):
    return write.step("join", x=write.step("recurrent", {"where": "sequence & causal"}, q="h", k="h", v="h"))


def attention_in_steps(write, constants, rng):
    p = write.step("softmax", x=write.step("scores", {"scale": 0.3}, q="h", k="h"))
    return write.step("join", x=write.step("values", p=p, v="h"))


def relative_scores(write, constants, rng):
    """With both tables, shorter than the sequences on either side."""
    constants |= {"ahead": rows(rng, 3, 8, 9), "behind": rows(rng, 3, 8, 9)}
    scores = write.step("relative_scores", q="h", k="h", ahead="ahead", behind="behind")
    return write.step("join", x=write.step("values", p=write.step("softmax", x=scores), v="h"))


def columns_beside(write, constants, rng):
    """The columns of h, and behind them those of other heads, five each."""
    constants["narrow"] = Dense.pack(rows(rng, 24, 15))
    other = write.step("heads", {"heads": 3}, x=write.step("linear", x="x", weight="narrow"))
    return write.step("join", x=write.step("beside_columns", x="h", y=other))


def repeated(write, constants, rng):
    return write.step("join", x=write.step("repeat", {"heads": 6}, x="h"))


def one_step(kernel, attributes, **operands):
    return lambda write, *_: write.step(kernel, attributes, **operands)


ENDINGS = {
    "embed": lambda *_: "x",
    "linear": one_step("linear", FUNCTIONS, x="x", weight="w", **ROWS),
    "pointwise": one_step("pointwise", FUNCTIONS, x="y", **ROWS),
    "scale": one_step("scale", {"factor": -0.5}, x="y"),
    "columns": one_step("columns", {"lo": 8, "hi": 24}, x="y"),
    "pool": one_step("pool", {"how": "mean", "unit": 0.1}, x="y"),
    "unit": one_step("unit", {"unit": 0.1}, x="y"),
    "link": one_step("link", {"relation": "members_by_place: S × T", "over": "sum"}, x="y"),
    "pick": one_step("pick", {"relation": "last: S × T"}, x="y"),
    "rotate": rotated,
    "pointwise_heads": pointwise_heads,
    "attend_once": attend_once,
    "headwise": headwise,
    "gate": gate,
    "experts": experts,
    "relative_scores": relative_scores,
    "repeat": repeated,
    "beside_columns": columns_beside,
    "blend_heads": blend_heads,
    "narrow": narrowed,
    "interpret": interpreted,
    "row_term": row_term,
    "shifted_term": shifted_term,
    "fold_rows": fold_rows,
    "fold_term": folded("fold_term", sequence & causal, logsumexp),
    "fold_batch": folded("fold_batch", everyone, max),
    "scan_term": scanned,
    "fold_entries": fold_entries,
    "attention": attention,
    "recurrent": recurrent,
}
