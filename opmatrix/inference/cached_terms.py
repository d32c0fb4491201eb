"""From a model of whole sequences to one of their new rows, as terms: keys and values of earlier rows are stored in
caches. A cache after a step is `given(name, .., "C") + product(given("slots"), k)`, and a row sees the rows that its
sequence holds: `among(HELD)`. cached.py says why that is enough, and does the same for a program."""

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import GIVEN, HELD, SLOTS
from opmatrix.algebra.monoids import logsumexp, softmax, sum
from opmatrix.algebra.nodes import KINDS_IN_ORDER
from opmatrix.algebra.operators import I, const, given, product, turn
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.positions.patterns import Pattern, among, everyone, parse
from opmatrix.algebra.shapes import H, brief
from opmatrix.algebra.term import Operator, substitute
from opmatrix.inference.cached import CAUSAL, ELSEWHERE, looks_back
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.program import OUTPUT

SEARCHED_FIRST = "search the model as it is, and apply cached(program) to the result"


def cached_model(model: Operator) -> dict[str, Operator]:
    """Return the outputs of a model that computes, for new rows, the same as `model` for whole sequences: its own and,
    for every cache, an input of space C, the next value under the input's name. `optimize` and searches take it, and a
    program of it has a session. Raises InputError, which names the operator, if one reads other rows in any other way
    than as causal attention within sequences."""
    return rewritten_outputs(model)


def rewritten_outputs(model: Operator, programs: bool = False) -> dict[str, Operator]:
    """Return the outputs of `cached_model`; `programs`: what `cached` can do for programs alone is left as it is:
    attention to a window of rows is treated as attention to all, shifts and scans stay."""
    recalling = Recalling(programs)
    term = recalling.rewritten(model, I)
    if not (recalling.outputs or recalling.carries):
        raise InputError("cached: no operator of this model is attention: there is nothing to cache")
    return {OUTPUT: term, **recalling.outputs}


def check_sessions(model: Operator) -> None:
    """Raise InputError, which names the operator, for a model that no session can compute. A session of a program knows
    the distances of rows of its caches, and so windows, and the states of sequences, though no term expresses them."""
    near = [node for node in model.walk() if node.kind.name == "by_distance"]
    rewritten_outputs(substitute(model, dict.fromkeys(near, const(0.0))), programs=True)


class Recalling:
    """Rewrites a model, factor by factor, and collects the caches on the way."""

    def __init__(self, programs: bool = False) -> None:
        self.programs, self.carries = programs, False
        self.outputs: dict[str, Operator] = {}
        self.appended: dict[tuple[Operator, Operator], Operator] = {}

    def rewritten(self, term: Operator, before: Operator) -> Operator:
        """Return `term` after the term `before`, over caches."""
        match term.kind.name, term.args:
            case "compose", _:
                result: Operator | None = None
                for factor in factors(term):
                    cached_factor = self.rewritten(factor, before if result is None else before @ result)
                    result = cached_factor if result is None else result @ cached_factor
                assert result is not None
                return result
            case "product", (scores, values, over, where) if over is softmax and where.within and looks_back(where):
                if where.reach != parse(CAUSAL).reach and not self.programs:
                    raise InputError(apart(where.name))
                return self.attention(scores, values, before)
            case "product", (_, ones, over, where) if over is logsumexp and ones.constant and looks_back(where):
                if not self.programs:
                    raise InputError(f"cached: {brief(term)}: no term expresses masses of caches: {SEARCHED_FIRST}")
                return term  # laws make it a part of attention
            case "product", (scores, _, over, where) if self.programs and over is sum and of_features(scores, where):
                self.carries = True  # laws make it linear attention
            case "product", (*_, where) if where is not everyone:
                raise InputError(f"{brief(term)}: {ELSEWHERE}")
            case (("shift" | "delta_rule" | "gated_delta_rule"), _) | (
                ("scan" | "linear_attention" | "gated_linear_attention"),
                (*_, Pattern(whole=False)),
            ):
                if not self.programs:
                    raise InputError(f"cached: {brief(term)}: no term expresses states of sequences: {SEARCHED_FIRST}")
                self.carries = True
            case name, _ if name in KINDS_IN_ORDER:
                raise InputError(f"{brief(term)}: {ELSEWHERE}")
            case "related" | "pick", (relation,) if relation != GIVEN["last"] or term.kind.name == "related":
                raise InputError(f"{brief(term)}: {ELSEWHERE}")
        if term.kind.matrix or not term.children:
            return term
        result = term.kind(*(self.rewritten(child, before) for child in term.children), *term.attributes)
        return result

    def attention(self, scores: Operator, values: Operator, before: Operator) -> Operator:
        """Return attention over caches: from the queries of the new rows to all keys and values that their sequences
        hold."""
        inner = next(
            (
                node
                for node in scores.walk()
                if node.kind.name == "product" and node.args[1].kind.name == "turn" and node.args[2:] == (sum, everyone)
            ),
            None,
        )
        if inner is None:
            raise InputError(f"{brief(scores)}: {ELSEWHERE}: its scores are no product of queries and keys")
        if (near := next((node for node in scores.walk() if node.kind.name == "by_distance"), None)) is not None:
            raise InputError(apart(brief(near)))
        queries, keys = inner.children[0], inner.children[1].children[0]
        over = product(self.rewritten(queries, before), turn(self.cached(keys, before)))
        scored = replaced(scores, inner, over)
        attended: Operator = product(scored, self.cached(values, before), over=softmax, where=among(HELD))
        return attended

    def cached(self, value: Operator, before: Operator) -> Operator:
        """Return the keys or values of all rows that sequences hold, with the heads that they have themselves: copies
        for groups of queries come after the cache."""
        if value.kind.name == "compose" and value.children[1].kind.name == "repeat":
            return self.cached(value.children[0], before) @ value.children[1]
        if (value, before) not in self.appended:
            heads, _, columns = value.out
            name = f"cache {len(self.appended)}"
            new = product(given(SLOTS), self.rewritten(value, before))
            self.appended[value, before] = cache = given(name, columns, C, 1 if heads is H else heads) + new
            self.outputs[name] = before @ cache
        return self.appended[value, before]


def of_features(scores: Operator, where: Pattern) -> bool:
    """True if scores are products of queries and keys alone, each seen up to its row."""
    match scores.kind.name, scores.args:
        case "product", (_, keys, over, pairs):
            return where.prefix and not where.whole and keys.kind.name == "turn" and (over, pairs) == (sum, everyone)
    return False


def apart(what: str) -> str:
    """Return the error text for an operator that needs the distances of rows."""
    return f"cached: {what}: no term expresses distances between rows of caches: {SEARCHED_FIRST}"


def replaced(term: Operator, old: Operator, new: Operator) -> Operator:
    """Return a term with one of its nodes replaced."""
    if term is old:
        return new
    if term.kind.matrix or old not in {*term.walk()}:
        return term
    result: Operator = term.kind(*(replaced(child, old, new) for child in term.children), *term.attributes)
    return result
