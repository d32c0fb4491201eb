"""What `opmatrix verify` does: every check of a certificate is done again that a directory allows. No limit is taken
from the certificate: limits are in the code, what it states is compared with what is found here, and the rest is
printed as a claim."""
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from opmatrix.inference.text import LineReading, Parts, sentences
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import plainly
from rewrites.metrics.check_table import CLAIMED, FAILS, HOLDS, WRONG, Check, attempted, describe_error, judged
from rewrites.metrics.goals import MEASURES, Goal
from rewrites.metrics.quality import JudgedProgram
from rewrites.metrics.reported import sha256_hex
from rewrites.search.search import search
from rewrites.verify import Errors, VerificationError, verify_graphs, verify_laws, verify_steps
from rewrites.verify.certificate import check_hash, describe_batch, measure_rounding, restored, versions
from rewrites.verify.differences import Change
from rewrites.verify.lengths import Steps, batches_at, describe_lengths, errors_at, format_errors, verify_lengths
from rewrites.verify.programs import EQUAL, ROUNDING, allowed_rounding, oracle
from rewrites.verify.routed import run_beside
from rewrites.verify.sessions.verified_sessions import Sessions, verify_sessions
from rewrites.workload.resolve import adapter_of, find_origin

Files = Mapping[str, Path | None]                           # that goals are measured on, by measure
NO_FILES: Files = MappingProxyType({})
LIMITS = {"float64": EQUAL, "rounding": ROUNDING}           # that a certificate may have been made within
STATED = 1.0                                                # no program is stated to be off by as much as its output
DRIFT = 1.25                                                # times what an error was found to be, on another machine
NEEDS_MODEL = "it needs --model MODEL"
NEGLIGIBLE = UNIT / 64                                      # programs that round less are alike
FRESH = 64                                                  # rows that no certificate chose


class RunChecks(NamedTuple):
    """Results that the run which writes a certificate has at hand: the names of the checks that it has made itself, by
    the same functions, the certificate's inputs, what the model gives for them, and the imported program."""

    done: frozenset[str]
    batches: Sequence[Batch]
    wanted: Sequence[np.ndarray]
    imported: Program


RUN_MAKES = frozenset({"steps within bounds", "steps at other lengths", "sessions", "own rounding", "laws",
                  "graphs of the laws", "errors at other lengths"})       # what every run makes


class Alike:
    """A machine on which every kernel takes as long: one kernel for each operator is one program on all."""

    def seconds(self, kernel: str, **sizes: float) -> float: return 1.0


def of_directory(directory: Path, model: str | None = None, files: Files = NO_FILES,
                 own: Path | None = None) -> list[Check]:
    """The checks of a saved program, with the checkpoint that is given or named, and the files that its goals were
    measured on, by measure. Raises InputError where there is no program or checkpoint, and for another file."""
    if not exists(directory / PROGRAM): Program.load(directory, laws=own)
    try: program = Program.load(directory, laws=own)
    except InputError as error:
        return [Check("files", describe_error(error), "a whole program with its own certificate", FAILS)]
    place = find_origin(program) if model is None else model
    here = place is not None
    loaded = Check("files", f"{len(program.constants)} constants, {len(program.steps)} steps", "their hash", HOLDS)
    named = [Check("model", f"{place}{'' if model else ', as the program says'}", "", CLAIMED)] if here else []
    same_files(program, files)
    operator = open_model(str(place), adapter_of(program)).operator(program.pooled) if here else None
    return [loaded, *named, *checks(program, operator, files)]


