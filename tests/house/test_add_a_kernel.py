"""docs/add_a_kernel.md: what it says one writes is enough, and it ends with the kernel in use."""
import re
import subprocess
import sys

from children import ROOT

PAGE = (ROOT / "docs" / "add_a_kernel.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def run(blocks, tmp_path):
    """In a process of its own: what it declares is declared nowhere else."""
    script = tmp_path / "added.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(blocks), "utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)


def test_the_page_runs(tmp_path):
    assert len(BLOCKS) == 4
    done = run(BLOCKS, tmp_path)
    assert not done.returncode, done.stderr


def test_without_its_term_it_is_not_chosen(tmp_path):
    done = run([BLOCKS[0], "from opmatrix.algebra.operators import exp\n", BLOCKS[2]], tmp_path)
    assert "AssertionError" in done.stderr and "interpret" not in BLOCKS[2]
