"""Linear attention as a recurrence over a state of d × e numbers a head (Katharopoulos et al. 2020, eq. 16 to 20), with
or without decays."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from formats import kernels as compiled
from formats.core.epilogue import UNIT, gamma
from formats.core.sizes import T
from formats.core.stage import SMALLEST
from formats.machine.prices import Price, Timed, Work, d, h
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.algebra.positions.patterns import parse
from opmatrix.runtime import seen
from opmatrix.runtime.declarations.by_sequence import Doubles, asked_queries, in_groups
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.fitting import heads_of, same
from opmatrix.runtime.declarations.kernel import Arguments, Restricted, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Heads, States, Vector
from opmatrix.runtime.declarations.padded import Padded, group_heads, pass_valid, score_keys, weigh_values

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

PLAIN_OPERANDS = 3  # queries, keys and values
RateNumber = TypeVar("RateNumber", bound=np.floating)


class StepPriced(NamedTuple):
    """Parts of a step on which its seconds depend, beside sizes: decays, corrections, and rows that read the state
    behind the last one, which pass through it twice."""

    decayed: bool
    corrected: bool
    whole: bool = False


FEW_AND_MANY = (1,), (2048,)  # rows of timed sequences beside the usual: those of steps, and of long texts

PRICED_AS = {
    StepPriced(False, False): "recurrent",
    StepPriced(True, False): "recurrent.decayed",
    StepPriced(False, True): "recurrent.delta",
    StepPriced(True, True): "recurrent.gated_delta",
    StepPriced(False, False, True): "recurrent.whole",
    StepPriced(True, False, True): "recurrent.decayed_whole",
}


def repeat_rates(rates: NDArray[RateNumber], rows: int, heads: int) -> NDArray[RateNumber]:
    """Return decays of every row, a view, from those of all heads side by side."""
    return np.broadcast_to(rates.reshape(1, heads, -1), (rows, heads, len(rates) // heads))


def row_factors(
    decays: Heads | Doubles | None, rates: Vector | Doubles | None, rows: int, heads: int
) -> NDArray[np.floating] | None:
    """Return decays of rows: those given, or rates that all rows have; None without either."""
    if rates is None:
        return cast(NDArray[np.floating] | None, decays)
    return repeat_rates(np.asarray(rates), rows, heads)


def run_recurrent(
    out: NDArray[np.float32],
    batch: Batch,
    q: Heads,
    k: Heads,
    v: Heads,
    decays: Heads | None = None,
    rates: Vector | None = None,
    betas: Heads | None = None,
    *,
    where: str = "sequence",
) -> None:
    """Launch the compiled recurrence over the rows of each sequence; `rates` are decays that all rows have."""
    factors = row_factors(decays, rates, len(out), out.shape[1])
    compiled.recurrent(q, k, v, batch.starts, out, factors, parse(where).whole, None, betas)


class RowState(NamedTuple):
    """The state behind a row in float64, (heads, d, e), and a bound on the error of the kernel's."""

    numbers: Doubles
    error: Doubles

    def passed(self, k: Doubles, v: Doubles, decay: Doubles | None) -> "RowState":
        """Return the state behind the next row: times its decay, plus its key times its value. Each product and each
        sum is rounded once."""
        numbers, error = self
        if decay is not None:
            numbers, error = numbers * decay, error * abs(decay)
            error = error + UNIT * (abs(numbers) + error) + SMALLEST
        numbers = numbers + k[:, :, None] * v[:, None, :]
        return RowState(numbers, error + UNIT * (abs(numbers) + error) + SMALLEST)

    def corrected(self, k: Doubles, v: Doubles, decay: Doubles | None, beta: Doubles) -> "RowState":
        """Return the state behind the next row by the delta rule: times its decay, plus its key times beta times the
        difference of its value and what its key reads. An error of a column of the state is bounded in the 2-norm: that
        of I - beta k kᵀ is the larger of 1 and |1 - beta k·k|."""
        numbers, error = self
        if decay is not None:
            numbers, error = numbers * decay, error * abs(decay).max(1, keepdims=True)
            error = error + lengths_of(UNIT * (abs(numbers) + error) + SMALLEST)
        count, sizes = k.shape[1] + 2, np.einsum("hd,hde->he", abs(k), abs(numbers) + error)
        off = v - np.einsum("hd,hde->he", k, numbers)
        unsure = gamma(count) * sizes + count * SMALLEST
        added = beta * off
        unsure = abs(beta) * (unsure + UNIT * (abs(off) + sizes)) + UNIT * abs(added) + SMALLEST
        numbers = numbers + k[:, :, None] * added[:, None, :]
        grown = np.maximum(1.0, abs(1.0 - beta * (k * k).sum(1, keepdims=True)))[:, :, None]
        error = grown * error + lengths_of(abs(k)[:, :, None] * unsure[:, None, :])
        return RowState(numbers, error + lengths_of(UNIT * (abs(numbers) + error) + SMALLEST))

    def read(self, q: Doubles) -> "RowState":
        """Return a query times the state, (heads, e), and the bound of its error: of the state, and of a sum of d
        products."""
        numbers, error = self
        sizes = np.einsum("hd,hde->he", abs(q), abs(numbers) + error)
        doubt = np.einsum("hd,hde->he", abs(q), np.broadcast_to(error, numbers.shape))
        count = q.shape[1] + 1
        return RowState(np.einsum("hd,hde->he", q, numbers), doubt + gamma(count) * sizes + count * SMALLEST)


