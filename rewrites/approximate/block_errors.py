"""What each block substitution of a model costs in error: of layers left out and side by side by the model's own
factors; of attention that sees fewer keys by the exact program with another pattern in one step."""
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import count_scores
from opmatrix.algebra.oracles import DenseReading, apply_factor, entered
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Operator
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.approximate import trials
from rewrites.approximate.trials import LARGE, SHORTEST, WORK, FloatRows, Trials, join_batches, sample, try_steps
from rewrites.egraph.attempts import Attempts
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices
from rewrites.search.sparse_attention import sparse_attention_candidates
from rewrites.search.substitutions import LAYER_DROPPED, BlockSubstitution, list_substitutions
from rewrites.verify.differences import difference
from rewrites.workload.workload import Workload

ROUNDING = 2.0 ** -24                                       # relative: what float32 does not tell from nothing
PROBED = 8                                                  # sentences, of which the longest says first what may serve
FARTHER = 4.0                                               # times the error allowed, that the stream may be off there
PASSES = 300                                                # of a trial by kernels: what a pass of the oracle takes
REPAID = 0.01                                               # of a program's seconds that a pattern in all parts saves
ALIKE = 0.9                                                 # of the share of scores that a pattern leaves out when
                                                            # timed, and leaves out where errors are measured
SENTENCES = 2                                               # that errors are measured on
PartFactors = Sequence[Sequence[Operator]]                       # the factors of every part of a model


def with_error(tried: BlockSubstitution, change: float, most: float) -> list[BlockSubstitution]:
    """A substitution with the error of a relative change of the output; nothing where that is more than `most`."""
    return [replace(tried, error=max(ROUNDING, change) ** 2)] if change <= most else []


@dataclass
class BlockTrials(Trials[BlockSubstitution]):
    """Layers left out and side by side, tried on the rows of a batch by the factors of a model's parts. Of a large
    program only layers may be left out, as the residual stream says at once which."""

    groups: PartFactors
    program: Program
    batch: Batch
    attempts: Attempts = field(default_factory=Attempts)

    def candidates(self) -> list[BlockSubstitution]:
        """Every substitution that is tried."""
        small = self.program.stored_bytes <= LARGE
        return [each for each in list_substitutions(self.groups) if small or each.what == LAYER_DROPPED]

    def measure_errors(self, most: float) -> list[BlockSubstitution]:
        """The candidates that change the output by at most `most`, relative. One sentence says first which may: those
        that leave the residual stream near what it was."""
        tried = self.candidates() if most else []
        if tried and not self.batch.alone:
            longest = max(islice(self.batch, PROBED), key=lambda each: each.rows)
            stream = residual_stream(self.groups, Batch([longest.tokens[:SHORTEST]], [longest.kinds[:SHORTEST]]))
            tried = [each for each in tried if self.may_serve(each, stream, most)]
        if not tried: return []
        return measure_blocks(self.groups, tried, sample(self.program, self.batch, PASSES * len(tried)), most,
                              self.attempts)

    def may_serve(self, each: BlockSubstitution, stream: Sequence[DenseReading], most: float) -> bool:
        """True where a substitution leaves the residual stream near what it was; False where it fails."""
        change = inf
        with self.attempts.leave_out(each):
            change = relative_change(each.factors, stream[each.first], stream[each.last + 1])
        return change <= FARTHER * most


def measure_blocks(groups: PartFactors, tried: Sequence[BlockSubstitution], batch: Batch,
                   most: float, attempts: Attempts) -> list[BlockSubstitution]:
    """Substitutions with what each alone does to the output on a batch; those whose relative change is at most
    `most`."""
    stream, measured = residual_stream(groups, batch), list[BlockSubstitution]()
    for each in tried:
        with attempts.leave_out(each):
            factors = [*each.factors, *chain(*groups[each.last + 1:])]
            measured += with_error(each, relative_change(factors, stream[each.first], stream[-1]), most)
    return measured


def residual_stream(groups: PartFactors, batch: Batch) -> list[DenseReading]:
    """What enters on a batch, then what every part makes of it."""
    stream = [entered(groups[0][0], batch, dtype=np.float32)]
    for group in groups: stream.append(apply_factors(group, stream[-1]))
    return stream


def relative_change(factors: Sequence[Operator], x: DenseReading, wanted: DenseReading) -> float:
    """How far what factors make of a value is from what is wanted, relative."""
    return difference(apply_factors(factors, x).array, wanted.array)


def apply_factors(factors: Iterable[Operator], x: DenseReading) -> DenseReading:
    """What factors make of a value, one after another."""
    for factor in factors: x = apply_factor(factor, x)
    return x


