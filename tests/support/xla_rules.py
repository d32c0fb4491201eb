"""Rules of XLA's algebraic simplifier: each an equation of matrices of any size beside a false neighbour, or what this
algebra lacks to say it. Read from SOURCE, in our words; `place` is the function of that file. A neighbour drops the
guard, exchanges an order, or takes another operand."""

from dataclasses import dataclass
from typing import TypeAlias

from opmatrix.algebra.nodes import exp, magnitude, reciprocal
from opmatrix.algebra.operators import (
    I,
    cols,
    heads,
    log,
    maximum,
    minimum,
    ones,
    over,
    pick,
    place,
    product,
    relu,
    row,
    rsqrt,
    sigmoid,
    square,
    symbol,
    tanh,
    total,
    turn,
)
from opmatrix.algebra.shapes import LiveSize, Shape, size
from opmatrix.algebra.term import Operator
from rewrites.laws.proving.value_kinds import below
from rewrites.proofs.equations import Proof, prove

Said: TypeAlias = tuple[str, Operator, Operator, Operator, Operator]  # statement, both sides, those of the neighbour

SOURCE = (
    "xla/hlo/transforms/simplifiers/algebraic_simplifier.cc of openxla/xla at 289dd9a122d2f95a0a047421dd865a12e2deb60b"
)
PROVED, SAME, REFUTED, OPEN, UNSAID = "proved", "same term", "refuted", "open", "not sayable"


@dataclass(frozen=True)
class XlaRule:
    """One rule: its place, its statement, both sides and those of its neighbour; without sides, what is missing. A rule
    that is false as it stands is missing a guard."""

    place: str
    says: str
    sides: tuple[Operator, Operator] | None = None
    near: tuple[Operator, Operator] | None = None
    missing: str = ""


@dataclass(frozen=True)
class RuleVerdict:
    """What became of a rule and of its neighbour, and the way in which it was proved or what it is missing."""

    rule: XlaRule
    verdict: str
    by: str
    near: str = ""


def judge_rule(rule: XlaRule) -> RuleVerdict:
    """Prove or refute a rule and its neighbour. Sides that are one term here are no proof."""
    if rule.sides is None or rule.near is None:
        return RuleVerdict(rule, UNSAID, rule.missing)
    proof, near = prove(*rule.sides), prove(*rule.near)
    by = proof.tried[-1].way if proof else rule.missing
    verdict = SAME if rule.sides[0] is rule.sides[1] else name_verdict(proof)
    return RuleVerdict(rule, verdict, by, name_verdict(near))


def name_verdict(proof: Proof) -> str:
    """Return the verdict of a proof in the words of the table."""
    return {"proved": PROVED, "refuted": REFUTED}.get(proof.verdict, OPEN)


def said(where: str, *rules: Said, missing: str = "") -> list[XlaRule]:
    """Return the rules of one function that are said."""
    return [XlaRule(where, text, (a, b), (c, d), missing) for text, a, b, c, d in rules]


def unsaid(missing: str, where: str, *statements: str) -> list[XlaRule]:
    """Return rules of one function that lack the same thing."""
    return [XlaRule(where, text, missing=missing) for text in statements]


# ---- matrices of any size

m, k, p, r = (size(name) for name in "mkpr")
count = 2  # of heads


def array(name: str, rows: LiveSize, columns: LiveSize) -> Operator:
    """Return a matrix of which only the size is known."""
    unknown: Operator = symbol(name, None, Shape(1, rows, columns))
    return unknown


def number(name: str) -> Operator:
    """Return one unknown number."""
    unknown: Operator = symbol(name, None, 1, constant=True, uniform=True)
    return unknown


A, B, C, D = (array(name, m, k) for name in "ABCD")
E, F = (array(name, k, p) for name in "EF")
G = array("G", p, r)
L, N = array("L", m, p), array("N", m, r)  # beside A
H, J = array("H", k + p, r), array("J", p, k)  # right of [A L]; below square matrices
O = array("O", p, m)  # left of A
Q, S = array("Q", k, k), array("S", k, k)
T, U = array("T", m + p, k), array("U", m + p, 1)
V, Y = array("V", m, k + p), array("Y", k, p + r)
u, v, w = array("u", m, 1), array("v", m, 1), array("w", k, 1)
s, t = number("s"), number("t")
x, y = (symbol(name, None, count * k) for name in "xy")  # tokens
W = symbol("W", count * k, p, linear=True)
LARGEST, LEAST, HEADS, LAST, FIRST = over(ones, maximum), over(ones, minimum), heads(count), pick("last"), pick("first")
HIGH = B + C * C  # not below B
NO_MINUS = A * A  # not below zero


def times(a: Operator, by: object) -> Operator:
    """Multiply by one number."""
    scaled: Operator = a @ (I * by)
    return scaled


def plus(a: Operator, by: object) -> Operator:
    """Add one number."""
    shifted: Operator = a @ (I + by)
    return shifted


def minus(a: Operator) -> Operator:
    """Negate."""
    return times(a, -1.0)


def less(a: Operator, other: Operator) -> Operator:
    """Subtract entry by entry."""
    return a + minus(other)


def divided(a: Operator, by: Operator) -> Operator:
    """Divide entry by entry."""
    quotient: Operator = a * (by @ reciprocal)
    return quotient


def root(a: Operator) -> Operator:
    """Take square roots of entries."""
    taken: Operator = a @ rsqrt @ reciprocal
    return taken