def checks(program: Program, model: Operator | None = None, files: Files = NO_FILES,
           made: RunChecks | None = None) -> Iterator[Check]:
    """Every check of a program and its certificate; with the model, those that need the oracle, and with the files of
    its goals, these. A run that writes the certificate leaves out those that it has just `made`."""
    done = frozenset[str]() if made is None else made.done
    if not (kept := program.meta.get("certificate")):
        yield Check("certificate", "none", "a program that was verified carries one", FAILS)
        return
    yield judged("program", kept["program"], program.hash, kept["program"] == program.hash)
    yield from limits(kept)
    stated, exact = search_for(kept["verified"], "stated"), bool(search_for(kept["verified"], "imported"))
    yield from statements(kept["verified"], stated, exact)
    absent = "" if made is not None else describe_absent(program)
    try: batches = input_batches(kept["inputs"], absent, made)
    except WRONG as error:
        yield Check("inputs", describe_error(error), "their hash", FAILS)
        return
    said = f"{len(kept['inputs'])} batches, {sum(len(row) for each in kept['inputs'] for row in each['tokens'])} rows"
    if absent and kept["inputs"]: yield Check("inputs", said, absent, CLAIMED)
    else: yield judged("inputs", said, "their hash", bool(batches))
    lengths, listed, told = kept.get(LENGTHS_FIELD, []), list_errors(kept["verified"]), set[Hashable]()
    again: dict[str, Callable[[], Check]] = {
        "steps within bounds": lambda: steps("steps within bounds", program, batches, told)}
    if lengths and batches: again["steps at other lengths"] = lambda: at_lengths(program, batches[0], lengths)
    if batches and decoder_of(program): again["sessions"] = lambda: sessions(program, batches[0], lengths)
    again["own rounding"] = lambda: rounding(program, batches, kept["own"], stated)
    again["laws"] = lambda: judged("laws", f"{verify_laws(EXACT_LAWS)['laws']} hold", "all", True)
    for what, check in again.items():
        if absent and what != "laws": yield Check(what, "", absent, CLAIMED)
        elif what not in done: yield attempted(what, check)
    yield from of_model(program, model, batches, stated, exact, kept["verified"], told, made)
    if listed and "errors at other lengths" not in done:
        yield attempted("errors at other lengths", lambda: errors(program, model, batches[0], kept, listed))
    yield from of_goals(program, model, 0.0 if exact else stated, list_goals(kept["verified"]), files)
    yield from claims(kept)


def describe_absent(program: Program) -> str:
    """The matrices that a program reads of its batch and that no certificate holds, in words; empty where it reads
    none."""
    schedule = program.schedule
    fields = [field for field in least_limits(schedule.calls) if field not in FIELDS]
    read = [f"{kind} {each}" for kind, several in (("input", schedule.spaced), ("relation", schedule.elsewhere),
                                                   ("field", fields)) for each in several]
    return f"it reads {', '.join(read)} of the batch, which no certificate holds" if read else ""


def input_batches(kept: Sequence[Mapping[str, Any]], absent: str, made: RunChecks | None) -> Sequence[Batch]:
    """The batches of a certificate; none where a program reads what is absent from them. Raises VerificationError where
    their hash is another one, or a run has verified other ones."""
    for each in kept: check_hash(each)
    if made is None: return [] if absent else [restored(each) for each in kept]
    if [*map(describe_batch, made.batches)] != [*kept]:
        raise VerificationError(3, "certificate", "its inputs are not those that were verified")
    return made.batches


def check_certificates(programs: Iterable[Program], model: Operator, made: RunChecks) -> None:
    """Check all of programs that `opmatrix verify` checks, before they are called verified. Raises VerificationError,
    which names the check that fails."""
    for program in programs:
        for check in checks(program, model, made=made):
            if check.verdict == FAILS:
                raise VerificationError(3, "certificate", f"{check.what} fails", found=check.found,
                                        allowed=check.allowed)


# ---- what needs no model

def limits(kept: Mapping[str, Any]) -> Iterator[Check]:
    """A certificate may have been made within narrower limits, and no wider ones."""
    for name, most in LIMITS.items():
        given = kept["bounds"].get(name)
        yield judged(f"limit of {name}", few_digits(given), f"at most {most:g}", is_magnitude(given) and given <= most)


def statements(verified: Mapping[str, object], stated: object, exact: bool) -> Iterator[Check]:
    """What it says must at least agree with itself and with the limits of the code."""
    if stated is not None or not exact:
        yield judged("stated error", few_digits(stated), f"below {STATED:g}", is_magnitude(stated) and stated < STATED)
    if (found := search_for(verified, "float64")) is not None:
        worst = found.get("worst_row") if isinstance(found, Mapping) else None
        yield judged("float64 error, as it was found", few_digits(worst), f"at most {EQUAL:g}",
                     is_magnitude(worst) and worst <= EQUAL)
    if isinstance(said := verified.get("error"), Mapping) and stated is not None:
        held_out = said.get("relative")
        yield judged("error on held-out rows, as it was found", few_digits(held_out), "at most the stated one",
                     is_magnitude(held_out) and is_magnitude(stated) and held_out <= stated)


