"""Errors of programs: as predicted, of one narrow format for all weights, and of compression without retraining."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import inf, sqrt
from operator import matmul
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from lib import command
from lib.command import (
    DATA,
    Figure,
    Parser,
    concluded,
    count,
    listed,
    named,
    readable,
    say,
    shape,
    spread,
    tabled,
    takes,
)
from lib.sentence_pairs import halves

import numpy as np
from scipy.stats import spearmanr
from spectra import Sparsity, sparsify

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, weight
from opmatrix.algebra.oracles import apply_factor, entered, factors
from opmatrix.algebra.positions.patterns import window
from opmatrix.algebra.term import Operator, substitute
from opmatrix.display.tables import ms, table
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.pooling import normalise_rows
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.recorded import least_limits
from opmatrix.runtime.seen import pattern
from opmatrix.spectra import Limits
from opmatrix.spectra.gram import Gram, low_rank, predicted_error
from rewrites.approximate.block_errors import BlockTrials, SparseAttentionTrials, measure_blocks
from rewrites.approximate.error_levels import OBJECTIVES, describe_methods
from rewrites.approximate.losses import curves, predict_curves
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT, propose_methods
from rewrites.approximate.removing import METRICS, WHAT, Level, remove_groups
from rewrites.approximate.sites import fitter, sites
from rewrites.approximate.structured import weight_and_bias
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method, plainly
from rewrites.metrics.pairs import SentencePairs, score_pairs
from rewrites.opened import Opened, Searched, search_exact
from rewrites.run import Proposed, propose_approximations
from rewrites.search.search import SearchSpace, cheapest
from rewrites.search.sparse_attention import KEPT, LEFT_OUT, SPARSE
from rewrites.search.substitutions import BlockSubstitution, part_factors
from rewrites.verify.differences import difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload, calibration

# ---- errors

ERRORS_COLUMNS = "program", "predicted", "measured", "factor"
LEAST, MOST = 0.002, 0.4  # errors of the ladder
LEAST_ALONE, MOST_ALONE = 0.001, 0.2  # errors of methods that are compared
LIMITS = Limits(error=0.5, most=6)


LINES = DATA / "wikitext" / "wiki.head.raw"
WEIGHTS = "weights"
NEAREST = 16, 64  # keys on each side that windows see, beside the patterns that the search tries
SENTENCES = 2  # sentences with fewer keys
Pairs = list[tuple[str, float, float]]  # name, predicted error, measured error


def measure_errors() -> None:
    """Compare errors as the search takes them with measured ones: of programs, the root of the sum of the squared
    errors of their methods and detours; and of methods alone, predicted by one pullback or measured, against those
    measured on other rows, from 0.1 to 20 %; and of what is no weight: layers left out or side by side, fewer keys,
    units and heads removed.

        python benchmarks/errors.py [--model minilm] [--kinds weights,blocks,keys,removed] [--programs 20]
                [--measure near|all] [--text LINES] [--csv OUT]

    Methods have their errors on a few sentences, as in `optimize`, programs on other ones. Programs are the fastest
    and the smallest over a ladder of errors, all different. Blocks, keys and removals are predicted on rows that
    choose programs, and measured on those that errors are stated of. Sentences for keys are lines of these rows,
    joined. Removals are measured as fitted to --text, and predicted without a fit."""
    parser = Parser(measure_errors)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--kinds", type=listed, default=[WEIGHTS, *KINDS])
    parser.add_argument("--programs", type=count, default=20)
    parser.add_argument("--measure", choices=[*ERRORS_OF], default=NEAR_FRONT)
    parser.add_argument("--text", type=readable, default=LINES)
    given = parser.parse_args()
    named("kinds", given.kinds, [WEIGHTS, *KINDS])
    takes(20 + (4 * given.programs) * (WEIGHTS in given.kinds) + 60 * len({*given.kinds} - {WEIGHTS}))
    checkpoint = open_model(given.model)
    with silence_stdout():
        opened = Opened(
            checkpoint.operator(True), Workload.of(checkpoint), this_machine(), EXACT_LAWS, source(checkpoint)
        )
        searched = search_exact(opened)
        compared = {kind: [*KINDS[kind](searched, given.text)] for kind in given.kinds if kind != WEIGHTS}
    rows, figures = weights(searched, given) if WEIGHTS in given.kinds else ([], [])
    for kind, pairs in compared.items():
        rows += [(f"{kind}: {name}", *errors, factor(*errors)) for name, *errors in pairs]
        figures += list_figures(kind, pairs)
    print(
        table(
            [[row[0], *(f"{100 * each:.3g} %" for each in row[1:3]), f"{row[3]:.2f}"] for row in rows],
            ["program", "predicted", "measured", "factor"],
        )
    )
    tabled(given.csv, [ERRORS_COLUMNS, *rows])
    concluded(given, figures)


def factor(one: float, other: float) -> float:
    """The factor that two errors are apart by."""
    return max(one / other, other / one) if one > 0 and other > 0 else inf


def list_figures(kind: str, pairs: Pairs) -> list[Figure]:
    """Figures of one kind: of all errors, and of those in the range that first order is for."""
    if not pairs:
        return [Figure(f"{kind}: rank correlation", None, why="there are none")]
    predicted, measured = np.array([errors for _, *errors in pairs]).T
    small = (LEAST_ALONE <= measured) & (measured <= MOST_ALONE)
    figures = [
        Figure(
            f"{kind}: rank correlation of {len(pairs)} predicted errors with those on other rows",
            float(spearmanr(predicted, measured).statistic),
            ceiling=1,
        ),
        Figure(f"{kind}: predicted over measured, median", float(np.median(predicted / measured))),
    ]
    if small.sum() > 2:
        what = f"{kind}: of {small.sum()} from {100 * LEAST_ALONE:g} to {100 * MOST_ALONE:g} %,"
        correlation = float(spearmanr(predicted[small], measured[small]).statistic)
        figures += [
            Figure(f"{what} rank correlation", correlation, ceiling=1),
            Figure(f"{what} predicted over measured, median", float(np.median((predicted / measured)[small]))),
        ]
    return figures


def weights(searched: Searched, given):
    """The rows of programs, and the figures of programs and of methods of weights."""
    opened = searched.opened
    with silence_stdout():
        start = time.perf_counter()
        proposed = propose_approximations(searched, MOST, measure=given.measure)
        tried_s = time.perf_counter() - start
        say(f"the errors of methods of all weights took {tried_s:.1f} s")
        start = time.perf_counter()
        proved = proposed.choices.choose(0.02, prove=True)
        took = time.perf_counter() - start
        rows = [*programs(proposed, given.programs)]
        alone, others = np.array([*methods(proposed)])
    factors = np.maximum(alone / others, others / alone)
    what = f"predicted and measured errors of {len(rows)} programs apart by a factor of"
    return rows, [
        Figure(f"{what}, at most", max((row[3] for row in rows), default=inf), most=1.3),
        Figure(f"{what}, median", median(row[3] for row in rows) if rows else None, why="no program"),
        Figure(
            f"rank correlation of {len(alone)} errors of single methods with those on other rows",
            float(spearmanr(alone, others).statistic),
            least=0.97,
            ceiling=1,
        ),
        Figure("errors of single methods over those on other rows, median", float(np.median(alone / others))),
        Figure("errors of single methods and those on other rows apart by, median", median(factors), most=1.15),
        Figure("share of single methods within a factor of 1.5", float(np.mean(factors <= 1.5)), least=0.9),
        Figure("seconds of errors of methods and detours, cached ones included", tried_s, "s"),
        Figure(
            f"the search within 2 %, {len(opened.parts)} parts, {len(proposed.searched.space.substitutions)} detours",
            took,
            "s",
            most=10,
        ),
        Figure(
            "its gap",
            100 * (1 - proved.bound / proved.time) if proved.bound > 0 else None,
            "%",
            why="nothing is proved",
        ),
    ]


def programs(proposed: Proposed, most: int):
    """Rows of so many different programs, spread over the ladder."""
    searched, choices, found = proposed.searched, proposed.choices, {}
    exact, batch = searched.exact, searched.workload.choose
    for step in range(most):
        for weights in OBJECTIVES:
            try:
                structure = choices.choose(LEAST * (MOST / LEAST) ** (step / max(1, most - 1)), None, weights)
            except Infeasible:
                continue
            if structure.error:
                found[structure.time, structure.memory] = structure
    say(f"{len(found)} programs")
    wanted, every = exact.run(batch), sorted(found.values(), key=lambda each: each.error)
    for at in range(min(most, len(every))):
        structure = every[at * len(every) // min(most, len(every))]
        measured = difference(choices.program(structure, searched.opened.meta).run(batch), wanted)
        predicted = sqrt(structure.error)
        yield describe_methods(structure), predicted, measured, factor(predicted, measured)


def methods(proposed: Proposed):
    """The errors of methods alone as the search has them, and as measured on the rows that states are made of: those
    that these rows put between LEAST_ALONE and MOST_ALONE."""
    searched = proposed.searched
    again = propose_methods(
        searched.space,
        searched.optimum,
        searched.exact,
        searched.emitter,
        searched.opened.representable,
        searched.workload.fit,
        searched.workload.verify,
        LIMITS,
        measure="all",
    )
    pairs = [
        (sqrt(each.error), sqrt(other.error))
        for leaves, found in proposed.choices.measured.items()
        for each in found
        for other in again.measured[leaves]
        if each._replace(error=0) == other._replace(error=0) and LEAST_ALONE <= sqrt(other.error) <= MOST_ALONE
    ]
    yield from zip(*pairs, strict=True)


def blocks(searched: Searched, _: object) -> Pairs:
    """Layers and blocks left out or side by side."""
    groups, workload = part_factors(searched.opened.model), searched.workload
    trials = BlockTrials(groups, searched.exact, workload.choose, borders=searched.emitter.borders)
    tried = trials.candidates()
    start = time.perf_counter()
    predictions = trials.predictions(tried, workload.choose)
    say(f"{len(tried)} block substitutions were predicted in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    measured = measure_blocks(groups, tried, workload.verify, inf, trials.attempts)
    say(f"{len(measured)} were measured in {time.perf_counter() - start:.1f} s")
    return pair_up(predictions, measured)


def keys(searched: Searched, _: object) -> Pairs:
    """Each attention alone with fewer keys."""
    workload = searched.workload
    chosen, others = join_lines(searched, [workload.fit, workload.choose]), join_lines(searched, [workload.verify])
    trials, again = (
        SparseAttentionTrials(
            part_factors(searched.opened.model),
            searched.exact,
            searched.emitter.parts,
            searched.space.prices,
            replace(workload, choose=batch),
        )
        for batch in (chosen, others)
    )
    tried = [
        one
        for part, at in trials.steps.items()
        for where in (*SPARSE, *map(window, NEAREST))
        for one in [BlockSubstitution(LEFT_OUT, part, part, (), 0, where=pattern(trials.dense_call(at).bound) & where)]
        if trials.left_out(one, chosen) >= 1 - KEPT
    ]
    start = time.perf_counter()
    predictions = trials.predictions(tried, chosen)
    say(f"{len(tried)} patterns of {chosen} were predicted in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    measured = [one for substitution in tried for one in again.measure([substitution], inf)]
    say(f"{len(measured)} were measured in {time.perf_counter() - start:.1f} s")
    return pair_up(predictions, measured)


def join_lines(searched: Searched, batches: Sequence[Batch]) -> Batch:
    """Long sentences of the lines of batches, as long as the model takes."""
    tokens = [token for batch in batches for row in batch for token in row.tokens.tolist()]
    limit = least_limits(searched.exact.schedule.calls).get("positions", inf)
    length = int(min(len(tokens) // SENTENCES, limit))
    return Batch([tokens[at * length : (at + 1) * length] for at in range(SENTENCES)])


def pair_up(predictions, measured) -> Pairs:
    """The predicted and the measured error of each substitution that has both."""
    errors = {replace(one, error=0.0): sqrt(one.error) for one in measured}
    return [
        (str(tried).rpartition(",")[0], change, errors[tried])
        for tried, change in predictions
        if change is not None and tried in errors
    ]


def removed(searched: Searched, text) -> Pairs:
    """Units and heads removed from each pair of weights alone."""
    model, workload, notes = searched.opened.operator, searched.workload, list[str]()
    start = time.perf_counter()
    predicted = predict_curves(model, WHAT, OutputProbe(searched.exact, workload.choose), notes)
    say(f"{len(predicted)} curves of removal were predicted in {time.perf_counter() - start:.1f} s {notes or ''}")
    fit = calibration(text, searched.exact.tokenizer, workload)
    start = time.perf_counter()
    measured = [*curves(model, WHAT, fit, workload.verify)]
    say(f"{len(measured)} were measured in {time.perf_counter() - start:.1f} s")
    return [
        (f"{loss.left} of {curve.groups} {curve.what} left", sqrt(loss.error), sqrt(other.error))
        for curve, other_curve in zip(predicted, measured, strict=bool(predicted))
        for loss, other in zip(curve.losses[1:], other_curve.losses[1:], strict=True)
    ]


KINDS = {"blocks": blocks, "keys": keys, "removed": removed}


# ---- rounding

ROUNDING_COLUMNS = "format", "ms", "share", "spread", "error", "megabytes"
BASE = "int8"
BARS = {"balancedint8": 0.025}  # error of MiniLM, at most, as long as int8's EQUAL times
EQUAL = 1.03


def measure_rounding() -> None:
    """Store all weights of a model in one narrow format, and measure its error on text that nothing was fitted to, and
    its seconds beside int8.

        python benchmarks/errors.py rounding [--model minilm] [--formats int8,balancedint8] [--workload 8x128]
                [--rounds 15] [--csv OUT]

    The programs are the exact one with its products' weights stored otherwise. Errors are relative, of the whole
    output (Frobenius), with all that is rounded: beside them what rounding x alone adds is not told apart from W.
    Times are medians of rounds in which all take turns; a share is the median over rounds."""
    parser = Parser(measure_rounding)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--formats", type=listed, default=[BASE, "balancedint8"])
    parser.add_argument("--workload", type=shape, default=(8, 128), help="sentences x tokens")
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    named("formats", given.formats, FORMATS)
    takes(6 + given.rounds * len(given.formats) / 10)
    rows = [*rounding_measured(given)]
    print(
        table(
            [
                [name, ms(seconds), f"{share:.3f}", f"{100 * error:.3g} %", f"{size:.1f}"]
                for name, seconds, share, _, error, size in rows
            ],
            ["all weights in", "ms", f"of {BASE}", "error", "MB"],
        )
    )
    tabled(given.csv, [ROUNDING_COLUMNS, *rows])
    concluded(given, rounding_figures(rows, given.model == "minilm"))


def rounding_figures(rows, judged):
    """Errors and shares of time, with bars where the model is the one that they were declared for."""
    for name, _, share, wide, error, _ in rows:
        bar = BARS.get(name) if judged else None
        yield Figure(f"{name}: error", 100 * error, "%", most=None if bar is None else 100 * bar)
        if name != BASE:
            yield Figure(f"{name}: time", share, f"x {BASE}", wide, most=None if bar is None else EQUAL)


def rounding_measured(given):
    """The rows of the table."""
    checkpoint, (sentences, tokens) = open_model(given.model), given.workload
    workload = Workload.of(checkpoint)
    timed = Batch([np.resize(workload.fit.tokens, tokens)] * sentences)
    workload = replace(workload, timed=timed)
    searched = search_exact(Opened(checkpoint.operator(), workload, this_machine(), EXACT_LAWS, source(checkpoint)))
    exact, programs = searched.exact, {}
    for name in dict.fromkeys([BASE, *given.formats]):
        programs[name] = stored_in(name, searched)
    wanted, times = exact.run(workload.state), measure(programs, [timed], given.rounds)
    for name, program in programs.items():
        shares = [mine / base for mine, base in zip(times[name], times[BASE], strict=True)]
        size = sum(constant.nbytes for constant in program.constants.values()) / 1e6
        yield (
            name,
            median(times[name]),
            median(shares),
            spread(shares) or 0.0,
            difference(program.run(workload.state), wanted),
            size,
        )


def stored_in(name, searched):
    """The exact program with every weight that it multiplies by stored so, fitted to the text's first part."""
    structure, meta = searched.optimum, searched.opened.meta
    program, emitter = structure.program(meta)
    found = [site for site in sites(program, structure, emitter) if site.x]
    keys, method = {site.key for site in found}, Method(name, (), FORMATS[name].metric())

    def decide(part, use, as_it_is):
        return method if (part, use.weight, use.layout) in keys else as_it_is

    return structure.program(meta, decide, {}, fitter(program, found, searched.workload.fit, {}))[0]


