"""What all benchmarks share: they start from anywhere, refuse in a line, and judge their figures. Nothing is timed
here."""

import json
import os
import re
import sys
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import standin
from children import ROOT
from forked import Forks

sys.path.append(str(ROOT / "benchmarks"))

from lib import command
from lib.bars import Table, plot
from lib.command import HERE, Figure, concluded

import products
import selection

from formats.core.errors import InputError

SCRIPTS = {file.name: file.read_text() for file in sorted(HERE.glob("*.py"))}
COMMANDS = [
    name if part in ("", Path(name).stem) else f"{name} {part}"
    for name, source in SCRIPTS.items()
    for part in re.findall(r"^def measure_(\w+)\(\)", source, re.MULTILINE) or [""]
]
EMPTY = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OPMATRIX_DATA")}


def test_scripts_are_few_and_on_the_page():
    """A new measurement is a part of the script whose subject it shares."""
    page = (HERE / "README.md").read_text("utf-8")
    assert len(SCRIPTS) <= 30
    assert [name for name in COMMANDS if f"`{name}" not in page] == []


def test_no_benchmark_is_called_like_a_package():
    """A script's folder comes first where it looks for modules."""
    assert not {file.stem for file in HERE.rglob("*.py")} & {"formats", "opmatrix", "rewrites"}


