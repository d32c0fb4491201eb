"""Steps that no kernel was written for: terms, steps read in float64, layers of a graph, scans."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from statistics import median

from lib import biased_scores, command
from lib.command import Figure, Parser, cell, concluded, count, spread, tabled, takes, whole
from lib.linear_peers import linear_peers
from lib.products import PRODUCT_COLUMNS, time_products

import numpy as np
from programs import Writer, embedding, fused_layer
from terms_of_rows import random_term, share_of, value

import opmatrix as om
from formats import Dense, kernels
from formats.host.quiet import timed
from formats.host.threads import limit
from formats.kernels import scale
from formats.kernels.engine.compiled import provide
from formats.kernels.generated.rowwise.row_kernel import Counts
from formats.machine.calibration import CASE_SECONDS, GRID, RUNS, Numbers, fit_rates
from formats.machine.features import quantile
from formats.machine.local import learning
from formats.machine.peaks import vector_rate
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.monoids import max as largest
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import (
    I,
    cols,
    const,
    elu,
    exp,
    gelu,
    given,
    heads,
    linear_attention,
    magnitude,
    ones,
    over,
    product,
    reciprocal,
    relation,
    relu,
    repeat,
    row,
    scan,
    sigmoid,
    symbol,
    total,
    turn,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import formula
from opmatrix.runtime.codegen.row_reading import NotByRows
from opmatrix.runtime.codegen.scanned_term import scanned_term
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.row_term import find_kernel, time_terms
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import catalogue, this_machine
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify import unrounded

# ---- terms

TERM, ROWS, COLUMNS_DRAWN = KERNELS["row_term"], (1, 15, 16, 17, 1000), (1, 15, 16, 17, 48)
TERMS_COLUMNS = "term", "ms", "numpy_ms", "ratio", "of_a_pass", "bits", "of_bound"


def in_shares(x):
    """A softmax that no kernel was written for."""
    e = (x + x @ over(ones, monoids.max) * -1.0) @ exp
    return e * (e @ ones @ reciprocal)


def named(n):
    """Terms by name: the term, its values, and what it is by numpy."""
    x, y = value(0, n), value(1, n)
    s = value(0, 8)
    e = x @ exp
    soft = value(0, n // 8 * 8)

    def by_norm(x):
        return x / (np.abs(x).mean(1, keepdims=True) + np.float32(1e-3))

    def by_shares(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def by_experts(x, g):
        return np.einsum("the,th->te", x.reshape(len(x), 8, -1), by_shares(g))

    def by_top(x):
        at = np.argpartition(-x, 1, axis=1)[:, :2]
        found = np.take_along_axis(x, at, 1)
        return -np.sort(-found, 1)

    gates = value(1, 8)
    mixed = (soft @ heads(8) * (in_shares(gates) @ heads(8))) @ total
    return {
        "norm": (x @ (I * ((magnitude @ monoids.mean + 1e-3) @ reciprocal)), [x], by_norm),
        "router": (in_shares(s), [s], by_shares),
        "softmax": (in_shares(x), [x], by_shares),
        "elu gate": ((x @ elu) * y, [x, y], lambda x, y: np.where(x > 0, x, np.expm1(np.minimum(x, 0))) * y),
        "soft experts": (mixed, [soft, gates], by_experts),
        "top-2": (x @ over(ones, monoids.topk(2)), [x], by_top),
        "swish of a half": (
            x @ cols(0, n // 2, n) @ sigmoid * (x @ cols(n // 2, n // 2 * 2, n)),
            [x],
            lambda x: x[:, n // 2 : n // 2 * 2] / (1 + np.exp(-x[:, : n // 2])),
        ),
        "e": (e, [x], np.exp),
    }


def prepare(term, values, rows, rng):
    """The kernel's text, its operands, where its result goes, and the call."""
    text, arrays = write_term(term, {each: k for k, each in enumerate(values)})
    given = [rng.standard_normal((rows, int(each.out.cols)), np.float32) for each in values]
    arrays = [np.atleast_1d(np.asarray(each.array, np.float32)) for each in arrays]
    operands = {f"x{k}": each for k, each in enumerate(given)} | {f"c{k}": each for k, each in enumerate(arrays)}
    return text, given, arrays, operands


def off(text, operands, given, arrays):
    """The kernel's result, and how far it is from what it means, in stated bounds, and in what these are of it."""
    found = find_kernel(text, (given, arrays))
    out = np.empty((len(given[0]), found.root.cols), np.float32)
    TERM.function(out, **operands, term=text)
    named = operands | {"term": text}
    share = share_of(out, meaning(TERM, named, None), bound(TERM, named))
    return out, float(share.max(initial=0.0)), [*(1 / share[share > 0])]


