"""What the kernels of the runtime make of a call, in float64: the other side of an implementation law. Its own side is
the term that the kernel is said to compute."""

from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

import numpy as np
from law_mutants import FREE
from sympy import sympify

from formats.core.activation import COMPILED
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I, const, given, pick, product, symbol, turn
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, formula
from opmatrix.inference.session import some
from opmatrix.runtime.declarations.by_sequence import sentence_rows
from opmatrix.runtime.declarations.meanings import meaning, widen_value
from opmatrix.runtime.declarations.operands import C, Tables
from opmatrix.runtime.kernels import KERNELS
from rewrites.egraph.egraph import saturate
from rewrites.egraph.template import Template
from rewrites.laws.flat import flat
from rewrites.laws.instances import RELATED
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import INPUT, SAMPLE, Sort, apart, choices, drawn, k, n, p, q
from rewrites.laws.law import ROWS as LENGTHS
from rewrites.lowering.lower import KernelCall, Lowering, Method
from rewrites.search.emit import AS_ROWS, Buffer, Emitter
from rewrites.verify.numbers import Drawn, Float64s

VALUES = ("value", "scores", "column", "level", "varying")
FIELDS = {n: "tokens", q: "kinds"}  # one-hot values, by their size; any other is of positions


class Always(dict[Any, Method]):
    """Every weight is stored as it is."""

    def __missing__(self, use: Any) -> Method:
        return Method()


def computed(lowering: Lowering, cls: int, call: KernelCall, values: Drawn) -> Float64s:
    """What the steps emitted for a call give where its operands are those of their classes: a row a token, heads side
    by side; scores one sentence after another. Raises TypeError, ValueError or KeyError where the call cannot be
    emitted."""
    emitter, arrays = Emitter(), dict[str, Any]()
    for name, at in call.bound:
        if call.implementation.variables[name].name in ("value", "scores"):
            heads = int(lowering.matcher.heads[at])
            emitter.values[at] = Buffer({heads if cached(lowering, at) else AS_ROWS: f"given {at}"}, heads)
            arrays[f"given {at}"] = lazily(lowering, at, values)
    emitter._call(lowering, cls, call, Always())
    made = emitter.values[cls]
    result = (
        next(iter(made.names.values()))
        if cls in lowering.matcher.square or cached(lowering, cls)
        else emitter.rows(made)
    )
    arrays |= {name: widen_value(constant, {}) for name, constant in emitter.constants.items()}
    arrays |= unrounded(lowering, emitter)
    for step in emitter.steps:
        own = {operand: arrays[name] for operand, name in step.operands.items()}
        own = {operand: each() if callable(each) else each for operand, each in own.items()}
        arrays[step.output] = meaning(
            KERNELS[step.kernel], bind_arguments(step.kernel, own, step.attributes), values.batch
        )
    found = arrays[result]
    return np.asarray(found() if callable(found) else found)


def lazily(lowering: Lowering, cls: int, values: Drawn) -> Any:
    """The rows of a class, read when a kernel asks for them."""
    return lambda: expected(lowering, cls, values)


def expected(lowering: Lowering, cls: int, values: Drawn) -> Float64s:
    """The rows of a class as kernels hold them."""
    found = values.of_value(lowering.terms[cls])
    if cls in lowering.matcher.square:
        return np.concatenate([found[:, rows, rows].ravel() for rows in sentence_rows(values.batch)])
    rows = found.swapaxes(0, 1)
    return rows if cached(lowering, cls) else rows.reshape(len(rows), -1)


def cached(lowering: Lowering, cls: int) -> bool:
    """Whether a class is a cache, whose heads stay apart."""
    return str(lowering.terms[cls].out.rows) == str(C)


def unrounded(lowering: Lowering, emitter: Emitter) -> Mapping[str, Float64s]:
    """The emitted constants before they were rounded."""
    from rewrites.verify.programs import unrounded as constants

    return constants(SimpleNamespace(lowering=lambda part: lowering), emitter)  # type: ignore[arg-type]