BAD = "this is no such file"
REFUSED = [
    ("extraction.py", ["nowhere"], "DIR: nowhere: it is no directory"),
    ("extraction.py", [], "nothing to extract"),
    ("extraction.py", ["{folder}"], "bad.json: not JSON"),
    ("extraction.py peer_laws", ["nowhere.csv"], "file: nowhere.csv: No such file"),
    ("extraction.py peer_laws", ["{folder}/bytes", "--laws", "nowhere.py"], "--laws: nowhere.py: No such file"),
    ("extraction.py peer_laws", ["{folder}/bad.json"], "the columns lhs, rhs, truth are missing"),
    ("extraction.py peer_laws", ["{folder}/bytes"], "byte 0 is not UTF-8"),
    ("search.py", ["--found", "nowhere.py"], "--found: nowhere.py: No such file"),
    ("selection.py prediction", ["--machine", "{folder}/bad.json"], "give what `opmatrix calibrate` saved here"),
    ("selection.py", ["nowhere"], "directory: nowhere: it is no directory"),
    ("selection.py", ["{folder}"], "it holds no patterns"),
    ("stated.py", ["{folder}"], "report.json: No such file"),
    ("gain.py", ["--model", "nowhere"], "nowhere: neither"),
    ("whole.py ranking", ["--model", "nowhere"], "nowhere: neither"),
    ("whole.py sparse", ["--model", "{folder}"], "config.json"),
    ("whole.py", ["--rounds", "0"], "--rounds: 0: a whole number from 1 on"),
    ("spectra.py", ["--subspaces", "3,9"], "--subspaces 3: more than --count 4 + 1"),
    ("attention.py masks", ["--csv", "nowhere/out.csv"], "--csv nowhere/out.csv: it is to be a file"),
    ("products.py crossovers", ["--formats", "zip"], "--formats zip: dense"),
    ("faults.py guards", ["--doors", "back"], "--doors back: "),
    ("fuzz.py proofs", ["--count", "0"], "--count: 0: a whole number from 1 on"),
    ("spoilt_files.py hostile", ["--files", "0"], "--files: 0: a whole number from 1 on"),
    ("paired.py", ["no-such"], "no-such: no commit of"),
    ("fuzz.py drawn", ["--count", "0"], "--count: 0: a whole number from 1 on"),
    ("partitions.py", ["--count", "0"], "--count: 0: a whole number from 1 on"),
    (
        "partitions.py pipelines",
        ["--pipelines", "1f1b:3+3"],
        "--pipelines 1f1b:3+3: a schedule and the layers of 4 stages",
    ),
    ("partitions.py local_plans", ["--width", "30"], "--width 30: a multiple of 4"),
    ("models.py", ["--types", "float8"], "--types float8: float32"),
    ("models.py", ["models", "--types", "float8"], "--types float8: float32"),
    ("fuzz.py", [], "no part: name one of drawn, proofs"),
    ("fuzz.py", ["everything", "--count", "1"], "everything: name one of drawn, proofs"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("given")
    (place / "bad.json").write_text(BAD)
    (place / "bytes").write_bytes(b"\xff\xfe")
    return place


@pytest.fixture(scope="module")
def answers(folder, tmp_path_factory):
    """The runs of all benchmarks that tests read: by index, (status, output, errors): of asking each for its
    help, then of each line of REFUSED. They are started as by hand, in another folder, with nothing that says where the
    packages are; all runs of a script are one process, which imports once."""
    place = tmp_path_factory.mktemp("elsewhere")
    runs = [(name, ["--help"]) for name in COMMANDS]
    runs += [(name, [word.format(folder=folder) for word in words]) for name, words, _ in REFUSED]
    scripts = {}
    for index, (name, words) in enumerate(runs):
        scripts.setdefault(name.split()[0], []).append((index, [*name.split()[1:], *words]))
    with Forks(place, EMPTY) as run:
        return {
            index: tuple(answer)
            for script, numbered in scripts.items()
            for (index, _), answer in zip(
                numbered, run(place, HERE / script, [words for _, words in numbered]), strict=True
            )
        }


def test_every_benchmark_starts(answers):
    assert len(COMMANDS) > 40
    for index, name in enumerate(COMMANDS):
        status, out, errors = answers[index]
        assert (status, errors) == (0, "") and "--figures" in out, f"{name}: {errors}"
        assert out.startswith(f"usage: {name} [-h]"), f"{name}: {out}"


def test_what_is_refused_is_one_line(answers):
    for index, (name, words, said) in enumerate(REFUSED, len(COMMANDS)):
        status, _, errors = answers[index]
        lines = [line for line in errors.splitlines() if not line.startswith(("busy machine", "   "))]
        assert status == 2 and len(lines) == 1, f"{name} {words}: {errors}"
        assert lines[0].startswith(f"{name.split()[0]}: ") and said in lines[0], f"{name} {words}: {errors}"


@pytest.mark.parametrize(
    "kind, text, value",
    [
        ("count", "7", 7),
        ("count", "0", None),
        ("count", "x", None),
        ("whole", "0", 0),
        ("whole", "-1", None),
        ("whole", "1.5", None),
        ("share", "0.5", 0.5),
        ("share", "0", None),
        ("share", "6.26", None),
        ("share", "nan", None),
        ("positive", "inf", None),
        ("shape", "8x128", (8, 128)),
        ("shape", "8", None),
        ("shape", "0x3", None),
    ],
)
def test_an_option_out_of_range_is_refused(kind, text, value):
    parser = command.Parser("What it does.", table=False)
    parser.add_argument("--it", type=getattr(command, kind))
    if value is not None:
        assert parser.parse_args(["--it", text]).it == value
    else:
        with pytest.raises(InputError, match=f"--it: {text}: "):
            parser.parse_args(["--it", text])


@pytest.mark.parametrize(
    "given, verdict",
    [
        (dict(value=0.8, least=0.7), "met"),
        (dict(value=0.6, least=0.7), "missed"),
        (dict(value=3.0, most=3), "met"),
        (dict(value=3.1, most=3), "missed"),
        (dict(value=5.0), ""),
        (dict(value=2.0, least=1, most=3), "met"),
        (dict(value=0.72, least=0.7, spread=0.1), "not measured here: the bar lies within the spread"),
        (dict(value=0.72, least=0.7, spread=0.05), "met"),
        (dict(value=1.2, most=1, spread=0.2), "missed"),
        (dict(value=6.26, least=0.7, ceiling=1), "impossible: beyond 1, so it was measured wrongly"),
        (dict(value=-0.1, most=0.7, ceiling=1), "impossible: beyond 1, so it was measured wrongly"),
        (dict(value=1.03, least=0.7, ceiling=1), "met"),
        (dict(value=None, least=1, why="no torch"), "not measured here: no torch"),
        (dict(value=nan, least=1), "not measured here: no number came out"),
        (dict(value=inf, least=1), "not measured here: no number came out"),
    ],
)
def test_a_figure_is_judged_by_its_bar(given, verdict):
    assert Figure("speed", **given).verdict == verdict


def test_figures_are_printed_and_written(tmp_path, capsys):
    figures = Figure("speed", 0.5, "x", 0.04, least=0.4), Figure("loss", None, most=1, why="no data")
    concluded(SimpleNamespace(figures=tmp_path / "out.json"), figures)
    assert [Figure(**each) for each in json.loads((tmp_path / "out.json").read_text())] == [*figures]
    said = capsys.readouterr().out
    assert (
        "0.5 x" in said
        and "± 2.0 %" in said
        and "≥ 0.4" in said
        and "met" in said
        and "not measured here: no data" in said
    )


def test_too_few_times_have_no_spread():
    assert command.spread([1.0, 2.0, 3.0]) is None and command.shown(None) == ""
    assert command.spread([1.0, 1.0, 1.0, 1.2, 1.2]) == pytest.approx(0.2) and command.spread([1.0] * 9) == 0


# ---- products


def asked(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["products.py", "crossovers", *words])
    return products.arguments()


def test_a_quick_run_keeps_the_options_that_are_given(monkeypatch):
    given = asked(monkeypatch, "--quick", "--shapes", "64x128", "--densities", "0.25", "--decode", "1")
    assert (given.shapes, given.densities, given.decode) == (["64x128"], [0.25], 1.0)
    assert {task for task, *_ in products.tasks(given)} == {("64x128", "random", 0.25, (1, 128))}
    assert len(products.tasks(asked(monkeypatch, "--quick"))) < len(
        products.tasks(asked(monkeypatch, "--shapes", "64x128"))
    )
    assert not asked(monkeypatch, "--quick").decode and asked(monkeypatch).decode


def test_the_whole_grid_alone_holds_the_bars(monkeypatch):
    held = {
        words: any(task[0] == "4096x4096" for task, *_ in products.tasks(asked(monkeypatch, *words)))
        for words in ((), ("--quick",), ("--structures", "random"), ("--bars",))
    }
    assert held == {(): True, ("--quick",): False, ("--structures", "random"): False, ("--bars",): True}


def row(form, provider, at, seconds, structure="random", rows=128):
    return dict(
        shape="64x128",
        rows=rows,
        structure=structure,
        density=at,
        format=form,
        provider=provider,
        threads=1,
        median_s=seconds,
        min_s=seconds,
        bytes=1,
        error=0.0,
        rounds=[seconds] * 5,
        spread=0.0,
    )


class Reads:
    """A process that multiplies at a share of the speed of reading."""

    provider, threads = "ours", 1

    def __init__(self, share):
        self.share = share

    def ask(self, what, /, **given):
        return 1 << 30, 9e9, 1e10, [0.1, *[self.share] * 7, 99.0]


@pytest.mark.parametrize(
    "share, size, said",
    [
        (0.8, 4, "met"),
        (0.5, 4, "missed"),
        (6.26, 4, "impossible: beyond 1, so it was measured wrongly"),
        (0.8, 1, "not measured here: 64 MiB are less than twice the last cache of 64 MiB"),
    ],
)
def test_no_product_reads_faster_than_memory(share, size, said, monkeypatch):
    monkeypatch.setattr(products, "caches", lambda: [1 << 15, 64 << 20])
    monkeypatch.setattr(products.peaks, "free_memory", lambda: 1 << 40)
    figures = [*products.decoded([Reads(share)], SimpleNamespace(decode=size, threads=[1]))]
    assert {each.verdict for each in figures} == {said} and len(figures) == len(products.DECODED)


def test_bars_are_figures_of_the_first_number_of_threads(capsys):
    rows = [
        row(form, who, at, seconds)
        for at in (0.1, 0.4, 0.8)
        for form, who, seconds in (("dense", "numpy", 8.0), ("csr", "ours", 2.0))
    ]
    figures = {each.what: each for each in products.report(Table(rows), [1])}
    assert figures["CSR at 0.1 against dense"].verdict == "met" and figures["CSR at 0.1 against dense"].value == 4.0
    assert figures["CSR: density up to which it beats dense float32"].value == 0.8, "it wins as far as was measured"
    assert figures["CSR at 0.1 against the best library's CSR"].verdict == "not measured here: no such row"
    assert "bars on 1 thread(s)" in capsys.readouterr().out


def test_the_legend_lies_beside_the_panels(tmp_path):
    pytest.importorskip("matplotlib", reason="needs peers: matplotlib")
    rows = [row(f"a format with a long name {i}", "ours", at, 1.0 + at * i) for at in (0.1, 0.5) for i in range(40)]
    rows += [row("dense", "numpy", at, 2.0) for at in (0.1, 0.5)]
    figure = plot(Table(rows), tmp_path / "out.png")
    legend, edge = figure.legends[0].get_window_extent(), figure.get_window_extent()
    assert (tmp_path / "out.png").exists() and legend.x1 <= edge.x1 and legend.y0 >= edge.y0, "nothing of it is cut off"
    for part in (*figure.axes, figure.texts[0]):
        assert not part.get_window_extent().overlaps(legend)


# ---- prediction


def test_one_matrix_of_each_format_is_enough(monkeypatch, tmp_path, capsys):
    """Its products get made-up seconds."""
    from formats import FORMATS
    from formats.machine import calibration
    from formats.machine.model import Machine

    monkeypatch.setattr(Machine, "load", lambda file, catalogue: standin.machine())
    monkeypatch.setattr(
        calibration, "measured", lambda catalogue, cases, most: [(kernel, sizes, 1e-4) for kernel, sizes, _ in cases]
    )
    monkeypatch.setattr("formats.FORMATS", {name: FORMATS[name] for name in ("dense", "csr")})
    table = selection.measured(tmp_path, 1)
    assert {row[0] for row in table} == {"dense", "csr"} and {row[5] for row in table} == {0.0}, "the even matrix"
    figures = selection.prediction_show(table)
    assert len(figures) == 3 and all(np.isfinite(each.value) for each in figures)
    assert (
        selection.prediction_show([each for each in table if each[3] > 1])[2].what == "formats of 2 that keep both bars"
    )
    capsys.readouterr()


def test_a_calibration_of_elsewhere_is_refused(tmp_path):
    (tmp_path / "machine.json").write_text("{}")
    with pytest.raises(InputError, match=r"machine\.json"):
        selection.measured(tmp_path / "machine.json", 1)


def test_two_techniques_against_each_alone():
    """Number types come last; a structure has its own pair with bytes where there is one; apart, factors multiply and
    losses add."""
    import composition
    from composition import Outcome, apart, narrow, ordered, structure
    from composition import interactions_figures as figures

    assert [*ordered(["int8", "2:4", "units"])] == [
        ("2:4", "int8"),
        ("2:4", "units"),
        ("units", "int8"),
        ("units", "2:4"),
    ]
    assert len([*ordered(composition.NAMES)]) == 41  # 5 x 4 structures, 5 x 3 with numbers, 3 x 2 numbers
    assert [narrow(structure(name, 64, 64), "int8").format for name in composition.FITS] == [
        "lowrankint8",
        "nmint8",
        "int8",
    ]
    one, other = Outcome(0.5, 0.5, 0.3, 0.1, 1.0), Outcome(0.4, 0.2, 0.4, 0.2, -0.5)
    assert apart(one, other) == pytest.approx((0.2, 0.1, 0.5, 0.3, 0.5))
    found = figures(
        {"2:4": one, "units": other},
        {("2:4", "units"): apart(one, other), ("units", "2:4"): Outcome(0.4, 0.1, 0.6, 0.15, 0.0)},
    )
    assert [each.value for each in found[:3]] == pytest.approx([1.5, 1.0, 1.1])
    assert found[-1].value == pytest.approx(2.0)


@pytest.mark.deep
def test_families_are_tried_at_several_sizes():
    """All that transformers has, openPangu under its own name, and Pangu-alpha; tests/opmatrix/test_expert_models.py
    and tests/rewrites/test_families.py hold the others to plain numpy."""
    import widths

    from opmatrix.models import FAMILIES

    made = [*widths.cases([*widths.FAMILIES])]
    known = {widths.FAMILIES[each.family].says.get("model_type", each.family) for each in made}
    assert known == FAMILIES.keys() - {
        "transformer",
        "PanguProMoE",
        "pr_moe",
        "deepseek_v2",
        "deepseek_v3",
        "jina_bert",
        "jina_bert_normed",
        "new",
    }
    assert all(sum(each.family == name for each in made) >= 2 for name in widths.FAMILIES)
    assert widths.right(widths.Found("exact", 9e-6, 0.0), 0.0) and not widths.right(
        widths.Found("exact", 2e-5, 0.0), 0.0
    )
    assert widths.right(widths.Found("int8", 0.02, 0.011), 0.02)
    assert not widths.right(widths.Found("int8", 0.03, 0.011), 0.02)
