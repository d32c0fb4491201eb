"""Random pairs of terms for `prove`: equal by identities that are applied to them, or changed where names collide and
numbers cancel; and a judge that knows neither laws nor intervals, but many digits."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import mpmath
import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import scalar_function
from opmatrix.algebra.operators import (
    I,
    centre,
    const,
    gelu,
    given,
    keep_top,
    ones,
    pick,
    product,
    relation,
    relu,
    rotary,
    share,
    square,
    symbol,
    tanh,
    turn,
    weight,
)
from opmatrix.algebra.oracles import Entrywise, check_input
from opmatrix.algebra.positions.patterns import Pattern, causal, everyone, mask, sequence, window
from opmatrix.algebra.shapes import T, size
from opmatrix.algebra.term import Operator, substitute
from rewrites.proofs import refute
from rewrites.proofs.equations import prove

DIGITS, CLOSE = 150, 1e-9  # of the judge; relative, what it takes for equal
ROUNDED = 1e-13  # relative, the most by which float64 constants of equal terms are apart
NUMBERS = 2.0, 0.5, -1.0, 3.0, 0.0, 0.1, 1e12, 1e-30, 1e30, 1e15, 7.25
CANCELLED = (*NUMBERS, np.inf, -np.inf)
SIZES = 3, 4, 5, size("n"), size("p")


def merging(name, merge, identity=0.0, lift=lambda x, w: x * w, **more):
    return type(name, (Monoid,), dict(identity=identity, lift=lift, merge=merge, **more))


OURS = monoids.sum, monoids.max, monoids.mean, monoids.softmax
OWN = (
    merging("sum", lambda a, b: a + b + a * b),
    merging("mine", lambda a, b: a + b),
    merging("mine", lambda a, b: np.maximum(a, b), -np.inf),
    merging("max", lambda a, b: np.minimum(a, b), np.inf),
    type("softmax", (monoids.softmax,), dict(lift=lambda z, v: monoids.softmax.lift(2 * z, v), closed=None)),
)
SEEN = np.tri(8, dtype=int)
PATTERNS = (
    everyone,
    causal,
    sequence,
    window(1),
    sequence & causal,
    mask(Data(SEEN, "seen")),
    mask(Data(SEEN.T.copy(), "seen")),
    Pattern("mine", lambda q, k: q.position <= k.position, reflexive=True),
    Pattern("mine", lambda q, k: q.position >= k.position, reflexive=True),
    Pattern("causal", lambda q, k: q.position == k.position, reflexive=True),
    Pattern("everyone", lambda q, k: q.position != k.position + 1, reflexive=True),
)
BACKWARDS = relation("backwards", "T", "T")
LINKS = relation("links", "T", "T"), relation("links", "V", "T")


@cache
def functions():
    """Functions of ours, and others of their names."""

    def declared(name, f):
        f.__name__ = name
        return scalar_function()(f)

    own = ("relu", lambda u: 2 * u), ("mine", lambda u: u * u + 1), ("mine", lambda u: u * u - 1)
    return gelu, tanh, square, relu, *(declared(*each) for each in own)


# ---- terms


class Drawer:
    """Operators between sizes, out of few things whose names collide."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, among):
        return among[self.rng.integers(len(among))]

    def numbers(self, *shape):
        found = self.rng.integers(-3, 4, shape) * self.pick((1.0, 0.5, 0.1))
        return Data(found, self.pick(("W", "V", None)))

    def leaf(self, n, p):
        """One operator."""
        choice = self.rng.integers(8)
        if n == p and choice < 2:
            return self.pick((I, centre, I * self.pick(NUMBERS)))
        if n == p and choice < 4:
            return self.pick(functions())
        if choice == 4 and isinstance(p, int) and isinstance(n, int):
            if n == p == 4 and self.rng.integers(3) == 0:
                return rotary(5, 4)
            return self.pick(
                (
                    given("tokens", 6) @ weight(self.numbers(6, p)),
                    given("feature", 3, "T") @ weight(self.numbers(3, p)),
                    const(self.numbers(p)),
                    given("positions", 5) @ weight(self.numbers(5, p)),
                )
            )
        if choice < 7 and isinstance(p, int) and isinstance(n, int):
            return weight(self.numbers(n, p))
        name, facts = self.pick(("A", "B", "sum", "x", "data1", "softmax")), self.pick(({}, dict(linear=True)))
        return symbol(name, n, p, **facts)

    def term(self, n, p, depth):
        if depth <= 0:
            return self.leaf(n, p)

        def part(n, p):
            return self.term(n, p, depth - 1 - self.rng.integers(2))

        match self.rng.integers(9):
            case 0 | 1 | 2:
                k = self.pick((n, p, 3))
                return part(n, k) @ part(k, p)
            case 3 | 4:
                return part(n, p) + part(n, p)
            case 5:
                return part(n, p) * part(n, p)
            case 6 if isinstance(p, int) and self.rng.integers(3) == 0:
                return keep_top(part(n, p), part(n, p) @ self.pick((I, share)), self.pick((1, 2, p)))
            case 6:
                return part(n, p) * self.pick(NUMBERS)
            case 7:
                scores = product(part(n, 3), turn(part(n, 3)))
                return product(scores, part(n, p), over=self.pick(OURS + OWN), where=self.pick(PATTERNS))
            case 8 if self.rng.integers(4) == 0:
                return part(n, n) @ pick(BACKWARDS) @ part(n, p)
            case _:
                return product(given(self.pick(LINKS[:1])), part(n, p), over=self.pick(OURS + OWN))


