"""Level 1: every law alone. What it says holds, what guards it is needed, and kernels compute what is said of them."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import computed
import numpy as np
import pytest
from sympy import sympify

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.nodes import scalar_function
from opmatrix.algebra.operators import (
    I,
    at_distances,
    by_distance,
    const,
    gelu,
    given,
    heads,
    pick,
    product,
    rotate,
    square,
    symbol,
    tanh,
    turn,
    weight,
)
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import substitute
from rewrites.egraph.borders import FULL
from rewrites.egraph.egraph import engine, saturate
from rewrites.egraph.layers import Part
from rewrites.egraph.template import Template
from rewrites.extraction import Problem, extract
from rewrites.laws import EXACT_LAWS
from rewrites.laws.epilogues import HEADS, ITSELF, STAGES, chain_stages, epilogues
from rewrites.laws.facts import DIRECTING
from rewrites.laws.flat import flat
from rewrites.laws.implementation import IMPLEMENTATIONS, implementations
from rewrites.laws.instances import SWAPPED
from rewrites.laws.law import (
    FLAGS,
    INPUT,
    ROWS,
    SAMPLE,
    Sort,
    constant,
    find,
    h,
    k,
    law,
    matrix,
    n,
    operator,
    p,
    q,
    ragged,
    scores,
    value,
    varying,
)
from rewrites.lowering.lower import KernelCall, Lowering, plainly
from rewrites.lowering.price import Prices
from rewrites.search.search import Structure
from rewrites.verify import Errors, check_seeded, unrounded, verify_steps
from rewrites.verify.programs import EQUAL

LAWS = pytest.mark.parametrize("each", EXACT_LAWS, ids=lambda law: law.name)
WIDER = {"matrix": operator, "constant": varying, "scalar": varying, "level": scores, "column": value}
WITH_DECAYS = "as_gated_linear_attention", "decay_by_columns"  # exp of sums
COUNTEREXAMPLES = [(law, other) for law in EXACT_LAWS for other in law.without]


# ---- exact laws


@LAWS
@pytest.mark.parametrize("seed", range(3))
def test_declared(each, seed):
    each.check(np.random.default_rng(seed))


class Whole:
    """Draws whole numbers where others draw any, and always the first of a choice."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def normal(self, size):
        return self.rng.integers(-3, 4, size)

    def integers(self, count):
        return 0


@pytest.mark.parametrize(
    "each",
    [
        law
        for law in EXACT_LAWS
        if not {"shift_invariant", "normalised"}
        & {flag for sort in law.variables.values() for flag in sort.sizes if isinstance(flag, str)}
        and law.name not in ("choose_before", "share_unshifted", *WITH_DECAYS)
    ],
    ids=lambda law: law.name,
)  # exponentials
def test_polynomial_laws_hold_exactly(each):
    """In rationals, without any tolerance, a square for what is not linear."""
    rng = Whole(0)
    left, right = each.of(each.drawn(rng))
    x, batch = rng.normal((sum(ROWS), INPUT)), ragged()
    for sides in zip(left, right, strict=True):
        a, b = (entrywise(substitute(side, {tanh: square}), x, batch, Fraction) for side in sides)
        assert all(isinstance(number, Fraction | int) for number in a.flat)
        assert (np.broadcast_to(a, np.broadcast_shapes(a.shape, b.shape)) == b).all()


def dropped(each, other):
    """The facts and flags that a counterexample does without."""
    for name, wide in other.items():
        old = each.variables[name]
        yield from set(old.facts) - set(wide.facts) - {*DIRECTING}
        if old.name in ("over", "where"):
            yield from set(old.sizes) - set(wide.sizes)


def test_every_guard_has_its_counterexample():
    assert {fact for each, other in COUNTEREXAMPLES for fact in dropped(each, other)} == {
        "storable",
        "linear",
        "row_linear",
        "row_wise",
        "constant",
        "uniform",
        "column",
        "level",
        "by_key",
        "keeps_order",
        "maps_zero_to_zero",
        *FLAGS,
    }


