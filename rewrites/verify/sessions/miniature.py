"""The attention of a program alone: rows of random tables in place of queries, keys and values, then its steps over
whole sentences, and over the caches of a session.

Whatever its weights are, the sessions of a program differ from whole texts by attention alone
(opmatrix.inference.cached). So a program of that step is quickly computed on texts of any length, while pages, kernels
and caches are the same."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import HELD, SLOTS
from opmatrix.algebra.positions.patterns import FAR, causal, sequence, window
from opmatrix.inference.cached import causal as reads_back
from opmatrix.runtime.declarations.kernel import Declared
from opmatrix.runtime.declarations.operands import Heads
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Constant, Program, Step
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.verify.programs import Meant

EVEN_SHARES, SPREAD_SHARES = "even", "spread"  # shares of keys: all equal; some far above the others
WORDS_A_COLUMN = 2  # tokens for each column of values, at least
SCORE_SPREAD = 3.0  # deviation of scores: a few keys have most of the mass
HALF_UNIT = 2.0**-8  # half a unit of bfloat16 at 1
READ_ROWS = 128  # rows of attention that are read at a time in float64
FLOAT32_BITS = 23  # mantissa bits of a float32
FloatTable = NDArray[np.float32]


@dataclass(frozen=True)
class Attention:
    """A step of attention: heads and columns of queries, keys and values, the attributes for scores, and whether it is
    for the `last` row of each sentence alone."""

    widths: tuple[tuple[int, int], ...]
    scale: float
    where: str
    bias: str = ""
    margin: str = ""
    last: bool = False
    whole: str = ""
    cap: float = 0.0

    @cached_property
    def kernel(self) -> Declared:
        """The kernel of whole sentences whose rows can be read one by one."""
        return next(kernel for kernel in KERNELS.values() if kernel.cached_variant == self.whole and kernel.restrict)

    def __str__(self) -> str:
        (h, d), (g, _), _ = self.widths
        return f"attention of {h} heads of {d} columns, {g} of keys, where {self.where}"

    def kind(self, tables: Mapping[str, Constant]) -> Hashable:
        """Return a key of the step, without its numbers; `tables`: the arrays of its scores by operand."""
        shapes = tuple((name, getattr(table, "shape", None)) for name, table in sorted(tables.items()))
        return (self.widths, self.scale, self.where, self.whole, self.last, self.cap, shapes)

    @property
    def work(self) -> int:
        """Multiplications for a pair of rows."""
        heads = max(count for count, _ in self.widths)
        return heads * (self.widths[0][1] + self.widths[2][1])

    def miniature(self, shares: str, length: int, tables: Mapping[str, Constant]) -> "Miniature":
        """Return the program of this step for texts of `length` tokens."""
        return Miniature(self, shares, length, tables)


def find_attention(program: Program) -> Iterator[tuple[Attention, Mapping[str, Constant]]]:
    """Yield each kind of attention whose rows sessions compute, once, with the arrays of its scores by operand: a table
    by distance, and margins."""
    seen = set[Hashable]()
    calls = program.schedule.calls[program.schedule.first :]
    for step, call in zip(program.steps, calls, strict=True):
        over = HELD in call.kernel.relations(call.bound)
        if not (over or reads_back(call)):
            continue
        last = getattr(call.bound, "query", "") == "last" or getattr(call.bound, "rows", "all") == "last"
        attention = Attention(
            tuple((x.heads, x.cols) for x in (call.bound.q, call.bound.k, call.bound.v)),
            float(step.attributes.get("scale", 1.0)),
            where_of(call, over),
            step.operands.get("bias", ""),
            step.operands.get("margin", ""),
            last,
            call.kernel.name if over else call.kernel.cached_variant,
            float(step.attributes.get("cap", 0.0)),
        )
        names = {"bias": attention.bias, "margin": attention.margin}
        tables = {operand: program.constants[name] for operand, name in names.items() if name}
        if (kind := attention.kind(tables)) not in seen:
            yield attention, tables
        seen.add(kind)


def where_of(call: Call, over: bool) -> str:
    """Return the pattern of the keys that a row of a step sees in its sentence."""
    if over:
        reach = (min(FAR, getattr(call.bound, "behind", FAR)), 0)
    else:
        reach = (pattern(call.bound) & causal).reach or (FAR, 0)
    back = sequence & causal
    return str(back if reach[0] >= FAR else back & window(reach[0]))


class Miniature:
    """A program that gathers queries, keys and values by a token, the first two by its position too, and attends.

    If shares are even, all scores are 0, and each value appears in one column, so that a single lost key shows. If
    they are spread, errors of scores show; some values are beside the middle of two numbers of bfloat16, so that
    values rounded twice show."""

    def __init__(self, attention: Attention, shares: str, length: int, tables: Mapping[str, Constant]) -> None:
        self.attention, self.shares, self.length = attention, shares, length
        self.words = max(2, WORDS_A_COLUMN * attention.widths[2][1])
        self.score_tables = tables
        self.tables = dict(zip("qkv", self.drawn(np.random.default_rng(0)), strict=True))
        names, steps = [*"qkv"], list[Step]()
        constants: dict[str, Constant] = {}
        for name, (heads, _) in zip(names, attention.widths, strict=True):
            token, position = self.tables[name]
            constants[f"token {name}"] = FORMATS["dense"].pack(token)
            constants[f"position {name}"] = FORMATS["dense"].pack(position)
            steps.append(
                Step(
                    "embed",
                    {"table0": f"token {name}", "table1": f"position {name}"},
                    {"fields": "tokens,positions"},
                    f"{name} rows",
                )
            )
            rows = f"{name} rows"
            if name == "q" and attention.last:
                steps.append(Step("pool", {"x": rows}, {"how": "last"}, "q last"))
                rows = "q last"
            steps.append(Step("heads", {"x": rows}, {"heads": heads}, name))
        operands = {name: name for name in (*names, *tables)}
        constants |= tables
        self.program = Program(
            [
                *steps,
                Step(self.step_kernel, operands, self.attributes, "attended"),
                Step("join", {"x": "attended"}, {}, "rows"),
            ],
            constants,
            "rows",
        )

    @property
    def step_kernel(self) -> str:
        """The kernel for whole sentences that a program has."""
        if not self.attention.last:
            return self.attention.kernel.name
        return next(
            kernel.name
            for kernel in KERNELS.values()
            if kernel.cached_variant == self.attention.whole and "query" in kernel.attributes
        )

    @property
    def attributes(self) -> dict[str, float | int | str]:
        """The attributes of the attention step."""
        last = {"query": "last"} if self.attention.last else {}
        cap = {"cap": self.attention.cap} if self.attention.cap else {}
        return {"scale": self.attention.scale, "where": self.attention.where, **cap, **last}

    def drawn(self, rng: np.random.Generator) -> Iterator[tuple[FloatTable, FloatTable]]:
        """Yield tables of tokens and of positions for queries, keys and values."""
        (_, wide), _, (heads, e) = self.attention.widths
        for name, (count, columns) in zip("qkv", self.attention.widths, strict=True):
            token, position = (np.zeros((rows, count * columns), np.float32) for rows in (self.words, self.length))
            if self.shares == SPREAD_SHARES and name in "qk":
                scale = abs(self.attention.scale) or 1.0
                share = (SCORE_SPREAD / (wide**0.5 * scale)) ** 0.5
                for table in (token, position):
                    table[:] = np.float32(share / 2**0.5) * rng.standard_normal(table.shape, np.float32)
            elif self.shares == SPREAD_SHARES:
                token[:] = rng.standard_normal(token.shape, np.float32)
                token[0], token[1] = ties(token.shape[1]), -ties(token.shape[1])
            elif name == "v":
                token.reshape(self.words, heads, e)[:] = self.columns()[:, None]
            yield token, position

    def columns(self) -> FloatTable:
        """Return a value for each token: 1 or -1 in one column."""
        at = np.arange(self.words)
        e = self.attention.widths[2][1]
        values = np.zeros((self.words, e), np.float32)
        values[at, at // 2 % e] = 1 - 2 * (at % 2)
        return values

    def text(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return a text of `length` tokens. For even shares the columns take turns, so that no two nearby keys appear
        in the same one."""
        drawn = rng.integers(0, self.words, self.length)
        if self.shares == SPREAD_SHARES:
            return drawn
        columns = np.arange(self.length) % (self.words // 2)
        return 2 * columns + drawn % 2

    def rows(self, name: str, text: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows gathered for queries, keys or values, (tokens, heads, columns)."""
        token, position = self.tables[name]
        heads, columns = self.attention.widths["qkv".index(name)]
        return (token[text] + position[: len(text)]).reshape(len(text), heads, columns)

    def held(self, name: str, text: NDArray[np.int64], number: str) -> NDArray[np.float32]:
        """Return keys or values as a cache of this number type holds them, by the meaning of its step."""
        rows = self.rows(name, text)
        decoder = self.program.decode_with(number)
        for call in decoder.schedule.calls[decoder.schedule.first :]:
            if SLOTS not in call.kernel.relations(call.bound):
                continue
            record = call.kernel.record(**{**vars(call.bound), "x": rows})
            return np.asarray(call.kernel.reads(record).get("x", rows), np.float32)
        return rows

    def meant(self, text: NDArray[np.int64], at: NDArray[np.int64], number: str) -> Meant:
        """Return the attention of these rows of a text in float64 as over the whole text, with keys and values as a
        cache of this number type holds them, and the largest error allowed to a kernel."""
        rows = text[: int(at.max()) + 1]
        batch = Batch([rows])
        keys, values = (self.held(name, rows, number) for name in "kv")
        (h, d), (g, _), (j, e) = self.attention.widths
        bound: dict[str, object] = {"q": Heads(h, d), "k": Heads(g, d), "v": Heads(j, e)}
        bound |= self.score_tables
        attributes = {name: value for name, value in self.attributes.items() if name != "query"}
        record = self.attention.kernel.bind(bound, {**attributes, "tile": page_side()})
        call = Call(self.attention.kernel, record, {"q": 0, "k": 1, "v": 2}, self.attention.kernel.shape(record))
        arguments = {**vars(record), "q": self.rows("q", rows), "k": keys, "v": values, "batch": batch}
        some = np.split(at, range(READ_ROWS, len(at), READ_ROWS))
        numbers, allowed, _ = zip(*(Meant.of(call, arguments, batch, rows) for rows in some), strict=True)
        return Meant(np.concatenate(numbers), np.concatenate(allowed), None)


def page_side() -> int:
    """Return the rows of a page."""
    from formats.kernels.attentions.chunks import PAGE

    return PAGE


def ties(count: int) -> FloatTable:
    """Return numbers so near the middle of two numbers of bfloat16 that only the last bits of float32 tell them apart.
    Rounded first to a number of bits between, they become the middle, and are then rounded the other way."""
    at = np.arange(count)
    fine = 2.0 ** -(9 + at % (FLOAT32_BITS - 8)).astype(np.float64)
    odd = at // (FLOAT32_BITS - 8) % 2
    return (1 + 2 * HALF_UNIT * odd + HALF_UNIT + np.where(odd, -fine, fine)).astype(np.float32)