# ---- identities: what a node is, too


def identities(node, drawer):
    """Operators that are equal to a node, each with the name of why."""
    c, a = drawer.pick(NUMBERS), node.children
    yield "cancel", (node + node * (big := drawer.pick(CANCELLED))) - node * big
    yield "cancel", (node * big + node) + node * -big
    yield "cancel", node * 2 - node
    yield "scale", node * 2.0 * 0.5
    yield "scale", (node * 0.1) * 10.0
    yield "scale", (node * 1e12) * 1e-12
    yield "scale", node * 0.3 + node * 0.7
    yield "zero", node + node * 0.0
    yield "unit", node @ I
    yield "turn", turn(turn(node)) if node.out.rows is T else node
    kind = node.kind.name
    if kind == "compose":
        if a[1].kind.name == "compose":
            yield "associate", (a[0] @ a[1].children[0]) @ a[1].children[1]
        if a[0].kind.name == "compose":
            yield "associate", a[0].children[0] @ (a[0].children[1] @ a[1])
        if a[1].kind.name == "add":
            yield "distribute", a[0] @ a[1].children[0] + a[0] @ a[1].children[1]
        if a[1].kind.name == "mul":
            yield "distribute", (a[0] @ a[1].children[0]) * (a[0] @ a[1].children[1])
        if a[0].kind.name == "add" and a[1].linear:
            yield "linear", a[0].children[0] @ a[1] + a[0].children[1] @ a[1]
        if a[1].linear:
            yield "linear", (a[0] * c @ a[1]) * (1 / c) if c in (2.0, 0.5, -1.0) else node
        if a[1] is relu:
            yield "relu", node @ relu
        if a[1] is relu:
            yield "relu", (a[0] * 2.0 @ relu) * 0.5
        if a[1] is centre:
            yield "centre", node @ centre
        if a[1] is square:
            yield "square", a[0] * a[0]
    if kind == "keep_top":
        yield "order", keep_top(a[0], a[1] @ share, node.args[2])
        yield "scale", keep_top(a[0] * 2.0, a[1] * 2.0, node.args[2]) * 0.5
    if kind == "add":
        yield "commute", a[1] + a[0]
        yield "scale", a[0] * 2.0 + a[1] * 2.0 - node
        for k in (0, 1):
            if a[k].kind.name == "add":
                yield "commute", (a[k].children[0] + a[1 - k]) + a[k].children[1]
    if kind == "mul":
        yield "commute", a[1] * a[0]
        if a[0].kind.name == "add":
            yield "distribute", a[0].children[0] * a[1] + a[0].children[1] * a[1]
    if node is centre:
        yield "centre", centre @ centre
    if kind == "product":
        left, right, over, where = node.args
        if over in OURS and over is not monoids.max and right.kind.name == "add":
            yield (
                "linear",
                sum(
                    (product(left, part, over, where) for part in right.children[1:]),
                    product(left, right.children[0], over, where),
                ),
            )
        if over is monoids.softmax and left.kind.name == "product":
            yield "shift", product(left + left @ ones * 0.0, right, over, where)
        if over is monoids.sum and where is everyone:
            yield "turn", turn(product(turn(right), turn(left)))


