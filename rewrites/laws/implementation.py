"""Implementation laws: which kernel computes which term. The left side is the kernel's meaning, read by the float64
oracle too; the right side is a kernel of the runtime with operands named as the variables are."""
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from inspect import signature
from operator import add
from typing import Any

from opmatrix import monoids
from opmatrix.data import Data
from opmatrix.monoids import mean, softmax
from opmatrix.operators import I, given, heads, layernorm, pick, product, rmsnorm, total, turn, unit_length
from opmatrix.operators import repeat as repeated
from opmatrix.relations import SLOTS
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.operands import Stack
from opmatrix.term import Operator
from rewrites.compiler import kinds
from rewrites.compiler.flat import flat
from rewrites.law import (
    IMPLEMENTATION,
    Sort,
    constant,
    count,
    entrywise,
    h,
    k,
    matrix,
    n,
    operator,
    p,
    q,
    relation,
    rotation,
    scalar,
    scores,
    stand_in,
    value,
    where,
)

selection = Sort("value", ("given",))                       # a one-hot value, by a field of the batch


@dataclass(frozen=True)
class Implementation:
    """`kernels`, one or several in turn, compute `body`; none where nothing runs, as heads are columns side by side.
    Each takes the variables that its signature names; what it still lacks the one before it gives. An attribute may be
    a function of what a call is about (rewrites/compiler/calls.py). `single`: one operator alone, which an import
    without fusion runs."""

    name: str
    kernels: str | tuple[str, ...]
    body: Callable[..., Operator]
    variables: dict[str, Sort]
    attributes: dict[str, Any] = field(default_factory=dict)
    single: bool = False
    source: str = ""
    kind: str = IMPLEMENTATION

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The kernels, in turn."""
        return (self.kernels,) if isinstance(self.kernels, str) else self.kernels

    def over(self, operands: dict[str, Any]) -> Operator:
        """What the kernel computes, over these operands."""
        return self.body(**operands)

    def data(self, values: Mapping[str, Any]) -> list[Data]:
        """Arrays that its kernel is given beside its variables, from a template's table."""
        return []

    @cached_property
    def pattern(self) -> Operator:
        """The flat term over symbols, one for each variable."""
        return flat(self.over({name: stand_in(name, sort) for name, sort in self.variables.items()}), I)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of nodes that a graph must have for the pattern to match anywhere."""
        return frozenset(node.kind.name for node in self.pattern.walk()) - {"symbol"}

    @cached_property
    def layout(self) -> str:
        """How the matrices of heads are wanted: as they are, one above the other, or side by side."""
        if any(each.annotation is Stack for kernel in self.named for each in KERNELS[kernel].operands.values()):
            return "stack"
        return "rows" if "x" in self.variables and len(self.variables["x"].sizes) == 2 else "columns"

    def row(self) -> tuple[str, ...]:
        """Name, kind, statement, guard, source: the row of `opmatrix laws`."""
        options = "".join(f", {key}={value!r}" for key, value in self.attributes.items() if not callable(value))
        statement = f"{', '.join(self.named) or 'view'}({', '.join(self.variables)}{options}) = {self.pattern}"
        return self.name, self.kind, statement, "", self.source


# Products: of a plain value, of a plain value into heads, of heads that are joined again.
def linear(x, weight): return x @ weight
def linear_to_heads(x, weight): return x @ weight
def linear_from_heads(x, weight): return (x @ weight) @ total
def itself(x): return x


# What may follow in the same pass over a row.
def plain(y): return y
def bias(y, bias): return y + bias
def activate(y, activation): return y @ activation
def bias_activate(y, bias, activation): return (y + bias) @ activation
def times(y, times): return y * times
def bias_times(y, bias, times): return (y + bias) * times
def activate_times(y, activation, times): return (y @ activation) * times
def bias_activate_times(y, bias, activation, times): return ((y + bias) @ activation) * times
def residual(y, residual): return y + residual
def bias_residual(y, bias, residual): return (y + residual) + bias
def bias_then_residual(y, bias, residual): return (y + bias) + residual


# Then a norm.
def norm(y, eps): return y @ layernorm(eps)
def rms(y, eps): return y @ rmsnorm(eps)


# And after a norm, or alone.
def gained(y, gain): return y @ (I * gain)
def affine(y, gain, shift): return y @ (I * gain) + shift


FORMS = {linear: dict(x=value[n], weight=matrix[n, p]), linear_to_heads: dict(x=value[n], weight=matrix[h, n, p]),
         linear_from_heads: dict(x=value[h, q], weight=matrix[h, q, p]), itself: dict(x=value[p])}
SUMS = plain, bias, residual, bias_residual, bias_then_residual
GATES = activate, bias_activate, times, bias_times, activate_times, bias_activate_times
NORMS = norm, rms
AFTER = gained, affine
OPERANDS = dict(bias=constant[p], times=value[p], residual=value[p], activation=entrywise[p], eps=scalar,
                gain=constant[p], shift=constant[p])
SINGLE = {(linear, plain), (linear_to_heads, plain), (linear_from_heads, plain), (itself, bias), (itself, activate),
          (itself, times),
          (itself, residual), (itself, gained), (itself, affine), (itself, plain, norm), (itself, plain, norm, affine),
          (itself, plain, rms), (itself, plain, rms, gained)}


def chain(*stages: Callable[..., Any]) -> Callable[..., Any]:
    """Stages one after another; each takes its own operands by name."""
    def body(**operands: Any) -> Any:
        y = None
        for stage in stages:
            wanted = {name: operands[name] for name in signature(stage).parameters if name in operands}
            y = stage(**wanted) if y is None else stage(y, **wanted)
        return y
    return body


def passes() -> Iterator[Implementation]:
    """Every product with every epilogue, and every epilogue as a pass of its own."""
    epilogues = [*((e,) for e in (*SUMS, *GATES, *AFTER)), *itertools.product(SUMS, NORMS),
                 *itertools.product(SUMS, NORMS, AFTER)]
    for form, variables in FORMS.items():
        for stages in epilogues:
            if (form, stages) == (itself, (plain,)) or (form is linear_to_heads and stages not in ((plain,), (bias,))):
                continue
            wanted = [name for stage in stages for name in signature(stage).parameters if name != "y"]
            shapes = OPERANDS | ({"bias": constant[h, p]} if form is linear_to_heads else {})
            name = "_".join(s.__name__ for s in (form, *stages) if s not in (plain, itself))
            yield Implementation(name, "pointwise" if form is itself else "linear", chain(form, *stages),
                                 variables | {name: shapes[name] for name in wanted},
                                 {"norm": "rms"} if rms in stages else {}, (form, *stages) in SINGLE)


def norms() -> Iterator[Implementation]:
    """Norms of heads, each by itself, and gains and shifts that they share."""
    for stages in (*((each,) for each in (*NORMS, *AFTER)), *itertools.product(NORMS, AFTER)):
        wanted = [name for stage in stages for name in signature(stage).parameters if name != "y"]
        yield Implementation("_".join(["heads", *(s.__name__ for s in stages)]), "pointwise_heads",
                             chain(itself, *stages),
                             dict(x=value[h, p]) | {name: OPERANDS[name] for name in wanted},
                             {"norm": "rms"} if rms in stages else {},
                             len(stages) == 1, "of single heads (Henry et al. 2020)")


def embeddings() -> Iterator[Implementation]:
    """The sum of one row of each table, with or without a norm."""
    for sizes in ((n,), (n, q), (n, q, k)):
        fields = {f"field{i}": selection[size] for i, size in enumerate(sizes)}
        tables = {f"table{i}": matrix[size, p] for i, size in enumerate(sizes)}

        def rows(count=len(sizes), **o: Any) -> Any:
            return reduce(add, [o[f"field{i}"] @ o[f"table{i}"] for i in range(count)])
        for stages in ((plain,), *itertools.product(NORMS), *itertools.product(NORMS, AFTER)):
            wanted = [name for stage in stages for name in signature(stage).parameters if name != "y"]
            name = "_".join([f"embed{len(sizes)}", *(s.__name__ for s in stages if s is not plain)])
            chosen = {"fields": lambda at, fields=(*fields,): ",".join(map(at.field, fields))}
            yield Implementation(name, "embed", after(rows, (*fields, *tables), *stages),
                                 fields | tables | {name: OPERANDS[name] for name in wanted},
                                 chosen | ({"norm": "rms"} if rms in stages else {}),
                                 (len(sizes), stages) == (1, (plain,)))


def after(first: Callable[..., Any], own: tuple[str, ...], *stages: Callable[..., Any]) -> Callable[..., Any]:
    """Stages behind a function of its own operands."""
    def body(**operands: Any) -> Any:
        y = first(**{name: operands[name] for name in own})
        for stage in stages:
            y = stage(y, **{name: operands[name] for name in signature(stage).parameters if name in operands})
        return y
    return body


def score(q, k): return product(q, turn(k))
def score_scaled(q, k, scale): return product(q, turn(k)) @ (I * scale)
def score_grouped(q, k, heads): return score(q, k @ repeated(heads))
def score_scaled_grouped(q, k, scale, heads): return score_scaled(q, k @ repeated(heads), scale)
def weigh(x, v, where): return product(x, v, over=softmax, where=where)
def weigh_grouped(x, v, where, heads): return weigh(x, v @ repeated(heads), where)
def attention(q, k, v, where): return weigh(score(q, k), v, where)
def attention_scaled(q, k, v, scale, where): return weigh(score_scaled(q, k, scale), v, where)
def attention_grouped(q, k, v, where, heads): return weigh_grouped(score_grouped(q, k, heads), v, where, heads)


def attention_scaled_grouped(q, k, v, scale, where, heads):
    return weigh_grouped(score_scaled_grouped(q, k, scale, heads), v, where, heads)


def headwise(x, weight): return x @ weight
def to_heads(x, heads): return x @ split(heads)
def from_heads(x, heads): return x @ split(heads).T
def repeat(x, heads): return x @ repeated(heads)
def turned(x, angles): return x @ angles
def first_columns(x, key): return kinds.left(x, key)
def last_columns(x, key, own): return kinds.behind(x, key, own)


split = heads
tokens = replace(value, space="T")
caches = replace(value, space="C")
shared = replace(tokens, spread=True)                       # one head of it may serve all of the others
single, single_query = (replace(each, space="S") for each in (value, shared))           # of each sequence
QUERY, KEYS = dict(q=shared[h, n], k=shared[h, n]), dict(q=shared[h, n], k=tokens[k, n], heads=count)
ATTENDED = attention, attention_scaled, attention_grouped, attention_scaled_grouped
# patterns that kernels know
SEEN, HELD, RECALLED = (dict(where=where[flags]) for flags in (("within", "reach"), "attends", "cached"))
WEIGHED, GROUPED = dict(x=scores[h], v=shared[h, p], **SEEN), dict(x=scores[h], v=tokens[k, p], heads=count, **SEEN)
SCALE, FIRST = dict(scale=scalar), dict(x=value[p + q], key=operator[n, p])
FLASH = "online softmax over tiles of keys (Milakov and Gimelshein 2018; Dao et al. 2022)"
SQUARE, EACH = "one product for each sentence and head", "one product for each head"
PASS = "a pass over the scores, then one product for each sentence and head"
GQA = "groups of queries share keys and values (Ainslie et al. 2023)"
OTHERS = (
    (attention, "attention", QUERY | dict(v=shared[h, p]) | HELD, False, FLASH),
    (attention_scaled, "attention", QUERY | dict(v=shared[h, p]) | SCALE | HELD, False, FLASH),
    (attention_grouped, "attention", KEYS | dict(v=tokens[k, p]) | HELD, False, GQA),
    (attention_scaled_grouped, "attention", KEYS | dict(v=tokens[k, p]) | SCALE | HELD, False, GQA),
    (score, "scores", QUERY, True, SQUARE),
    (score_scaled, "scores", QUERY | SCALE, True, SQUARE),
    (score_grouped, "scores", KEYS, False, GQA),
    (score_scaled_grouped, "scores", KEYS | SCALE, False, GQA),
    (weigh, ("softmax", "values"), WEIGHED, True, PASS),
    (weigh_grouped, ("softmax", "values"), GROUPED, False, GQA),
    (headwise, "headwise", dict(x=value[h, q], weight=matrix[h, q, p]), False, EACH),
    (repeat, "repeat", dict(x=value[k, p], heads=count), True, "a copy of each head for its group"),
    (turned, "rotate", dict(x=tokens[h, n], angles=rotation[n, n]), True, "pairs of columns, turned by tables of the "
                                                                          "position"),
    (to_heads, (), dict(x=value[h * p], heads=count), True, "no copy"),
    (from_heads, (), dict(x=value[h, p], heads=count), True, "no copy"),
    (first_columns, "columns", FIRST, True, "no copy", {"lo": lambda at: 0, "hi": lambda at: at.columns("key")}),
    (last_columns, "columns", FIRST | dict(own=operator[n, q]), True, "no copy",
     {"lo": lambda at: at.columns("key"), "hi": lambda at: at.columns("x")}))


# What joins rows: of sequences, alone and with length one; of other relations. And attention of one query a sequence.
POOLS = dict(first=lambda x: x @ pick("first"), last=lambda x: x @ pick("last"),
             sum=lambda x: product(given("members"), x),
             mean=lambda x: product(given("members"), x, over=mean),
             max=lambda x: product(given("members"), x, over=monoids.max),
             by_root=lambda x: product(given("members_by_root"), x),
             by_place=lambda x: product(given("members_by_place"), x))


def append(cache, x): return cache + product(given(SLOTS), x)
def unit(y, unit): return y @ unit_length(unit)
def link(x, relation, over=monoids.sum): return product(given(relation), x, over=over)
def pick_related(x, relation): return x @ pick(relation)


def relations() -> Iterator[Implementation]:
    """Pooling, rows that are picked, products with relations."""
    for how, body in POOLS.items():
        yield Implementation(f"pool_{how}", "pool", body, dict(x=value[n]), {"how": how}, True, "sums in float64")
        yield Implementation(f"pool_{how}_unit", "pool", after(body, ("x",), unit), dict(x=value[n], unit=scalar),
                             {"how": how})
    yield Implementation("unit", "unit", lambda x, unit: x @ unit_length(unit), dict(x=value[n], unit=scalar), {}, True)
    yield Implementation("pick", "pick", pick_related, dict(x=value[n], relation=relation["custom"]), {}, True)
    for over in (monoids.sum, mean, monoids.max):
        yield Implementation(f"link_{over.__name__}", "link", partial(link, over=over),
                             dict(x=value[n], relation=relation["custom"]),
                             {"over": over.__name__}, True, "entries alone (Hamilton et al. 2017, GraphSAGE)")
    yield Implementation("turned_once", "rotate", turned, dict(x=single[h, n], angles=rotation[n, n]),
                         {"rows": lambda at: at.picked("x")}, True)
    for body in ATTENDED:
        variables = next(found for law, _, found, *_ in OTHERS if law is body)
        yield Implementation(f"{body.__name__}_once", "attend_once", body,
                             variables | dict(q=single_query[h, n], **SEEN),
                             {"query": lambda at: at.picked("q")})
        of_caches = {name: replace(sort, space="C") if name in "kv" else sort for name, sort in variables.items()}
        yield Implementation(f"{body.__name__}_cached", "attention_cached", body, of_caches | RECALLED, {}, True,
                             "over pages of keys and values (Kwon et al. 2023)")
    yield Implementation("append", "append", append, dict(cache=caches[h, n], x=tokens[h, n]), {}, True, "in place")


IMPLEMENTATIONS = [*passes(), *norms(), *embeddings(), *(
    Implementation(body.__name__, kernels, body, variables, *attributes or ({},), single, source)
    for body, kernels, variables, single, source, *attributes in OTHERS), *relations()]
CALLS = {f"{each.name}()": each for each in IMPLEMENTATIONS}     # by the kinds of trees that stand for kernels


def implements(*kernels: str, source: str = "",
               **variables: Sort) -> Callable[[Callable[..., Operator]], Implementation]:
    """Declares, by a function of its variables, the term that kernels compute: searches offer them for it from then on.
    Raises ValueError for a name that is taken, TypeError for variables that are not the function's."""
    def declare(body: Callable[..., Operator]) -> Implementation:
        name = body.__name__
        if any(each.name == name for each in IMPLEMENTATIONS):
            raise ValueError(f"implementation {name}: there is one already")
        if [*signature(body).parameters] != [*variables]:
            raise TypeError(f"implementation {name}{signature(body)}: say what each of its variables is, such as "
                            "x=value[n]")
        CALLS[f"{name}()"] = made = Implementation(name, kernels, body, variables, {}, True, source)
        IMPLEMENTATIONS.append(made)
        return made
    return declare
