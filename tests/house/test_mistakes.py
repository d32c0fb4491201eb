"""What people write first, and what it says or does: each mistake is one message that names what to write instead."""

import inspect
import pydoc
import re

import numpy as np
import pytest
from scipy.special import softmax as scipy_softmax

from formats import CSR, Dense
from formats.core.errors import InputError
from opmatrix import (
    I,
    attention,
    blocks,
    col,
    cols,
    dense,
    diag,
    diagonal,
    entrywise,
    exp,
    formula,
    grouped,
    heads,
    layernorm,
    magnitude,
    maximum,
    over,
    product,
    prove,
    reciprocal,
    relation,
    relu,
    repeat,
    rmsnorm,
    rotary,
    row,
    share,
    sigmoid,
    softmax,
    softplus,
    symbol,
    tanh,
    unit_length,
    weight,
)
from opmatrix import given as fields
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.positions import patterns
from opmatrix.inference.embed import each
from opmatrix.runtime.program import Program
from rewrites import optimize
from rewrites.laws.law import SIMPLIFY, law, n, value

A = weight([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "write, says",
    [
        (
            lambda: softmax([[1.0]]),
            "softmax(..): a monoid is a way of summing, not a function: product(scores, values, over=softmax)",
        ),
        (lambda: over(I, "maxx"), "over: there is no monoid 'maxx': concat,"),
        (lambda: product(A, A, over=relu), "product: relu is no monoid: give one of opmatrix.algebra.monoids"),
        (lambda: over(I, int), "over: <class 'int'> is no monoid"),
        (
            lambda: formula(lambda x: None),
            "formula <lambda>: it returns None (is a `return` missing?): return a value, such as x @ relu",
        ),
        (lambda: formula(lambda x: relu), "formula <lambda>: it returns relu, a Operator: return a value"),
        (
            lambda: formula(lambda x: np.maximum(x, 0)),
            "np.maximum of a Value: it stands for numbers that are not known yet: apply an operator",
        ),
        (lambda: formula(lambda x: np.add.reduce(x)), "np.add of a Value"),
        (lambda: formula(lambda x: x.sum()), "a Value has no sum: it stands for numbers that are not known yet"),
        (lambda: weight([1.0, 2.0]), "weight: an array of shape (2,): a matrix is (rows, columns)"),
        (lambda: weight(np.ones((1, 2, 3, 4))), "weight: an array of shape (1, 2, 3, 4): a matrix is"),
        (lambda: weight([[1.0, np.nan]]), "an operand of shape (1, 2): NaN at [0, 1]"),
        (lambda: weight([[1, 2], [3]]), "an operand: [[1, 2], [3]]: its rows have different lengths"),
        (
            lambda: symbol("a", 3, 4, linear=True).T,
            "(a).T: only the sizes of the symbol a are known: transpose its result, turn(a)",
        ),
        (lambda: [*relu], "relu is no list: A[i, j] is an entry, A.shape the sizes"),
        (lambda: formula(relu), "formula: relu is no function of x: give one, such as lambda x: x @ relu"),
        (lambda: formula(lambda x: x**2), "a Value ** 2: multiply it, x * x, or apply an operator, x @ square"),
        (lambda: layernorm(), "layernorm(x, eps): missing a required argument: 'eps'"),
        (lambda: product(A), "product(a, b, over, where): missing a required argument: 'b'"),
        (lambda: prove(A, "p"), "prove: the right side is 'p', not an operator: give terms, such as weight(A) @ relu"),
        (lambda: relu.T, "(relu).T: only a linear operator of known sizes has an adjoint"),
        (
            lambda: A @ softmax,
            "x @ softmax: softmax weighs values by scores, and a row of scores alone sums to 1 whatever "
            "it holds: give both, product(scores, values, over=softmax); each row's own softmax is x "
            "@ share",
        ),
        (lambda: formula(lambda x: x @ x.T @ softmax), "x @ softmax: softmax weighs values by scores"),
        (
            lambda: layernorm(0.0),
            "layernorm(0.0): eps is added to a mean of squares under a root, in "
            "float32: give a number from 1.2e-38 to 1.3e+30, such as 1e-5",
        ),
        (lambda: rmsnorm(1e40), "rmsnorm(1e+40): eps is added to a mean of squares"),
        (lambda: rmsnorm(np.nan), "rmsnorm(nan): eps is added to a mean of squares"),
        (lambda: layernorm("1e-5"), "layernorm('1e-5'): eps is added to a mean of squares"),
        (
            lambda: attention(A, A, A, 1, "causal"),
            "attention: where='causal' is a text, no pattern: give opmatrix.causal itself",
        ),
        (
            lambda: attention(A, A, A, 1, "near"),
            "attention: where=near is no pattern: give one such as sequence & causal, or mask(table)",
        ),
        (lambda: grouped(A, A, A, 2, 1, None), "grouped: where=None is no pattern"),
        (
            lambda: formula(lambda x: product(x @ x.T, x, where=np.eye(2))),
            "product: where=[[1.0, 0.0], [0.0, 1.0]] is no ",
        ),
        (lambda: formula(lambda x: product(x @ x.T, x, where=lambda q, k: q)), "product: where=<function"),
        (lambda: Dense(np.ones(4)), "dense(W): a matrix W of (inputs, outputs) is stored by Dense.pack(W)"),
        (lambda: CSR(np.ones((4, 4))), "csr(W): a matrix W of (inputs, outputs) is stored by CSR.pack(W)"),
    ],
)
def test_a_mistake_is_one_message(write, says):
    with pytest.raises((TypeError, ValueError, AttributeError)) as error:
        write()
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        None,
        sum,
        max,
        3,
        0.5,
        [1],
        (),
        {},
        np.eye(2),
        np.float32(1),
        np,
        abs,
        A,
        int,
        lambda x, w: x * w,
        b"sum",
        "topk(0)",
    ],
    ids=lambda given: str(given)[:20],
)
def test_what_is_no_monoid_is_refused_where_it_is_written(given):
    """What Python calls by the name of one has it named."""
    for write in (lambda: over(I, given), lambda: formula(lambda x: product(x @ x.T, x, over=given))):
        with pytest.raises(TypeError, match=r"^(over|product): .* no monoid") as error:
            write()
        if given is sum or given is max:
            assert str(error.value).endswith(f"opmatrix.algebra.monoids.{given.__name__}")


