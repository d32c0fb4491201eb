"""The work of `explain`: the first layers of a model before and after, the laws that lead from one to the other, step
by step, and the time that each law saved, measured by leaving it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from rewrites.workload.resolve import (
    IN_MEMORY,
    SOURCE_ENTRY,
    adapter_of,
    calibrated,
    find_directory,
    needed_model,
    source,
)
from rewrites.workload.workload import Workload

NO_FILES: Mapping[str, Path | None] = {}
SHOWN_STEPS = 14  # steps that are printed: about a layer
FRONT_FIGURES = "name", "measured_s", "measured_bytes", "predicted_error", "measured_error"
REPEATS = 3  # measurements that have to agree on the saving of a law


def explain(
    directory: Path, report: Report, rounds: int = 7, model: str | None = None, full: bool = False, **given: Path | None
) -> str:
    """Return the text of `find_explanation` alone."""
    return find_explanation(directory, report, rounds, model, full, **given)[0]


def find_explanation(
    directory: Path, report: Report, rounds: int = 7, model: str | None = None, full: bool = False, **given: Path | None
) -> tuple[str, dict[str, object]]:
    """Return the report on a saved program, chosen or of the front beside it, for the workload that it was made for, as
    text and as figures. `full`: with every step of its derivation, and the program before it. `given`: the user's files
    that took part: laws, text, texts (rewrites.metrics.reported). `model`: the place of the checkpoint, by default as
    the program says. Raises InputError where the directory, a file or the checkpoint is missing, is damaged or is
    another one."""
    with report.phase("model"):
        program = Program.load(directory, laws=given.get("laws"))
        reported, steps_file = read_report(directory)
        reported.same(given)
        opened = reopen(program, reported, model, given)
    with report.phase("search"):
        imported, _ = opened.structure((), fusion=False).program({})
        exact = opened.structure(opened.laws)
        groups = {join_names(names): (names, structure) for names, structure in group_fired(opened, exact)}
    useful = {name: structure for name, (_, structure) in groups.items() if saves(structure, exact.time)}
    with report.phase("derive") as progress:
        steps = read_text(steps_file) if steps_file.exists() else find_steps(program, reported, opened, exact, progress)
    programs = {"imported": imported, "fused": opened.structure(()).program({})[0], "exact": exact.program({})[0]}
    programs |= {without_laws(name): structure.program({})[0] for name, structure in useful.items()}
    with report.phase("measure") as progress:
        measured = measure_repeatedly(opened.workload, programs, rounds, progress)
    explained = ExplainedProgram(
        program,
        imported,
        reported,
        steps,
        measured,
        [
            LeftOut(name, groups[name][0], structure.time - exact.time)
            for name, structure in sorted(useful.items(), key=lambda entry: -entry[1].time)
        ],
    )
    source_text = f"model: {opened.meta['source']}{'' if model else ', as the program says'}"
    busy_text = warn_busy(
        measured.busy,
        "measured times are too long, and their differences are mostly noise",
        getattr(opened.machine, "marks", ()),
    )
    hint = [] if full else [f"every step, and the program before: opmatrix explain {directory} --full"]
    text = "\n\n".join([source_text, *busy_text, *explained.paragraphs(full, rounds), *hint])
    return text, {"program": str(directory), "model": opened.meta["source"], **explained.figures()}


def without_laws(name: str) -> str:
    """Return the name of the program that is found without some laws."""
    return f"without {name}"


class LeftOut(NamedTuple):
    """Laws that save time together, by their joined name, and the seconds that a program is predicted to take more
    without them."""

    name: str
    laws: tuple[str, ...]
    predicted_s: float


@dataclass(frozen=True)
class Repeats:
    """Repeated measurements of programs: the seconds of each, and the signs of a busy machine."""

    taken: Sequence[Seconds]
    busy: str

    @property
    def seconds(self) -> Seconds:
        """The seconds of each program in all repeats."""
        return {name: [second for repeat in self.taken for second in repeat[name]] for name in self.taken[0]}


def measure_repeatedly(workload: Workload, programs: Mapping[str, Program], rounds: int, progress: Tell) -> Repeats:
    """Return the seconds of programs in REPEATS measurements."""
    watch = Watch()
    taken = [workload.measured(programs, rounds, progress) for _ in range(REPEATS)]
    for runs in taken:
        watch.note(runs.values())
    return Repeats(taken, watch.seen())


@dataclass(frozen=True)
class ExplainedProgram:
    """A saved program beside the imported one, with its report, its derivation, the measured programs, and the laws
    that save time, those that save most first."""

    program: Program
    imported: Program
    reported: Reported
    steps: str
    measured: Repeats
    left_out: Sequence[LeftOut]

    def paragraphs(self, full: bool, rounds: int) -> list[str]:
        """Return the texts on the program; with `full` every step, and the program before."""
        seconds, before = self.measured.seconds, list[str]()
        if full:
            header = f"before: one kernel for each operator, {ms(median(seconds['imported']))} ms"
            before = [f"{header}\n{format_program(self.imported)}"]
        after = [f"after: {self.chosen['name']}", *self.program.signature.lines(), format_program(self.program)]
        front = [point_row(point, i == self.reported.chosen) for i, point in enumerate(self.reported.front)]
        return [
            *before,
            "\n".join(after),
            gains(seconds),
            "derivation: every step is one law\n" + (self.steps if full else outline(self.steps)),
            f"what each law saved, measured {REPEATS} times over {rounds} rounds\n" + self.table_of_laws(),
            "front\n" + table(front, ["", "ms", "MB", "error predicted", "measured"]),
        ]

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The point of the front that the program is."""
        return self.reported.front[self.reported.chosen]

    def table_of_laws(self) -> str:
        """Return the predicted and the measured savings of laws as a table."""
        rows = [
            [name, f"{1e6 * predicted_s:.1f}", *tell_saving(self.measured.taken, without_laws(name), "exact")]
            for name, _, predicted_s in self.left_out
        ]
        return table(rows, ["left out", "µs predicted", "µs measured", "quartiles"])

    def figures(self) -> dict[str, object]:
        """Return the figures behind the texts."""
        seconds = self.measured.seconds
        return {
            "chosen": self.chosen["name"],
            "busy": self.measured.busy,
            "measured_s": {
                which: {"median": median(seconds[which]), "quartiles": quartiles(seconds[which])}
                for which in ("imported", "fused", "exact")
            },
            "saved": [
                {
                    "laws": list(laws),
                    "predicted_s": predicted_s,
                    **find_saving(self.measured.taken, without_laws(name), "exact")._asdict(),
                }
                for name, laws, predicted_s in self.left_out
            ],
            "steps": [
                {
                    "output": step.output,
                    "kernel": step.kernel,
                    "operands": dict(step.operands),
                    "attributes": dict(step.attributes),
                }
                for step in self.program.steps
            ],
            "derivation": self.steps.splitlines(),
            "front": [{key: point[key] for key in FRONT_FIGURES} for point in self.reported.front],
        }


