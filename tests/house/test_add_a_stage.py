"""docs/add_a_stage.md: its three patches, put into a copy of the packages, are enough; what is left out is refused when
it is imported."""

import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE = (ROOT / "docs" / "add_a_stage.md").read_text("utf-8")
RECORD, CODE, LAW = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S)
(USE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def used(place, *patches, use):
    """What a process says that imports a copy of the packages with these patches, each of one file."""
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for patch in patches:
        assert patch.count("+++ ") == 1
        subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=patch, text=True, cwd=place, check=True)
    script = place / "use.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(place)!r})\n{use}", "utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500, cwd=place)


@pytest.mark.deep
def test_three_files_are_enough(tmp_path):
    done = used(tmp_path, RECORD, CODE, LAW, use=USE)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(
    "patches, use, said",
    [
        ([RECORD, LAW], "import formats.kernels.rows.following", "following.py has no slope, cap"),
        (
            [RECORD, CODE],
            "import rewrites.laws.epilogues",
            "epilogues.py has no law for it, a function of its operands",
        ),
        (
            [RECORD.replace("operations = 10", "counted = 10")],
            "import formats.core.stage",
            "it does not declare operations: see the stages in formats/core/stage.py",
        ),
    ],
)
def test_what_is_left_out_is_one_line(tmp_path, patches, use, said):
    last = used(tmp_path, *patches, use=use).stderr.splitlines()[-1]
    assert last.startswith("TypeError: stage softcap: ") and last.endswith(said)


def test_a_scalar_that_is_added_is_one_line(tmp_path):
    """It would never be found: a number in a sum is a row."""
    added = LAW.replace("@ tanh @ (I * cap)", "@ tanh + cap")
    last = used(tmp_path, RECORD, CODE, added, use="import rewrites.laws.epilogues").stderr.splitlines()[-1]
    assert (
        last
        == (
            "TypeError: law softcap: the scalar cap is matched only as a factor, I * cap, or "
            "added to one column: declare it constant, a row"
        )
        and added != LAW
    )
