"""Implementation laws: the kernels that compute a term. The left side is the kernel's meaning, which the float64 oracle
reads too; the right side is a kernel of the runtime with operands named as the variables are."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import product as product_of
from typing import TYPE_CHECKING, Any, NamedTuple

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import SLOTS, Relation
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import mean, softmax
from opmatrix.algebra.operators import (
    I,
    const,
    delta_rule,
    gated_delta_rule,
    gated_linear_attention,
    given,
    heads,
    keep_top,
    linear_attention,
    ones,
    pick,
    product,
    reciprocal,
    row,
    share,
    sigmoid,
    symbol,
    tanh,
    total,
    turn,
    unit_length,
)
from opmatrix.algebra.operators import repeat as repeated
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Operator
from opmatrix.runtime.interpreted import write_term
from rewrites.laws import kinds
from rewrites.laws.epilogues import HEADS, chain_stages, epilogues
from rewrites.laws.kernel_law import Implementation, declared
from rewrites.laws.law import (
    Sort,
    constant,
    count,
    distances,
    entrywise,
    few,
    h,
    k,
    matrix,
    n,
    operator,
    p,
    q,
    relation,
    relative_matrix,
    rotation,
    scalar,
    scores,
    value,
    where,
)

if TYPE_CHECKING:
    from rewrites.lowering.calls import CallVariables


def score(
    q: Operator, k: Operator, scale: Operator | None = None, heads: int | None = None, bias: Operator | None = None
) -> Operator:
    logits: Operator = product(q, turn(k if heads is None else k @ repeated(heads)))
    if scale is not None:
        logits = logits @ (I * scale)
    return logits if bias is None else logits + bias


def weigh(x: Operator, v: Operator, where: Pattern, heads: int | None = None) -> Operator:
    return product(x, v if heads is None else v @ repeated(heads), over=softmax, where=where)


def attention(
    q: Operator,
    k: Operator,
    v: Operator,
    where: Pattern,
    scale: Operator | None = None,
    heads: int | None = None,
    bias: Operator | None = None,
) -> Operator:
    return weigh(score(q, k, scale, heads, bias), v, where, heads)


def capped_attention(
    q: Operator,
    k: Operator,
    v: Operator,
    where: Pattern,
    cap: Operator,
    scale: Operator | None = None,
    heads: int | None = None,
) -> Operator:
    return weigh(score(q, k, scale, heads) @ tanh @ (I * cap), v, where, heads)


def sunk_attention(
    q: Operator,
    k: Operator,
    v: Operator,
    where: Pattern,
    margin: Operator,
    scale: Operator | None = None,
    heads: int | None = None,
) -> Operator:
    scored = score(q, k, scale, heads)
    mass = product(scored, const(1.0), over=monoids.logsumexp, where=where)
    return weigh(scored, v, where, heads) * ((mass + margin) @ sigmoid)


def relative_score(q: Operator, k: Operator, ahead: Operator | None = None, behind: Operator | None = None) -> Operator:
    logits: Operator = product(q, turn(k))
    if ahead is not None:
        logits = logits + q @ ahead
    return logits if behind is None else logits + turn(k @ behind)


def headwise(x: Operator, weight: Operator) -> Operator:
    return x @ weight


def linear_to_heads(x: Operator, weight: Operator) -> Operator:
    return x @ weight


def linear_to_heads_bias(x: Operator, weight: Operator, bias: Operator) -> Operator:
    return x @ weight + bias


def to_heads(x: Operator, heads: int) -> Operator:
    return x @ split(heads)


def from_heads(x: Operator, heads: int) -> Operator:
    return x @ split(heads).T


def repeat(x: Operator, heads: int) -> Operator:
    return x @ repeated(heads)


def beside_columns(x: Operator, y: Operator) -> Operator:
    joined: Operator = row(x, y)
    return joined


def turned(x: Operator, angles: Operator) -> Operator:
    return x @ angles


def first_columns(x: Operator, key: Operator) -> Operator:
    return kinds.left(x, key)


def last_columns(x: Operator, key: Operator, own: Operator) -> Operator:
    return kinds.behind(x, key, own)


def mixed(x: Operator, gate: Operator, up: Operator, activation: Operator, down: Operator) -> Operator:
    return ((x @ up @ activation) @ down * gate) @ total


def mixed_gated(
    x: Operator, gate: Operator, up: Operator, activation: Operator, beside: Operator, down: Operator
) -> Operator:
    return (((x @ up @ activation) * (x @ beside)) @ down * gate) @ total


def activated_factor(x: Operator, beside: Operator, beside_bias: Operator, beside_activation: Operator) -> Operator:
    return (x @ beside + beside_bias) @ beside_activation


def mixed_gated_biased(
    x: Operator, gate: Operator, up: Operator, bias: Operator, activation: Operator, down: Operator, **beside: Operator
) -> Operator:
    return ((((x @ up + bias) @ activation) * activated_factor(x, **beside)) @ down * gate) @ total


def mixed_biased(
    x: Operator, gate: Operator, up: Operator, bias: Operator, activation: Operator, down: Operator
) -> Operator:
    return (((x @ up + bias) @ activation) @ down * gate) @ total


def mixed_residual(residual: Operator, **others: Operator) -> Operator:
    return residual + mixed(**others)


def mixed_biased_residual(residual: Operator, **others: Operator) -> Operator:
    return residual + mixed_biased(**others)


def mixed_gated_biased_residual(residual: Operator, **others: Operator) -> Operator:
    return residual + mixed_gated_biased(**others)


def mixed_gated_residual(residual: Operator, **others: Operator) -> Operator:
    return residual + mixed_gated(**others)


def weighed(x: Operator, by: Operator) -> Operator:
    return x * by


def weighed_residual(x: Operator, by: Operator, residual: Operator) -> Operator:
    return residual + x * by


def weighed_heads(x: Operator, by: Operator) -> Operator:
    return (x * by) @ total


def weighed_heads_residual(x: Operator, by: Operator, residual: Operator) -> Operator:
    return residual + weighed_heads(x, by)


def activated_heads(x: Operator, activation: Operator) -> Operator:
    return x @ activation


def biased_heads(x: Operator, bias: Operator) -> Operator:
    return x + bias


def gated_heads(x: Operator, activation: Operator, times: Operator) -> Operator:
    return (x @ activation) * times


def biased_activated_heads(x: Operator, bias: Operator, activation: Operator) -> Operator:
    return (x + bias) @ activation


def shares(x: Operator) -> Operator:
    return x @ share


def kept(x: Operator, by: Operator, few: int) -> Operator:
    return keep_top(x, by, few)


def best_shares(x: Operator, few: int) -> Operator:
    return keep_top(x @ share, x, few)


def summing_to_one(x: Operator) -> Operator:
    return x * (x @ ones @ reciprocal)


def shares_of_best(x: Operator, few: int) -> Operator:
    return summing_to_one(best_shares(x, few))


split = heads
tokens = replace(value, space="T")
caches = replace(value, space="C")
shared = replace(tokens, spread=True)  # one head may serve all heads of another operand
single, single_query = (replace(sort, space="S") for sort in (value, shared))  # one row of each sequence
QUERY, KEYS = dict(q=shared[h, n], k=shared[h, n]), dict(q=shared[h, n], k=tokens[k, n], heads=count)
# patterns that kernels know
SEEN, HELD, RECALLED = (dict(where=where[flags]) for flags in (("within", "reach", "stated"), "attends", "cached"))
WEIGHED, GROUPED = dict(x=scores[h], v=shared[h, p], **SEEN), dict(x=scores[h], v=tokens[k, p], heads=count, **SEEN)
PLAIN_PRODUCT = dict(x=value[n], weight=matrix[h, n, p])  # a product of a plain value into heads
SCALE, FIRST_COLUMNS = dict(scale=scalar), dict(x=value[p + q], key=operator[n, p])
UP_TO_EACH = "sequence & causal"  # the rows that the delta rule passes
NUMBER = replace(value, facts=("act", "column"))  # one column for each head
IN_HEADS, ACTIVATED, BIAS = dict(x=value[h, p]), dict(activation=entrywise[p]), dict(bias=constant[h, p])
EXPERTS = dict(x=value[n], gate=NUMBER[h, 1], up=matrix[h, n, p], activation=entrywise[p], down=matrix[h, p, q])
BIASED = EXPERTS | BIAS
GATED, RESIDUAL = EXPERTS | dict(beside=matrix[h, n, p]), dict(residual=value[q])
BIASED_FACTOR = BIAS | dict(beside_bias=constant[h, p], beside_activation=entrywise[p])
KEPT_BY_GATE: dict[str, Any] = {"most": lambda at: at.kept("gate")}
ROWS_TOGETHER = "rows of one expert together (Shazeer et al. 2017; Gale et al. 2022)"
FLASH = "online softmax over tiles of keys (Milakov and Gimelshein 2018; Dao et al. 2022)"
ONCE, BESIDE = "one pass", "columns of heads side by side, in one pass"
SQUARE, EACH = "one product for each sentence and head", "one product for each head"
PASS = "a pass over the scores, then one product for each sentence and head"
GQA = "groups of queries share keys and values (Ainslie et al. 2023)"
OTHERS: tuple[tuple[Any, ...], ...] = (
    (linear_to_heads, "linear", PLAIN_PRODUCT, True, ""),
    (linear_to_heads_bias, "linear", PLAIN_PRODUCT | dict(bias=constant[h, p]), False, ""),
    (headwise, "headwise", dict(x=value[h, q], weight=matrix[h, q, p]), False, EACH),
    (mixed, "experts", EXPERTS, True, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_biased, "experts", BIASED, True, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_gated, "experts", GATED, True, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_gated_biased, "experts", GATED | BIASED_FACTOR, True, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_residual, "experts", EXPERTS | RESIDUAL, False, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_biased_residual, "experts", BIASED | RESIDUAL, False, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_gated_residual, "experts", GATED | RESIDUAL, False, ROWS_TOGETHER, KEPT_BY_GATE),
    (mixed_gated_biased_residual, "experts", GATED | BIASED_FACTOR | RESIDUAL, False, ROWS_TOGETHER, KEPT_BY_GATE),
    (weighed, "blend_heads", dict(x=value[p], by=NUMBER[1]), True, ONCE),
    (weighed_residual, "blend_heads", dict(x=value[p], by=NUMBER[1], residual=value[p]), False, ONCE),
    (weighed_heads, "blend_heads", IN_HEADS | dict(by=NUMBER[h, 1]), False, ONCE),
    (weighed_heads_residual, "blend_heads", IN_HEADS | dict(by=NUMBER[h, 1], residual=value[p]), False, ONCE),
    (biased_heads, "pointwise", IN_HEADS | BIAS, True, BESIDE),
    (activated_heads, "pointwise", IN_HEADS | ACTIVATED, True, BESIDE),
    (biased_activated_heads, "pointwise", IN_HEADS | BIAS | ACTIVATED, False, BESIDE),
    (gated_heads, "pointwise", IN_HEADS | ACTIVATED | dict(times=value[h, p]), False, BESIDE),
    (repeat, "repeat", dict(x=value[k, p], heads=count), True, "a copy of each head for its group"),
    (beside_columns, "beside_columns", dict(x=value[h, p], y=value[h, q]), True, "a copy of both"),
    (
        turned,
        "rotate",
        dict(x=tokens[h, n], angles=rotation[n, n]),
        True,
        "pairs of columns, turned by tables of the position",
    ),
    (to_heads, (), dict(x=value[h * p], heads=count), True, "no copy"),
    (from_heads, (), dict(x=value[h, p], heads=count), True, "no copy"),
    (
        first_columns,
        "columns",
        FIRST_COLUMNS,
        True,
        "no copy",
        {"lo": lambda at: 0, "hi": lambda at: at.columns("key")},
    ),
    (
        last_columns,
        "columns",
        FIRST_COLUMNS | dict(own=operator[n, q]),
        True,
        "no copy",
        {"lo": lambda at: at.columns("key"), "hi": lambda at: at.columns("x")},
    ),
)


# Attention and its scores, with optional parts: one number that scales, heads in groups, a bias by distance.
class ScoreParts(NamedTuple):
    """The optional parts of scores that are present."""

    scaled: bool = False
    grouped: bool = False
    biased: bool = False
    capped: bool = False
    sunk: bool = False

    def called(self, name: str) -> str:
        """Return a name with the parts that are present, joined by underscores."""
        return "_".join((name, *(part for part, there in self._asdict().items() if there)))

    @property
    def variables(self) -> dict[str, Sort]:
        """The variables of scores."""
        near = dict(bias=distances[h]) if self.biased else {}
        near |= dict(cap=scalar) if self.capped else {}
        near |= dict(margin=constant[h, 1]) if self.sunk else {}
        return (KEYS if self.grouped else QUERY) | (SCALE if self.scaled else {}) | near

    @property
    def body(self) -> Callable[..., Operator]:
        """The function of the variables of attention."""
        if self.sunk:
            return sunk_attention
        return capped_attention if self.capped else attention

    @property
    def attended(self) -> dict[str, Sort]:
        """The variables of attention, without its pattern."""
        return self.variables | dict(v=tokens[k, p] if self.grouped else shared[h, p])


SCORE_PARTS = [ScoreParts(*reversed(flags)) for flags in product_of((False, True), repeat=3)]
PLAIN_SCORES = [parts for parts in SCORE_PARTS if not parts.biased]
ATTENTION_PARTS = [
    *SCORE_PARTS,
    *(parts._replace(capped=True) for parts in PLAIN_SCORES),
    *(parts._replace(sunk=True) for parts in PLAIN_SCORES),
]


def attentions() -> Iterator[Implementation]:
    """Yield the implementations of attention in one pass, and in three."""
    for parts in ATTENTION_PARTS:
        yield Implementation(
            parts.called("attention"),
            "attention",
            parts.body,
            parts.attended | HELD,
            {},
            parts.sunk,  # no other kernel computes a mass beside the scores
            GQA if parts.grouped else FLASH,
        )
    for parts in SCORE_PARTS:
        yield Implementation(
            parts.called("score"),
            "scores",
            score,
            parts.variables,
            {},
            not parts.grouped,
            GQA if parts.grouped else SQUARE,
        )
    for grouped in (False, True):
        yield Implementation(
            ScoreParts(grouped=grouped).called("weigh"),
            ("softmax", "values"),
            weigh,
            GROUPED if grouped else WEIGHED,
            {},
            not grouped,
            GQA if grouped else PASS,
        )


def relative_attentions() -> Iterator[Implementation]:
    """Yield the implementations of scores with products by distance, of queries, of keys, or of both."""
    for names in (("ahead",), ("behind",), ("ahead", "behind")):
        yield Implementation(
            "_".join(("relative_score", *names)),
            "relative_scores",
            relative_score,
            QUERY | dict.fromkeys(names, relative_matrix[h, n]),
            {},
            True,
            "one product for each tile of distances (He et al. 2021, algorithm 1)",
        )


# Operators that join rows: of sequences, alone and scaled to unit length; of other relations. And attention of one
# query a sequence.
POOLS = dict(
    first=lambda x: x @ pick("first"),
    last=lambda x: x @ pick("last"),
    sum=lambda x: product(given("members"), x),
    mean=lambda x: product(given("members"), x, over=mean),
    max=lambda x: product(given("members"), x, over=monoids.max),
    by_root=lambda x: product(given("members_by_root"), x),
    by_place=lambda x: product(given("members_by_place"), x),
)


def append(cache: Operator, x: Operator) -> Operator:
    return cache + product(given(SLOTS), x)


def unit(x: Operator, unit: Operator) -> Operator:
    return x @ unit_length(unit)


def pool_unit(body: Callable[[Operator], Operator], x: Operator, unit: Operator) -> Operator:
    return body(x) @ unit_length(unit)


def link(x: Operator, relation: Relation, over: type[Monoid] = monoids.sum) -> Operator:
    return product(given(relation), x, over=over)


def pick_related(x: Operator, relation: Relation) -> Operator:
    return x @ pick(relation)


def relations() -> Iterator[Implementation]:
    """Yield the implementations of pooling, of picked rows, and of products with relations."""
    for how, body in POOLS.items():
        yield Implementation(f"pool_{how}", "pool", body, dict(x=value[n]), {"how": how}, True, "sums in float64")
        yield Implementation(
            f"pool_{how}_unit", "pool", partial(pool_unit, body), dict(x=value[n], unit=scalar), {"how": how}
        )
    yield Implementation("unit", "unit", unit, dict(x=value[n], unit=scalar), {}, True)
    yield Implementation("pick", "pick", pick_related, dict(x=value[n], relation=relation["custom"]), {}, True)
    for over in (monoids.sum, mean, monoids.max):
        yield Implementation(
            f"link_{over.__name__}",
            "link",
            partial(link, over=over),
            dict(x=value[n], relation=relation["custom"]),
            {"over": over.__name__},
            True,
            "entries alone (Hamilton et al. 2017, GraphSAGE)",
        )
    yield Implementation(
        "turned_once",
        "rotate",
        turned,
        dict(x=single[h, n], angles=rotation[n, n]),
        {"rows": lambda at: at.picked("x")},
        True,
    )
    for parts in ATTENTION_PARTS:
        once = dict(bias=replace(distances, facts=(), space="S")[h]) if parts.biased else {}
        name, variables = parts.called("attention"), parts.attended
        yield Implementation(
            f"{name}_once",
            "attend_once",
            parts.body,
            variables | dict(q=single_query[h, n], **SEEN) | once,
            {"query": lambda at: at.picked("q")},
        )
        if parts.biased or parts.sunk:
            continue  # no term has the distances of rows of caches, nor the mass of their scores
        of_caches = {name: replace(sort, space="C") if name in "kv" else sort for name, sort in variables.items()}
        yield Implementation(
            f"{name}_cached",
            "attention_cached",
            parts.body,
            of_caches | RECALLED,
            {},
            True,
            "over pages of keys and values (Kwon et al. 2023)",
        )
    yield Implementation("append", "append", append, dict(cache=caches[h, n], x=tokens[h, n]), {}, True, "in place")


def retained(q: Operator, k: Operator, v: Operator, rates: Operator, where: Pattern) -> Operator:
    return gated_linear_attention(q, k, v, rates, where)


def scored_pairs(x0: Operator, x1: Operator, x2: Operator, where: Pattern) -> Operator:
    scored: Operator = product(product(x0, turn(x1)), x2, monoids.sum, where)
    return scored


def write_pairs(at: "CallVariables") -> str:
    """Return the text of `scored_pairs` over the first values of a step, under the pattern of a call."""
    x0, x1, x2 = (symbol(f"x{number}", None, 1) for number in range(3))
    return write_term(scored_pairs(x0, x1, x2, at.pattern("where")), {x0: 0, x1: 1, x2: 2})[0]


def recurrences() -> Iterator[Implementation]:
    """Yield the implementations of linear attention: without decays, with one of a head, and with one of each
    column; and of its products in the other order, a score for each pair of rows, which are priced beside them."""
    prefixes = dict(where=where["prefix", "stated"])
    parts = dict(q=shared[h, n], k=shared[h, n], v=shared[h, p]) | prefixes
    source = "a state for each head, in the order of rows (Katharopoulos et al. 2020)"
    scored = dict(x0=shared[h, n], x1=shared[h, n], x2=shared[h, p]) | prefixes
    yield Implementation(
        "scored_pairs", "fold_term", scored_pairs, scored, {"term": write_pairs}, True, "a score for each pair of rows"
    )
    yield Implementation("linear_attention", "recurrent", linear_attention, parts, {}, True, source)
    for name, sort in (("of_heads", replace(shared, facts=NUMBER.facts)[h, 1]), ("of_columns", shared[h, n])):
        yield Implementation(
            f"decays_{name}", "recurrent", gated_linear_attention, parts | dict(decays=sort), {}, True, source
        )
    one = dict(betas=replace(shared, facts=NUMBER.facts)[h, 1])
    passed = {name: sort for name, sort in parts.items() if name != "where"} | one
    source = "a state for each head, corrected row by row (Schlag et al. 2021; Yang et al. 2025)"
    yield Implementation("delta_rule", "recurrent", delta_rule, passed, {"where": UP_TO_EACH}, True, source)
    for name, sort in (("of_heads", one["betas"]), ("of_columns", shared[h, n])):
        decayed = passed | dict(decays=sort)
        yield Implementation(
            f"delta_rule_{name}", "recurrent", gated_delta_rule, decayed, {"where": UP_TO_EACH}, True, source
        )
    one_head = dict(q=value[n], k=value[n], v=value[p], rates=constant[n]) | prefixes
    for name, variables in (("rates", one_head), ("rates_of_heads", parts | dict(rates=constant[h, n]))):
        yield Implementation(name, "recurrent", retained, variables, {}, True, source)


def gates() -> Iterator[Implementation]:
    """Yield the implementations of routers' functions of scores, in one head and in several."""
    for behind, sort in (("", value[p]), ("_of_heads", value[h, p])):
        top: dict[str, Any] = {"k": lambda at: at.number("few")}
        ways: tuple[tuple[Any, ...], ...] = (
            (shares, {"shares": 1}, dict(x=sort), True),
            (kept, top, dict(x=sort, by=sort, few=count[few]), True),
            (best_shares, top | {"shares": 1}, dict(x=sort, few=count[few]), False),
            (summing_to_one, {"unit": 1}, dict(x=sort), True),
            (shares_of_best, top | {"shares": 1, "unit": 1}, dict(x=sort, few=count[few]), False),
        )
        for body, attributes, variables, alone in ways:
            yield Implementation(f"{body.__name__}{behind}", "gate", body, variables, attributes, alone, "one pass")


