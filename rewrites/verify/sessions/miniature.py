"""The attention of a program alone: rows of random tables in place of queries, keys and values, then its steps over
whole sentences, and over the caches of a session.

Whatever weights a program has, its sessions differ from whole texts by attention alone (opmatrix.inference.cached). So
a program of that step is soon computed on texts as long as any, while pages, kernels and caches are the same."""
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import HELD, SLOTS
from opmatrix.algebra.positions.patterns import FAR, causal, sequence, window
from opmatrix.inference.cached import causal as reads_back
from opmatrix.inference.cached import of_new_rows
from opmatrix.runtime.declarations.kernel import Declared
from opmatrix.runtime.declarations.operands import Heads
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Constant, Program, Step
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.verify.programs import Meant

EVEN_SHARES, SPREAD_SHARES = "even", "spread"               # shares of keys: all alike; some far above the others
WORDS_A_COLUMN = 2                                          # tokens for each column of values, at least
SCORE_SPREAD = 3.0                                          # of scores: what is seen most has most of a row's mass
HALF_UNIT = 2.0 ** -8                                       # of 1: half a unit of bfloat16
FLOAT32_BITS = 23                                           # bits of a float32 behind the first
FloatTable = NDArray[np.float32]


@dataclass(frozen=True)
class Attention:
    """A step of attention: heads and columns of queries, keys and values, what it does with their scores, and whether
    it is of the last row of each sentence alone, which `picked` then takes out of the queries."""

    widths: tuple[tuple[int, int], ...]
    scale: float
    where: str
    bias: str = ""
    picked: Step | None = None
    whole: str = ""

    @cached_property
    def kernel(self) -> Declared:
        """The kernel of whole sentences whose rows can be read one by one."""
        return next(each for each in KERNELS.values() if each.cached_variant == self.whole and each.restrict)

    def __str__(self) -> str:
        (h, d), (g, _), _ = self.widths
        return f"attention of {h} heads of {d} columns, {g} of keys, where {self.where}"

    def kind(self, bias: Constant | None) -> Hashable:
        """The step, whatever its numbers are."""
        return (self.widths, self.scale, self.where, self.whole, self.picked and self.picked.kernel,
                getattr(bias, "shape", None))

    @property
    def work(self) -> int:
        """Multiplications of a pair of rows."""
        heads = max(count for count, _ in self.widths)
        return heads * (self.widths[0][1] + self.widths[2][1])

    def miniature(self, shares: str, length: int, bias: Constant | None) -> "Miniature":
        """The program of this step for texts of so many tokens."""
        return Miniature(self, shares, length, bias)


def find_attention(program: Program) -> Iterator[tuple[Attention, Constant | None]]:
    """Each kind of attention whose rows sessions compute, once, with its table by distance."""
    seen = set[Hashable]()
    calls = program.schedule.calls[program.schedule.first:]
    picked = next((step for step, call in zip(program.steps, calls, strict=True)
                   if call.kernel.changes_space and not call.kernel.cached_variant and of_new_rows(call)), None)
    for step, call in zip(program.steps, calls, strict=True):
        over = HELD in call.kernel.relations(call.bound)
        if not (over or reads_back(call)): continue
        last = getattr(call.bound, "query", "") == "last" or getattr(call.bound, "rows", "all") == "last"
        found = Attention(tuple((x.heads, x.cols) for x in (call.bound.q, call.bound.k, call.bound.v)),
                          float(step.attributes.get("scale", 1.0)), where_of(call, over), step.operands.get("bias", ""),
                          picked if last else None, call.kernel.name if over else call.kernel.cached_variant)
        bias = program.constants.get(found.bias)
        if (kind := found.kind(bias)) not in seen: yield found, bias
        seen.add(kind)


def where_of(call: Call, over: bool) -> str:
    """Whom a row of a step sees of its sentence."""
    if over: reach = (min(FAR, getattr(call.bound, "behind", FAR)), 0)
    else: reach = (pattern(call.bound) & causal).reach or (FAR, 0)
    found = sequence & causal
    return str(found if reach[0] >= FAR else found & window(reach[0]))