# ---- quality

QUALITY_COLUMNS = "technique", "metric", "layer_error", "cosine", "spearman_lost"
NAMES = dict(zip(METRICS, ("OBS", "Wanda", "magnitude"), strict=True))
FFN_LEFT = 0.8  # of the numbers of a feed-forward weight, as two factors


class Technique(NamedTuple):
    """`fit(W, gram=metric)` of every weight that it `takes` (inputs, outputs), or a level of what is removed; what the
    best metric may lose of 100 times the rank correlation at most, and the cosine that it keeps at least."""

    lost: float
    cosine: float
    fit: Callable[..., np.ndarray] | None = None
    takes: Callable[[int, int], bool] = lambda n, p: True
    level: Level | None = None


def project(W: np.ndarray, gram: np.ndarray | None) -> np.ndarray:
    """W (n, p) as the product of two factors of so many numbers as are left."""
    return matmul(*low_rank(W, round(FFN_LEFT * W.size / sum(W.shape)), gram))


TECHNIQUES = {
    "2:4": Technique(0.6, 0.86, partial(sparsify, sparsity=Sparsity(groups=(2, 4)))),
    "half of the entries": Technique(0.4, 0.91, partial(sparsify, sparsity=Sparsity(0.5))),
    "low rank": Technique(0.7, 0.89, project, lambda n, p: n != p),
    "half of the units": Technique(0.3, 0.92, level=Level(0.5)),
}


