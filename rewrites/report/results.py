"""The results of a run, as text, as JSON, and as directories that run."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from formats.host.quiet import warn_busy
from opmatrix.display.shown import POINT_COLUMNS, point_row, result_html
from opmatrix.display.tables import between, ms, percent, table
from opmatrix.files.loading import FRONT
from opmatrix.files.saving import DERIVATION, REPORT, replacing_program, write_front
from rewrites.approximate.proposals import Choices
from rewrites.explain.derivations.savings import join_names
from rewrites.laws.law import Law
from rewrites.lowering.mixed import format_lengths
from rewrites.lowering.price import TimeModel, name_machine
from rewrites.metrics.goals import MEASURES, Goal
from rewrites.metrics.reported import Named
from rewrites.report.evaluated_terms import tell_evaluated
from rewrites.report.fewer_laws import Misled, describe_misled
from rewrites.report.gains import Gain
from rewrites.report.generated import tell_generated
from rewrites.report.installed import installed
from rewrites.report.near_misses import NearMiss, tell_misses
from rewrites.report.points import Point
from rewrites.report.retelling import tell_steps
from rewrites.search.search import Structure
from rewrites.verify.programs import KernelVerified
from rewrites.workload.phases import Report
from rewrites.workload.stated import spoken
from rewrites.workload.workload import Workload

UNSURE = "measured times are too long; of programs that they cannot distinguish, predicted times and bytes decide"
UNTRUSTED = "measured times are too long; of programs that they cannot distinguish, bytes decide"
TITLES = {name: measure.title for name, measure in MEASURES.items() if measure.figure}
SHOWN_LAWS = 5  # rows of laws that a report shows
TOLD = 5e-5  # share of seconds below which a gap counts as 0
SCREEN = 110  # characters of a line of phases
PACKAGES = ("opmatrix", "numpy", "scipy", "numba", "egglog")


@dataclass(repr=False)
class Result:
    """All results of a run; `points[chosen]` is the answer. It prints as the report."""

    model: str
    machine: TimeModel
    workload: Workload
    structures: Mapping[str, Structure]
    points: list[Point]
    imported: Point
    chosen: int
    saved: list[tuple[tuple[str, ...], float]]
    report: Report
    fused: Point
    steps: list[Gain]
    goals: tuple[Goal, ...]  # goals of the user; the first is the error
    memory: float | None = None  # the budget in bytes, if there is one
    bound: float | None = None  # lower bound of predicted seconds within the budgets
    choices: Choices | None = None
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # a line for each law or candidate that failed
    laws: tuple[Law, ...] = ()
    dropped: list[Point] = field(default_factory=list)
    number_type: str = "int8"
    busy: str = ""  # other load of the machine seen while programs were timed
    terms: dict[str, object] | None = None  # evaluated terms of the answer, see evaluated_terms.py
    generated: list[dict[str, object]] | None = None  # generation by the answer, see generated.py
    operators: Mapping[str, Sequence[Mapping[str, object]]] | None = None  # rows by operator, see by_operator.py
    spectra: Mapping[str, object] | None = None  # spectra of weights, see weight_spectra.py
    misled: Misled | None = None  # price that misled the search, see fewer_laws.py
    missed: Sequence[NearMiss] = ()  # sparse and low-rank methods, where the answer has none

    @property
    def error(self) -> float:
        """The requested limit of the error: the threshold of the first goal."""
        return self.goals[0].threshold

    @property
    def best(self) -> Point:
        """The chosen point."""
        return self.points[self.chosen]

    def __repr__(self) -> str:
        return (
            f"<Result {self.model}: the best of {len(self.points)} programs is {self.best!r}; print it for the report>"
        )

    def _repr_html_(self) -> str:
        return result_html(self)

    def __str__(self) -> str:
        return printed(as_json(self, [Path()] * len(self.points)))


def save(
    result: Result, target: Path, laws: Named | None = None, origins: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Save the chosen program in `target`, with the report and the derivation, and in `target/front` every program of
    the front: all or nothing. `origins` are directories that the report names beside the programs. Returns the figures
    of the report."""
    report = result.report
    with report.phase("derive"):
        steps = tell_steps(result.best, result.laws, result.choices, result.workload.few)
    with report.phase("save"):
        figures_of_run = as_json(result, [target / FRONT / f"{number}" for number in range(len(result.points))], laws)
        figures_of_run |= origins
        with replacing_program(target) as fresh:
            places = [fresh / FRONT / f"{number}" for number in range(len(result.points))]
            write_front(
                {fresh: result.best.program} | dict(zip(places, (p.program for p in result.points), strict=True))
            )
            (fresh / DERIVATION).write_text(steps, "utf-8")
            (fresh / REPORT).write_text(json.dumps(figures_of_run | phase_seconds(report), indent=1), "utf-8")
    return figures_of_run | phase_seconds(report)