def measure_terms() -> None:
    """Time terms that no kernel was written for, as kernels of their own, beside numpy by hand.

        python benchmarks/terms.py [--rows 2048] [--columns 768] [--rounds 15] [--csv OUT]
        python benchmarks/terms.py --random 2000 [--seed 0] [--csv OUT]
        python benchmarks/terms.py --predicted 24 [--seed 0] [--rounds 15] [--csv OUT]
        python benchmarks/terms.py --products [--rows 2048] [--columns 768] [--rounds 15] [--csv OUT]

    Each row says what a run of the step takes, on all threads, and what numpy by hand takes; which share of the
    numbers a second it moves that a pass does which only scales; whether its bits on one thread and alone are the
    same; the largest share of its stated bound that it is off from float64.

    `--random N` draws so many terms and monoids, at 1, 15, 16, 17 and 1,000 rows, and says how many are wrong or
    fail, why some fall back, and how far bounds are from what is seen. `--predicted N` times so many that no
    calibration saw, at 60 rows and at --rows, and widths of 64, 250 and 768, and says how far off the machine's
    prices are, and those calibrated in the same rounds, which tell the form of prices from a machine that drifts.
    `--products` times products over monoids: shortest paths, log-sum-exp, the two best keys, a sliding maximum,
    attention with capped scores."""
    parser = Parser(measure_terms)
    parser.add_argument("--rows", type=count, default=2048)
    parser.add_argument("--columns", type=count, default=768)
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--random", type=whole, default=0, help="so many random terms, held to their bounds")
    parser.add_argument("--predicted", type=whole, default=0, help="so many random terms, timed and priced")
    parser.add_argument("--products", action="store_true", help="products over monoids instead")
    parser.add_argument("--seed", type=whole, default=0, help="of what is drawn")
    given = parser.parse_args()
    takes(20 + given.random + given.predicted)
    rng = np.random.default_rng(given.seed)
    if given.products:
        lines = [PRODUCT_COLUMNS, *time_products(given.rows, given.columns, given.rounds, rng)]
        for line in lines:
            print(" ".join(cell(each, 16) for each in line), flush=True)
        tabled(given.csv, lines)
        differ = sum(line[5] != "same" for line in lines[1:])
        concluded(
            given,
            [
                Figure("the worst beside numpy", max(line[3] for line in lines[1:]), "x", most=0.7),
                Figure("min-plus, of the vector units' rate", lines[1][4], "", least=0.35),
                Figure("products whose bits differ", differ, "", most=0),
            ],
        )
        return
    if given.random or given.predicted:
        lines, figures = draw_terms(given.random, rng) if given.random else price_terms(given, rng)
        for line in lines:
            print(" ".join(cell(each, 16) for each in line), flush=True)
        tabled(given.csv, lines)
        concluded(given, figures)
        return
    terms, lines = named(given.columns), [TERMS_COLUMNS]
    made = {name: prepare(term, values, given.rows, rng) for name, (term, values, _) in terms.items()}
    provide([find_kernel(text, (x, arrays)).function for text, x, arrays, _ in made.values()])
    x, out = (rng.standard_normal((given.rows, given.columns), np.float32) for _ in range(2))
    passes = measure({"pass": lambda _, x=x, out=out: scale(x, 0.5, out)}, [om.Batch([[0]])], given.rounds)["pass"]
    rate = 2 * x.size / median(passes)  # numbers a second, of a pass that does next to nothing
    for name, (_, _, by_hand) in terms.items():
        text, x, arrays, operands = made[name]
        kernel = find_kernel(text, (x, arrays))
        whole_rows, share, _ = off(text, operands, x, arrays)
        np.testing.assert_allclose(whole_rows, by_hand(*x), rtol=1e-4, atol=1e-5)
        with limit(1):
            one = off(text, operands, x, arrays)[0]
        alone = [each[:1] for each in x]
        first = off(text, operands | {f"x{k}": each for k, each in enumerate(alone)}, alone, arrays)[0]
        bits = one.tobytes() == whole_rows.tobytes() and first.tobytes() == whole_rows[:1].tobytes()
        out = np.empty_like(whole_rows)
        taken = measure(
            {
                "ours": lambda _, out=out: TERM.function(out, **operands, term=text),  # noqa: B023
                "numpy": lambda _: by_hand(*x),  # noqa: B023
            },
            [om.Batch([[0]])],
            given.rounds,
        )
        ours, theirs = median(taken["ours"]), median(taken["numpy"])
        lines.append(
            (
                name,
                1e3 * ours,
                1e3 * theirs,
                ours / theirs,
                given.rows * kernel.counts.moved / ours / rate,
                "same" if bits else "DIFFER",
                share,
            )
        )
    for line in lines:
        print(" ".join(cell(each, 16) for each in line), flush=True)
    tabled(given.csv, lines)
    figures = [
        Figure("the worst beside numpy", max(line[3] for line in lines[1:]), "x", most=0.7),
        Figure("the largest share of a bound", max(line[6] for line in lines[1:]), "", most=1.0),
        Figure("terms whose bits differ", sum(line[5] != "same" for line in lines[1:]), "", most=0),
    ]
    figures += biased(given)
    concluded(given, figures)