@LAWS
def test_a_guard_without_a_counterexample_is_none_of_truth(each):
    """It keeps rules from running on, or what is stored storable: the law holds without it, and says so."""
    needed = {name for other in each.without for name in other}
    for name, sort in each.variables.items():
        flags = sort.sizes if sort.name in ("over", "where") else ()
        if name in needed or not (set(sort.facts) - {*DIRECTING} or flags):
            continue
        wide = Sort(sort.name) if flags else WIDER[sort.name][sort.sizes]
        for seed in range(3):
            assert each.holds(np.random.default_rng(seed), **{name: wide}), f"{name} is needed"
        assert name == "B" or "True of any" in each.doc, f"{each.name} does not say why {name} is guarded"


@pytest.mark.parametrize("each, other", COUNTEREXAMPLES, ids=[f"{law.name}-{min(o)}" for law, o in COUNTEREXAMPLES])
def test_the_graph_refuses_a_counterexample(each, other):
    """Where no fact says that the guard holds, the law does nothing; a drawn monoid or pattern may have the flag."""
    refused, shared = 0, engine([each], trace=True)
    for seed in range(6):
        found, graph = check_seeded([each], [each], seed, shared, **other)
        refused += not graph.matches[each.name]
        assert not found
    assert refused
    assert check_seeded([each], [each], 0, shared)[1].matches[each.name]


def test_a_counterexample_that_is_none_is_an_error():
    each = find(EXACT_LAWS, "factor")
    with pytest.raises(AssertionError, match=r"factor: it holds with A: operator\[n, p\] too"):
        replace(each, without=(dict(A=operator[n, p]),)).check(np.random.default_rng(0))


@scalar_function()
def below_hundred(u):
    """u, at most 100."""
    return np.minimum(u, 100)


def test_what_holds_of_small_numbers_alone_is_no_law():
    @law()
    def unbent(x: value[n]):
        """No number is larger."""
        return x @ below_hundred, x

    with pytest.raises(AssertionError, match="differ on random numbers, of size 1 and 1000"):
        unbent.check(np.random.default_rng(0))


# ---- the trap: what is true of matrices is not true of operators


@law()
def spread_anything(x: value[n], c: constant[n], A: operator[n, p]):
    """A shift does not go through any operator."""
    return (x + c) @ A, x @ A + c @ A


def test_a_shift_goes_through_a_matrix_and_through_nothing_else():
    spread, rng = find(EXACT_LAWS, "spread"), np.random.default_rng(0)
    assert spread.holds(rng) and not spread_anything.holds(rng)
    assert spread_anything.holds(rng, A=matrix[n, p])  # a test with matrices alone would not have seen it
    x, c = symbol("border", Shape(1, T, 6), Shape(1, T, 6)), const(Data(np.arange(6.0)))
    template = Template.of({"full": flat(gelu, x + c)}, [x])
    assert saturate(template, EXACT_LAWS).matches["spread"] == 0
    assert saturate(template, [spread_anything]).matches["spread_anything"] == 1
    found, _ = check_seeded([spread_anything], [*EXACT_LAWS, spread_anything])
    assert found and "spread_anything" in found[0].laws


# ---- what is said of them


@LAWS
def test_rows_of_the_table(each):
    name, kind, statement, guard, source = each.row()
    assert name == each.name and kind == "exact" and source and each.doc
    assert statement.count(" → ") + statement.count(" ⇄ ") == 1
    assert all(f"{fact}({variable})" in guard for variable, sort in each.variables.items() for fact in sort.facts)


def test_names():
    names = [each.name for each in (*EXACT_LAWS, *implementations())]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError, match=r"no law 'sread'; there are .*spread"):
        find(EXACT_LAWS, "sread")


# ---- implementation laws: the kernel that runs computes the term


class Flat:
    """A machine on which everything takes a microsecond."""

    def seconds(self, kernel, **sizes):
        return 1e-6


FIELDS = dict(zip("nqk", ("tokens", "kinds", "positions"), strict=True))  # 6, 3 and 7 rows
VOCABULARY = SAMPLE[n]


