"""`import opmatrix as om` is all that a first program needs: what it shows, what it costs, and that its help is
enough."""

import doctest
import os
import pydoc
import re
import shutil
import subprocess
import sys

import pytest
import standin
from children import LIMIT, ROOT
from optimized import small

import opmatrix as om
from formats.core.errors import InputError
from rewrites import run

TABLE = re.findall(r"^    (\w+)  +(\w+(?:, \w+)*)$", om.__doc__, re.M)
WANTED = (
    "optimize",
    "load",
    "Program",
    "Batch",
    "open_model",
    "select",
    "laws",
    "prove",
    "schedule",
    "weight",
    "relu",
    "product",
    "transpose",
    "sum_heads",
)


def python(script, *paths, status=0, beside=True):
    """The output of a script in a process of its own, which finds modules in these folders first; its errors where it
    ends with a status. Without `beside` ours are in these folders alone."""
    path = [*paths, *([ROOT] if beside else [])]  # -c looks where it runs first
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=path[0],
        timeout=LIMIT,
        env={"PYTHONPATH": os.pathsep.join(map(str, path))},
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


# ---- what it shows


def test_it_shows_what_people_use_and_nothing_else():
    shown = [name for _, names in TABLE for name in names.split(", ")]
    assert sorted(shown) == dir(om) and set(WANTED) < set(shown)
    assert not [name for name in dir(om) if name.startswith("_") or getattr(om, name) is None]


def test_names_are_the_things_themselves():
    from formats.storage.select import select
    from opmatrix.runtime.program import Program
    from rewrites.explain.derivations.schedules import schedule
    from rewrites.laws import EXACT_LAWS
    from rewrites.proofs.equations import prove

    assert (om.optimize, om.Program, om.prove, om.schedule, om.select) == (
        run.optimize,
        Program,
        prove,
        schedule,
        select,
    )
    assert om.laws is EXACT_LAWS and om.load is Program.load and om.transpose is om.turn and om.sum_heads is om.total


def test_an_unknown_name_says_where_names_are():
    with pytest.raises(AttributeError, match=r"no attribute 'optimise': `help\(opmatrix\)` lists"):
        _ = om.optimise


# ---- what it costs

COUNT = "import sys; before = set(sys.modules); {}; print(*sorted(set(sys.modules) - before))"


def test_importing_is_nearly_free():
    """Of the modules that numpy imports it needs a third, of its own none."""
    own, numpy = (python(COUNT.format(f"import {name}")).split() for name in ("opmatrix", "numpy"))
    assert [name for name in own if name.startswith(("opmatrix", "formats", "rewrites", "numpy"))] == ["opmatrix"]
    assert len(own) < len(numpy) / 3


def test_the_floor_above_is_imported_by_name_alone():
    for used, above in (("relu, om.product, om.Program, om.open_model, om.load", False), ("laws", True)):
        assert (
            "rewrites"
            in {name.split(".")[0] for name in python(COUNT.format(f"import opmatrix as om; om.{used}")).split()}
        ) == above


# ---- packages of somebody else's

FOREIGN = pytest.mark.parametrize("name", ["formats", "rewrites"])
PLACES = pytest.mark.parametrize("file", ["{}.py", "{}/__init__.py"])


def foreign_module(folder, name, file):
    place = folder / file.format(name)
    place.parent.mkdir(exist_ok=True)
    place.write_text("raise SystemExit('somebody else's')" if "init" in file else "THEIRS = True")
    return place


@FOREIGN
@PLACES
def test_a_foreign_package_beside_a_script_is_passed_by(tmp_path, name, file):
    foreign_module(tmp_path, name, file)
    said = python(f"import opmatrix, {name}; print({name}.__file__)", tmp_path)
    assert said.strip() == str(ROOT / name / "__init__.py")


@FOREIGN
def test_a_foreign_package_that_was_imported_before_is_named(tmp_path, name):
    foreign = foreign_module(tmp_path, name, "{}.py")
    said = python(f"import {name}, opmatrix", tmp_path, status=1).splitlines()[-1]
    assert said.startswith("ImportError: opmatrix")
    assert str(foreign) in said and str(ROOT / name / "__init__.py") in said


def test_a_package_of_ours_that_is_missing_is_named(tmp_path):
    shutil.copytree(ROOT / "opmatrix", tmp_path / "opmatrix")
    said = python("import opmatrix; opmatrix.InputError", tmp_path, status=1, beside=False).splitlines()[-1]
    assert said == (
        f"ImportError: opmatrix needs its package formats at {tmp_path / 'formats' / '__init__.py'}, where "
        "there is none: install opmatrix again"
    )


def test_a_folder_of_that_name_without_python_in_it_harms_nobody(tmp_path):
    (tmp_path / "formats").mkdir()
    assert python("import opmatrix; print(opmatrix.relu)", tmp_path) == "relu\n"


# ---- its help


def test_the_examples_of_its_help_are_what_happens():
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(om.__doc__, {"om": om}, "opmatrix", None, None))
    assert runner.summarize(verbose=False).attempted >= 5 and not runner.failures


@pytest.mark.deep
def test_a_first_program_from_its_help_alone(tmp_path, monkeypatch, laws_known):
    """Its first five lines, with a small model in place of minilm and with fewer rounds of measuring."""
    program = re.search(r"\n\n((?:    .*\n){5})\n", om.__doc__)[1].replace("    ", "", 1).replace("\n    ", "\n")
    assert '"minilm", error=0.02' in program and program.count("\n") == 5
    small(tmp_path / "model", max_position_embeddings=128)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "calibrated", lambda progress, *batches: standin.machine())
    found = {}
    exec(program.replace('"minilm", error=0.02', '"model", error=0.02, rounds=2'), found)
    assert found["vectors"].shape == (2, 32) and found["program"].hash == found["result"].best.program.hash
    assert repr(found["result"]).startswith("<Result model: the best of ") and len(repr(found["result"])) < 300
    assert "programs: * is chosen" in str(found["result"]) and "saved  " not in str(found["result"])


@pytest.mark.parametrize("name", ["optimize", "load", "prove", "schedule", "select", "open_model", "weight", "product"])
def test_help_fits_a_screen(name):
    said = pydoc.plain(pydoc.render_doc(getattr(om, name)))
    assert len(said.splitlines()) < 45 and max(map(len, said.splitlines())) < 1000 and "<law" not in said


def test_help_says_what_every_option_of_optimize_is():
    import inspect

    words = set(re.findall(r"^    (\w+(?:, \w+)*)  ", om.optimize.__doc__, re.M))
    assert {name for line in words for name in line.split(", ")} == set(inspect.signature(om.optimize).parameters)


def test_what_is_no_model_is_refused():
    with pytest.raises(InputError, match="absent/model: neither a model that opmatrix fetches"):
        om.optimize("./absent/model")
