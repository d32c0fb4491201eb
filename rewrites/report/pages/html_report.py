"""The report of a run as one page: the figures of report.json, in the words of the text report, with a picture."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.disk.files import read_bytes, reason, replacing, writable
from formats.host.quiet import warn_busy
from opmatrix.display.front_plot import front_plot
from opmatrix.display.shown import POINT_COLUMNS
from opmatrix.display.tables import megabytes, ms, percent
from rewrites.explain.derivations.savings import join_names
from rewrites.report.evaluated_terms import tell_evaluated
from rewrites.report.generated import CONTEXT_COLUMNS, context_row
from rewrites.report.near_misses import tell_misses
from rewrites.report.pages.page_style import MOST_NAME, facts_of, grid_of, page, paragraph, section, text_of
from rewrites.report.pages.repeated import repeat_commands
from rewrites.report.pages.spectra_plot import spectra_plot
from rewrites.report.results import (
    TITLES,
    UNSURE,
    UNTRUSTED,
    format_point,
    list_gains,
    list_saved,
    proof,
    tell_bounds,
    tell_dropped,
    tell_loosest,
    tell_routing,
)
from rewrites.workload.stated import spoken

FRONT = ("program", *POINT_COLUMNS[1:])
SPECTRUM_FIGURES = "matrix", "shape", "σ₁", "stable", "effective", "tail 10 %", "tail 1 %", "knee"
OURS = b"<title>opmatrix: "  # the beginning of every page
MOST_WEIGHTS = 400  # rows of the table of weights


def html_report(record: dict[str, Any]) -> str:
    """Return the page. `record` are the figures of a run, made by it or checked (kept_report.py)."""
    return page(f"opmatrix: {record['model']}", sections(record))


def write_html(record: dict[str, Any], file: Path | None) -> None:
    """Write the page to `file`, if it is not None, whole or not at all."""
    if file is None:
        return
    try:
        with replacing(file) as out:
            out.write(html_report(record).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{file}: not written: {reason(error)}") from error


def page_place(file: Path) -> None:
    """Raise InputError for a place that no page can be written to, and for an existing file that is no such page."""
    writable(file)
    if file.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{file}: a page's name ends in .html")
    if file.exists() and OURS not in read_bytes(file):
        raise InputError(f"{file}: it exists, and is no page of a report: name another place")


def sections(record: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of the page in reading order."""
    best, base, busy = record["front"][record["chosen"]], record["baseline"], record["busy"]
    yield f"<header><h1>{text_of(record['model'])}</h1>{paragraph(summary(record, best, base))}"
    yield "".join(
        map(
            paragraph,
            warn_busy(
                busy["timing"], UNTRUSTED if busy["calibration"] else UNSURE, [*filter(None, [busy["calibration"]])]
            ),
        )
    )
    yield "".join(map(paragraph, record["failed"]))
    yield (
        facts_of(
            [
                ("machine", record["machine"]),
                ("workload", record["workload"]),
                ("stored", f"{megabytes(best['stored_bytes'])} MB"),
                ("verified", "yes" if best["verified"] else "no"),
            ]
        )
        + "</header>"
    )
    yield section("The front, and the choice", *front(record))
    if record["operators"]:
        yield section("Before and after, by operator", *operators(record["operators"]))
    yield section(
        "What saved it",
        grid_of(
            "Medians and quartiles of the same rounds",
            ("means", "ms measured", "quartiles", "ms saved", "note"),
            list_gains(record),
        ),
        *map(paragraph, tell_misses(record["missed"])),
    )
    yield section("Laws of the exact program", *laws(record))
    if record["generated"]:
        yield section("Generated text", generated(record["generated"]))
    yield section(
        "Goals",
        grid_of(
            "Of the chosen program",
            ("goal", "value", "kept"),
            [
                [goal["goal"], f"{goal['value']:.4g}", {True: "yes", False: "no"}.get(goal["kept"], "")]
                for goal in record["goals"]
            ],
        ),
    )
    yield section(
        "What is stated, and what is not covered",
        *map(paragraph, split_stated(spoken(record["stated"], best))),
        paragraph(tell_routing(best["routing"])),
    )
    yield section("How weights are stored", stored_methods(best["methods"]))
    if record["spectra"]:
        yield section("Spectra of weights", *spectra(record["spectra"]))
    yield section(
        "Verified",
        paragraph(verified(record)),
        *(
            paragraph(f"dropped: {tell_dropped(point)}")
            for point in record["dropped"]
            if None not in (point["measured_error"], point["predicted_error"])
        ),
    )
    yield section(
        "To repeat it",
        f"<pre>{escape(chr(10).join(repeat_commands(record)))}</pre>",
        facts_of(sorted(record["versions"].items())),
        files(record),
    )
    yield section(
        "Phases",
        grid_of(
            "Seconds of this run",
            ("phase", "s"),
            [[name, f"{seconds:.1f}"] for name, seconds in [*record["phases"].items(), ("in all", record["wall_s"])]],
        ),
    )


def split_stated(said: str) -> list[str]:
    """Split the text of stated errors into lines: the stated error of whole and single texts, errors at other lengths,
    and things that are not covered."""
    return said.removeprefix("stated").replace("\n          (", " (").split("\n")