@dataclass
class SparseAttentionTrials(Trials[BlockSubstitution]):
    """Attention that sees fewer keys, tried in an exact program, for what its workload times: `parts` has the part of
    each step's output. Errors are measured on sentences that choose, and will be stated of those that state."""

    groups: PartFactors
    program: Program
    parts: Mapping[str, int]
    prices: Prices | Mean
    workload: Workload
    attempts: Attempts = field(default_factory=Attempts)

    def candidates(self) -> list[BlockSubstitution]:
        """Every substitution that pays, and whose error is known."""
        return self.measurable

    @cached_property
    def measurable(self) -> list[BlockSubstitution]:
        """Substitutions that pay, and leave out enough of the scores of the text that errors are measured on."""
        judges, timed = (self.workload.choose, self.workload.state), self.workload.timed
        return [each for each in self.paying
                if min(self.left_out(each, batch) for batch in judges) >= ALIKE * self.left_out(each, timed)]

    def measure_errors(self, most: float) -> list[BlockSubstitution]:
        """The candidates that change the output by at most `most`, relative, in the order of the program's steps: the
        steps before one are done once for all."""
        measured = list[BlockSubstitution]()
        if not most or not (tried := self.candidates()): return measured
        wanted, values = self.program.run(self.sample), list[FloatRows | None]()
        for each in sorted(tried[:max(len(self.steps), self.passes)], key=lambda one: self.steps[one.first]):
            at = self.steps[each.first]
            for _ in self.program.schedule.walk(self.sample, values, at): pass
            with self.attempts.leave_out(each):
                [rows] = try_steps(self.program, {at: [self.sparse_call(each)]}, [*values], self.sample)
                measured += with_error(each, difference(rows, wanted), most)
        return measured

    @cached_property
    def paying(self) -> list[BlockSubstitution]:
        """The substitutions whose pattern saves enough of the program's seconds, were it in every part."""
        if self.workload.timed.alone or self.workload.generation: return []     # sessions see all rows
        tried = sparse_attention_candidates(self.groups, sentence_lengths(self.workload.timed))
        if not (known := [each for each in tried if each.first in self.steps]): return []
        least = REPAID * self.prices.spent(self.program.schedule.cost)
        return [each for each in known if self.saved(each) * len(self.steps) >= least]

    @property
    def unmeasurable(self) -> str:
        """Why no error is known of what would pay: text is too short to say it. Empty where that is not so."""
        if not self.paying or self.measurable: return ""
        judged, timed = (int(sentence_lengths(batch).max()) for batch in (self.workload.state, self.workload.timed))
        return (f"attention sees all keys: texts that errors are stated of have {judged} tokens at most, which does "
                f"not say what fewer keys change in {timed}: give --text with longer lines, or with more of them")

    @cached_property
    def steps(self) -> dict[int, int]:
        """The number of the step of each part that has one attention whose kernel takes any pattern."""
        found: dict[int, list[int]] = {}
        for at, step in enumerate(self.program.steps):
            if "mask0" in self.dense_call(at).kernel.operands and step.output in self.parts:
                found.setdefault(self.parts[step.output], []).append(at)
        return {part: every[0] for part, every in found.items() if len(every) == 1}

    def dense_call(self, at: int) -> Call:
        """A step of the program."""
        return self.program.schedule.calls[self.program.schedule.first + at]

    def sparse_call(self, each: BlockSubstitution) -> Call:
        """The step of a substitution's part with its pattern."""
        at = self.steps[each.first]
        attributes = {**self.program.steps[at].attributes, "where": sparse_pattern(each).form}
        return trials.change_step(self.program, at, {}, attributes=attributes)

    def saved(self, each: BlockSubstitution) -> float:
        """Predicted seconds that a substitution's pattern saves."""
        dense, sparse = (self.prices.spent(partial(one.kernel.cost, one.bound, one.shape))
                         for one in (self.dense_call(self.steps[each.first]), self.sparse_call(each)))
        return dense - sparse

    def left_out(self, each: BlockSubstitution, batch: Batch) -> float:
        """The share of scores that a substitution leaves out of those of a batch."""
        whole, lengths = pattern(self.dense_call(self.steps[each.first]).bound), sentence_lengths(batch)
        return 1 - count_scores(sparse_pattern(each), lengths) / count_scores(whole, lengths)

    @property
    def passes(self) -> int:
        """How many trials there may be."""
        return int(WORK / (self.sample.rows * trials.half_pass(self.program)))

    @cached_property
    def sample(self) -> Batch:
        """The longest of the sentences that choose; one for a large model."""
        count = SENTENCES if self.program.stored_bytes <= LARGE else 1
        return join_batches(sorted(self.workload.choose, key=lambda row: -row.rows)[:count])


def sparse_pattern(each: BlockSubstitution) -> Pattern:
    """Whom the attention of a substitution sees."""
    assert each.where is not None
    return each.where


def sentence_lengths(batch: Batch) -> NDArray[np.int64]:
    """Tokens of each sentence."""
    return np.diff(batch.starts)
