"""What became of a model: its first layers before and after, and what each law saved, measured by leaving it out."""
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from opmatrix.checkpoint import open_model
from opmatrix.errors import InputError
from opmatrix.measure import measure, medians
from opmatrix.program import Program
from opmatrix.storage import blamed, parsed
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.optimize import Run, calibrated, without
from rewrites.report import Report, megabytes, ms, percent, table
from rewrites.search import Structure, search
from rewrites.workload import Workload

SHOWN = 14                                                  # steps: about a layer


def explain(directory: Path, report: Report, rounds: int = 15) -> str:
    """The report on a saved program, for the workload that it was made for. Raises InputError where the directory, or
    the model it came from, is not there or damaged."""
    program, file = Program.load(directory), readable(directory / "report.json")
    with blamed(file, "what `opmatrix optimize` found"):
        found = parsed(file)
        run = again(program, found)
        front = [point_row(point, i == found["chosen"]) for i, point in enumerate(found["front"])]
        name = dict(enumerate(found["front"]))[found["chosen"]]["name"]
    with report.phase("search"):
        imported, _ = run.structure((), fusion=False).program({})
        exact = run.structure(run.laws)
        left = dict(leaving(run, exact))
    useful = {name: structure for name, structure in left.items() if structure.time > exact.time * (1 + 1e-9)}
    programs = {"imported": imported, "fused": run.structure(()).program({})[0], "exact": exact.program({})[0]}
    with report.phase("measure") as progress:
        taken = medians(measure(programs | {f"without {name}": s.program({})[0] for name, s in useful.items()},
                                [run.workload.timed], rounds, progress=progress))
    rows = [[name, f"{1e6 * (s.time - exact.time):.1f}", f"{1e6 * (taken[f'without {name}'] - taken['exact']):.1f}"]
            for name, s in sorted(useful.items(), key=lambda item: -item[1].time)]
    return "\n\n".join([
        f"before: one kernel for each operator, {ms(taken['imported'])} ms\n" + shown(imported),
        f"after: {name}\n" + shown(program),
        gains(taken), "what each law saved\n" + table(rows, ["left out", "µs predicted", "µs measured"]),
        "front\n" + table(front, ["", "ms", "MB", "error predicted", "measured"])])


def leaving(run: Run, exact: Structure) -> Iterator[tuple[str, Structure]]:
    """The optimum without each law that fired, along the same border states. A law whose canonical form the others rest
    on cannot be left out alone."""
    for law in run.laws:
        if law.name in exact.fired:
            with suppress(Infeasible):
                yield law.name, search(run.operator, without(run.laws, [law.name]), run.machine, run.workload.rows,
                                       run.workload.pairs, methods=run.representable, along=exact.path)


def again(program: Program, found: dict[str, Any]) -> Run:
    """The search that led to a program, on the model it came from."""
    report, meta = Report(quiet=True), program.meta
    checkpoint = open_model(meta["model"] if meta["model"] == "minilm" else meta["source"])
    return Run(checkpoint, checkpoint.operator(), Workload.of(checkpoint, found["text"], found["tokens"]),
               calibrated(lambda *_: None), without(EXACT_LAWS, found["without"]), report)


def readable(file: Path) -> Path:
    if not file.exists():
        raise InputError(f"{file} is missing: give a directory that `opmatrix optimize` wrote")
    return file


def shown(program: Program) -> str:
    lines = str(program).splitlines()
    more = [f"… {len(lines) - SHOWN - 2} more steps"] if len(lines) > SHOWN + 2 else []
    return "\n".join([*lines[:SHOWN + 1], *more])


def gains(taken: dict[str, float]) -> str:
    base = taken["imported"]
    names = "imported", "fused", "exact"
    rows = [[name, ms(taken[name]), f"{100 * (1 - taken[name] / base):.1f} %"] for name in names]
    return table(rows, ["", "ms measured", "saved"])


def point_row(point: dict[str, Any], chosen: bool) -> list[str]:
    return [("* " if chosen else "  ") + point["name"], ms(point["measured_s"]), megabytes(point["measured_bytes"]),
            percent(point["predicted_error"]), percent(point["measured_error"])]
