"""Errors as the search takes them, against measured ones: of programs, the root of the sum of the squared errors of
their methods and detours; and of methods alone, predicted by one pullback or measured, against those measured on other
rows, from 0.1 to 20 %; and of what is no weight: layers left out or side by side, fewer keys, units and heads removed.

    python benchmarks/errors.py [--model minilm] [--kinds weights,blocks,keys,removed] [--programs 20]
                                [--measure near|all] [--text LINES] [--csv OUT]

Methods have their errors on a few sentences, as in `optimize`, programs on other ones. Programs are the fastest and the
smallest over a ladder of errors, all different. Blocks, keys and removals are predicted on rows that choose programs,
and measured on those that errors are stated of. Sentences for keys are lines of these rows, joined. Removals are
measured as fitted to --text, and predicted without a fit."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt
from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, readable, say, tabled, takes

import numpy as np
from all import DATA
from scipy.stats import spearmanr

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.positions.patterns import window
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.recorded import least_limits
from opmatrix.runtime.seen import pattern
from opmatrix.spectra import Limits
from rewrites.approximate.block_errors import BlockTrials, SparseAttentionTrials, measure_blocks
from rewrites.approximate.error_levels import OBJECTIVES, describe_methods
from rewrites.approximate.losses import curves, predict_curves
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT, propose_methods
from rewrites.approximate.removing import WHAT
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened, Searched, search_exact
from rewrites.run import Proposed, propose_approximations
from rewrites.search.sparse_attention import KEPT, LEFT_OUT, SPARSE
from rewrites.search.substitutions import BlockSubstitution, part_factors
from rewrites.verify.differences import difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload, calibration

COLUMNS = "program", "predicted", "measured", "factor"
LEAST, MOST = 0.002, 0.4  # errors of the ladder
LEAST_ALONE, MOST_ALONE = 0.001, 0.2  # errors of methods that are compared
LIMITS = Limits(error=0.5, most=6)


LINES = DATA / "wikitext" / "wiki.head.raw"
WEIGHTS = "weights"
NEAREST = 16, 64  # keys on each side that windows see, beside the patterns that the search tries
SENTENCES = 2  # sentences with fewer keys
Pairs = list[tuple[str, float, float]]  # name, predicted error, measured error


def main() -> None:
    parser = Parser(__doc__)
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
    tabled(given.csv, [COLUMNS, *rows])
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


if __name__ == "__main__":
    command.run(main)