def larger(a: Operator, other: Operator) -> Operator:
    """Take the larger of two numbers, entry by entry."""
    return other + less(a, other) @ relu


def smaller(a: Operator, other: Operator) -> Operator:
    """Take the smaller of two numbers, entry by entry."""
    return less(other, less(other, a) @ relu)


def clamp(low: Operator, a: Operator, high: Operator) -> Operator:
    """Clamp as XLA does: min(max(low, a), high)."""
    return smaller(larger(low, a), high)


def filled(a: Operator, by: object) -> Operator:
    """Repeat a number to the size of a matrix."""
    return plus(times(a, 0.0), by)


def spread(column: Operator) -> Operator:
    """Repeat a column of m or of m + p numbers to k columns."""
    return column + times(A if column.out.rows == m else T, 0.0)


def over_rows(a: Operator, f: Operator = ones) -> Operator:
    """Reduce all rows to one."""
    reduced: Operator = turn(turn(a) @ f)
    return reduced


def rows_of(a: Operator, start: LiveSize, stop: LiveSize) -> Operator:
    """Cut rows out of a matrix."""
    cut: Operator = turn(turn(a) @ cols(start, stop, a.out.rows))
    return cut


def cut(a: Operator, start: LiveSize, stop: LiveSize) -> Operator:
    """Cut columns out of a matrix."""
    columns: Operator = a @ cols(start, stop, a.out.cols)
    return columns


# ---- rules of single entries

ENTRIES = [
    *said(
        "HandleAbs",
        ("|a a| = a a", (A * A) @ magnitude, A * A, (A * B) @ magnitude, A * B),
        ("||a|| = |a|", A @ magnitude @ magnitude, A @ magnitude, A @ magnitude @ tanh, A @ tanh),
        ("|exp a| = exp a", A @ exp @ magnitude, A @ exp, plus(A @ exp, -1.0) @ magnitude, plus(A @ exp, -1.0)),
        ("|max(a, 0)| = max(a, 0)", A @ relu @ magnitude, A @ relu, A @ relu @ magnitude, A @ magnitude),
    ),
    *said(
        "HandleAdd",
        ("a + 0 = a", plus(A, 0.0), A, plus(A, 1.0), A),
        ("0 + a = a", times(B, 0.0) + A, A, times(B, 0.0) + A, B),
        ("c + a = a + c", C + A, A + C, less(C, A), less(A, C)),
        ("(a + c) + d = a + (c + d)", (A + C) + D, A + (C + D), less(A, C) + D, less(A, C + D)),
        ("(c - a) + d = (c + d) - a", less(C, A) + D, less(C + D, A), less(C, A) + D, less(C, A + D)),
        ("a c + b c = (a + b) c", A * C + B * C, (A + B) * C, A * C + B * D, (A + B) * C),
        ("c a + b c = (a + b) c", C * A + B * C, (A + B) * C, C * A + B, (A + B) * C),
    ),
    *said(
        "HandleSubtract",
        ("a - a = 0", less(A, A), times(A, 0.0), less(A, B), times(A, 0.0)),
        ("a - 0 = a", less(A, times(B, 0.0)), A, less(times(B, 0.0), A), A),
        ("a - c = a + (-c)", less(A, C), A + minus(C), less(A, C), minus(A) + C),
    ),
    *said(
        "HandleDivide",
        ("a / 1 = a", divided(A, filled(A, 1.0)), A, divided(filled(A, 1.0), A), A),
        (
            "exp a / exp b = exp(a - b)",
            divided(A @ exp, B @ exp),
            less(A, B) @ exp,
            divided(A @ exp, B @ exp),
            less(B, A) @ exp,
        ),
        ("a / exp b = a exp(-b)", divided(A, B @ exp), A * (minus(B) @ exp), divided(A, B @ exp), A * minus(B @ exp)),
        ("a / sqrt b = a rsqrt b", divided(A, root(B)), A * (B @ rsqrt), divided(A, B @ rsqrt), A * (B @ rsqrt)),
        ("a / rsqrt b = a sqrt b", divided(A, B @ rsqrt), A * root(B), divided(A, root(B)), A * root(B)),
        (
            "a / s = a (1 / s)",
            divided(A, filled(A, s)),
            times(A, s @ reciprocal),
            divided(A, filled(A, s)),
            times(A @ reciprocal, s),
        ),
        (
            "(a / b) / (c / d) = (a d) / (b c)",
            divided(divided(A, B), divided(C, D)),
            divided(A * D, B * C),
            divided(divided(A, B), divided(C, D)),
            divided(A * C, B * D),
        ),
        (
            "(a / b) / c = a / (b c)",
            divided(divided(A, B), C),
            divided(A, B * C),
            divided(divided(A, B), C),
            divided(A * C, B),
        ),
        (
            "a / (b / c) = (a c) / b",
            divided(A, divided(B, C)),
            divided(A * C, B),
            divided(A, divided(B, C)),
            divided(A, B * C),
        ),
    ),
    *said(
        "HandleMultiply",
        ("a 1 = a", times(A, 1.0), A, times(A, -1.0), A),
        ("1 a = a", filled(A, 1.0) * A, A, filled(A, 1.0) * A, filled(A, 1.0)),
        ("0 a = 0", times(B, 0.0) * A, times(A, 0.0), times(B, 0.0) * A, A),
        ("a 0 = 0", A * times(B, 0.0), times(B, 0.0), times(A, 1.0), times(B, 0.0)),
        ("(-a) (-b) = a b", minus(A) * minus(B), A * B, minus(A) * B, A * B),
        ("|a| |a| = a a", (A @ magnitude) * (A @ magnitude), A * A, (A @ magnitude) * (B @ magnitude), A * B),
        ("(a c) (b d) = (a b) (c d)", (A * C) * (B * D), (A * B) * (C * D), (A * C) * (B * D), (A * B) * (C * C)),
        ("(a c) d = a (c d)", (A * C) * D, A * (C * D), (A * C) * D, A * (C + D)),
        ("(a s) t = a (s t)", times(times(A, s), t), times(A, s * t), times(times(A, s), t), times(A, s + t)),
        (
            "(a s) spread(u) = a spread(u s)",
            times(A, s) * u,
            A * times(u, s),
            times(A, s) * u,
            times(A * times(u, s), s),
        ),
        ("exp a exp b = exp(a + b)", (A @ exp) * (B @ exp), (A + B) @ exp, (A @ exp) * (B @ exp), (A * B) @ exp),
        ("sqrt a sqrt a = a, where a >= 0", root(NO_MINUS) * root(NO_MINUS), NO_MINUS, root(A) * root(A), A),
        (
            "rsqrt a rsqrt a = 1 / a, where a >= 0",
            (NO_MINUS @ rsqrt) * (NO_MINUS @ rsqrt),
            NO_MINUS @ reciprocal,
            (A @ rsqrt) * (A @ rsqrt),
            A @ reciprocal,
        ),
    ),
    *said("HandleNegate", ("-(-a) = a", minus(minus(A)), A, minus(minus(A)), minus(A))),
    *said(
        "HandleLog",
        ("log exp a = a", A @ exp @ log, A, A @ log @ exp, A),
        ("log a^2 = 2 log |a|", (A * A) @ log, times(A @ magnitude @ log, 2.0), (A * A) @ log, times(A @ log, 2.0)),
        ("log sqrt a = log a / 2", root(A) @ log, times(A @ log, 0.5), root(A) @ log, times(A @ log, -0.5)),
        (
            "log rsqrt a = -log a / 2",
            A @ rsqrt @ log,
            times(A @ log, -0.5),
            A @ rsqrt @ log,
            times(A @ magnitude @ log, -0.5),
        ),
    ),
    *said(
        "HandleLog",
        (
            "log a^3 = 3 log |a|",
            (A * A * A) @ log,
            times(A @ magnitude @ log, 3.0),
            (A * A * A) @ log,
            times(A @ magnitude @ log, 2.0),
        ),
        missing="a > 0",
    ),
    *said("HandleExp", ("exp 0 = 1", times(A, 0.0) @ exp, filled(A, 1.0), times(A, 0.0) @ exp, times(A, 0.0))),
    *said(
        "HandlePower",
        ("a^2 = a a", A @ square, A * A, A @ square, A * B),
        ("(exp a)^2 = exp(2 a)", A @ exp @ square, times(A, 2.0) @ exp, A @ exp @ square, A @ square @ exp),
    ),
    *said("HandleSqrt", ("sqrt(a a) = |a|", root(A * A), A @ magnitude, root(A * A), A)),
    *said(
        "HandleRsqrt",
        (
            "rsqrt(a^-2) = a, where a >= 0",
            NO_MINUS @ square @ reciprocal @ rsqrt,
            NO_MINUS,
            A @ square @ reciprocal @ rsqrt,
            A,
        ),
        ("rsqrt(1 / a) = sqrt a, where a >= 0", A @ reciprocal @ rsqrt, root(A), A @ reciprocal @ rsqrt, A @ rsqrt),
    ),
]

