"""The main job: a model in; out come the cheapest equal program, and a verified front of cheaper ones."""
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.machine.quiet import Watch
from formats.machine.threads import in_threads
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.display.progress import unheard
from opmatrix.measure import collected, medians, peak
from opmatrix.patterns import Batch
from opmatrix.program import Program
from rewrites.compiler.approximation import Approximation
from rewrites.compiler.search import Space, Structure, cheapest, search
from rewrites.compiler.substitutions import part_factors
from rewrites.derivations.gains import Group, added, group_laws
from rewrites.evaluate.checked import check_programs, state_errors
from rewrites.evaluate.goals import Goal, goals
from rewrites.evaluate.quality import Quality, loosened
from rewrites.extraction import Infeasible
from rewrites.graph.layers import Model, Segment, outputs, parts
from rewrites.law import Law
from rewrites.laws import EXACT_LAWS, without
from rewrites.lower.lower import plainly
from rewrites.lower.mixed import Mix
from rewrites.lower.precision import check_precision, count_bytes
from rewrites.lower.representations import NUMBER_TYPES, Representable, check_budgets
from rewrites.pareto.block_errors import Unseen, offered
from rewrites.pareto.error_levels import LARGE, Front, count_methods, describe_methods
from rewrites.pareto.proposals import Choices, propose_methods
from rewrites.phases import Report
from rewrites.pruning.removing import check_removal
from rewrites.pruning.variants import Variant, carried, smaller, smaller_points
from rewrites.report.choice import allowed, choose
from rewrites.report.points import Point, Result
from rewrites.report.uncompiled import evaluated
from rewrites.verify.failure import VerificationError
from rewrites.verify.forked_task import Aside
from rewrites.verify.levels import Announce
from rewrites.workload.resolve import calibrated, open_arguments
from rewrites.workload.workload import Workload, check_output

RUNS = 3                                                    # of which the most memory counts


def optimize(model: str | Model, *, error: float | None = None, keep: Sequence[str] = (), memory: float | None = None,
             text: str | None = None, tokens: int | None = None,
             workload: Workload | Batch | str | Path | Mix | None = None, number_type: str = "int8",
             pairs: str | Path | None = None, drop: float | None = None, output: str = "pooled",
             adapter: str | Path | None = None, remove: Sequence[str] = (),
             calibrate: str | Path | None = None, leave_out: Sequence[str] = (),
             laws: Sequence[Law] | None = None, approximations: Sequence[Approximation] = (), machine: Any = None,
             rounds: int = 11, report: Report | None = None) -> Result:
    """The fastest verified program of a model on this machine within the budgets; `best.program` of the result runs.

    model            name or directory of a checkpoint, or an operator on tokens, or on matrices that a batch gives; or
                     several by name, the outputs of one model, of which the first is what a run gives and one that is
                     called as an input is its next value (state)
    error            the output changes by at most this, relative (Frobenius norm), on rows that nothing was fitted to;
                     0: exact. 0.02 where nothing else is asked for
    keep             goals: "error<=2%", "spearman>=-0.3" with `pairs`, "perplexity<=1.02x" with `text` and
                     output="rows"
    memory           bytes, stored and working, at most
    text, tokens     the workload: a file of lines, of which some fit and some judge; one sentence's tokens (128)
    workload         instead: a file of texts; of an operator a Batch; or several batches with shares that add to 1,
                     each a Batch or sentences x tokens, [(0.7, "1x16"), (0.3, "8x128")]: what is predicted and measured
                     is their mean
    number_type      the narrowest that weights are stored by: float32, bf16, int8 or int4
    pairs, drop      a CSV of sentence pairs with scores, with which the rank correlation of cosines falls by at most
                     `drop` hundredths (0.3)
    remove           what smaller models are tried: without "units", hidden ones of a feed-forward, "heads" of
                     attention, or both
    calibrate        a file of lines, with no labels, that what is left is fitted to (the first part of the text)
    output           pooled: one row a text, as the checkpoint says; rows: one a token
    adapter          a directory with a LoRA adapter of the checkpoint
    laws, leave_out  what may be used (None: all of `opmatrix.laws`), and the names of what may not
    approximations   of one's own, beside number types, sparsity and rank
    machine          that prices are of (this one, from its calibration)
    rounds, report   of measuring; what says how far it is

    Raises InputError for what comes from outside, Infeasible where no program meets the budgets."""
    report = Report(quiet=True) if report is None else report
    with report.phase("model"):
        check_budgets(memory, number_type)
        check_output(output)
        asked = goals(keep, error, pairs, drop, text)
        check_removal(remove, calibrate)
        error, asked = asked[0].threshold, loosened(asked, keep) if remove and error is None else asked
        laws = without(EXACT_LAWS if laws is None else laws, leave_out)
        operator, workload, meta = open_arguments(model, workload, text, tokens, output, adapter)
    if remove and not isinstance(operator, Operator):
        raise InputError(f"remove: {', '.join(remove)}: a model of several outputs, {', '.join(outputs(operator))}, "
                         "has no smaller ones: leave it out, or give one operator")
    if machine is None:
        with report.phase("machine") as progress:
            machine = calibrated(progress, *(batch for _, batch in workload.shares))
    run = Run(operator, workload, machine, laws, report, meta, approximations=approximations, number_type=number_type)
    return pursue(run, asked, error, memory, remove, calibrate, rounds)


