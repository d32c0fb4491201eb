"""Every term prints as Python that is the term again, in the words of the front door, and as LaTeX that binds as it
does; arrays are never hashes to a reader."""

import re

import generate
import numpy as np
import pytest
import random_programs
from hypothesis import given, settings

import opmatrix as om
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import LASTING, scalar_function
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Data, named, operator
from opmatrix.display.naming import vocabulary
from opmatrix.display.show import latex, names
from opmatrix.display.term_writer import ATOM, LATEX, PYTHON, TermWriter

RNG = np.random.default_rng(0)
DOOR = {name: getattr(om, name) for name in om.__all__}
W, V = om.weight(Data(RNG.normal(size=(4, 4)), "W")), om.weight(RNG.normal(size=(4, 4)))
LINKS, SEEN = om.relation("links", "T", "T"), om.relation("seen", "T", "M")


def read_back(term):
    """The term of a term's text, in the words of the front door and, for what is the term's own, those of `names`."""
    own = {
        name: thing
        for name, thing in names(term).items()
        if name not in vocabulary() or (name in om.term.KINDS and name not in LASTING)
    }
    assert not own.keys() & DOOR.keys()
    return eval(str(term), {**DOOR, **own})


def hashed(text):
    return re.search(r"_[0-9a-f]{12}", text)


class cubes(Monoid):
    """The sum of cubes."""

    identity = 0

    def lift(x, w):
        return (x * w) ** 3

    def merge(a, b):
        return a + b


class mean(om.monoids.mean):
    """Another one of a name that is taken."""


class softmax(om.monoids.softmax):
    """Another one of a name that is taken, whose weights sum to one."""


@scalar_function()
def halved(u):
    """Half of it."""
    return u / 2


@operator
def twice(x, A, times=2):
    """A family of one's own."""
    return x @ A * times


@operator
def layernorm(x, eps):
    """Another one of a name that is taken."""
    return x * eps


even = Pattern("even", lambda q, k: (q.position + k.position) % 2 == 0, reflexive=True)
other_causal = Pattern("causal", lambda q, k: k.position < q.position)
braced = Pattern("near{5}", lambda q, k: abs(q.position - k.position) < 5)
EVERY_KIND = [
    om.given("memory", 8, "M"),
    om.given("memory", 8, "M", 3),
    W @ om.given("tokens", 9),
    om.given("members"),
    om.given(LINKS),
    om.I @ om.pick("last"),
    om.I @ om.pick(om.relation("backwards", "T", "T")),
    om.formula(lambda x: om.product(om.given(LINKS), x, over=om.monoids.max)),
    om.formula(
        lambda x: om.product(
            x @ W @ om.given("memory", 4, "M").T, om.given("memory", 4, "M"), over="softmax", where=om.among(SEEN)
        )
    ),
    *(om.formula(lambda x, over=over: om.product(x @ x.T, x, over=over)) for over in om.monoids.MONOIDS),
    *(
        om.attention(W, W, V, 2, where)
        for where in (
            om.everyone,
            om.sequence,
            om.causal & om.sequence,
            om.window(2) | om.hubs(1),
            om.scattered(3),
            om.mask([[1, 0], [1, 1]]),
            om.mask(np.tri(20), 3),
            om.mask(Data(np.tri(9), "tri")) & om.sequence,
            om.coarse((om.window(1) | om.hubs(1)) & om.causal, 64),
            even,
            even & om.sequence,
            other_causal,
            braced,
        )
    ),
    W @ om.over(om.ones, om.softmax),
    om.over(W, om.monoids.topk(2).indices),
    W @ om.monoids.topk(3),
    W @ om.mean,
    W @ mean,
    W @ om.over(om.ones, softmax),
    W @ cubes,
    om.formula(lambda x: om.product(x, x.T @ x, over=cubes)),
    W @ halved @ om.share @ om.softplus @ om.reciprocal,
    W @ om.maximum,
    W @ om.shift(3) @ om.conv([[0.5] * 4, [0.25] * 4]),
    om.keep_top(W @ om.share, W, 2),
    om.keep_top(W @ om.heads(2), om.formula(lambda x: x @ x.T @ x @ W @ om.heads(2)), 1),
    om.layernorm(0.5),
    layernorm(0.5),
    twice(W) @ twice(W, 3) @ twice(V, times=2.0),
    W @ named("relu", om.relu @ W),
    W @ named("block", V @ om.relu),
    W @ named("ﬁ", V @ om.tanh),
    named("not a name", om.relu @ V),
    om.unit_length(),
    om.rmsnorm(1e-6),
    om.rotary(5, 4),
    om.rotary(5, 2, rest=2),
    om.rotate(RNG.normal(size=(2, 2)).T, np.ones((2, 2))),
    W @ om.cols(1, 3),
    om.place(1, 5),
    om.diag(RNG.normal(size=30)),
    om.diag([1.0, -0.0]),
    om.zero,
    om.centre,
    W * -1.0,
    W * -1.0 * -1.0,
    W - (W - V),
    W - -W,
    (W - V) - W,
    -W @ -W,
    W * (W * W),
    W @ (W @ W),
    W + (W + W),
    (W + V) * 2,
    om.const(2.0) * W,
    om.const(-2.0) @ om.relu + W,
    W + -1.5,
    W * float("inf"),
    om.const([1.0, 2.0]),
    om.weight([[True, False]]),
    om.weight(np.ones((2, 2), np.float32)),
    om.weight(np.ones((2, 1, 2))),
    om.weight([[1.0]]),
    om.weight(Data(np.ones((2, 3)), "x")),
    om.weight(Data(np.ones((2, 3)), "relu")) @ om.relu,
    om.weight(Data(np.ones((2, 3)), "lambda")).T,
    om.symbol("a b", None, 3),
    om.symbol("relu", 3, 3, linear=True),
    W @ om.heads(2) @ om.repeat(4) @ om.total,
    W @ om.heads(2) @ om.heads(2).T,
    om.row(om.I, om.relu, om.row(om.I, om.I)),
    om.alibi(2, 3),
    om.by_distance(RNG.normal(size=(2, 3)), 1),
    om.at_distances(RNG.normal(size=(2, 4, 3))),
    om.weight([[1e-5, 2.0], [-3e20, 0.5]]) @ om.relu,
    om.scan(W, W @ om.tanh, om.decay) @ om.cumsum,
    om.formula(lambda x: om.scan((x @ x.T) @ x, x, "softmax", om.sequence)),
    om.linear_attention(W, W @ om.relu, W @ om.tanh),
    om.formula(lambda x: om.gated_linear_attention(x @ W, x @ V, x, x @ W @ om.sigmoid, om.sequence)),
    om.delta_rule(W, V, om.relu, om.weight([[0.1], [0.2], [0.3], [0.4]]) @ om.sigmoid),
    om.formula(lambda x: om.gated_delta_rule(x @ W, x @ V, x, x @ om.weight(np.ones((4, 1))), x @ V @ om.sigmoid)),
    om.row(om.row(om.I, om.I), om.I),
    abs(W),
    W**3,
    om.col(W, om.relu @ W),
    om.log1p_relu @ W,
    om.blocks([[W, None], [None, V]]),
    om.formula(lambda x: (x @ W).T.T - (x @ x.T @ x) * (x @ V)),
    om.formula(lambda x: -(x @ x.T @ x) @ V),
    om.formula(lambda x: om.product(x @ x.T, om.product(x @ x.T, x, over="mean"), over="max") * (x @ x.T @ x)),
]


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("term", EVERY_KIND, ids=lambda term: repr(term)[:60])
def test_a_term_reads_back(term):
    assert read_back(term) is term
    assert eval(om.display.show.text(term, short=False), names(term)) is term
    assert not hashed(repr(term)) and not hashed(term._repr_latex_()) and not hashed(term._repr_html_())


