"""The checks of `opmatrix verify`: every check of a certificate is repeated that a directory allows. No limit is taken
from the certificate: limits are in the code, stated figures are compared with those measured here, and the rest is
printed as a claim."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from os.path import exists
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from formats.core.epilogue import UNIT
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import FIELDS, Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import few_digits
from opmatrix.files.certified import LENGTHS_FIELD
from opmatrix.files.checkpoint import open_model
from opmatrix.files.loading import PROGRAM
from opmatrix.inference.cached import decoder_of
from opmatrix.inference.scores.text_pairs import TokenRow
from opmatrix.inference.text import LineReading, Parts, sentences
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import plainly
from rewrites.metrics.check_table import CLAIMED, FAILS, HOLDS, WRONG, Check, attempted, describe_error, judged
from rewrites.metrics.goals import BESIDE_CORPUS, MEASURES, Goal
from rewrites.metrics.neighbours import CorpusFiles
from rewrites.metrics.quality import JudgedProgram
from rewrites.metrics.reported import sha256_hex
from rewrites.search.search import search
from rewrites.verify import Errors, VerificationError, verify_graphs, verify_laws, verify_steps
from rewrites.verify.certificate import check_hash, describe_batch, measure_rounding, restored, versions
from rewrites.verify.differences import Change
from rewrites.verify.lengths import Steps, batches_at, describe_lengths, errors_at, format_errors, verify_lengths
from rewrites.verify.programs import EQUAL, ROUNDING, allowed_rounding, oracle
from rewrites.verify.routed import Beside, run_beside
from rewrites.verify.sessions.verified_sessions import Sessions, verify_sessions
from rewrites.workload.line_rows import batch_of_rows, read_rows
from rewrites.workload.resolve import adapter_of, find_origin, needed_model

Files = Mapping[str, Path | None]  # the files that goals are measured on, by measure
NO_FILES: Files = MappingProxyType({})
LIMITS = {"float64": EQUAL, "rounding": ROUNDING}  # limits that a certificate may state
STATED = 1.0  # every stated error is less than this share of the output
DRIFT = 1.25  # factor allowed on an error measured on another machine
NEGLIGIBLE = UNIT / 64  # programs that round less are taken as equal
FRESH = 64  # rows that the certificate does not contain


class RunChecks(NamedTuple):
    """The results that the run which writes a certificate has at hand: the names of the checks that it has already
    made, by the same functions, the certificate's inputs, the model's outputs for them, and the imported program."""

    done: frozenset[str]
    batches: Sequence[Batch]
    wanted: Sequence[np.ndarray]
    imported: Program


RUN_MAKES = frozenset(
    {
        "steps within bounds",
        "steps at other lengths",
        "sessions",
        "own rounding",
        "laws",
        "graphs of the laws",
        "errors at other lengths",
    }
)  # the checks that every run makes


class Alike:
    """A machine on which every kernel takes equally long, so that the imported program is the same on all machines."""

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Return one second for every kernel."""
        return 1.0


def of_directory(
    directory: Path, model: str | None = None, files: Files = NO_FILES, own: Path | None = None
) -> list[Check]:
    """Return the checks of a saved program, with the checkpoint that is passed or that the program names, and the
    files that its goals were measured on, by measure. Raises InputError if there is no program or checkpoint, and for
    a wrong file."""
    if not exists(directory / PROGRAM):
        Program.load(directory, laws=own)
    try:
        program = Program.load(directory, laws=own)
    except InputError as error:
        return [Check("files", describe_error(error), "a whole program with its own certificate", FAILS)]
    place = find_origin(program) if model is None else model
    here = place is not None
    loaded = Check("files", f"{len(program.constants)} constants, {len(program.steps)} steps", "their hash", HOLDS)
    named = [Check("model", f"{place}{'' if model else ', as the program says'}", "", CLAIMED)] if here else []
    same_files(program, files)
    operator = open_model(str(place), adapter_of(program)).operator(program.pooled) if here else None
    return [loaded, *named, *checks(program, operator, files)]


