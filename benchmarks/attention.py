"""Attention: alone, over masks, over fewer keys, and of a last row."""

import argparse
from dataclasses import dataclass
from functools import partial, reduce
from importlib.util import find_spec
from itertools import pairwise
from operator import matmul
from statistics import geometric_mean, median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, number, readable, say, spread, tabled, takes

import numpy as np
from random_models import random_weights

from formats import Mask, kernels
from formats.core.layout import panels
from formats.host.threads import limit, threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import I, attention, const, heads, pick, product, rmsnorm, rotary, weight
from opmatrix.algebra.positions.patterns import causal, mask, sequence, window
from opmatrix.algebra.shapes import S
from opmatrix.algebra.term import formula
from opmatrix.display.tables import table
from opmatrix.models.transformer import transformer
from opmatrix.runtime.measure import measure, medians
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.scheme import Running
from rewrites.explain.derivations.chain import derive_chain
from rewrites.laws import EXACT_LAWS
from rewrites.report.points import Point
from rewrites.run import optimize
from rewrites.search.search import search
from rewrites.search.sparse_attention import LEFT_OUT, LONG

# ---- attention

ATTENTION_COLUMNS = (
    "sentences",
    "tokens",
    "width",
    "float32_ms",
    "float32",
    "share",
    "bfloat16_ms",
    "bfloat16",
    "torch_ms",
    "error",
    "error_bfloat16",
    "spread",
)
MIXED = np.random.default_rng(0).integers(8, 41, 32).tolist()
ATTENTION_LONG = 128, 256, 512
BATCHES = [
    *([tokens] * sentences for sentences in (1, 8) for tokens in (16, 64, *ATTENTION_LONG)),
    [12] * 32,
    [31] * 32,
    [77] * 8,
    MIXED,
]


def measure_attention() -> None:
    """Time attention alone, in float32 and in bfloat16, against the product that comes nearest to what a core can do,
    and against torch.

        python benchmarks/attention.py [--heads 12] [--widths 32 64] [--rounds 15] [--threads 1] [--csv OUT]

    q, k and v are columns of one array, as a joined projection leaves them. Rates are in Gflop/s: four flops for
    each pair of tokens of a sentence and number of a head, counted once. `share` is of the rate of the best product
    of packed float32."""
    parser = Parser(measure_attention)
    parser.add_argument("--heads", type=count, default=12)
    parser.add_argument("--widths", type=count, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--threads", type=count, default=1)
    given = parser.parse_args()
    takes(3 + 0.08 * len(BATCHES) * len(given.widths) * given.rounds * given.heads / 12)
    rows = []
    for width in given.widths:
        with limit(given.threads):
            rows += [attention_raced(lengths, width, given) for lengths in BATCHES]
        say(f"heads of {width} columns")
    print(" ".join(f"{name:>14}" for name in ATTENTION_COLUMNS))
    for row in rows:
        print(" ".join(cell(each, 14) for each in row))
    tabled(given.csv, [ATTENTION_COLUMNS, *rows])
    concluded(given, attention_figures(rows))


def attention_figures(rows: list[tuple]) -> list[Figure]:
    """The least share of a product's rate where sentences are long enough for tiles, and times torch's seconds."""
    found = [dict(zip(ATTENTION_COLUMNS, row, strict=True)) for row in rows]
    wide = [row["spread"] for row in found if row["spread"] is not None]
    ratios = [row["torch_ms"] / row["float32_ms"] for row in found if row["torch_ms"]]
    least = min((row["share"] for row in found if row["tokens"] in ATTENTION_LONG), default=None)
    middle = median(wide) if wide else None
    return [
        Figure(
            f"least share of a product's rate, {ATTENTION_LONG[0]} tokens and more", least, spread=middle, ceiling=1
        ),
        Figure(
            "torch's seconds over ours, geometric mean",
            geometric_mean(ratios) if ratios else None,
            "x",
            middle,
            why="torch is not installed",
        ),
    ]


def attention_raced(lengths: list[int], width: int, given: argparse.Namespace) -> tuple:
    """One row: all take turns."""
    rng, starts, h = np.random.default_rng(1), np.concatenate([[0], np.cumsum(lengths)]), given.heads
    T, scale = int(starts[-1]), width**-0.5
    q, k, v = (
        part.reshape(T, h, width) for part in np.split(rng.standard_normal((T, 3 * h * width), np.float32), 3, axis=1)
    )
    x, w = rng.standard_normal((256, 384), np.float32), panels(rng.standard_normal((384, 384), np.float32))
    outs, y = [np.empty((T, h, width), np.float32) for _ in range(2)], np.empty((256, 384), np.float32)
    calls = {
        "float32": lambda: kernels.attention(q, k, v, starts, outs[0], scale),
        "bfloat16": lambda: kernels.attention_halves(q, k, v, starts, outs[1], scale),
        "product": lambda: kernels.product_packed(x, w, y),
    }
    if (peer := by_torch(q, k, v, starts, scale, given.threads)) is not None:
        calls["torch"] = peer
    taken = measure({each: lambda _, call=call: call() for each, call in calls.items()}, [None], given.rounds)
    ms = {each: 1e3 * seconds for each, seconds in medians(taken).items()}
    flops, best = (
        4e-6 * h * width * sum(length**2 for length in lengths),
        2e-9 * 256 * 384 * 384 / min(taken["product"]),
    )
    rate = {each: flops / ms[each] for each in ("float32", "bfloat16")}
    errors = (attention_off(out, q, k, v, starts, scale) for out in outs)
    tokens = lengths[0] if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    return (
        len(lengths),
        tokens,
        width,
        ms["float32"],
        rate["float32"],
        rate["float32"] / best,
        ms["bfloat16"],
        rate["bfloat16"],
        ms.get("torch", ""),
        *errors,
        spread(taken["float32"]),
    )


def by_torch(q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, scale: float, threads: int):
    """scaled_dot_product_attention over sentences of one length; None for others, or without torch."""
    if len(set(np.diff(starts).tolist())) > 1 or not find_spec("torch"):
        return None
    import torch

    torch.set_num_threads(threads)
    parts = [
        torch.from_numpy(part.reshape(len(starts) - 1, -1, *part.shape[1:]).swapaxes(1, 2).copy()) for part in (q, k, v)
    ]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*parts, scale=scale)


