"""What is displayed: text by name or in full, LaTeX, small HTML tables, a namespace to read text back in."""

import subprocess
import sys

import numpy as np
import pytest

import opmatrix
from opmatrix.algebra.data import Promised
from opmatrix.algebra.monoids import max, topk
from opmatrix.algebra.operators import (
    I,
    attention,
    centre,
    cols,
    const,
    diag,
    gelu,
    heads,
    layernorm,
    over,
    product,
    relu,
    row,
    softmax,
    tanh,
    total,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, mask, sequence
from opmatrix.algebra.term import Data, formula, named
from opmatrix.display.show import latex, names, text


@pytest.fixture
def W(data):
    return weight(Data(np.arange(20.0).reshape(4, 5), "W"))


@pytest.fixture
def b():
    return const(Data(np.arange(4.0) + 50, "b"))


def test_text(W, b):
    V = W.T
    for term, said in (
        (W @ gelu @ V + b, "W @ gelu @ W.T + b"),
        (W @ (gelu @ V), "W @ (gelu @ W.T)"),
        ((I + b) * 2 - 1, "(I + b) * 2.0 - 1.0"),
        (-(I + b), "-(I + b)"),
        (const([1.0, 2.0]), "const([1.0, 2.0])"),
        (diag([1.0, 2.0]), "diag([1.0, 2.0])"),
        (centre, "centre"),
        (row(I, relu, tanh), "row(I, relu, tanh)"),
        (cols(1, 3), "cols(1, 3)"),
        (cols(1, 3, 4), "cols(1, 3, 4)"),
        (heads(2).T, "heads(2).T"),
        (W @ opmatrix.mean, "W @ mean"),
        (over(W, max), "over(W, monoids.max)"),
        (over(W, topk(3).indices), "over(W, monoids.topk(3).indices)"),
        (layernorm(1e-5), "layernorm(1e-05)"),
        (W @ I @ total, "W @ total"),
        (attention(W, W, W, 1, sequence & causal), "attention(W, W, W, 1, sequence & causal)"),
        (formula(lambda x: (x @ W) @ (x @ W).T @ x), "formula(lambda x: x @ W @ (x @ W).T @ x)"),
        (
            formula(lambda x: product(x @ x.T, x, over=softmax, where=mask([[1, 0], [1, 1]]) & sequence)),
            "formula(lambda x: product(x @ x.T, x, over=softmax, where=mask([[1, 0], [1, 1]]) & sequence))",
        ),
    ):
        assert str(term) == said and eval(said, names(term)) is term


def test_text_in_full(W):
    average = "(I - mean)"
    assert text(layernorm(0.5), short=False) == f"{average} * (({average} @ square @ mean + 0.5) @ rsqrt)"
    assert "softmax" in text(attention(W, W, W, 1, sequence), short=False)


def test_a_name_of_ones_own(W):
    twice = named("twice", W @ W.T @ W @ W.T)
    assert str(twice @ relu) == "twice @ relu" and text(twice, short=False) == "W @ W.T @ W @ W.T"


def test_latex(W, b):
    for term, said in (
        (
            W.T @ W @ relu + np.ones(12)[:5],
            r"W^{\top}\,W\,\mathrm{relu} + \begin{bmatrix}1 & 1 & 1 & 1 & 1\end{bmatrix}",
        ),
        (I * b, r"I \odot b"),
        (row(I, relu), r"\begin{bmatrix}I & \mathrm{relu}\end{bmatrix}"),
        (W.T, r"W^{\top}"),
        (layernorm(0.5), r"\mathrm{norm}_{0.5}"),
        (weight([[1.0, 2.0], [3.0, 4.0]]), r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}"),
        (
            formula(lambda x: product(x @ x.T, x, over=softmax, where=sequence)),
            r"x \mapsto x\,x^{\top} \circledast_{\mathrm{softmax}}^{\mathrm{sequence}} x",
        ),
        (heads(3), "H_{3}"),
        (weight(Data(np.ones((9, 9)), "layer.0.W")), r"\mathrm{layer\_0\_W}"),
    ):
        assert latex(term) == said and term._repr_latex_() == f"${said}$"


def test_html(W, b):
    cell = "<td>{}</td>".format
    assert (
        W._repr_html_().count("<td>") == 20
        and cell("19") in W._repr_html_()
        and "(T × 4) → (T × 5), linear" in W._repr_html_()
    )
    assert relu._repr_html_().count(cell("relu")) == 3 and "⋮" in relu._repr_html_()
    assert (relu @ tanh)._repr_html_().count(cell("relu @ tanh")) == 3
    assert cell("W @ gelu") in row(W @ gelu, I)._repr_html_()
    factors = (W @ relu @ W.T + b)._repr_html_()
    assert cell("W @ relu @ W.T + b") in factors and cell("(T × 4)") in factors
    assert weight(np.ones((90, 3)))._repr_html_().count("<tr>") == 9 and cell("7") in const([7.0, 8.0])._repr_html_()
    assert "&lt;" in named("a<b", W @ W.T @ W)._repr_html_()


def test_a_whole_model_is_displayed(small):
    assert eval(str(small), names(small)) is small
    assert len(small._repr_html_().split("<tr>")) == 12 and "attention" in small._repr_latex_()


def test_public_names():
    for name in opmatrix.__all__:
        assert getattr(opmatrix, name) is not None
    assert opmatrix.algebra.monoids.softmax is softmax and "relu" in dir(opmatrix)
    with pytest.raises(AttributeError, match="module 'opmatrix' has no attribute 'relux'"):
        _ = opmatrix.relux


def test_importing_costs_nothing_that_is_not_used():
    """The heavy ones are imported at first use; the algebra of sizes that are numbers needs numpy alone."""
    code = (
        "import sys, opmatrix as om; A = om.weight([[1, 2], [3, 4]]) @ om.relu + om.layernorm(1e-5) @ om.cols(0, 2); "
        "om.formula(lambda x: om.product((x @ A) @ x.T, x @ om.row(A, om.I), over='softmax'))([[1., 2.], [0., 3.]]); "
        "heavy = {'sympy', 'numba', 'egglog', 'scipy', 'torch', 'rich', 'matplotlib', 'safetensors'}; "
        "seen = lambda: {m.split('.')[0] for m in sys.modules} & heavy; print(*seen()); om.build; print(*seen())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["", "sympy", ""]


def test_promised_weights_are_shown_by_their_names():
    term = weight(Promised("up", (3, 4))) @ relu @ weight(Promised("down", (4, 3)))
    assert "up" in latex(term) and "down" in latex(term)


# ---- parts that are met many times over


def residual(x, W):
    return x + product(x @ x.T, x, over=softmax) @ W


def gated(x, W):
    return x * (x @ W)


def nested(A, W):
    return product(product(W @ A, opmatrix.turn(W @ A)), W @ A)


def doubled(A, W):
    return A @ W + A @ relu


def rows_of(A, W):
    return row(A, A) @ weight(np.ones((2 * A.out.cols, 4))) if A.out.cols == 4 else A


@pytest.mark.parametrize("layer", [residual, gated])
@pytest.mark.parametrize("depth", [1, 4, 24, 200])
def test_a_formula_grows_by_a_layer_for_a_layer(layer, depth):
    """Written out in full it would double."""
    W = weight(Data(np.arange(16.0).reshape(4, 4), "W"))

    def layers(x):
        for _ in range(depth):
            x = layer(x, W)
        return x

    term = formula(layers)
    assert eval(str(term), names(term)) is term
    for said in (str(term), repr(term), latex(term), term._repr_html_(), term._repr_latex_()):
        assert len(said) < 8000 + 200 * depth


@pytest.mark.parametrize("layer", [nested, doubled, rows_of])
@pytest.mark.parametrize("depth", [1, 4, 24, 200])
def test_an_operator_grows_by_a_layer_for_a_layer(layer, depth):
    W = weight(Data(np.arange(16.0).reshape(4, 4), "W"))
    term = W
    for _ in range(depth):
        term = layer(term, W)
    assert eval(str(term), names(term)) is term and len(str(term)) < 8000 + 200 * depth


@pytest.mark.parametrize("seed", range(40))
def test_any_sharing_reads_back(seed):
    """Terms drawn of a pool that grows: operands are met at any depth, as values and as operators."""
    rng = np.random.default_rng(seed)
    W = weight(Data(np.arange(16.0).reshape(4, 4), "A1"))  # as a part might be called
    pool = [I, W, relu @ W, W @ tanh]
    makers = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: a @ b,
        lambda a, b: a - b,
        lambda a, b: -(a + b),
        lambda a, b: product(product(a, opmatrix.turn(b)), b, over=softmax, where=sequence & causal),
        lambda a, b: attention(W, W, W, 1, sequence) @ a + b,
        lambda a, b: opmatrix.turn(opmatrix.turn(a) @ relu),
    ]
    for _ in range(60):
        a, b = (pool[-1 - int(rng.exponential(2)) % len(pool)] for _ in range(2))
        made = makers[rng.integers(len(makers))](a, b)
        pool += [made] * (made.shape == W.shape)
    term = pool[-1]
    assert eval(str(term), names(term)) is term
    nodes = sum(1 for _ in term.walk())  # each formula writes its values anew
    assert len(str(term)) < 2000 + 40 * nodes**2 and len(latex(term)) < 2000 + 120 * nodes**2


def test_a_value_shows_its_first_parts():
    shown = []

    def layers(x):
        for _ in range(30):
            x = residual(x, I)
        shown.append(repr(x))
        return x

    formula(layers)
    assert len(shown[0]) <= 300 and shown[0].startswith("(x1 := x + product(x @ x.T, x, over=softmax), x2 := ")
