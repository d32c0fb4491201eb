"""Nothing is opened or run because a file names it: laws, texts and models that a report names are asked for."""

import json
import os
import shutil

import checkpoints
import pytest
from test_cli import command, patched, refused  # noqa: F401

from formats.core.errors import InputError
from rewrites.cli import explained_program as explain
from rewrites.metrics.reported import Named, Reported
from rewrites.opened import Opened
from rewrites.workload.phases import Report


@pytest.fixture
def reported(program, tmp_path, monkeypatch):
    """A saved program whose report is changed by what is given; the model is on hand."""
    model = checkpoints.write(tmp_path / "model", max_position_embeddings=64)
    found = {
        "tokens": None,
        "number_type": "int8",
        "without": [],
        "text": None,
        "texts": None,
        "laws": None,
        "chosen": 0,
        "error": 0.02,
        "front": [
            {"name": "exact", "measured_s": 1e-3, "measured_bytes": 5, "predicted_error": 0.0, "measured_error": 1e-7}
        ],
    }

    def change(**changed):
        if not (tmp_path / "place").exists():
            program.replace(model="model", source=str(model)).save(tmp_path / "place")
        (tmp_path / "place" / "report.json").write_text(json.dumps(found | changed))
        return tmp_path / "place"

    monkeypatch.setattr(Opened, "structure", lambda *_, **__: (_ for _ in ()).throw(InputError("the search begins")))
    return change


def evil(tmp_path, name="evil.py"):
    """A file that shows that it was run."""
    (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    return tmp_path / name


def test_laws_that_a_report_names_are_not_run(command, reported, tmp_path):  # noqa: F811
    laws = evil(tmp_path)
    refused(command("explain", reported(laws=Named.of(laws)._asdict())), "--laws", laws)
    refused(command("explain", reported(laws=str(laws))), "report.json: laws is", "no run writes")
    assert not (tmp_path / "ran").exists()


def test_other_laws_are_refused_by_their_digest_before_they_run(command, reported, tmp_path):  # noqa: F811
    laws = evil(tmp_path)
    place = reported(laws=Named.of(laws)._asdict())
    laws.write_text(laws.read_text() + "# changed\n")
    refused(command("explain", place, "--laws", laws), f"--laws {laws}: its SHA-256 is")
    refused(command("explain", reported(), "--laws", laws), "made without one")
    assert not (tmp_path / "ran").exists()


def test_no_compiled_code_beside_a_file_is_run(tmp_path):
    """A .pyc of the right time and size is not taken for the file."""
    import py_compile
    from importlib.util import cache_from_source

    from opmatrix.runtime.codegen.custom_modules import run_file as module

    laws, other = tmp_path / "laws.py", evil(tmp_path)
    laws.write_text("mine = 1\n".ljust(other.stat().st_size))
    for file in (laws, other):
        os.utime(file, (10**9, 10**9))
    py_compile.compile(str(other), cfile=cache_from_source(str(laws)))
    assert module(laws).mine == 1 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name, option", [("text", "--text"), ("texts", "--workload")])
def test_texts_that_a_report_names_are_not_opened(command, reported, tmp_path, name, option):  # noqa: F811
    file = tmp_path / "lines.txt"
    file.write_text("the bank\nthe river\na bank\n")
    place = reported(**{name: Named.of(file)._asdict()})
    refused(command("explain", place), option, file)
    refused(command("explain", place, option, file), "the search begins")
    file.write_text("the bank\nthe rivers\na bank\n")
    refused(command("explain", place, option, file), "SHA-256")


DAMAGE = [
    ("tokens", 0),
    ("tokens", True),
    ("tokens", "9"),
    ("number_type", "fp8"),
    ("number_type", []),
    ("without", [3]),
    ("without", "join"),
    ("text", "/etc/passwd"),
    ("texts", {"file": "x"}),
    ("laws", {"file": 3, "sha256": "0"}),
    ("front", []),
    ("front", [3]),
    ("front", [{}]),
    ("front", [{"name": "x", "measured_s": "fast"}]),
    ("front", [{"name": "x", "measured_s": -1}]),
    ("front", [{"name": "x"}] * 101),
    ("chosen", 1),
    ("chosen", -1),
    ("chosen", False),
    ("error", None),
    ("error", -1.0),
    ("error", True),
    ("memory", "all"),
    ("memory", -5),
]


@pytest.mark.parametrize("key, value", DAMAGE, ids=str)
def test_every_field_of_a_report_is_checked(reported, key, value):
    place = reported(**{key: value})
    with pytest.raises(InputError, match=rf"report\.json: {key}.* which no run writes"):
        Reported.read(place / "report.json")
    assert Reported.read(reported() / "report.json").front[0]["name"] == "exact"


def test_the_model_is_the_one_that_is_given(reported, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(
        explain, "open_model", lambda name, adapter: opened.append(name) or (_ for _ in ()).throw(InputError("seen"))
    )
    for given in ("elsewhere", None):
        with pytest.raises(InputError, match="seen"):
            explain.explain(reported(), Report(quiet=True), model=given)
    assert opened == ["elsewhere", str(tmp_path / "model")]


def test_a_point_that_no_front_has(command, reported):  # noqa: F811
    """It is said which there are; elsewhere, what was looked for and what lies there."""
    place = reported()
    for number in range(3):
        shutil.copytree(place, place / "front" / f"{number}", ignore=lambda *_: ["front"])
    for name in ("explain", "verify"):
        refused(command(name, place / "front" / "99"), "front/99: no such point of the front: there are 0 to 2:")
    shutil.rmtree(place / "front" / "0")
    refused(command("explain", place / "front" / "0"), "no such point of the front: there are only 1, 2: give one")
    refused(command("explain", place / "front"), f"front: no program.json in it, and {place}/front holds 1, 2: give")
    refused(
        command("explain", place / "frond" / "0"),
        "no such directory: program.json was looked for, and ",
        f"{place} holds config.json, front, program.json, report.json",
    )