def attention_off(
    out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, scale: float
) -> float:
    """The relative error of the first head against float64."""
    found = []
    for a, b in pairwise(starts):
        s = scale * q[a:b, 0].astype(np.float64) @ k[a:b, 0].T.astype(np.float64)
        p = np.exp(s - s.max(1, keepdims=True))
        found.append(p @ v[a:b, 0].astype(np.float64) / p.sum(1, keepdims=True))
    want = np.concatenate(found)
    return float(np.linalg.norm(out[:, 0] - want) / np.linalg.norm(want))


# ---- masks

MASKS_COLUMNS = (
    "pattern",
    "length",
    "block",
    "threads",
    "share",
    "bytes",
    "mask_ms",
    "pass_ms",
    "whole_ms",
    "reach_ms",
    "times_whole",
    "error",
    "spread",
)
FAR = 2**40
EXACT = 1e-5  # relative, of float32
PATTERNS = {
    "causal": (Mask.causal, (FAR, 0)),
    "window 64": (lambda length, block: Mask.window(length, 64, block=block), (64, 64)),
    "bigbird": (lambda length, block: Mask.bigbird(length, block=block), None),
    "sentences of 100": (
        lambda length, block: Mask.sentences([100] * (length // 100) + [length % 100], block=block),
        None,
    ),
}


@dataclass(frozen=True)
class Case:
    """A pattern in programs: the length of its sentence, and the most and the least of what it may take of full
    attention; `off`: how far its price may be from what is measured."""

    name: str
    length: int
    where: object
    most: float
    least: float | None = None
    off: float | None = None


def bigbird(length: int, block: int = 64) -> object:
    """3 blocks of a window, 2 that see all and that all see, 3 at random."""
    return mask(Mask.bigbird(length, window=1, everywhere=2, random=3, block=block).grid, block)


CASES = (
    Case("causal", 512, causal, 0.65, 0.45),
    Case("window(64)", 512, window(64), 0.42),
    Case("bigbird", 4096, bigbird(4096), 0.25, off=0.25),
)


def measure_masks() -> None:
    """Time attention over masks by blocks against attention that computes all scores, or those within reach; and in
    programs, as priced.

        python benchmarks/attention.py masks [--lengths 512 2048] [--heads 8] [--width 64] [--blocks 32 64 128]
                [--rounds 9] [--programs 512 4096] [--csv OUT]

    All take turns in one process; `whole` is attention without a mask, `reach` leaves out what is beyond a causal
    or a window's reach, and is empty where a pattern is no range of keys; `pass` is the kernel of programs, by the
    same mask.

    In programs a model of one attention is searched for each pattern, and its sentence of 512 or 4096 tokens is run
    beside one of the embeddings alone: what the program takes more is the attention's. It is predicted from the
    machine's calibration by the scores that the pattern holds."""
    parser = Parser(measure_masks)
    parser.add_argument("--lengths", type=count, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--width", type=count, default=64)
    parser.add_argument("--blocks", type=count, nargs="+", default=[32, 64, 128])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument(
        "--programs", type=count, nargs="*", default=[512, 4096], help="sentences that programs are run on"
    )
    given = parser.parse_args()
    scores = 4e-8 * len(PATTERNS) * sum(length**2 for length in given.lengths) + 2e-8 * sum(
        length**2 for length in given.programs
    )
    takes(3 + scores * given.rounds * given.heads / 8)
    rows = []
    for length in given.lengths:
        rows += [row for name in PATTERNS for row in masks_raced(name, length, given)]
        say(f"{length} tokens")
    print(" ".join(f"{name:>16}" for name in MASKS_COLUMNS))
    for row in rows:
        print(" ".join(cell(each, 16) for each in row))
    tabled(given.csv, [MASKS_COLUMNS, *rows])
    concluded(given, [*masks_figures(rows), *(each for length in given.programs for each in priced(length, given))])


def masks_figures(rows: list[tuple]) -> list[Figure]:
    """What is gained by the best block of each pattern, on the longest sentence; and the worst error."""
    found = [dict(zip(MASKS_COLUMNS, row, strict=True)) for row in rows]
    longest = [row for row in found if row["length"] == max(row["length"] for row in found)]
    best = [
        max((row for row in longest if row["pattern"] == name), key=lambda row: row["times_whole"]) for name in PATTERNS
    ]
    said = "{pattern}: times as fast as all scores, {share:.0%} of which are kept"
    return [
        *(Figure(said.format(**row), row["times_whole"], "x", row["spread"]) for row in best),
        Figure("largest relative error", max(row["error"] for row in found), most=EXACT),
    ]


def masks_raced(name: str, length: int, given: argparse.Namespace) -> list[tuple]:
    """A row for each side of a block."""
    make, reach = PATTERNS[name]
    rng, shape, starts = np.random.default_rng(0), (length, given.heads, given.width), np.array([0, length])
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    out, scale = np.empty(shape, np.float32), given.width**-0.5
    masks = {block: make(length, block=block) for block in given.blocks}
    calls = {block: lambda mask=mask: mask.attention(q, k, v, out, scale) for block, mask in masks.items()}
    calls |= {
        f"{block} in a pass": partial(kernels.attention, q, k, v, starts, out, scale, mask=each)
        for block, each in masks.items()
    }
    calls["whole"] = lambda: kernels.attention(q, k, v, starts, out, scale)
    if reach:
        calls["reach"] = lambda: kernels.attention(q, k, v, starts, out, scale, reach)
    taken = measure({each: lambda _, call=call: call() for each, call in calls.items()}, [None], given.rounds)
    ms = {each: 1e3 * seconds for each, seconds in medians(taken).items()}
    return [
        (
            name,
            length,
            block,
            threads(),
            mask.share,
            mask.nbytes,
            ms[block],
            ms[f"{block} in a pass"],
            ms["whole"],
            ms.get("reach", ""),
            ms["whole"] / ms[block],
            masks_off(mask, q, k, v, scale),
            spread(taken[block]),
        )
        for block, mask in masks.items()
    ]


def priced(length: int, given: argparse.Namespace) -> list[Figure]:
    """What attention in programs takes of full attention, as measured and as predicted, on one sentence."""
    cases = [case for case in CASES if case.length == length]
    batch, machine = Batch([np.arange(length)]), this_machine()
    made = {case.name: program(sequence & case.where, batch, machine, given) for case in cases}
    made |= {"full": program(sequence, batch, machine, given), "embeddings": program(None, batch, machine, given)}
    taken = measure(
        {name: each for name, (each, _) in made.items()}, [batch], max(given.rounds, 2 * given.rounds * 512 // length)
    )
    rounds = {name: [a - b for a, b in zip(taken[name], taken["embeddings"], strict=True)] for name in made}
    found = []
    for case in cases:
        ratios = [a / b for a, b in zip(rounds[case.name], rounds["full"], strict=True)]
        price, said = made[case.name][1], f"{case.name} at {length} tokens"
        found += [
            Figure(f"{said}: of full attention, measured", median(ratios), "", spread(ratios), case.least, case.most),
            Figure(f"{said}: of full attention, predicted", price / made["full"][1], "", None, case.least, case.most),
        ]
        bars = {} if case.off is None else {"least": 1 - case.off, "most": 1 + case.off}
        found.append(
            Figure(
                f"{said}: predicted of measured",
                price / median(rounds[case.name]),
                "",
                spread(rounds[case.name]),
                **bars,
            )
        )
    return found


def program(where: object, batch: Batch, machine: object, given: argparse.Namespace) -> tuple[object, float]:
    """The cheapest program of embeddings, and attention over them where there is a pattern; the seconds that its
    attention is predicted to take."""
    rng = np.random.default_rng(0)
    model = weight(Data(rng.standard_normal((batch.rows, given.heads * given.width), np.float32)))
    if where is not None:
        model = model @ masks_attention(given.heads, given.width, where)
    machine = Running.of(machine, batch.starts)
    found, _ = search(model, EXACT_LAWS, machine, batch.extents(patterns(model))).program({})
    costs = [machine.seconds(kernel, **sizes) for kernel, sizes in found.cost(batch) if kernel == "attention"]
    return found, sum(costs)


def masks_attention(h: int, d: int, where: object) -> object:
    """Rows that see one another; queries, keys and values are the rows themselves."""
    return formula(lambda x: product((q := x @ heads(h)) @ q.T * d**-0.5, q, over=softmax, where=where) @ heads(h).T)


def masks_off(mask: Mask, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> float:
    """The relative error of the first head's first 64 queries against float64."""
    rows = slice(0, min(64, mask.shape[0]))
    s = np.where(mask.unpack()[rows], scale * q[rows, 0].astype(np.float64) @ k[:, 0].T.astype(np.float64), -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    want = p @ v[:, 0].astype(np.float64) / p.sum(1, keepdims=True)
    return float(np.linalg.norm(mask.attention(q, k, v, scale=scale)[rows, 0] - want) / np.linalg.norm(want))


# ---- sparser

SPARSER_COLUMNS = "tokens", "error asked", "program", "ms predicted", "ms measured", "error stated"
VOCABULARY, AROUND, SHARP = 4096, 6.0, 3.0  # tokens; how sharply layers look near by, and at what they
# look for
SPARSER_OFF = 1.3  # times that a saving may be from what is predicted


def measure_sparser() -> None:
    """Time attention that sees fewer keys, as the search chooses it for a long sentence, against all keys.

        python benchmarks/attention.py sparser [--model NAME --text FILE] [--tokens 4096] [--errors 0.05 0]
                [--rounds 9] [--layers 4] [--heads 4] [--width 64] [--number-type float32] [--csv OUT]

    Seconds as predicted and measured, and errors. Without --model it is a decoder of random numbers, every other
    layer of which looks near by and every other one anywhere, on random tokens: patterns serve the former, where
    the error allows any. With a model its texts are joined to as many tokens, which say the errors. Without an
    error, and at a quarter of LONG tokens, none may be chosen."""
    parser = Parser(measure_sparser)
    parser.add_argument("--model", help="a checkpoint by name, or a directory")
    parser.add_argument("--text", type=readable, help="its text, a file of lines")
    parser.add_argument("--tokens", type=count, default=4096)
    parser.add_argument("--errors", type=number(float, 0, 1, "a share, from 0 to 1"), nargs="+", default=[0.05, 0.0])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--width", type=count, default=64, help="of a head")
    parser.add_argument("--number-type", choices=("float32", "bf16", "int8"), default="float32")
    given = parser.parse_args()
    takes(1200 if given.model else 20 + 4e-7 * given.tokens**2 * given.layers * given.heads * len(given.errors))
    rows, figures = [], []
    for tokens, error in [*((given.tokens, error) for error in given.errors), (LONG // 4, max(given.errors))]:
        dense, best = sparser_raced(given, tokens, error)
        say(f"{tokens} tokens, error {error:g}")
        rows += [
            (
                tokens,
                f"{error:g}",
                point.name,
                1e3 * point.predicted_s,
                1e3 * (point.measured_s or 0.0),
                f"{point.stated_error:.2g}",
            )
            for point in (dense, best)
        ]
        figures += judged(tokens, error, dense, best)
    print(
        table(
            [[f"{each:.1f}" if isinstance(each, float) else str(each) for each in row] for row in rows],
            [*SPARSER_COLUMNS],
        )
    )
    tabled(given.csv, [SPARSER_COLUMNS, *rows])
    concluded(given, figures)


def sparser_raced(given: argparse.Namespace, tokens: int, error: float) -> tuple[Point, Point]:
    """The exact program, and of those within the error the one predicted fastest."""
    asked = dict(error=error, rounds=given.rounds, number_type=given.number_type)
    if given.model:
        found = optimize(given.model, text=str(given.text) if given.text else None, tokens=tokens, **asked)
    else:
        drawn = np.random.default_rng(1).integers(0, VOCABULARY, tokens)
        found = optimize(decoder(given, tokens), workload=Batch([drawn]), **asked)
    within = [point for point in found.points if point.stated_error <= max(error, found.points[0].stated_error)]
    return found.points[0], min(within, key=lambda point: point.predicted_s)


def judged(tokens: int, error: float, dense: Point, best: Point) -> list[Figure]:
    """Whether attention sees fewer keys where that serves, and nowhere else, and whether it saves what was said."""
    said, taken = f"{tokens} tokens, error {error:g}", best.methods.get(LEFT_OUT, 0)
    if not error or tokens < LONG:
        return [Figure(f"{said}: parts that see fewer keys", taken, most=0)]
    measured, predicted = (
        (other or 0.0) / (own or 1.0)
        for own, other in ((dense.measured_s, best.measured_s), (dense.predicted_s, best.predicted_s))
    )
    return [
        Figure(f"{said}: parts that see fewer keys", taken, least=1),
        Figure(f"{said}: of the time with all keys, measured", measured, most=0.9),
        Figure(
            f"{said}: of it, predicted over measured", predicted / measured, least=1 / SPARSER_OFF, most=SPARSER_OFF
        ),
    ]


def decoder(given: argparse.Namespace, tokens: int) -> object:
    """Layers of causal attention by turns near the query's own position, by RoPE of one vector, and by what tokens
    are."""
    rng, n = np.random.default_rng(0), given.heads * given.width
    turned = rotary(tokens, given.width, 1000.0)

    def one(scale: float = 1.0) -> object:
        return weight(Data((scale * rng.standard_normal((n, n)) * n**-0.5).astype(np.float32)))

    def layer(number: int) -> object:
        near = one(0.1) + const(np.full(n, AROUND * (8 / given.width) ** 0.25))
        Q, K, by = (near, near, turned) if number % 2 == 0 else (one(SHARP), one(SHARP), None)
        return (I + rmsnorm(1e-6) @ attention(Q, K, one(), given.heads, sequence & causal, by) @ one()) @ (
            I + rmsnorm(1e-6) @ one() @ one(0.5)
        )

    embed = weight(Data(rng.standard_normal((VOCABULARY, n)).astype(np.float32)))
    return reduce(matmul, [embed, *map(layer, range(given.layers))])


# ---- last_row

BARS = {(4, 0): 0.82, (12, 0): 0.945, (12, 50000): 0.70}  # layers, words of the head: of the time of all rows
WORDS, LAST_ROW_OFF = 1000, 0.25  # of the table of tokens; what a prediction may be off by
LAST_ROW_COLUMNS = "layers", "words", "rows_ms", "last_ms", "ratio", "predicted", "difference"


def measure_last_row() -> None:
    """Time a causal model of which the last token alone is read, against the same model with all rows: no law knows a
    layer, so the saving is found. Weights are random; both programs are found on this machine's prices, and take
    turns in one process.

        python benchmarks/attention.py last_row [--layers 4 12] [--words 0 50000] [--tokens 512] [--width 768]
                [--rounds 15] [--csv OUT]"""
    parser = Parser(measure_last_row)
    parser.add_argument("--layers", type=count, nargs="+", default=[4, 12])
    parser.add_argument("--words", type=number(int, 0, 10**6, "words of a head"), nargs="+", default=[0, 50000])
    parser.add_argument("--tokens", type=count, default=512)
    parser.add_argument("--width", type=count, default=768)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    cases = [
        (layers, words) for layers in given.layers for words in given.words if not words or layers == max(given.layers)
    ]
    work = [given.tokens * given.width * (24 * layers * given.width + 2 * words) for layers, words in cases]
    takes(sum(20 + 2 * given.rounds * each / 5e10 for each in work))
    machine, table, figures = this_machine(), [LAST_ROW_COLUMNS], list[Figure]()
    for layers, words in cases:
        row, found = compared(machine, given, layers, words)
        table.append(row)
        figures += found
    for line in table:
        print(" ".join(cell(each, 11) for each in line))
    tabled(given.csv, table)
    concluded(given, figures)


def compared(machine, given, layers, words):
    """One row of the table, and its figures."""
    rng = np.random.default_rng(0)
    model = last_row_causal(layers, given.width, given.tokens, rng)
    head = [weight(rng.standard_normal((given.width, words), np.float32) * given.width**-0.5)] if words else []
    batch = Batch([rng.integers(0, WORDS, given.tokens)])
    operators = {"rows": model, "last": model @ pick("last")}
    if head:
        operators = {name: each @ head[0] for name, each in operators.items()}
    found = {
        name: search(each, EXACT_LAWS, Running.of(machine, batch.starts), batch.extents(patterns(each)))
        for name, each in operators.items()
    }
    programs = {name: each.program({})[0] for name, each in found.items()}
    behind(programs["last"])
    say(f"{layers} layers, {words} words: steps by which the last row is found")
    for line in str(derive_chain(found["last"], EXACT_LAWS)).splitlines():
        if "pick" in line:
            print("   ", line[:200])
    wanted, last = programs["rows"].run(batch)[-1], programs["last"].run(batch)[0]
    taken = measure(programs, [batch], given.rounds)
    ratios = [a / b for a, b in zip(taken["last"], taken["rows"], strict=True)]
    ratio, predicted = median(ratios), found["last"].time / found["rows"].time
    what = f"{layers} layers{f', a head of {words} words' if words else ''}"
    return (
        (
            layers,
            words,
            *(1e3 * median(taken[name]) for name in ("rows", "last")),
            ratio,
            predicted,
            float(abs(last - wanted).max() / abs(wanted).max()),
        ),
        [
            Figure(f"{what}: last row over all rows", ratio, "x", spread(ratios), most=BARS.get((layers, words))),
            Figure(f"{what}: predicted ratio off by", abs(predicted / ratio - 1), "", most=LAST_ROW_OFF),
        ],
    )


def behind(program):
    """Raises AssertionError where a product behind the last attention has other rows than those that are read."""
    calls = program.schedule.calls
    last = max(i for i, call in enumerate(calls) if call.kernel.name in ("attention", "attend_once"))
    wide = [call.kernel.name for call in calls[last:] if str(call.shape.space) != str(S)]
    assert not wide, f"behind the last attention all rows go through {wide}"


def last_row_causal(layers, width, tokens, rng):
    """A causal transformer of this width: norms before, gelu, biases."""
    config = dict(
        model_type="transformer",
        vocab_size=WORDS,
        max_position_embeddings=tokens,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        norm="layer",
        norm_eps=1e-5,
        pre_norm=True,
        hidden_act="gelu",
        gated=False,
        bias=True,
        mask="sequence & causal",
    )
    return transformer(config, random_weights(config, rng))


if __name__ == "__main__":
    command.run_parts(measure_attention, measure_masks, measure_sparser, measure_last_row)