def mutations(node, drawer):
    """Operators that a node could be taken for, each with the name of how."""
    a, kind = node.children, node.kind.name
    yield "number", node * drawer.pick((2.0, -1.0, 1.0 + 1e-3, 1e12, 0.0))
    big, other = drawer.pick(CANCELLED), drawer.pick(NUMBERS)
    yield "cancel", (node + node * big) - node * drawer.pick((big, other))
    yield "cancel", (node * 2 + node * big) - node * big
    yield "drop", node * 2 - node * 3
    if kind == "product":
        left, right, over, where = node.args
        twins = [each for each in OURS + OWN if each.__name__ == over.__name__ and each is not over]
        for twin in twins or [drawer.pick(OURS + OWN)]:
            yield "monoid", product(left, right, twin, where)
        same = [each for each in PATTERNS if each.name == where.name and each is not where]
        if left.kind.name == "product":
            for twin in same or [drawer.pick(PATTERNS)]:
                yield "pattern", product(left, right, over, twin)
    if kind in ("add", "mul"):
        yield "drop", a[0]
    if kind == "keep_top":
        yield "order", keep_top(a[0], -a[1], node.args[2])
    if kind == "compose":
        yield "exchange", a[1] @ a[0]
    if node in functions():
        named = [f for f in functions() if f.kind.__name__ == node.kind.__name__ and f is not node]
        yield "function", drawer.pick(named or functions())
    if kind == "weight":
        yield "data", weight(Data(node.args[0].array + drawer.pick((1.0, 1e-3)), node.args[0].name))
    if kind == "symbol":
        yield "symbol", symbol(node.args[0], *node.args[1:3], **({} if node.linear else dict(linear=True)))


def keeps_rows(node, why):
    """Whether an identity of numbers is one of a value, too: a relation tells what is absent, and a sum has the
    positions of its first operand, which are others where rows were picked."""
    last = node
    while last.kind.name == "compose":
        last = last.children[1]
    picked = any(each.kind.name == "pick" for each in node.walk())
    return last.kind.name != "related" and not (why == "commute" and picked)


@dataclass(frozen=True)
class Pair:
    """Two terms; what was done to one of them to make the other; whether they are equal by that."""

    left: Operator
    right: Operator
    how: str
    equal: bool


def pair(seed):
    """The pair of a seed."""
    drawer, made = Drawer(np.random.default_rng([7, seed])), None
    while made is None or made.right is made.left:
        try:
            made = changed(drawer)
        except (TypeError, ValueError):
            continue
    return made


def changed(drawer):
    """A term, and what it becomes by one to three identities, or by one mutation among them."""
    n = drawer.pick(SIZES)
    left = right = drawer.term(n, drawer.pick((n, n, 3)), drawer.rng.integers(1, 4))
    if drawer.rng.random() < 0.1:
        left = right = left @ pick(drawer.pick(("last", "first", BACKWARDS)))
    false, said = drawer.rng.random() < 0.5, []
    for step in range(count := drawer.rng.integers(1, 4)):
        node = drawer.pick([*right.walk()])
        mutated = false and step == count - 1
        found = [*(mutations if mutated else identities)(node, drawer)]
        if not mutated:
            found = [(why, new) for why, new in found if keeps_rows(node, why)]
        if not found:
            continue
        why, new = drawer.pick(found)
        if new.out != node.out and not mutated:
            continue
        right = substitute(right, {node: new})
        said.append(why)
    if not said:
        raise ValueError("nothing was done")
    return Pair(left, right, ("not " if false else "") + said[-1], not false)


# ---- the judge