def lengths_of(columns: Doubles) -> Doubles:
    """Return the 2-norm of each column of states (heads, d, e), as (heads, 1, e)."""
    return np.asarray(np.sqrt((columns * columns).sum(1, keepdims=True)))


class StatePasses(NamedTuple):
    """Keys, values, decays and betas of all rows in float64, in as many heads as states have; the state that the
    sequence of some rows begins with."""

    k: Doubles
    v: Doubles
    decays: Doubles | None
    betas: Doubles | None
    begin: Callable[[slice], Doubles]

    @classmethod
    def of(cls, a: Arguments, heads: int, begin: Callable[[slice], Doubles]) -> "StatePasses":
        """Return those of the operands of a step."""
        factors = row_factors(a.decays, a.rates, len(a.k), heads)
        decays = None if factors is None else in_groups(cast(Doubles, factors), heads)[:, :, :, None]
        betas = None if a.betas is None else in_groups(a.betas, heads)[:, :, 0, None]
        return cls(in_groups(a.k, heads), in_groups(a.v, heads), decays, betas, begin)

    def behind(self, keys: slice) -> Iterator[RowState]:
        """Yield the state behind each row of a sequence."""
        begun = self.begin(keys)
        state = RowState(begun, np.zeros_like(begun))
        for t in range(keys.start, keys.stop):
            decay = None if self.decays is None else self.decays[t]
            if self.betas is None:
                state = state.passed(self.k[t], self.v[t], decay)
            else:
                state = state.corrected(self.k[t], self.v[t], decay, self.betas[t])
            yield state


def read_passes(a: Arguments, of: Arguments, passes: StatePasses) -> Iterator[RowState]:
    """Yield what the query of each requested row reads of its state, in the numbers of `of`. Rows are requested in
    their order, so no state but the last is held."""
    q, whole = in_groups(of.q, passes.k.shape[1]), seen.pattern(a).whole
    for at, queries, keys in asked_queries(a):
        asked = {} if whole else dict(zip(queries.tolist(), q[at], strict=True))
        for row, state in enumerate(passes.behind(keys), keys.start):
            if row in asked:
                yield state.read(asked[row])
            elif whole and row + 1 == keys.stop:
                yield from (state.read(query) for query in q[at])


def read_empty(a: Arguments, of: Arguments) -> Iterator[RowState]:
    """Yield what queries read of states of sequences that begin empty."""
    heads = max(x.shape[1] for x in (of.q, of.k, of.v, of.decays, of.betas) if x is not None)
    empty = np.zeros((heads, of.k.shape[2], of.v.shape[2]))
    yield from read_passes(a, of, StatePasses.of(of, heads, lambda keys: empty))


def pass_padded(a: Arguments, before: Padded, q: Padded, whole: bool = False) -> tuple[Padded, Padded]:
    """Pass keys, values, decays and betas (batch, length, heads, columns) through a state (batch, heads, d, e). Return
    the last state, and what queries read: each of the state behind its row, or (`whole`) of the last."""
    heads = before.shape[1]
    decays = a.decays
    if a.rates is not None:
        decays = np.expand_dims(np.expand_dims(a.batch.positions * 0.0, 2), 3) + a.rates.reshape(heads, -1)
    factors = {"decay": decays, "beta": a.betas}
    rows = {"k": a.k, "v": a.v, "q": q} | {name: x for name, x in factors.items() if x is not None}

    def step(states: Sequence[Padded], row: Sequence[Padded]) -> tuple[Sequence[Padded], Padded]:
        """Multiply the state by its decay, add a key times a value, or the corrected one, and read it."""
        of, [state] = dict(zip(rows, row, strict=True)), states
        k, v = of["k"], of["v"]
        if "decay" in of:
            state = state * np.expand_dims(of["decay"], 3)
        if "beta" in of:
            v = of["beta"] * (v - read_state(state, k))
        state = state + np.expand_dims(k, 3) * np.expand_dims(v, 2)
        return [state], read_state(state, of["q"])

    grouped = [group_heads(x, heads) for x in rows.values()]
    [last], results = pass_valid(step, [before], grouped, a.batch.valid)
    if whole:
        results = np.swapaxes(np.swapaxes(group_heads(q, heads), 1, 2) @ last, 1, 2)
    return last, results


def read_state(state: Padded, q: Padded) -> Padded:
    """Return queries (batch, heads, d) times states (batch, heads, d, e)."""
    return (np.expand_dims(q, 2) @ state)[:, :, 0]