def read_report(directory: Path) -> tuple[Reported, Path]:
    """Return the report of a saved program, and the file that holds the steps of its derivation. A program of a front
    has the report beside the front."""
    whole, number = directory.resolve().parent.parent, directory.resolve().name
    if (directory / REPORT).exists() or directory.resolve().parent.name != FRONT or not number.isdecimal():
        return Reported.read(directory / REPORT), directory / DERIVATION
    reported = Reported.read(whole / REPORT)
    if (at := int(number)) >= len(reported.front):
        return Reported.read(directory / REPORT), directory / DERIVATION
    return replace(reported, chosen=at), (whole if at == reported.chosen else directory) / DERIVATION


def outline(steps: str) -> str:
    """Return a derivation as text without its steps: the number of steps of each part."""
    return "\n".join(line for line in steps.splitlines() if not line.startswith(" "))


def format_program(program: Program) -> str:
    """Write a program's first SHOWN_STEPS steps, and the number of the others."""
    lines = str(program).splitlines()
    more = [f"… {len(lines) - SHOWN_STEPS - 2} more steps"] if len(lines) > SHOWN_STEPS + 2 else []
    return "\n".join([*lines[: SHOWN_STEPS + 1], *more])


class MeasuredSaving(NamedTuple):
    """Seconds that one program takes more than another, round by round."""

    measured_s: float  # median
    quartiles_s: tuple[float, float]
    below_noise: bool  # the difference is noise


