"""In CI a skip is a failure, unless its reason is one of three, or the test is run later."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[1] / ".ci"


def session(directory, **environment):
    """Runs pytest with the plugin in a directory; returns its exit status and what it printed."""
    variables = {key: value for key, value in os.environ.items() if key not in ("LATER", "PYTEST_ADDOPTS")}
    variables |= {"PYTHONPATH": str(CI), "PYTEST_PLUGINS": "skips"} | environment
    run = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(directory)], cwd=directory,
                         env=variables, capture_output=True, text=True)
    return run.returncode, run.stdout


def one(directory, body):
    (directory / "test_one.py").write_text(f"import pytest\n{body}\n")


@pytest.mark.parametrize("why", ["needs a GPU", "needs Python 3.14", "torch does not build here"])
def test_three_reasons_are_excused(tmp_path, why):
    one(tmp_path, f"@pytest.mark.skip(reason={why!r})\ndef test_it(): pass\ndef test_other(): pass")
    status, said = session(tmp_path)
    assert status == 0 and f"excused  test_one.py::test_it: Skipped: {why}" in said


@pytest.mark.parametrize("body", [
    "def test_it(): pytest.skip('not today')",
    "@pytest.mark.skipif(True, reason='not today')\ndef test_it(): pass",
    "pytest.skip('not today', allow_module_level=True)",
    "pytest.importorskip('no_such_package', reason='not today')",
])
def test_any_other_skip_fails(tmp_path, body):
    one(tmp_path, body)
    (tmp_path / "test_two.py").write_text("def test_two(): pass")
    status, said = session(tmp_path)
    assert status == 1 and "FAILURE  test_one.py" in said and "not today" in said


def test_what_needs_peers_waits_where_it_is_run_later(tmp_path):
    one(tmp_path, "pytest.importorskip('no_such_package', reason='needs peers: no_such_package')")
    two = "import pytest\ndef test_two(): pytest.skip('needs peers: other')\ndef test(): pass"
    (tmp_path / "test_two.py").write_text(two)
    assert session(tmp_path)[0] == 1
    assert session(tmp_path, LATER=str(tmp_path / "later"))[0] == 0
    assert (tmp_path / "later").read_text() == "test_one.py\ntest_two.py\n"


def test_an_expected_failure_is_no_skip(tmp_path):
    one(tmp_path, "@pytest.mark.xfail\ndef test_it(): assert False")
    assert session(tmp_path)[0] == 0


def test_failures_stay_failures(tmp_path):
    one(tmp_path, "def test_it(): assert False")
    assert session(tmp_path)[0] == 1


def test_a_test_that_hangs_ends_the_session(tmp_path):
    """With the stacks of all threads, by what pyproject.toml says."""
    (tmp_path / "test_one.py").write_text("import threading\ndef test_it(): threading.Event().wait()\n")
    command = [sys.executable, "-m", "pytest", "-c", str(CI.parent / "pyproject.toml"), "-o", "faulthandler_timeout=1", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "Timeout" in ran.stderr and "in test_it" in ran.stderr