class High:
    """A number of many digits, as numpy's functions and comparisons take one."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return str(self.value)

    def __bool__(self):
        return bool(self.value)

    __hash__ = None

    def __array_ufunc__(self, ufunc, method, *inputs, **more):
        with mpmath.workdps(DIGITS):
            try:
                return wrap(OPERATIONS[ufunc.__name__](*map(bare, inputs)))
            except ZeroDivisionError:
                return High(mpmath.nan)

    def __array_function__(self, function, types, inputs, more):
        return inputs[1 if inputs[0] else 2] if function is np.where else NotImplemented


def bare(number):
    number = number.item() if isinstance(number, np.ndarray | np.generic) else number
    return number.value if isinstance(number, High) else mpmath.mpf(number)


def wrap(found):
    return (
        High(found) if isinstance(found, mpmath.mpf) else High(mpmath.nan) if isinstance(found, mpmath.mpc) else found
    )


def largest(pick):
    return lambda a, b: mpmath.nan if mpmath.isnan(a) or mpmath.isnan(b) else pick(a, b)


OPERATIONS = dict(
    add=lambda a, b: a + b,
    subtract=lambda a, b: a - b,
    multiply=lambda a, b: a * b,
    divide=lambda a, b: a / b,
    negative=lambda a: -a,
    power=lambda a, b: a**b,
    less=lambda a, b: a < b,
    less_equal=lambda a, b: a <= b,
    greater=lambda a, b: a > b,
    greater_equal=lambda a, b: a >= b,
    equal=lambda a, b: a == b,
    not_equal=lambda a, b: a != b,
    maximum=largest(max),
    minimum=largest(min),
    absolute=abs,
    exp=mpmath.exp,
    expm1=mpmath.expm1,
    tanh=mpmath.tanh,
    sqrt=mpmath.sqrt,
    log=mpmath.log,
    erf=mpmath.erf,
)
BINARY = dict(
    add="add",
    sub="subtract",
    mul="multiply",
    truediv="divide",
    pow="power",
    lt="less",
    le="less_equal",
    gt="greater",
    ge="greater_equal",
    eq="equal",
    ne="not_equal",
)
for short, name in BINARY.items():
    setattr(High, f"__{short}__", lambda a, b, name=name: getattr(np, name)(a, b))
    if short in ("add", "sub", "mul", "truediv"):
        setattr(High, f"__r{short}__", lambda a, b, name=name: getattr(np, name)(b, a))
High.__neg__ = lambda a: np.negative(a)


class Precise(Entrywise):
    """One entry at a time, of many digits."""

    def finished(self, shape, width, value, doing):
        def at(h, r, j):
            found = value(h, r, j // width)
            return High(bare(found[j % width] if isinstance(found, tuple) else found))

        return self.of((*shape[:2], shape[2] * width), at)


def evaluate(term, x, batch):
    """What a term gives at x, of many digits."""
    x, batch = check_input(term, x, batch)
    start = Precise(np.asarray(x)[None], batch, lambda number: High(bare(number)))
    return term(start.of(start.value.shape, lambda *at: High(mpmath.mpf(float(start.value[at]))))).value


def differ(one, other, x, batch, close=CLOSE):
    """In how many of the entries that are finite on both sides these are not close."""
    both = np.broadcast_arrays(*(evaluate(term, x, batch) for term in (one, other)))
    with mpmath.workdps(DIGITS):
        pairs = [(u.value, v.value) for u, v in zip(*(each.flat for each in both), strict=True)]
        return sum(
            abs(u - v) > close * max(abs(u), abs(v), mpmath.mpf("1e-100"))
            for u, v in pairs
            if mpmath.isfinite(u) and mpmath.isfinite(v)
        )


def lacks(one, other, x, batch):
    """In how many entries one has no value, where the other is a number."""
    both = np.broadcast_arrays(*(evaluate(term, x, batch) for term in (one, other)))
    pairs = zip(*(each.flat for each in both), strict=True)
    return sum(mpmath.isnan(u.value) != mpmath.isnan(v.value) for u, v in pairs)


def drawn(left, right, seed):
    """Both sides over operators for their symbols, an input and a batch."""
    rng = np.random.default_rng([11, seed])
    symbols = refute.meanings([left, right], rng)
    one, other = (refute.instance(term, symbols) for term in (left, right))
    columns = next((int(term.into.cols) for term in (one, other) if isinstance(term.into.cols, int)), 4)
    given = refute.draw_batch(refute.Template.of({"one": one, "other": other}), rng)
    return one, other, rng.normal(size=(given.rows, columns)), given


def judged(seed):
    """How a pair was made, the verdict, and what is wrong with it: `false proof`, `false refutation`, a fault, or
    nothing."""
    each = pair(seed)
    try:
        proof = prove(each.left, each.right, budget=1000)
    except Exception as error:
        return each.how, "fault", f"{type(error).__name__}: {error}"
    wrong = ""
    if proof.verdict == "proved":
        try:
            apart = differ(*drawn(each.left, each.right, seed))
        except (TypeError, ValueError, StopIteration):
            apart = 0  # nothing to judge it at
        wrong = "false proof" if apart else ""
    if proof.verdict == "refuted":  # by an entry, or by the shape where there is none
        place = *proof.at.sides, proof.at.x, proof.at.batch
        certain = not each.equal and (not proof.at.entry or differ(*place, ROUNDED) or lacks(*place))
        wrong = "" if certain else "false refutation"
    return each.how, proof.verdict, wrong


def tabulated(seeds):
    """Counts by how a pair was made and by verdict, and what was wrong, by seed."""
    counts, wrong = Counter(), {}
    for seed in seeds:
        how, verdict, said = judged(seed)
        counts[how, verdict] += 1
        if said:
            wrong[seed] = f"{how}: {said}"
    return counts, wrong