def test_every_kind_is_among_them():
    said = {node.kind.name for term in EVERY_KIND for node in term.walk()}
    functions = {"gelu", "gelu_tanh", "silu", "tanh", "exp", "sigmoid", "elu", "expm1", "log"}
    functions |= {"clamped_gate", "clamped_factor"}
    assert LASTING.keys() - said <= functions, "functions like relu"


def test_random_terms_read_back():
    for seed in range(150):
        term = generate.random_term(np.random.default_rng(seed))
        assert read_back(term) is term, str(term)
        assert not hashed(repr(term)) and not hashed(latex(term))


@settings(max_examples=40, deadline=None)
@given(random_programs.programs())
def test_random_programs_read_back(example):
    term, _, _ = example
    assert read_back(term) is term, str(term)
    assert bound_as_meant(term)


def test_words_of_the_front_door_are_enough():
    """Where small arrays are written out, nothing but the front door is needed."""
    for term in (
        om.weight([[1.0, 2.0], [3.0, 4.0]]) @ om.relu,
        om.given("memory", 2, "M") @ om.weight([[1.0], [2.0]]),
        om.formula(lambda x: om.product(x @ x.T, x, over=om.monoids.topk(2), where=om.mask([[1]]))),
        om.formula(lambda x: om.product(om.given("members"), x, over="logsumexp")),
    ):
        assert eval(str(term), dict(DOOR)) is term


def test_a_value_is_shown():
    seen = []
    om.formula(lambda x: seen.append(repr(x @ W @ (x @ V).T * 0.5)) or x)
    assert seen[0].startswith("x @ W @ (x @ weight(4×4: ") and seen[0].endswith(").T * 0.5")


def test_messages_hold_no_hashes():
    with pytest.raises(om.ShapeError) as error:
        V @ om.weight(np.ones((6, 3)))
    assert not hashed(str(error.value)) and "weight(6×3: 1, 1, 1, …)" in str(error.value)


# ---- LaTeX

