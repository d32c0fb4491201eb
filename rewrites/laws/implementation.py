"""Implementation laws: which kernel computes which term. The left side is the kernel's meaning, read by the float64
oracle too; the right side is a kernel of the runtime with operands named as the variables are."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from inspect import signature
from operator import add
from typing import Any

from opmatrix.monoids import softmax
from opmatrix.operators import I, gelu, heads, layernorm, product, total, turn
from opmatrix.patterns import sequence
from opmatrix.term import Operator
from rewrites import kinds
from rewrites.flat import flat
from rewrites.law import (
    IMPLEMENTATION,
    Sort,
    constant,
    count,
    h,
    k,
    matrix,
    n,
    p,
    q,
    scalar,
    scores,
    stand_in,
    value,
)

selection = Sort("value", ("given",))                       # a one-hot value, by a field of the batch
joined = Sort("value", ("act", "halves"))                   # what a joined product gives


@dataclass(frozen=True)
class Implementation:
    """`kernel` computes `body`. `single`: one operator alone, which an import without fusion runs."""

    name: str
    kernel: str
    body: Callable[..., Operator]
    variables: dict[str, Sort]
    attributes: dict[str, Any] = field(default_factory=dict)
    single: bool = False
    source: str = ""
    kind: str = IMPLEMENTATION

    def over(self, operands: dict[str, Any]) -> Operator:
        """What the kernel computes, over these operands."""
        return self.body(**operands)

    @cached_property
    def pattern(self) -> Operator:
        """The flat term over symbols, one for each variable."""
        return flat(self.over({name: stand_in(name, sort) for name, sort in self.variables.items()}), I)

    def row(self) -> tuple[str, ...]:
        """Name, kind, statement, guard, source: the row of `opmatrix laws`."""
        options = "".join(f", {key}={value!r}" for key, value in self.attributes.items())
        statement = f"{self.kernel}({', '.join(self.variables)}{options}) = {self.pattern}"
        return self.name, self.kind, statement, "", self.source


# Products: of a plain value, of a plain value into heads, of heads that are joined again.
def linear(x, weight): return x @ weight
def linear_to_heads(x, weight): return x @ weight
def linear_from_heads(x, weight): return (x @ weight) @ total
def itself(x): return x


# What may follow in the same pass over a row.
def plain(y): return y
def bias(y, bias): return y + bias
def activate(y): return y @ gelu
def bias_gelu(y, bias): return (y + bias) @ gelu
def residual(y, residual): return y + residual
def bias_residual(y, bias, residual): return (y + residual) + bias
def bias_then_residual(y, bias, residual): return (y + bias) + residual
def norm(y, eps): return y @ layernorm(eps)
def bias_norm(y, bias, eps): return (y + bias) @ layernorm(eps)
def residual_norm(y, residual, eps): return (y + residual) @ layernorm(eps)
def bias_residual_norm(y, bias, residual, eps): return ((y + residual) + bias) @ layernorm(eps)
def bias_then_residual_norm(y, bias, residual, eps): return ((y + bias) + residual) @ layernorm(eps)


# And after a norm, or alone.
def gained(y, gain): return y @ (I * gain)
def affine(y, gain, shift): return y @ (I * gain) + shift


FORMS = {linear: dict(x=value[n], weight=matrix[n, p]), linear_to_heads: dict(x=value[n], weight=matrix[h, n, p]),
         linear_from_heads: dict(x=value[h, q], weight=matrix[h, q, p]), itself: dict(x=value[p])}
PLAIN = plain, bias, activate, bias_gelu, residual, bias_residual, bias_then_residual
NORMS = norm, bias_norm, residual_norm, bias_residual_norm, bias_then_residual_norm
AFTER = gained, affine
OPERANDS = dict(bias=constant[p], residual=value[p], eps=scalar, gain=constant[p], shift=constant[p])
SINGLE = {"linear", "linear_to_heads", "linear_from_heads", "bias", "activate", "residual", "norm", "norm_affine",
          "gained", "affine"}


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
    epilogues = [(e,) for e in (*PLAIN, *NORMS, *AFTER)] + [(e, a) for e in NORMS for a in AFTER]
    for form, variables in FORMS.items():
        for stages in epilogues:
            if (form, stages) == (itself, (plain,)) or (form is linear_to_heads and stages not in ((plain,), (bias,))):
                continue
            wanted = [name for stage in stages for name in signature(stage).parameters if name != "y"]
            shapes = OPERANDS | ({"bias": constant[h, p]} if form is linear_to_heads else {})
            name = "_".join(s.__name__ for s in (form, *stages) if s not in (plain, itself))
            yield Implementation(name, "pointwise" if form is itself else "linear", chain(form, *stages),
                                 variables | {name: shapes[name] for name in wanted},
                                 {"activation": "gelu"} if {activate, bias_gelu} & set(stages) else {}, name in SINGLE)


def embeddings() -> Iterator[Implementation]:
    """The sum of one row of each table, with or without a norm."""
    for sizes in ((n,), (n, q), (n, q, k)):
        fields = {f"field{i}": selection[size] for i, size in enumerate(sizes)}
        tables = {f"table{i}": matrix[size, p] for i, size in enumerate(sizes)}

        def rows(count=len(sizes), **o: Any) -> Any:
            return reduce(add, [o[f"field{i}"] @ o[f"table{i}"] for i in range(count)])
        for stages in ((plain,), (norm,), (norm, gained), (norm, affine)):
            wanted = [name for stage in stages for name in signature(stage).parameters if name != "y"]
            name = "_".join([f"embed{len(sizes)}", *(s.__name__ for s in stages if s is not plain)])
            yield Implementation(name, "embed", after(rows, (*fields, *tables), *stages),
                                 fields | tables | {name: OPERANDS[name] for name in wanted}, single=name == "embed1")


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
def weigh(s, v): return product(s, v, over=softmax, where=sequence)
def attention(q, k, v): return weigh(score(q, k), v)
def attention_scaled(q, k, v, scale): return weigh(score_scaled(q, k, scale), v)
def headwise(x, weight): return x @ weight
def to_heads(x, heads): return x @ split(heads)
def from_heads(x, heads): return x @ split(heads).T
def first_columns(x, key): return kinds.left(x, key)
def last_columns(x, key): return kinds.right(x, key)


split = heads
QUERY, VALUES = value[h, n], value[h, p]
SCALED, HALVES = dict(q=QUERY, k=QUERY, scale=scalar), dict(x=joined[h, p + q], key=matrix[h, n, p])
FLASH = "online softmax over tiles of keys (Milakov and Gimelshein 2018; Dao et al. 2022)"
SQUARE, EACH = "one product for each sentence and head", "one product for each head"
PASS = "a pass over the scores, then one product for each sentence and head"
OTHERS = (
    (attention, "attention", dict(q=QUERY, k=QUERY, v=VALUES), False, FLASH),
    (attention_scaled, "attention", SCALED | dict(v=VALUES), False, FLASH),
    (score, "scores", dict(q=QUERY, k=QUERY), True, SQUARE),
    (score_scaled, "scores", SCALED, True, SQUARE),
    (weigh, "weigh", dict(s=scores[h], v=VALUES), True, PASS),
    (headwise, "headwise", dict(x=value[h, q], weight=matrix[h, q, p]), False, EACH),
    (to_heads, "view", dict(x=value[h * p], heads=count), True, "no copy"),
    (from_heads, "view", dict(x=value[h, p], heads=count), True, "no copy"),
    (first_columns, "columns", HALVES, True, "no copy"),
    (last_columns, "columns", HALVES, True, "no copy"))
IMPLEMENTATIONS = (*passes(), *embeddings(), *(
    Implementation(body.__name__, kernel, body, variables, single=single, source=source)
    for body, kernel, variables, single, source in OTHERS))
