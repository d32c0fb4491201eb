"""docs/add_a_schedule.md: its two files are enough, and every reader of a schedule then knows the new one."""

import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE = (ROOT / "docs" / "add_a_schedule.md").read_text("utf-8")
RECORD, USE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
(NAMED,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S)
READERS = """
from opmatrix.parallel.schedules.named import SCHEDULES, spell_schedules
from opmatrix.parallel.search.forms import PLANNED, STRATEGY_FORMS
from opmatrix.parallel.train.requested_steps import TrainAsked, check_train_asked
from rewrites.cli import options
assert spell_schedules().endswith("dualpipe or chimera")
assert "chimera" in options.PipelineOrder.__metadata__[0].help
assert "chimera" not in options.RankOrder.__metadata__[0].help
assert "chimera" not in PLANNED and {form.schedule for form in STRATEGY_FORMS} == {*PLANNED}
try: check_train_asked(TrainAsked(schedule="chimera"))
except Exception as error: assert str(error).startswith("schedule chimera: ranks run 1f1b, gpipe or interleaved:V;")
else: raise AssertionError("ranks would run it")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A copy of the packages with the two files of the page."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    file = place / re.match(r"# (opmatrix/\S+\.py)\n", RECORD)[1]
    assert not file.exists()
    file.write_text(RECORD, "utf-8")
    assert NAMED.count("+++ ") == 1
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=NAMED, text=True, cwd=place, check=True)
    return place


@pytest.mark.parametrize("script", [USE, READERS], ids=["the page", "its readers"])
def test_two_files_are_enough(packages, script):
    code = f"import sys; sys.path.insert(0, {str(packages)!r})\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=packages, timeout=200)
    assert not done.returncode, done.stderr


def test_sizes_that_it_has_no_order_of_are_one_line(packages):
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "from opmatrix.parallel.schedules.named import pipeline_tasks\npipeline_tasks('chimera', 3, 4)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=packages, timeout=200)
    assert done.stderr.splitlines()[-1].endswith(
        "chimera: 4 micro-batches on 3 stages: give an even number of each, and a micro-batch a stage"
    )
