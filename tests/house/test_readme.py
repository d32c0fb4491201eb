"""What the README shows is what happens: its examples run, its two commands are the ones, and it is short. Links,
commands and Python of all pages: tests/house/test_pages.py."""

import doctest
import re
import runpy
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from children import LIMIT, ROOT

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


def test_the_algebra():
    runner = doctest.DocTestRunner()
    [block] = BLOCKS
    runner.run(doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0))
    assert runner.summarize(verbose=False).attempted >= 10 and not runner.failures


def test_the_four_lines(optimized, tmp_path, monkeypatch):
    """What they optimise is the small model of the one run that tests share."""
    [block] = re.findall(r"^```python notest\n(.*?)^```$", README, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    results = {("minilm", 0.02): optimized.result}
    monkeypatch.setattr("rewrites.run.optimize", lambda model, error: results[model, error])
    exec(block.replace("a sentence", "the river").replace("another", "a bank"), {})
    assert (tmp_path / "fast").is_dir()


def test_it_is_read_at_once():
    """A screen and a half; the first Python stands on the first."""
    lines = README.splitlines()
    assert len(lines) <= 110 and len(README.split()) <= 900 and max(map(len, lines)) <= 160
    assert next(at for at, line in enumerate(lines, 1) if line.startswith("```python")) <= 30


def test_the_two_commands():
    assert "\n```\npip install . && opmatrix optimize minilm " in README
    assert "\npip install '.[test]' && pytest " in README


@pytest.mark.parametrize(
    "page, script, name", [("tables", "make_tables", "tables"), ("commands", "make_commands", "commands")]
)
def test_a_page_that_is_made_is_up_to_date(page, script, name):
    """Else run `python docs/make_tables.py`. In a process of its own: other tests declare kinds and commands too."""
    made = f"import runpy; print(runpy.run_path({str(ROOT / 'docs' / script) + '.py'!r})[{name!r}](), end='')"
    done = subprocess.run([sys.executable, "-c", made], capture_output=True, cwd=ROOT, timeout=LIMIT, encoding="utf-8")
    assert not done.returncode, done.stderr
    assert done.stdout == (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def test_the_picture_is_small_and_readable_without_colour():
    """What docs/make_front.py draws of a report: each program with its error, one of them chosen, twice the same."""
    made = runpy.run_path(str(ROOT / "docs" / "make_front.py"))
    point = lambda name, ms, mb, error: {
        "name": name,
        "measured_error": error,
        **{
            f"{kind}_{what}": number
            for kind in ("predicted", "measured")
            for what, number in (("s", ms / 1e3), ("bytes", mb * 1e6))
        },
    }
    front = [point("exact", 14.5, 91.4, 7e-7), point("int8 x3", 6.4, 29.0, 0.0123), point("bf16", 9.4, 74.3, 0.0032)]
    report = {
        "model": "minilm",
        "machine": "a <machine>",
        "workload": "one sentence",
        "chosen": 1,
        "front": front,
        "baseline": point("imported", 18.9, 93.0, 7e-7),
    }
    drawn = made["picture"](report)
    words = [each.text for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"imported", "exact", "1.2 %, chosen", "0.32 %", "minilm, one sentence, a <machine>"} <= {*words}
    assert drawn == made["picture"](report) and drawn.count('fill="#c22"') == 1 and len(drawn) < 10_000
    stored = (ROOT / "docs" / "front.svg").read_text("utf-8")
    assert ElementTree.fromstring(stored).tag.endswith("svg") and len(stored) < 20_000 and "chosen" in stored