def steps(what: str, program: Program, batches: Sequence[Batch], told: set[Hashable]) -> Check:
    """Every kernel against its float64 meaning on the same operands, and on telling ones."""
    found = verify_steps(program, batches, told)
    bounds = ", ".join(f"{name} {each['allowed']:.1g}" for name, each in found["kernels"].items() if each["nearest"])
    return judged(what, f"{found['count']} steps, the nearest at {found['nearest']:.2g} of its bound",
                  f"1; bounds of what they give: {bounds}", found["nearest"] <= 1)


def at_lengths(program: Program, sentences: Batch, lengths: Sequence[Sequence[int]]) -> Check:
    """Every kernel against its float64 meaning, and whole runs, on batches of other lengths."""
    kept = tuple(map(tuple, lengths))
    found = verify_lengths(program, batches_at(kept, sentences), Steps.at(kept, [program]))
    return judged("steps at other lengths", f"{len(lengths)} batches, {describe_lengths(lengths)}, the nearest at "
                  f"{found['nearest']:.2g} of its bound", "1", found["nearest"] <= 1)


def sessions(program: Program, sentences: Batch, lengths: Sequence[Sequence[int]]) -> Check:
    """Attention over pages, forks, rewinds and windows against whole texts, on every number of threads."""
    found = Sessions.of(lengths)
    holds = verify_sessions(program, sentences, found)
    return judged("sessions", f"{found.rows} rows of texts of up to {found.longest} tokens, over caches of "
                  f"{' and '.join(found.numbers)}, on {' and '.join(map(str, found.threads))} threads, the nearest at "
                  f"{found.nearest:.2g} of its bound", "1", holds and found.nearest <= 1)


def rounding(program: Program, batches: Sequence[Batch], then: float, stated: object) -> Check:
    """What all kernels round together: as much as was found then, up to what machines differ by, and no more than the
    whole program may be off."""
    now = measure_rounding(program, batches)
    most = ROUNDING * stated if is_magnitude(stated) and stated < STATED else STATED
    near = max(now, then) <= ROUNDING * max(min(now, then), NEGLIGIBLE)
    return judged("own rounding", f"{now:.2g}", f"within {ROUNDING:g} times of {then:.2g}, at most {most:.2g}",
                  near and now <= most)


# ---- what needs the model

def of_model(program: Program, model: Operator | None, batches: Sequence[Batch], stated: object, exact: bool,
             verified: Mapping[str, object], told: set[Hashable], made: RunChecks | None = None) -> Iterator[Check]:
    """The steps of the imported program; the error against the oracle on the certificate's rows and on rows that it did
    not choose; the graphs of the laws. `told`: the kinds of steps that were looked at on telling operands."""
    single = search_for(verified, "sentence")
    lacking = NEEDS_MODEL if model is None else describe_absent(program) if made is None else ""
    if lacking:
        if single is not None:
            yield Check("worst sentence against the model", f"stated {few_digits(single)}", lacking, CLAIMED)
        yield Check("error against the model", f"stated {few_digits(stated)}", lacking, CLAIMED)
        if model is None: yield Check("graphs of the laws", "", "they need --model MODEL", CLAIMED)
        else: yield attempted("graphs of the laws", lambda: graphs(model))
    if lacking or model is None: return
    near = None if made is None else made.wanted
    imported = import_program(model) if made is None else made.imported

    def error(what: str, chosen: Sequence[Batch], judge: bool = True) -> Check:
        own = run_beside(program, model, chosen, near if chosen is batches else None, exact=exact)
        found = Errors.of(own.found, own.wanted if exact else own.alone).relative
        if not exact:
            said = f"{stated:.3g}, as stated" if is_magnitude(stated) and stated < STATED else "nothing that was stated"
            if not judge:
                return Check(what, f"{found:.3g}", f"{said} for text of the kind that it was made for", CLAIMED)
            return judged(what, f"{found:.3g}", said, is_magnitude(stated) and stated < STATED and found <= stated)
        first = run_beside(imported, model, chosen, own.wanted, exact=True)
        base = Errors.of(first.found, first.wanted).relative
        most = allowed_rounding(found, base, model, chosen)
        return judged(what, f"{found:.3g}", f"{most:.3g}, {ROUNDING:g} times what the imported program rounds",
                      found <= most)
    def worst() -> Check:
        own = run_beside(program, model, batches, near, exact=exact)
        found = max(float(Change.of(given, wanted, program.starts(batch)).each.max())
                    for batch, given, wanted in zip(batches, own.found, own.alone, strict=True))
        return judged("worst sentence against the model", f"{found:.3g}", f"{few_digits(single)}, as stated",
                      is_magnitude(single) and found <= single)
    if made is None:                                        # else its steps were looked at with those of the front
        yield attempted("steps of the import", lambda: steps("steps of the import", imported, batches, told))
    yield attempted("error against the model", lambda: error("error against the model", batches))
    if single is not None: yield attempted("worst sentence against the model", worst)
    if made is not None: return                             # it has judged more rows than these
    what = f"error on {FRESH} other rows"
    yield attempted(what, lambda: error(what, [fresh(program, model)], judge=False))
    yield attempted("graphs of the laws", lambda: graphs(model))


