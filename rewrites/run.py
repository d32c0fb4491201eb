"""The main job: from a model to its cheapest equal program, and a verified front of cheaper ones. Each stage is a
function of the earlier ones:

    Opened      the model, its workload, laws and machine            (rewrites/opened.py)
    Searched    the import, with fused kernels, and the optimum over all laws
    Proposed    changes by approximations, and smaller models
    Frontier    the exact program, and the undominated ones
    Verified    programs that keep their planned error; then judged, certified and timed
    Result      the answer among them, and the report                (rewrites/report/results.py)"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from formats.core.errors import InputError
from formats.host.quiet import Watch
from formats.host.threads import in_threads, single_blas
from opmatrix.algebra.batch.signature import HALF
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.display.progress import unheard
from opmatrix.runtime.measure import collected, medians
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.approximate.block_errors import BlockTrials, SparseAttentionTrials
from rewrites.approximate.error_levels import Front, count_methods, describe_methods
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT, Choices, propose_methods
from rewrites.approximate.removing import check_fit, check_removal, kinds_removed
from rewrites.approximate.trials import BY_PULLBACK, BY_RUNS
from rewrites.approximate.variants import Pruning, Variant, carry_methods, choose_pruned
from rewrites.egraph.layers import outputs
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, SHIPPED, without
from rewrites.laws.law import Law
from rewrites.lowering.narrowing import held_narrow, most_held
from rewrites.lowering.price import TimeModel
from rewrites.lowering.representations import check_budgets
from rewrites.metrics.goals import Goal, goals
from rewrites.metrics.neighbours import corpus_files
from rewrites.metrics.quality import Quality, loosened
from rewrites.opened import Opened, Searched, search_exact
from rewrites.report.by_operator import by_operator
from rewrites.report.checked import check_programs, state_errors
from rewrites.report.choice import allowed, choose
from rewrites.report.evaluated_terms import find_evaluated
from rewrites.report.fewer_laws import Misled, find_faster, is_priced_here, tell_misled, with_fewer_laws
from rewrites.report.gains import add_means
from rewrites.report.generated import find_generated, list_contexts
from rewrites.report.judged_laws import judge_laws, take_judgement
from rewrites.report.near_misses import near_misses
from rewrites.report.points import Point
from rewrites.report.results import Result
from rewrites.report.weight_spectra import sample_spectra
from rewrites.search.approximation import Approximation
from rewrites.search.substitutions import BlockSubstitution, part_factors
from rewrites.verify.failure import VerificationError
from rewrites.verify.forked_task import ForkedTask
from rewrites.verify.precision import check_precision, check_ties
from rewrites.verify.user_laws import admit_laws
from rewrites.workload.phases import Report, Tell
from rewrites.workload.resolve import AnyModel, AnyWorkload, calibrated, open_arguments
from rewrites.workload.workload import check_output

AnyPath: TypeAlias = str | Path

SAMPLED = 2**18  # numbers of a weight that formats are fitted to before they are proposed
RUNS = 3  # runs, of which the largest memory counts


class Request(NamedTuple):
    """The request of a run: goals, of which the first is the error; the error that the search allows; most bytes; the
    kinds of removal to try, and the text that smaller models are fitted to; rounds of measuring; and the errors that
    are measured: "near" the front, or "all"; whether smaller models have one size for all layers."""

    goals: Sequence[Goal]
    error: float
    memory: float | None = None
    remove: Sequence[str] = ()
    calibrate: str | Path | None = None
    rounds: int = 11
    measure: str = NEAR_FRONT
    uniform: bool = False


class Proposed(NamedTuple):
    """The change of the output by each method of each weight, in a space that has every block substitution, and smaller
    models."""

    searched: Searched
    choices: Choices
    variants: Sequence[Variant] = ()


class Frontier(NamedTuple):
    """The exact program first, then the undominated ones; a lower bound of predicted seconds for programs of the whole
    model within the error; and, to compare, the model with a kernel for each operator."""

    points: list[Point]
    bound: float | None
    imported: Point


class Verified(NamedTuple):
    """A front whose programs keep their planned error, and the programs that do not."""

    points: list[Point]
    dropped: list[Point]
    imported: Point
    near: np.ndarray


class TimedFront(NamedTuple):
    """Programs as measured in the same rounds, and the activity of other processes meanwhile."""

    points: list[Point]
    imported: Point
    fused: Point
    busy: str
    misled: Misled | None = None


def optimize(
    model: "AnyModel",
    *,
    error: float | None = None,
    keep: Sequence[str] = (),
    memory: float | None = None,
    text: str | None = None,
    tokens: int | None = None,
    workload: "AnyWorkload | None" = None,
    number_type: str = "int8",
    pairs: "AnyPath | None" = None,
    corpus: "AnyPath | None" = None,
    queries: "AnyPath | None" = None,
    judgements: "AnyPath | None" = None,
    drop: float | None = None,
    output: str = "pooled",
    adapter: "AnyPath | None" = None,
    remove: Sequence[str] = (),
    calibrate: "AnyPath | None" = None,
    uniform: bool = False,
    leave_out: Sequence[str] = (),
    laws: Sequence[Law] | None = None,
    approximations: Sequence[Approximation] = (),
    machine: "TimeModel | None" = None,
    rounds: int = 11,
    measure: str = NEAR_FRONT,
    report: "Report | None" = None,
) -> "Result":
    """Return the fastest verified program of a model on this machine within the budgets: `best.program` of the result.

    model            name or directory of a checkpoint; a model of transformers or sentence-transformers in memory,
                     or one that `from_torch` opened; or an operator on tokens, or on matrices of a batch; or several
                     by name, the outputs of one model: a run returns the first, and an output with the name of an
                     input is its next value (state)
    error            largest relative change of the output (Frobenius norm), on rows that no method was fitted to;
                     0: exact. The default is 0.02 without other goals
    keep             goals: "error<=2%", "spearman>=-0.3" with `pairs`, "perplexity<=1.02x" with `text` and
                     output="rows"; with `corpus` "top10>=0.95", the share of a query's ten nearest lines that the exact
                     model finds, too, and for rerankers "tau>=0.95", Kendall's rank correlation of scores
    corpus, queries  files of lines: half of them choose, half state; one line in ten is a query if none are given
    judgements       a file of query, line and relevance, for "ndcg10>=-0.5": names are those of BEIR's JSON lines, or
                     numbers of lines from 1; the loss is in hundredths of nDCG@10
    memory           most bytes, stored and working
    text, tokens     the workload: a file of lines, of which some fit and some judge; one sentence's tokens (128)
    workload         instead: a file of texts; for an operator a Batch; or several batches with shares that add to 1,
                     each a Batch or sentences x tokens, [(0.7, "1x16"), (0.3, "8x128")]: predictions and measurements
                     are their mean; or generated text, "generate:512+128x8", a prompt, its answer, sequences at once:
                     seconds are those of the whole request, in a session
    number_type      the narrowest number type that weights are stored in: float32, bf16, int8 or int4
    pairs, drop      a CSV of sentence pairs with scores, with which the rank correlation of cosines falls by at most
                     `drop` hundredths (0.3)
    remove           removals that are tried: "units", hidden units of a feed-forward, "heads" of attention, or both
    calibrate        a file of lines, with no labels, that smaller models are fitted to (the first part of the text)
    uniform          smaller models keep as many units, and as many heads, in each layer, as a class of transformers has
                     them; without `remove`, of units
    output           pooled: one row a text, as the checkpoint says; rows: one a token
    adapter          a directory with a LoRA adapter of the checkpoint
    laws, leave_out  laws that may be used (None: all of `opmatrix.laws`), and names of laws that may not
    approximations   a user's own, beside number types, sparsity and rank
    machine          machine that is priced (this one, from its calibration)
    rounds, report   rounds of measuring; reporter of progress
    measure          errors that are measured: of programs "near" the front, where those of single methods are
                     predicted by one pullback; or of "all" methods, each by a run

    Raises InputError for invalid arguments or files, Infeasible where no program meets the budgets."""
    report = Report(quiet=True) if report is None else report
    with report.phase("model"):
        check_budgets(memory, number_type)
        check_output(output)
        check_measure(measure)
        asked = goals(keep, error, pairs, drop, text, corpus_files(corpus, queries, judgements))
        remove = kinds_removed(remove, uniform)
        check_removal(remove, calibrate)
        error, asked = asked[0].threshold, loosened(asked, keep) if remove and error is None else asked
        laws, left_out = admit_laws(without(EXACT_LAWS if laws is None else laws, leave_out))
        operator, workload, meta = open_arguments(model, workload, text, tokens, output, adapter)
    if remove and not isinstance(operator, Operator):
        raise InputError(
            f"remove: {', '.join(remove)}: a model of several outputs, {', '.join(outputs(operator))}, "
            "has no smaller ones: leave it out, or give one operator"
        )
    if isinstance(operator, Operator):
        check_fit(operator, remove, calibrate, workload.fit)
    if machine is None:
        with report.phase("machine") as progress:
            machine = calibrated(progress, *(batch for _, batch in workload.shares))
    with report.phase("search"):
        opened, failed = Opened(
            operator, workload, machine, laws, meta, approximations, number_type
        ).leave_out_failing()
    opened.attempts.failed += [*left_out, *failed]
    return pursue(opened, Request(asked, error, memory, remove, calibrate, rounds, measure, uniform), report)


def check_measure(measure: str) -> None:
    """Raise InputError for an unknown choice of the errors that are measured."""
    if measure not in ERRORS_OF:
        raise InputError(f"measure: {measure!r:.80}: it is {' or '.join(ERRORS_OF)}")


def pursue(opened: Opened, request: Request, report: Report) -> Result:
    """Run the stages of a run that has its model and its machine, one after another."""
    judged, quality = request.goals[1:], Quality(request.goals, {}, request.memory)
    with ForkedTask(partial(judge_laws, opened), report.say) as task:
        with report.phase("search") as progress:
            searched = search_exact(opened, progress)
        with report.phase("kernels"):
            compile_kernels(searched)
        if judged:
            with report.phase("goals"):
                judged = tuple(goal.beside(searched.exact) for goal in judged)
                request = request._replace(goals=(request.goals[0], *judged))
                quality = Quality(request.goals, find_figures(judged, "the model", searched.exact), request.memory)
        variants: Sequence[Variant] = ()
        if request.remove:
            with report.phase("remove") as progress:
                smaller = pruning_of(searched)
                variants = smaller.variants(quality, request.remove, request.calibrate, progress, request.uniform)
        with report.phase("approximate") as progress:
            proposed = propose_approximations(searched, request.error, progress, report.say, variants, request.measure)
            if request.remove:
                proposed.choices.predicted_by["units and heads"] = BY_RUNS
        with report.phase("front") as progress:
            front = find_front(proposed, request.error, request.memory, progress, quality)
        with report.phase("laws"), blame_own_laws(searched):
            laws_verified, saved = take_judgement(task, searched, report.say)
    with report.phase("verify"), blame_own_laws(searched), blame_ties(searched):
        verified = verify_front(searched, proposed.choices, front, laws_verified)
    if judged:
        with report.phase("quality") as progress:
            verified = judge_front(verified, judged, quality.exactly, progress)
    with report.phase("certify"), blame_ties(searched):
        verified = certify_front(verified, searched, request.goals)
    with report.phase("measure") as progress:
        timed = time_front(searched, verified, request.rounds, progress)
        fewer = [timed.fused, timed.imported] if is_priced_here(searched.opened.machine) else []
        faster = find_faster(timed.points[0], fewer)
        if faster is not None:
            timed = take_fewer_laws(proposed, timed, faster, laws_verified, request)
        return conclude(proposed, timed, front.bound, verified.dropped, saved, request, report)


@contextmanager
def blame_own_laws(searched: Searched) -> Iterator[None]:
    """Turn a failure by a user's own law into an InputError; any other failure is a fault of the engine."""
    try:
        yield
    except VerificationError as error:
        guilty = error.laws or searched.optimum.fired
        if blamed := [law.name for law in searched.opened.laws if law not in EXACT_LAWS and law.name in guilty]:
            raise InputError(f"--laws: law {blamed[0]}: its consequences do not hold: {error.said}") from error
        raise