def phase_seconds(report: Report) -> dict[str, object]:
    """Return the seconds of the phases so far, and of all together."""
    return {"phases": report.phases, "wall_s": report.wall}


def as_json(result: Result, places: list[Path], laws: Named | None = None) -> dict[str, Any]:
    """Return all figures of a run, and the files of the user that took part."""
    exact = result.structures["exact"]
    return {
        "model": result.model,
        "machine": name_machine(result.machine),
        "workload": result.workload.name,
        "rows": result.workload.rows,
        "tokens": result.workload.tokens,
        "mix": [[share, format_lengths(batch)] for share, batch in result.workload.mix] or None,
        "generate": str(result.workload.generation) if result.workload.generation else None,
        **{
            name: file and file._asdict()
            for name, file in (
                ("text", Named.of(result.workload.text)),
                ("texts", Named.of(result.workload.file)),
                ("laws", laws),
            )
        },
        "number_type": result.number_type,
        "without": sorted(result.left_out),
        "failed": list(result.failed),
        "seeds": [0],
        "versions": {name: installed(name) for name in PACKAGES} | {"python": platform.python_version()},
        "stated": {
            "like": result.workload.like,
            "lengths": result.workload.lengths,
            "uncovered": result.workload.uncovered,
        },
        "scores": [*scoring.labels] if (scoring := result.best.program.scoring) else None,
        **phase_seconds(result.report),
        "busy": {"calibration": next(iter(getattr(result.machine, "marks", ())), ""), "timing": result.busy},
        "search": {
            "seconds": exact.seconds,
            "nodes": exact.nodes,
            "classes": exact.classes,
            "gap": exact.gap,
            "bound": exact.bound,
            "cut": exact.cut,
        },
        "error": result.error,
        "predicted_by": dict(result.choices.predicted_by) if result.choices else {},
        "memory": result.memory,
        "goals": [goal.described(result.best, result.points[0]) for goal in result.goals],
        "generated": result.generated,
        "terms": result.terms,
        "operators": result.operators,
        "spectra": result.spectra,
        "misled": result.misled and result.misled.described(),
        "bound": report_bound(result),
        "prediction": prediction(result),
        "baseline": figures(result.imported),
        "fused": figures(result.fused),
        "front": [describe_point(point, place) for point, place in zip(result.points, places, strict=True)],
        "chosen": result.chosen,
        "steps": [step._asdict() for step in result.steps],
        "missed": [miss._asdict() for miss in result.missed],
        "saved_s": (result.imported.measured_s or 0.0) - (result.best.measured_s or 0.0),
        "saved": [{"laws": list(names), "seconds": seconds} for names, seconds in result.saved],
        "verified": {
            "laws": len(result.laws),
            "programs": len(result.points),
            "rows": result.workload.verify.rows,
            "kernels": bounds_of_kernels(result.points),
        },
        "dropped": [figures(point) for point in result.dropped],
    }


def report_bound(result: Result) -> dict[str, float | None]:
    """Return the proved lower bound of predicted seconds, over all programs that the laws reach with these formats and
    whose methods' errors, squared, add to at most the error goal; and `gap`, the share of the chosen program's seconds
    above it. None if no bound was proved. The gap is below 0 if the errors of the chosen program add to more, though
    it keeps the error goal."""
    chosen = result.best.predicted_s
    return {"seconds": result.bound, "gap": None if result.bound is None else 1 - result.bound / chosen}


def prediction(result: Result) -> dict[str, object]:
    """Return the relative error of predicted seconds of whole programs, over all measured programs of this run."""
    points = [result.imported, result.fused, *result.points]
    off = {at: abs(point.predicted_s / point.measured_s - 1) for at, point in enumerate(points) if point.measured_s}
    worst = max(off, key=lambda at: off[at])
    return {
        "programs": len(off),
        "median": median(off.values()),
        "worst": off[worst],
        "worst_program": points[worst].name,
    }


def describe_point(point: Point, place: Path) -> dict[str, object]:
    """Return the entry of a point in report.json: its figures, laws and methods, and the place of its program."""
    removed = point.variant.removed if point.variant else None
    return figures(point) | {
        "program": str(place),
        "laws": list(point.laws),
        "methods": point.methods,
        "removed": removed and removed.described(),
        "detours": [str(detour) for detour in point.structure.substitutions.values()] if point.structure else [],
    }