GROUPS = {k: 1}  # heads of keys that serve all SAMPLE[h] of queries


def numbers(rng, *sizes):
    return Data(rng.normal(size=[int(sympify(size).subs(SAMPLE)) for size in sizes]))


TOKENS = given("tokens", VOCABULARY)


def operand(rng, name, sort):
    """What kernels can compute from tokens, or is stored, for a variable of an implementation."""
    tokens = TOKENS @ weight(numbers(rng, VOCABULARY, INPUT))
    if sort.space == "S":
        return operand(rng, name, replace(sort, space="")) @ pick("last")
    match sort.name, sort.sizes:
        case "value", (size,) if "given" in sort.facts:
            return given(FIELDS[str(size)], SAMPLE[size])
        case "value", (size,):
            return tokens @ weight(numbers(rng, INPUT, size)) @ gelu
        case "value", (many, size):
            return tokens @ weight(numbers(rng, GROUPS.get(many, many), INPUT, size))
        case "scores", (many,):
            query, key = (operand(rng, side, value[many, n]) for side in "qk")
            return product(query, turn(key))
        case "matrix" | "operator", sizes:
            return weight(numbers(rng, *sizes))
        case "constant", (size,):
            return const(numbers(rng, size))
        case "constant", (many, size):
            return const(numbers(rng, many * size)) @ heads(SAMPLE[many])
        case "scalar", _:
            return const(Data(np.abs(numbers(rng, 1).array)))
        case "count", _:
            return SAMPLE[h]
        case "entrywise", _:
            return gelu
        case "rotation", (size, _):
            return rotate(*(numbers(rng, max(ROWS), SAMPLE[size] // 2) for _ in range(2)))
        case "distances", (many,):
            return by_distance(numbers(rng, many, 5), 2)
        case "relative", (many, size):
            return at_distances(numbers(rng, many, size, 5))
        case "where", _:
            return sequence & causal
        case "relation", _:
            return SWAPPED
    raise TypeError(f"{name}: {sort}")


def rows(rng, term):
    """What is computed as rows of a program: heads are joined, scores weigh some values."""
    if term.out.cols == T:
        term = product(term, operand(rng, "v", value[h, p]), over=softmax, where=sequence)
    return term @ heads(SAMPLE[h]).T if term.out.heads == SAMPLE[h] else term


def forced(implementation, rng):
    """A program in which that implementation computes its own term, and the term of the whole."""
    seed = implementation.over({name: operand(rng, name, sort) for name, sort in implementation.variables.items()})
    seed, full = flat(seed, I), flat(rows(rng, seed), I)
    template = Template.of({"seed": seed, FULL: full})
    graph = saturate(template, ())
    lowering = Lowering(graph, template, Prices(Flat(), ragged().extents(*collect_needs(full))))
    problem, at = lowering.problem([graph.named["$full"]], [], plainly), graph.named["$seed"]
    found = extract(Problem([node for node in problem.nodes if allowed(node, at, implementation)], problem.roots))
    part = Part(template, None, {FULL: "$full"})
    return Structure(
        [lowering], [found], [(FULL, FULL)], [part], found.time, found.cost, found.bound, found.greedy
    ), full


def allowed(node, at, implementation):
    """That implementation alone at its own class, and elsewhere nothing that would take its place."""
    if not isinstance(node.label, KernelCall):
        return True
    chosen = node.label.implementation
    return chosen is implementation if node.cls == at else "attention" not in chosen.named


OF_CACHES = [each for each in IMPLEMENTATIONS if any(sort.space == "C" for sort in each.variables.values())]


@pytest.mark.parametrize("implementation", OF_CACHES, ids=lambda each: each.name)
def test_a_kernel_of_caches_computes_its_term(implementation):
    """On new rows of sequences that have some already, alone and where it is matched; whole programs of them are in
    test_session.py."""
    assert computed.compare_kernel(implementation, np.random.default_rng(0)) < 1e-9
    matched, worst = computed.misfit(implementation, np.random.default_rng(1))
    assert matched and worst < 1e-9


SHORT = [
    made for stages in ((), *((stage,) for stage in STAGES)) for head in HEADS if (made := chain_stages(head, *stages))
]
LONG = [*implementations()][len(IMPLEMENTATIONS) :: 7]  # chains of all lengths


@pytest.mark.parametrize(
    "implementation",
    dict.fromkeys((*(each for each in IMPLEMENTATIONS if each not in OF_CACHES), *SHORT, *LONG)),
    ids=lambda each: each.name,
)
def test_a_kernel_computes_its_term(implementation):
    rng = np.random.default_rng(0)
    structure, full = forced(implementation, rng)
    tokens, types = ([rng.integers(0, limit, length) for length in ROWS] for limit in (VOCABULARY, SAMPLE[q]))
    batch = Batch(tokens, types, ragged().relations)
    program, emitter = structure.program({})
    assert set(implementation.named) <= {step.kernel for step in program.steps}
    wanted = dense(full, np.zeros((batch.rows, 1)), batch)
    assert Errors.of([program.exact(batch, unrounded(structure, emitter))], [wanted]).worst_row < EQUAL
    verify_steps(program, [batch])


def test_the_table_of_implementations():
    assert {kernel for each in (*IMPLEMENTATIONS, *HEADS) for kernel in each.named} == {
        "linear",
        "pointwise",
        "pointwise_heads",
        "embed",
        "attention",
        "scores",
        "relative_scores",
        "softmax",
        "values",
        "headwise",
        "beside_columns",
        "repeat",
        "rotate",
        "experts",
        "gate",
        "blend_heads",
        "columns",
        "pool",
        "unit",
        "link",
        "pick",
        "recurrent",
        "fold_term",
        "attend_once",
        "append",
        "attention_cached",
    }
    name, kind, statement, *_ = find([*implementations()], "linear_bias_rms").row()
    assert (name, kind) == ("linear_bias_rms", "implementation")
    assert statement.startswith("linear(x, weight, bias, eps, norm='rms') = (x") and statement.endswith("rsqrt)")


def test_stages_follow_in_the_order_of_the_kernel():
    """Any of them may be left out; sums commute, so a residual may come before a bias, but not behind an activation."""
    each = {stage.name.removeprefix("_"): stage for stage in STAGES}
    bias, activate, times, residual = (each[name] for name in ("bias", "activate", "times", "residual"))
    norm, rms, gained, affine = (each[name] for name in ("norm", "rms", "gained", "affine"))
    found = {*epilogues()}
    assert (bias, activate, times, residual, rms, affine) in found and (residual, bias, norm) in found
    assert not found & {(activate, residual, bias), (residual, activate), (norm, rms), (gained, affine), (bias, bias)}
    assert chain_stages(ITSELF) is None, "it does nothing"
    assert chain_stages(HEADS[-1], bias) is None, "tables have no bias"
    assert chain_stages(ITSELF, bias) is chain_stages(ITSELF, bias) and chain_stages(ITSELF, norm, affine).single


@pytest.mark.parametrize("stages", [*epilogues()][1::40], ids=lambda each: "".join(stage.name for stage in each))
def test_chains_are_found_where_their_whole_pattern_is(stages):
    """Stage by stage from the class back, and no others, with the same operands."""
    lowering, *_ = computed.lower_implementation(chain_stages(HEADS[0], *stages), np.random.default_rng(0))
    matcher = lowering.matcher
    every = [made for each in epilogues() for head in HEADS if (made := chain_stages(head, *each))]
    staged, whole = (
        {(cls, each.name, *found.items()) for cls in lowering.terms for each, found in ways(cls)}
        for ways in (
            partial(matcher.chains, heads=HEADS, stages=STAGES),
            partial(matcher.wholes, implementations=matcher.able(every)),
        )
    )
    assert staged == whole and {chain_stages(HEADS[0], *stages).name} < {name for _, name, *_ in whole}