def checks(
    program: Program, model: Operator | None = None, files: Files = NO_FILES, made: RunChecks | None = None
) -> Iterator[Check]:
    """Yield every check of a program and its certificate; with the model, the checks that need the oracle too, and
    with the files of its goals, these. A run that writes the certificate passes the results that it has at hand as
    `made`; the checks that it has done are left out."""
    done = frozenset[str]() if made is None else made.done
    if not (certificate := program.meta.get("certificate")):
        yield Check("certificate", "none", "a program that was verified carries one", FAILS)
        return
    yield judged("program", certificate["program"], program.hash, certificate["program"] == program.hash)
    yield from limits(certificate)
    stated = StatedErrors.of(certificate["verified"])
    yield from statements(certificate["verified"], stated.error, stated.exact)
    absent = "" if made is not None else describe_absent(program)
    try:
        batches = input_batches(certificate["inputs"], absent, made)
    except WRONG as error:
        yield Check("inputs", describe_error(error), "their hash", FAILS)
        return
    shown = (
        f"{len(certificate['inputs'])} batches, "
        f"{sum(len(row) for batch in certificate['inputs'] for row in batch['tokens'])} rows"
    )
    if absent and certificate["inputs"]:
        yield Check("inputs", shown, absent, CLAIMED)
    else:
        yield judged("inputs", shown, "their hash", bool(batches))
    lengths, listed, told = certificate.get(LENGTHS_FIELD, []), list_errors(certificate["verified"]), set[Hashable]()
    again: dict[str, Callable[[], Check]] = {
        "steps within bounds": lambda: steps("steps within bounds", program, batches, told)
    }
    if lengths and batches:
        again["steps at other lengths"] = lambda: at_lengths(program, batches[0], lengths)
    if batches and decoder_of(program):
        again["sessions"] = lambda: sessions(program, batches[0], lengths)
    again["own rounding"] = lambda: rounding(program, batches, certificate["own"], stated.error)
    again["laws"] = lambda: judged("laws", f"{verify_laws(EXACT_LAWS)['laws']} hold", "all", True)
    for what, check in again.items():
        if absent and what != "laws":
            yield Check(what, "", absent, CLAIMED)
        elif what not in done:
            yield attempted(what, check)
    yield from of_model(program, model, batches, stated, told, made)
    if listed and "errors at other lengths" not in done:
        yield attempted("errors at other lengths", lambda: errors(program, model, batches[0], certificate, listed))
    yield from of_goals(
        program, model, 0.0 if stated.exact else stated.error, list_goals(certificate["verified"]), files
    )
    yield from claims(certificate)


def describe_absent(program: Program) -> str:
    """Describe the matrices that a program reads of its batch and that no certificate holds; empty if it reads none."""
    schedule = program.schedule
    fields = [field for field in least_limits(schedule.calls) if field not in FIELDS]
    read = [
        f"{kind} {name}"
        for kind, several in (("input", schedule.spaced), ("relation", schedule.elsewhere), ("field", fields))
        for name in several
    ]
    return f"it reads {', '.join(read)} of the batch, which no certificate holds" if read else ""


def input_batches(kept: Sequence[Mapping[str, Any]], absent: str, made: RunChecks | None) -> Sequence[Batch]:
    """Return the batches of a certificate; empty if a program reads inputs that they lack. Raises VerificationError if
    their hash differs, or if a run has verified other batches."""
    for batch in kept:
        check_hash(batch)
    if made is None:
        return [] if absent else [restored(batch) for batch in kept]
    if [*map(describe_batch, made.batches)] != [*kept]:
        raise VerificationError(3, "certificate", "its inputs differ from the verified ones")
    return made.batches


def check_certificates(programs: Iterable[Program], model: Operator, made: RunChecks) -> None:
    """Make every check of `opmatrix verify` on programs, before they are called verified. Raises VerificationError,
    which names the check that fails."""
    for program in programs:
        for check in checks(program, model, made=made):
            if check.verdict == FAILS:
                raise VerificationError(
                    3, "certificate", f"{check.what} fails", found=check.found, allowed=check.allowed
                )


# ---- checks that need no model


def limits(kept: Mapping[str, Any]) -> Iterator[Check]:
    """Check that the limits of a certificate are no wider than those of the code."""
    for name, most in LIMITS.items():
        limit = kept["bounds"].get(name)
        yield judged(f"limit of {name}", few_digits(limit), f"at most {most:g}", is_magnitude(limit) and limit <= most)