def list_errors(verified: Mapping[str, object]) -> list[Mapping[str, object]]:
    """What a certificate says of errors at other lengths: entries of other forms are none."""
    said = verified.get(LENGTHS_FIELD)
    found = said.get("errors") if isinstance(said, Mapping) else None
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def errors(program: Program, model: Operator | None, sentences: Batch, kept: Mapping[str, Any],
           told: Sequence[Mapping[str, object]]) -> Check:
    """How far it is from the model at other lengths: as much as was found then, up to what machines differ by."""
    if model is None: return Check("errors at other lengths", format_errors(told), NEEDS_MODEL, CLAIMED)
    every: dict[tuple[object, object], Sequence[int]] = {(len(each), sum(each)): each for each in kept[LENGTHS_FIELD]}
    batches = batches_at([every[each["sentences"], each["rows"]] for each in told], sentences)
    exact = bool(search_for(kept["verified"], "imported"))
    [now] = errors_at([(program, exact)], model, batches, oracle(model, batches))
    spare = ROUNDING * max(kept["own"], NEGLIGIBLE)
    holds = all(holds_near(found, then, spare, exact) for found, then in zip(now, told, strict=True))
    return judged("errors at other lengths", format_errors(now), f"then {format_errors(told)}", holds)


def holds_near(found: Mapping[str, float], then: Mapping[str, object], spare: float, exact: bool) -> bool:
    """Tell whether an error at another length is about what it was: along the routes of the program, and as both run,
    but for rows of an exact program that rounding sends elsewhere, which another machine may round otherwise."""
    elsewhere = exact and found["relative"] != found["along"]
    pairs = [(found["along"], then.get("along", then["relative"]))]         # 0.20.0 and before said one of the two
    if not elsewhere: pairs.append((found["relative"], then["relative"]))
    return all(is_magnitude(before) and now <= DRIFT * before + spare for now, before in pairs)


def import_program(model: Operator) -> Program:
    """The imported program: a kernel for each operator, weights as they are."""
    return search(model, (), Alike(), counted([FRESH], patterns(model)), methods=plainly, fusion=False).program({})[0]


