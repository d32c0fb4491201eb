"""What became of a model: its first layers before and after, the laws that lead from one to the other, step by step,
and what each law saved, measured by leaving it out."""
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from formats.core.errors import InputError
from formats.disk.files import read_text
from formats.machine.quiet import Watch, describe_noise
from opmatrix.display.tables import between, megabytes, ms, percent, table
from opmatrix.files.checkpoint import open_model
from opmatrix.files.saving import DERIVATION, REPORT
from opmatrix.measure import Seconds, noisy, quartiles
from opmatrix.patterns import Batch
from opmatrix.program import Program
from rewrites.command.report import Report
from rewrites.command.user import UserDeclarations, load_laws
from rewrites.compiler.lower import TURNED
from rewrites.compiler.search import Structure
from rewrites.derivations.chain import chain, nearly
from rewrites.derivations.derivation import Otherwise
from rewrites.derivations.finding import Underivable
from rewrites.derivations.gains import join_names, saves
from rewrites.front.differences import difference
from rewrites.front.opening import adapter_of, calibrated, source
from rewrites.front.points import Result
from rewrites.front.reported import Reported
from rewrites.front.sites import sites
from rewrites.front.trials import changed
from rewrites.front.workload import Workload
from rewrites.law import Law
from rewrites.laws import EXACT_LAWS, without
from rewrites.run import Run

NO_FILES: Mapping[str, Path | None] = {}
SHOWN_STEPS = 14                                            # steps: about a layer
REPEATS = 3                                                 # measurements, which have to agree on what a law saves


def explain(directory: Path, report: Report, rounds: int = 7, model: str | None = None, full: bool = False,
            **given: Path | None) -> str:
    """The report on a saved program, for the workload that it was made for; `full`: with every step of its derivation,
    and the program before it. `given` are the user's files that took part: laws, text, texts (rewrites.front.reported).
    `model` is where the checkpoint is now; without it, where the program says. Raises InputError where the directory, a
    file or the checkpoint is not there, is damaged or is another one."""
    program = Program.load(directory)
    found = Reported.read(directory / REPORT)
    found.same(given)
    run = again(program, found, model, given)
    front = [point_row(point, i == found.chosen) for i, point in enumerate(found.front)]
    name = found.front[found.chosen]["name"]
    with report.phase("search"):
        imported, _ = run.structure((), fusion=False).program({})
        exact = run.structure(run.laws)
        left = {join_names(names): structure for names, structure in run.groups(exact)}
    useful = {name: structure for name, structure in left.items() if saves(structure, exact.time)}
    with report.phase("derivation"):
        kept = directory / DERIVATION
        steps = read_text(kept) if kept.exists() else f"of the exact program\n{derive(exact, run.laws)}"
    programs = {"imported": imported, "fused": run.structure(()).program({})[0], "exact": exact.program({})[0]}
    programs |= {f"without {name}": structure.program({})[0] for name, structure in useful.items()}
    watch = Watch()
    with report.phase("measure") as progress:
        taken = [run.workload.measured(programs, rounds, progress) for _ in range(REPEATS)]
    for runs in taken: watch.note(runs.values())
    seen = watch.seen()
    rows = [[name, f"{1e6 * (structure.time - exact.time):.1f}", *saving(taken, f"without {name}", "exact")]
            for name, structure in sorted(useful.items(), key=lambda item: -item[1].time)]
    every = {name: [second for each in taken for second in each[name]] for name in programs}
    return "\n\n".join([
        f"model: {run.meta['source']}{'' if model else ', as the program says'}",
        *([describe_noise(seen, "measured times are too long, and differences between them mostly noise")] if seen
          else []),
        *([f"before: one kernel for each operator, {ms(median(every['imported']))} ms\n" + format_program(imported)]
          if full else []),
        "\n".join([f"after: {name}", *program.signature.lines(), format_program(program)]),
        gains(every), "derivation: every step is one law\n" + (steps if full else outlined(steps)),
        f"what each law saved, measured {REPEATS} times over {rounds} rounds\n" +
        table(rows, ["left out", "µs predicted", "µs measured", "quartiles"]),
        "front\n" + table(front, ["", "ms", "MB", "error predicted", "measured"]),
        *([] if full else [f"every step, and the program before: opmatrix explain {directory} --full"])])


def outlined(steps: str) -> str:
    """Of a derivation as text how many steps each part has, without the steps themselves."""
    return "\n".join(line for line in steps.splitlines() if not line.startswith(" "))


