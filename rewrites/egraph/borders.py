"""Border forms: values that a segment may hand on in place of its full value, from which the next one can compute the
full value. A form is one function in this file: its result is handed on, and the remaining operators are in
`pending`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from opmatrix.algebra.operators import I, layernorm, rmsnorm, symbol
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator, substitute
from rewrites.egraph.match import Matches
from rewrites.laws.flat import flat
from rewrites.laws.law import FunctionDeclaration, Sort, constant, n, scalar, stand_in, value

FULL = "full"  # state of a border that hands on the full value


# ---- operators from a normed value, which may lack its gain or its shift, to the full value


def gained_shifted(y: value[n], gain: constant[n], shift: constant[n]):
    return y @ (I * gain) + shift


def gained(y: value[n], gain: constant[n]):
    return y @ (I * gain)


def shifted(y: value[n], shift: constant[n]):
    return y + shift


def symbols(sorts: dict[str, Sort]) -> dict[str, object]:
    """Return a symbol for each variable."""
    return {name: stand_in(name, sort) for name, sort in sorts.items()}


HANDED = stand_in("y", value[n])


@dataclass(frozen=True)
class BorderForm(FunctionDeclaration):
    """One border form: `body` returns the value that is handed on, as a term of some value; each of `pending` computes
    the full value from it."""

    body: Callable[..., Operator]
    pending: tuple[Callable[..., Operator], ...]

    @cached_property
    def handed(self) -> Operator:
        """The value that is handed on, over symbols, in the form of the graph."""
        return flat(self.body(**symbols(self.body.__annotations__)), I)

    @cached_property
    def meanings(self) -> tuple[Operator, ...]:
        """The full value over the value that is handed on, once for each of `pending`."""
        return tuple(flat(full(**symbols(full.__annotations__)), I) for full in self.pending)

    def apart(self, term: Operator) -> tuple[Operator, Operator] | None:
        """Return the value to hand on, and the term that computes the full value over an opaque border; None if the
        value is not of this form."""
        matches = match_terms()
        for meaning in self.meanings:
            for binding in matches.find(meaning, term):
                if matches.find(self.handed, handed := binding[str(HANDED.args[0])]):
                    symbols = [node for node in meaning.walk() if node.kind.name == "symbol"]
                    by = {symbol: binding[str(symbol.args[0])] for symbol in symbols}
                    return handed, substitute(meaning, by | {HANDED: border(handed)})
        return None


def match_terms() -> Matches[Operator]:
    """Return matches of patterns among terms: each term is its only member, and a symbol matches terms with its
    properties."""
    return Matches(
        lambda term, kind: [(term.children, term.attributes)] if term.kind.name == kind else (),
        fits=lambda symbol, term: all(getattr(term, fact) for fact in symbol.args[3]),
    )


FORMS: list[BorderForm] = []


def form(*pending: Callable[..., Operator]) -> Callable[[Callable[..., Operator]], BorderForm]:
    """Enter a form into the table, declared by the value that it hands on. Forms are tried in this order."""

    def enter(body: Callable[..., Operator]) -> BorderForm:
        """Enter the form of a function, with its pending operators."""
        FORMS.append(BorderForm(body, pending))
        return FORMS[-1]

    return enter


@form(gained_shifted, gained, shifted)
def normed(x: value[n], eps: scalar):
    """LayerNorm's value before its gain and shift."""
    return x @ layernorm(eps)


@form(gained_shifted, gained, shifted)
def rms_normed(x: value[n], eps: scalar):
    """RMSNorm's value before its gain."""
    return x @ rmsnorm(eps)


def split_forms(term: Operator) -> Iterator[tuple[str, Operator, Operator]]:
    """Yield every way to hand on a value in parts: the name of the form, the value handed on, and the full value over a
    border. Of two forms that hand on the same value only the first counts: LayerNorm is RMSNorm of a centred value."""
    seen: set[Operator] = set()
    for candidate in FORMS:
        if (pieces := candidate.apart(term)) is not None and pieces[0] not in seen:
            seen.add(pieces[0])
            yield candidate.name, *pieces


def border(term: Operator) -> Operator:
    """Return an opaque value as wide as this one."""
    width = int(term.out.cols)
    return symbol("border", Shape(1, term.out.rows, width), Shape(1, term.out.rows, width))
