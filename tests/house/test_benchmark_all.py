"""benchmarks/all.py: its table, its page, and what becomes of a benchmark that fails or does not end. What runs here
are stand-ins."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import command

import all as every
import faults
from all import BENCHMARKS, Benchmark, Outcome

from formats.core.errors import InputError
from rewrites.cli.commands import app

HERE = every.HERE
WRITES = """import json, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--figures") + 1]).write_text(json.dumps([{figures}]))
print("printed")
"""
FIGURE = (
    '{"what": "speed | rate", "value": 2.0, "unit": "x", "least": 1}, {"what": "beside", "value": 6.26, '
    '"ceiling": 1, "least": 0.7}'
)
STANDINS = {
    "good": WRITES.replace("{figures}", FIGURE),
    "loud": WRITES.replace("{figures}", FIGURE) + 'print("busy machine: the load was 9: times are too long", '
    "file=sys.stderr)",
    "fails": WRITES.replace("{figures}", FIGURE) + 'sys.exit("a wrong turn")',
    "hangs": "import os, sys, time\nfrom pathlib import Path\n"
    '(pid := os.fork()) and Path(sys.argv[-1]).with_name("pid").write_text(str(pid))\ntime.sleep(600)\n',
    "silent": "",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs all.py with stand-ins: status, page."""
    for name, source in STANDINS.items():
        (tmp_path / f"{name}.py").write_text(source)
    table = {name: Benchmark("", 60.0, "", 60.0, f"Is {name} so?") for name in STANDINS}
    table["absent"] = Benchmark("", 1.0, "", 1.0, "Is absent so?", str(tmp_path / "nowhere"))
    monkeypatch.setattr(every, "HERE", tmp_path)
    monkeypatch.setattr(every, "START", 0.0)
    monkeypatch.setattr(every, "BENCHMARKS", table)
    monkeypatch.setattr(every, "takes", lambda seconds: None)
    monkeypatch.setattr(every, "watched", lambda: SimpleNamespace(seen=lambda: "the load was 7"))
    monkeypatch.setattr(every, "prepared", lambda: {"processor": "a processor: AVX", "threads": "2"})

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["all.py", "--out", str(tmp_path / "out"), *words])
        status = every.main()
        capsys.readouterr()
        return status, (tmp_path / "out" / "page.md").read_text()

    run.table, run.out = table, tmp_path / "out"
    return run


def child_of(run):
    """The process that `hangs` has started, as soon as it has."""
    pid = run.out / "pid"  # which is there before it holds a number
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    return int(pid.read_text())


def gone(pid, patience=120.0):
    """Whether a process is over; whoever adopted it may not have noticed yet, and what was killed takes a moment to
    end."""
    end = time.monotonic() + patience
    with suppress(ProcessLookupError, FileNotFoundError):
        while time.monotonic() < end:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            time.sleep(0.01)
        return False
    return True


