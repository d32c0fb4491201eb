"""docs/add_a_kernel.md: its three files, put into a copy of the packages, are enough, and it ends with the kernel in
use; what is left out, or there twice, is one line, or planned as a term."""

import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE = (ROOT / "docs" / "add_a_kernel.md").read_text("utf-8")
CODE, KERNEL, LAW, USE, MEASURED = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
IMPORTED = "import opmatrix.runtime.kernels\n"
CALLED = "np.concatenate([x, np.tanh(x)], axis=1, out=out)"


@pytest.fixture
def packages(tmp_path):
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    return tmp_path


def run(packages, *blocks, use):
    """A process that imports the packages, where each block is appended to the file that its first line names."""
    for block in blocks:
        with (packages / re.match(r"# (\S+)\n", block)[1]).open("a", encoding="utf-8") as file:
            file.write(block)
    script = packages / "use.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(packages)!r})\n{use}", "utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500, cwd=packages)


def last(done):
    return done.stderr.splitlines()[-1]


def replaced(text, before, after):
    """A block with one place changed, which must be there."""
    assert len(re.findall(before, text, re.M)) == 1
    return re.sub(before, after, text, flags=re.M)


def test_three_files_are_enough(packages):
    """The kernel is chosen, runs within its bound, and is timed; its vector code is in no other file."""
    files = [re.match(r"# (\S+)\n", block)[1] for block in (CODE, KERNEL, LAW)]
    assert len({*files}) == 3 and not any((ROOT / file).exists() for file in files[:2])
    done = run(packages, CODE, KERNEL, LAW, use=USE + MEASURED)
    assert not done.returncode, done.stderr


@pytest.mark.deep
def test_a_row_that_fills_no_vector_is_within_the_bound(packages):
    """And a fault of the vector code is seen by what the page ends with."""
    wrong = replaced(CODE, r"tanh_of\(numbers\)(?=, y \+ 4 \* \(c)", "numbers")
    done = run(packages, wrong, KERNEL, LAW, use=USE)
    assert (
        done.returncode
        and "h1 = tanh_beside(x=h0): its result differs from the reference of its kernel (off " in last(done)
    )


@pytest.mark.deep
def test_one_that_is_called_from_python_is_two_files(packages):
    called = (
        KERNEL.replace("compiled.widen_tanh(x, out)", CALLED)
        .replace("launches=True, ", "")
        .replace(
            "partial(compiled.widen_tanh, x, numbers.room(len(x), 2 * x.shape[1]))",
            "partial(np.concatenate, [x, x], 1, numbers.room(len(x), 2 * x.shape[1]))",
        )
        .replace("time_widening)", "time_widening, recorded=False)")
    )
    assert CALLED in PAGE and "widen_tanh" not in called
    done = run(packages, called, LAW, use=USE)
    assert not done.returncode, done.stderr


@pytest.mark.deep
def test_without_its_term_it_is_planned_as_a_term(packages):
    done = run(packages, CODE, KERNEL, use=USE.split("assert [step")[0] + "print([s.kernel for s in program.steps])\n")
    assert not done.returncode, done.stderr
    assert "tanh_beside" not in done.stdout and {"row_term", "beside_columns"} & {*re.findall(r"\w+", done.stdout)}


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("part", ["run", "shape", "reference", "bound", "cost"])
def test_a_reading_that_is_missing_is_one_line(packages, part):
    done = run(packages, CODE, KERNEL.replace(f"def {part}(", f"def no_{part}("), use=IMPORTED)
    assert last(done) == (
        f"TypeError: kernel tanh_beside: it does not declare {part}: see the kernels in opmatrix/runtime/kernels"
    )


@pytest.mark.parametrize(
    "before, after, said",
    [
        (
            r", price=Price\(.*\)$",
            ")",
            "it declares neither a price nor prices={}, for a kernel that has the cost of others",
        ),
        (r", time_widening\)", ")", "its price tanh_beside declares no cases"),
    ],
)
def test_a_price_that_is_missing_is_one_line(packages, before, after, said):
    done = run(packages, CODE, replaced(KERNEL, before, after), use=IMPORTED)
    assert last(done) == f"TypeError: kernel tanh_beside: {said}: see the kernels in opmatrix/runtime/kernels"


@pytest.mark.deep
def test_a_price_of_nobody_is_one_line(packages):
    done = run(packages, CODE, replaced(KERNEL, r'\("tanh_beside"', '("tanh_besides"'), LAW, use=USE)
    assert last(done).startswith("ValueError: no kernel 'tanh_besides' has a price; there are linear.dense, ")


@pytest.mark.parametrize("change", [lambda code: [], lambda code: [replaced(code, r"^__all__ = .*\n", "")]])
def test_vector_code_that_no_module_lists_is_one_line(packages, change):
    done = run(packages, *change(CODE), KERNEL, use=IMPORTED)
    assert last(done) == (
        "TypeError: kernel tanh_beside: no module of formats/kernels lists widen_tanh in __all__: "
        "see the kernels in opmatrix/runtime/kernels"
    )


def test_what_is_there_twice_is_one_line(packages):
    done = run(packages, CODE, KERNEL.replace("tanh_beside(Arg", "rotate(Arg"), use=IMPORTED)
    assert last(done) == "ValueError: kernel rotate: there is one already; give it another name"
    done = run(packages, CODE.replace("widening.py", "wider.py"), use=IMPORTED)
    assert last(done).startswith("TypeError: kernel widen_tanh: rows.widening and rows.wider both list it")


def test_an_operand_that_is_misspelt_is_named(packages):
    done = run(packages, CODE, KERNEL.replace("a.exact.x", "a.exact.y"), LAW, use=USE)
    assert last(done) == "AttributeError: kernel tanh_beside(x) has no y; there are x, batch"
