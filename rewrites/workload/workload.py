"""The workload that programs are optimized for, and the rows that methods are fitted to, programs chosen by, and errors
stated from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import open_regular
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.cached_terms import check_sessions
from opmatrix.inference.embed import name_line
from opmatrix.inference.embed import read_lines as read
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import LINES, LineReading, Parts, Tokenizer, read_lines, sentences
from opmatrix.runtime.measure import Seconds, measure, peak
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.egraph.layers import Model, find_vocabulary, outputs
from rewrites.lowering.mixed import Mix, Sized, list_batches
from rewrites.lowering.mixed import describe_mix as said_of
from rewrites.lowering.phased import Generation
from rewrites.lowering.price import TimeModel
from rewrites.search.sparse_attention import LONG, sparser_patterns
from rewrites.workload.decoded import measure_requests, measured_peak, planned_peak
from rewrites.workload.line_rows import batch_of_rows, line_batches, read_rows
from rewrites.workload.phases import Tell
from rewrites.workload.stated import MIN_SENTENCES, uncovered

OUTPUTS = "pooled", "rows"  # one row a text, or one row a token
PROBE = 16  # most sentences of `probe`
SAMPLED_LINES, SCANNED = 1024, 65536  # most lines that rows come from; lines of a file read
FIT, CHOOSE, VERIFY, STATE = 4096, 1024, 2048, 32768  # most rows, of whole sentences: VERIFY go through the
# float64 oracle
TEXTS = 16  # most texts of joined lines: 4 choose, 8 state
CHECKED_ROWS = 64
CALIBRATE = 8192  # approximate rows that removal is fitted to


def drawn_from(text: str | None, file: str | None) -> tuple[Sequence[str], str, bool]:
    """Return the lines that rows are built from, their description, and whether they are the shipped ones: the lines of
    `text`, else of the `file` of texts if it has enough to estimate the spread of single sentences, else the shipped
    ones."""
    if text:
        return read_lines(text), f"the lines of {text}", False
    if file is None:
        return sentences(), "the shipped sentences", True
    lines = [*islice(read(Path(file), open_regular), SCANNED)]
    if len(lines) >= 2 * MIN_SENTENCES:
        return lines, f"the lines of {file}", False
    return sentences(), f"the shipped sentences: {file} has fewer than {2 * MIN_SENTENCES} lines", True


def divide_lines(lines: Sequence[str]) -> Parts[str]:
    """Return at most SAMPLED_LINES of some lines, spread over all, in parts."""
    return Parts.of(lines[:: -(-len(lines) // SAMPLED_LINES)])


def texts(tokenizer: Tokenizer, lines: Sequence[str], tokens: int) -> Iterator[list[int]]:
    """Yield consecutive lines joined to texts of `tokens` tokens."""
    held: list[str] = []
    count, reading = 0, LineReading(truncate=True, skip_bad=True)
    for line in lines:
        [row] = tokenizer.rows([line], reading)
        if not row:
            continue
        held.append(line)
        count += len(row)
        if count >= tokens and len(text := tokenizer.cut(tokenizer.pooling.prompt + "\n".join(held), tokens)) == tokens:
            yield text
            held, count = [], 0


def read_parts(
    tokenizer: Tokenizer, lines: Sequence[str], ours: bool, scoring: Scoring | None = None
) -> tuple[list[Batch], str]:
    """Return lines as rows, some to fit, to choose, to state; and the changes made to them, in words. A model that
    scores reads each line as a pair with the next one of its part. With `ours`, lines that the user did not give, a
    line with too many tokens is truncated, and one that cannot be read left out. Raises InputError if that leaves a
    part empty, and for a line of the user's that cannot be read."""
    reading = LineReading(truncate=True, skip_bad=True) if ours else LineReading()
    parts = [[row for row in read_rows(tokenizer, part, reading, scoring) if row[0]] for part in divide_lines(lines)]
    if not all(parts):
        raise InputError(f"{reading.fault}: give lines that it can read: --text FILE")
    done = [f"{reading.truncated} of them cut to {tokenizer.most} tokens"] * bool(reading.truncated)
    done += [f"{len(reading.skipped)} left out, as the tokenizer cannot read them"] * bool(reading.skipped)
    batches = [next(batch_of_rows(rows).pieces(most)) for rows, most in zip(parts, (FIT, CHOOSE, STATE), strict=True)]
    return batches, "".join(f", {note}" for note in done) if ours else ""


