"""What became of a model: its first layers before and after, the laws that lead from one to the other, step by step,
and what each law saved, measured by leaving it out."""
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from formats.core.errors import InputError
from formats.disk.files import read_text, shown
from formats.host.quiet import Watch, warn_busy
from opmatrix.display.progress import unheard
from opmatrix.display.tables import between, megabytes, ms, percent, table
from opmatrix.files.checkpoint import open_model
from opmatrix.files.fetch import MODELS
from opmatrix.files.hub import is_hub_name
from opmatrix.files.loading import FRONT
from opmatrix.files.saving import DERIVATION, REPORT
from opmatrix.runtime.measure import Seconds, noisy, quartiles
from opmatrix.runtime.program import Program
from rewrites.explain.derivations.savings import group_fired, join_names, saves
from rewrites.laws import EXACT_LAWS, without
from rewrites.metrics.reported import Reported
from rewrites.opened import Opened, search_exact
from rewrites.report.retelling import derive, tell_steps
from rewrites.run import find_front, propose_approximations
from rewrites.search.search import Structure
from rewrites.verify.user_laws import UserDeclarations, admit_laws, load_laws
from rewrites.workload.phases import Report, Tell
from rewrites.workload.resolve import SOURCE_ENTRY, adapter_of, calibrated, find_directory, source
from rewrites.workload.workload import Workload

NO_FILES: Mapping[str, Path | None] = {}
SHOWN_STEPS = 14                                            # steps: about a layer
REPEATS = 3                                                 # measurements, which have to agree on what a law saves


def explain(directory: Path, report: Report, rounds: int = 7, model: str | None = None, full: bool = False,
            **given: Path | None) -> str:
    """What `find_explanation` says, as text alone."""
    return find_explanation(directory, report, rounds, model, full, **given)[0]


def find_explanation(directory: Path, report: Report, rounds: int = 7, model: str | None = None, full: bool = False,
                     **given: Path | None) -> tuple[str, dict[str, object]]:
    """The report on a saved program, chosen or of the front beside it, for the workload that it was made for, as text
    and as figures; `full`: with every step of its derivation, and the program before it. `given` are the user's files
    that took part: laws, text, texts (rewrites.metrics.reported). `model` is where the checkpoint is now; without it,
    where the program says.
    Raises InputError where the directory, a file or the checkpoint is not there, is damaged or is another one."""
    with report.phase("model"):
        program = Program.load(directory, laws=given.get("laws"))
        found, kept = read_report(directory)
        found.same(given)
        opened = reopen(program, found, model, given)
    front = [point_row(point, i == found.chosen) for i, point in enumerate(found.front)]
    name = found.front[found.chosen]["name"]
    with report.phase("search"):
        imported, _ = opened.structure((), fusion=False).program({})
        exact = opened.structure(opened.laws)
        groups = {join_names(names): (names, structure) for names, structure in group_fired(opened, exact)}
    useful = {name: structure for name, (_, structure) in groups.items() if saves(structure, exact.time)}
    with report.phase("derive") as progress:
        steps = read_text(kept) if kept.exists() else find_steps(program, found, opened, exact, progress)
    programs = {"imported": imported, "fused": opened.structure(()).program({})[0], "exact": exact.program({})[0]}
    programs |= {f"without {name}": structure.program({})[0] for name, structure in useful.items()}
    watch = Watch()
    with report.phase("measure") as progress:
        taken = [opened.workload.measured(programs, rounds, progress) for _ in range(REPEATS)]
    for runs in taken: watch.note(runs.values())
    ordered = sorted(useful.items(), key=lambda item: -item[1].time)
    rows = [[name, f"{1e6 * (structure.time - exact.time):.1f}", *tell_saving(taken, f"without {name}", "exact")]
            for name, structure in ordered]
    every, busy = {name: [second for each in taken for second in each[name]] for name in programs}, watch.seen()
    said = "\n\n".join([
        f"model: {opened.meta['source']}{'' if model else ', as the program says'}",
        *warn_busy(busy, "measured times are too long, and differences between them mostly noise",
                   getattr(opened.machine, "marks", ())),
        *([f"before: one kernel for each operator, {ms(median(every['imported']))} ms\n" + format_program(imported)]
          if full else []),
        "\n".join([f"after: {name}", *program.signature.lines(), format_program(program)]),
        gains(every), "derivation: every step is one law\n" + (steps if full else outline(steps)),
        f"what each law saved, measured {REPEATS} times over {rounds} rounds\n" +
        table(rows, ["left out", "µs predicted", "µs measured", "quartiles"]),
        "front\n" + table(front, ["", "ms", "MB", "error predicted", "measured"]),
        *([] if full else [f"every step, and the program before: opmatrix explain {directory} --full"])])
    return said, {
        "program": str(directory), "model": opened.meta["source"], "chosen": name, "busy": busy,
        "measured_s": {which: {"median": median(every[which]), "quartiles": quartiles(every[which])}
                       for which in ("imported", "fused", "exact")},
        "saved": [{"laws": list(groups[each][0]), "predicted_s": structure.time - exact.time,
                   **find_saving(taken, f"without {each}", "exact")._asdict()} for each, structure in ordered],
        "steps": [{"output": step.output, "kernel": step.kernel, "operands": dict(step.operands),
                   "attributes": dict(step.attributes)} for step in program.steps], "derivation": steps.splitlines(),
        "front": [{key: point[key] for key in ("name", "measured_s", "measured_bytes", "predicted_error",
                                               "measured_error")} for point in found.front]}