@pytest.mark.parametrize(
    "given",
    [None, True, "x", [1], np.eye(2), relation("links", "T", "T"), sum, A, monoids.sum, np],
    ids=lambda given: str(given)[:20],
)
def test_what_is_no_pattern_is_refused_where_it_is_written(given):
    for write in (
        lambda: attention(A, A, A, 1, given),
        lambda: grouped(A, A, A, 1, 1, given),
        lambda: formula(lambda x: product(x @ x.T, x, where=given)),
    ):
        with pytest.raises(TypeError, match=r"^(attention|grouped|product): where=.* no pattern: give ") as error:
            write()
        assert "\n" not in str(error.value) and ("among(links)" in str(error.value)) == isinstance(given, Relation)


@pytest.mark.parametrize(
    "given", [None, "1", 2.0, 0.5, np.float64(2), [1], np.ones(1), True, abs], ids=lambda given: str(given)[:20]
)
def test_what_is_no_whole_number_is_refused_where_it_is_written(given):
    for write in (
        patterns.window,
        patterns.hubs,
        monoids.topk.__wrapped__,
        heads,
        repeat,
        lambda h: cols(h, 3),
        lambda h: rotary(h, 4),
        lambda h: rotary(4, h),
        lambda h: fields("tokens", h),
    ):
        with pytest.raises((TypeError, ValueError), match=r"whole number|relation") as error:
            write(given)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [None, "1", 0, -1.0, np.inf, np.nan, 10**400, [1e-5], np.zeros(()), np.ones(2), True],
    ids=lambda given: str(given)[:20],
)
def test_what_is_no_small_number_is_refused_where_it_is_written(given):
    for write in (layernorm, rmsnorm, unit_length):
        with pytest.raises(InputError, match=rf"^{write.__name__}\(.*: give a number from ") as error:
            write(given)
        assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "write, says",
    [
        (lambda: diag(np.ones((2, 2))), "diag: (2, 2) is no row of numbers: a matrix is weight"),
        (row, "row(): no parts: give"),
        (col, "col(): no parts: give"),
        (diagonal, "diagonal(): no parts: give"),
        (lambda: blocks([[A], [A, A]]), "blocks: lines of 1, 2 blocks: give"),
        (lambda: blocks([]), "blocks: lines of no "),
        (lambda: rotary(4, 3), "rotary: 3 columns: they rotate in pairs"),
        (lambda: rotary(4, 4, base=0.0), "rotary: base is 0.0: it must be a number above 0"),
        (lambda: fields("features", 3), "given 'features': the fields of a batch are tokens, positions, kinds"),
        (lambda: fields("tokens", -3), "given: n is -3: it must be a whole number from 1 on"),
        (lambda: relation("my links", "T", "T"), "relation my links: T × T: 'my links' is no name of up to 40 letters"),
        (lambda: relation("", "T", "T"), "relation : T × T: '' is no name"),
        (lambda: relation("links", "T", "all nodes"), "relation links: T × all nodes: 'all nodes' is no name"),
        (lambda: A([[1 + 2j, 0]]), "(weight([[1.0, -2.0], [3.0, 4.0]])) at x: x has numbers of type complex128"),
        (lambda: A([["a", "b"]]), "(weight([[1.0, -2.0], [3.0, 4.0]])) at x: x has numbers of type <U1"),
    ],
)
def test_parts_and_sizes_that_cannot_be_meant_are_refused(write, says):
    with pytest.raises((TypeError, ValueError)) as error:
        write()
    assert str(error.value).replace("weight(2×2: 1, -2, 3, …)", "weight([[1.0, -2.0], [3.0, 4.0]])").startswith(says)