ATOMS = re.compile(
    r"\\begin\{bmatrix\}|\\end\{bmatrix\}|\\left\(|\\right\)|\\mapsto|\\odot|\\circledast|\\,"
    r"|\^\{\\top\}|\\mathrm|\\operatorname|\\Pi|\\infty|\\times|\\cdot|\\\\|\\[#%&$_]|[-+&_^{},:()]|[^\W\d_]+|\d+(?:\.\d+)?|\S"
)


class Reader:
    """LaTeX as people read it: juxtaposition binds closest and from the left, then the signs of products, of which only
    equal ones may stand in a line, then minus and sums; an arrow reaches to the end."""

    def __init__(self, text):
        self.words = ATOMS.findall(text)[::-1]

    def at(self):
        return self.words[-1] if self.words else ""

    def take(self, *wanted):
        assert not wanted or self.at() in wanted, f"{self.at()!r}, not {wanted}, before {self.words[::-1]}"
        return self.words.pop()

    def expression(self):
        if self.words[-2:-1] == ["\\mapsto"] and self.take("x") and self.take():
            return "maps", self.expression()
        tree = ("-", self.term(self.take())) if self.at() == "-" else self.term()
        while self.at() in ("+", "-"):
            tree = self.take(), tree, self.term()
        return tree

    def term(self, _=None):
        tree, signs = self.line(), set()
        while self.at() in ("\\odot", "\\circledast"):
            sign = self.take()
            while self.at() in ("_", "^"):
                sign += self.take() + self.group()
            signs.add(sign)
            tree = sign, tree, self.line()
            assert len(signs) == 1 and (sign == "\\odot" or tree[1][0] != sign), "which product comes first?"
        return tree

    def line(self):
        tree = self.raised()
        while self.at() == "\\,":
            tree = self.take(), tree, self.raised()
        return tree

    def raised(self):
        tree = self.atom()
        if self.at() == "^{\\top}":
            tree = self.take(), tree
        assert self.at() not in ("^{\\top}", "^"), "two superscripts"
        return tree

    def group(self):
        """What is in braces, as it is."""
        said, depth = self.take("{"), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.at(), 0)
            said += self.take()
        return said

    def listed(self, end, *between):
        found = [self.expression()]
        while self.at() in between:
            found.append(self.take() and self.expression())
        self.take(end)
        return (*found,)

    def atom(self):
        match self.take():
            case "\\left(":
                return self.listed("\\right)")[0]
            case "\\begin{bmatrix}":
                return "matrix", self.listed("\\end{bmatrix}", "&", "\\\\")
            case "\\mathrm" | "\\operatorname":
                name = self.group()
            case word:
                name = word
        assert name not in ("+", "-", "\\,", "\\odot", "&", ",", ""), f"no operand: {name!r}"
        if self.at() == "_":
            name += self.take() + self.group()
        if self.at() == "(":
            name += "".join(iter(self.take, ")"))  # of diag
        if self.at() == "\\cdot":
            while self.at() != "}":
                name += self.take()
            name += self.take()
        if name[-1:] == "}" and self.at() == "\\left(" and self.take():
            return name, self.listed("\\right)", ",")
        return name


def read(text):
    reader = Reader(text)
    tree = reader.expression()
    assert not reader.words, reader.words[::-1]
    return tree


def bound_as_meant(term):
    """Whether a term's LaTeX is read as the same with brackets around every operand."""
    writer = TermWriter(term, LATEX)
    writer.notation = {
        name: form._replace(left=ATOM + (form.left > 0), right=ATOM + (form.right > 0)) for name, form in LATEX.items()
    }
    return read(latex(term)) == read(writer.operator(term))


@pytest.mark.parametrize("term", EVERY_KIND, ids=lambda term: repr(term)[:60])
def test_latex_binds_as_the_term_does(term):
    assert bound_as_meant(term)


def test_random_latex_binds_as_the_term_does():
    for seed in range(150):
        term = generate.random_term(np.random.default_rng(seed))
        assert bound_as_meant(term), latex(term)


@pytest.mark.parametrize("name", ["a{b", "a}b", "a\\b", "a^b", "a~b", "a%b", "a$b_#&", "a\nb"])
def test_names_are_letters_to_latex(name):
    """Whatever a name holds opens, closes and raises nothing there."""
    said = latex(named(name, om.relu @ om.weight(RNG.normal(size=(4, 4)))))
    inner = re.sub(r"\\([&%$#_{}])|\\(backslash|hat|sim)\{\}", "", said.removeprefix(r"\mathrm{").removesuffix("}"))
    assert not set("{}\\^~%$#_&\n") & set(inner)


def test_what_would_bind_wrongly_is_seen():
    """The reader of this test tells a product in brackets from one without."""
    assert read(r"a \odot b\,c") != read(r"\left(a \odot b\right)\,c") and read("-a\\,b") != read(r"\left(-a\right)\,b")
    with pytest.raises(AssertionError):
        read(r"a \odot b \circledast c")
    with pytest.raises(AssertionError):
        read(r"a^{\top}^{\top}")


def test_python_needs_no_brackets_that_latex_needs():
    assert PYTHON["compose"].level == PYTHON["mul"].level and LATEX["compose"].level > LATEX["mul"].level
