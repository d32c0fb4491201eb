"""What CONTRIBUTING.md says is so: its commands are those of CI, its recipes run, and what is declared lies where it
says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import LIMIT, ROOT

from formats import FORMATS
from formats.core.activation import ACTIVATIONS
from formats.core.stage import STAGES
from formats.machine.datasheets import FILE, datasheets
from opmatrix.algebra.monoids import MONOIDS
from opmatrix.algebra.nodes import LASTING
from opmatrix.algebra.positions.patterns import NAMED_PATTERNS, NUMBERED_PATTERNS
from opmatrix.algebra.term import PROPERTIES
from opmatrix.models import FAMILIES
from opmatrix.parallel.axes.known_axes import AXES
from opmatrix.parallel.schedules.named import SCHEDULES
from opmatrix.runtime.kernels import KERNELS
from rewrites.cli.commands import app
from rewrites.laws import EXACT_LAWS

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
ROW = r"^\| an? ([\w ]+) \| `([\w/.]+)` \| \[[\w/.]+\]\(([\w/.]+)\) \|$"
ROWS = {what: (place, page) for what, place, page in re.findall(ROW, TEXT, re.M)}
PAGES = sorted((ROOT / "docs").glob("add_a*_*.md"))
TESTED = "add_a_kernel", "add_an_activation", "add_an_axis", "add_a_schedule", "add_a_stage"  # in files of their own


def source(thing):
    """The file that declares a thing, from the root on."""
    return Path(sys.modules[thing.__module__].__file__).relative_to(ROOT)


DECLARED = {
    "law": [source(each.body) for each in EXACT_LAWS],
    "storage format": [source(each) for each in FORMATS.values()],
    "property": [source(each.sides) for each in PROPERTIES.values()],
    "family of models": [source(each) for each in FAMILIES.values()],
    "stage of an epilogue": [source(each) for each in STAGES],
    "kernel": [source(each.function) for each in KERNELS.values()],
    "activation": [source(each.function) for each in ACTIVATIONS.values()],
    "function or other node kind": [
        source(each.body) for each in LASTING.values() if each.body.__module__.startswith("opmatrix.")
    ],
    "monoid": [source(each) for each in MONOIDS if "." not in each.__name__],  # a finish is its monoid's
    "attention pattern": [
        *(source(each.sees) for each in NAMED_PATTERNS.values()),
        *(source(each) for each in NUMBERED_PATTERNS.values()),
    ],
    "CLI command": [source(each.callback) for each in app.registered_commands],
    "axis of parallelism": [source(each.refused) for each in AXES.values()],
    "schedule of a pipeline": [source(each.tasks) for each in SCHEDULES.values()],
    "machine": [FILE.relative_to(ROOT)] * len(datasheets()),
}


def test_every_recipe_is_listed():
    assert set(DECLARED) <= set(ROWS) and {ROOT / page for _, page in ROWS.values()} == set(PAGES)


@pytest.mark.parametrize("what", DECLARED)
def test_what_there_is_lies_where_it_says(what):
    """From the listing of folders alone: the place has the thing's name, and holds all that there are of it."""
    place, page = ROWS[what]
    assert any(word[:6].lower() in place for word in what.split() if len(word) > 2) and place in (
        ROOT / page
    ).read_text("utf-8")
    assert DECLARED[what] and all(file.is_relative_to(place.rstrip("/")) for file in DECLARED[what])


@pytest.mark.deep(every=9)
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in TESTED], ids=lambda page: page.stem)
def test_a_recipe_runs(page, tmp_path):
    """In a process of its own, from a file as a user has it."""
    script = tmp_path / "added.py"
    blocks = "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{blocks}", "utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert "assert" in blocks and not done.returncode, done.stderr


def follow(page, root):
    """What the page of formats says, done in a copy of the packages: its first block is the new file, and it is listed
    where the page says. The name of its module."""
    text = page.read_text("utf-8")
    block = re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)[1]
    file = Path(re.match(r'"""(\S+?):', block)[1])
    (root / file).write_text(block, "utf-8")
    catalogue = root / "formats/storage/catalogue.py"
    where = r"`(.*?)` among its imports, `(.*?)` in `__all__`, and `(\w+)` at"
    line, listed, entry = re.search(f"`formats/storage/catalogue.py`: {where}", text).groups()
    said = catalogue.read_text("utf-8")
    said = re.sub(r"^(?=from formats.storage.vector)", f"{line}\n", said, count=1, flags=re.M)
    said = re.sub(r"(__all__ = \[.*?),?\s*\]", rf"\1, {listed}]", said, count=1, flags=re.S)
    catalogue.write_text(re.sub(r"(FORMATS: .*?),?\s*\)\s*\}", rf"\1, {entry})}}", said, count=1, flags=re.S), "utf-8")
    return ".".join(file.with_suffix("").parts)


def test_a_new_format_is_where_its_page_puts_it(tmp_path):
    """The page, word for word: the format is found, holds what formats promise, and is priced by more than zeros."""
    shutil.copytree(ROOT / "formats", tmp_path / "formats", ignore=shutil.ignore_patterns("*.pyc.*"))
    module = follow(ROOT / "docs/add_a_format.md", tmp_path)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport numpy as np\nimport formats\n"
        f"import {module}\nfound = formats.FORMATS[{module!r}.rpartition('.')[2]]\n"
        "found.check(np.random.default_rng(0))\nassert all(found.work) and found.__name__ in formats.__all__\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
    assert not done.returncode, done.stderr


def test_no_format_is_forgotten():
    """Each is listed wherever the page says."""
    import tomllib

    import formats

    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["overrides"]
    untyped = {module for each in overrides for module in each["module"] if module.startswith("formats.")}
    tables = (ROOT / "docs/tables.md").read_text("utf-8")
    for name, each in FORMATS.items():
        assert f"{each.__module__.rpartition('.')[0]}.*" in untyped
        assert each.__name__ in formats.__all__ and f"| `{name}` |" in tables
        assert all(each.work), f"{name}: a feature that is always 0 cannot be fitted"


def test_commands_are_those_of_ci():
    commands = [line.split("#")[0].split() for line in re.search(r"```\n(.*?)```", TEXT, re.S)[1].splitlines()]
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    assert len(commands) == 4 and commands[0][0] == "pip" and "'.[test]'" in commands[0] and "'.[test]'" in ci
    assert commands[1:3] == [["pytest"], ["pytest", "--deep"]]
    assert " ".join(commands[3]) == "ruff check . && ruff format --check . && mypy"
    assert "\nruff check .\nruff format --check .\nmypy " in ci