def test_a_law_says_what_its_variables_are():
    with pytest.raises(TypeError, match=r"law bare: x has no annotation: give one, such as x: value\[n\]"):

        @law(phase=SIMPLIFY)
        def bare(x):
            return x, x


def test_a_law_returns_both_sides():
    @law(phase=SIMPLIFY)
    def one(x: value[n]):
        return x @ relu

    for read in (one.sides, lambda: one.check(np.random.default_rng(0))):
        with pytest.raises(ValueError, match=r"law one: it returns .*: return both sides, left, right"):
            read()


def test_shape_is_an_attribute():
    assert (
        A.shape == (2, 2)
        and (weight(np.ones((2, 6))) @ relu).shape == (2, 6)
        and weight(np.ones((2, 6))).T.shape == (6, 2)
    )
    assert weight(np.ones((3, 2, 4))).shape == (3, 2, 4) and (weight(np.ones((2, 6))) @ heads(3)).shape == (3, 2, 2)
    assert [str(size) for size in relu.shape] == ["N", "N"], "any number of columns"


def test_a_function_of_a_value_applies_an_operator():
    assert formula(lambda x: relu(x) + tanh(x)) is formula(lambda x: x @ relu + x @ tanh)


def test_a_monoid_by_its_name():
    assert over(I, "max") is over(I, monoids.max) and over(I, "moments.mean") is over(I, monoids.moments.mean)
    assert over(I, "moments.variance") is over(I, monoids.moments.variance) and over(I, "topk(5)") is over(
        I, monoids.topk(5)
    )
    assert formula(lambda x: product(x @ x.T, x, over="softmax")) is formula(
        lambda x: product(x @ x.T, x, over=softmax)
    )