def biased(given):
    """Attention with a bias of scores by distance, of 12 heads of 64 columns."""
    found = biased_scores.race(given.rows, given.rounds)
    for line in (biased_scores.COLUMNS, *found):
        print(" ".join(cell(each, 12) for each in line), flush=True)

    def worst(name):
        return max((each for row in found if (each := getattr(row, name)) is not None), default=None)

    return [
        Figure("a bias over attention without, the worst", worst("over_plain"), "x", most=1.1),
        Figure("attention with a bias beside numpy", worst("over_numpy"), "x", most=0.7),
        Figure(
            "attention with a bias beside torch.compile",
            worst("over_torch"),
            "x",
            most=1.05,
            why="torch is not installed",
        ),
        Figure("attention with a bias: the largest share of a bound", worst("of_bound"), "", most=1.0),
        Figure("attention with a bias: bits that differ", sum(row.bits != "same" for row in found), "", most=0),
        Figure(
            "attention with a bias: steps that are read", sum("interpret" in row.steps for row in found), "", most=0
        ),
    ]


WHOLE, FEW_ROWS, PREDICTED_WIDTHS = 100, 60, (64, 250, 768)


def draw_terms(number, rng):
    """What random terms come to: a line for each that falls back, fails or is wrong, and figures."""
    lines, ratios, worst, counts = [("what", "why", "term")], [], 0.0, Counter()
    for begun in range(0, number, WHOLE):  # compiled so many at once
        drawn = []
        for k in range(begun, min(begun + WHOLE, number)):
            term, values = random_term(rng, COLUMNS_DRAWN[k % len(COLUMNS_DRAWN)])
            text, x, arrays, _ = prepare(term, values, 1, rng)
            try:
                find_kernel(text, (x, arrays))
                drawn.append((term, values))
            except NotByRows as error:
                counts["falls back"] += 1
                lines.append(("falls back", str(error), str(term)))
        made = [prepare(term, values, 1, rng) for term, values in drawn]
        provide([find_kernel(text, (x, arrays)).function for text, x, arrays, _ in made])
        for term, values in drawn:
            for rows in ROWS:
                text, x, arrays, operands = prepare(term, values, rows, rng)
                try:
                    _, share, more = off(text, operands, x, arrays)
                except Exception as error:
                    counts["fails"] += 1
                    lines.append(("fails", f"{type(error).__name__}: {error}", str(term)))
                    break
                worst = max(worst, share)
                ratios += more[:100]
                if not share <= 1:
                    counts["wrong"] += 1
                    lines.append(("wrong", f"{share:.3g} of its bound at {rows} rows", str(term)))
                    break
        print(f"{min(begun + WHOLE, number)} drawn: {dict(counts)}, worst {worst:.3g} of a bound", flush=True)
    return lines, [
        Figure(f"{number} random terms: the largest share of a bound", worst, "", most=1.0),
        Figure("terms that are wrong", counts["wrong"], "", most=0),
        Figure("terms that fail", counts["fails"], "", most=0),
        Figure("terms that fall back", counts["falls back"], "", most=0.02 * number),
        Figure("bounds beside what is seen, the median", median(ratios) if ratios else 0.0, "x", most=1000.0),
    ]


def price_terms(given, rng):
    """What random terms take, beside what this machine's prices say, and those calibrated in the same rounds."""
    machine, cases, samples = calibrated_machine(), {}, [*time_terms(GRID, Numbers())]
    for k in range(given.predicted):
        width = PREDICTED_WIDTHS[k % len(PREDICTED_WIDTHS)]
        term, values = random_term(rng, width)
        for rows in (FEW_ROWS, given.rows):
            text, x, arrays, _ = prepare(term, values, rows, rng)
            kernel = find_kernel(text, (x, arrays))
            out = np.empty((rows, kernel.root.cols), np.float32)
            cases[k, width, rows, str(term)] = kernel, partial(kernel, x, arrays, out)
    kernels = [*(kernel for kernel, _ in cases.values()), *(call.func for _, call in samples)]
    provide(list({kernel.function.name: kernel.function for kernel in kernels}.values()))
    calls = [*(call for _, call in cases.values()), *(call for _, call in samples)]
    taken = [[] for _ in calls]
    for _ in range(given.rounds):  # as a calibration times them
        for each, call in zip(taken, calls, strict=True):
            each += timed(call, CASE_SECONDS, *RUNS)
    seconds = [quantile(each, 0.25) for each in taken]
    known = [("row_term", sizes, each) for (sizes, _), each in zip(samples, seconds[len(cases) :], strict=True)]
    rates = fit_rates(catalogue(), known)
    lines, errors = [("term", "width", "rows", "us", "predicted_us", "fitted_us", "ratio", *Counts._fields)], []
    for ((k, width, rows, words), (kernel, _)), each in zip(cases.items(), seconds, strict=False):
        foreseen, fitted = (by.seconds("row_term", T=rows, **kernel.counts._asdict()) for by in (machine, rates))
        errors.append((abs(foreseen / each - 1), abs(fitted / each - 1)))
        lines.append(
            (
                f"{k} {words[:60]}",
                width,
                rows,
                1e6 * each,
                1e6 * foreseen,
                1e6 * fitted,
                foreseen / each,
                *kernel.counts,
            )
        )
    kept, anew = zip(*errors, strict=True)
    return lines, [
        Figure(f"prices of {given.predicted} unseen terms, off at the median", median(kept), "", most=0.2),
        Figure("off at worst", max(kept), "", most=0.4),
        Figure("calibrated in the same rounds, off at the median", median(anew)),
        Figure("calibrated in the same rounds, off at worst", max(anew)),
    ]


