"""Functions, monoids and patterns of one's own in files: saved by name and digest, loaded with the module that declares
them, and refused where it declares others."""

import subprocess
import sys

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.custom.code_digests import digest_code
from opmatrix.algebra.positions.patterns import Pattern, parse
from opmatrix.files.loading import PROGRAM
from opmatrix.runtime.codegen.custom_modules import run_file
from opmatrix.runtime.codegen.custom_things import digest_monoid
from rewrites.cli import __main__ as cli
from tests.support import standin

BATCH = om.Batch([[1, 2, 3, 1], [8, 0]])
TEXT = '''
"""What a model has of one's own."""
import math
import numpy as np
import opmatrix as om
from opmatrix.algebra.nodes import scalar_function
from opmatrix.algebra.positions.patterns import pattern

STEEP = 2.0

@scalar_function(maps_zero_to_zero=True)
def bent(u):
    """u over 1 + 2 |u|."""
    return u / (1 + STEEP * np.abs(u))

@scalar_function()
def counted(u):
    """What cannot be followed: it takes numbers one by one."""
    return np.vectorize(math.lgamma)(np.abs(u) + 1) if isinstance(u, np.ndarray) else math.lgamma(abs(u) + 1)

class peak(om.Monoid):
    """The largest size."""
    identity, idempotent = 0.0, True
    def lift(x, w): return np.abs(x * w)
    def merge(a, b): return np.maximum(a, b)

@pattern(reflexive=True)
def even(q, k):
    """Tokens an even number of positions apart."""
    return (q.position - k.position) % 2 == 0
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A module of one's own, a program that has all of it, what it means, and its directory."""
    path = tmp_path_factory.mktemp("own")
    file = path / "mine.py"
    file.write_text(TEXT)
    mine, rng = run_file(file), np.random.default_rng(0)
    Q, K, V = (om.weight(rng.normal(size=(8, 8))) for _ in range(3))
    body = om.formula(lambda x: x @ mine.bent * (x @ mine.peak) @ mine.counted)
    model = om.weight(rng.normal(size=(9, 8))) @ om.attention(Q, K, V, 2, mine.even & om.sequence) @ body
    program = om.schedule(model, BATCH, machine=standin.machine()).program
    program.save(path / "saved")
    return path / "saved", file, program, om.dense(model, BATCH)


def changed(tmp_path, file, old, new):
    """The module with something in it changed."""
    text = file.read_text()
    assert old in text
    made = tmp_path / "mine.py"
    made.write_text(text.replace(old, new))
    return made


def refused(directory, laws=None):
    """What is said of a program that is not loaded."""
    with pytest.raises(InputError) as caught:
        om.load(directory, laws=laws)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_saved_and_loaded_with_its_module(place):
    directory, file, program, wanted = place
    np.testing.assert_allclose(program.run(BATCH), wanted, rtol=1e-4, atol=1e-5)
    assert "attention" in [step.kernel for step in program.steps]  # a pattern of one's own is a mask to its kernel
    for laws in (file, str(file), run_file(file)):
        loaded = om.load(directory, laws=laws)
        assert loaded.run(BATCH).tobytes() == program.run(BATCH).tobytes() and loaded.hash == program.hash


def test_another_process_loads_it(place):
    """One that has declared nothing, so that everything comes of the file that it is given."""
    directory, file, program, _ = place
    code = (
        "import sys, opmatrix as om; print(om.load(sys.argv[1], laws=sys.argv[2])"
        ".run(om.Batch([[1, 2, 3, 1], [8, 0]])).tobytes().hex())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(directory), str(file)], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == program.run(BATCH).tobytes().hex(), found.stderr


def test_without_its_module_it_says_what_to_give(place, capsys, monkeypatch):
    directory, file, _, _ = place
    said = refused(directory)
    assert all(word in said for word in ("bent", "counted", "peak", "even", "laws=module", "--laws FILE"))
    for more, said in (([], "--laws FILE"), (["--laws", str(file)], "tokenizer")):  # loaded, it has no tokenizer
        monkeypatch.setattr("sys.argv", ["opmatrix", "run", str(directory), "a text", *more])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("np.maximum(a, b)", "a + b", "peak"),
        ("np.abs(x * w)", "x * w", "peak"),
        ("idempotent = 0.0", "idempotent = 1.0", "peak"),
        ("STEEP = 2.0", "STEEP = 2.5", "bent"),
        ("% 2 == 0", "% 2 == 1", "even"),
        ("reflexive=True", "reflexive=False", "even"),
        ("math.lgamma(abs(u) + 1)", "math.lgamma(abs(u) + 2)", "counted"),
    ],
)
def test_a_module_that_was_changed_is_refused(place, tmp_path, old, new, name):
    directory, file, _, _ = place
    assert f"{name} in {tmp_path / 'mine.py'} is not the one that the program was saved with" in refused(
        directory, changed(tmp_path, file, old, new)
    )


@pytest.mark.parametrize(
    "old, new",
    [
        ("u / (1 +", "u  /  (1.0 +"),
        ('"""The largest size."""', '"""Another word."""'),
        (
            "def merge(a, b): return np.maximum(a, b)",
            "def merge(one, two):\n        top = np.maximum(one, two)\n        return top",
        ),
    ],
)
def test_what_computes_the_same_is_the_same(place, tmp_path, old, new):
    directory, file, program, _ = place
    assert om.load(directory, laws=changed(tmp_path, file, old, new)).hash == program.hash


def test_a_module_without_it_and_what_is_no_module_are_refused(place, tmp_path):
    directory, file, _, _ = place
    assert "user-defined peak, which" in refused(directory, changed(tmp_path, file, "class peak", "class top"))
    assert "laws=5 is no module" in refused(directory, 5)
    assert "NameError" in refused(directory, changed(tmp_path, file, "STEEP = 2.0", "nothing"))


def test_no_file_is_imported_because_a_program_names_it(place, tmp_path):
    """What a file says of one's own is a name: where it is said otherwise than in the steps it is refused."""
    directory, file, _, _ = place
    text = (directory / PROGRAM).read_text()
    for old, new, said in (
        ('"own": [', '"own": ["os:0123456789abcdef",', "own:"),
        ('"version": 7', '"version": 3', "user-defined"),
        ("bent:", "os.system:", "user-defined"),
    ):
        other = tmp_path / old.strip('": [')
        other.mkdir()
        for each in directory.iterdir():
            (other / each.name).write_bytes(each.read_bytes())
        (other / PROGRAM).write_text(text.replace(old, new))
        assert said in refused(other, file)


@pytest.mark.parametrize("name, what", [("max", "monoid"), ("tanh", "function"), ("causal", "pattern")])
def test_names_of_ours_are_refused_where_it_is_saved(name, what, tmp_path):
    """Here they run."""
    mine = run_file_of(
        tmp_path,
        TEXT.replace("class peak", f"class {name if what == 'monoid' else 'peak'}")
        .replace("def bent", f"def {name if what == 'function' else 'bent'}")
        .replace("def even", f"def {name if what == 'pattern' else 'even'}"),
    )
    rng = np.random.default_rng(0)
    table, W = om.weight(rng.normal(size=(9, 8))), om.weight(rng.normal(size=(8, 8)))
    own = getattr(mine, name)
    model = (
        table
        @ {
            "monoid": lambda: om.formula(lambda x: x * (x @ own)),
            "function": lambda: own,
            "pattern": lambda: om.attention(W, W, W, 2, own & om.sequence),
        }[what]()
    )
    program = om.schedule(model, BATCH, machine=standin.machine()).program
    np.testing.assert_allclose(program.run(BATCH), om.dense(model, BATCH), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=f"not saved: the user-defined {name} has the name of a {what} of opmatrix"):
        program.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def run_file_of(tmp_path, text):
    file = tmp_path / "theirs.py"
    file.write_text(text)
    return run_file(file)


def test_patterns_of_ones_own_are_parts_of_others(place):
    mine = run_file(place[1])
    seen = (mine.even | om.hubs(1)) & om.sequence
    assert seen.stated and not seen.ours and parse(seen.text) == seen and str(seen) == "(even | hubs(1)) & sequence"
    assert not Pattern("even", mine.even.sees, True).stated  # that nobody declared by a name
    with pytest.raises(ValueError, match="'odd' is user-defined and not declared in this process"):
        parse("odd:0123456789abcdef & sequence")


def test_digests_are_of_what_is_computed():
    def made(by):
        return type("scaled", (om.Monoid,), dict(identity=0.0, lift=lambda x, w: by * x * w, merge=lambda a, b: a + b))

    assert digest_monoid(made(2)) == digest_monoid(made(2)) != digest_monoid(made(3))

    def held(by):
        return lambda u: u + by

    assert digest_code(held(2)) == digest_code(held(2)) != digest_code(held(3))