def rows(page):
    return [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| ")][1:]


def test_a_row_for_each(run):
    status, page = run("--quick", "--only", "good,loud,silent,absent")
    assert status == 0 and "4 of 4 benchmarks" in page and "bars: 2 met, 0 missed, 2 not measured" in page
    found = rows(page)
    assert [row[0].strip("| *").split(":")[0] for row in found if row[0].strip("| ")] == [
        "good**",
        "loud**",
        "silent**",
        "absent**",
    ]
    assert found[0][1:6] == ["speed / rate", "2 x", "", "≥ 1", "met"] and "Is good so?" in found[0][0]
    assert found[1][5] == "impossible: beyond 1, so it was measured wrongly"
    assert [row[6].strip(" |").endswith("s, busy") for row in found] == [False, False, True, False, False, False]
    assert "not measured here: " in page and str(run.out.parent / "nowhere") in page and "no figures" in page
    assert "too long where the last column says so: the load was 7." in page and "a processor: AVX" in page
    assert (run.out / "good.txt").read_text() == "printed\n" and (run.out / "good.json").exists()


def test_what_fails_is_named_and_nothing_else_is_lost(run):
    status, page = run("--quick", "--only", "fails,good")
    assert status == 1 and "**failed**: ended with status 1: a wrong turn" in page and "**Failed: fails.**" in page
    assert page.count("speed / rate") == 2, "what it wrote before it failed is there, and so is what came after"


def test_what_does_not_end_is_ended_with_all_that_it_started(run, monkeypatch):
    """Once its child is there, however late that is."""

    def begun(self, limit=None, wait=subprocess.Popen.wait):
        if limit:
            child_of(run)
        return wait(self, limit)

    monkeypatch.setattr(subprocess.Popen, "wait", begun)
    run.table["hangs"] = run.table["hangs"]._replace(seconds=1.0)
    status, page = run("--quick", "--only", "hangs,good")
    assert status == 1 and "**failed**: over its 2 s" in page and "**Failed: hangs.**" in page and "met" in page
    assert gone(child_of(run)), "its child goes on"


def test_what_it_runs_is_ended_with_it(run, monkeypatch):
    """It is told to end by a signal, as by a shell that gives up."""

    def tell(self, limit=None, wait=subprocess.Popen.wait):
        if limit:
            child_of(run)
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(self, limit)

    monkeypatch.setattr(subprocess.Popen, "wait", tell)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            run("--quick", "--only", "hangs")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143 and gone(child_of(run))


def test_a_quick_run_begins_nothing_too_late(run, monkeypatch):
    monkeypatch.setattr(every, "WHOLE", 4.0)
    status, page = run("--quick", "--only", "good")
    assert status == 1 and "left out: the ten minutes are over" in page
    assert run("--only", "good")[0] == 0, "in full there is no such end"


def test_results_of_before_are_not_taken_for_those_of_now(run):
    run("--quick", "--only", "good")
    (run.out.parent / "good.py").write_text("import sys; sys.exit(3)")
    assert "met" not in "".join(row[5] for row in rows(run("--quick", "--only", "good")[1]))


def test_figures_with_bars_come_first():
    figures = [command.Figure(f"a{i}", 1.0) for i in range(9)] + [command.Figure("judged", 1.0, most=2)]
    found = [*Outcome("gain", 1.0, figures=figures).rows()]
    assert len(found) == every.ROWS and found[0][1] == "judged"


# ---- what the pages show


@pytest.fixture
def published(run, monkeypatch, tmp_path):
    """Runs `all.py --publish` with stand-ins, beside the measurements of before: status, what is there in the end."""
    script = "import sys\nfrom pathlib import Path\nPath(sys.argv[-1]).write_text('engine\\n')\n"
    (tmp_path / "good.py").write_text(script)
    (tmp_path / "pages.py").write_text(
        f"def pages(place): return {{{str(tmp_path / 'page')!r}: (place / 'good.csv').read_text()}}"
    )
    (there := tmp_path / "measured").mkdir()
    (there / "about.json").write_text("before")
    monkeypatch.setattr(every, "MEASURED", there)
    monkeypatch.setattr(every, "PAGES", tmp_path / "pages.py")

    def publish(*names):
        monkeypatch.setattr(every, "PUBLISHED", {name: Benchmark("", 0, "", 5.0, "?") for name in names})
        monkeypatch.setattr(sys, "argv", ["all.py", "--publish", "--out", str(tmp_path / "out")])
        return every.main(), {file.name: file.read_text() for file in there.iterdir()}, (tmp_path / "page").exists()

    return publish


def test_what_is_published_is_kept_with_its_version_and_machine(published):
    status, kept, made = published("good")
    assert status == 0 and made and kept["good.csv"] == "engine\n"
    assert json.loads(kept["about.json"]) == {
        "processor": "a processor: AVX",
        "threads": "2",
        "version": every.version(),
    }


def test_what_fails_is_not_published_nor_what_was_measured_before_it(published):
    assert published("good", "fails") == (1, {"about.json": "before"}, False)


def test_pages_that_cannot_be_made_change_nothing(published):
    with pytest.raises(FileNotFoundError):
        published()
    assert published("fails")[1:] == ({"about.json": "before"}, False)


# ---- the table


def test_every_benchmark_is_in_the_table_or_stands_apart():
    known = {file.stem for file in HERE.glob("*.py") if "command.run(main" in file.read_text()} - {"all"}
    assert known == {*BENCHMARKS} | {*every.APART} and not {*BENCHMARKS} & {*every.APART}


def test_a_quick_run_fits_into_ten_minutes():
    assert sum(each.seconds for each in BENCHMARKS.values()) < every.WHOLE
    assert all(0 < each.seconds <= each.at_length and each.answers.endswith("?") for each in BENCHMARKS.values())


ARGUMENTS = [
    (name, text)
    for table in (BENCHMARKS, every.PUBLISHED)
    for name, each in table.items()
    for text in (each.quick, each.full)
]


@pytest.mark.parametrize("name, text", ARGUMENTS)
def test_its_arguments_are_options_that_there_are(name, text, monkeypatch, tmp_path):
    """Each benchmark's own parser reads them, and nothing is run."""

    class Read(Exception):
        pass

    def read(self, *given):
        argparse.ArgumentParser.parse_args(self, words)
        raise Read

    monkeypatch.setattr(command.Parser, "parse_args", read)
    module = __import__(name) if name != "hostile" else loaded(HERE / "hostile.py")
    data, kept = every.DATA if every.DATA.is_dir() else tmp_path, tmp_path
    words = [*shlex.split(text.format(data=data, kept=kept)), "--csv", "x.csv", "--figures", "x.json"]
    with pytest.raises(Read):
        (getattr(module, "arguments", None) or getattr(module, "options", None) or module.main)()


def test_the_commands_that_are_killed_have_the_options_that_they_are_given():
    commands = typer.main.get_command(app).commands
    for words in faults.COMMANDS.values():
        name, *rest = words.split()
        assert commands[name].make_context(name, rest)


def loaded(file):
    """A module by its file: another one has its name."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("a_benchmark", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_runs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["all.py", "--list"])
    monkeypatch.setattr(every, "prepared", lambda: pytest.fail("it prepares"))
    assert every.main() == 0
    said = capsys.readouterr().out
    assert all(name in said for name in BENCHMARKS) and "paired.py stands apart" in said


@pytest.mark.parametrize(
    "words, said",
    [
        (["--only", "god"], "--only god: gain"),
        (["--out", __file__], f"--out {__file__}: it is no"),
        (["--quick", "--publish"], "not allowed with"),
    ],
)
def test_bad_options_are_refused(words, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["all.py", *words])
    with pytest.raises(InputError, match=said):
        every.main()