def typical(tokenizer: Tokenizer, file: Path, scoring: Scoring | None = None) -> tuple[Batch, str]:
    """Return the batch of median rows among those that `embed` builds from a file of texts, or `score` from pairs of
    its lines, and its description. The file is read twice, so that only one batch of it is held."""

    def made() -> Iterator[Batch]:
        """Read the file and yield its batches."""
        return line_batches(tokenizer, read(file, open_regular), LineReading(partial(name_line, file)), scoring)

    rows = [batch.rows for batch in made()]
    middle = int(np.argsort(rows, kind="stable")[len(rows) // 2])
    [timed] = islice(made(), middle, middle + 1)
    which = f", batch {middle + 1} of {len(rows)}" if len(rows) > 1 else ""
    kind = "texts" if scoring is None else "pairs of lines"
    return timed, f"{len(timed)} {kind}, {timed.rows} tokens of {file}{which}"


def check_alone(tokens: int, file: str | None, mix: Mix | None, generation: Generation | None) -> None:
    """Raise InputError for a number of tokens with another workload beside it."""
    if file is None and mix is None and generation is None:
        return
    request = generation or (file if mix is None else "of shares")
    raise InputError(f"--tokens {tokens} --workload {request}: give one of them, as both declare the timed batch")


def sentence_length(checkpoint: Checkpoint, tokens: int | None) -> int:
    """Return the tokens of a timed sentence, by default 128 or as many as the model takes. Raises InputError for a
    length that it has no positions for."""
    limit = checkpoint.positions
    length = min(128, limit) if tokens is None else tokens
    if not 1 <= length <= limit:
        raise InputError(f"--tokens {length}: {checkpoint.name} takes 1 to {limit} tokens")
    return length


def join_lines(tokenizer: Tokenizer, lines: Sequence[str], tokens: int) -> tuple[Batch, Batch] | None:
    """Return lines joined to texts of `tokens` tokens, some to choose and some to state; None for short texts, and if
    there are too few lines."""
    if tokens < LONG:
        return None
    joined = [*islice(texts(tokenizer, lines, tokens), TEXTS)]
    if len(joined) < LINES:
        return None
    parts = Parts.of(joined)
    return Batch(parts.choose), Batch(parts.state)


def check_tokens(checkpoint: Checkpoint, *batches: Batch) -> None:
    """Raise InputError for a token that the model has no row for."""
    vocabulary = checkpoint.said["vocab_size"]
    if (highest := max(batch.tokens.max() for batch in batches)) >= vocabulary:
        raise InputError(
            f"{checkpoint.vocabulary}: it gives token {highest}, but the model has "
            f"{vocabulary} (vocab_size): take the tokenizer that belongs to the weights"
        )


@dataclass(frozen=True)
class Workload:
    """`timed` is the batch whose seconds and bytes count. Methods are fitted to `fit`, programs are chosen by `choose`,
    single methods by the first part of it, `probe`. Errors are stated from `state`, which shares no line with these,
    and the float64 oracle reads the first part of it, `verify`. `like` describes the source of the lines, `lengths` are
    their least and most tokens, `uncovered` are the kinds of text that they lack."""

    timed: Batch
    fit: Batch
    choose: Batch
    probe: Batch
    state: Batch
    verify: Batch
    name: str
    like: str
    uncovered: tuple[str, ...] | None = None  # None: there is no tokenizer
    text: str | None = None  # its source, so that it can be rebuilt
    tokens: int | None = None
    file: str | None = None
    mix: tuple[tuple[float, Batch], ...] = ()  # batches with shares; `timed` then has the most rows
    generation: Generation | None = None  # a request; `timed` is then its prompts
    given: Batch | None = None  # the user's batch: its error is a lower bound of the stated
    # one, as random rows have other shares of its tokens

    @property
    def shares(self) -> tuple[tuple[float, Batch], ...]:
        """The batches whose seconds count, with their shares."""
        return self.mix or ((1.0, self.timed),)

    @property
    def few(self) -> Batch:
        """Rows that every step is checked on: the first sentences of `verify`, long ones truncated."""
        first = next(self.verify.pieces(CHECKED_ROWS))
        if first.alone or np.diff(first.starts).max() <= LONG:
            return first
        return Batch([row.tokens[:LONG] for row in first], [row.kinds[:LONG] for row in first])

    @property
    def lengths_run(self) -> list[Batch]:
        """The batches whose lengths programs meet: the timed ones, and a request's whole texts."""
        run_batches = [batch for _, batch in self.shares]
        if self.generation is None:
            return run_batches
        return [*run_batches, Batch([np.resize(self.timed.tokens, self.generation.length)])]

    def measured(self, programs: Mapping[str, Program], rounds: int, progress: Tell) -> Seconds:
        """Return the seconds of programs, round by round: the mean of the batches by their shares; for a request, in
        sessions."""
        if self.generation:
            return measure_requests(programs, self.generation, self.timed.tokens, rounds, progress)
        shares, batches = zip(*self.shares, strict=True)
        return measure(programs, batches, rounds, progress=progress, shares=shares)

    def peak_bytes(self, program: Program) -> float:
        """Return the planned bytes of a call; for a request those of its prompts' step, caches among them."""
        return planned_peak(program, self.generation) if self.generation else program.peak_bytes(self.timed)

    def peak_measured(self, program: Program, runs: int) -> float:
        """Return the most bytes that a call holds; for a request those of its prompts' step, caches among them."""
        if self.generation:
            return measured_peak(program, self.generation, self.timed.tokens, runs)
        return peak(program, self.timed, runs)

    def running(self, machine: TimeModel, held: float = inf, cached: bool = True) -> TimeModel | Sequence[TimeModel]:
        """Return the machine's model for the way in which the batch runs, of a model with `held` bytes of numbers; a
        list for several batches, or phases of a request."""
        if self.generation:
            return [Running.of(machine, phase.starts, held) for phase in self.generation.phases((), cached)]
        machines = [Running.of(machine, batch.starts, held) for _, batch in self.shares]
        return machines if self.mix else machines[0]

    @property
    def rows(self) -> int:
        """The rows of the timed batch."""
        return self.timed.rows

    def extents(self, model: Model, cached: bool = True) -> Sized:
        """Return the sizes of the timed batch, with a model's patterns, sparser ones, inputs and relations; for several
        batches, with their shares; for a request, the phases, in sessions if `cached`, else as whole texts."""
        seen, ports, relations = collect_needs(*outputs(model).values())
        if self.generation:
            return self.generation.phases(seen, cached)
        every = dict.fromkeys(
            [*seen, *(sparser for one in seen for sparser in sparser_patterns(one, np.diff(self.timed.starts)))]
        )
        sized = [(share, batch.extents(every, ports, relations)) for share, batch in self.shares]
        return sized if self.mix else sized[0][1]

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the shortest and of the longest line that an error is stated from."""
        counts = np.diff(self.state.starts)
        return int(counts.min(initial=self.rows)), int(counts.max(initial=0))

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        text: str | None = None,
        tokens: int | None = None,
        file: str | None = None,
        mix: Mix | None = None,
        generation: Generation | None = None,
    ) -> "Workload":
        """Return the workload of a checkpoint. Rows come from the lines of `text`, or of `file`, or the shipped
        sentences; if the timed text is long, and there are enough lines, they are joined to texts of its length. The
        timed batch is that of a `mix`, or of `embed` on the texts of `file`, or one sentence of `tokens` tokens, or a
        request for generated text; by default the whole text, or 128 tokens. Raises InputError for a length that the
        model has no positions for."""
        if tokens is not None:
            check_alone(tokens, file, mix, generation)
        if generation:
            check_speaks(checkpoint, generation)
        length = sentence_length(checkpoint, tokens)
        tokenizer = checkpoint.tokenizer()
        if file is not None:
            timed, name = typical(tokenizer, Path(file), checkpoint.scoring)
        lines, like, ours = drawn_from(text, file)
        (fit, choose, state), changed = read_parts(tokenizer, lines, ours, checkpoint.scoring)
        like += changed
        mixed: tuple[tuple[float, Batch], ...] = ()
        if mix is not None:
            mixed, name, timed = of_shares(mix, checkpoint.positions, checkpoint.name, fit.tokens)
        elif generation:
            timed, name = Batch([np.resize(fit.tokens, length) for length in generation.prompts]), generation.said
        elif file is None and text and tokens is None:
            timed = batch_of_rows(read_rows(tokenizer, lines, LineReading(), checkpoint.scoring))
            name = f"{len(lines)} {'lines' if checkpoint.scoring is None else 'pairs of lines'} of {text}"
        elif file is None:
            timed, name = Batch([np.resize(fit.tokens, length)]), f"one sentence of {length} tokens"
        probe = choose.sentences(0, min(PROBE, len(choose)))
        longest = generation.length if generation else int(np.diff(timed.starts).max())
        joined = join_lines(tokenizer, lines, longest) if file is None else None
        if joined is not None:
            choose, state = joined
            like += f", joined to texts of {longest} tokens"
        check_tokens(checkpoint, fit, choose, state, *(batch for _, batch in mixed or ((1.0, timed),)))
        return cls(
            timed,
            fit,
            choose,
            probe,
            state,
            next(state.pieces(VERIFY)),
            name,
            like,
            uncovered(tokenizer, fit, state, checkpoint.scoring),
            text,
            tokens,
            file,
            mixed,
            generation,
        )

    @classmethod
    def drawn(cls, model: Model, timed: Batch | Mix | Generation, seed: int = 0, sentences: int = 48) -> "Workload":
        """Return the workload of an operator without text: sentences of random tokens, as long as those of the timed
        batch, fit and verify it. Relations and matrices are never random, so a batch that has some serves for all."""
        vocabulary = find_vocabulary(model) or 1
        if isinstance(timed, Generation):
            for term in outputs(model).values():
                check_sessions(term)  # raises where no session can run the term
            drawn = np.random.default_rng(seed).integers(0, vocabulary, timed.length)
            workload = cls.drawn(model, Batch([drawn]), seed, sentences)
            prompts = Batch([np.resize(drawn, length) for length in timed.prompts])
            return replace(workload, timed=prompts, generation=timed, name=timed.said)
        if not isinstance(timed, Batch):
            mix, name, most = of_shares(timed, None, "the model", np.arange(vocabulary))
            return replace(cls.drawn(model, most, seed, sentences), mix=mix, name=name)
        if timed.alone:
            name = "the batch itself, as it has relations or matrices of its own"
            return cls(timed, timed, timed, timed, timed, timed, name, "the batch itself")
        rng, lengths = np.random.default_rng(seed), np.diff(timed.starts)

        def some(count: int) -> Batch:
            """Draw sentences of random tokens, as long as those of the timed batch."""
            return Batch([rng.integers(0, vocabulary, length) for length in rng.choice(lengths, count)])

        sentences = min(sentences, max(4, STATE // int(lengths.max())))
        half, judged = some(sentences // 2), some(sentences)
        probe, verify, fit = (next(batch.pieces(2 * FIT)) for batch in (half, judged, some(sentences)))
        name = f"{len(lengths)} sequences of random tokens"
        return cls(timed, fit, half, probe, judged, verify, name, "random tokens", given=next(timed.pieces(STATE)))


def calibration(
    file: str | Path,
    tokenizer: Tokenizer,
    workload: Workload,
    others: Sequence[str] = (),
    scoring: Scoring | None = None,
) -> Batch:
    """Return lines of a file, or pairs of them for a model that scores, spread over all of it, without those that
    choose programs, state errors, or are among `others`: so no line is both fitted to and judged by. Raises InputError
    if no line is left."""
    reading = LineReading(truncate=True, skip_bad=True)
    judged = {tuple(row.tokens.tolist()) for batch in (workload.choose, workload.state) for row in batch}
    judged |= {*map(tuple, tokenizer.rows(others, reading))} if others else set()
    lines = read_lines(file) if scoring is None else lines_apart(read_lines(file), workload)
    every = {tuple(row): kinds for row, kinds in read_rows(tokenizer, lines, reading, scoring)}
    rows = [([*row], kinds) for row, kinds in every.items() if row and row not in judged]
    if not rows:
        raise InputError(f"--calibrate {file}: all its lines also choose or judge programs: give other text")
    return batch_of_rows(rows[:: -(-sum(len(row) for row, _ in rows) // CALIBRATE)])


def lines_apart(lines: Sequence[str], workload: Workload) -> list[str]:
    """Return the lines that are in no pair that chooses programs or states errors."""
    parts = divide_lines(drawn_from(workload.text, workload.file)[0])
    judged = {*parts.choose, *parts.state}
    return [line for line in lines if line not in judged]


def check_output(output: str) -> None:
    """Raise InputError for an unknown kind of output."""
    if output not in OUTPUTS:
        raise InputError(f"--output {output}: it is one of {', '.join(OUTPUTS)}")


def of_shares(
    mix: Mix, limit: int | None, model: str, tokens: NDArray[np.integer]
) -> tuple[tuple[tuple[float, Batch], ...], str, Batch]:
    """Return the batches of a mix with their shares, a description, and the batch with the most rows; lengths are
    filled with these tokens. Raises InputError for an invalid mix, and for a sentence longer than the model's limit."""

    def filled(lengths: Sequence[int]) -> Batch:
        """Fill sentences of these lengths with the tokens, again and again."""
        return Batch(np.split(np.resize(tokens, sum(lengths)), np.cumsum(lengths)[:-1]))

    shares = list_batches(mix, filled)
    longest = max(int(np.diff(batch.starts).max()) for _, batch in shares)
    if limit is not None and longest > limit:
        raise InputError(f"workload: a sentence of {longest} tokens: {model} takes 1 to {limit} tokens")
    if any(batch.alone for _, batch in shares):
        raise InputError("workload: a batch with relations or matrices of its own has no share: give it alone")
    return shares, said_of(shares), max((batch for _, batch in shares), key=lambda batch: batch.rows)


def check_speaks(checkpoint: Checkpoint, asked: Generation) -> None:
    """Raise InputError if a model generates no text, or has too few positions for the request."""
    if not checkpoint.speaks:
        raise InputError(
            f"workload {asked}: {checkpoint.name} is not a language model "
            f"({checkpoint.architecture or 'its config names none'}): give sentences, such as 1x16"
        )
    if asked.length > checkpoint.positions:
        raise InputError(
            f"workload {asked}: prompt and answer have {asked.length} tokens: {checkpoint.name} takes 1 "
            f"to {checkpoint.positions} tokens (max_position_embeddings)"
        )


def draw_workload(workload: Workload | Batch | Mix | Generation, model: Model) -> Workload:
    """Return a workload: itself, or a batch, several with shares, or a request for generated text, with random rows
    beside it."""
    return workload if isinstance(workload, Workload) else Workload.drawn(model, workload)