def fresh(program: Program, model: Operator) -> Batch:
    """Sentences that ship and were not calibrated with, as many as there are rows; of a program without a tokenizer
    drawn ones."""
    vocabulary = int(model.into.cols)
    if program.meta.get("tokenizer"):
        rows: list[list[int]] = []
        for row in program.tokenizer.rows(Parts.of(sentences()).state, LineReading(skip_bad=True)):
            if row and max(row) < vocabulary and sum(map(len, rows)) + len(row) <= FRESH: rows.append(row)
        if rows: return Batch(rows)
    rng = np.random.default_rng(0)
    return Batch([rng.integers(0, vocabulary, 8) for _ in range(FRESH // 8)])


def graphs(model: Operator) -> Check:
    """Every class, fact and kernel of the graphs of the model's parts."""
    found = verify_graphs((part.template for by_state in parts(model) for part in by_state.values()), EXACT_LAWS)
    return judged("graphs of the laws", f"{found['graphs']} hold", "all", True)


# ---- the goals that it was certified for

def list_goals(verified: Mapping[str, object]) -> list[Mapping[str, object]]:
    """What a certificate says of goals: entries of other forms are none."""
    said = verified.get("goals")
    return [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []


def same_files(program: Program, files: Files) -> None:
    """Raises InputError for a file that no goal was measured on, or that is not the one that a goal was."""
    kept = program.meta.get("certificate")
    known = {str(each.get("goal")): each.get("of") for each in list_goals(kept["verified"])} if kept else {}
    for name, file in files.items():
        if file is None: continue
        option = MEASURES[name].needs.split()[0]
        of = next((of for goal, of in known.items() if goal.startswith(name) and isinstance(of, Mapping)), None)
        if of is None: raise InputError(f"{option} {file}: the program was certified for no {name}: leave it out")
        if (now := sha256_hex(file)) != of.get("sha256"):
            raise InputError(f"{option} {file}: its SHA-256 is {now}, the {name} was measured on "
                             f"{of.get('sha256')!s:.64}: give that file")


def of_goals(program: Program, model: Operator | None, stated: object, said: Sequence[Mapping[str, object]],
             files: Files) -> Iterator[Check]:
    """Every goal that it is said to keep, measured again on its file: against the imported program, which is the model
    but for rounding."""
    base: dict[str, float] = {}
    for each in said:
        yield attempted(f"goal {each.get('goal')!s:.40}", partial(of_goal, program, model, stated, each, files, base))


def of_goal(program: Program, model: Operator | None, stated: object, said: Mapping[str, object], files: Files,
            base: dict[str, float]) -> Check:
    """One of them; `base` keeps the figures of the imported program by measure."""
    goal = Goal.parsed(str(said.get("goal")))
    what, name, then = f"goal {goal}", goal.measure.name, f"{few_digits(said.get('value'), 5)}, as it was found"
    if goal.measure.figure is None:
        found = JudgedProgram({"stored otherwise": 1}, stated if is_magnitude(stated) else inf, {})
        holds = goal.kept(found, found) or said.get("kept") is False
        return judged(what, f"stated {few_digits(stated)}", str(goal), holds)
    if (file := files.get(name)) is None or model is None:
        needed = f"{goal.measure.needs}, its file" if file is None else "--model MODEL"
        return Check(what, then, f"it needs {needed}", CLAIMED)
    goal = replace(goal, data=goal.measure.read(file))
    if name not in base:
        meta = {key: entry for key, entry in program.meta.items() if key != "certificate"}
        base[name] = goal.figure("the imported program", import_program(model).replace(**meta))
    found, first = (JudgedProgram({}, 0.0, {name: figure}) for figure in (goal.figure("it", program), base[name]))
    holds = goal.kept(found, first) or said.get("kept") is False
    return judged(what, f"{goal.value(found, first):.5g}, {then}", str(goal), holds)


# ---- what is only said

def claims(kept: Mapping[str, Any]) -> Iterator[Check]:
    """What nothing here can tell."""
    if isinstance(laws := kept["verified"].get("laws"), Mapping) and laws.get("own"):
        yield Check("laws of the user's own", ", ".join(map(str, laws["own"])), "their file is not part of the "
                                                                                "directory", CLAIMED)
    yield Check("float64 with unrounded weights", "", "the directory holds rounded ones", CLAIMED)
    now = versions()
    changed = [f"{name} {then}, now {now.get(name, 'none')}" for name, then in kept["versions"].items()
               if then != now.get(name)]
    yield Check("made by", ", ".join(changed) or "these versions", f"on {kept['machine']}, seed {kept['seed']}",
                CLAIMED)


def search_for(tree: object, key: str) -> object:
    """The first value of that name in nested mappings."""
    if not isinstance(tree, Mapping): return None
    if key in tree: return tree[key]
    return next((found for value in tree.values() if (found := search_for(value, key)) is not None), None)


def is_magnitude(value: object) -> TypeGuard[float]:
    return (type(value) is int or type(value) is float) and isfinite(value) and value >= 0
