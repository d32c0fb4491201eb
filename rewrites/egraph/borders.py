"""Border forms: what a segment may hand on in place of its full value, from which the next one makes the full value
where it likes. A form is one function in this file: what it gives is handed on, what may still follow is in
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

FULL = "full"                                               # the state of a border that hands on the value as it is


# ---- what makes the full value of a normed one, which may lack its gain or its shift

def gained_shifted(y: value[n], gain: constant[n], shift: constant[n]): return y @ (I * gain) + shift
def gained(y: value[n], gain: constant[n]): return y @ (I * gain)
def shifted(y: value[n], shift: constant[n]): return y + shift


def symbols(sorts: dict[str, Sort]) -> dict[str, object]:
    """A symbol for each variable."""
    return {name: stand_in(name, sort) for name, sort in sorts.items()}


HANDED = stand_in("y", value[n])


@dataclass(frozen=True)
class BorderForm(FunctionDeclaration):
    """One border form: `body` gives what is handed on, as a term of some value; each of `pending` makes the full
    value of what is handed on."""

    body: Callable[..., Operator]
    pending: tuple[Callable[..., Operator], ...]

    @cached_property
    def handed(self) -> Operator:
        """What is handed on, over symbols, as the graph has it."""
        return flat(self.body(**symbols(self.body.__annotations__)), I)

    @cached_property
    def meanings(self) -> tuple[Operator, ...]:
        """The full value over what is handed on, in each of the ways that there are."""
        return tuple(flat(full(**symbols(full.__annotations__)), I) for full in self.pending)

    def apart(self, term: Operator) -> tuple[Operator, Operator] | None:
        """A full value taken apart: what is handed on, and the term that makes it full again over an opaque border;
        none where the value is not of this form."""
        matches = match_terms()
        for meaning in self.meanings:
            for found in matches.find(meaning, term):
                if matches.find(self.handed, handed := found[str(HANDED.args[0])]):
                    symbols = [node for node in meaning.walk() if node.kind.name == "symbol"]
                    by = {symbol: found[str(symbol.args[0])] for symbol in symbols}
                    return handed, substitute(meaning, by | {HANDED: border(handed)})
        return None


def match_terms() -> Matches[Operator]:
    """Patterns among terms: each is its only member, and a symbol stands for what has its properties."""
    return Matches(lambda term, kind: [(term.children, term.attributes)] if term.kind.name == kind else (),
                   fits=lambda symbol, term: all(getattr(term, fact) for fact in symbol.args[3]))


FORMS: list[BorderForm] = []


def form(*pending: Callable[..., Operator]) -> Callable[[Callable[..., Operator]], BorderForm]:
    """Enter a form into the table by what it hands on; those that stand first are tried first."""
    def enter(body: Callable[..., Operator]) -> BorderForm:
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
    """Every way to hand on a value in parts: the name of the form, what is handed on, and the full value over a border.
    Of two forms that hand on the same the first counts: LayerNorm is RMSNorm of what is centred."""
    seen: set[Operator] = set()
    for each in FORMS:
        if (found := each.apart(term)) is not None and found[0] not in seen:
            seen.add(found[0])
            yield each.name, *found


def border(term: Operator) -> Operator:
    """An opaque value as wide as this one."""
    width = int(term.out.cols)
    return symbol("border", Shape(1, term.out.rows, width), Shape(1, term.out.rows, width))
