"""What a run found out, as text, as JSON, and as directories that run."""
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from formats.quiet import told
from opmatrix.saving import FRONT, REPORT, placed, write
from rewrites.explain import tell
from rewrites.report import megabytes, ms, percent, table
from rewrites.reported import Named
from rewrites.run import Point, Result

UNSURE = "measured times are too long; of programs that they do not tell apart, predicted times and bytes decide"
PACKAGES = ("opmatrix", "numpy", "scipy", "numba", "egglog")


def save(result: Result, target: Path, laws: Named | None = None) -> dict[str, Any]:
    """Saves the chosen program in `target`, beside it the report, and in `target/front` every program of the front, each with the
    steps that lead to it: all or nothing. The figures of the report."""
    found = as_json(result, [target / FRONT / f"{number}" for number in range(len(result.points))], laws)
    with placed(target) as fresh:
        places = [fresh / FRONT / f"{number}" for number in range(len(result.points))]
        for place, program in [(fresh, result.best.program), *zip(places, (p.program for p in result.points), strict=True)]:
            write(program, place)
        tell(result, fresh, places)
        (fresh / REPORT).write_text(json.dumps(found, indent=1), "utf-8")
    return found


def as_json(result: Result, places: list[Path], laws: Named | None = None) -> dict[str, Any]:
    """All figures of a run, and the files of the user that took part."""
    exact = result.structures["exact"]
    return {
        "model": result.model, "machine": machine_name(result.machine), "workload": result.workload.name,
        "rows": result.workload.rows, "tokens": result.workload.tokens,
        **{name: kept and kept._asdict() for name, kept in (("text", Named.of(result.workload.text)),
                                                           ("texts", Named.of(result.workload.file)), ("laws", laws))},
        "number_type": result.number_type, "without": sorted(result.left_out), "seeds": [0],
        "versions": {name: installed(name) for name in PACKAGES} | {"python": platform.python_version()},
        "phases": result.report.seconds,
        "busy": {"calibration": getattr(result.machine, "busy", ""), "timing": result.busy},
        "search": {"seconds": exact.seconds, "nodes": exact.nodes, "classes": exact.classes, "gap": exact.gap,
                   "bound": exact.bound, "cut": exact.cut},
        "baseline": {"measured_s": result.imported.measured_s, "measured_bytes": result.imported.measured_bytes,
                     "predicted_s": result.imported.predicted_s, "measured_error": result.imported.measured_error},
        "fused": {"measured_s": result.fused_s, "predicted_s": result.structures["fused"].time},
        "front": [described(point, place) for point, place in zip(result.points, places, strict=True)],
        "chosen": result.chosen,
        "saved": [{"law": name, "seconds": seconds} for name, seconds in result.saved],
    }


def installed(name: str) -> str:
    """The version of a package; a checkout that is not installed has none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine_name(machine: Any) -> str:
    return str(getattr(machine, "name", type(machine).__name__))


def described(point: Point, place: Path) -> dict[str, Any]:
    return {"name": point.name, "predicted_s": point.predicted_s, "measured_s": point.measured_s,
            "predicted_bytes": point.predicted_bytes, "measured_bytes": point.measured_bytes,
            "stored_bytes": point.program.stored_bytes,
            "predicted_error": point.predicted_error, "measured_error": point.measured_error,
            "stated_error": point.stated_error, "gap": point.gap,
            "verified": point.verified, "spearman": point.spearman,
            "program": str(place), "laws": list(point.laws), "methods": point.methods}


def row(name: str, point: Point) -> list[str]:
    return [name, ms(point.predicted_s), ms(point.measured_s),
            megabytes(point.predicted_bytes), megabytes(point.measured_bytes),
            percent(point.predicted_error), percent(point.measured_error),
            *([] if point.spearman is None else [f"{point.spearman:.2f}"])]


def printed(result: Result, target: Path) -> str:
    """The report of a run."""
    exact, chosen = result.points[0], result.best
    header = ["", "ms predicted", "measured", "MB predicted", "measured", "error predicted", "measured"]
    header += ["Spearman x 100"] * (exact.spearman is not None)
    rows = [row("imported", result.imported), row("exact", exact), row(f"chosen: {chosen.name}", chosen)]
    front = [row(("* " if i == result.chosen else "  ") + point.name, point)
             for i, point in enumerate(result.points)]
    laws = [[name, f"{1e6 * seconds:.1f}"] for name, seconds in result.saved[:5]]
    search = result.structures["exact"]
    busy = [told(result.busy, UNSURE)] if result.busy else []
    return "\n\n".join([
        "phases  " + "  ".join(f"{name} {seconds:.1f} s" for name, seconds in result.report.seconds.items()),
        f"model     {result.model}\nmachine   {machine_name(result.machine)}\n"
        f"workload  {result.workload.name}\n"
        f"search    {search.nodes} nodes, {search.classes} classes, optimum proved to {100 * search.gap:.2g} %" +
        "".join(f"\ncut       {cut}" for cut in search.cut),
        *busy, table(rows, header), "front\n" + table(front, header),
        "laws that save most, by leaving each out\n" + table(laws, ["", "µs predicted"]),
        f"verified  {len(result.laws)} laws, the graphs they make, and {len(result.points)} programs against the "
        f"float64 oracle on {result.workload.verify.rows} held-out rows" + "".join(
            f"\ndropped   {p.name}: {p.measured_error:.3g} off, {p.predicted_error:.3g} predicted"
            for p in result.dropped),
        f"saved     {target}\nnext      opmatrix run {target} \"a sentence\"    opmatrix explain {target}"])