# ---- maxima and minima

ORDER = [
    *said(
        "HandleMaximum",
        ("max(a, a) = a", larger(A, A), A, larger(A, B), A),
        ("max(max(a, b), b) = max(a, b)", larger(larger(A, B), B), larger(A, B), larger(larger(A, B), B), larger(A, C)),
        (
            "max(max(a, b), a) = max(a, b)",
            larger(larger(A, B), A),
            larger(A, B),
            larger(smaller(A, B), A),
            larger(A, B),
        ),
        ("max(a, max(a, b)) = max(a, b)", larger(A, larger(A, B)), larger(A, B), larger(A, larger(A, B)), A),
        (
            "max(b, max(a, b)) = max(b, a)",
            larger(B, larger(A, B)),
            larger(B, A),
            larger(B, smaller(A, B)),
            larger(B, A),
        ),
        (
            "max(l, min(a, h)) = clamp(l, a, h), where l < h",
            larger(B, smaller(A, HIGH)),
            clamp(B, A, HIGH),
            larger(B, smaller(A, C)),
            clamp(B, A, C),
        ),
        (
            "max(tanh a, tanh b) = tanh max(a, b)",
            row(u @ tanh, v @ tanh) @ LARGEST,
            row(u, v) @ LARGEST @ tanh,
            row(u @ square, v @ square) @ LARGEST,
            row(u, v) @ LARGEST @ square,
        ),
        (
            "max(logistic a, logistic b) = logistic max(a, b)",
            row(u @ sigmoid, v @ sigmoid) @ LARGEST,
            row(u, v) @ LARGEST @ sigmoid,
            row(u @ sigmoid, v @ sigmoid) @ LARGEST,
            row(u, v) @ LEAST @ sigmoid,
        ),
    ),
    *said(
        "HandleMaximum",
        (
            "max(l, clamp(l, a, h)) = clamp(l, a, h)",
            larger(B, clamp(B, A, C)),
            clamp(B, A, C),
            larger(C, clamp(B, A, C)),
            clamp(B, A, C),
        ),
        missing="l <= h; with it, proved",
    ),
    *said(
        "HandleMinimum",
        ("min(a, a) = a", smaller(A, A), A, smaller(A, B), B),
        (
            "min(min(a, b), b) = min(a, b)",
            smaller(smaller(A, B), B),
            smaller(A, B),
            smaller(larger(A, B), B),
            smaller(A, B),
        ),
        (
            "min(min(a, b), a) = min(a, b)",
            smaller(smaller(A, B), A),
            smaller(A, B),
            smaller(smaller(A, B), C),
            smaller(A, B),
        ),
        (
            "min(a, min(a, b)) = min(a, b)",
            smaller(A, smaller(A, B)),
            smaller(A, B),
            smaller(A, smaller(A, B)),
            larger(A, B),
        ),
        (
            "min(b, min(a, b)) = min(b, a)",
            smaller(B, smaller(A, B)),
            smaller(B, A),
            smaller(B, larger(A, B)),
            smaller(B, A),
        ),
        (
            "min(h, max(a, l)) = clamp(l, a, h), where l < h",
            smaller(HIGH, larger(A, B)),
            clamp(B, A, HIGH),
            smaller(B, larger(A, HIGH)),
            clamp(B, A, HIGH),
        ),
    ),
    *said(
        "HandleClamp",
        (
            "clamp(l, clamp(l, a, h), h) = clamp(l, a, h)",
            clamp(B, clamp(B, A, C), C),
            clamp(B, A, C),
            clamp(C, clamp(B, A, C), B),
            clamp(B, A, C),
        ),
    ),
]

