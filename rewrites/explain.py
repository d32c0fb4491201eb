"""What became of a model: its first layers before and after, the laws that lead from one to the other, step by step, and what
each law saved, measured by leaving it out."""
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from opmatrix.checkpoint import open_model
from opmatrix.errors import InputError
from opmatrix.measure import measure, medians
from opmatrix.program import Program, kind
from opmatrix.storage import blamed, parsed
from rewrites.approximate import difference
from rewrites.approximation import Approximation
from rewrites.chain import chain
from rewrites.derive import Underivable
from rewrites.emit import Emitter
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.run import FEW, Run, calibrated, pieces, source, without
from rewrites.report import Report, megabytes, ms, percent, table
from rewrites.search import Structure, search
from rewrites.user import Declared, load
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
    with report.phase("derivation"):
        steps = derived(run, exact, program)
    programs = {"imported": imported, "fused": run.structure(()).program({})[0], "exact": exact.program({})[0]}
    with report.phase("measure") as progress:
        taken = medians(measure(programs | {f"without {name}": s.program({})[0] for name, s in useful.items()},
                                [run.workload.timed], rounds, progress=progress))
    rows = [[name, f"{1e6 * (s.time - exact.time):.1f}", f"{1e6 * (taken[f'without {name}'] - taken['exact']):.1f}"]
            for name, s in sorted(useful.items(), key=lambda item: -item[1].time)]
    return "\n\n".join([
        f"before: one kernel for each operator, {ms(taken['imported'])} ms\n" + shown(imported),
        f"after: {name}\n" + shown(program),
        gains(taken), "derivation: every step is one law\n" + steps,
        "what each law saved\n" + table(rows, ["left out", "µs predicted", "µs measured"]),
        "front\n" + table(front, ["", "ms", "MB", "error predicted", "measured"])])


def leaving(run: Run, exact: Structure) -> Iterator[tuple[str, Structure]]:
    """The optimum without each law that fired, along the same border states. A law whose canonical form the others rest
    on cannot be left out alone."""
    for law in run.laws:
        if law.name in exact.fired:
            with suppress(Infeasible):
                yield law.name, search(run.operator, without(run.laws, [law.name]), run.machine, run.workload.rows,
                                       run.workload.pairs, methods=run.representable, along=exact.path)


def derived(run: Run, exact: Structure, program: Program) -> str:
    """The steps from the imported model to the saved program. Raises VerificationError for one that does not hold."""
    own, emitter = exact.program({})
    try:
        steps = chain(exact, run.laws)
    except Underivable as error:
        return f"none was found: {error}"
    if own.steps != program.steps:
        return f"of the exact program; the prices have changed since the saved one was found\n{steps}"
    return str(steps.approximated(otherwise(run, exact, emitter, own, program)))


def otherwise(run: Run, exact: Structure, emitter: Emitter, own: Program, program: Program) -> dict[int, Any]:
    """What the saved program stores in another way than the exact one: by part, by class and layout, in words, with the
    change of the output that it alone brings about on calibration rows and on held-out ones."""
    batches = run.workload.probe, pieces(run.workload.verify, FEW)[0]
    wanted = [np.asarray(own.run(batch), np.float64) for batch in batches]
    found: dict[int, Any] = {}
    for name, (part, stored) in emitter.sources.items():
        if (words := kind(stands := program.constants[name])) != kind(own.constants[name]):
            changed = Program(own.steps, {**own.constants, name: stands}, own.output)
            errors = [difference(changed.run(batch), rows) for batch, rows in zip(batches, wanted, strict=True)]
            by = fitted_by(run.approximations, exact.lowerings[part].matrix(stored.weight, stored.layout), stands)
            found.setdefault(part, {})[stored.weight, stored.layout] = (by + words.strip("[]").split(",")[0], *errors)
    return found


def fitted_by(own: Sequence[Approximation], matrix: np.ndarray, stored: Any) -> str:
    """Which approximation of a user's makes what is stored of a weight, in words; nothing where none does."""
    return next((f"{method.fit} as " for each in own for method in each.methods(matrix)
                 if method.format == stored.name and np.array_equal(each.store(matrix, method).unpack(), stored.unpack())), "")


def again(program: Program, found: dict[str, Any]) -> Run:
    """The search that led to a program, on the model it came from."""
    report, meta = Report(quiet=True), program.meta
    checkpoint = open_model(meta["model"] if meta["model"] == "minilm" else meta["source"])
    declared = load(found["laws"]) if found.get("laws") else Declared()
    return Run(checkpoint.operator(), Workload.of(checkpoint, found["text"], found["tokens"]),
               calibrated(lambda *_: None), without((*EXACT_LAWS, *declared.laws), found["without"]), report,
               source(checkpoint), approximations=declared.approximations)


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
