"""In CI a skip is a failure, unless its reason is one of three, or the test is run later; and what pytest is told in
pyproject.toml."""

import os
import subprocess
import sys

import pytest
from children import ROOT

CI = ROOT / ".ci"
PROCESSES = pytest.mark.parametrize("processes", ["0", "2"])
SKIPS = {
    "inside": "def test_it(): pytest.skip('not today')",
    "marked": "@pytest.mark.skipif(True, reason='not today')\ndef test_it(): pass",
    "whole": "pytest.skip('not today', allow_module_level=True)",
    "absent": "pytest.importorskip('no_such_package', reason='not today')",
    "later": "def test_it(): pytest.skip('needs peers: not today')",
}


def session(directory, processes="0", **environment):
    """Runs pytest with the plugin in a directory; returns its exit status and what it printed."""
    variables = {key: value for key, value in os.environ.items() if key not in ("LATER", "PYTEST_ADDOPTS")}
    variables |= {"PYTHONPATH": str(CI), "PYTEST_PLUGINS": "skips"} | environment
    unneeded = [word for plugin in ("cacheprovider", "hypothesispytest", "anyio") for word in ("-p", f"no:{plugin}")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *unneeded, "-n", processes, str(directory)],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout


def write(directory, **bodies):
    for name, body in bodies.items():
        (directory / f"test_{name}.py").write_text(f"import pytest\n{body}\n")


def test_three_reasons_are_excused_and_an_expected_failure_is_no_skip(tmp_path):
    why = ["needs a GPU", "needs Python 3.14", "torch does not build here"]
    write(
        tmp_path,
        one="\n".join(f"@pytest.mark.skip(reason={each!r})\ndef test_{at}(): pass" for at, each in enumerate(why)),
        two="@pytest.mark.xfail\ndef test_it(): assert False",
    )
    status, said = session(tmp_path)
    assert status == 0 and "3 skipped, 1 xfailed" in said
    for at, each in enumerate(why):
        assert f"excused  test_one.py::test_{at}: Skipped: {each}" in said


@pytest.mark.deep(every=2)
@PROCESSES
def test_any_other_skip_fails(tmp_path, processes):
    write(tmp_path, **SKIPS, other="def test_other(): pass")
    status, said = session(tmp_path, processes)
    assert status == 1 and "1 passed, 5 skipped" in said
    for name in SKIPS:
        assert said.count(f"FAILURE  test_{name}.py") == 1
    assert said.count("not today") >= len(SKIPS)


@pytest.mark.deep(every=2)
@PROCESSES
def test_what_needs_peers_waits_where_it_is_run_later(tmp_path, processes):
    """Those of all workers: a file where all of it waits, otherwise the tests."""
    write(
        tmp_path,
        one="pytest.importorskip('no_such_package', reason='needs peers: no_such_package')",
        two="def test_two(): pytest.skip('needs peers: other')\ndef test(): pass",
        three="def test_three(): pytest.skip('needs peers: other')",
    )
    assert session(tmp_path, processes, LATER=str(tmp_path / "later"))[0] == 0
    assert (tmp_path / "later").read_text() == "test_one.py\ntest_three.py::test_three\ntest_two.py::test_two\n"


def test_failures_stay_failures(tmp_path):
    write(tmp_path, one="def test_it(): assert False")
    assert session(tmp_path)[0] == 1


@pytest.mark.deep
def test_a_test_that_hangs_ends_its_process(tmp_path):
    """With the stacks of all threads, by what pyproject.toml says; the session fails."""
    write(tmp_path, one="import threading\ndef test_it(): threading.Event().wait()")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(CI.parent / "pyproject.toml"),
        "-o",
        "faulthandler_timeout=1",
        str(tmp_path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1 and "Timeout" in ran.stderr and "in test_it" in ran.stderr