# ---- products

PRODUCTS = [
    *said(
        "HandleDot",
        (
            "nothing summed: u wᵀ = spread(u) spread(wᵀ)",
            product(u, turn(w)),
            u * turn(w + times(turn(A), 0.0)),
            product(u, turn(w)),
            u + turn(w + times(turn(A), 0.0)),
        ),
    ),
    *said(
        "AssociativeReorderNestedDot",
        (
            "(A E) G = A (E G)",
            product(product(A, E), G),
            product(A, product(E, G)),
            product(product(A, Q), S),
            product(A, product(S, Q)),
        ),
    ),
    *said(
        "AssociativeReorderDotOperator",
        (
            "spread(u) E = u sum of rows(E)",
            product(spread(u), E),
            product(u, over_rows(E)),
            product(spread(u) * A, E),
            product(u, over_rows(E)),
        ),
        (
            "pad(A) H = A rows(H)",
            product(A @ place(0, k + p), H),
            product(A, rows_of(H, 0, k)),
            product(A @ place(p, k + p), H),
            product(A, rows_of(H, 0, k)),
        ),
    ),
    *said(
        "RewriteBatchPlusContractingAsReduce",
        (
            "A w = sum(A spread(wᵀ))",
            product(A, w),
            turn(over_rows(turn(A) * w)),
            product(A, w),
            turn(over_rows(turn(A) + w)),
        ),
    ),
    *said(
        "OptimizeDotOfConcat",
        (
            "[A L] H = A H₁ + L H₂",
            product(row(A, L), H),
            product(A, rows_of(H, 0, k)) + product(L, rows_of(H, k, k + p)),
            product(row(L, A), H),
            product(A, rows_of(H, 0, k)) + product(L, rows_of(H, k, k + p)),
        ),
        (
            "V [Q; J] = V₁ Q + V₂ J",
            product(V, below(Q, J)),
            product(cut(V, 0, k), Q) + product(cut(V, k, k + p), J),
            product(V, below(J, Q)),
            product(cut(V, 0, k), Q) + product(cut(V, k, k + p), J),
        ),
    ),
    *said(
        "OptimizeDotOfGather",
        ("rows(x) W = rows(x W)", (x @ LAST) @ W, (x @ W) @ LAST, (x @ LAST) @ W, (x @ W) @ FIRST),
    ),
    *said(
        "RemoveTransposesFromDotOperands",
        (
            "Aᵀ Oᵀ = (O A)ᵀ",
            product(turn(A), turn(O)),
            turn(product(O, A)),
            product(turn(Q), turn(S)),
            turn(product(Q, S)),
        ),
    ),
    *said(
        "MoveDotParamToRhs",
        (
            "A E = (Eᵀ Aᵀ)ᵀ",
            product(A, E),
            turn(product(turn(E), turn(A))),
            product(Q, S),
            turn(product(turn(Q), turn(S))),
        ),
    ),
    *said(
        "ScalarMultiplyReduction",
        ("(A s) E = (A E) s", product(times(A, s), E), times(product(A, E), s), product(times(A, s), E), product(A, E)),
        (
            "A (E s) = (A E) s",
            product(A, times(E, s)),
            times(product(A, E), s),
            product(times(A, s), times(E, s)),
            times(product(A, E), s),
        ),
        (
            "(A E)ᵀ s = ((A s) E)ᵀ",
            times(turn(product(A, E)), s),
            turn(product(times(A, s), E)),
            times(turn(product(A, E)), s),
            turn(product(times(A, s * s), E)),
        ),
    ),
    *said(
        "HandleTranspose",
        (
            "(A E)ᵀ = Eᵀ Aᵀ",
            turn(product(A, E)),
            product(turn(E), turn(A)),
            turn(product(Q, S)),
            product(turn(Q), turn(S)),
        ),
        ("Aᵀᵀ = A", turn(turn(A)), A, turn(Q), Q),
    ),
    *said(
        "SimplifyTransposeOfBroadcast",
        ("spread(s)ᵀ = spread(s)", turn(filled(A, s)), filled(turn(A), s), turn(spread(array("z", m, 1)) + A), turn(A)),
    ),
]

