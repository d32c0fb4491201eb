"""docs/add_an_activation.md: its two blocks, put into a copy of the packages, are enough; what is left out is refused
when it is imported, or planned as a term."""

import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE = (ROOT / "docs" / "add_an_activation.md").read_text("utf-8")
RECORD, CODE, USE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
IMPORTS = "from formats.kernels.simd.arithmetic import smaller\nfrom formats.kernels.simd.maths import exp\n"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A copy, with both files that the page names as they were."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    return place


def used(packages, record="", code="", use=USE):
    """What a process says that imports the packages with these blocks, each where its first line says."""
    for block, before in ((record, "ACTIVATIONS = "), (code and IMPORTS + code, "BY_NUMBER = ")):
        for file in re.findall(r"# (formats/\S+\.py)\n", block):
            text = (ROOT / file).read_text("utf-8")
            assert text.count(f"\n{before}") == 1
            (packages / file).write_text(text.replace(f"\n{before}", f"\n{block}\n\n{before}"), "utf-8")
    script = packages / "use.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(packages)!r})\n{use}", "utf-8")
    try:
        return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, cwd=packages)
    finally:
        for file in re.findall(r"# (formats/\S+\.py)\n", record + code):
            shutil.copy(ROOT / file, packages / file)


@pytest.mark.deep
def test_two_blocks_are_enough(packages):
    done = used(packages, RECORD, CODE)
    assert not done.returncode, done.stderr


@pytest.mark.deep
def test_without_vector_code_it_is_planned_as_a_term(packages):
    plan, named = USE[: USE.index("np.testing")], "import opmatrix as om\nassert om.ACTIVATIONS['mish'] is mish\n"
    done = used(packages, RECORD.replace('vector="mish_of", ', ""), use=plan + named)
    assert not done.returncode, done.stderr


def test_code_that_is_missing_is_refused_at_import(packages):
    done = used(packages, RECORD, use="import formats.kernels.rows.following")
    assert "TypeError: activation mish: formats/kernels/rows/activations.py has no mish_of" in done.stderr