@contextmanager
def blame_ties(searched: Searched) -> Iterator[None]:
    """Turn a failure where the model itself chooses between equal numbers into an InputError."""
    try:
        yield
    except VerificationError:
        check_ties(searched.opened.operator, searched.workload.few)
        raise


def compile_kernels(searched: Searched) -> None:
    """Run every program once. Raises InputError where float32 is not enough for the model."""
    for program in searched.programs.values():
        for _, batch in searched.workload.shares:
            program.run(batch)
    programs = searched.programs["imported"], searched.exact
    check_precision(searched.opened.operator, programs, searched.workload.few)


def pruning_of(searched: Searched) -> Pruning:
    """Return the source of smaller models."""
    opened = searched.opened
    return Pruning(
        opened.operator,
        searched.space,
        searched.exact,
        opened.representable,
        searched.workload,
        opened.meta,
        opened.attempts,
    )


def propose_approximations(
    searched: Searched,
    error: float,
    progress: Tell = unheard,
    say: Callable[[str], None] = unheard,
    variants: Sequence[Variant] = (),
    measure: str = NEAR_FRONT,
) -> Proposed:
    """Return the change of the output by each proposed method and by each block substitution, predicted or measured, on
    rows that it is not fitted to; empty if no error is allowed. Fewer keys for attention are tried on rows that may be
    longer."""
    from opmatrix.spectra import Limits

    opened, workload, space, exact = searched.opened, searched.workload, searched.space, searched.exact
    limits = Limits(
        error=max(0.5, error) if error else 0.0, most=6, narrowest=opened.representable.narrowest, sampled=SAMPLED
    )
    choices = propose_methods(
        space,
        searched.optimum,
        exact,
        searched.emitter,
        opened.representable,
        workload.fit,
        workload.probe,
        limits,
        progress,
        opened.approximations,
        opened.attempts,
        measure,
    )
    groups = part_factors(opened.model)
    attempts, substitutions = opened.attempts, list[BlockSubstitution]()
    borders, parts, notes = searched.emitter.borders, searched.emitter.parts, choices.notes
    near, in_part = measure == NEAR_FRONT, bool(notes)
    blocks = BlockTrials(groups, exact, workload.probe, attempts, borders, notes)
    sparse = SparseAttentionTrials(groups, exact, parts, space.prices, workload, attempts, notes)
    with attempts.leave_out("layers left out and side by side"):
        substitutions += blocks.predict_errors(error) if near else blocks.measure_errors(error)
    with attempts.leave_out("attention that sees fewer keys"):
        if error and sparse.unmeasurable:
            notes.append(sparse.unmeasurable)
        substitutions += sparse.predict_errors(error) if near else sparse.measure_errors(error)
    for note in notes:
        say(note)
    if error:
        weights = BY_RUNS if not near else f"{BY_PULLBACK} and {BY_RUNS}" if in_part else BY_PULLBACK
        ways = {"weights": weights, "layers": blocks.predicted_by, "keys": sparse.predicted_by}
        choices.predicted_by |= {kind: by for kind, by in ways.items() if by}
    space.substitutions = substitutions
    for variant in variants:
        variant.choices = carry_methods(choices, opened.operator, variant)
    return Proposed(searched, choices, variants)