def calibrated_machine():
    """This machine's prices of terms."""
    machine = this_machine()
    few = Counts(128.0, 0.0, 0.0, 0.0, 1.0, 128.0, 64.0, 2.0)._asdict()
    learning(lambda: machine.seconds("row_term", T=60, **few))  # measured where it is not kept
    return machine


# ---- segments

WIDTH, HEADS, WORDS, SENTENCE = 384, 6, 1000, 128
PARTS = "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
SEGMENTS_COLUMNS = "rows", "layers", "without_ms", "step_ms", "with_ms", "ratio"


def measure_segments() -> None:
    """Time a program with one step that no kernel computes, against the same program without it plus the step.

        python benchmarks/terms.py segments [--rows 1024] [--layers 6] [--rounds 30] [--csv OUT]

    Encoders of random weights, written by hand, 384 wide, on sentences of 128 tokens. Behind half of the layers of
    one of them stands a term that is read in float64; all its other steps are recorded, in two segments. The step
    alone is its kernel, called on rows that lie ready. All three take turns in one process, and a ratio is of one
    round."""
    parser = Parser(measure_segments)
    parser.add_argument("--rows", type=count, default=1024)
    parser.add_argument("--layers", type=count, default=6)
    parser.add_argument("--rounds", type=count, default=30)
    given = parser.parse_args()
    takes(3 + 2e-5 * given.rows * given.layers * given.rounds)
    rng = np.random.default_rng(0)
    arrays, batch = weights(given.layers, rng), sentences(given.rows, rng)
    term, _ = write_term(symbol("y", None, WIDTH) @ relu, {symbol("y", None, WIDTH): 0})
    x, out = rng.standard_normal((batch.rows, WIDTH), np.float32), np.empty((batch.rows, WIDTH), np.float32)
    taken = measure(
        {
            "without": encoder(arrays, given.layers),
            "with": encoder(arrays, given.layers, term),
            "step": lambda batch: KERNELS["interpret"].function(out, batch, x, term=term),
        },
        [batch],
        given.rounds,
    )
    ratios = [
        both / (alone + step) for both, alone, step in zip(taken["with"], taken["without"], taken["step"], strict=True)
    ]
    row = (
        batch.rows,
        given.layers,
        *(1e3 * median(taken[name]) for name in ("without", "step", "with")),
        median(ratios),
    )
    for line in (SEGMENTS_COLUMNS, row):
        print(" ".join(cell(each, 11) for each in line))
    tabled(given.csv, [SEGMENTS_COLUMNS, row])
    concluded(
        given, [Figure("with the step over without it plus the step", median(ratios), "x", spread(ratios), most=1.1)]
    )


