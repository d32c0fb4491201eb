"""The error of each block substitution of a model. Layers left out or run side by side are tried with the model's own
factors. Attention that sees fewer keys is tried in the exact program, with another pattern in one step.

Errors are measured, by the rest of the model for each, or predicted, by one pullback for all where these are many: the
change of the rows that a part hands on, or of the result of its attention, times the cotangent there
(predicted_errors.py)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.stage import NoPullback
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import count_scores
from opmatrix.algebra.oracles import DenseReading, apply_factor, entered
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Operator
from opmatrix.runtime.cotangents import PulledStep, pull_back
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.approximate import trials
from rewrites.approximate.predicted_errors import (
    HALF_PASSES,
    LEAST_PROBES,
    MEASURED_BEFORE,
    OutputProbe,
    last_choosing,
    rerun,
)
from rewrites.approximate.trials import (
    BY_PULLBACK,
    BY_RUNS,
    LARGE,
    SHORTEST,
    WORK,
    FloatRows,
    Trials,
    join_batches,
    sample,
    try_steps,
)
from rewrites.egraph.attempts import Attempts
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices
from rewrites.search.sparse_attention import sparse_attention_candidates
from rewrites.search.substitutions import LAYER_DROPPED, BlockSubstitution, list_substitutions
from rewrites.verify.differences import difference
from rewrites.workload.workload import Workload

ROUNDING = 2.0**-24  # smallest relative change that float32 resolves
PROBED = 8  # sentences whose longest one is the first test
FARTHER = 4.0  # largest change of the stream, in multiples of `most`
PASSES = 300  # time of a pass of the oracle, in trials by kernels
REPAID = 0.01  # least share of a program's seconds to save
ALIKE = 0.9  # the error texts must skip at least 90 % as many scores as
# the timed text does
SENTENCES = 2  # sentences that errors are measured on
PULLED = 6  # passes through the program that the pullback of a direction takes (6.5 measured, MiniLM, 505 tokens)
FIRST_ORDER = 0.2  # largest predicted change that is not measured
PartFactors = Sequence[Sequence[Operator]]  # the factors of every part of a model
MeasureBlocks = Callable[[Sequence[BlockSubstitution], float], list[BlockSubstitution]]


def with_error(tried: BlockSubstitution, change: float, most: float) -> list[BlockSubstitution]:
    """Return a list of the substitution with the error of a relative change of the output; an empty list if the change
    is above `most`."""
    return [replace(tried, error=max(ROUNDING, change) ** 2)] if change <= most else []


class PredictedBlock(NamedTuple):
    """A substitution and the relative change of the output that is predicted for it; None if it is unknown."""

    tried: BlockSubstitution
    change: float | None


def settle_predictions(
    predictions: Sequence[PredictedBlock], most: float, measure: MeasureBlocks, notes: list[str]
) -> tuple[list[BlockSubstitution], str]:
    """Return the substitutions that change the output by at most `most`, relative, and the ways in which errors were
    found. A prediction of at most FIRST_ORDER is the error. `measure` finds the error of the others, except of those
    predicted above FARTHER * `most`, and those that failed, nan; a note says how many are measured."""
    doubted = [
        tried
        for tried, change in predictions
        if change is None or (change > FIRST_ORDER and not change > FARTHER * most)
    ]
    settled = list[BlockSubstitution]()
    for tried, change in predictions:
        settled += with_error(tried, change, most) if change is not None and change <= FIRST_ORDER else []
    if doubted:
        notes.append(
            f"{doubted[0].what}: {len(doubted)} of {len(predictions)} have no predicted error, or one above "
            f"{100 * FIRST_ORDER:g} %, where first order is not enough: they are measured"
        )
        settled += measure(doubted, most)
    ways = [BY_PULLBACK] * (len(doubted) < len(predictions)) + [BY_RUNS] * bool(doubted)
    return settled, " and ".join(ways)


def pays(probe: OutputProbe, tried: Sequence[BlockSubstitution]) -> bool:
    """True if a pullback is less work than runs of all these, each of half of the program on average."""
    return len(tried) > 2 * PULLED * probe.directions


@dataclass
class BlockTrials(Trials[BlockSubstitution]):
    """Layers left out or run side by side, tried on the rows of a batch by the factors of a model's parts. For a large
    program only layers may be left out, as one pass of the residual stream selects them. `borders` has the rows that
    parts of the program hand on, for predictions; `notes` gets a line for errors that cannot be predicted."""

    groups: PartFactors
    program: Program
    batch: Batch
    attempts: Attempts = field(default_factory=Attempts)
    borders: Mapping[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    predicted_by: str = ""

    def candidates(self) -> list[BlockSubstitution]:
        """Return every substitution that is tried."""
        small = self.program.stored_bytes <= LARGE
        return [
            substitution
            for substitution in list_substitutions(self.groups)
            if small or substitution.what == LAYER_DROPPED
        ]

    def measure_errors(self, most: float) -> list[BlockSubstitution]:
        """Measure candidates, each alone; return those that change the output by at most `most`, relative."""
        tried = self.candidates() if most else []
        self.predicted_by = BY_RUNS if tried else ""
        return self.measure(tried, most)

    def measure(self, tried: Sequence[BlockSubstitution], most: float) -> list[BlockSubstitution]:
        """Return the substitutions that change the output by at most `most`, relative, of those that may serve."""
        if not (tried := self.select(tried, most)):
            return []
        return measure_blocks(
            self.groups, tried, sample(self.program, self.batch, PASSES * len(tried)), most, self.attempts
        )

    def select(self, tried: Sequence[BlockSubstitution], most: float) -> list[BlockSubstitution]:
        """Return the substitutions that change the residual stream of one sentence by little enough."""
        if not tried or self.batch.alone:
            return [*tried]
        longest = max(islice(self.batch, PROBED), key=lambda each: each.rows)
        stream = residual_stream(self.groups, Batch([longest.tokens[:SHORTEST]], [longest.kinds[:SHORTEST]]))
        return [substitution for substitution in tried if self.may_serve(substitution, stream, most)]

    def predict_errors(self, most: float) -> list[BlockSubstitution]:
        """Predict candidates that may serve, each alone; return those that change the output by at most `most`,
        relative. A few are measured by the program's kernels, and so are large predictions, and unknown ones: see
        `settle_predictions`."""
        tried = self.select(self.candidates() if most else [], most)
        passes = HALF_PASSES + PASSES * len(tried) // max(1, len(self.groups))  # a candidate runs a part of the oracle
        batch = sample(self.program, self.batch, passes)
        if not pays(OutputProbe(self.program, batch), tried):
            self.predicted_by = BY_RUNS if tried else ""
            return self.measure_by_kernels(batch, tried, most)
        measure = partial(self.measure_by_kernels, batch)
        settled, self.predicted_by = settle_predictions(self.predictions(tried, batch), most, measure, self.notes)
        return settled

    @cached_property
    def handing(self) -> dict[int, int]:
        """The step of the rows that each part hands on."""
        places = {step.output: at for at, step in enumerate(self.program.steps)}
        return {part: places[name] for part, name in self.borders.items() if name in places}

    def substituted(self, each: BlockSubstitution, rows: FloatRows, batch: Batch) -> FloatRows:
        """Return the rows behind a substitution, given those before it."""
        x = entered(self.groups[0][0], batch, dtype=np.float32).of(rows)
        return np.asarray(apply_factors(each.factors, x).array, np.float32)

    def measure_by_kernels(
        self, batch: Batch, tried: Sequence[BlockSubstitution], most: float
    ) -> list[BlockSubstitution]:
        """Return the substitutions that change the output by at most `most`, relative: their factors run, then the
        further steps of the program. Where the program has no rows in full, the further factors run (`measure`)."""
        if not tried:
            return []
        schedule, values, measured = self.program.schedule, list[FloatRows | None](), list[BlockSubstitution]()
        wanted, handed, steps = self.program.run(batch), dict[int, FloatRows](), self.handing
        known = [one for one in tried if one.first - 1 in steps and one.last in steps]
        for substitution in sorted(known, key=lambda one: steps[one.last]):
            first, last = steps[substitution.first - 1], steps[substitution.last]
            for at, (_, _, result) in enumerate(schedule.walk(batch, values, last + 1), len(values)):
                if at in steps.values():
                    handed[at] = result
            with self.attempts.leave_out(substitution):
                rows = self.substituted(substitution, handed[first], batch)
                change = difference(schedule.resumed([*values[:last], rows], batch), wanted)
                measured += with_error(substitution, change, most)
        return [*measured, *self.measure([one for one in tried if one not in known], most)]

    def predictions(self, tried: Sequence[BlockSubstitution], batch: Batch) -> list[PredictedBlock]:
        """Return the predicted change by each substitution: of the rows behind its last part, by its factors on the
        rows before its first one. Only these factors run."""
        probe, changes = OutputProbe(self.program, batch), dict[int, float]()
        behind: dict[int, PulledStep] = {}
        borders = self.handing
        for pulled in pulled_steps(probe, borders.values() if tried else (), self.notes):
            for part in sorted((part for part, at in borders.items() if at == pulled.step), reverse=True):
                for number, substitution in enumerate(tried):
                    if substitution.first == part + 1 and substitution.last in behind:
                        changes[number] = nan  # where it fails
                        with self.attempts.leave_out(substitution):
                            result = self.substituted(substitution, pulled.result, batch)
                            changes[number] = probe.predict(behind[substitution.last], result)
                behind[part] = pulled
                behind.pop(part + 3, None)
        return [PredictedBlock(substitution, changes.get(number)) for number, substitution in enumerate(tried)]

    def may_serve(self, each: BlockSubstitution, stream: Sequence[DenseReading], most: float) -> bool:
        """True if a substitution changes the residual stream by little enough; False where it fails."""
        change = inf
        with self.attempts.leave_out(each):
            change = relative_change(each.factors, stream[each.first], stream[each.last + 1])
        return change <= FARTHER * most


def measure_blocks(
    groups: PartFactors, tried: Sequence[BlockSubstitution], batch: Batch, most: float, attempts: Attempts
) -> list[BlockSubstitution]:
    """Return the substitutions whose relative change of the output on a batch is at most `most`, each with its
    error."""
    stream, measured = residual_stream(groups, batch), list[BlockSubstitution]()
    for substitution in tried:
        with attempts.leave_out(substitution):
            factors = [*substitution.factors, *chain(*groups[substitution.last + 1 :])]
            measured += with_error(substitution, relative_change(factors, stream[substitution.first], stream[-1]), most)
    return measured


def residual_stream(groups: PartFactors, batch: Batch) -> list[DenseReading]:
    """Return the input of the first part on a batch, then the output of every part."""
    stream = [entered(groups[0][0], batch, dtype=np.float32)]
    for group in groups:
        stream.append(apply_factors(group, stream[-1]))
    return stream


def relative_change(factors: Sequence[Operator], x: DenseReading, wanted: DenseReading) -> float:
    """Return the relative difference between the output of factors for a value, and `wanted`."""
    return difference(apply_factors(factors, x).array, wanted.array)


def pulled_steps(probe: OutputProbe, steps: Iterable[int], notes: list[str]) -> Iterator[PulledStep]:
    """Yield these steps with their cotangents, the last first. Steps without a prediction are left out, and `notes`
    gets a line for the cause: too few sentences; a later step that chooses entries, or has no derivative."""
    chooser = last_choosing(probe.program)
    behind = {step for step in steps if step > chooser}
    if not behind:
        return
    if not probe.suffices:
        notes.append(f"{probe.batch}: too few, or not apart, to predict errors of blocks")
        return
    try:
        yield from pull_back(probe.program, probe.batch, probe.signs(), behind)
    except NoPullback as error:
        notes.append(f"{error}: {MEASURED_BEFORE}")


def apply_factors(factors: Iterable[Operator], x: DenseReading) -> DenseReading:
    """Return the output of factors, one after another, for a value."""
    for factor in factors:
        x = apply_factor(factor, x)
    return x


@dataclass
class SparseAttentionTrials(Trials[BlockSubstitution]):
    """Attention that sees fewer keys, tried in an exact program, for the batch that its workload times. `parts` has the
    part of each step's output. Errors are measured on sentences that choose programs, and stated later from other
    sentences."""

    groups: PartFactors
    program: Program
    parts: Mapping[str, int]
    prices: Prices | Mean
    workload: Workload
    attempts: Attempts = field(default_factory=Attempts)
    notes: list[str] = field(default_factory=list)
    predicted_by: str = ""

    def candidates(self) -> list[BlockSubstitution]:
        """Return every substitution that pays, and whose error is known."""
        return self.measurable

    @cached_property
    def measurable(self) -> list[BlockSubstitution]:
        """The substitutions that pay, and leave out enough scores of the text that errors are measured on."""
        judges, timed = (self.workload.choose, self.workload.state), self.workload.timed
        return [
            substitution
            for substitution in self.paying
            if min(self.left_out(substitution, batch) for batch in judges) >= ALIKE * self.left_out(substitution, timed)
        ]

    def measure_errors(self, most: float) -> list[BlockSubstitution]:
        """Measure candidates, each alone; return those that change the output by at most `most`, relative."""
        tried = self.candidates() if most else []
        self.predicted_by = BY_RUNS if tried else ""
        return self.measure(tried, most)

    def measure(self, tried: Sequence[BlockSubstitution], most: float) -> list[BlockSubstitution]:
        """Return the substitutions that change the output by at most `most`, relative, in the order of the program's
        steps: the steps before one run once for all."""
        measured = list[BlockSubstitution]()
        if not tried:
            return measured
        wanted, values = self.program.run(self.sample), list[FloatRows | None]()
        for substitution in sorted(tried[: max(len(self.steps), self.passes)], key=lambda one: self.steps[one.first]):
            at = self.steps[substitution.first]
            for _ in self.program.schedule.walk(self.sample, values, at):
                pass
            with self.attempts.leave_out(substitution):
                [rows] = try_steps(self.program, {at: [self.sparse_call(substitution)]}, [*values], self.sample)
                measured += with_error(substitution, difference(rows, wanted), most)
        return measured

    def predict_errors(self, most: float) -> list[BlockSubstitution]:
        """Predict candidates, each alone; return those that change the output by at most `most`, relative. A few are
        measured, and so are large predictions, and unknown ones: see `settle_predictions`."""
        if not (tried := self.candidates() if most else []):
            return []
        probe = OutputProbe(self.program, self.longest(SENTENCES), LEAST_PROBES)
        if not pays(probe, tried):
            return self.measure_errors(most)
        predictions = self.predictions(tried, probe.batch)
        settled, self.predicted_by = settle_predictions(predictions, most, self.measure, self.notes)
        return settled

    def predictions(self, tried: Sequence[BlockSubstitution], batch: Batch) -> list[PredictedBlock]:
        """Return the predicted change by each substitution: of the result of its part's attention, which alone runs
        again."""
        probe, changes = OutputProbe(self.program, batch, LEAST_PROBES), dict[int, float]()
        for pulled in pulled_steps(probe, {self.steps[one.first] for one in tried}, self.notes):
            for number, substitution in enumerate(tried):
                if self.steps[substitution.first] == pulled.step:
                    changes[number] = nan  # where it fails
                    with self.attempts.leave_out(substitution):
                        changes[number] = probe.predict(pulled, rerun(pulled, self.sparse_call(substitution), batch))
        return [PredictedBlock(substitution, changes.get(number)) for number, substitution in enumerate(tried)]

    @cached_property
    def paying(self) -> list[BlockSubstitution]:
        """The substitutions whose pattern saves enough of the program's seconds, if every part had it."""
        if self.workload.timed.alone or self.workload.generation:
            return []  # sessions see all rows
        tried = sparse_attention_candidates(self.groups, sentence_lengths(self.workload.timed))
        if not (known := [substitution for substitution in tried if substitution.first in self.steps]):
            return []
        least = REPAID * self.prices.spent(self.program.schedule.cost)
        return [substitution for substitution in known if self.saved(substitution) * len(self.steps) >= least]

    @property
    def unmeasurable(self) -> str:
        """The reason why the error of substitutions that pay is unknown: the text is too short to measure it. Empty
        otherwise."""
        if not self.paying or self.measurable:
            return ""
        judged, timed = (int(sentence_lengths(batch).max()) for batch in (self.workload.state, self.workload.timed))
        return (
            f"attention sees all keys: the texts for stating errors have at most {judged} tokens, too few to "
            f"measure the effect of fewer keys in {timed}: give --text with longer lines, or with more of them"
        )

    @cached_property
    def steps(self) -> dict[int, int]:
        """The number of the step of each part that has one attention whose kernel takes any pattern."""
        attentions: dict[int, list[int]] = {}
        for at, step in enumerate(self.program.steps):
            if "mask0" in self.dense_call(at).kernel.operands and step.output in self.parts:
                attentions.setdefault(self.parts[step.output], []).append(at)
        return {part: every[0] for part, every in attentions.items() if len(every) == 1}

    def dense_call(self, at: int) -> Call:
        """Return the call of a step of the program."""
        return self.program.schedule.calls[self.program.schedule.first + at]

    def sparse_call(self, each: BlockSubstitution) -> Call:
        """Return the step of a substitution's part with its pattern."""
        at = self.steps[each.first]
        attributes = {**self.program.steps[at].attributes, "where": sparse_pattern(each).form}
        return trials.change_step(self.program, at, {}, attributes=attributes)

    def saved(self, each: BlockSubstitution) -> float:
        """Return the predicted seconds that a substitution's pattern saves."""
        dense, sparse = (
            self.prices.spent(partial(one.kernel.cost, one.bound, one.shape))
            for one in (self.dense_call(self.steps[each.first]), self.sparse_call(each))
        )
        return dense - sparse

    def left_out(self, each: BlockSubstitution, batch: Batch) -> float:
        """Return the share of the scores of a batch that a substitution leaves out."""
        whole, lengths = pattern(self.dense_call(self.steps[each.first]).bound), sentence_lengths(batch)
        return 1 - count_scores(sparse_pattern(each), lengths) / count_scores(whole, lengths)

    @property
    def passes(self) -> int:
        """The largest number of trials."""
        return int(WORK / (self.sample.rows * trials.half_pass(self.program)))

    @cached_property
    def sample(self) -> Batch:
        """The longest of the sentences that choose: `SENTENCES` of them, one for a large model."""
        return self.longest(SENTENCES if self.program.stored_bytes <= LARGE else 1)

    def longest(self, count: int) -> Batch:
        """Return so many of the sentences that choose, the longest ones."""
        return join_batches(sorted(self.workload.choose, key=lambda row: -row.rows)[:count])


def sparse_pattern(each: BlockSubstitution) -> Pattern:
    """Return the pattern of a substitution: the keys that each query of its attention sees."""
    assert each.where is not None
    return each.where


def sentence_lengths(batch: Batch) -> NDArray[np.int64]:
    """Return the tokens of each sentence."""
    return np.diff(batch.starts)