def find_front(
    proposed: Proposed, error: float, memory: float | None, progress: Tell = unheard, quality: Quality | None = None
) -> Frontier:
    """Return the exact optimum, and the undominated programs over a ladder of errors. Raises Infeasible if none keeps
    the memory."""
    (searched, choices, variants), workload, optimum = proposed, proposed.searched.workload, proposed.searched.optimum
    front = Front(
        choices,
        searched.exact,
        (workload.probe, workload.choose),
        workload.peak_bytes,
        searched.opened.meta,
        searched.opened.attempts,
    )
    point = partial(Point.of, searched)
    points = [point("exact", searched.exact, optimum.time, 0.0, optimum.gap, structure=optimum)]
    for structure in front.points(error, memory, progress):
        program, joint, stated = front.found[id(structure)]
        held, saved = held_narrow(program, searched.space.prices)
        name = " + ".join([describe_methods(structure), *([f"{HALF} caches"] * bool(held))])
        points.append(
            point(
                name,
                program,
                structure.time - saved,
                joint,
                structure.proved,
                methods=count_methods(structure),
                structure=structure,
                stated_error=stated,
            )
        )
    # the bound of the whole model's programs, with any caches
    bound = None if variants else front.bound if error else optimum.bound
    if bound is not None and error:
        bound -= most_held(searched.exact, searched.space.prices)
    for (variant, structure, program), joint, stated in choose_pruned(variants, front, quality) if quality else ():
        assert variant is not None
        points.append(
            point(
                variant.name(structure),
                program,
                structure.time,
                joint,
                None,
                variant=variant,
                methods=variant.methods(structure),
                structure=structure,
                stated_error=stated,
            )
        )
    for choice_set in (choices, *(variant.choices for variant in variants)):
        if choice_set is not None:
            choice_set.settle()
    if memory is not None and not any(
        (p.variant or p.stated_error <= error) and p.predicted_bytes <= memory for p in points
    ):
        raise Infeasible(front.nearest(error, memory))
    imported = point("imported", searched.programs["imported"], searched.structures["imported"].time, 0.0, 0.0)
    return Frontier(points, bound, imported)