def statements(verified: Mapping[str, object], stated: object, exact: bool) -> Iterator[Check]:
    """Check that the statements of a certificate agree with one another and with the limits of the code."""
    if stated is not None or not exact:
        yield judged("stated error", few_digits(stated), f"below {STATED:g}", is_magnitude(stated) and stated < STATED)
    if (error := search_for(verified, "float64")) is not None:
        worst = error.get("worst_row") if isinstance(error, Mapping) else None
        yield judged(
            "float64 error, as it was found",
            few_digits(worst),
            f"at most {EQUAL:g}",
            is_magnitude(worst) and worst <= EQUAL,
        )
    if isinstance(measured := verified.get("error"), Mapping) and stated is not None:
        held_out = measured.get("relative")
        yield judged(
            "error on held-out rows, as it was found",
            few_digits(held_out),
            "at most the stated one",
            is_magnitude(held_out) and is_magnitude(stated) and held_out <= stated,
        )


def steps(what: str, program: Program, batches: Sequence[Batch], told: set[Hashable]) -> Check:
    """Check every kernel against its float64 meaning on the same operands, and on telling ones."""
    result = verify_steps(program, batches, told)
    bounds = ", ".join(
        f"{name} {kernel['allowed']:.1g}" for name, kernel in result["kernels"].items() if kernel["nearest"]
    )
    return judged(
        what,
        f"{result['count']} steps, the nearest at {result['nearest']:.2g} of its bound",
        f"1; bounds of what they give: {bounds}",
        result["nearest"] <= 1,
    )


def at_lengths(program: Program, sentences: Batch, lengths: Sequence[Sequence[int]]) -> Check:
    """Check every kernel against its float64 meaning, and whole runs, on batches of other lengths."""
    batches = tuple(map(tuple, lengths))
    result = verify_lengths(program, batches_at(batches, sentences), Steps.at(batches, [program]))
    return judged(
        "steps at other lengths",
        f"{len(lengths)} batches, {describe_lengths(lengths)}, the nearest at {result['nearest']:.2g} of its bound",
        "1",
        result["nearest"] <= 1,
    )


def sessions(program: Program, sentences: Batch, lengths: Sequence[Sequence[int]]) -> Check:
    """Check attention over pages, forks, rewinds and windows against whole texts, on every number of threads."""
    seen = Sessions.of(lengths)
    holds = verify_sessions(program, sentences, seen)
    return judged(
        "sessions",
        f"{seen.rows} rows of texts of up to {seen.longest} tokens, over caches of "
        f"{' and '.join(seen.numbers)}, on {' and '.join(map(str, seen.threads))} threads, the nearest at "
        f"{seen.nearest:.2g} of its bound",
        "1",
        holds and seen.nearest <= 1,
    )


def rounding(program: Program, batches: Sequence[Batch], then: float, stated: object) -> Check:
    """Check the rounding of all kernels together: it is near the certificate's figure, up to differences of machines,
    and within the error allowed to the whole program."""
    now = measure_rounding(program, batches)
    most = ROUNDING * stated if is_magnitude(stated) and stated < STATED else STATED
    near = max(now, then) <= ROUNDING * max(min(now, then), NEGLIGIBLE)
    return judged(
        "own rounding",
        f"{now:.2g}",
        f"within {ROUNDING:g} times of {then:.2g}, at most {most:.2g}",
        near and now <= most,
    )


# ---- checks that need the model


@dataclass(frozen=True)
class StatedErrors:
    """The errors that a certificate states of its program."""

    error: object  # relative error of the whole program; None where none is stated
    sentence: object  # error of the worst sentence; None where none is stated
    exact: bool  # the program follows by exact laws alone

    @classmethod
    def of(cls, verified: Mapping[str, object]) -> "StatedErrors":
        """Return the errors that are among the statements of a certificate."""
        return cls(
            search_for(verified, "stated"), search_for(verified, "sentence"), bool(search_for(verified, "imported"))
        )

    @property
    def limit(self) -> float | None:
        """The stated error as a limit; None where it is no error below STATED."""
        return self.error if is_magnitude(self.error) and self.error < STATED else None

    @property
    def limit_text(self) -> str:
        """The limit as it is printed."""
        return "nothing that was stated" if self.limit is None else f"{self.limit:.3g}, as stated"