# ---- matrices beside each other, cut and padded

CUT = row(A, row(L, N))  # any matrix of k + p + r columns
BLOCKS = [
    *said(
        "HandleConcatenate",
        ("[A [L N]] = [A L N]", CUT, row(row(A, L), N), row(A, row(B, C)), row(row(B, A), C)),
        ("[V₁ V₂] = V", row(cut(V, 0, k), cut(V, k, k + p)), V, row(cut(V, k, k + p), cut(V, 0, k)), V),
        ("[0 A] = pad(A)", row(times(L, 0.0), A), A @ place(p, k + p), row(A, times(L, 0.0)), A @ place(p, k + p)),
        ("[A 0] = pad(A)", row(A, times(L, 0.0)), A @ place(0, k + p), row(times(L, 0.0), A), A @ place(0, k + p)),
        ("[u u] = spread(u)", row(u, u), u + times(row(u, v), 0.0), row(u, v), u + times(row(u, v), 0.0)),
    ),
    *said(
        "HandlePad",
        ("pad by nothing = A", A @ place(0, k), A, cut(A @ place(0, k + p), p, k + p), A),
        (
            "pad by fewer than nothing = columns of pad",
            row(L, cut(V, 0, k)) @ cols(p, k + p) @ place(0, k + r),
            cut(row(L, cut(V, 0, k)) @ place(0, k + p + r), p, k + p + r),
            row(L, cut(V, 0, k)) @ cols(p, k + p) @ place(0, k + r),
            cut(row(L, cut(V, 0, k)) @ place(r, k + p + r), p, k + p + r),
        ),
    ),
    *said(
        "HandleSlice",
        ("all columns of A = A", cut(A, 0, k), A, cut(V, 0, k) @ place(0, k + p), V),
        (
            "columns of padding = 0",
            cut(A @ place(0, k + p), k, k + p),
            times(L, 0.0),
            cut(A @ place(p, k + p), k, k + p),
            times(L, 0.0),
        ),
        ("columns undo pad", cut(A @ place(p, k + p), p, p + k), A, cut(A @ place(p, k + p), 0, k), A),
        (
            "columns inside pad = columns",
            cut(row(A, L) @ place(r, k + p + r), r, r + k),
            A,
            cut(row(A, L) @ place(r, k + p + r), 0, k),
            A,
        ),
        (
            "columns of columns = columns",
            cut(cut(CUT, k, k + p + r), p, p + r),
            cut(CUT, k + p, k + p + r),
            cut(cut(CUT, k, k + p + r), 0, p),
            cut(CUT, k + p, k + p + r),
        ),
        ("columns of spread(u) = spread(u)", cut(u + times(V, 0.0), 0, k), spread(u), cut(u + V, 0, k), spread(u)),
        (
            "rows of spread(U) = spread(rows of U)",
            rows_of(spread(U), 0, m),
            spread(rows_of(U, 0, m)),
            rows_of(spread(U), p, m + p),
            spread(rows_of(U, 0, m)),
        ),
        (
            "columns of A Y = A columns(Y)",
            cut(product(A, Y), 0, p),
            product(A, cut(Y, 0, p)),
            cut(product(A, Y), r, p + r),
            product(A, cut(Y, 0, p)),
        ),
        (
            "rows of T E = rows(T) E",
            rows_of(product(T, E), 0, m),
            product(rows_of(T, 0, m), E),
            rows_of(product(T, E), p, m + p),
            product(rows_of(T, 0, m), E),
        ),
        ("columns of [A L] = A", cut(row(A, L), 0, k), A, cut(row(A, B), 0, k), B),
        ("columns of [A L] = L", cut(row(A, L), k, k + p), L, cut(row(A, B), k, 2 * k), A),
        (
            "columns of [[A L] N] inside [A L]",
            cut(row(row(A, L), N), 0, k),
            cut(row(A, L), 0, k),
            cut(row(row(B, L), N), 0, k),
            cut(row(A, L), 0, k),
        ),
        (
            "columns of [A L N] = columns of [L N]",
            cut(CUT, k, k + p),
            cut(row(L, N), 0, p),
            cut(CUT, k, k + p),
            cut(row(N, L), 0, p),
        ),
    ),
    *said(
        "HandleGather",
        (
            "rows(pad(x)) = pad(rows(x))",
            x @ place(0, count * k + p) @ LAST,
            x @ LAST @ place(0, count * k + p),
            x @ place(0, count * k + p) @ LAST,
            x @ LAST @ place(p, count * k + p),
        ),
    ),
]

# ---- repeated entries, and rows that are reduced