def measure_quality() -> None:
    """Measure the cost of compression without retraining, each technique in three metrics: the whole Gram of what a
    weight reads (OBS, whitened), its diagonal (Wanda), or none (magnitude).

        python benchmarks/errors.py quality [--model minilm] [--pairs CSV] [--only 2:4,units] [--csv OUT]

    Weights are fitted layer after layer, on the activations of what is already compressed, to the sentences of
    every other pair without its score; the other pairs, of which no sentence was seen, judge. Layer error, cosine
    and rank correlation stand side by side, as the first alone orders methods wrongly."""
    parser = Parser(measure_quality)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--only", type=listed, default=list(TECHNIQUES))
    given = parser.parse_args()
    named("only", given.only, TECHNIQUES)
    takes(20 + 75 * len(given.only))
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        rows = [*quality_measured(given, Path(place))]
    print(
        table(
            [[*row[:2], f"{100 * row[2]:.3g} %", f"{row[3]:.4f}", f"{row[4]:.2f}"] for row in rows],
            ["technique", "metric", "layer error", "mean cosine", "Spearman x 100 lost"],
        )
    )
    tabled(given.csv, [QUALITY_COLUMNS, *rows])
    concluded(
        given, [each for name in given.only for each in quality_figures(name, [row for row in rows if row[0] == name])]
    )