def of_model(
    program: Program,
    model: Operator | None,
    batches: Sequence[Batch],
    stated: StatedErrors,
    told: set[Hashable],
    made: RunChecks | None = None,
) -> Iterator[Check]:
    """Yield the checks of the steps of the imported program; of the error against the oracle on the certificate's rows
    and on fresh rows; and of the graphs of the laws. `told` are the kinds of steps that were checked on telling
    operands."""
    if model is None:
        yield from claim_errors(stated, f"it needs {needed_model(program)}")
        yield Check("graphs of the laws", "", f"they need {needed_model(program)}", CLAIMED)
        return
    absent = "" if made is not None else describe_absent(program)
    if absent:
        yield from claim_errors(stated, absent)
        yield attempted("graphs of the laws", lambda: graphs(model))
        return
    imported = import_program(model) if made is None else made.imported
    beside = BesideModel(program, model, imported, batches, None if made is None else made.wanted, stated)
    if made is None:  # a run has checked its steps with those of the front
        yield attempted("steps of the import", lambda: steps("steps of the import", imported, batches, told))
    yield attempted("error against the model", beside.check_error)
    if stated.sentence is not None:
        yield attempted("worst sentence against the model", beside.check_worst_sentence)
    if made is not None:
        return  # a run has judged more rows than the fresh ones
    yield attempted(f"error on {FRESH} other rows", beside.check_fresh_error)
    yield attempted("graphs of the laws", lambda: graphs(model))


def claim_errors(stated: StatedErrors, lacking: str) -> Iterator[Check]:
    """Yield the stated errors as claims, for want of what a check needs."""
    if stated.sentence is not None:
        yield Check("worst sentence against the model", f"stated {few_digits(stated.sentence)}", lacking, CLAIMED)
    yield Check("error against the model", f"stated {few_digits(stated.error)}", lacking, CLAIMED)


@dataclass(frozen=True)
class BesideModel:
    """A program beside the model that it computes: the imported program, the batches of the certificate, the model's
    rows for them where they are at hand, and the stated errors."""

    program: Program
    model: Operator
    imported: Program
    batches: Sequence[Batch]
    wanted: Sequence[np.ndarray] | None
    stated: StatedErrors

    def run(self, batches: Sequence[Batch], wanted: Sequence[np.ndarray] | None = None) -> Beside:
        """Run the program and the model on batches."""
        return run_beside(self.program, self.model, batches, wanted, exact=self.stated.exact)

    def check_error(self) -> Check:
        """Check the error on the batches of the certificate."""
        what, beside = "error against the model", self.run(self.batches, self.wanted)
        if self.stated.exact:
            return self.judge_rounding(what, self.batches, beside)
        off, limit = Errors.of(beside.found, beside.alone).relative, self.stated.limit
        return judged(what, f"{off:.3g}", self.stated.limit_text, limit is not None and off <= limit)

    def check_fresh_error(self) -> Check:
        """Check the error on rows that the certificate does not contain. That of an approximate program is stated for
        another kind of text, so it is a claim."""
        what, batches = f"error on {FRESH} other rows", [fresh(self.program, self.model)]
        beside = self.run(batches)
        if self.stated.exact:
            return self.judge_rounding(what, batches, beside)
        off = Errors.of(beside.found, beside.alone).relative
        allowed = f"{self.stated.limit_text} for text of the kind that it was made for"
        return Check(what, f"{off:.3g}", allowed, CLAIMED)

    def judge_rounding(self, what: str, batches: Sequence[Batch], beside: Beside) -> Check:
        """Judge the error of an exact program by the rounding of the imported one."""
        off = Errors.of(beside.found, beside.wanted).relative
        first = run_beside(self.imported, self.model, batches, beside.wanted, exact=True)
        base = Errors.of(first.found, first.wanted).relative
        most = allowed_rounding(off, base, self.model, batches)
        return judged(
            what, f"{off:.3g}", f"{most:.3g}, {ROUNDING:g} times what the imported program rounds", off <= most
        )

    def check_worst_sentence(self) -> Check:
        """Check the error of the worst sentence of the certificate's batches."""
        beside = self.run(self.batches, self.wanted)
        off = max(
            float(Change.of(rows, wanted, self.program.starts(batch)).each.max())
            for batch, rows, wanted in zip(self.batches, beside.found, beside.alone, strict=True)
        )
        stated = self.stated.sentence
        return judged(
            "worst sentence against the model",
            f"{off:.3g}",
            f"{few_digits(stated)}, as stated",
            is_magnitude(stated) and off <= stated,
        )