def time_recurrent(step: StepPriced) -> Callable[["Grid", "Numbers"], Iterator[Timed]]:
    """Return the timed calls of such a step, with decays of each head."""

    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        """Yield the sizes and the call for each batch and head shape."""
        for lengths in (*grid.batches, *FEW_AND_MANY):
            starts = np.cumsum([0, *lengths])
            for heads, cols in grid.heads:
                q, out = numbers.some(starts[-1], heads, cols), numbers.room(starts[-1], heads, cols)
                decays, betas = (q[:, :, :1] if there else None for there in step[:2])
                sizes: dict[str, float] = {"T": sum(lengths), "h": heads, "d": cols}
                yield sizes, partial(compiled.recurrent, q, q, q, starts, out, decays, step.whole, betas=betas)

    return cases


def price_recurrent(step: StepPriced) -> Price:
    """Return the price: multiply-adds of the state, numbers moved for each row."""
    operations = 4 + step.decayed + (2 + step.decayed) * step.corrected
    return Price(
        (T * h * d * d, T * h * d),
        lambda tile: Work(vector=operations * T * h * d * d, moved=4 * T * h * d),
        time_recurrent(step),
        common=False,
    )


def shape_recurrent(a: Arguments) -> Heads:
    """Return the heads and the columns of v. Raises ValueError for heads or columns that do not fit."""
    heads = heads_of(**{name: x for name in ("q", "k", "v", "decays", "betas") if (x := getattr(a, name)) is not None})
    same("k columns", a.k.cols, a.q.cols)
    check_decays(a, heads)
    return Heads(heads, a.v.cols)


def check_decays(a: Arguments, heads: int) -> None:
    """Raise ValueError for decays that are neither one of a head nor one of each column of k, and for betas that are
    not one of a head."""
    if a.betas is not None:
        same("betas columns", a.betas.cols, 1)
    if a.decays is not None and a.decays.cols != 1:
        same("decays columns", a.decays.cols, a.k.cols)
    if isinstance(a.rates, np.ndarray) and len(a.rates) not in (heads, heads * a.k.cols):
        raise ValueError(f"rates: {len(a.rates)} numbers, where {heads} or {heads * a.k.cols} are needed")


def cost_recurrent(a: Arguments, heads: int, extents: Extents, whole: bool = False) -> Costs:
    """Return the price of as many rows, heads, and numbers of a state."""
    width = float(a.k.cols * a.v.cols) ** 0.5
    step = StepPriced(a.decays is not None or a.rates is not None, a.betas is not None, whole)
    return [(PRICED_AS[step], {"T": extents[T], "h": heads, "d": width})]


@kernel(
    launches=True,
    row_mixing=True,
    carried_variant="carried_recurrent",
    kept_variant="keep_states",
    prices={name: price_recurrent(step) for step, name in PRICED_AS.items()},
)
class recurrent(Arguments):
    """Each query times the sum of keys times values of its sequence up to its row, or of all of it; decays multiply the
    sum before a row adds to it, in all columns of keys or each in its own; betas, by which a row adds the difference of
    its value and what its key reads, are those of the delta rule."""

    run = run_recurrent

    def shape(a) -> Heads:
        """Return the heads and the columns of v. Raises ValueError for heads or columns that do not fit, and for a
        pattern that is no prefix of a sequence."""
        if not seen.pattern(a).prefix:
            raise ValueError(f"where: {a.where!r} is no prefix of a sequence: give sequence & causal, or sequence")
        return shape_recurrent(a)

    def state(a) -> States:
        """Return the state of a sequence. Raises ValueError where rows read those behind them."""
        if seen.pattern(a).whole:
            raise ValueError("its rows read the state behind the last row")
        return States(shape_recurrent(a).heads, a.k.cols * a.v.cols)

    def reference(a) -> Doubles:
        """Pass the rows of each sequence through a state in float64."""
        return np.stack([row.numbers for row in read_empty(a, a)])

    def padded(a) -> Padded:
        """Multiply scores of all pairs with values; with decays or corrections, pass rows through a state."""
        passing = [x for x in (a.q, a.k, a.v, a.decays, a.betas) if x is not None]
        heads = max(x.shape[2] for x in passing)
        if len(passing) > PLAIN_OPERANDS or a.rates is not None:
            return pass_padded(a, a.batch.zeros(heads, a.k.shape[3], a.v.shape[3]), a.q, seen.pattern(a).whole)[1]
        scores = score_keys(a.q, a.k, heads)
        return weigh_values(np.where(a.batch.seen(seen.pattern(a)), scores, 0.0), a.v)

    def bound(a) -> Doubles:
        """Return a running error of every operation on the state, in the kernel's own order, read by the query."""
        return np.stack([row.error for row in read_empty(a, a.exact)])

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price of as many rows, heads, and numbers of a state."""
        return cost_recurrent(a, out.heads, extents, seen.pattern(a).whole)

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `recurrent` takes another path."""
        return compiled.borders("recurrent")

    @staticmethod
    def restrict(arguments: Mapping[str, Doubles], values: Sequence[str], batch: Batch, at: RowNumbers) -> Restricted:
        """Restrict to some queries, which read states of all keys and values."""
        return {**arguments, "q": arguments["q"][at], "at": at}, batch