def find_saving(taken: Sequence[Seconds], name: str, base: str) -> MeasuredSaving:
    """Return the time that `name` takes more than `base`."""
    repeats = [[a - b for a, b in zip(runs[name], runs[base], strict=True)] for runs in taken]
    differences = [difference for rounds in repeats for difference in rounds]
    return MeasuredSaving(median(differences), quartiles(differences), noisy(repeats))


def tell_saving(taken: Sequence[Seconds], name: str, base: str) -> list[str]:
    """Return the microseconds that `name` takes more than `base`, as text: the median, or that it is below noise, and
    quartiles."""
    saving = find_saving(taken, name, base)
    return [
        "below noise" if saving.below_noise else f"{1e6 * saving.measured_s:.1f}",
        " to ".join(f"{1e6 * end:.1f}" for end in saving.quartiles_s),
    ]


def gains(taken: Seconds) -> str:
    """Write the measured times of three programs as a table, with quartiles and the share saved."""
    middle = {name: median(taken[name]) for name in ("imported", "fused", "exact")}
    rows = [
        [name, ms(seconds), between(quartiles(taken[name])), f"{100 * (1 - seconds / middle['imported']):.1f} %"]
        for name, seconds in middle.items()
    ]
    return table(rows, ["", "ms measured", "quartiles", "saved"])


def point_row(point: Mapping[str, Any], chosen: bool) -> list[str]:
    """Return the cells of a point; the chosen one is marked by *."""
    return [
        ("* " if chosen else "  ") + point["name"],
        ms(point["measured_s"]),
        megabytes(point["measured_bytes"]),
        percent(point["predicted_error"]),
        percent(point["measured_error"]),
    ]


def find_steps(program: Program, found: Reported, opened: Opened, exact: Structure, progress: Tell = unheard) -> str:
    """Return the steps to a saved program whose directory holds none. It is searched for again, as the report says that
    it was found, and recognised by its hash."""
    if found.chosen == 0:
        return derive(exact, opened.laws)  # the front begins with the exact program
    if found.front[found.chosen]["smaller"]:
        return "none: a program of a smaller model has them only where `opmatrix optimize` chooses it"
    proposed = propose_approximations(search_exact(opened, progress), found.error, progress)
    for point in find_front(proposed, found.error, found.memory, progress).points:
        if point.program.replace(**program.meta).hash == program.hash:
            return tell_steps(point, opened.laws, proposed.choices, proposed.searched.workload.few)
    return (
        "none: a search now finds other programs, as prices or versions have changed: create the program again by "
        "`opmatrix optimize`"
    )


def reopen(
    program: Program, found: Reported, model: str | None = None, given: Mapping[str, Path | None] = NO_FILES
) -> Opened:
    """Return the inputs of the search that led to a program: the model that it came from, and the user's files."""
    checkpoint = open_model(model or origin(program), adapter_of(program))
    declared = UserDeclarations() if (laws_file := given.get("laws")) is None else load_laws(laws_file)
    text, texts = (None if (file := given.get(name)) is None else str(file) for name in ("text", "texts"))
    workload = Workload.of(checkpoint, text, found.tokens, texts, found.mix, found.generation)
    laws, _ = admit_laws(without((*EXACT_LAWS, *declared.laws), found.without))
    opened = Opened(
        checkpoint.operator(program.pooled),
        workload,
        calibrated(unheard),
        laws,
        source(checkpoint),
        declared.approximations,
        found.number_type,
    )
    return opened.leave_out_failing()[0]


def origin(program: Program) -> str:
    """Return the checkpoint that a program was made of, as it says. Raises InputError if it names none, or one that is
    not there."""
    place = program.meta.get("source")
    if not isinstance(place, str):
        raise InputError("the program does not record its model: give --model MODEL")
    if place in MODELS or is_hub_name(place):
        return place
    if place.startswith(IN_MEMORY):
        raise InputError(f"the program was made of a model in memory: give {needed_model(program)}")
    if directory := find_directory(program, SOURCE_ENTRY, place):
        return directory
    raise InputError(
        f"{shown(place)}: the model that the program was made of does not exist, seen from "
        f"{shown(Path.cwd())}: give its place, --model MODEL"
    )