REDUCED = [
    *said(
        "TryToSinkBroadcastAfterElementwiseOps",
        ("exp spread(u) = spread(exp u)", spread(u) @ exp, spread(u @ exp), spread(u) @ exp, spread(u) * (u @ exp)),
        (
            "spread(u) spread(v) = spread(u v)",
            spread(u) * spread(v),
            spread(u * v),
            spread(u) * spread(v),
            spread(u + v),
        ),
        (
            "spread(u) + spread(s) = spread(u + s)",
            spread(u) + filled(A, s),
            spread(plus(u, s)),
            spread(u) * filled(A, s),
            spread(plus(u, s)),
        ),
    ),
    *said(
        "HandleBroadcast",
        (
            "columns of spread(s) = spread(s)",
            cut(filled(V, s), 0, k),
            filled(A, s),
            cut(filled(V, s), 0, k),
            filled(A, t),
        ),
        ("spread(spread(s)) = spread(s)", spread(filled(u, s)), filled(A, s), spread(filled(u, s)), filled(A, s * s)),
    ),
    *said(
        "HandleReduce",
        ("sum of one column = the column", u @ ones, u, row(u, v) @ ones, u),
        ("sum(-a) = -sum(a)", minus(A) @ ones, minus(A @ ones), A @ magnitude @ ones, A @ ones @ magnitude),
        (
            "sum of rows(Aᵀ) = (sum of columns(A))ᵀ",
            over_rows(turn(A)),
            turn(A @ ones),
            over_rows(turn(A)),
            times(turn(A @ ones), 2.0),
        ),
        (
            "sum of columns split into heads",
            x @ HEADS @ ones @ total,
            x @ ones,
            x @ HEADS @ LARGEST @ total,
            x @ LARGEST,
        ),
        (
            "sum([A L]) = sum(A) + sum(L)",
            row(A, L) @ ones,
            A @ ones + L @ ones,
            row(A, L) @ ones,
            less(A @ ones, L @ ones),
        ),
        (
            "max([A L]) = max(max(A), max(L))",
            row(A, L) @ LARGEST,
            row(A @ LARGEST, L @ LARGEST) @ LARGEST,
            row(A, L) @ LARGEST,
            row(A @ LARGEST, L @ LEAST) @ LARGEST,
        ),
        (
            "sum over heads of x yᵀ = x yᵀ",
            product(x @ HEADS, turn(y @ HEADS)) @ total,
            product(x, turn(y)),
            product(x @ HEADS, turn(y @ HEADS)) @ total,
            product(y, turn(x)),
        ),
        ("max of spread(s) = s", filled(A, s) @ LARGEST, filled(u, s), filled(A, s) @ ones, filled(u, s)),
        ("min of spread(s) = s", filled(A, s) @ LEAST, filled(u, s), plus(A, s) @ LEAST, filled(u, s)),
        ("sum of spread(u) = u k", spread(u) @ ones, u * (filled(A, 1.0) @ ones), spread(u) @ ones, u),
    ),
    *said(
        "ReorderReduceDotToDotReduce",
        (
            "sum of columns(A E) = A sum(E)",
            product(A, E) @ ones,
            product(A, E @ ones),
            product(A, E) @ LARGEST,
            product(A, E @ LARGEST),
        ),
        (
            "sum of rows(A E) = sum(A) E",
            over_rows(product(A, E)),
            product(over_rows(A), E),
            over_rows(product(A, E), LARGEST),
            product(over_rows(A, LARGEST), E),
        ),
    ),
    *said(
        "MergeReduces",
        (
            "sums over both axes in any order",
            over_rows(A @ ones),
            over_rows(A) @ ones,
            over_rows(A @ LARGEST),
            over_rows(A) @ LARGEST,
        ),
        (
            "maxima over both axes in any order",
            over_rows(A @ LARGEST, LARGEST),
            over_rows(A, LARGEST) @ LARGEST,
            over_rows(A @ LARGEST, LEAST),
            over_rows(A, LEAST) @ LARGEST,
        ),
    ),
    *said("HandleReshape", ("columns to heads and back = x", x @ HEADS @ HEADS.T, x, x @ HEADS @ total, x @ ones)),
]

# ---- what is missing to say a rule

PREDICATES, INTEGERS, TYPES = "truth values", "integers and their bits", "number types"
LAYOUT, RANK, RESHAPES = "memory layouts", "axes beyond rows, columns and heads", "reshapes across rows"
DYNAMIC, SCATTERS, WINDOWS = "dynamic indices", "scatters", "convolutions and windows"
EMPTY, INFINITE, EXPONENTS = "empty matrices", "infinite numbers", "powers with any exponent"
COMPLEX, TUPLES, COLLECTIVES = "complex numbers", "tuples, barriers and calls", "collectives inside a term"
REVERSES, COUNTING, LITERALS = "reversed axes and strides", "counting numbers", "literals of any size"
SORTS, RANDOM, PADDING = "sorting and places of maxima", "random numbers", "padding between entries"