def encoder(arrays, layers, term=None):
    """The program; a term is read behind half of the layers."""
    write = Writer(arrays, Dense.pack)
    x = embedding(write, 1e-12)
    for i in range(layers):
        x = fused_layer(write, x, f"encoder.layer.{i}", HEADS, (WIDTH // HEADS) ** -0.5, 1e-12)
        if term and i == (layers - 1) // 2:
            x = write.step("interpret", {"term": term}, x0=x)
    return Program(write.steps, write.constants, x)


def weights(layers, rng):
    """Arrays of a checkpoint, by name."""
    made = lambda *shape: rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    def affine(name, inputs, outputs):
        return {f"{name}.weight": made(outputs, inputs), f"{name}.bias": made(outputs)}

    def norm(name):
        return {f"{name}.LayerNorm.weight": np.ones(WIDTH, np.float32), f"{name}.LayerNorm.bias": made(WIDTH)}

    found = norm("embeddings") | {
        f"embeddings.{name}_embeddings.weight": made(size, WIDTH)
        for name, size in (("word", WORDS), ("position", SENTENCE), ("token_type", 2))
    }
    for layer in (f"encoder.layer.{i}" for i in range(layers)):
        for part in PARTS:
            found |= affine(f"{layer}.{part}", WIDTH, WIDTH)
        found |= affine(f"{layer}.intermediate.dense", WIDTH, 4 * WIDTH) | affine(
            f"{layer}.output.dense", 4 * WIDTH, WIDTH
        )
        found |= norm(f"{layer}.attention.output") | norm(f"{layer}.output")
    return found


def sentences(rows, rng):
    """Sentences of 128 tokens, the last one shorter."""
    return Batch([rng.integers(0, WORDS, min(SENTENCE, rows - at)) for at in range(0, rows, SENTENCE)])


# ---- graph

GRAPH_COLUMNS = "over", "steps", "layer_ms", "float64_off", "float32_off"
THREADS = 2


def measure_graph() -> None:
    """Time a layer of a graph, by mean and by maximum over neighbours (Hamilton et al. 2017, GraphSAGE), found by the
    search from a term over nodes of a space of their own, whose features enter as a matrix; and its product with
    the relation against scipy's, each on two threads.

        python benchmarks/terms.py graph [--nodes 5000] [--edges 50000] [--width 128] [--rounds 41] [--csv OUT]"""
    parser = Parser(measure_graph)
    parser.add_argument("--nodes", type=count, default=5000)
    parser.add_argument("--edges", type=count, default=50000)
    parser.add_argument("--width", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=41)
    sizes = parser.parse_args()
    takes(15 + 0.02 * sizes.rounds)
    from scipy.sparse import random_array

    rng = np.random.default_rng(0)
    links = random_array((sizes.nodes, sizes.nodes), density=sizes.edges / sizes.nodes**2, rng=rng, format="csr")
    features, W = (
        rng.normal(size=(sizes.nodes, sizes.width)),
        rng.normal(size=(2 * sizes.width, sizes.width)) * sizes.width**-0.5,
    )
    batch, machine = Batch(relations={"edges": links}, inputs={"features": features}), this_machine()
    table, figures = [GRAPH_COLUMNS], list[Figure]()
    for monoid in (mean, largest):
        line, off = layer(monoid, features, W, links, batch, machine, sizes.rounds)
        table.append(line)
        figures.append(Figure(f"a layer over {monoid.__name__}: off in float64", off, most=1e-12))
    ratios = raced(links, features.astype(np.float32), sizes.rounds)
    figures.append(
        Figure(
            f"product with the relation over scipy's, {THREADS} threads", median(ratios), "x", spread(ratios), most=1.2
        )
    )
    for line in table:
        print(" ".join(cell(each, 12) for each in line))
    tabled(sizes.csv, table)
    concluded(sizes, figures)


def layer(over, features, W, links, batch, machine, rounds):
    """The layer as a program against numpy: a row of the table, and how far its float64 meaning is off."""
    edges = relation("edges", "V", "V")
    layer = formula(lambda x: row(x, product(given(edges), x, over=over)) @ weight(W)) @ gelu
    term = given("features", features.shape[1], "V") @ layer
    found = search(term, EXACT_LAWS, Running.of(machine, batch.starts), batch.extents(*collect_needs(term)))
    program, emitter = found.program({})
    wanted = by_hand(over, features, W, links)
    exact, ran = program.exact(batch, unrounded(found, emitter)), program.run(batch)
    off, rough = (float(np.linalg.norm(each - wanted) / np.linalg.norm(wanted)) for each in (exact, ran))
    taken = measure({"layer": program}, [batch], max(3, rounds // 4))["layer"]
    return (over.__name__, " ".join(step.kernel for step in program.steps), 1e3 * median(taken), off, rough), off


def by_hand(over, features, W, links):
    """The same by scipy and numpy, in float64."""
    from scipy.special import erf

    counts = np.diff(links.indptr)
    if over is mean:
        beside = links @ features / np.maximum(counts, 1)[:, None]
    else:
        beside = np.full(features.shape, -np.inf)
        np.maximum.at(beside, np.repeat(np.arange(len(counts)), counts), links.data[:, None] * features[links.indices])
    with np.errstate(invalid="ignore"):
        z = np.hstack([features, beside]) @ W
        return z * 0.5 * (1 + erf(z / 2**0.5))


def raced(links, x, rounds):
    """Ours over scipy's, in turn. scipy multiplies with one thread, so each of two takes half of the rows."""
    links, out, half = links.astype(np.float32), np.empty_like(x), links.shape[0] // 2
    starts, at = (np.asarray(each, np.int64) for each in (links.indptr, links.indices))
    parts = links[:half], links[half:]
    with ThreadPoolExecutor(THREADS) as pool, limit(THREADS):
        runs = {
            "ours": lambda batch: kernels.link_rows(x, starts, at, links.data, out, "sum"),
            "scipy": lambda batch: [*pool.map(lambda part: part @ x, parts)],
        }
        taken = measure(runs, [None], rounds)
        assert np.allclose(out, links @ x, rtol=1e-4, atol=1e-4)
    return [a / b for a, b in zip(taken["ours"], taken["scipy"], strict=True)]


# ---- scans

BEFORE = sequence & causal
SCAN_COLUMNS = "rows", "scan_ms", "product_ms", "numpy_ms", "pass_ms", "of_a_pass"


def measure_scans() -> None:
    """Time a scan of one sequence over `decay`, h <- a h + b with one a a row, against the product that is the same, a
    loop over rows in numpy, and a pass that multiplies as many numbers.

        python benchmarks/terms.py scans [--lengths 512 1024 4096] [--width 256] [--rounds 30] [--csv OUT]

    All are of the same numbers and take turns in one process; the product computes a score for each pair of rows. The
    scan of a Mamba of 130M's width, 16 states for each of 1,536 columns, is timed alone: operations that are counted, a
    second, over the rate at which the vector units multiply and add without memory."""
    parser = Parser(measure_scans)
    parser.add_argument("--lengths", type=count, nargs="+", default=[512, 1024, 4096])
    parser.add_argument("--width", type=count, default=256)
    parser.add_argument("--rounds", type=count, default=30)
    given = parser.parse_args()
    takes(10 + 1e-8 * given.rounds * sum(length**2 for length in given.lengths))
    table = [SCAN_COLUMNS, *(race_scan(length, given.width, given.rounds) for length in given.lengths)]
    for line in table:
        print(" ".join(cell(each, 11) for each in line))
    tabled(given.csv, table)
    (first, one, *_), (last, many, *_) = table[1], table[-1]
    share = time_selective(given.rounds)
    figures = [
        Figure(f"the scan of Mamba-130M's layer, {SELECTIVE_ROWS} rows: of the vector rate", share, "", least=0.4)
    ]
    figures += [Figure(f"a scan of {last} rows over passes of as many numbers", table[-1][-1], "x", most=4.0)]
    if last > first:
        growth = many * first / (one * last)
        figures.append(Figure(f"seconds a row at {last} rows over those at {first}", growth, "x", most=2.0))
    concluded(given, figures)


SELECTIVE_ROWS, SELECTIVE_COLUMNS, STATES = 1024, 1536, 16


def time_selective(rounds):
    """The share of the vector units' rate that Mamba's scan reaches, decays and all (Gu and Dao 2023, algorithm 2)."""
    rng, d = np.random.default_rng(0), SELECTIVE_COLUMNS
    shapes = dict(step=(1, d), x=(1, d), left=(STATES, 1))
    values = [symbol(name, None, Shape(h, T, n)) for name, (h, n) in shapes.items()]
    step, x, left = values
    rates = const(-rng.uniform(1, STATES, (STATES, 1, d)))
    term = scan(step @ repeat(STATES) * rates @ exp, (step * x) @ repeat(STATES) * left, monoids.decay)
    text, arrays = write_term(term, {part: k for k, part in enumerate(values)})
    arrays = [np.asarray(part.array, np.float32) for part in arrays]
    drawn = [rng.uniform(0.01, 0.1, (SELECTIVE_ROWS, h, n)).astype(np.float32) for h, n in shapes.values()]
    operands = [part if part.shape[1] > 1 else part[:, 0] for part in drawn]
    kernel = scanned_term(text, tuple(shapes.values()), tuple(part.shape for part in arrays))
    out = np.empty((SELECTIVE_ROWS, STATES, d), np.float32)
    named = {f"x{k}": part for k, part in enumerate(operands)} | {f"c{k}": part for k, part in enumerate(arrays)}
    batch = Batch([np.zeros(SELECTIVE_ROWS, int)])
    runs = {"scan": lambda batch: KERNELS["scan_term"].function(out, batch, **named, term=text)}
    seconds = median(measure(runs, [batch], rounds)["scan"])
    return SELECTIVE_ROWS * (kernel.counts.simple + kernel.counts.slow) / seconds / vector_rate().all


def race_scan(rows, width, rounds):
    """A row of the table: all ways in turn, on numbers that are held against each other."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.9, 1, (rows, 1)).astype(np.float32), rng.standard_normal((rows, width), np.float32)
    u, v = symbol("u", None, 1), symbol("v", None, width)
    terms = {"scan_term": scan(u, v, monoids.decay), "fold_term": product(turn(u), v, monoids.decay, BEFORE)}
    texts = {name: write_term(term, {u: 0, v: 1})[0] for name, term in terms.items()}
    outs, batch = {name: np.empty_like(b) for name in (*terms, "numpy", "pass")}, Batch([np.zeros(rows, int)])

    def steps(batch):
        h = outs["numpy"]
        h[0] = b[0]
        for t in range(1, rows):
            np.add(h[t - 1] * a[t], b[t], out=h[t])

    runs = {
        name: lambda batch, name=name, text=text: KERNELS[name].function(outs[name], batch, x0=a, x1=b, term=text)
        for name, text in texts.items()
    }
    runs |= {"numpy": steps, "pass": lambda batch: np.multiply(a, b, out=outs["pass"])}
    taken = measure(runs, [batch], rounds)
    for name in terms:
        np.testing.assert_allclose(outs[name], outs["numpy"], rtol=1e-3, atol=1e-3)
    times = [1e3 * median(taken[name]) for name in runs]
    return (rows, *times, times[0] / times[-1])


# ---- linear attention

ORDERS_COLUMNS = (
    *("rows", "where", "scores_ms", "states_ms", "predicted_ms", "ratio", "torch_ms"),
    *("layer_scores", "layer_states", "search", "loses"),
)
PRICES = {True: "recurrent.whole", False: "recurrent"}  # by whether rows see all of their sequence
HEAD, ORDERS = 64, ("fold_term", "recurrent")  # columns of a head; the kernels of both orders
LAW = "as_linear_attention"


def measure_linear() -> None:
    """Time linear attention in both orders, (q kᵀ) v and q (kᵀ v), on one sequence: the compiled kernels in turn, and
    layers of either order in turn; a search chooses the order of a layer that is written as (q kᵀ) v.

        python benchmarks/terms.py linear [--lengths 16 64 256 1024 4096] [--heads 4] [--rounds 15] [--csv OUT]

    `torch_ms`: the quicker of both orders by torch.compile, in turn with them: of whole sequences q (kᵀ v), of causal
    ones masked scores, or states between chunks of 64 rows. `predicted_ms`: the price of states, one call from
    Python. `loses`: how much longer a layer in the order that the search takes runs than one in the other, if it
    does."""
    parser = Parser(measure_linear)
    parser.add_argument("--lengths", type=count, nargs="+", default=[16, 32, 64, 128, 256, 1024, 4096])
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    takes(60 + 1e-8 * given.rounds * given.heads * sum(length**2 for length in given.lengths))
    table: list[tuple[object, ...]] = [ORDERS_COLUMNS]
    for where in (BEFORE, sequence):
        for length in given.lengths:
            table.append(race_orders(length, given.heads, where, given.rounds))
            print(" ".join(cell(each, 12) for each in table[-1]))
    tabled(given.csv, table)
    figures = [
        Figure("a layer in the search's order over the quicker", max(line[-1] for line in table[1:]), "x", most=1.1)
    ]
    off = [max(line[4] / line[3], line[3] / line[4]) for line in table[1:]]
    figures.append(Figure("a step by states, predicted and measured apart", max(off), "x", most=1.2))
    for line in table[1:]:
        if line[0] == max(given.lengths):
            least = 10.0 if line[1] == str(sequence) else 5.0
            figures.append(Figure(f"(q kᵀ) v over q (kᵀ v), {line[0]} rows, {line[1]}", line[5], "x", least=least))
            if line[6] is not None:
                figures.append(Figure(f"states over torch.compile, {line[0]} rows, {line[1]}", line[3] / line[6], "x"))
    concluded(given, figures)


def race_orders(rows, h, where, rounds):
    """A row of the table: kernels of both orders in turn, then layers, on the same numbers; and the search's choice."""
    rng, batch = np.random.default_rng(0), Batch([np.zeros(rows, int)])
    q, k, v = (rng.standard_normal((rows, h, HEAD), np.float32) for _ in range(3))
    parts = [symbol(name, None, Shape(h, T, HEAD)) for name in "qkv"]
    scored = product(product(parts[0], turn(parts[1])), parts[2], monoids.sum, where)
    text, _ = write_term(scored, dict(zip(parts, range(3), strict=True)))
    operands = dict(x0=q, x1=k, x2=v, term=text), dict(q=q, k=k, v=v, where=where.text)
    outs = [np.empty_like(v) for _ in ORDERS]
    runs = {
        name: lambda batch, name=name, out=out, given=given: KERNELS[name].function(out, batch, **given)
        for name, out, given in zip(ORDERS, outs, operands, strict=True)
    }
    peers = linear_peers(q, k, v, where.whole) if find_spec("torch") else {}
    for call in peers.values():
        runs["recurrent"](batch)
        np.testing.assert_allclose(call(), outs[1], rtol=1e-3, atol=1e-2 * rows**0.5)
    taken = measure(runs | {name: lambda _, call=call: call() for name, call in peers.items()}, [batch], rounds)
    np.testing.assert_allclose(*outs, rtol=1e-3, atol=1e-2 * rows**0.5)
    slow, quick = (1e3 * median(taken[name]) for name in ORDERS)
    machine, price = this_machine(), PRICES[where.whole]
    priced = learning(lambda: machine.holding(price).seconds(price, T=rows, h=h, d=HEAD))
    layers = list_layers(h, where, batch)
    steps = {step.kernel for step in layers.pop("found").steps}
    chosen = next(name for name in ORDERS if name in steps)
    times = {name: 1e3 * median(seconds) for name, seconds in measure(layers, [batch], rounds).items()}
    return (
        *(rows, str(where), slow, quick, 1e3 * priced, slow / quick),
        min((1e3 * median(taken[name]) for name in peers), default=None),
        *(*times.values(), chosen, times[chosen] / min(times.values())),
    )  # fmt: skip


def list_layers(h, where, batch):
    """Programs of a layer by the kernel that they have, and the one that a search finds with all laws."""
    rng, n, machine = np.random.default_rng(0), h * HEAD, this_machine()
    Q, K, V = (weight(rng.normal(size=(n, n)) * n**-0.5) for _ in range(3))
    table = weight(rng.normal(size=(9, n)))

    def scored(q, k, v):
        return product(product(q, turn(k)), v, monoids.sum, where)

    def found(order, laws):
        values = lambda x: (x @ Q @ relu @ heads(h), x @ K @ relu @ heads(h), x @ V @ heads(h))
        term = table @ formula(lambda x: order(*values(x)) @ heads(h).T)
        extents, running = batch.extents(*collect_needs(term)), Running.of(machine, batch.starts)
        return learning(lambda: search(term, laws, running, extents).program({})[0])

    apart = [law for law in EXACT_LAWS if law.name != LAW]
    stated = lambda q, k, v: linear_attention(q, k, v, where)
    return dict(zip(ORDERS, (found(scored, apart), found(stated, apart)), strict=True), found=found(scored, EXACT_LAWS))


# ---- rules by which rows enter a state

RULES = {"plain": (0, 0), "decays": (1, 0), "delta": (0, 1), "gated_delta": (1, 1)}  # columns of decays, and of betas
CHUNK = 64  # rows of a chunk of the delta rule, in products of matrices


def measure_rules() -> None:
    """Time the recurrence of linear attention by rule and length, all in turn, and the delta rule in chunks of 64 rows,
    as products of matrices by numpy (Yang et al. 2024, section 3.2), on the same numbers.

        python benchmarks/terms.py rules [--lengths 8192 16384 32768 65536] [--heads 4] [--rounds 15] [--csv OUT]

    Exponents are of medians over rounds at the longest and the shortest length, their spreads of those of a round.
    `fresh`: the plain rule with a result that was just allocated, whose pages are made as it is written."""
    parser = Parser(measure_rules)
    parser.add_argument("--lengths", type=count, nargs="+", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    takes(60 + 1e-5 * given.rounds * given.heads * sum(given.lengths))
    calls = {rows: list_rules(rows, given.heads) for rows in given.lengths}
    runs = {(rows, name): call for rows, named in calls.items() for name, call in named.items()}
    taken = measure(runs, [None], given.rounds)
    names = *RULES, "fresh", "chunks"
    table: list[tuple[object, ...]] = [("rows", *(f"{name}_ms" for name in names), "chunks_over_delta")]
    for rows in given.lengths:
        times = [1e3 * median(taken[rows, name]) for name in names]
        table.append((rows, *times, times[-1] / times[names.index("delta")]))
    for line in table:
        print(" ".join(cell(each, 12) for each in line))
    tabled(given.csv, table)
    concluded(given, [grown(taken, name, given.lengths) for name in names[:-1]])


def grown(taken, name, lengths):
    """The exponent of the time by rows, of medians, between the shortest length and the longest."""
    first, last = min(lengths), max(lengths)
    many, few = taken[last, name], taken[first, name]
    octaves = np.log(last / first) or 1.0
    exponents = [float(np.log(a / b) / octaves) for a, b in zip(many, few, strict=True)]
    middle = float(np.log(median(many) / median(few)) / octaves)
    return Figure(f"{name}: exponent of the time by rows", middle, "", spread(exponents), most=1.05)


def list_rules(rows, h):
    """The calls of one sequence of so many rows, by rule; keys of unit length."""
    rng, batch = np.random.default_rng(0), Batch([np.zeros(rows, int)])
    q, k, v = (rng.standard_normal((rows, h, HEAD), np.float32) for _ in range(3))
    k /= np.linalg.norm(k, axis=2, keepdims=True)
    parts = [rng.uniform(low, 1, (rows, h, 1)).astype(np.float32) for low in (0.99, 0)]
    out = np.empty_like(v)

    def run_rule(name: str, out: np.ndarray) -> np.ndarray:
        """Pass all rows by a rule."""
        there = zip(("decays", "betas"), parts, RULES[name], strict=True)
        named = {word: part for word, part, has in there if has}
        KERNELS["recurrent"].function(out, batch, q=q, k=k, v=v, where=BEFORE.text, **named)
        return out

    np.testing.assert_allclose(in_chunks(q, k, v, parts[1]), run_rule("delta", out), rtol=1e-3, atol=1e-3)
    calls = {name: lambda _, name=name: run_rule(name, out) for name in RULES}
    return calls | dict(
        fresh=lambda _: run_rule("plain", np.empty_like(v)), chunks=lambda _: in_chunks(q, k, v, parts[1])
    )


def in_chunks(q, k, v, betas):
    """The delta rule with a product of matrices for each chunk; what a chunk's rows take from each other is solved for
    all chunks at once."""
    parts = [
        np.ascontiguousarray(x.swapaxes(0, 1).reshape(x.shape[1], -1, CHUNK, x.shape[2])) for x in (q, k, v, betas)
    ]
    q, k, v, betas = parts
    below = np.tril(betas * (k @ k.swapaxes(2, 3)), -1)
    solved = np.linalg.inv(below + np.eye(CHUNK, dtype=np.float32))
    seen, added, taken = np.tril(q @ k.swapaxes(2, 3)), solved @ (betas * v), solved @ (betas * k)
    state, out = np.zeros((len(k), HEAD, HEAD), np.float32), np.empty_like(v)
    for at in range(k.shape[1]):
        own = added[:, at] - taken[:, at] @ state
        out[:, at] = q[:, at] @ state + seen[:, at] @ own
        state = state + k[:, at].swapaxes(1, 2) @ own
    return out.reshape(len(k), -1, HEAD).swapaxes(0, 1)


if __name__ == "__main__":
    command.run_parts(measure_terms, measure_segments, measure_graph, measure_scans, measure_linear, measure_rules)
