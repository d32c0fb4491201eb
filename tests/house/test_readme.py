"""What the README shows is what happens: its examples run, its two commands are the ones, its links lead somewhere."""
import doctest
import re
import subprocess
import sys

import pytest
from children import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
SHOWN, SCRIPTS = ([b for b in BLOCKS if b.startswith(">>>") is shown] for shown in (True, False))


def test_the_algebra():
    runner = doctest.DocTestRunner()
    [block] = SHOWN
    runner.run(doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0))
    assert runner.summarize(verbose=False).attempted >= 10 and not runner.failures


@pytest.mark.parametrize("block", SCRIPTS, ids=["equations"])
def test_what_is_shown_runs(block, tmp_path):
    """Each in a process of its own, from a file as a user has it: what it declares is declared nowhere else."""
    script = tmp_path / "added.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{block}", "utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr


def test_the_two_commands():
    assert "\n```\npip install . && opmatrix optimize minilm " in README
    assert "\npip install '.[test]' && pytest " in README


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", README, flags=re.S)))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_the_tables_are_up_to_date():
    """Else run `python docs/make_tables.py`. In a process of its own: other tests declare kinds too."""
    script = f"import runpy; print(runpy.run_path({str(ROOT / 'docs' / 'make_tables.py')!r})['tables'](), end='')"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT, timeout=120, encoding="utf-8")
    assert not made.returncode, made.stderr
    assert made.stdout == (ROOT / "docs" / "tables.md").read_text("utf-8")


COMMANDS = {name: row for row, name in re.findall(r"^\| (`opmatrix (\w+).*)$", README, re.M)}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_that_the_command_has(command):
    import typer

    from rewrites.command.commands import app
    params = typer.main.get_command(app).commands[command].params
    has = {word for each in params for word in (*each.opts, *each.secondary_opts)}
    named = {word for code in re.findall("`([^`]*)`", COMMANDS[command]) for word in re.findall(r"--[\w-]+", code)}
    assert named <= has, f"README names {named - has}"