def pursue(run: "Run", asked: Sequence[Goal], error: float, memory: float | None, remove: Sequence[str],
           calibrate: str | Path | None, rounds: int) -> Result:
    """The phases of a run that has its model and its machine, one after another."""
    report = run.report
    with Aside(run.judged_laws, report.say) as aside:
        with report.phase("search") as progress: run.explore(progress)
        with report.phase("kernels"): run.compile()
        if len(asked) > 1:
            with report.phase("goals"): run.begin(asked)
        run.quality = Quality(asked, run.exactly, memory)
        if remove:
            with report.phase("remove") as progress: run.variants = smaller(run, remove, calibrate, progress)
        with report.phase("approximate") as progress: run.approximate(error, progress)
        with report.phase("front") as progress: run.front(error, memory, progress)
        with report.phase("laws"), own_laws(run): laws_verified, saved = run.judgement(aside)
    with report.phase("verify"), own_laws(run): run.verify(laws_verified)
    if len(asked) > 1:
        with report.phase("quality") as progress: run.judge(asked, progress)
    with report.phase("certify"): run.certify(asked)
    with report.phase("measure") as progress:
        run.measure(rounds, progress)
        return run.result(asked, memory, saved, rounds)


@contextmanager
def own_laws(run: "Run") -> Iterator[None]:
    """What fails by a law of one's own is bad input; everything else that fails is a fault of the engine."""
    try: yield
    except VerificationError as error:
        guilty = error.laws or run.structures["exact"].fired
        if own := [law.name for law in run.laws if law not in EXACT_LAWS and law.name in guilty]:
            raise InputError(f"--laws: law {own[0]}: what it leads to does not hold: {error.said}") from error
        raise