def bind_arguments(kernel: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a kernel by name; many tables are one tuple, what is absent is at its default."""
    declared, rest = KERNELS[kernel], dict(operands)
    found: dict[str, Any] = {}
    for name, parameter in (*declared.operands.items(), *declared.attributes.items()):
        if parameter.annotation is Tables:
            found[name] = tuple(rest.pop(key) for key in sorted(rest) if key.startswith(name[:-1]))
        else:
            found[name] = rest.pop(name, attributes.get(name, parameter.default))
        if found[name] is Parameter.empty:
            raise ValueError(f"{declared}: {name} is missing")
    if rest:
        raise ValueError(f"{declared} has no {', '.join(rest)}")
    return found


# ---- an implementation alone


def operand(rng: np.random.Generator, name: str, sort: Sort) -> Any:
    """Something that the variable of an implementation may be, and is no more than its facts say."""
    if sort.name == "entrywise":  # a function that kernels have
        able = [each for each in choices(sort) if each.kind.name in COMPILED]
        return able[rng.integers(len(able))]
    if sort.space == str(C):
        heads, columns = (int(size.subs(SAMPLE)) for size in sort.sizes)
        return given(f"cache {name}", columns, C, 1 if sort.sizes[0] is k else heads)  # one head that serves all
    if sort.space == "S":
        return operand(rng, name, replace(sort, space="")) @ pick("last")
    if "given" in sort.facts:
        return given(FIELDS.get(sort.sizes[0], "positions"), int(sort.sizes[0].subs(SAMPLE)))
    if sort.name in ("constant", "scalar") and "constant" in sort.facts and "uniform" not in sort.facts:
        return drawn(rng, Sort("placed", (), sort.sizes or (1,)), name)
    if sort.name == "scalar" and "constant" in sort.facts:
        return const(np.abs(rng.normal(size=1 if "column" in sort.facts else SAMPLE[p])))
    if sort.name == "value" and sort.sizes[0] is k and len(sort.sizes) > 1:
        return drawn(rng, replace(sort, sizes=(sympify(1), *sort.sizes[1:])), name)  # one head that serves all
    if sort.name in FREE and "act" not in sort.facts:
        return drawn(rng, replace(sort, name=FREE[sort.name]), name)  # what is stored
    wide = {"constant": ("constant", "varying"), "scalar": ("constant", "varying"), "matrix": ("storable", "operator")}
    fact, other = wide.get(sort.name, ("", ""))
    if other == "operator" and fact not in sort.facts:
        return mixing(drawn(rng, sort, name))
    if fact and fact not in sort.facts:
        return drawn(rng, Sort(other, (), sort.sizes or (1,)), name)
    return drawn(rng, sort, name)


def mixing(matrix: Operator) -> Operator:
    """An operator of a matrix's sizes in which rows see each other: (x W)(x W)ᵀ (x W)."""
    return formula(lambda x: product(product(x @ matrix, turn(x @ matrix)), x @ matrix))


def lower_implementation(
    implementation: Implementation, rng: np.random.Generator
) -> tuple[Lowering, KernelCall, int, Drawn]:
    """A graph that holds the term of an implementation over drawn operands, and the call that computes it."""
    border = symbol("border", Shape(1, T, INPUT), Shape(1, T, INPUT))
    operands = {name: operand(rng, name, sort) for name, sort in implementation.variables.items()}
    operands = {
        name: flat(each, border) if implementation.variables[name].name in VALUES else each
        for name, each in operands.items()
    }
    roots = {name: each for name, each in operands.items() if isinstance(each, Operator)}
    template = Template.of(roots | {"seed": flat(implementation.over(operands), I)}, [border])
    graph = saturate(template, ())
    labels = {
        name: next((label for label, value in template.values.items() if value == each), "")
        for name, each in operands.items()
        if name not in roots
    }
    call = KernelCall(
        implementation,
        tuple((name, labels[name] if name in labels else graph.named[f"${name}"]) for name in implementation.variables),
    )
    tokens, types = ([rng.integers(0, int(size.subs(SAMPLE)), length) for length in LENGTHS] for size in (n, q))
    caches = {term.args[0].name: term for term in roots.values() if term.kind.name == "entered"}
    batch = some(caches, LENGTHS, LENGTHS, 1) if caches else Batch(tokens, types, RELATED)
    return (
        Lowering(graph, template, prices=None),
        call,
        graph.named["$seed"],  # type: ignore[arg-type]
        Drawn(INPUT, batch, rng),
    )


def compare_kernel(implementation: Implementation, rng: np.random.Generator) -> float:
    """How far a kernel is from the term that it is said to compute, in float64 over drawn operands; infinite where it
    cannot be called for them."""
    try:
        lowering, call, cls, values = lower_implementation(implementation, rng)
        return off(lowering, cls, call, values)
    except (TypeError, ValueError, KeyError, IndexError, StopIteration):
        return np.inf


def off(lowering: Lowering, cls: int, call: KernelCall, values: Drawn) -> float:
    """How far what a call computes is from its class."""
    found, wanted = computed(lowering, cls, call, values), expected(lowering, cls, values)
    return apart(found, wanted) if found.shape == wanted.shape else np.inf


def misfit(implementation: Implementation, rng: np.random.Generator) -> tuple[int, float]:
    """Where the implementation is matched in a graph that starts from its own term: how often, and how far it is from
    the classes that it is said to compute; infinite where its term has no shape."""
    try:
        lowering, _, _, values = lower_implementation(implementation, rng)
    except (TypeError, ValueError, KeyError, StopIteration):
        return 0, np.inf
    facts, worst, count = lowering.graph.facts, 0.0, 0
    for cls in lowering.terms.keys() & facts["act"] - lowering.graph.fixed:
        for match in lowering.matcher.find(implementation.pattern, cls, implementation.variables):
            count += 1
            try:
                worst = max(worst, off(lowering, cls, KernelCall(implementation, tuple(match.items())), values))
            except (TypeError, ValueError, KeyError, IndexError, StopIteration):
                return count, np.inf
    return count, worst
