"""Every second of a command is in a phase, each phase is announced once, and on a terminal none is silent. Nothing is
timed here: what goes on outside phases is counted in calls, and a phase ends when it has been heard."""

import os
import re
import sys
import threading
from threading import Event, Thread
from types import SimpleNamespace

import optimized
import pytest
import standin
from children import LIMIT

from opmatrix.display import progress
from rewrites import run
from rewrites.cli import __main__ as cli
from rewrites.workload import phases as report
from rewrites.workload.phases import Report

BETWEEN = 3000  # calls outside phases, of millions: forks, tables, options


class Screen:
    """A pseudo-terminal as stderr; `words` is what was written to it, `heard` calls somebody back with each piece."""

    def __init__(self, heard=lambda words: None):
        self.master, self.slave = os.openpty()
        self.file = os.fdopen(self.slave, "w", encoding="utf-8")
        self.words, self.heard = "", heard
        self.reader = Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while True:
            try:
                piece = os.read(self.master, 4096)
            except OSError:
                return
            if not piece:
                return
            self.words += piece.decode(errors="replace")
            self.heard(self.words)

    def close(self):
        self.file.close()
        self.reader.join(10)
        os.close(self.master)


class Calls:
    """Counts calls of Python functions while no phase runs."""

    def __init__(self, patch):
        self.count, self.depth = 0, 0
        phase = Report.phase
        owner = self

        class Counted:
            def __init__(self, *given, **options):
                self.inner = phase(*given, **options)

            def __enter__(self):
                owner.depth += 1
                sys.setprofile(None)
                return self.inner.__enter__()

            def __exit__(self, *error):
                try:
                    return self.inner.__exit__(*error)
                finally:
                    owner.depth -= 1
                    if not owner.depth:
                        sys.setprofile(owner.seen)

        patch.setattr(Report, "phase", lambda *given, **options: Counted(*given, **options))

    def seen(self, frame, event, argument):
        self.count += event == "call"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The command on a terminal: what it wrote there, calls between phases, and its report."""
    place, kept = tmp_path_factory.mktemp("phases"), []
    model, screen, optimize = optimized.small(place / "model"), Screen(), run.optimize
    arguments = ["optimize", model, "--error", "0", "--out", place / "out"]

    def noted(*given, **options):
        kept.append(options["report"])
        return optimize(*given, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        standin.know_laws(patch)
        patch.setattr(run, "calibrated", lambda progress, *batches: standin.machine())
        patch.setattr(run, "optimize", noted)
        patch.setattr(sys, "argv", ["opmatrix", *map(str, arguments)])
        patch.setattr(sys, "stderr", screen.file)
        calls = Calls(patch)
        try:
            cli.main()  # the first phase begins with the command
        finally:
            sys.setprofile(None)
    screen.close()
    assert not end.value.code
    return SimpleNamespace(words=screen.words, calls=calls.count, report=kept[0])


def test_nothing_is_done_outside_phases(ran):
    assert 0 < ran.calls < BETWEEN
    assert {"start", "model", "search", "front", "laws", "verify", "measure", "derive", "save"} <= {*ran.report.seconds}


def test_each_phase_is_announced_once_and_ends_once(ran):
    ended = re.findall(r"^(?:.*\x1b\[K)?(\w+) \d+\.\d s\r?$", ran.words, re.MULTILINE)
    assert ended == [*ran.report.seconds] and len({*ended}) == len(ended)
    begun = [name for name in re.findall(r"\x1b\[K(\w+) …", ran.words)]
    assert [*dict.fromkeys(begun)] == ended


# ---- the report itself


def clock(monkeypatch, *seconds):
    left = iter(seconds)
    monkeypatch.setattr(report, "time", SimpleNamespace(perf_counter=lambda: next(left)))


def test_phases_add_up_to_the_wall(monkeypatch, capsys):
    """The first begins with the command, those of one name are one, and one that goes on counts up to now."""
    clock(monkeypatch, 3.0, 4.0, 4.0, 6.0, 6.0, 9.0, 9.0, 10.0, 10.0, 10.0)
    found = Report(began=1.0)
    with found.phase("start"):
        pass
    with found.phase("search"):
        pass
    with found.phase("start"):
        pass
    assert found.seconds == {"start": 6.0, "search": 2.0} and sum(found.seconds.values()) == found.wall == 8.0
    with found.phase("save"):
        assert found.phases["save"] == 1.0 and found.wall == 9.0
    assert capsys.readouterr().err.splitlines()[-4:] == ["start …", "start 6.0 s in all", "save …", "save 1.0 s"]


def test_a_phase_that_fails_is_counted_and_its_line_goes(monkeypatch, capsys):
    clock(monkeypatch, 1.0, 5.0)
    found = Report()
    with pytest.raises(ZeroDivisionError), found.phase("search"):
        raise ZeroDivisionError
    assert found.seconds == {"search": 4.0} and not found.running and capsys.readouterr().err == "search …\n"


def test_a_terminal_hears_of_a_phase_that_says_nothing(monkeypatch):
    """Twice, and again what it said last; no thread is left when it ends, as something may fork then."""
    monkeypatch.setattr(progress, "TICK", 0.02)
    ticks = {"search … after": Event(), "search … 3/9 after": Event()}

    def heard(words):
        for tick, event in ticks.items():
            if words.count(tick) > 1:
                event.set()

    screen, found = Screen(heard), Report()
    monkeypatch.setattr(sys, "stderr", screen.file)
    before = threading.active_count()
    with found.phase("search") as said:
        assert ticks["search … after"].wait(LIMIT)
        said(3, 9)
        assert ticks["search … 3/9 after"].wait(LIMIT)
    assert threading.active_count() == before
    screen.close()


@pytest.mark.parametrize("quiet", [True, False])
def test_elsewhere_nothing_is_added(quiet, capsys, monkeypatch):
    """In a pipe there are lines for those who read logs, and no thread."""
    monkeypatch.setattr(progress, "TICK", 0.0)
    before = threading.active_count()
    with Report(quiet=quiet).phase("search"):
        assert threading.active_count() == before
    assert len(capsys.readouterr().err.splitlines()) == 2 * (not quiet)


def test_a_brief_phase_is_for_terminals_and_counts(capsys):
    found = Report()
    with found.phase("start", brief=True) as progress:
        progress("imports")
    assert not capsys.readouterr().err and [*found.seconds] == ["start"]


@pytest.mark.parametrize("columns", [20, 80, 300])
def test_a_line_that_is_written_over_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **named: os.terminal_size((columns, 24)))
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen.file)
    line = progress.ProgressLine("a long word " * 30)
    line.end()
    screen.close()
    assert max(map(len, screen.words.replace("\x1b[K", "").replace("\r", "\n").splitlines())) == min(columns - 1, 100)