def figures(point: Point) -> dict[str, object]:
    """Return the predicted and the measured figures of a program."""
    return {
        "name": point.name,
        "predicted_s": point.predicted_s,
        "measured_s": point.measured_s,
        "predicted_bytes": point.predicted_bytes,
        "measured_bytes": point.measured_bytes,
        "stored_bytes": point.program.stored_bytes,
        "predicted_error": point.predicted_error,
        "measured_error": point.measured_error,
        "stated_error": point.stated_error,
        "stated": point.stated and point.stated.described(),
        "gap": point.gap,
        "near": point.checks.get("lengths", {}).get("errors", []),
        "routing": point.checks.get("error", {}).get("routing"),
        "verified": point.verified,
        **{name: point.judged.get(name) for name in TITLES},
    }


def printed(record: dict[str, Any], target: Path | None = None) -> str:
    """Return the report of a run as text, from its figures (see `as_json`) and the place where it is saved."""
    search, front, checked, busy = record["search"], record["front"], record["verified"], record["busy"]
    header = [*POINT_COLUMNS, *(title for name, title in TITLES.items() if front[0][name] is not None)]
    wide = len(str(len(front) - 1))
    rows = [
        format_point(f"  {'':{wide}} imported", record["baseline"]),
        *(
            format_point(f"{'*' if at == record['chosen'] else ' '} {at:{wide}} {point['name']}", point)
            for at, point in enumerate(front)
        ),
    ]
    return "\n\n".join(
        [
            phases(record),
            f"model     {record['model']}\nmachine   {record['machine']}\nworkload  {record['workload']}\n"
            f"search    {search['nodes']} nodes, {search['classes']} classes; {proof(search['gap'])}"
            + "".join(f"\ncut       {cut}" for cut in search["cut"])
            + f"\n{tell_bounds(record)}"
            + tell_goals(record["goals"])
            + tell_evaluated(record["terms"]),
            *warn_busy(
                busy["timing"], UNTRUSTED if busy["calibration"] else UNSURE, [*filter(None, [busy["calibration"]])]
            ),
            *(["left out\n" + "\n".join(record["failed"])] if record["failed"] else []),
            f"programs: * is chosen; numbers are directories of {FRONT}/\n" + table(rows, header),
            *tell_generated(record["generated"]),
            "what saved it: medians and quartiles of the same rounds\n"
            + "\n".join([gains(record), *tell_misses(record["missed"])]),
            "laws of the exact program, by leaving one out: savings overlap\n"
            + table(list_saved(record)[:SHOWN_LAWS], ["", "µs predicted"]),
            f"verified  {checked['laws']} laws, the graphs they make, and {checked['programs']} programs against the "
            f"float64 oracle on {checked['rows']} held-out rows"
            + tell_loosest(checked.get("kernels", {}))
            + "".join(f"\ndropped   {tell_dropped(point)}" for point in record["dropped"])
            + f"\n{spoken(record['stated'], front[record['chosen']])}"
            + tell_routing(front[record["chosen"]].get("routing")),
            *(
                []
                if target is None
                else [f"saved     {target}\nnext      {tell_run(record, target)}    opmatrix explain {target}"]
            ),
        ]
    )


def bounds_of_kernels(points: Sequence[Point]) -> dict[str, KernelVerified]:
    """Return the bounds of each kernel of the imported program and of these points: the largest share of its bound
    that an error takes, and how loose the bound is."""
    merged: dict[str, KernelVerified] = {}
    for point in points:
        exact = point.checks.get("exact") or {}
        for steps in (exact.get("steps"), point.checks.get("import"), point.checks.get("steps")):
            for kernel, shares in (steps or {}).get("kernels", {}).items():
                known = merged.get(kernel, shares)
                merged[kernel] = KernelVerified(
                    nearest=max(known["nearest"], shares["nearest"]), allowed=max(known["allowed"], shares["allowed"])
                )
    return merged


def tell_dropped(point: Mapping[str, Any]) -> str:
    """Write the measured and the predicted error of a program that was left out of the front."""
    return f"{point['name']}: {percent(point['measured_error'])} off, {percent(point['predicted_error'])} predicted"


def tell_loosest(record: dict[str, KernelVerified]) -> str:
    """Describe the loosest bound of a step, as the end of a line."""
    if not record:
        return ""
    kernel = max(record, key=lambda each: record[each]["allowed"])
    return f"; each step within its bound, at most {record[kernel]['allowed']:.1g} of what it gives ({kernel})"


def tell_routing(record: dict[str, Any] | None) -> str:
    """Describe, if rows are routed, how many of them the program sends elsewhere than the model, as a line."""
    if not record:
        return ""
    share = record["rows"] / max(1, record["of"])
    along = record.get("along")  # absent in 0.20.0
    return (
        f"\nrouted    {record['rows']:,} of {record['of']:,} rows ({percent(share)}) are routed elsewhere than in the "
        "model alone, and count"
        + (
            ""
            if along is None
            else f"; along the\n          routes that the program took it is off by {percent(along)}"
        )
    )