def tell(result: Result, target: Path, places: Sequence[Path]) -> None:
    """Writes beside every saved program the steps that lead to it from the imported model."""
    held_out = result.workload.few
    for place, point in [*zip(places, result.points, strict=True), (target, result.best)]:
        if point.structure is not None:
            kept = None if point.variant or result.choices is None else result.choices.kept(point.structure)
            stored = otherwise(point.structure, point.program, held_out, kept) if place == target else None
            before = [point.variant.removed.told()] if point.variant and point.variant.removed else []
            before += [f"approximation: {each}, alone, on calibration rows" for each in
                       point.structure.detours.values()]
            (place / DERIVATION).write_text("\n".join([*before, derive(point.structure, result.laws, stored)]))


def derive(structure: Structure, laws: Sequence[Law], stored: dict[int, Otherwise] | None = None) -> str:
    """The steps from the imported model to a program. Raises VerificationError for one that does not hold."""
    try:
        return str(chain(structure, laws, stored))
    except Underivable as error:
        return f"none was found: {error}"


def otherwise(structure: Structure, program: Program, held_out: Batch,
              kept: MutableMapping[Any, Any] | None = None) -> dict[int, Otherwise]:
    """What a program does not store as it is: by part, by class and layout, in words, with the change of the output
    that it alone brought about on calibration rows, and brings about on held-out ones. `kept` are constants of other
    programs of these border states."""
    own, emitter = structure.program({}, structure.exactly, kept)
    wanted, values = own.run(held_out), list[Any]()
    found = {number: nearly(extraction) for number, extraction in zip(structure.numbers, structure.extractions,
                                                                      strict=True)}
    for first, site in sorted(((site.readers(own)[0], site) for site in sites(own, structure, emitter)),
                              key=lambda pair: pair[0]):
        key = site.stored.weight, "columns" if site.stored.layout == TURNED else site.stored.layout
        if key not in found[site.part]: continue
        for _ in own.schedule.walk(held_out, values, first): pass
        [rows] = changed(own, site, [partial(program.constants.__getitem__, site.constant)], values, held_out)
        words, error, _ = found[site.part][key]
        found[site.part][key] = words, error, difference(rows, wanted)
    return found


def again(program: Program, found: Reported, model: str | None = None,
          given: Mapping[str, Path | None] = NO_FILES) -> Run:
    """The search that led to a program, on the model it came from and the user's files."""
    checkpoint = open_model(model or origin(program), adapter_of(program))
    declared = UserDeclarations() if (laws := given.get("laws")) is None else load_laws(laws)
    text, texts = (None if (file := given.get(name)) is None else str(file) for name in ("text", "texts"))
    workload = Workload.of(checkpoint, text, found.tokens, texts, found.mix)
    return Run(checkpoint.operator(program.pooled), workload, calibrated(lambda *_: None),
               without((*EXACT_LAWS, *declared.laws), found.without), Report(quiet=True), source(checkpoint),
               approximations=declared.approximations, number_type=found.number_type)


def origin(program: Program) -> str:
    """The checkpoint that a program says it was made of. Raises InputError where it says none."""
    place = program.meta.get("model") if program.meta.get("model") == "minilm" else program.meta.get("source")
    if isinstance(place, str): return place
    raise InputError("the program does not say which model it was made of: give it: --model MODEL")


def format_program(program: Program) -> str:
    lines = str(program).splitlines()
    more = [f"… {len(lines) - SHOWN_STEPS - 2} more steps"] if len(lines) > SHOWN_STEPS + 2 else []
    return "\n".join([*lines[:SHOWN_STEPS + 1], *more])


def saving(taken: Sequence[Seconds], name: str, base: str) -> list[str]:
    """Microseconds that `name` takes more than `base`, round by round: the median, or that it is below noise, and
    quartiles."""
    repeats = [[a - b for a, b in zip(each[name], each[base], strict=True)] for each in taken]
    found = [difference for rounds in repeats for difference in rounds]
    return ["below noise" if noisy(repeats) else f"{1e6 * median(found):.1f}",
            " to ".join(f"{1e6 * end:.1f}" for end in quartiles(found))]


def gains(taken: Seconds) -> str:
    middle = {name: median(taken[name]) for name in ("imported", "fused", "exact")}
    rows = [[name, ms(seconds), between(quartiles(taken[name])), f"{100 * (1 - seconds / middle['imported']):.1f} %"]
            for name, seconds in middle.items()]
    return table(rows, ["", "ms measured", "quartiles", "saved"])


def point_row(point: Mapping[str, Any], chosen: bool) -> list[str]:
    return [("* " if chosen else "  ") + point["name"], ms(point["measured_s"]), megabytes(point["measured_bytes"]),
            percent(point["predicted_error"]), percent(point["measured_error"])]