def test_numpy_in_a_formula():
    """What is declared as an operator is applied; arrays and numbers of numpy's stand on either side."""
    assert formula(lambda x: np.tanh(x) + np.exp(x) * np.abs(x)) is formula(
        lambda x: x @ tanh + (x @ exp) * (x @ magnitude)
    )
    row = np.arange(2.0)
    for write, means in (
        (lambda x: row + x, lambda x: row + x),
        (lambda x: row - x, lambda x: row - x),
        (lambda x: 1 - x, lambda x: 1 - x),
        (lambda x: np.float64(2) * x, lambda x: 2 * x),
        (abs, abs),
    ):
        np.testing.assert_array_equal(formula(write)([[3.0, -4.0]]), means(np.array([[3.0, -4.0]])))
    np.testing.assert_array_equal(formula(lambda x: 3)([[1.0, 2.0]]), [[3.0]])


def test_functions_that_people_look_for():
    x = np.array([[-800.0, -1.5, 0.0, 2.0]])
    np.testing.assert_allclose(sigmoid(x), [[0, 1 / (1 + np.exp(1.5)), 0.5, 1 / (1 + np.exp(-2))]], atol=1e-15)
    np.testing.assert_array_equal(abs(I)(x), abs(x))
    np.testing.assert_array_equal(exp(x), np.exp(x))
    np.testing.assert_allclose(softplus(x), [[0, np.log1p(np.exp(-1.5)), np.log(2), np.log1p(np.exp(2.0))]], 1e-15)
    np.testing.assert_allclose(reciprocal(x[:, [0, 3]]), [[-1 / 800, 0.5]])
    np.testing.assert_array_equal((I @ maximum)(x), [[2.0]])


def test_softmax_of_each_row():
    """Of each head, of any size of numbers: the largest is taken from a row first."""
    x = np.random.default_rng(0).normal(size=(3, 5, 8)) * np.array([1.0, 1e4, 1e-3])[:, None, None]
    wanted = scipy_softmax(x, -1)
    np.testing.assert_allclose(share(x), wanted, 1e-12)
    np.testing.assert_allclose(entrywise(share, x).astype(float), wanted, 1e-12)
    np.testing.assert_allclose(dense(share, x, dtype=np.float32), wanted, 2e-3)  # float32 has few digits at 1e4
    np.testing.assert_allclose(share(x + 1e3), wanted, 1e-9)
    np.testing.assert_array_equal(share([[-np.inf, 0.0, 0.0]]), [[0.0, 0.5, 0.5]])
    assert share.shape == I.shape and share.row_wise and share.uniform and not share.diagonal
    scores = formula(lambda x: product(x @ x.T @ share, x))  # attention of one head, written out
    np.testing.assert_allclose(scores(x[0]), formula(lambda x: product(x @ x.T, x, over=softmax))(x[0]), 1e-12)


def test_a_large_operator_is_said_by_its_shape():
    large = weight(np.ones((300, 200)))
    assert repr(large @ relu + np.arange(200)) == "weight(300×200: 1, 1, 1, …) @ relu + const(200: 0, 1, 2, …)"
    assert repr(large.T) == "weight(200×300: 1, 1, 1, …)" and repr(A) == str(A), "what is small is written out"
    assert "300" not in str(large), "the text that evaluates to the term names it by its numbers"


def test_help_is_about_what_was_asked():
    assert (
        "multiply by w[i, j]" in pydoc.plain(pydoc.render_doc(weight))
        and str(inspect.signature(weight)) == "(w: opmatrix.algebra.data.Data)"
    )


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: [*each({"a": 1})], "texts: {'a': 1} is a dict: give one text, an iterable of texts"),
        (lambda: [*each(None)], "texts: None is a NoneType"),
        (lambda: [*each(b"text")], "texts: b'text' is a bytes"),
        (lambda: Batch("a text"), "for texts use program.embed"),
        (lambda: Batch(None), "None is not a list of sentences"),
        (lambda: optimize(None), "a model is a name or a directory, not None"),
        (lambda: optimize(relu), "relu takes rows of any number of columns: a model begins with weight(table)"),
        (lambda: optimize("bert-base-uncased"), r"save_pretrained(DIR)"),
        (lambda: Program.load(3), "a saved program is a directory, not 3"),
    ],
)
def test_what_is_given_in_place_of_texts_models_and_directories(call, said):
    with pytest.raises((TypeError, InputError), match=re.escape(said)):
        call()