def phases(record: dict[str, Any]) -> str:
    """Return the seconds of each phase, and of all, in lines that fit a screen."""
    parts = [f"{name} {seconds:.1f} s" for name, seconds in record["phases"].items()]
    lines = [""]
    for part in [*parts, f"in all {record['wall_s']:.1f} s"]:
        if len(lines[-1]) + len(part) + 2 > SCREEN:
            lines.append("")
        lines[-1] += f"  {part}"
    return "phases" + "\n      ".join(lines)


def format_point(name: str, point: dict[str, Any]) -> list[str]:
    """Return the cells of a point in the table of the report."""
    return [*point_row(name, point), *(f"{point[name]:.2f}" for name in TITLES if point[name] is not None)]


def list_saved(record: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each law, or group of laws that fire alike, with savings above 0."""
    return [
        [join_names(entry["laws"]), f"{1e6 * entry['seconds']:.1f}"]
        for entry in record["saved"]
        if entry["seconds"] > 0
    ]


def proof(gap: float) -> str:
    """Describe the bound that the search proved on its optimum, and over which programs."""
    return "proved: no program equal to the model that these laws reach is predicted to be " + (
        f"faster than `exact` by more than {percent(gap)}" if gap >= TOLD else "faster than `exact`"
    )


def tell_run(record: Mapping[str, object], target: Path) -> str:
    """Return the command that runs a saved program on a text, or on a pair of texts for a model that scores them."""
    return f"opmatrix run {target} " + ('"a query" "a document"' if record.get("scores") else '"a sentence"')


def tell_bounds(record: dict[str, Any]) -> str:
    """Describe the lower bound of seconds within the budgets, and the errors of predicted seconds."""
    least, chosen, off = record["bound"], record["front"][record["chosen"]], record["prediction"]
    if least["seconds"] is None:
        line = "none was proved for these budgets: the chosen program is the fastest of those measured"
    else:
        line = (
            f"no program that the laws reach, with weights no narrower than {record['number_type']} and errors that "
            f"add to {percent(record['error'])}, is\n          predicted below {ms(least['seconds'])} ms; the "
            f"chosen one is at {ms(chosen['predicted_s'])} ms, "
            + (
                f"of which {at_most(least['gap'])} could be saved"
                if least["gap"] > -TOLD
                else "as its errors add to more, and cancel"
            )
        )
    return (
        f"bound     {line}\nprices    predicted seconds of the {off['programs']} programs measured here are "
        f"off by {percent(off['median'])} at the median, {percent(off['worst'])} at worst ({off['worst_program']})"
        + describe_misled(record["misled"])
    )


def at_most(gap: float) -> str:
    """Write a gap in percent as an upper bound; `nothing` if it is below TOLD."""
    return f"at most {percent(gap)}" if gap >= TOLD else "nothing"


def tell_goals(goals: list[dict[str, object]]) -> str:
    """Describe the values of the goals for the chosen program, if there are goals beside the error."""
    told = "; ".join(f"{goal['goal']}: {goal['value']:.4g}" for goal in goals)
    return "\ngoals     " + told + "".join(map(tell_stated, goals)) if len(goals) > 1 else ""


def tell_stated(goal: Mapping[str, object]) -> str:
    """Describe what is stated of a goal from lines that chose no program, if anything is."""
    stated = goal.get("stated")
    if not isinstance(stated, Mapping):
        return ""
    measure, sizes = str(goal["goal"]).partition(">=")[0], (int(stated["queries"]), int(stated["lines"]))
    beside = f", beside {stated['exact']:.4g} of the exact program" if "exact" in stated else ""
    return (
        f"\n          {measure} on {sizes[0]:,} queries and {sizes[1]:,} lines that chose nothing: "
        f"{stated['mean']:.4g}, at least {stated['at_least']:.4g} ({stated['confidence']:.0%} of bootstrap samples)"
        f"{beside}"
    )


def list_gains(record: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each means, and a row for their sum."""
    return [
        *(
            [
                name_step(step),
                ms(step["measured_s"]),
                between(step["quartiles_s"]),
                ms(step["saved_s"]),
                "below noise" * step["below_noise"],
            ]
            for step in record["steps"]
        ),
        ["in all", "", "", ms(record["saved_s"]), ""],
    ]


def gains(record: dict[str, Any]) -> str:
    """Return the savings of each means, as a table."""
    return table(list_gains(record), ["", "ms measured", "quartiles", "ms saved", ""])


def name_step(step: dict[str, str]) -> str:
    """Return the name of a means, and of the program that has it."""
    return step["name"] if step["name"] == step["program"] else f"{step['name']}: {step['program'] or 'nothing'}"
