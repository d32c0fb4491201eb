"""Exports for a runtime: the programs of a front are exported in each spelling that the runtime is offered, timed in
it, and the fastest that keeps the goals and computes its program is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.disk.files import read_json, shown
from formats.host.threads import threads
from opmatrix.display.tables import table
from opmatrix.exports.cached_graph import ExportedCache, find_caches, read_cached
from opmatrix.exports.exported_files import (
    describe_files,
    existing,
    export_onnx,
    export_torch,
    fresh_files,
    name_origin,
)
from opmatrix.exports.onnx_file import OUTSIDE
from opmatrix.exports.probed_weights import probing
from opmatrix.exports.program_graph import ProgramGraph, read_program
from opmatrix.exports.runtimes import ONNX_ENDING, Runtime, runtime_of
from opmatrix.exports.spelled_weights import WeightSpelling
from opmatrix.exports.timed_exports import TimedExport, TimingJob, time_exports
from opmatrix.files.loading import FRONT, list_points
from opmatrix.files.saving import REPORT
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.metrics.exported import compare_export, rounding_of
from rewrites.metrics.goals import MEASURES, Goal

PROBED_NAME = "probed"  # the spelling that gives each weight the way which a probe found quickest
TimedShapes = tuple[tuple[int, int], ...]


class ReportedPoint(NamedTuple):
    """A point of a front by its entry in a report: the methods that are not exact, its error, its other figures."""

    methods: Mapping[str, int]
    stated_error: float
    judged: Mapping[str, float]

    @classmethod
    def of(cls, entry: Mapping[str, object]) -> "ReportedPoint":
        """Return the point of an entry. Raises TypeError and ValueError for one that no run writes."""
        methods = entry.get("methods")
        figures = {name: float(str(entry[name])) for name in MEASURES if entry.get(name) is not None}
        return cls(methods if isinstance(methods, dict) else {}, float(str(entry["stated_error"])), figures)


@dataclass(frozen=True)
class ExportCandidate:
    """A program in one spelling, and its caches, where it is exported over caches."""

    program: Program
    read: ProgramGraph
    spelling: str
    caches: tuple[ExportedCache, ...] = ()


def programs_within(directory: Path, own: Path | None) -> dict[str, Program]:
    """Return the programs of a front that keep the goals of its search, by name; a directory without a front is itself
    one. Raises InputError for a report that no search wrote."""
    points = list_points(directory)
    if not points:
        return {shown(directory): Program.load(directory, laws=own)}
    kept = kept_points(directory / REPORT)
    return {f"{FRONT}/{at}": Program.load(place, laws=own) for at, place in points.items() if at in kept}


def kept_points(report: Path) -> list[int]:
    """Return the numbers of the points of a report that keep its goals. Raises InputError for another file."""
    record = read_json(report)
    try:
        goals = [Goal.parsed(str(goal["goal"])) for goal in record["goals"]]
        points = [ReportedPoint.of(entry) for entry in record["front"]]
        return [at for at, point in enumerate(points) if all(keeps(goal, point, points[0]) for goal in goals)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{shown(report)}: it is no report of a search: {error}") from error


def keeps(goal: Goal, point: ReportedPoint, exact: ReportedPoint) -> bool:
    """True if a point keeps a goal; one without the figure does not."""
    if goal.measure.figure is not None and goal.measure.name not in point.judged:
        return False
    return goal.kept(point, exact)


def export_for(
    directory: Path,
    name: str,
    onnx: Path | None,
    torch: Path | None,
    shapes: TimedShapes,
    own: Path | None,
    caches: bool = False,
) -> str:
    """Write the fastest export of a directory's programs in a runtime, over caches or not; return the table of their
    times, and what was written. Raises InputError for another runtime, an absent one, a target of another kind, and if
    no export computes its program."""
    runtime = runtime_of(name)
    target = target_of(runtime, onnx, torch)
    programs = programs_within(directory, own)
    probed = probing(max(a * b for a, b in shapes), threads()) if runtime.probed else None
    beside = f"{target.name}{OUTSIDE}"
    with fresh_files(target, beside) as fresh:
        candidates = {
            f"{where}, {spelling}": candidate
            for where, program in programs.items()
            for spelling, candidate in spellings(program, runtime, probed, caches).items()
        }
        files = {
            key: write_export(each, fresh / f"{at}{runtime.ending}", {})
            for at, (key, each) in enumerate(candidates.items())
        }
        times = time_exports(runtime, files, timing_job(candidates, shapes))
        rows, chosen = judge_exports(runtime, candidates, files, times)
        best, timed = candidates[chosen], times[chosen]
        at = " + ".join(f"{sentences}x{tokens}" for sentences, tokens in shapes)
        origin = {
            "runtime": f"{runtime.name} {timed.version}",
            "milliseconds": round(timed.milliseconds, 4),
            "at": at,
            "threads": threads(),
        }
        for file in fresh.iterdir():
            file.unlink()
        write_export(best, fresh / target.name, origin)
    columns = ["program", f"ms at {at}", "off", "products", ""]
    return "\n".join(
        [
            table(rows, columns),
            "",
            f"{runtime.name} {timed.version}: {chosen}",
            describe_files(best.read, existing(target, beside)),
        ]
    )


def parse_shapes(text: str) -> TimedShapes:
    """Return shapes of batches, sentences x tokens with commas between. Raises InputError for another text."""
    parts = [part.partition("x") for part in text.split(",")]
    shapes = tuple((int(a), int(b)) for a, _, b in parts if a.isdecimal() and b.isdecimal() and int(a) and int(b))
    if len(shapes) != len(parts):
        raise InputError(f"--at {text!r:.40}: give sentences x tokens, such as 1x128, or several: 1x16,8x128")
    return shapes


def target_of(runtime: Runtime, onnx: Path | None, torch: Path | None) -> Path:
    """Return the file to write. Raises InputError for a kind of file that the runtime does not read."""
    wanted, option = (onnx, "--onnx") if runtime.ending == ONNX_ENDING else (torch, "--torch")
    if wanted is None or (onnx and torch):
        raise InputError(f"--for {runtime.name}: it reads one file: give {option} FILE alone")
    return wanted


def spellings(
    program: Program, runtime: Runtime, probed: WeightSpelling | None, over_caches: bool
) -> dict[str, ExportCandidate]:
    """Return the program in the spellings that differ for it."""
    candidates, known = dict[str, ExportCandidate](), list[object]()
    caches = tuple(find_caches(program).values()) if over_caches else ()
    for name, spelling in {**runtime.spellings, **({PROBED_NAME: probed} if probed else {})}.items():
        read = (read_cached if over_caches else read_program)(program, spelling)
        if (ways := (read.widened, read.stored, read.multiplied)) not in known:
            known.append(ways)
            candidates[name] = ExportCandidate(program, read, name, caches)
    return candidates


def write_export(candidate: ExportCandidate, file: Path, origin: Mapping[str, object]) -> Path:
    """Write a candidate; return its file."""
    export = export_onnx if file.suffix == ONNX_ENDING else export_torch
    named = {"spelling": candidate.spelling, "rows": rounding_of(candidate.read)}
    export(candidate.read, file, {**name_origin(candidate.program, bool(candidate.caches)), **named, **origin})
    return file


def timing_job(candidates: Mapping[str, ExportCandidate], shapes: TimedShapes) -> TimingJob:
    """Return what candidates are timed at. Raises InputError for more tokens than a program has positions."""
    limits = [least_limits(each.program.schedule.calls) for each in candidates.values()]
    first = next(iter(candidates.values()))
    longest = max(tokens for _, tokens in shapes) + bool(first.caches)
    if longest > (most := min(limit.get("positions", longest) for limit in limits)):
        raise InputError(f"--at: {longest} tokens: the model has {most} positions")
    words = min(limit["tokens"] for limit in limits)
    return TimingJob(shapes, words, list(first.read.inputs), threads(), first.caches)


def judge_exports(
    runtime: Runtime,
    candidates: Mapping[str, ExportCandidate],
    files: Mapping[str, Path],
    times: Mapping[str, TimedExport],
) -> tuple[list[list[str]], str]:
    """Return a row for each candidate, the fastest first, and the name of the first that computes its program. Those
    behind it are not compared. Raises InputError if none does."""
    rows, chosen = list[list[str]](), ""
    for name in sorted(times, key=lambda each: times[each].milliseconds):
        timed = times[name]
        products = ", ".join(f"{kernel} x{count}" for kernel, count in timed.products.items())
        off = verdict = ""
        if not chosen:
            read = candidates[name].read
            run = runtime.open(files[name], threads())
            inputs, caches = list(read.inputs), candidates[name].caches
            compared = compare_export(run, candidates[name].program, inputs, rounding_of(read), caches)
            off, verdict = f"{compared.error:.1g}", "kept" if compared.agrees else f"beyond {compared.allowed:.1g}"
            chosen = name if compared.agrees else ""
        rows.append([name, f"{timed.milliseconds:.2f}", off, products, verdict])
    if not chosen:
        raise InputError(
            f"--for {runtime.name}: no export computes its program there: {rows[0][0]} is off by {rows[0][2]}"
        )
    return rows, chosen