def verify_front(searched: Searched, choices: Choices, front: Frontier, laws_verified: dict[str, object]) -> Verified:
    """Verify programs (level 3), then their errors on held-out rows against the float64 oracle. An exact program that
    fails ends the run; an approximate one whose error exceeds the planned one is dropped; for the others the error is
    stated, from rows that took no part in the plan."""
    few = searched.workload.few
    near = dense(searched.opened.operator, few)
    off, points = state_errors(searched, choices, front.points, few, near)
    points = check_programs(searched, choices, points, laws_verified, [few], near)
    return Verified(
        [point for point in points if point.verified],
        [point for point in points if not point.verified],
        replace(front.imported, measured_error=off, predicted_error=off),
        near,
    )


def find_figures(asked: Sequence[Goal], name: str, program: Program) -> dict[str, float]:
    """Return the figures of a program that goals require, by measure; `name` is its name in errors."""
    return dict(chain.from_iterable(goal.figures(name, program).items() for goal in asked))


def judge_front(front: Verified, asked: Sequence[Goal], exactly: Mapping[str, float], progress: Tell) -> Verified:
    """Return programs with their figures; those of the exact one are known."""
    exact, every = front.points[0].program, [front.imported, *front.points]
    judged = []
    for point in every:
        figures = exactly if point.program is exact else find_figures(asked, point.name, point.program)
        judged.append(replace(point, judged=figures))
        progress(len(judged), len(every))
    return front._replace(points=judged[1:], imported=judged[0])