class Miniature:
    """A program that gathers queries, keys and values by a token, the first two by its position too, and attends.

    Where shares are even, all scores are 0, and each value is seen in one column, by which one key that is lost shows.
    Where they are spread, what makes them is seen; some values lie beside the middle of two numbers of bfloat16, so
    that those that are rounded twice show."""

    def __init__(self, attention: Attention, shares: str, length: int, bias: Constant | None) -> None:
        self.attention, self.shares, self.length = attention, shares, length
        self.words = max(2, WORDS_A_COLUMN * attention.widths[2][1])
        self.tables = dict(zip("qkv", self.drawn(np.random.default_rng(0)), strict=True))
        names, steps = [*"qkv"], list[Step]()
        constants: dict[str, Constant] = {}
        for name, (heads, _) in zip(names, attention.widths, strict=True):
            token, position = self.tables[name]
            constants[f"token {name}"] = FORMATS["dense"].pack(token)
            constants[f"position {name}"] = FORMATS["dense"].pack(position)
            steps.append(Step("embed", {"table0": f"token {name}", "table1": f"position {name}"},
                              {"fields": "tokens,positions"}, f"{name} rows"))
            rows = f"{name} rows"
            if name == "q" and attention.picked is not None:
                steps.append(Step(attention.picked.kernel, {"x": rows}, attention.picked.attributes, "q last"))
                rows = "q last"
            steps.append(Step("heads", {"x": rows}, {"heads": heads}, name))
        operands = {name: name for name in names}
        if bias is not None:
            constants["bias"] = bias
            operands["bias"] = "bias"
        self.program = Program([*steps, Step(self.step_kernel, operands, self.attributes, "attended"),
                                Step("join", {"x": "attended"}, {}, "rows")], constants, "rows")

    @property
    def step_kernel(self) -> str:
        """The kernel of whole sentences that a program has."""
        if self.attention.picked is None: return self.attention.kernel.name
        return next(each.name for each in KERNELS.values()
                    if each.cached_variant == self.attention.whole and "query" in each.attributes)

    @property
    def attributes(self) -> dict[str, float | int | str]:
        last = {} if self.attention.picked is None else {"query": "last"}
        return {"scale": self.attention.scale, "where": self.attention.where, **last}

    def drawn(self, rng: np.random.Generator) -> Iterator[tuple[FloatTable, FloatTable]]:
        """Tables of tokens and of positions for queries, keys and values."""
        (_, wide), _, (heads, e) = self.attention.widths
        for name, (count, columns) in zip("qkv", self.attention.widths, strict=True):
            token, position = (np.zeros((rows, count * columns), np.float32) for rows in (self.words, self.length))
            if self.shares == SPREAD_SHARES and name in "qk":
                scale = abs(self.attention.scale) or 1.0
                share = (SCORE_SPREAD / (wide ** 0.5 * scale)) ** 0.5
                for each in (token, position):
                    each[:] = np.float32(share / 2 ** 0.5) * rng.standard_normal(each.shape, np.float32)
            elif self.shares == SPREAD_SHARES:
                token[:] = rng.standard_normal(token.shape, np.float32)
                token[0], token[1] = ties(token.shape[1]), -ties(token.shape[1])
            elif name == "v":
                token.reshape(self.words, heads, e)[:] = self.columns()[:, None]
            yield token, position

    def columns(self) -> FloatTable:
        """A value for each token: 1 or -1 in one column."""
        at = np.arange(self.words)
        e = self.attention.widths[2][1]
        found = np.zeros((self.words, e), np.float32)
        found[at, at // 2 % e] = 1 - 2 * (at % 2)
        return found

    def text(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """As many tokens as there are positions: of even shares their columns in turn, so that no two keys near one
        another are seen in the same."""
        drawn = rng.integers(0, self.words, self.length)
        if self.shares == SPREAD_SHARES: return drawn
        columns = np.arange(self.length) % (self.words // 2)
        return 2 * columns + drawn % 2

    def rows(self, name: str, text: NDArray[np.int64]) -> NDArray[np.float32]:
        """(tokens, heads, columns): what is gathered for queries, keys or values."""
        token, position = self.tables[name]
        heads, columns = self.attention.widths["qkv".index(name)]
        return (token[text] + position[:len(text)]).reshape(len(text), heads, columns)

    def held(self, name: str, text: NDArray[np.int64], number: str) -> NDArray[np.float32]:
        """Keys or values as a cache of this number type holds them, by what its step means."""
        rows = self.rows(name, text)
        decoder = self.program.decode_with(number)
        for call in decoder.schedule.calls[decoder.schedule.first:]:
            if SLOTS not in call.kernel.relations(call.bound): continue
            given = call.kernel.record(**{**vars(call.bound), "x": rows})
            return np.asarray(call.kernel.reads(given).get("x", rows), np.float32)
        return rows

    def meant(self, text: NDArray[np.int64], at: NDArray[np.int64], number: str) -> Meant:
        """Attention of these rows of a text, keys and values as a cache of this number type holds them: in
        float64 as over the whole text, and how far a kernel may be from that."""
        rows = text[:int(at.max()) + 1]
        batch = Batch([rows])
        keys, values = (self.held(name, rows, number) for name in "kv")
        (h, d), (g, _), (j, e) = self.attention.widths
        bound: dict[str, object] = {"q": Heads(h, d), "k": Heads(g, d), "v": Heads(j, e)}
        if "bias" in self.program.constants: bound["bias"] = self.program.constants["bias"]
        attributes = {name: value for name, value in self.attributes.items() if name != "query"}
        record = self.attention.kernel.bind(bound, {**attributes, "tile": page_side()})
        call = Call(self.attention.kernel, record, {"q": 0, "k": 1, "v": 2}, self.attention.kernel.shape(record))
        found = {**vars(record), "q": self.rows("q", rows), "k": keys, "v": values, "batch": batch}
        meant = Meant.of(call, found, batch, at)
        return meant._replace(rows=None)


def page_side() -> int:
    """Rows of a page."""
    from formats.kernels.attentions.chunks import PAGE
    return PAGE


def ties(count: int) -> FloatTable:
    """Numbers a little beside the middle of two numbers of bfloat16, by all that float32 tells apart: what is rounded
    to some bits between lies in the middle, and goes the other way."""
    at = np.arange(count)
    fine = 2.0 ** -(9 + at % (FLOAT32_BITS - 8)).astype(np.float64)
    odd = at // (FLOAT32_BITS - 8) % 2
    return (1 + 2 * HALF_UNIT * odd + HALF_UNIT + np.where(odd, -fine, fine)).astype(np.float32)