def list_errors(verified: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the errors at other lengths that a certificate states; entries of another form are skipped."""
    entry = verified.get(LENGTHS_FIELD)
    stated = entry.get("errors") if isinstance(entry, Mapping) else None
    return [error for error in stated if isinstance(error, Mapping)] if isinstance(stated, list) else []


def errors(
    program: Program,
    model: Operator | None,
    sentences: Batch,
    kept: Mapping[str, Any],
    told: Sequence[Mapping[str, object]],
) -> Check:
    """Check the errors against the model at other lengths: they are near the certificate's, up to differences of
    machines."""
    if model is None:
        return Check("errors at other lengths", format_errors(told), f"it needs {needed_model(program)}", CLAIMED)
    every: dict[tuple[object, object], Sequence[int]] = {
        (len(lengths), sum(lengths)): lengths for lengths in kept[LENGTHS_FIELD]
    }
    batches = batches_at([every[error["sentences"], error["rows"]] for error in told], sentences)
    exact = bool(search_for(kept["verified"], "imported"))
    [now] = errors_at([(program, exact)], model, batches, oracle(model, batches))
    spare = ROUNDING * max(kept["own"], NEGLIGIBLE)
    holds = all(holds_near(error, then, spare, exact) for error, then in zip(now, told, strict=True))
    return judged("errors at other lengths", format_errors(now), f"then {format_errors(told)}", holds)


def holds_near(found: Mapping[str, float], then: Mapping[str, object], spare: float, exact: bool) -> bool:
    """True if an error at another length is about as large as the certificate states: along the routes of the program,
    and as both run. The latter is not compared if rounding sends rows of an exact program elsewhere, as another
    machine may round otherwise."""
    elsewhere = exact and found["relative"] != found["along"]
    pairs = [(found["along"], then.get("along", then["relative"]))]  # 0.20.0 and before state only one
    if not elsewhere:
        pairs.append((found["relative"], then["relative"]))
    return all(is_magnitude(before) and now <= DRIFT * before + spare for now, before in pairs)


def import_program(model: Operator) -> Program:
    """Return the imported program: a kernel for each operator, weights stored as they are."""
    return search(model, (), Alike(), counted([FRESH], patterns(model)), methods=plainly, fusion=False).program({})[0]


def fresh(program: Program, model: Operator) -> Batch:
    """Return about FRESH rows of sentences, or pairs of them for a model that scores, that ship with opmatrix and were
    not used for calibration; drawn tokens for a program without a tokenizer."""
    vocabulary = int(model.into.cols)
    if program.meta.get("tokenizer"):
        reading, room, rows = LineReading(skip_bad=True), FRESH, list[TokenRow]()
        for row, kinds in read_rows(program.tokenizer, Parts.of(sentences()).state, reading, program.scoring):
            if row and max(row) < vocabulary and len(row) <= room:
                rows.append((row, kinds))
                room -= len(row)
        if rows:
            return batch_of_rows(rows)
    rng = np.random.default_rng(0)
    return Batch([rng.integers(0, vocabulary, 8) for _ in range(FRESH // 8)])


def graphs(model: Operator) -> Check:
    """Check every class, fact and kernel of the graphs of the model's parts."""
    result = verify_graphs((part.template for by_state in parts(model) for part in by_state.values()), EXACT_LAWS)
    return judged("graphs of the laws", f"{result['graphs']} hold", "all", True)


# ---- the goals that it was certified for


def list_goals(verified: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the goals that a certificate states; entries of another form are skipped."""
    entries = verified.get("goals")
    return [goal for goal in entries if isinstance(goal, Mapping)] if isinstance(entries, list) else []


def same_files(program: Program, files: Files) -> None:
    """Raise InputError for a file that no goal was measured on, or that differs from the file of its goal."""
    certificate = program.meta.get("certificate")
    known = (
        {str(goal.get("goal")): goal.get("of") for goal in list_goals(certificate["verified"])} if certificate else {}
    )
    for name, file in files.items():
        if file is None or name in BESIDE_CORPUS or is_of_another(name, known):
            continue
        option = MEASURES[name].needs.split()[0]
        of = next((of for goal, of in known.items() if goal.startswith(name) and isinstance(of, Mapping)), None)
        if of is None:
            raise InputError(f"{option} {file}: the program was certified for no {name}: leave it out")
        if (now := sha256_hex(file)) != of.get("sha256"):
            raise InputError(
                f"{option} {file}: its SHA-256 is {now}, the {name} was measured on "
                f"{of.get('sha256')!s:.64}: give that file"
            )


def is_of_another(name: str, known: Mapping[str, object]) -> bool:
    """True if no goal of this measure is known, but one of another measure of the same file."""
    option = MEASURES[name].needs.split()[0]
    alike = {measure.name for measure in MEASURES.values() if measure.needs.startswith(option)}
    stated = {alias for alias in alike if any(goal.startswith(alias) for goal in known)}
    return bool(stated) and name not in stated


def of_goals(
    program: Program, model: Operator | None, stated: object, said: Sequence[Mapping[str, object]], files: Files
) -> Iterator[Check]:
    """Yield a check of every goal that the certificate states, measured again on its file and compared with the
    imported program, which equals the model but for rounding."""
    base: dict[str, float] = {}
    for goal in said:
        yield attempted(f"goal {goal.get('goal')!s:.40}", partial(of_goal, program, model, stated, goal, files, base))


def of_goal(
    program: Program,
    model: Operator | None,
    stated: object,
    said: Mapping[str, object],
    files: Files,
    base: dict[str, float],
) -> Check:
    """Check one goal; `base` collects the figures of the imported program by measure."""
    goal = Goal.parsed(str(said.get("goal")))
    what, name, then = f"goal {goal}", goal.measure.name, f"{few_digits(said.get('value'), 5)}, as it was found"
    if goal.measure.figure is None:
        candidate = JudgedProgram({"stored otherwise": 1}, stated if is_magnitude(stated) else inf, {})
        holds = goal.kept(candidate, candidate) or said.get("kept") is False
        return judged(what, f"stated {few_digits(stated)}", str(goal), holds)
    if (file := files.get(name)) is None or model is None:
        needed = f"{goal.measure.needs}, its file" if file is None else "--model MODEL"
        return Check(what, then, f"it needs {needed}", CLAIMED)
    beside = {option: files.get(option) for option in BESIDE_CORPUS}
    for option, path in beside.items():
        if (wanted := digest_of(said.get(option))) != (None if path is None else sha256_hex(path)):
            return Check(what, then, f"it needs {f'its --{option} FILE' if wanted else f'no --{option}'}", CLAIMED)
    files_read = CorpusFiles(file, **beside) if goal.measure.beside else file
    goal = replace(goal, data=goal.measure.read(files_read))
    meta = {key: entry for key, entry in program.meta.items() if key != "certificate"}
    imported = import_program(model).replace(**meta)
    goal = goal.beside(imported)
    if name not in base:
        base[name] = goal.figure("the imported program", imported)
    candidate = JudgedProgram({}, 0.0, goal.figures("it", program))
    first = JudgedProgram({}, 0.0, {name: base[name]})
    holds = goal.kept(candidate, first) or said.get("kept") is False
    stated, before = goal.stated(candidate), said.get("stated")
    if stated:
        mean = before.get("mean") if isinstance(before, Mapping) else None
        holds = holds and is_magnitude(mean) and abs(stated["mean"] - mean) <= goal.measure.moved
        then += f"; {stated['mean']:.5g} on lines that chose nothing, {few_digits(mean, 5)}, as it was found"
    return judged(what, f"{goal.value(candidate, first):.5g}, {then}", str(goal), holds)


def digest_of(named: object) -> object:
    """Return the SHA-256 of a file that a certificate names, or None."""
    return named.get("sha256") if isinstance(named, Mapping) else None


# ---- claims


def claims(kept: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the claims that cannot be checked here."""
    if isinstance(laws := kept["verified"].get("laws"), Mapping) and laws.get("own"):
        yield Check(
            "laws of the user's own",
            ", ".join(map(str, laws["own"])),
            "their file is not part of the directory",
            CLAIMED,
        )
    yield Check("float64 with unrounded weights", "", "the directory holds rounded ones", CLAIMED)
    now = versions()
    changed = [
        f"{name} {then}, now {now.get(name, 'none')}"
        for name, then in kept["versions"].items()
        if then != now.get(name)
    ]
    yield Check(
        "made by", ", ".join(changed) or "these versions", f"on {kept['machine']}, seed {kept['seed']}", CLAIMED
    )


def search_for(tree: object, key: str) -> object:
    """Return the first value of that name in nested mappings; None if there is none."""
    if not isinstance(tree, Mapping):
        return None
    if key in tree:
        return tree[key]
    return next((match for value in tree.values() if (match := search_for(value, key)) is not None), None)


def is_magnitude(value: object) -> TypeGuard[float]:
    """True for a finite number from 0 on; no boolean is one."""
    return (type(value) is int or type(value) is float) and isfinite(value) and value >= 0