def summary(record: Mapping[str, Any], best: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the answer in a sentence."""
    before, after = base["measured_s"], best["measured_s"]
    times = "" if not before or not after else f", measured, beside {ms(before)} ms of the import"
    takes = ms(best["predicted_s"] if after is None else after)
    return (
        f"The chosen program, {best['name'][:MOST_NAME]}, takes {takes} ms{times}"
        f"; it is off by {percent(best['measured_error'])}."
    )


def front(record: dict[str, Any]) -> Iterator[str]:
    """Yield the picture, its table, and the proved bounds."""
    points, base, search = record["front"], record["baseline"], record["search"]
    extra = [title for name, title in TITLES.items() if points[0][name] is not None]
    rows = [
        format_point("imported", base),
        *(
            format_point(f"{'* ' * (at == record['chosen'])}{at} {point['name']}", point)
            for at, point in enumerate(points)
        ),
    ]
    rows = [row + [""] * (len(FRONT) + len(extra) - len(row)) for row in rows]
    yield (
        f"<figure>{front_plot(base, points, record['chosen'])}<figcaption>Time and memory. A diamond is the import, "
        "a square an exact program, a disc an approximate one; the ring is the chosen one. Numbers are those of the "
        "table and of the directories of front/, names how weights are stored: int8 x3, three of them as bytes."
        "</figcaption></figure>"
    )
    yield grid_of("Programs; * is chosen", (*FRONT, *extra), rows, record["chosen"] + 1)
    yield facts_of(
        [
            ("search", f"{search['nodes']} nodes, {search['classes']} classes; {proof(search['gap'])}"),
            *(("cut", cut) for cut in search["cut"]),
            *((name, " ".join(rest.split())) for name, rest in named_lines(tell_bounds(record))),
            *((name, " ".join(rest.split())) for name, rest in named_lines(tell_evaluated(record["terms"]))),
        ]
    )


def named_lines(said: str) -> Iterator[tuple[str, str]]:
    """Yield lines of the text report with the word that they begin with; indented lines belong to the one before."""
    name, rest = "", ""
    for line in said.splitlines():
        if line[:1].strip():
            if name:
                yield name, rest
            name, _, rest = line.partition(" ")
        else:
            rest += " " + line
    if name:
        yield name, rest


def operators(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the import and the chosen program, each as a table."""
    for which, title in (
        ("before", "Before: the import, a kernel for each operator"),
        ("after", "After: the chosen program"),
    ):
        yield grid_of(
            title,
            ("operator", "steps", "ms predicted", "measured"),
            [
                [row["what"], str(row["steps"] or ""), ms(row["predicted_s"]), ms(row["measured_s"])]
                for row in record[which]
            ],
        )


def laws(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cost of leaving out each law."""
    others = [join_names(entry["laws"]) for entry in record["saved"] if not entry["seconds"] > 0]
    if rows := list_saved(record):
        yield grid_of("By leaving one out: savings overlap", ("law", "µs predicted"), rows)
    if others:
        yield paragraph(f"Left out alone, these cost nothing: {', '.join(others)}.")
    if not record["saved"]:
        yield paragraph("No savings of laws were measured.")
    if record["without"]:
        yield paragraph(f"Left out: {', '.join(record['without'])}")


def generated(record: list[dict[str, Any]]) -> str:
    """Return the table of generation at each context."""
    return grid_of("By a session of the chosen program", CONTEXT_COLUMNS, [context_row(figures) for figures in record])


def stored_methods(methods: Mapping[str, object]) -> str:
    """Return a table of the number of weights that each method stores."""
    if not methods:
        return paragraph("All weights are stored as they are.")
    rows = [[name, str(what)] for name, what in [*methods.items()][:MOST_WEIGHTS]]
    more = len(methods) - len(rows)
    return grid_of("Methods of the chosen program, and how many weights each stores", ("method", "weights"), rows) + (
        paragraph(f"and {more} more, in report.json") if more else ""
    )


def spectra(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a picture of the sampled weights, and their figures."""
    rows = [
        [
            row["name"],
            "×".join(map(str, row["shape"])),
            f"{row['largest']:.3g}",
            f"{row['stable']:.1f}",
            f"{row['effective']:.0f}",
            str(row["tail_10"]),
            str(row["tail_1"]),
            str(row["knee"]),
        ]
        for row in record["weights"]
    ]
    yield paragraph(
        f"{len(rows)} of the {record['of']} matrices that the model multiplies by: of each kind the first "
        "layer's, the middle one's and the last one's. What falls fast can be stored by low rank. "
        "`opmatrix spectrum MODEL` prints all, and with `--of error` those in the metric of the output, which are not "
        "computed here."
    )
    if not rows:
        return
    yield (
        f"<figure>{spectra_plot(record['weights'])}<figcaption>Singular values over the largest, by index. The first "
        "layer's line is solid, the middle one's dashed, the last one's dotted.</figcaption></figure>"
    )
    yield grid_of(
        "Of each matrix: σ₁; stable and effective rank; the ranks that leave 10 % and 1 % of the energy; the knee",
        SPECTRUM_FIGURES,
        rows,
    )


def verified(record: Mapping[str, Any]) -> str:
    """Describe the verification of laws, graphs and programs."""
    checked = record["verified"]
    loosest = tell_loosest(checked.get("kernels", {}))
    return (
        f"{checked['laws']} laws, the graphs they make, and {checked['programs']} programs against the float64 "
        f"oracle on {checked['rows']} held-out rows{loosest}. The certificate is stored beside the program; `opmatrix "
        "verify` does its checks again."
    )


def files(record: Mapping[str, Any]) -> str:
    """Return a table of the user's files that took part."""
    rows = [[name, record[name]["file"], record[name]["sha256"]] for name in ("text", "texts", "laws") if record[name]]
    return grid_of("Files that took part", ("as", "file", "SHA-256"), rows, words=(0, 1, 2)) if rows else ""
