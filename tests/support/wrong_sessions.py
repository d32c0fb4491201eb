"""Sessions that are wrong beyond a threshold alone, each in one way, in kernels over caches or in what keeps pages."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from formats.host.threads import threads
from formats.kernels.attentions.chunks import PAGE
from opmatrix.inference import cached, new_rows
from opmatrix.inference.pages import NO_PAGE, Usage
from opmatrix.inference.session import Pages
from opmatrix.runtime.kernels import KERNELS


class SessionFault(NamedTuple):
    """Of a kind, beyond so many tokens of a sequence; `windowed`: of sessions with a window alone."""

    kind: str
    beyond: int
    place: int
    windowed: bool = False

    def __str__(self) -> str:
        return f"{self.kind} beyond {self.beyond}, place {self.place}"

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Whoever binds a program inside, or starts a session, meets it."""
        with ExitStack() as stack:
            for each in FAULTS[self.kind](self):
                stack.enter_context(each)
            yield


def of_kernel(name: str, wrong: Callable[..., None]) -> Iterator[Any]:
    """A kernel that does something else: it is called, as what it makes cannot be recorded."""
    declared = KERNELS[name]
    right = declared.function
    yield mock.patch.object(declared, "function", lambda out, **given: wrong(right, out, **given))
    yield mock.patch.object(declared, "launches", False)


def asked_rows(batch: Any, rows: str) -> Any:
    """The rows of a batch that a step gives."""
    return np.arange(batch.rows) if rows == "all" else batch.starts[1:] - 1


def rewritten(right: Any, out: Any, wrong: Any, batch: Any, rows: str, **given: Any) -> None:
    """The right result, but that of a batch which is otherwise where `wrong` says rows are."""
    right(out, batch=batch, rows=rows, **given)
    changed, at = wrong(batch, asked_rows(batch, rows))
    if not at.any():
        return
    other = np.empty_like(out)
    right(other, batch=changed, rows=rows, **given)
    out[at] = other[at]


def seen_as(batch: Any, **changed: Any) -> Any:
    """A batch with other slots, pages or positions."""
    fields = {name: getattr(batch, name) for name in ("slots", "before", "starts", "positions", "rows")} | changed
    return SimpleNamespace(**fields, field=lambda name, limit: fields[name])


def lost_page(fault: SessionFault) -> Iterator[Any]:
    """Longer sequences do not see one page."""

    def wrong(batch: Any, at: Any) -> Any:
        before, positions = batch.before.copy(), batch.positions[at]
        long = positions >= max(fault.beyond, 2 * PAGE)
        for slot in batch.slots[at][long]:
            page = slot // PAGE
            for _ in range(fault.place % 2):
                if before[page] != NO_PAGE and before[before[page]] != NO_PAGE:
                    page = before[page]
            if before[page] != NO_PAGE:
                before[page] = before[before[page]]
        return seen_as(batch, before=before), long

    return of_kernel("attention_cached", lambda right, out, **given: rewritten(right, out, wrong, **given))


