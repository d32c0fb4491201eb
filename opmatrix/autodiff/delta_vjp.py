"""The delta rule from the last row on: the lines of its cotangents, from scans, linear attention and the rule itself.

Row t has the state S(t) = H(t) + k(t) u(t)ᵀ, where H(t) = decay(t) S(t - 1) and u(t) = beta(t) (v(t) - H(t)ᵀ k(t)), and
gives S(t)ᵀ q(t) (Schlag et al. 2021, eq. 24). The cotangents of u solve the same recurrence from the last row on, with
the decays of the row behind: no state is inverted, and a decay of 0 begins anew in both orders."""

from __future__ import annotations

from functools import cached_property

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.traced import TracedValue
from opmatrix.algebra.nodes import columns_apart, const, ones, read_states
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator

UP_TO_ROW = sequence & causal  # the rows that a row sees in a scan


def negative(g: TracedValue) -> TracedValue:
    """Multiply by -1."""
    minus: Operator = const(-1.0)
    return g * g.act(minus)


def row_behind(x: TracedValue) -> TracedValue:
    """Return the row behind each row; a value that all rows have stays."""
    return x if x.line.level else x.shift(-1)


def turned_round(x: TracedValue) -> TracedValue:
    """Return the rows of each sequence from the last on; a value that all rows have stays."""
    return x if x.line.level else x.backwards()


def scanned_back(factors: TracedValue, g: TracedValue) -> TracedValue:
    """Return g merged with that of the rows behind, times the factors of each row."""
    return turned_round(factors).scan(g.backwards(), monoids.decay, UP_TO_ROW).backwards()


def read_before(k: TracedValue, v: TracedValue, betas: TracedValue, decays: TracedValue) -> TracedValue:
    """Return what the key of each row reads of the state before it writes, H(t)ᵀ k(t): its query is one row early."""
    return row_behind(k * decays).delta_rule(k, v, betas, decays).shift(1)


class DeltaPass:
    """Operands of a delta rule and the cotangent of its result. States are lines of a head for each column of v."""

    def __init__(
        self, q: TracedValue, k: TracedValue, v: TracedValue, betas: TracedValue, decays: TracedValue, g: TracedValue
    ) -> None:
        self.q, self.k, self.v, self.betas, self.decays, self.g = q, k, v, betas, decays, g

    @property
    def heads(self) -> LiveSize:
        """The number of heads of the result."""
        return self.g.heads

    @property
    def columns(self) -> LiveSize:
        """The number of heads of a state: one for each column of the result."""
        return self.heads * self.g.size[1]

    def spread(self, x: TracedValue) -> TracedValue:
        """Copy numbers of a key for every column of a state."""
        return x.repeat(self.columns)

    def apart(self, x: TracedValue) -> TracedValue:
        """Return a head for each column of a value."""
        columns: TracedValue = columns_apart(x.repeat(self.heads), self.heads, self.g.size[1])
        return columns

    def summed(self, x: TracedValue) -> TracedValue:
        """Sum over the columns of a state."""
        return x.fold(self.heads)

    @cached_property
    def missing(self) -> TracedValue:
        """The difference of each value and that which its key reads, v - Hᵀ k."""
        return self.v + negative(read_before(self.k, self.v, self.betas, self.decays))

    @cached_property
    def written(self) -> TracedValue:
        """The row that enters the state, u."""
        return self.apart(self.betas * self.missing)

    @cached_property
    def states(self) -> TracedValue:
        """The state behind each row, S."""
        return self.spread(self.decays).scan(self.spread(self.k) * self.written, monoids.decay, UP_TO_ROW)

    @cached_property
    def of_written(self) -> TracedValue:
        """The cotangent of what each row writes: what later queries read of it, less what later keys correct of it."""
        k, q, g, betas = (turned_round(x) for x in (self.k, self.q, self.g, self.betas))
        decays = turned_round(row_behind(self.decays))
        asked: TracedValue = read_states(k, q, g, decays, UP_TO_ROW)
        return (asked + negative(read_before(k, asked, betas, decays))).backwards()

    @cached_property
    def of_values(self) -> TracedValue:
        """The cotangent of v, a head for each of its columns."""
        return self.apart(self.for_values())

    @cached_property
    def of_states(self) -> TracedValue:
        """The cotangent of the state behind each row."""
        corrected = self.spread(self.k * self.decays) * self.of_values
        direct = self.spread(self.q) * self.apart(self.g) + negative(corrected.shift(-1))
        return scanned_back(self.spread(row_behind(self.decays)), direct)

    def for_queries(self) -> TracedValue:
        """Return the cotangent of q: S g."""
        return self.summed(self.states * self.apart(self.g))

    def for_values(self) -> TracedValue:
        """Return the cotangent of v: beta times that of what is written."""
        return self.betas * self.of_written

    def for_betas(self) -> TracedValue:
        """Return the cotangent of the betas: that of what is written times what is missing."""
        return (self.of_written * self.missing).act(ones())

    def for_keys(self) -> TracedValue:
        """Return the cotangent of k: as a row is written, and as a key reads the state before."""
        before = self.spread(self.decays) * self.states.shift(1)
        return self.summed(self.of_states * self.written + negative(before * self.of_values))

    def for_decays(self) -> TracedValue:
        """Return the cotangent of the decays: that of H times the state of the row before."""
        of_decayed = self.of_states + negative(self.spread(self.k) * self.of_values)
        return self.summed(of_decayed * self.states.shift(1))
