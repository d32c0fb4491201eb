"""Routing of rows: operators that the scores of a choice may pass without changing it. A law here holds for real
numbers; where rounding makes two of them equal, either may be taken."""

from opmatrix.algebra.operators import I, keep_top, share
from rewrites.laws.law import SIMPLIFY, Sort, collect, constant, count, law, n, value, varying

rising = Sort("entrywise", ("keeps_order",))  # larger numbers of a row stay larger, equal ones equal
offset = Sort("column", ("column",))  # one number for each row


@law(phase=SIMPLIFY, canonical=True, source="0 @ (I * c) = 0", without=(dict(c=varying[n]),))
def scale_kept(s: value[n], y: value[n], c: constant[n], top: count):
    """Columns are scaled behind the choice, where a scale may meet another. True of rows by position, too, which are no
    stored matrix."""
    return keep_top(s @ (I * c), y, top), keep_top(s, y, top) @ (I * c)


@law(
    phase=SIMPLIFY,
    canonical=True,
    source="order is all that a choice sees",
    largest=1.0,
    without=(dict(f=Sort("entrywise", ("entrywise",))),),
)
def choose_before(s: value[n], y: value[n], f: rising, top: count):
    """The largest numbers are the largest before a function that rises: a softmax of scores chooses as they do. Of
    large numbers float64 has one share, and no order."""
    return keep_top(s, y @ f, top), keep_top(s, y, top)


@law(phase=SIMPLIFY, canonical=True, source="order is all that a choice sees", without=(dict(r=value[n]),))
def choose_unshifted(s: value[n], y: value[n], r: offset, top: count):
    """A number that is added to a whole row changes no order in it."""
    return keep_top(s, y + r, top), keep_top(s, y, top)


@law(phase=SIMPLIFY, canonical=True, source="e^(u + r) = e^u e^r", without=(dict(r=value[n]),))
def share_unshifted(x: value[n], r: offset):
    """A number that is added to a whole row is a factor of every share and of their sum."""
    return (x + r) @ share, x @ share


ROUTING_LAWS = collect(globals())
