"""Verification of sessions against the whole text. Attention on the texts of a script is compared in float64, and at
every number of threads to the bit; caches are compared to the bit; and the steps of a program over caches in float64
with those over whole sentences."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.host.threads import in_threads, numbers_of_threads, on_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import HELD, SLOTS
from opmatrix.algebra.batch.signature import HELD_NUMBERS, widened
from opmatrix.inference.cached import decoder_of
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.verify.differences import ratio
from rewrites.verify.failure import VerificationError
from rewrites.verify.programs import EQUAL
from rewrites.verify.sessions.miniature import EVEN_SHARES, SPREAD_SHARES, Miniature, find_attention
from rewrites.verify.sessions.session_script import CachedRows, GivenRows, SessionScript, StepRows

UNLISTED_LENGTH = 1024  # rows of texts if a certificate lists no lengths
PROMPT_WORK = 7e10  # multiplications of a prompt, at most
READ_TOKENS = 5  # tokens on which a program's steps are read in float64
STATE_TOKENS, STATE_STEPS = 80, (1, 5, 64)  # tokens of a text whose states are verified; rows of its steps
STATE_BACK = 79, 70, 64, 40  # rows that forks go back to: beside the last, and after, behind and before a kept state
AnyRows = NDArray[np.float32 | np.float64]
SESSION_ERRORS = InputError, ValueError, TypeError, LookupError  # errors that a session may raise
COMPARED_WHOLE = 512  # rows of a prompt up to which all are compared


@dataclass
class Sessions:
    """The sessions that were checked, whichever program has them: on texts of at most `longest` tokens, over caches of
    these number types, on these numbers of threads. `rows` counts the compared rows, `nearest` is the largest share of
    its bound that an error takes."""

    longest: int
    numbers: tuple[str, ...] = tuple(HELD_NUMBERS)
    threads: tuple[int, ...] = field(default_factory=numbers_of_threads)
    kinds: set[Hashable] = field(default_factory=set)
    rows: int = 0
    nearest: float = 0.0

    @classmethod
    def of(cls, lengths: Iterable[Sequence[int]]) -> "Sessions":
        """Create it for texts as long as the longest of these sentences."""
        return cls(max((n for batch in lengths for n in batch), default=UNLISTED_LENGTH))

    def described(self) -> dict[str, object]:
        """Return the record of it for a certificate."""
        return asdict(self) | {"kinds": len(self.kinds)}


class ScriptRows(NamedTuple):
    """The rows of a script that were compared, and the largest share of its bound that an error takes."""

    rows: int
    nearest: float


def verify_sessions(program: Program, sentences: Batch, sessions: Sessions) -> bool:
    """Verify the sessions of a program; False if no session can compute the program. Checks attention of each kind not
    yet checked, on a script of calls, and the program's steps over caches on a few tokens of these sentences. Raises
    VerificationError."""
    [computed] = verify_all_sessions([program], sentences, sessions)
    return computed


def verify_all_sessions(programs: Sequence[Program], sentences: Batch, sessions: Sessions) -> list[bool]:
    """Verify the sessions of programs: see `verify_sessions`. Several checks run at once."""
    checks = SessionChecks.of(programs, sentences, sessions)
    checks.note(in_threads(checks.calls()))
    return checks.decodes


@dataclass(frozen=True, eq=False)
class SessionChecks:
    """The checks of the sessions of programs: each program with the one that computes it over caches, if there is
    one."""

    programs: Sequence[tuple[Program, Program | None]]
    sentences: Batch
    sessions: Sessions

    @classmethod
    def of(cls, programs: Iterable[Program], sentences: Batch, sessions: Sessions) -> "SessionChecks":
        """Return the checks of programs, on a few tokens of these sentences."""
        return cls([(program, decoder_of(program)) for program in programs], sentences, sessions)

    @property
    def decodes(self) -> list[bool]:
        """True for each program that a session can compute."""
        return [decoder is not None for _, decoder in self.programs]

    def calls(self) -> Iterator[Callable[[], ScriptRows]]:
        """Yield checks that may run at once."""
        for program, decoder in self.programs:
            if decoder is not None:
                yield from list_checks(program, decoder, self.sentences, self.sessions)

    def note(self, compared: Iterable[ScriptRows]) -> None:
        """Record the results of the checks."""
        for rows, nearest in compared:
            self.sessions.rows += rows
            self.sessions.nearest = max(self.sessions.nearest, nearest)


def list_checks(
    program: Program, decoder: Program, sentences: Batch, sessions: Sessions
) -> Iterator[Callable[[], ScriptRows]]:
    """Yield the checks of a program's sessions: of its steps over caches, and of each kind of attention that none was
    yielded for before."""
    if not program.state:
        yield partial(verify_steps_over_caches, program, decoder, sentences, sessions.longest)
    if decoder.schedule.carried:
        yield partial(verify_states, decoder, sentences, sessions.longest)
    for attention, tables in find_attention(program):
        if (kind := attention.kind(tables)) in sessions.kinds:
            continue
        sessions.kinds.add(kind)
        length = int(min(sessions.longest, max(COMPARED_WHOLE, (PROMPT_WORK / attention.work) ** 0.5)))
        for shares in (EVEN_SHARES, SPREAD_SHARES):
            miniature = attention.miniature(shares, length, tables)
            for number in sessions.numbers:
                yield partial(verify_script, miniature, number, decoder, sessions.threads)


def borders_of(decoder: Program) -> set[int]:
    """Return the rows at which some kernel over caches takes another path."""
    return {
        border
        for call in decoder.schedule.calls
        if {HELD, SLOTS} & {*call.kernel.relations(call.bound)}
        for border in call.kernel.borders(call.bound)
    }


def verify_script(miniature: Miniature, number: str, decoder: Program, threads: Sequence[int]) -> ScriptRows:
    """Run a script on caches of a number type: it must have the same bits on any of these numbers of threads, every row
    within its bound, and in every cache the rows it is to hold. Raises VerificationError."""
    first: SessionScript | None = None
    compared = ScriptRows(0, 0.0)
    for count in threads:
        borders = borders_of(decoder) | borders_of(miniature.program.decode_with(number))
        script = SessionScript(miniature, number, [*borders])
        try:
            with on_threads(count):
                script.run()
        except SESSION_ERRORS as error:
            raise VerificationError(
                3, str(miniature.attention), f"a session refuses a legal step: {error}", number=number
            ) from error
        if first is None:
            first = script
            compared = ScriptRows(sum(len(step.rows) for step in script.observed), compare_rows(script, number))
        else:
            compare_session_threads(first, script, threads[0], count)
        for cached in script.kept:
            compare_cache(script, cached, number)
    return compared


def compare_session_threads(first: SessionScript, other: SessionScript, one: int, count: int) -> None:
    """Compare the bits of a script on two numbers of threads. Raises VerificationError."""
    for mine, theirs in zip(first.observed, other.observed, strict=True):
        if np.array_equal(mine.rows, theirs.rows, equal_nan=True):
            continue
        raise VerificationError(
            3,
            str(first.miniature.attention),
            f"a session on {count} threads has other bits than on {one}",
            rows=len(mine.rows),
            position=mine.first,
        )


def compare_rows(script: SessionScript, number: str) -> float:
    """Compare every row with the whole text, in float64; of long prompts some rows. Returns the largest share of its
    bound that an error takes. Raises VerificationError."""
    nearest, by_text = 0.0, dict[int, list[GivenRows]]()
    for given_rows in script.observed:
        by_text.setdefault(given_rows.text, []).append(given_rows)
    watched = np.array([*script.watched()])
    for text, observed in by_text.items():
        at, rows = positions_of(observed, watched)
        places, where = np.unique(at, return_inverse=True)
        meant = script.miniature.meant(script.texts[text], places, number)
        meant = meant._replace(numbers=meant.numbers[where], allowed=meant.allowed[where])
        results = rows.reshape(meant.numbers.shape)
        nearest = max(
            nearest,
            meant.compared(
                f"{script.miniature.attention} in a session over caches of {number}", results, int(at.max()) + 1
            ),
        )
    return nearest


def positions_of(observed: Sequence[GivenRows], watched: NDArray[np.int64]) -> tuple[NDArray[np.int64], StepRows]:
    """Return the positions that are compared, and the rows there."""
    at, rows = list[NDArray[np.int64]](), list[NDArray[np.float32]]()
    for given_rows in observed:
        places = np.arange(given_rows.first, given_rows.first + len(given_rows.rows))
        if len(places) > COMPARED_WHOLE:
            places = watched[(watched >= places[0]) & (watched <= places[-1])]
        at.append(places)
        rows.append(given_rows.rows[places - given_rows.first])
    return np.concatenate(at), np.concatenate(rows)


def compare_cache(script: SessionScript, kept: CachedRows, number: str) -> None:
    """Compare the rows of a sequence in a cache, to the bit. Raises VerificationError."""
    names = [port.name for port in script.program.inputs]
    for name, port in zip("kv", names, strict=True):
        if port != kept.cache:
            continue
        wanted = script.miniature.held(name, script.texts[kept.text][: kept.length], number)
        rows = widened(kept.rows)
        if not np.array_equal(rows, wanted[kept.length - len(rows) :]):
            raise VerificationError(
                3,
                str(script.miniature.attention),
                "a cache does not hold the rows of its sequence",
                cache=kept.cache,
                number=number,
                rows=kept.length,
            )


def verify_states(decoder: Program, sentences: Batch, longest: int) -> ScriptRows:
    """Compare the rows of a text in steps of several sizes, each by a fork that goes on while its origin parts, and of
    forks that go back to rows beside kept states and between them, with those of one step, to the bit. Raises
    VerificationError."""
    limits = longest, STATE_TOKENS, least_limits(decoder.schedule.calls).get("positions", STATE_TOKENS)
    text = np.resize(sentences.tokens, min(limits))
    session = decoder.start((2 + 2 * len(STATE_STEPS)) * STATE_TOKENS, rewinds=len(text))
    first = session.join()
    whole = session.step({first: text})
    for count in STATE_STEPS:
        sequence, rows = session.join(), list[StepRows]()
        for at in range(0, len(text), count):
            fork = session.fork(sequence)
            rows.append(np.array(session.step({fork: text[at : at + count], sequence: text[:1]})[:-1], np.float32))
            session.leave(sequence)
            sequence = fork
        session.leave(sequence)
        compare_states(decoder, np.concatenate(rows), whole, "in steps", count)
    backs = [at for at in STATE_BACK if at < len(text)]
    for at in backs:
        fork = session.fork(first)
        session.rewind(fork, at)
        compare_states(decoder, session.step({fork: text[at:]}), whole, "after a rewind", len(text) - at)
        session.leave(fork)
    return ScriptRows(len(STATE_STEPS) * len(whole) + sum(min(len(text) - at, len(whole)) for at in backs), 0.0)


def compare_states(decoder: Program, rows: AnyRows, whole: AnyRows, doing: str, count: int) -> None:
    """Compare the last rows of a text, as many as there are of both, to the bit. Raises VerificationError."""
    shared = min(len(rows), len(whole))
    if not np.array_equal(rows[-shared:], whole[-shared:], equal_nan=True):
        model = str(decoder.meta.get("model", "program"))
        raise VerificationError(3, model, f"its states give other bits {doing} than at once", rows=count)


def verify_steps_over_caches(program: Program, decoder: Program, sentences: Batch, longest: int) -> ScriptRows:
    """Compare the steps of a program over caches, on a prompt and the rows that follow, with those over whole
    sentences. Both are in float64, with numbers as they are stored and no rounding on the way, and so without a bound.
    Raises VerificationError."""
    limits = longest, READ_TOKENS, least_limits(program.schedule.calls).get("positions", READ_TOKENS)
    text = np.resize(sentences.tokens, min(limits))
    wanted = program.exact(Batch([text]), rounded=False)
    session = decoder.start(READ_TOKENS, exact=True)
    held, cut = session.join(), len(text) // 2
    for part in filter(len, (text[:cut], text[cut:])):
        batch, rows = session.batch({held: part})
        output = session.exactly(batch, rounded=False)
        session.commit(rows)
    off = float(ratio(np.linalg.norm(output - wanted[-len(output) :]), np.linalg.norm(wanted[-len(output) :])))
    if not off <= EQUAL:
        raise VerificationError(
            3,
            str(decoder.meta.get("model", "program")),
            "its steps over caches, evaluated in float64, differ from its output on the whole text",
            relative=off,
            allowed=EQUAL,
        )
    return ScriptRows(0, 0.0)