def page_boundary(fault: SessionFault) -> Iterator[Any]:
    """The first row of a page sees no page before it."""

    def wrong(batch: Any, at: Any) -> Any:
        first = (batch.positions[at] % PAGE == 0) & (batch.positions[at] >= fault.beyond)
        before = batch.before.copy()
        before[batch.slots[at][first] // PAGE] = NO_PAGE
        return seen_as(batch, before=before), first

    return of_kernel("attention_cached", lambda right, out, **given: rewritten(right, out, wrong, **given))


def wrong_mask(fault: SessionFault) -> Iterator[Any]:
    """In a step of several rows all rows of a page see the last one of them."""

    def wrong(batch: Any, at: Any) -> Any:
        slots = batch.slots.copy()
        for row in range(batch.rows - 2, -1, -1):
            if slots[row] // PAGE == slots[row + 1] // PAGE and slots[row + 1] > slots[row]:
                slots[row] = slots[row + 1]
        positions = batch.positions + slots - batch.slots
        return seen_as(batch, slots=slots, positions=positions), batch.positions[at] >= fault.beyond

    return of_kernel("attention_cached", lambda right, out, **given: rewritten(right, out, wrong, **given))


def window_off(fault: SessionFault) -> Iterator[Any]:
    """A window has one key more, or one less."""

    def wrong(right: Any, out: Any, behind: int, **given: Any) -> None:
        right(out, behind=max(0, behind + 2 * (fault.place % 2) - 1), **given)

    return of_kernel("attention_cached", wrong)


def window_said(fault: SessionFault) -> Iterator[Any]:
    """A step over caches names a window of one key too many, or too few."""
    right = cached.window_attribute

    def wrong(bound: Any) -> dict[str, int]:
        return {name: max(0, behind + 2 * (fault.place % 2) - 1) for name, behind in right(bound).items()}

    yield mock.patch.object(cached, "window_attribute", wrong)


def rounded_twice(fault: SessionFault) -> Iterator[Any]:
    """Rows of a cache of bfloat16 are rounded to 12 bits, or to a few more, before."""

    def wrong(right: Any, out: Any, batch: Any, x: Any, cache: Any, **given: Any) -> None:
        if out.dtype == np.uint16:
            kept = 2.0 ** (11 + fault.place % 6)
            part, power = np.frexp(x)
            late = batch.positions >= fault.beyond
            x = x.copy()
            x[late] = np.ldexp(np.round(part * kept) / kept, power)[late]
        right(out, batch=batch, x=x, cache=cache, **given)

    return of_kernel("append", wrong)


def lost_row(fault: SessionFault) -> Iterator[Any]:
    """Of several new rows the last one is not put into a cache."""

    def wrong(right: Any, out: Any, batch: Any, x: Any, cache: Any, **given: Any) -> None:
        before = cache[batch.slots[-1]].copy()
        right(out, batch=batch, x=x, cache=cache, **given)
        if batch.rows > 1 and batch.positions[-1] >= fault.beyond:
            out[batch.slots[-1]] = before

    return of_kernel("append", wrong)


def shared_write(fault: SessionFault) -> Iterator[Any]:
    """A fork writes into the page that it shares."""
    right = Pages.take

    def wrong(self: Any, counts: Any) -> Any:
        if max((each.length for each in counts), default=0) < fault.beyond:
            return right(self, counts)
        with mock.patch.object(Pages, "moved", lambda self, usage, page, rows: page):
            return right(self, counts)

    yield mock.patch.object(Pages, "take", wrong)


def uncopied(fault: SessionFault) -> Iterator[Any]:
    """A page of a fork's own lacks the last row that was to be copied."""
    right = Pages.moved

    def wrong(self: Any, usage: Any, page: int, rows: int) -> int:
        return int(right(self, usage, page, rows - (rows > 2 + fault.place % 12)))

    yield mock.patch.object(Pages, "moved", wrong)


def left_key(fault: SessionFault) -> Iterator[Any]:
    """A sequence that goes back keeps a row too many."""
    right = Pages.cut

    def wrong(self: Any, sequence: Any, length: int) -> Any:
        return right(self, sequence, length + (fault.beyond < length < sequence.length))

    yield mock.patch.object(Pages, "cut", wrong)


def early_freed(fault: SessionFault) -> Iterator[Any]:
    """Pages that a window still reads are given back."""
    right = Usage.forget

    def wrong(self: Any, page: int) -> None:
        right(self, page)
        self.users[page] = 0
        self.free.insert(0, page)

    yield mock.patch.object(Usage, "forget", wrong)


def shifted_positions(fault: SessionFault) -> Iterator[Any]:
    """New rows of longer sequences are taken to be one position further on."""
    right = new_rows.New.fill

    def wrong(self: Any, sentences: Any, lengths: Any, slots: Any) -> None:
        right(self, sentences, [*lengths], slots)
        self.positions[self.positions >= max(fault.beyond, 1)] -= 1

    yield mock.patch.object(new_rows.New, "fill", wrong)


def on_two_threads(fault: SessionFault) -> Iterator[Any]:
    """On two threads the last row is 1 % too large."""

    def wrong(right: Any, out: Any, **given: Any) -> None:
        right(out, **given)
        if threads() == 2 and given["batch"].positions[-1] >= fault.beyond:
            out[-1] *= np.float32(1.01)

    return of_kernel("attention_cached", wrong)


FAULTS: dict[str, Callable[[SessionFault], Iterator[Any]]] = {
    "lost page": lost_page,
    "page boundary": page_boundary,
    "wrong mask": wrong_mask,
    "window off": window_off,
    "window said": window_said,
    "rounded twice": rounded_twice,
    "lost row": lost_row,
    "shared write": shared_write,
    "uncopied": uncopied,
    "left key": left_key,
    "early freed": early_freed,
    "positions": shifted_positions,
    "two threads": on_two_threads,
}
WINDOWED = {"window off", "window said", "early freed"}


def drawn(rng: np.random.Generator, count: int, longest: int, windowed: bool) -> Iterator[SessionFault]:
    """Draw `count` faults."""
    return islice(endless(rng, longest, windowed), count)


def endless(rng: np.random.Generator, longest: int, windowed: bool) -> Iterator[SessionFault]:
    """Faults, every kind in turn; thresholds are drawn within the longest text."""
    for kind in cycle([kind for kind in FAULTS if windowed or kind not in WINDOWED]):
        yield SessionFault(kind, int(rng.integers(0, longest - PAGE)), int(rng.integers(1 << 16)), kind in WINDOWED)