def quality_measured(given, place: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """A row for each technique and metric."""
    text, chooses, judges = halves(Path(given.pairs), place)
    pairs = joined(SentencePairs.read(chooses), judges)
    checkpoint = open_model(given.model)
    searched = search_exact(
        Opened(checkpoint.operator(True), Workload.of(checkpoint), this_machine(), EXACT_LAWS, source(checkpoint))
    )
    exact = searched.exact
    batch = calibration(text, exact.tokenizer, searched.workload, pairs.texts)
    say(f"fitted to {batch.rows} tokens, judged by {len(pairs)} pairs")
    whole, wanted = scored(exact, pairs)
    for name in given.only:
        for metric in METRICS:
            model, errors = compressed(searched.opened.operator, TECHNIQUES[name], batch, metric)
            correlation, found = scored(programmed(searched, model), pairs)
            yield name, NAMES[metric], fmean(errors), float((found * wanted).sum(1).mean()), whole - correlation
            say(f"{name}, {NAMES[metric]}")


def joined(*parts: SentencePairs) -> SentencePairs:
    return SentencePairs(
        tuple(text for each in parts for text in each.texts), np.concatenate([each.scores for each in parts])
    )


def scored(program, pairs: SentencePairs) -> tuple[float, np.ndarray]:
    """The rank correlation of a program, times 100, and its embeddings, of length one."""
    return (
        score_pairs("the model", program, pairs).spearman,
        normalise_rows(program.embed(pairs.texts, progress=False)).astype(np.float64),
    )


def programmed(searched: Searched, model: Operator):
    """The fastest program of a model whose sizes are those of the searched one."""
    whole = searched.space
    space = SearchSpace(model, whole.laws, whole.machine, whole.extents, like=whole)
    return cheapest(space, plainly).program(searched.opened.meta)[0]


def compressed(model: Operator, technique: Technique, batch, metric: str) -> tuple[Operator, list[float]]:
    """The model by a technique, at its old sizes, and the relative error of each layer that was changed."""
    if technique.level is not None:
        less = remove_groups(model, technique.level, batch, metric)
        return less.zeroed, [cut.error for cut in less.cuts]
    first, *rest = factors(model)  # tables are looked up
    x, made, errors = apply_factor(first, entered(model, batch, dtype=np.float32)), [first], list[float]()
    for factor in rest:
        for at in range(sum(1 for _ in matrices(factor))):
            node, before = [*matrices(factor)][at]
            if not technique.takes(*weight_and_bias(node)[0].shape):
                continue
            fitted, error = fit(node, apply_factor(before, x).array, technique, metric)
            factor = substitute(factor, {node: fitted})
            errors.append(error)
        made.append(factor)
        x = apply_factor(factor, x)
    return reduce(matmul, made), errors


def matrices(term: Operator, before: Operator = I) -> Iterator[tuple[Operator, Operator]]:
    """Every weight of a factor, with its bias, and what leads to it from the factor's input, in order."""
    if weight_and_bias(term) is not None:
        yield term, before
    elif term.kind.name == "compose":
        makes, reads = term.children
        yield from matrices(makes, before)
        yield from matrices(reads, before @ makes)
    else:
        for child in term.children:
            yield from matrices(child, before)


def fit(node: Operator, rows: np.ndarray, technique: Technique, metric: str) -> tuple[Operator, float]:
    """A weight by a technique, fitted to rows (T, n) that it reads, and its relative output error there. What OBS loses
    on average goes to the bias, if there is one."""
    (data, shift), gram = weight_and_bias(node), Gram.of(rows)
    W, mean = np.asarray(data.array, np.float64), gram.total / gram.rows
    whole = gram.matrix / gram.rows if shift is None else gram.covariance
    assert technique.fit is not None
    found = technique.fit(W, gram={"gram": whole, "diagonal": np.diagonal(gram.matrix), "none": None}[metric])
    made = weight(Data(found.astype(np.float32), data.label))
    error = predicted_error(W, found, whole)
    if shift is None:
        return made, error
    bias = shift.array + (mean @ (W - found) if metric == "gram" else 0.0)
    return made + const(Data(bias.astype(np.float32), shift.label)), error


def quality_figures(name: str, rows) -> list[Figure]:
    """Of a technique."""
    best, *others = rows
    technique = TECHNIQUES[name]
    return [
        Figure(f"{name}: Spearman x 100 lost", best[4], most=technique.lost),
        Figure(f"{name}: mean cosine", best[3], least=technique.cosine),
        Figure(f"{name}: cosine above Wanda's and magnitude's", best[3] - max(each[3] for each in others), least=0.0),
    ]


if __name__ == "__main__":
    command.run_parts(measure_errors, measure_rounding, measure_quality)
