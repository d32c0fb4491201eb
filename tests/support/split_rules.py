"""The rules by which a term is split over ranks, each proved by the laws at any size or, if the laws do not suffice,
checked on numbers, with the reason. `print(written(verdicts()))` is the table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from split_checks import CHECKS, SplitCheck

from opmatrix.algebra.oracles import entrywise
from opmatrix.display.tables import table
from rewrites.laws.proving.groups import GROUP_LAWS
from rewrites.laws.proving.values import VALUE_LAWS
from rewrites.laws.splitting import EQUATIONS, UNPROVED, RuleKey, SplitEquation
from rewrites.proofs.equations import prove
from rewrites.verify.failure import VerificationError

PROVED, CHECKED = "proved", "checked"
LAWS = VALUE_LAWS + GROUP_LAWS
BUDGET = 3000  # most nodes of a proof
OF_HEADS = "sizes of heads are attributes, of which laws know nothing; in rationals at small sizes"


@dataclass(frozen=True)
class RuleVerdict:
    """The status of a rule: the equation that justifies it, if that is proved or checked, over which monoids, and the
    reason if it is not proved."""

    rule: RuleKey
    says: str
    how: str
    reason: str = ""
    over: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{' '.join(self.rule)}: {self.says}: {self.how}"


def verdicts(counts: Sequence[int] = (2, 3), seed: int = 0) -> list[RuleVerdict]:
    """Return the verdict on every rule, for each of these numbers of ranks. Raises VerificationError, which names an
    equation that does not hold."""
    rows = []
    for equation in EQUATIONS:
        for n in counts:
            hold(equation, n)
        how, reason = (CHECKED, OF_HEADS) if equation.exact else (PROVED, "")
        rows += [RuleVerdict(rule, equation.says, how, reason) for rule in equation.rules]
    for one in CHECKS:
        for n in counts:
            survive(one, n, seed)
        over = tuple(over.__name__ for over in one.over)
        rows += [
            RuleVerdict(rule, UNPROVED[rule].format(x="x", M="M"), CHECKED, one.reason, over) for rule in one.rules
        ]
    return sorted(rows, key=lambda each: each.rule)


def hold(each: SplitEquation, n: int) -> None:
    """Raise VerificationError if an equation is not proved, or if its numbers differ."""
    for left, right in each.body(n):
        if each.exact:
            x = np.arange(-2.0, 4.0).reshape(2, 3)
            a, b = (entrywise(side, x, None, Fraction) for side in (left, right))
            if a.shape != b.shape or (a != b).any():
                raise VerificationError(2, each.name, f"{n} pieces differ")
        elif not (proof := prove(left, right, BUDGET, LAWS)):
            raise VerificationError(1, each.name, f"{n} pieces: {proof}")


def survive(one: SplitCheck, n: int, seed: int) -> None:
    """Raise VerificationError if the ranks' results differ from that of the whole."""
    for over in one.over:
        one.body(over, n, np.random.default_rng([seed, n]))


def written(found: Iterable[RuleVerdict]) -> str:
    """Return a table of operation, rule, equation, status and reason."""
    rows = [
        [*row.rule, row.says, row.how + (f" over {', '.join(row.over)}" if row.over else ""), row.reason]
        for row in found
    ]
    return table(rows, ["operation", "rule", "equation", "known", "because"], (0, 1, 2, 3, 4))
