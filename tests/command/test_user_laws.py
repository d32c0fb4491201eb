"""Laws and approximations from a user's file: what is wrong in it is refused with file, line and an example; what is
right takes part in the search, the front, the list of laws and the derivation."""

import json

import numpy as np
import pytest
import standin
from optimized import LINES, small
from searched import model, structure
from test_cli import command, patched, refused  # noqa: F401

from formats.core.errors import InputError
from opmatrix.runtime.program import Program
from rewrites.approximate.error_levels import count_methods, describe_methods
from rewrites.explain.derivations.chain import derive_chain
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method
from rewrites.search.approximation import approximation
from rewrites.search.fit import Fitter
from rewrites.verify.user_laws import load_laws

HEAD = """import numpy as np
from opmatrix import I, relu, tanh
from opmatrix.algebra.operators import heads
from rewrites.search.approximation import approximation
from rewrites.laws.law import SIMPLIFY, constant, count, h, k, law, matrix, n, operator, p, value

"""
GOOD = (
    HEAD
    + '''
@law(phase=SIMPLIFY, canonical=True, source="max(max(u, 0), 0) = max(u, 0)")
def relu_twice(x: value[n]):
    """Nothing negative is left for the second."""
    return x @ relu @ relu, x @ relu

@law(source="linearity")
def bias_from_both(x: value[n], c: constant[p], A: matrix[n, p], B: matrix[n, p]):
    """A bias may stand between two products."""
    return (x @ A + c) + x @ B, x @ (A + B) + c

@approximation(density=(0.25, 0.5), source="magnitude pruning")
def largest(W, density):
    """Keeps the largest entries."""
    return np.where(abs(W) >= np.quantile(abs(W), 1 - density), W, 0)

@approximation(rank=(4,))
def thin(W, rank):
    """Truncated singular values."""
    u, s, v = np.linalg.svd(W, full_matrices=False)
    return u[:, :rank] * s[:rank], v[:rank]
'''
)
LINE = len(HEAD.splitlines()) + 2  # of what is declared first