def certify_front(front: Verified, searched: Searched, asked: Sequence[Goal]) -> Verified:
    """Return every program with its certificate: the checks that it passed, and its goals. Raises VerificationError for
    one that `opmatrix verify` would reject."""
    from rewrites.metrics.recheck import RUN_MAKES, RunChecks, check_certificates
    from rewrites.verify.certificate import certify

    few, machine = [searched.workload.few], str(getattr(searched.opened.machine, "name", ""))
    entries = [{"goals": [goal.described(point, front.points[0]) for goal in asked]} for point in front.points]
    programs = in_threads(
        partial(certify, point.program, point.checks | goals, few, machine=machine, lengths=point.lengths)
        for point, goals in zip(front.points, entries, strict=True)
    )
    checks = RunChecks(RUN_MAKES, few, [front.near], searched.programs["imported"])
    check_certificates(programs, searched.opened.operator, checks)
    return front._replace(
        points=[replace(point, program=program) for point, program in zip(front.points, programs, strict=True)]
    )


def time_front(searched: Searched, front: Verified, rounds: int, progress: Tell) -> TimedFront:
    """Return medians of interleaved runs, and the bytes that a run needs."""
    fused = Point.of(searched, "fused", searched.programs["fused"], searched.structures["fused"].time, 0.0, None)
    points, workload, watch = [front.imported, *front.points, fused], searched.workload, Watch()
    taken = workload.measured({str(at): point.program for at, point in enumerate(points)}, rounds, progress)
    watch.note(taken.values())
    points = [
        replace(point, rounds_s=tuple(taken[name]), measured_s=middle)
        for point, (name, middle) in zip(points, medians(taken).items(), strict=True)
    ]
    with collected():
        imported, *timed = [
            replace(point, measured_bytes=point.program.stored_bytes + workload.peak_measured(point.program, RUNS))
            for point in points[:-1]
        ]
    return TimedFront(timed, imported, points[-1], watch.seen())