IMPLEMENTATIONS = [
    *attentions(),
    *relative_attentions(),
    *(
        Implementation(body.__name__, kernels, body, variables, options[0] if options else {}, single, source)
        for body, kernels, variables, single, source, *options in OTHERS
    ),
    *relations(),
    *recurrences(),
    *gates(),
]


def implementations() -> Iterator[Implementation]:
    """Yield every implementation: those of one pattern, and all chains of stages."""
    yield from IMPLEMENTATIONS
    yield from (chain for stages in epilogues() for head in HEADS if (chain := chain_stages(head, *stages)))


def implements(
    *kernels: str, source: str = "", **variables: Sort
) -> Callable[[Callable[..., Operator]], Implementation]:
    """Declare, by a function of its variables, the term that kernels compute: searches offer them for it from then on.
    Raises ValueError for a name that is taken, TypeError for variables that differ from the function's, and for a
    scalar that is added."""

    def declare(body: Callable[..., Operator]) -> Implementation:
        """Declare the implementation of a function's term. Raises ValueError or TypeError as `implements` does."""
        name = body.__name__
        if any(known.name == name for known in implementations()):
            raise ValueError(f"implementation {name}: there is one already")
        if [*signature(body).parameters] != [*variables]:
            raise TypeError(
                f"implementation {name}{signature(body)}: declare each of its variables, such as x=value[n]"
            )
        IMPLEMENTATIONS.append(
            implementation := declared(Implementation(name, kernels, body, variables, {}, True, source))
        )
        return implementation

    return declare
