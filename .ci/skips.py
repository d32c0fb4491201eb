"""A pytest plugin: every skip is printed, and fails the session unless nobody could have run that test here.

Excused are three reasons, and "needs peers" where $LATER names a file: there go those tests, and files that wait as a
whole, which .ci/run runs once the peers are installed. Of worker processes, the one that gathers their reports speaks
alone."""

import os
from pathlib import Path

import pytest

EXCUSED = ("needs a GPU", "needs Python", "does not build", *["needs peers"] * ("LATER" in os.environ))
skips: dict[str, str] = {}  # test or file -> reason


def unexcused() -> list[str]:
    """What somebody has to answer for."""
    return [test for test, why in skips.items() if not any(words in why for words in EXCUSED)]


def note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        skips[report.nodeid] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # a worker of pytest-xdist
    if unexcused() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if path := os.environ.get("LATER"):
        Path(path).write_text("".join(f"{test}\n" for test, why in sorted(skips.items()) if "needs peers" in why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not skips:
        return
    terminalreporter.section("skipped tests")
    for test, why in skips.items():
        failure = test in unexcused()
        terminalreporter.line(f"{'FAILURE' if failure else 'excused'}  {test}: {why}", red=failure)