def take_fewer_laws(
    proposed: Proposed, timed: TimedFront, faster: Point, laws_verified: dict[str, object], request: Request
) -> TimedFront:
    """Return the front with a program of fewer laws as the exact one, as the rounds show it to be faster: verified and
    certified as the one before it was."""
    searched, before = proposed.searched, timed.points[0]
    fewer = with_fewer_laws(searched, faster.name)
    point = replace(
        before,
        program=fewer.exact,
        structure=fewer.optimum,
        predicted_s=faster.predicted_s,
        predicted_bytes=faster.predicted_bytes,
        rounds_s=faster.rounds_s,
        measured_s=faster.measured_s,
        gap=None,
    )
    verified = verify_front(fewer, proposed.choices, Frontier([point], None, timed.imported), laws_verified)
    [exact] = certify_front(verified, fewer, request.goals).points
    with collected():
        size = exact.program.stored_bytes + searched.workload.peak_measured(exact.program, RUNS)
    misled = tell_misled(before, faster, searched.workload.timed, searched.opened.machine)
    return timed._replace(points=[replace(exact, measured_bytes=size), *timed.points[1:]], misled=misled)


def conclude(
    proposed: Proposed,
    timed: TimedFront,
    bound: float | None,
    dropped: list[Point],
    saved: list[tuple[tuple[str, ...], float]],
    request: Request,
    report: Report,
) -> Result:
    """Return the best point within the budgets (rewrites/report/choice.py). Infeasible names the closest."""
    (searched, choices, _), (_, imported, fused, busy, misled) = proposed, timed
    opened, workload, asked, memory = searched.opened, searched.workload, request.goals, request.memory
    helpful = tuple(name for names, seconds in saved if seconds > 0 for name in names)
    points = [replace(point, laws=helpful) for point in timed.points]
    within = allowed(points, asked, memory)
    trusted = not getattr(opened.machine, "marks", ())
    best = choose(within, trusted)
    with single_blas():  # LAPACK's threads wait for each other longer than they work
        spectra = sample_spectra(opened.model)
    steps = add_means(imported, fused, points, best, within, trusted)
    return Result(
        model=opened.meta.get("model", ""),
        machine=opened.machine,
        workload=workload,
        structures=searched.structures,
        points=points,
        imported=imported,
        chosen=points.index(best),
        saved=saved,
        fused=fused,
        report=report,
        steps=steps,
        missed=near_misses(searched.optimum, choices, searched.space.prices, request.error)
        if steps[-1].program is None
        else (),
        goals=tuple(asked),
        memory=memory,
        bound=bound,
        choices=choices,
        left_out=tuple(SHIPPED - {law.name for law in opened.laws}),
        failed=tuple(opened.attempts.failed),
        laws=opened.laws,
        dropped=dropped,
        number_type=opened.number_type,
        busy=busy,
        misled=misled,
        generated=generated_by(best.program, opened),
        operators=by_operator(imported.program, best.program, workload.timed, opened.machine),
        spectra=spectra,
        terms=find_evaluated(best.program, workload.timed, request.rounds, searched.space.prices),
    )


def generated_by(program: Program, opened: Opened) -> list[dict[str, object]] | None:
    """Return the seconds of a program at several contexts, if the workload is generated text; else None."""
    asked, positions = opened.workload.generation, least_limits(program.schedule.calls).get("positions")
    if asked is None:
        return None
    return find_generated(program, asked, opened.workload.timed.tokens, opened.machine, list_contexts(asked, positions))
