"""docs/add_a_kernel.md: its two files, put into a copy of the packages, are enough, and it ends with the kernel in use;
what is left out, or there twice, is one line."""
import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE = (ROOT / "docs" / "add_a_kernel.md").read_text("utf-8")
KERNEL, LAW, USE, MEASURED = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
IMPORTED = "import opmatrix.runtime.kernels\n"


@pytest.fixture
def packages(tmp_path):
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(packages, *blocks, use):
    """A process that imports the packages, where each block is appended to the file that its first line names."""
    for block in blocks:
        with (packages / re.match(r"# (\S+)\n", block)[1]).open("a", encoding="utf-8") as file: file.write(block)
    script = packages / "use.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(packages)!r})\n{use}", "utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, cwd=packages)


def test_two_files_are_enough(packages):
    done = run(packages, KERNEL, LAW, use=USE + MEASURED)
    assert not done.returncode, done.stderr


def test_without_its_term_it_is_not_chosen(packages):
    done = run(packages, KERNEL, use=USE)
    assert "AssertionError" in done.stderr and "interpret" not in USE


@pytest.mark.parametrize("part", ["run", "shape", "reference"])
def test_a_part_that_is_missing_is_one_line(packages, part):
    done = run(packages, re.sub(rf"^    def {part}\(.*\n", "", KERNEL, flags=re.M), use=IMPORTED)
    assert done.stderr.splitlines()[-1] == (f"TypeError: kernel exponential: it says no {part}: declare it as those in "
                                            "opmatrix/runtime/kernels")


def test_a_second_kernel_of_a_name_is_one_line(packages):
    done = run(packages, KERNEL.replace("exponential(Arg", "rotate(Arg"), use=IMPORTED)
    assert done.stderr.splitlines()[-1] == "ValueError: kernel rotate: there is one already; give it another name"


def test_an_operand_that_is_misspelt_is_named(packages):
    done = run(packages, KERNEL.replace("a.exact.x", "a.exact.y"), LAW, use=USE)
    assert done.stderr.splitlines()[-1] == "AttributeError: kernel exponential(x) has no y; there are x, batch"
