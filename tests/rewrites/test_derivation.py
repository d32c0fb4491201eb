"""The chain of laws from an import to what was extracted: applied again it gives that program, every step holds in
numbers, and what is no instance of a law is refused."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from searched import found, model, structure

from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import logsumexp
from opmatrix.algebra.operators import I, const, heads, over, relu, weight
from rewrites.egraph.egraph import engine, saturate
from rewrites.egraph.layers import parts
from rewrites.explain.derivations import finding, wording
from rewrites.explain.derivations.chain import derive_chain
from rewrites.explain.derivations.derivation import Derivation, instance
from rewrites.explain.derivations.finding import Deriver, Underivable, match_rows
from rewrites.explain.derivations.trees import READ, STORED, Forest
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import SIMPLIFY, count, h, law, n, p, value
from rewrites.lowering.lower import KernelCall, Lowering
from rewrites.verify import VerificationError
from rewrites.verify.graphs import seeded

BY_NAME = {each.name: each for each in EXACT_LAWS}


@cache
def whole():
    """The structure of a small BERT, and its derivation."""
    _, made = found()
    return made["exact"][0], derive_chain(made["exact"][0], EXACT_LAWS)


def deriver(forest, laws, *trees):
    return Deriver(forest, laws, forest.representatives | {part.cls: part for tree in trees for part in tree.walk()})


def derived(forest, laws, start, goal):
    return Derivation(forest, start, tuple(deriver(forest, laws, start, goal).chain(start, goal)))


@cache
def prepared(laws):
    return engine(laws)


def forest_of(template, laws):
    return Forest(Lowering(saturate(template, laws, shared=prepared(tuple(laws))), template, None))


def drawn(forest, cls, rng):
    """A random program of a class."""
    chosen = {}

    def pick(cls, path):
        if cls in chosen:
            return chosen[cls]
        members = [] if cls in path else rng.sample(forest.members[cls], len(forest.members[cls]))
        for node in members:
            children = [pick(child, path | {cls}) for child in node.children]
            if all(children):
                tree = forest.tree(node.kind, tuple(children), node.attributes)
                if rng.random() < 0.8:
                    chosen[cls] = tree  # else another may be drawn where it is read again
                return tree
        return None

    return pick(cls, frozenset())


# ---- what was extracted


def test_the_steps_lead_from_the_import_to_the_kernels_that_were_chosen():
    exact, steps = whole()
    for derivation, part, extraction, (_, after) in zip(
        steps.parts, exact.parts, exact.extractions, exact.path, strict=True
    ):
        calls = {node.cls: node.label for node in extraction.nodes if isinstance(node.label, KernelCall)}

        def same(tree, cls, calls=calls):
            if cls not in calls:
                return tree.kind in ("symbol", "given")
            call = calls[cls]
            read = [(name, at) for name, at in call.bound if isinstance(at, int)]
            sorts = call.implementation.variables
            return tree.kind == f"{call.implementation.name}()" and all(
                same(child, at) if sorts[name].name in ("value", "scores") else child.cls == at
                for child, (name, at) in zip(tree.children, read, strict=True)
            )

        assert derivation.start is derivation.forest.imported[part.roots[after]]
        assert same(derivation.end, derivation.forest.graph.named[part.roots[after]])
        assert sum(step.kind == "implementation" for step in derivation.steps) == len(calls)


def test_every_step_is_an_instance_of_its_law_and_equal_in_numbers():
    _, steps = whole()
    assert steps.checked < 1e-12
    for derivation in steps.parts:
        for step in derivation.steps:
            assert step.before.cls == step.after.cls
            assert step.kind == "implementation" or instance(BY_NAME[step.law], step)


def test_equal_layers_are_derived_once():
    operator = model(num_hidden_layers=4)
    steps = derive_chain(structure(operator), EXACT_LAWS)
    assert steps.like[1:] == (1,) * 4 or len(set(steps.like)) < len(steps.like)
    repeated = next(number for number, first in enumerate(steps.like) if number != first)
    first, again = steps.parts[steps.like[repeated]], steps.parts[repeated]
    assert again.steps == first.steps and again.check(EXACT_LAWS) < 1e-12
    said = wording.spell_out(again, EXACT_LAWS)
    assert said == wording.spell_out(first, EXACT_LAWS) or "layer" in said


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("config", [{"hidden_act": "relu"}, {"is_decoder": True}], ids=str)
def test_other_models(config):
    operator = model(num_hidden_layers=1, **config)
    graphs = {part.template.text: part for states in parts(operator) for part in states.values()}
    for part in graphs.values():
        forest, rng = forest_of(part.template, EXACT_LAWS), random.Random(len(config))
        for root in part.roots.values():
            start = forest.imported[root]
            goal = drawn(forest, start.cls, rng)
            derivation = derived(forest, EXACT_LAWS, start, goal)
            assert derivation.end is goal and derivation.check(EXACT_LAWS) < 1e-12


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("seed", range(6))
def test_any_program_of_a_class_is_reached_from_any_other(seed):
    """Not only from the import, and not only to what is cheap."""
    part = parts(model())[2]["normed" if seed % 2 else "full"]
    forest, rng = forest_of(part.template, EXACT_LAWS), random.Random(seed)
    cls = forest.imported["$full"].cls
    start, goal = drawn(forest, cls, rng), drawn(forest, cls, rng)
    assert start is not goal
    derivation = derived(forest, EXACT_LAWS, start, goal)
    assert derivation.end is goal and derivation.steps and derivation.check(EXACT_LAWS) < 1e-12


def spelled_out(edge):
    return repr((edge.law.name, edge.number, sorted(edge.bound.items()), edge.ends))


@pytest.mark.parametrize("each", EXACT_LAWS, ids=lambda each: each.name)
def test_every_law_makes_a_step(each):
    template = seeded([each], np.random.default_rng(0))
    forest = forest_of(template, EXACT_LAWS)
    alone, every, fired = deriver(forest, [each]), deriver(forest, [each]), 0
    every.completed = lambda law, found: found  # what guards alone say, of every class there is
    for cls in forest.members:
        assert {*map(spelled_out, alone.edges(cls))} == {*map(spelled_out, every.edges(cls))}
        for edge in alone.edges(cls):
            sides = [side[edge.number] for side in each.sides()]
            variables = {}
            start, goal = (alone.over(side, edge.bound, variables) for side in sides)
            derivation = derived(forest, [each], start, goal)
            assert derivation.laws() == {each.name: 1} and derivation.end is goal
            assert derivation.check([each]) < 1e-12
            back = derived(forest, [each], goal, start)
            assert back.steps[0].backwards and back.end is start and back.check([each]) < 1e-12
            fired += 1
    assert fired


def test_a_law_looks_where_its_sides_can_be(monkeypatch):
    """What only one side names is looked for in the class of the other: facts are not tried by every pair of
    classes."""
    exact, asked = found()[1]["exact"][0], []
    monkeypatch.setattr(
        finding, "match_rows", lambda rows, names, bound: asked.append(names) or match_rows(rows, names, bound)
    )
    steps = derive_chain(exact, EXACT_LAWS)
    members = sum(
        len(part.forest.graph.nodes) for number, part in enumerate(steps.parts) if steps.like[number] == number
    )
    assert 0 < len(asked) < 10 * members


def test_a_law_whose_right_side_is_a_variable():
    @law(phase=SIMPLIFY, source="heads are columns")
    def rejoin(x: value[h * p], H: count):
        """Split and joined again."""
        return (x @ heads(H)) @ heads(H).T, x

    template = seeded([rejoin], np.random.default_rng(0))
    forest = forest_of(template, (*EXACT_LAWS, rejoin))
    start = forest.imported["$seed0"]
    goal = start.children[0].children[0]
    assert goal.cls == start.cls
    there, back = derived(forest, [rejoin], start, goal), derived(forest, [rejoin], goal, start)
    assert there.end is goal and back.end is start
    assert there.check([rejoin]) == back.check([rejoin]) == 0.0


def test_what_no_kernel_computes_is_a_step_that_reads_a_term():
    rng = np.random.default_rng(0)
    E, A, B = (
        weight(Data(rng.normal(size=shape), name)) for name, shape in (("E", (41, 24)), ("A", (24, 16)), ("B", (16, 8)))
    )
    exact = structure(E @ (A + const(Data(rng.normal(size=16), "b"))) @ (I * over(I, logsumexp)) @ B)
    steps = derive_chain(exact, EXACT_LAWS)
    assert any(step.law == READ for part in steps.parts for step in part.steps) and steps.checked < 1e-12
    assert "interpreted(" in str(steps)


# ---- what is refused


def test_a_step_that_does_not_hold_is_named():
    @law(phase=SIMPLIFY, source="nowhere")
    def no_relu(x: value[n]):
        """Wrong."""
        return x @ relu @ relu, x

    forest = forest_of(seeded([no_relu], np.random.default_rng(0)), [no_relu])
    start = forest.imported["$seed0"]
    with pytest.raises(VerificationError, match=r"step 1, no_relu: its sides differ"):
        derived(forest, [no_relu], start, start.children[0].children[0]).check([no_relu])


def test_a_step_that_is_no_instance_is_named():
    _, steps = whole()
    derivation = steps.parts[1]
    number, step = next((i, s) for i, s in enumerate(derivation.steps) if s.law == "spread")
    wrong = replace(
        derivation, steps=(*derivation.steps[:number], replace(step, law="factor"), *derivation.steps[number + 1 :])
    )
    with pytest.raises(VerificationError, match=rf"step {number + 1}, factor: it is not an instance"):
        wrong.check(EXACT_LAWS)


def test_steps_out_of_order_do_not_apply():
    _, steps = whole()
    derivation = steps.parts[1]
    with pytest.raises(ValueError, match="its left side is not"):
        _ = replace(derivation, steps=derivation.steps[::-1]).end
    first = derivation.steps[0]
    with pytest.raises(ValueError, match="is not at"):
        first.__class__(first.law, first.kind, False, first.before, first.after, ((),)).apply(
            derivation.forest, derivation.start
        )


def test_without_the_law_there_is_no_chain():
    _, steps = whole()
    derivation = steps.parts[1]
    left = [each for each in EXACT_LAWS if each.name != "stack_columns"]
    goal = next(
        program
        for program, step in zip(derivation.programs(), derivation.steps, strict=False)
        if step.kind == "implementation"
    )
    with pytest.raises(Underivable, match="no law rewrites"):
        derived(derivation.forest, left, derivation.start, goal)


# ---- how it reads


def test_it_reads_step_by_step_and_folds():
    _, steps = whole()
    said, page = str(steps), steps._repr_html_()
    for derivation in steps.parts:
        for law_name in derivation.laws():
            assert law_name in said
    assert "every one checked in float64" in said and "attention_self_key_weight" in said
    distinct = [part for number, part in enumerate(steps.parts) if steps.like[number] == number]
    assert said.count("\n      = ") == sum(len(part.steps) for part in distinct)
    assert (
        page.count("<details>")
        == page.count("</details>")
        == len(steps.parts) + sum(len(part.steps) for part in steps.parts)
    )


def test_a_weight_stored_otherwise_is_a_step_with_its_error():
    _, steps = whole()
    weights = [tree for tree in steps.parts[1].end.walk() if tree.kind == STORED]
    changed = {(weights[0].cls, weights[0].attributes[1]): ("half", 3e-4, 3.1e-4)}
    coarser = steps.approximated({1: changed})
    last = coarser.parts[1].steps[-1]
    assert (last.kind, last.law, last.error) == ("approximate", "half", 3e-4) and last.before is weights[0]
    assert last.after in set(coarser.parts[1].end.walk()) and last.before not in set(coarser.parts[1].end.walk())
    assert coarser.parts[0].steps == steps.parts[0].steps and "error 0.0003 on calibration rows" in str(coarser)
    assert coarser.checked < 1e-12  # it denotes its original