MISSING = [
    *unsaid(DYNAMIC, "HandleAdd", "a + update(0, b, i) = update(a, columns(a, i) + b, i)"),
    *unsaid(SCATTERS, "HandleAdd", "scatter + scatter = scatter of both", "scatter + a = scatter onto a + its operand"),
    *unsaid(COLLECTIVES, "HandleAllGather", "gather over ranks of spread(s) = spread(s)"),
    *unsaid(COLLECTIVES, "HandleAllToAll", "exchange over ranks of spread(s) = spread(s)"),
    *unsaid(PREDICATES, "HandleAnd", "a and true = a", "true and a = a", "a and false = false", "false and a = false"),
    *unsaid(INTEGERS, "TrySimplifyTautologicalCompare", "a < i and a < j = a < min(i, j)"),
    *unsaid(LAYOUT, "HandleBitcast", "bitcast of bitcast", "bitcast to the same shape", "bitcast of spread"),
    *unsaid(
        TYPES, "HandleBitcastConvert", "bits read twice", "bits read as the same type", "bits of bits side by side"
    ),
    *unsaid(LAYOUT, "HandleCopy", "copy of copy", "copy to the same layout", "copy as bitcast", "copy of reshape"),
    *unsaid(EMPTY, "HandleConcatenate", "empty parts are left out"),
    *unsaid(TUPLES, "HandleConstant", "a tuple of literals"),
    *unsaid(LITERALS, "HandleConstant", "a literal of equal numbers = spread(s)"),
    *unsaid(COUNTING, "HandleConstant", "a literal 0, 1, 2.. counts", "a literal 0, i, 2 i.. counts times i"),
    *unsaid(INTEGERS, "HandleDivide", "a / 2^i = a >> i"),
    *unsaid(EXPONENTS, "HandleDivide", "a / b^c = a b^-c"),
    *unsaid(PREDICATES, "HandleDivide", "truth / s = (1 / s) truth"),
    *unsaid(EMPTY, "HandleDot", "a product of empty matrices = 0"),
    *unsaid(RANK, "RemoveDegenerateDimensionFromDot", "axes of one entry are left out of a product"),
    *unsaid(REVERSES, "AssociativeReorderDotOperator", "reversed(A) E = A reversed(E)"),
    *unsaid(RESHAPES, "OptimizeDotOfReorderContractingDims", "reshaped transposes move to the literal"),
    *unsaid(EMPTY, "HandleGather", "rows of an empty matrix = 0"),
    *unsaid(DYNAMIC, "HandleGather", "rows of one number = spread", "few rows as selects", "rows of a reshaped pad"),
    *unsaid(INFINITE, "HandleMaximum", "max(a, -inf) = a", "max(-inf, a) = a"),
    *unsaid(INFINITE, "HandleMinimum", "min(a, inf) = a", "min(inf, a) = a"),
    *unsaid(INTEGERS, "HandleClamp", "clamped ranks that are in range"),
    *unsaid(PREDICATES, "HandleMultiply", "truth a = select(truth, a, 0)"),
    *unsaid(WINDOWS, "TryToReorderConvAddMultiply", "(conv(a, f) + b) c = conv(a, f c) + b c"),
    *unsaid(PREDICATES, "HandleNot", "not not a = a"),
    *unsaid(PREDICATES, "HandleOr", "a or true = true", "true or a = true", "a or false = a", "false or a = a"),
    *unsaid(EXPONENTS, "HandleLog", "log a^b = b log |a|"),
    *unsaid(TUPLES, "HandleGetTupleElement", "a member of a tuple"),
    *unsaid(TUPLES, "HandleOptimizationBarrier", "unused members behind a barrier"),
    *unsaid(RESHAPES, "HandleBroadcast", "spread of as many entries = reshape", "spread of a reshape"),
    *unsaid(RANK, "HandleBroadcast", "spread to as many axes = transpose", "axes of one entry are dropped"),
    *unsaid(COUNTING, "HandleBroadcast", "spread of counting = counting"),
    *unsaid(INTEGERS, "HandleCompare", "unsigned a < 0 = false", "unsigned a >= 0 = true"),
    *unsaid(PREDICATES, "HandleCompare", "a < 0 = false, where a >= 0", "a >= 0 = true, where a >= 0"),
    *unsaid(PREDICATES, "HandleCompare", "a = a = true", "a <> a = false", "a <> false = a", "a = true = a"),
    *unsaid(PREDICATES, "HandleCompare", "select(a >= b, 1, 0) <> 0 = a >= b", "max(a, b) > a = b > a"),
    *unsaid(PREDICATES, "HandleCompare", "a > min(a, b) = a > b"),
    *unsaid(TYPES, "HandleConvert", "to the same type", "there and back", "of a literal", "around one operation"),
    *unsaid(DYNAMIC, "HandleCustomCall", "static and back to dynamic sizes"),
    *unsaid(LAYOUT, "HandleCustomCall", "a required layout that is there"),
    *unsaid(COMPLEX, "HandleComplex", "complex(real c, imag c) = c"),
    *unsaid(COMPLEX, "HandleReal", "real complex(a, b) = a", "real a = a"),
    *unsaid(COMPLEX, "HandleImag", "imag complex(a, b) = b", "imag a = 0"),
    *unsaid(COUNTING, "HandleIota", "counting to one = 0"),
    *unsaid(EMPTY, "HandlePad", "pad of an empty matrix = spread"),
    *unsaid(PADDING, "HandlePad", "padding between entries of one", "pad of spread = spread of pad"),
    *unsaid(EXPONENTS, "HandlePower", "a^0 = 1", "a^1 = a", "(exp a)^b = exp(a b)", "a^3 = a a a", "a^-1 = 1 / a"),
    *unsaid(EXPONENTS, "HandlePower", "a^(1/2) = sqrt a, where a >= 0"),
    *unsaid(INTEGERS, "HandleRemainder", "(a % b) % b = a % b", "a % 2^i = a & (2^i - 1)"),
    *unsaid(COUNTING, "HandleRemainder", "counting % n = counting, up to n", "(counting + n) % n = counting % n"),
    *unsaid(EMPTY, "HandleReshape", "an empty reshape"),
    *unsaid(RESHAPES, "HandleReshape", "reshape of reshape", "reshape of spread", "reshape as bitcast"),
    *unsaid(RESHAPES, "TryHoistTransposeOfReshape", "reshape of transpose of reshape"),
    *unsaid(RESHAPES, "TryRemovingBitcastOrReshapeTransposeChain", "transposes and reshapes that undo each other"),
    *unsaid(RANDOM, "HandleReshape", "reshape of random numbers"),
    *unsaid(COUNTING, "HandleReshape", "reshape of counting = digits"),
    *unsaid(DYNAMIC, "HandleReshape", "reshape of update = update of reshape"),
    *unsaid(REVERSES, "HandleReverse", "reversed axes of one", "reversed twice", "reversed(a + s) = reversed(a) + s"),
    *unsaid(REVERSES, "HandleReverse", "reversed reshape"),
    *unsaid(RANK, "TrySimplifyScalarSlice", "one entry of a joined vector"),
    *unsaid(RESHAPES, "TryToReorderSliceAndReshape", "first rows of a reshape"),
    *unsaid(REVERSES, "TryToReorderSliceAndReverse", "columns of reversed"),
    *unsaid(REVERSES, "RemoveRedundantStride", "a stride beyond the end"),
    *unsaid(WINDOWS, "HandleSlice", "the last of running windows = a reduction"),
    *unsaid(
        DYNAMIC, "HandleDynamicSlice", "of one number", "of all", "an axis taken whole", "of spread", "of a reshape"
    ),
    *unsaid(DYNAMIC, "HandleDynamicSlice", "of a transpose", "at known places", "of counting", "of a dynamic slice"),
    *unsaid(
        DYNAMIC, "HandleDynamicUpdateSlice", "of spread = pad", "of all", "an axis taken whole", "within an update"
    ),
    *unsaid(EMPTY, "HandleDynamicUpdateSlice", "by an empty matrix"),
    *unsaid(EMPTY, "HandleReduce", "a reduction of an empty matrix = spread"),
    *unsaid(TUPLES, "HandleReduce", "a tuple of one reduction"),
    *unsaid(RESHAPES, "HandleReduce", "of a reshape of kept axes"),
    *unsaid(SORTS, "HandleReduce", "a maximum beside its place", "a minimum beside its place"),
    *unsaid(TYPES, "HandleReducePrecision", "to the precision that is there"),
    *unsaid(
        WINDOWS, "HandleReduceWindow", "of one number", "of windows of one", "of whole axes", "of pad", "spread by pad"
    ),
    *unsaid(EMPTY, "HandleReduceWindow", "of an empty matrix"),
    *unsaid(TUPLES, "HandleReduceWindow", "a tuple of one"),
    *unsaid(PREDICATES, "HandleSelect", "select(c, a, a) = a", "select(true, a, b) = a", "select(false, a, b) = b"),
    *unsaid(PREDICATES, "HandleSelect", "select(not c, a, b) = select(c, b, a)", "select(c, true, false) = c"),
    *unsaid(PREDICATES, "HandleSelect", "select(c, false, true) = not c", "select(a > b, a, b) = a or b"),
    *unsaid(PREDICATES, "HandleSelect", "select(a < b, a, b) = a and b", "select(a = b, a, b) = b"),
    *unsaid(DYNAMIC, "HandleSelect", "select(c, a, update(a, b, i)) = update(a, select(c, a, b), i)"),
    *unsaid(EMPTY, "HandleScatter", "of an empty update"),
    *unsaid(SCATTERS, "HandleScatter", "of everything = map"),
    *unsaid(SORTS, "HandleSort", "of one or none"),
    *unsaid(RANK, "HandleTranspose", "of axes in their order", "of axes of one = reshape"),
    *unsaid(RANDOM, "HandleTranspose", "of random numbers"),
    *unsaid(LAYOUT, "HandleTranspose", "as bitcast"),
    *unsaid(RESHAPES, "HandleTranspose", "depth to space = joined slices"),
    *unsaid(WINDOWS, "FoldConvInputPad", "conv(pad(a), f) = conv(a, f), padded"),
    *unsaid(WINDOWS, "FoldConvFilterPad", "conv(a, pad(f)) = conv(a, f), dilated"),
    *unsaid(WINDOWS, "SwapConvOperands", "conv(a, f) = conv(f, a), reversed"),
    *unsaid(WINDOWS, "SimplifyConvToDot", "conv by one entry = product"),
    *unsaid(WINDOWS, "SimplifyConvToMultiply", "conv of single channels = entries"),
    *unsaid(EMPTY, "HandleConvolution", "of an empty matrix"),
    *unsaid(TUPLES, "HandleMap", "of a parameter", "of a literal", "of one function of entries"),
    *unsaid(PREDICATES, "HandleConditional", "by a number from a truth value"),
]

RULES = [*ENTRIES, *ORDER, *PRODUCTS, *BLOCKS, *REDUCED, *MISSING]
