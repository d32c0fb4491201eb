"""Each rule by which a term is split over ranks: proved by the laws at any size, or, where these do not reach, tried,
with the reason. `print(written(verdicts()))` is the table."""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opmatrix.algebra.oracles import entrywise
from opmatrix.display.tables import table
from rewrites.laws.proving.groups import GROUP_LAWS
from rewrites.laws.proving.values import VALUE_LAWS
from rewrites.laws.splitting import EQUATIONS, UNPROVED, RuleKey, SplitEquation
from rewrites.proofs.equations import prove
from rewrites.proofs.split_checks import CHECKS, SplitCheck
from rewrites.verify.failure import VerificationError

PROVED, CHECKED = "proved", "checked"
LAWS = VALUE_LAWS + GROUP_LAWS
BUDGET = 3000                                               # nodes of a proof
OF_HEADS = "sizes of heads are attributes, of which laws know nothing; in rationals at small sizes"


@dataclass(frozen=True)
class RuleVerdict:
    """What is known of a rule: the equation that justifies it, whether that is proved or checked, over which monoids
    and why it is not proved."""
    rule: RuleKey
    says: str
    how: str
    reason: str = ""
    over: tuple[str, ...] = ()

    def __str__(self) -> str: return f"{' '.join(self.rule)}: {self.says}: {self.how}"


def verdicts(counts: Sequence[int] = (2, 3), seed: int = 0) -> list[RuleVerdict]:
    """Every rule, for so many ranks. Raises VerificationError naming an equation that does not hold."""
    found = []
    for each in EQUATIONS:
        for n in counts: hold(each, n)
        how, reason = (CHECKED, OF_HEADS) if each.exact else (PROVED, "")
        found += [RuleVerdict(rule, each.says, how, reason) for rule in each.rules]
    for one in CHECKS:
        for n in counts: survive(one, n, seed)
        over = tuple(over.__name__ for over in one.over)
        found += [RuleVerdict(rule, UNPROVED[rule].format(x="x", M="M"), CHECKED, one.reason, over)
                  for rule in one.rules]
    return sorted(found, key=lambda each: each.rule)


def hold(each: SplitEquation, n: int) -> None:
    """Raises VerificationError where an equation is not proved, or where its numbers differ."""
    for left, right in each.body(n):
        if each.exact:
            x = np.arange(-2.0, 4.0).reshape(2, 3)
            a, b = (entrywise(side, x, None, Fraction) for side in (left, right))
            if a.shape != b.shape or (a != b).any(): raise VerificationError(2, each.name, f"{n} pieces differ")
        elif not (proof := prove(left, right, BUDGET, LAWS)):
            raise VerificationError(1, each.name, f"{n} pieces: {proof}")


def survive(one: SplitCheck, n: int, seed: int) -> None:
    """Raises VerificationError where what ranks have is not what the whole has."""
    for over in one.over: one.body(over, n, np.random.default_rng([seed, n]))


def written(found: Iterable[RuleVerdict]) -> str:
    """A table: operation, rule, equation, how it is known."""
    rows = [[*each.rule, each.says, each.how + (f" over {', '.join(each.over)}" if each.over else ""), each.reason]
            for each in found]
    return table(rows, ["operation", "rule", "equation", "known", "because"], (0, 1, 2, 3, 4))