@dataclass
class Run:
    """The state of one optimisation, phase by phase."""

    model: Model
    workload: Workload
    machine: Any
    laws: tuple[Law, ...]
    report: Report
    meta: dict[str, Any] = field(default_factory=dict)
    structures: dict[str, Structure] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    choices: Choices | None = None
    dropped: list[Point] = field(default_factory=list)
    approximations: Sequence[Approximation] = ()
    number_type: str = "int8"
    busy: str = ""
    bound: float | None = None
    exactly: dict[str, float] = field(default_factory=dict)         # figures of the exact program, by measure
    variants: Sequence[Variant] = ()                        # smaller models
    quality: Quality | None = None                          # what their programs have to keep

    @cached_property
    def representable(self) -> Representable:
        return Representable(NUMBER_TYPES[self.number_type])

    @cached_property
    def parts(self) -> list[dict[str, Segment]]:
        """Of the model: no law changes them."""
        return parts(self.model)

    @cached_property
    def outputs(self) -> dict[str, Operator]:
        """Of the model, by name."""
        return outputs(self.model)

    @property
    def operator(self) -> Operator:
        """The first output, which a run gives."""
        return next(iter(self.outputs.values()))

    @cached_property
    def imported(self) -> Point:
        """The model with a kernel for each operator."""
        return self.point("imported", self.programs["imported"], self.structures["imported"].time, 0.0, 0.0)

    @cached_property
    def running(self) -> Any:
        """What the machine takes for kernels where the timed batch runs."""
        return self.workload.running(self.machine, count_bytes(self.operator))

    def searched(self, laws: Sequence[Law], fusion: bool = True) -> tuple[Space, Structure]:
        """The space that some laws reach and its optimum; under none weights are stored as they are. Canonical forms
        need one another: where a law that makes one is left out, the others keep both their sides."""
        def found(laws: Sequence[Law], time_limit: float) -> tuple[Space, Structure]:
            space = Space(self.model, laws, self.running, self.workload.extents(self.model), fusion, found=self.parts)
            return space, cheapest(space, self.representable if laws else plainly, time_limit)
        try:
            return found(laws, 10.0)
        except Infeasible:
            return found([replace(law, canonical=False) for law in laws], 1.0)

    def structure(self, laws: Sequence[Law], fusion: bool = True) -> Structure:
        """The optimum under some laws."""
        return self.searched(laws, fusion)[1]

    def explore(self, progress: Any = unheard) -> None:
        """The import with one kernel for each operator, with fused kernels, and the optimum over all laws."""
        progress("what laws reach")
        self.space, exact = self.searched(self.laws)
        progress("the import")
        self.structures = {"imported": self.structure((), fusion=False), "fused": self.structure(()), "exact": exact}
        fitted: dict[Any, Any] = {}
        for name, structure in self.structures.items():
            self.programs[name], self.emitter = structure.program(self.meta, fitted=fitted)
            fitted = self.emitter.shared
        if self.programs["exact"].stored_bytes > LARGE:     # errors are stated of what the oracle reads
            self.workload = replace(self.workload, state=self.workload.verify)

    def compile(self) -> None:
        for program in self.programs.values():
            for _, batch in self.workload.shares: program.run(batch)
        programs = self.programs["imported"], self.programs["exact"]
        check_precision(self.operator, programs, self.workload.few)

    def approximate(self, error: float, progress: Any) -> None:
        """Measures what each proposed method, and each detour, does to the output, on rows that it is not fitted to;
        none where no error is allowed. Fewer keys for attention are tried on rows that may be longer."""
        from opmatrix.spectra import Limits
        self.choices = propose_methods(self.space, self.structures["exact"], self.programs["exact"], self.emitter,
                                       self.representable, self.workload.fit, self.workload.probe,
                                       Limits(error=max(0.5, error) if error else 0.0, most=6,
                                              narrowest=self.representable.narrowest), progress, self.approximations)
        groups, exact = part_factors(self.model), self.programs["exact"]
        sparse, why = Unseen(exact, self.emitter.parts, self.space.prices, self.workload).offered(groups, error)
        if why: self.report.say(why)
        self.space.detours = [*offered(groups, exact, self.workload.probe, error), *sparse]
        for each in self.variants: each.choices = carried(self.choices, self.operator, each)

    def front(self, error: float, memory: float | None, progress: Any = unheard) -> None:
        """The exact optimum, and the undominated programs over a ladder of errors."""
        assert self.choices is not None
        exact, program = self.structures["exact"], self.programs["exact"]
        front = Front(self.choices, program, (self.workload.probe, self.workload.choose), self.workload.timed,
                      self.meta)
        self.points = [self.point("exact", program, exact.time, 0.0, exact.gap, structure=exact)]
        for structure in front.points(error, memory, progress):
            found, joint, stated = front.found[id(structure)]
            self.points.append(self.point(describe_methods(structure), found, structure.time, joint, structure.proved,
                                          count_methods(structure),
                                          structure))
            self.points[-1].stated_error = stated
        # it is of the whole model's programs
        self.bound = None if self.variants else front.bound if error else exact.bound
        self.points += smaller_points(self, front)
        for choices in (self.choices, *(each.choices for each in self.variants)):
            if choices is not None: choices.settle()
        if memory is not None and not any((p.variant or p.stated_error <= error) and p.predicted_bytes <= memory
                                          for p in self.points):
            raise Infeasible(front.nearest(error, memory))

    def point(self, name: str, program: Program, seconds: float, error: float, gap: float | None,
              methods: dict[str, int] | None = None, structure: Structure | None = None) -> Point:
        size, prices = program.stored_bytes + program.peak_bytes(self.workload.timed), self.space.prices
        return Point(name, program, seconds + prices.beside(program) - prices.start, size, error, gap,
                     methods=methods or {}, structure=structure)

    def judged_laws(self, announce: Announce) -> list[Any]:
        """Laws and graphs verified (levels 1 and 2), what laws save, and the predicted seconds of the exact program
        that all of it is about: it needs nothing of what else is done, so it may be done beside that, from a search of
        its own."""
        from rewrites.verify import verify_graphs, verify_laws
        if "exact" not in self.structures: self.structures["exact"] = self.structure(self.laws)
        exact = self.structures["exact"]
        own = [law.name for law in self.laws if law not in EXACT_LAWS]
        return [{"laws": verify_laws(self.laws, announce=announce) | {"own": own},
                 "graphs": verify_graphs([p.template for p in exact.parts], self.laws, announce=announce)},
                 self.saved(), exact.time]

    def judgement(self, aside: Aside) -> tuple[dict[str, Any], list[tuple[tuple[str, ...], float]]]:
        """Laws and graphs as verified, and what laws save, of this run's exact program."""
        verified, saved, seconds = aside.answer()
        if seconds != self.structures["exact"].time:        # a search that ended by its time limit may find another one
            verified, saved, _ = self.judged_laws(self.report.say)
        return verified, [(tuple(names), seconds) for names, seconds in saved]

    def verify(self, laws_verified: dict[str, Any]) -> None:
        """Programs (level 3), then errors on held-out rows against the float64 oracle. An exact program that fails ends
        the run; an approximate one that is further off than was planned is dropped; of the others the error is stated,
        on rows that took no part in the plan."""
        few = [self.workload.few]
        near = dense(self.operator, few[0])
        state_errors(self, few[0], near)
        check_programs(self, laws_verified, few, near)
        self.dropped = [point for point in self.points if not point.verified]
        self.points = [point for point in self.points if point.verified]

    def begin(self, asked: Sequence[Goal]) -> None:
        """The figures of the exact program, which others are compared with; what has none is refused first."""
        self.exactly = {goal.measure.name: goal.figure("the model", self.programs["exact"]) for goal in asked[1:]}

    def judge(self, asked: Sequence[Goal], progress: Any) -> None:
        """The figures of every other program."""
        points = [self.imported, *self.points]
        for at, point in enumerate(points):
            exact = point.program is self.programs["exact"]
            point.judged = self.exactly if exact else {goal.measure.name: goal.figure(point.name, point.program)
                                                       for goal in asked[1:]}
            progress(at + 1, len(points))

    def certify(self, asked: Sequence[Goal]) -> None:
        """Every program with its certificate: what was verified, and how it keeps the goals."""
        from rewrites.verify.certificate import certified
        few, machine = [self.workload.few], str(getattr(self.machine, "name", ""))
        kept = [{"goals": [goal.described(point, self.points[0]) for goal in asked]} for point in self.points]
        made = in_threads(partial(certified, point.program, point.checks | goals, few, machine=machine,
                                  lengths=point.lengths)
                          for point, goals in zip(self.points, kept, strict=True))
        for point, program in zip(self.points, made, strict=True): point.program = program

    def measure(self, rounds: int, progress: Any) -> None:
        """Medians of interleaved runs, and the bytes that a run needs."""
        self.fused = self.point("fused", self.programs["fused"], self.structures["fused"].time, 0.0, None)
        points = [self.imported, *self.points, self.fused]
        watch = Watch()
        taken = self.workload.measured({str(i): point.program for i, point in enumerate(points)}, rounds, progress)
        watch.note(taken.values())
        self.busy = watch.seen()
        for point, (name, middle) in zip(points, medians(taken).items(), strict=True):
            point.rounds_s, point.measured_s = tuple(taken[name]), middle
        with collected():
            for point in points[:-1]:
                point.measured_bytes = point.program.stored_bytes + peak(point.program, self.workload.timed, RUNS)

    def leaving(self, exact: Structure) -> Iterator[tuple[str, Structure]]:
        """The optimum without each law that fired, along the same border states. A law whose canonical form the others
        rest on cannot be left out alone."""
        for law in self.laws:
            if law.name in exact.fired:
                with suppress(Infeasible): yield law.name, self.lacking([law.name], exact)

    def lacking(self, names: Sequence[str], exact: Structure) -> Structure:
        """The optimum without some laws, along the same border states."""
        return search(self.model, without(self.laws, names), self.running, self.workload.extents(self.model),
                      methods=self.representable, along=exact.path, found=self.parts)

    def groups(self, exact: Structure) -> list[Group]:
        """The laws that fired with the optimum without each, those together that save nothing without one another."""
        return group_laws(self.leaving(exact), exact.time, lambda names: self.lacking(names, exact))

    def saved(self) -> list[tuple[tuple[str, ...], float]]:
        """Predicted seconds that laws save, by leaving one out, as in `groups`; the most first."""
        exact = self.structures["exact"]
        return sorted(((names, left.time - exact.time) for names, left in self.groups(exact)),
                      key=lambda pair: -pair[1])

    def result(self, asked: Sequence[Goal], memory: float | None, saved: list[tuple[tuple[str, ...], float]],
               rounds: int) -> Result:
        """The best point within the budgets (rewrites/report/choice.py); Infeasible says how close the closest came."""
        helpful = tuple(name for names, seconds in saved if seconds > 0 for name in names)
        for point in self.points: point.laws = helpful
        within = allowed(self.points, asked, memory)
        best = choose(within)
        steps = added(self.imported, self.fused, self.points, best, within)
        left_out = tuple({law.name for law in EXACT_LAWS} - {law.name for law in self.laws})
        return Result(
            model=self.meta.get("model", ""), machine=self.machine, workload=self.workload, structures=self.structures,
            points=self.points, imported=self.imported, chosen=self.points.index(best), saved=saved, fused=self.fused,
            report=self.report, steps=steps, goals=tuple(asked), memory=memory, bound=self.bound, choices=self.choices,
            left_out=left_out, laws=self.laws, dropped=self.dropped, number_type=self.number_type, busy=self.busy,
            terms=evaluated(best.program, self.workload.timed, rounds, self.space.prices))