def read_report(directory: Path) -> tuple[Reported, Path]:
    """The report that a saved program is of, and the file that holds its steps where it was chosen. A program of a
    front has the report that lies beside the front."""
    whole, number = directory.resolve().parent.parent, directory.resolve().name
    if (directory / REPORT).exists() or directory.resolve().parent.name != FRONT or not number.isdecimal():
        return Reported.read(directory / REPORT), directory / DERIVATION
    found = Reported.read(whole / REPORT)
    if (at := int(number)) >= len(found.front): return Reported.read(directory / REPORT), directory / DERIVATION
    return replace(found, chosen=at), (whole if at == found.chosen else directory) / DERIVATION


def outline(steps: str) -> str:
    """A derivation as text without its steps: how many each part has."""
    return "\n".join(line for line in steps.splitlines() if not line.startswith(" "))


def format_program(program: Program) -> str:
    lines = str(program).splitlines()
    more = [f"… {len(lines) - SHOWN_STEPS - 2} more steps"] if len(lines) > SHOWN_STEPS + 2 else []
    return "\n".join([*lines[:SHOWN_STEPS + 1], *more])


class MeasuredSaving(NamedTuple):
    """Seconds that one program takes more than another, round by round: median, quartiles, whether that is noise."""

    measured_s: float
    quartiles_s: tuple[float, float]
    below_noise: bool


def find_saving(taken: Sequence[Seconds], name: str, base: str) -> MeasuredSaving:
    """What `name` takes more than `base`."""
    repeats = [[a - b for a, b in zip(each[name], each[base], strict=True)] for each in taken]
    found = [difference for rounds in repeats for difference in rounds]
    return MeasuredSaving(median(found), quartiles(found), noisy(repeats))


def tell_saving(taken: Sequence[Seconds], name: str, base: str) -> list[str]:
    """Microseconds that `name` takes more than `base`: the median, or that it is below noise, and quartiles."""
    found = find_saving(taken, name, base)
    return ["below noise" if found.below_noise else f"{1e6 * found.measured_s:.1f}",
            " to ".join(f"{1e6 * end:.1f}" for end in found.quartiles_s)]


def gains(taken: Seconds) -> str:
    middle = {name: median(taken[name]) for name in ("imported", "fused", "exact")}
    rows = [[name, ms(seconds), between(quartiles(taken[name])), f"{100 * (1 - seconds / middle['imported']):.1f} %"]
            for name, seconds in middle.items()]
    return table(rows, ["", "ms measured", "quartiles", "saved"])


def point_row(point: Mapping[str, Any], chosen: bool) -> list[str]:
    return [("* " if chosen else "  ") + point["name"], ms(point["measured_s"]), megabytes(point["measured_bytes"]),
            percent(point["predicted_error"]), percent(point["measured_error"])]


def find_steps(program: Program, found: Reported, opened: Opened, exact: Structure,
               progress: Tell = unheard) -> str:
    """The steps to a saved program whose directory holds none: it is searched for again, as the report says that it was
    found, and known by its hash."""
    if found.chosen == 0: return derive(exact, opened.laws)         # the front begins with the exact program
    if found.front[found.chosen]["smaller"]:
        return "none: a program of a smaller model has them only where `opmatrix optimize` chooses it"
    proposed = propose_approximations(search_exact(opened, progress), found.error, progress)
    for point in find_front(proposed, found.error, found.memory, progress).points:
        if point.program.replace(**program.meta).hash == program.hash:
            return tell_steps(point, opened.laws, proposed.choices, proposed.searched.workload.few)
    return ("none: a search finds other programs by now, as prices or versions are others: `opmatrix optimize` makes "
            "the program anew")


def reopen(program: Program, found: Reported, model: str | None = None,
           given: Mapping[str, Path | None] = NO_FILES) -> Opened:
    """What a search that led to a program began with: the model it came from, and the user's files."""
    checkpoint = open_model(model or origin(program), adapter_of(program))
    declared = UserDeclarations() if (own := given.get("laws")) is None else load_laws(own)
    text, texts = (None if (file := given.get(name)) is None else str(file) for name in ("text", "texts"))
    workload = Workload.of(checkpoint, text, found.tokens, texts, found.mix, found.generation)
    laws, _ = admit_laws(without((*EXACT_LAWS, *declared.laws), found.without))
    opened = Opened(checkpoint.operator(program.pooled), workload, calibrated(unheard), laws, source(checkpoint),
                    declared.approximations, found.number_type)
    return opened.leave_out_failing()[0]


def origin(program: Program) -> str:
    """The checkpoint that a program says it was made of. Raises InputError where it says none, or none that is here."""
    place = program.meta.get("source")
    if not isinstance(place, str):
        raise InputError("the program does not say which model it was made of: give it: --model MODEL")
    if place in MODELS or is_hub_name(place): return place
    if found := find_directory(program, SOURCE_ENTRY, place): return found
    raise InputError(f"{shown(place)}: the model that the program was made of is not there, as seen from "
                     f"{shown(Path.cwd())}: say where it is: --model MODEL")