def written(tmp_path, text, name="mine.py"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def declared(text):
    return HEAD + "\n" + text


# ---- what is right


def test_what_a_file_declares(tmp_path):
    found = load_laws(written(tmp_path, GOOD + "again = relu_twice\nfrom rewrites.laws.ring import associate\n"))
    assert [law.name for law in found.laws] == ["relu_twice", "bias_from_both"]
    assert [each.name for each in found.approximations] == ["largest", "thin"]


def test_a_law_of_ones_own_is_in_the_derivation(tmp_path):
    """A law that the engine has, left out and declared again under another name, takes its place."""
    own = declared('''
@law(phase=SIMPLIFY, canonical=True, source="block structure of the columns")
def my_heads(x: value[n], A: matrix[n, h * p], H: count):
    """Splitting into heads after a product is one matrix for each head."""
    return (x @ A) @ heads(H), x @ (A @ heads(H))
''')
    laws = tuple(law for law in EXACT_LAWS if law.name != "stack_columns") + load_laws(written(tmp_path, own)).laws
    operator = model(num_hidden_layers=1)
    with_mine, with_ours = structure(operator, laws), structure(operator)
    assert with_mine.time == pytest.approx(with_ours.time)
    steps = derive_chain(with_mine, laws)
    assert (
        any("my_heads" in part.laws() for part in steps.parts) and "my_heads at" in str(steps) and steps.checked < 1e-12
    )


def test_an_approximation_is_stored_in_any_format_that_holds_it(tmp_path):
    largest, thin = load_laws(written(tmp_path, GOOD)).approximations
    matrix = np.random.default_rng(0).normal(size=(40, 32))
    methods = [*largest.methods(matrix), *thin.methods(matrix)]
    assert {method.format for method in methods} >= {"csr", "lowrank"}
    assert {method.fit for method in methods} == {"largest(density=0.25)", "largest(density=0.5)", "thin(rank=4)"}
    fitter = Fitter(own={"largest": largest, "thin": thin})
    for method in methods:
        stored = fitter.store(matrix, method, (0, 0, "columns"))
        each = largest if method.fit.startswith("largest") else thin
        wanted = each.fitted(matrix, next(p for p in each.options() if each.label(p) == method.fit))
        whole = wanted[0] if len(wanted) == 1 else wanted[0] @ wanted[1]
        assert stored.name == method.format
        np.testing.assert_allclose(stored.unpack(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.deep
def test_they_take_part_in_a_run(command, tmp_path, monkeypatch):  # noqa: F811
    place = small(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    standin.know_savings(monkeypatch)
    tried = []
    monkeypatch.setattr(
        Fitter,
        "store",
        lambda fitter, numbers, method, key, store=Fitter.store: (
            tried.append(method.fit),
            store(fitter, numbers, method, key),
        )[1],
    )
    file = written(tmp_path, GOOD)
    ran = command("optimize", place, "--text", "lines.txt", "--error", "0.3", "--laws", file, "--out", "out")
    assert ran.status == 0, ran.err
    assert f"{len(EXACT_LAWS) + 2} laws" in ran.out
    assert {"largest(density=0.25)", "largest(density=0.5)", "thin(rank=4)"} <= set(tried)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["laws"]["file"] == str(file)
    certificate = Program.load(tmp_path / "out").meta["certificate"]
    assert certificate["verified"]["laws"]["own"] == ["relu_twice", "bias_from_both"]
    ran = command("explain", "out", "--text", "lines.txt", "--laws", file)
    assert ran.status == 0 and "every one checked in float64" in ran.out, ran.err


@pytest.mark.deep
def test_an_approximation_of_ones_own_is_a_point_and_a_step(tmp_path):
    """A program that stores a weight by it is called after it, and so is the step that does."""
    largest, _ = load_laws(written(tmp_path, GOOD)).approximations

    def mine(lowering, use):
        if use.layout == "stack" or use.x in lowering.graph.facts["given"]:
            return [Method()]
        kept = [each for each in largest.methods(lowering.matrix(use.weight, use.layout)) if each.format == "csr"]
        return [each._replace(error=1e-4) for each in kept]

    made = structure(model(num_hidden_layers=1), methods=mine)
    assert count_methods(made)["largest"] >= 4 and describe_methods(made).startswith("largest x")
    said = str(derive_chain(made, EXACT_LAWS))
    assert "as csr at" in said and "largest(density=" in said and "error 0.01 on calibration rows" in said


def test_laws_lists_them(command, tmp_path):  # noqa: F811
    ran = command("laws", "--laws", written(tmp_path, GOOD))
    assert ran.status == 0
    for said in (
        "relu_twice (exact)",
        "x_ @ relu @ relu → x_ @ relu",
        "largest (approximate)",
        "density in [0.25, 0.5]",
        f"{len(EXACT_LAWS)} exact laws",
        "4 your own",
    ):
        assert said in ran.out, said


# ---- what is wrong

WRONG = [
    (
        "drops",
        "x: value[n], A: operator[n, p]",
        "x @ A @ relu, x @ A",
        ["law drops", "it is wrong", "entry (", "seed 0"],
    ),
    (
        "swaps",
        "x: value[n], A: matrix[n, n], B: matrix[n, n]",
        "x @ A @ B, x @ B @ A",
        ["law swaps", "it is wrong", "A = "],
    ),
    ("misfits", "x: value[n], A: matrix[k, p]", "x @ A, x @ A", ["law misfits", "do not fit"]),
    ("narrows", "x: value[n], A: matrix[n, p]", "x @ A, x", ["law narrows", "the left is (8, 4), the right (8, 6)"]),
    ("associate", "x: value[n]", "x @ relu @ relu, x @ relu", ["law associate", "opmatrix has one of that name"]),
    ("norm_affine", "x: value[n]", "x @ relu @ relu, x @ relu", ["law norm_affine", "opmatrix has one of that name"]),
]


@pytest.mark.parametrize("name, variables, sides, words", WRONG, ids=[name for name, *_ in WRONG])
def test_a_wrong_law_is_refused_with_an_example(tmp_path, name, variables, sides, words):
    file = written(
        tmp_path, declared(f'@law(source="nowhere")\ndef {name}({variables}):\n    """No."""\n    return {sides}\n')
    )
    with pytest.raises(InputError) as refusal:
        load_laws(file)
    for word in (f"{file}:{LINE}:", *words):
        assert word in str(refusal.value), str(refusal.value)


def test_a_true_law_that_cannot_be_used_is_listed_with_the_reason(command, tmp_path):  # noqa: F811
    """Numbers on a side are no reason."""
    file = written(
        tmp_path,
        declared(
            '@law()\ndef unsaid(x: value[n], y: value[n]):\n    """No."""\n'
            "    return x @ relu @ relu, x @ relu + (y + y * -1.0)\n"
            '@law()\ndef numbered(x: value[n]):\n    """Yes."""\n'
            "    return x @ (I * 2.0) @ (I * 0.5), x\n"
        ),
    )
    [line] = load_laws(file).left_out
    assert f"{file}:{LINE}: law unsaid: it is left out: y occurs on the right side only" in line
    ran = command("laws", "--laws", file, "--kind", "own")
    assert ran.status == 0 and line in " ".join(ran.out.split()) and "2 your own" in ran.out


def test_a_guard_that_is_not_needed_is_told(tmp_path):
    text = declared(
        '@law(source="", without=(dict(A=operator[n, p]),))\ndef same(x: value[n], A: matrix[n, p]):\n'
        '    """A counterexample that is none."""\n    return x @ relu @ relu @ A, x @ relu @ A\n'
    )
    with pytest.raises(InputError, match=r"law same: same: it holds with A: operator\[n, p\] too"):
        load_laws(written(tmp_path, text))


APPROXIMATIONS = [
    ("return W[:-1]", "gave (11, 8)"),
    ("return W * np.nan", "not finite"),
    ("return W + 1", "no format stores"),
    ("return np.where(np.random.default_rng().random(W.shape) < 0.3, W, 0)", "another matrix each time"),
    ("return W @ (size * W)", "matmul"),
    ("return W, W, W", "two factors of such"),
]


@pytest.mark.parametrize("body, word", APPROXIMATIONS, ids=[body for body, _ in APPROXIMATIONS])
def test_a_wrong_approximation_is_refused(tmp_path, body, word):
    file = written(tmp_path, declared(f"@approximation(size=(0.5,))\ndef nearest(W, size):\n    {body}\n"))
    with pytest.raises(InputError) as refusal:
        load_laws(file)
    said = str(refusal.value)
    assert f"{file}:{LINE}: approximation nearest" in said and word in said, said


TWICE = "(x: value[n]): return x @ relu @ relu, x @ relu\n"
FILES = [
    ("x = (", 1, "'(' was never closed"),
    ("import absent_module\n", 1, "ModuleNotFoundError"),
    ("\n\n1 / 0\n", 3, "ZeroDivisionError"),
    ("law = 3\n", None, "declares no law"),
    (HEAD, None, "declares no law"),
    (
        declared(f'def a():\n    @law(phase="later")\n    def b{TWICE}    return b\nb = a()\n'),
        LINE + 1,
        "phase 'later'",
    ),
    (
        declared(f"@law()\ndef a{TWICE}b = a\n@law()\ndef a{TWICE}"),
        LINE + 3,
        "law a: the file has another one of that name",
    ),
]


@pytest.mark.parametrize("text, number, words", FILES, ids=[words for *_, words in FILES])
def test_a_file_that_is_wrong_is_named_with_its_line(command, tmp_path, text, number, words):  # noqa: F811
    file = written(tmp_path, text)
    for arguments in (["laws"], ["optimize", "model"]):
        refused(command(*arguments, "--laws", file), f"{file}:" if number is None else f"{file}:{number}:", words)


def test_no_file(command, tmp_path):  # noqa: F811
    refused(command("laws", "--laws", "absent.py"), "absent.py", "No such file")
    refused(command("laws", "--laws", written(tmp_path, GOOD, "mine.txt")), "mine.txt", ".py")


def test_the_help_says_that_the_file_is_run(command):  # noqa: F811
    assert "it is run" in " ".join(command("optimize", "--help").out.split())


def test_an_approximation_may_not_be_called_as_a_format_is(tmp_path):
    text = declared("@approximation(size=(0.5,))\ndef half(W, size):\n    return W.astype(np.float16)\n")
    with pytest.raises(InputError, match="approximation half: opmatrix has one of that name"):
        load_laws(written(tmp_path, text))


def test_a_declared_approximation_has_a_row():
    @approximation(source="folklore", rank=(1, 2))
    def low(W, rank):
        """Nothing."""
        return W[:, :rank], np.eye(rank, W.shape[1])

    assert low.row() == ("low", "approximate", "W ≈ low(W, rank)", "rank in [1, 2]", "folklore")
    assert [*low.options()] == [{"rank": 1}, {"rank": 2}] and low.doc == "Nothing."
