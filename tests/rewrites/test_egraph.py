"""The e-graph: what enters it, what laws make of it, when it stops, what is known of a class, what a kernel matches,
which thread an engine is of."""

import gc
import re
import sys
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from searched import Round, model

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import (
    I,
    centre,
    cols,
    const,
    gelu,
    given,
    heads,
    layernorm,
    product,
    row,
    square,
    symbol,
    turn,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, everyone, sequence
from opmatrix.algebra.shapes import Shape, T
from rewrites.egraph.borders import FULL, normed
from rewrites.egraph.egraph import ENGINES, JOIN, MARK, SCHEDULE, engine, saturate
from rewrites.egraph.layers import Explorer, parts
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS, ring
from rewrites.laws.flat import factors, flat
from rewrites.laws.law import SIMPLIFY, constant, law, matrix, n, p, value
from rewrites.lowering.lower import Lowering
from rewrites.lowering.price import Prices
from rewrites.proofs.equations import prove, prover
from rewrites.verify.numbers import AtBorder


def numbers(*shape, seed=0):
    return Data(np.random.default_rng(seed).normal(size=shape))


def matrices(*sizes):
    return [weight(numbers(a, b, seed=a)) for a, b in pairwise(sizes)]


def border(width):
    return symbol("border", Shape(1, T, width), Shape(1, T, width))


def graph_of(term, laws=EXACT_LAWS, width=6, **options):
    x = border(width)
    template = Template.of({"full": flat(term, x), "border": x}, [x])
    return saturate(template, laws, **options), template


def kinds(graph, cls):
    return sorted(node.kind for node in graph.members[cls])


# ---- what enters


def test_layers_of_equal_structure_have_equal_text():
    """Numbers and sizes are in the table, not in the text, so one graph serves all layers and all sizes."""
    first, second = (part[FULL].template for part in parts(model(num_hidden_layers=3))[1:3])
    other = parts(model(hidden_size=48, num_attention_heads=4, intermediate_size=56))[1][FULL].template
    assert first.text == second.text == other.text
    assert first.values.keys() == other.values.keys() and first.values != second.values
    assert not any(f'"{size}"' in first.text for size in (24, 40, 3))


def test_another_structure_has_another_text():
    changes = {}, {"hidden_act": "relu"}, {"is_decoder": True}
    assert len({parts(model(**changed))[1][FULL].template.text for changed in changes}) == 3


def test_a_shared_weight_is_one_class():
    w = weight(numbers(6, 6))
    graph, template = graph_of(w @ gelu @ w, ())
    assert [entry.kind for entry in template.entries].count("weight") == 1
    assert sum(node.kind == "weight" for node in graph.nodes) == 1


def test_a_template_gives_its_terms_back():
    A, x = matrices(6, 5)[0] @ gelu, border(6)
    template = Template.of({"full": flat(A, x)}, [x])
    assert template.instance(template.values)[template.entries[-1].name] is flat(A, x)
    other = {name: numbers(6, 5, seed=7) for name, kept in template.values.items() if isinstance(kept, Data)}
    made = template.instance(template.values | other)
    assert made[template.entries[-1].name] is flat(weight(other.popitem()[1]) @ gelu, x)


def test_flat_is_the_same_operator():
    """Pushed to the leaves, a layer gives the same numbers; factors of a model are its layers."""
    operator, x = model(), np.random.default_rng(0).normal(size=(5, 24))
    batch = Batch([[1, 2, 3], [4, 5]])
    layers = [each for each in factors(operator) if each.into.cols == 24]
    assert len(layers) >= 2
    for layer in layers:
        at = flat(layer, border(24))(AtBorder(x, batch)).array
        np.testing.assert_allclose(at, dense(layer, x, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("a, b", ((16, 32), (16, 16), (5, 7), (20, 4)))
def test_columns_side_by_side_stay_a_sum(a, b):
    """Small operators of sizes that do not fit one another raise."""
    x = border(20)
    term = row(gelu @ weight(numbers(20, a)), square @ weight(numbers(20, b))) @ gelu @ weight(numbers(a + b, 9))
    template = Template.of({"full": flat(term, x), "border": x}, [x])
    small = template.shrunken(lambda shape: np.ones(shape))
    assert template.instance(small) and max(max(each.shape) for each in small.values() if isinstance(each, Data)) <= 20


def test_shrunken_tables_keep_what_sizes_say():
    """And numbers, scales that are seen, words."""
    x = border(384)
    term = layernorm(1e-12) @ weight(numbers(384, 1536)) @ heads(12) @ heads(12).T @ weight(numbers(1536, 384)) * 0.35
    template = Template.of({"full": flat(term + given("tokens", 30522) @ weight(numbers(30522, 384)), x)}, [x])
    small = template.shrunken(lambda shape: np.ones(shape))
    to = {
        old: new
        for name, value in template.values.items()
        if isinstance(value, Data) and value.array.size > 1
        for old, new in zip(value.shape, small[name].shape, strict=True)
    }
    assert len({*to.values()}) == 3 and max(to.values()) <= 16 and to[1536] == 2 * (to[1536] // 2)
    changed = {value: small[name] for name, value in template.values.items()}
    assert changed[30522] == to[30522] and changed[12] == 2
    assert changed[Data(0.35)] == Data(0.35) and changed[Data(1e-12)].array > 0.1
    shapes = {small[name] for name, value in template.values.items() if isinstance(value, Shape)}
    assert shapes == {Shape(1, T, to[384])}


# ---- what laws make of it


def test_a_chain_of_matrices_is_one_class_in_every_order():
    A, B, C = matrices(6, 5, 4, 3)
    graph, template = graph_of(A @ B @ C, ring.RING_LAWS)
    root = graph.named["$full"]
    assert kinds(graph, root) == ["compose"] * 4  # (x A B) C, (x A) (B C), x (A (B C)), x ((A B) C)
    x = np.random.default_rng(1).normal(size=(5, 6))
    terms = graph.terms(template)
    for node in graph.members[root]:
        before, after = (terms[child] for child in node.children)
        np.testing.assert_allclose(after(before(AtBorder(x))).array, dense(A @ B @ C, x), rtol=1e-12)


def test_no_law_goes_through_gelu():
    A, B = matrices(6, 5, 4)
    graph, _ = graph_of(A @ gelu @ B, ring.RING_LAWS)
    assert len(graph.nodes) == len(graph.members) == 7  # border, A, gelu, B, three compositions: nothing was made
    assert not any(graph.matches[name] for name in ("associate", "spread", "factor", "late_scale"))


def test_a_canonical_law_leaves_its_left_side_out_but_for_the_import():
    """So the import itself is among the programs, whatever laws there are."""
    c = const(numbers(5))
    graph, _ = graph_of(((matrices(6, 5)[0] + c) + c) + c, ring.RING_LAWS)
    root, gone = graph.named["$full"], [node for node in graph.nodes if node.subsumed]
    assert gone and not any(node in graph.members[node.cls] for node in gone)
    assert kinds(graph, root) == ["add", "add"]  # as imported, and with one bias


def test_a_trace_keeps_everything_and_says_who_made_it():
    (A,), c = matrices(6, 5), const(numbers(5))
    graph, _ = graph_of((A + c) + c, ring.RING_LAWS, trace=True, rounds=3)
    assert not any(node.subsumed for node in graph.nodes)
    assert (graph.named["$full"], "merge_shifts") in graph.facts["made_by"]


def test_a_norm_loses_its_shift_to_the_next_product():
    g, b, (W,) = numbers(6), numbers(6, seed=1), matrices(6, 4)
    graph, template = graph_of((I * const(g) + const(b)) @ W, ring.RING_LAWS)
    root, terms = graph.named["$full"], graph.terms(template)
    assert any(node.kind == "add" and node.children[1] in graph.fixed for node in graph.members[root])
    folded = [
        node
        for node in graph.nodes
        if node.kind == "compose"
        and node.children[0] == graph.named["$border"]
        and terms[node.children[1]].out.cols == 4
    ]
    assert folded  # border @ (diag(g) @ W): the gain is in the weight


@pytest.mark.parametrize("state", [FULL, normed.name])
def test_a_layer_saturates_well_within_its_budget(state):
    part = parts(model())[2][state]
    graph = saturate(part.template, EXACT_LAWS)
    assert not graph.cut and len(graph.nodes) < 800
    assert set(graph.seconds) == {"rules", "load", "facts", "freeze", *SCHEDULE}
    used = {law.name for law in EXACT_LAWS if graph.matches[law.name]}
    assert {"spread", "scale_scores", "split_keys", "shift_scores", "value_bias", "join_bias", "stack_columns"} <= used


def test_every_part_of_a_layer_has_a_term():
    part = parts(model())[1][FULL]
    graph = saturate(part.template, EXACT_LAWS)
    terms = graph.terms(part.template)
    assert set(terms) == {node.cls for node in graph.nodes}
    imported = part.template.instance(part.template.values).values()
    assert {terms[cls] for cls in graph.named.values()} <= set(imported)


# ---- when it stops


@law(phase=SIMPLIFY)
def double(x: value[n], c: constant[n]):
    """It never ends: the left side is in the right."""
    return x + c, (x + c) + (c + c)


@pytest.mark.parametrize(
    "options, said", [(dict(rounds=4), "simplify at .* nodes after 4 rounds"), (dict(budget=40), "simplify at")]
)
def test_a_law_that_explodes_is_stopped_and_named(options, said):
    (A,), c = matrices(6, 5), const(numbers(5))
    graph, _ = graph_of(A + c, (double,), **options)
    assert graph.cut and all(re.match(f"{said}.*: double was growing", line) for line in graph.cut)
    assert len(graph.nodes) < 400


def test_joining_runs_twice_and_no_more():
    graph = saturate(parts(model())[1][FULL].template, EXACT_LAWS)
    assert graph.matches["join"] + graph.matches["join_bias"] >= 2
    assert not any(phase in line for line in graph.cut for phase in (MARK, JOIN))


# ---- what is known of a class


def test_facts_of_parts_become_facts_of_wholes():
    A, B = matrices(6, 5, 4)
    c = const(numbers(5))
    graph, template = graph_of((A + c) @ gelu @ B, ())
    terms = {term: cls for cls, term in graph.terms(template).items()}
    fact = lambda name, term: terms[term] in graph.facts[name]
    x = border(6)
    assert fact("act", x) and fact("act", flat((A + c) @ gelu @ B, x)) and not fact("act", c)
    assert fact("linear", A) and fact("linear", B) and not fact("linear", gelu) and fact("entrywise", gelu)
    assert fact("constant", c) and not fact("constant", A)


def test_a_diagonal_is_linear_and_centring_is():
    graph, template = graph_of(centre @ (I * const(numbers(6))), ())
    terms = {term: cls for cls, term in graph.terms(template).items()}
    assert {terms[centre], terms[I * const(numbers(6))]} <= graph.facts["linear"]


# ---- what a kernel matches


def calls(term, width=6):
    graph, template = graph_of(term, (), width)
    lowering = Lowering(graph, template, Prices(Round(), counted([1, 3, 4])))
    return [(call.implementation.name, cls == graph.named["$full"]) for cls, call in lowering.calls]


def test_kernels_of_a_product_with_its_epilogue():
    (A,), b = matrices(6, 5), const(numbers(5))
    assert {name for name, root in calls((A + b) @ gelu) if root} == {
        "linear_bias_activate",
        "bias_activate",
        "activate",
        "activated_heads",
    }


def test_a_sum_is_matched_in_both_orders():
    A, B = matrices(6, 5)[0], weight(numbers(6, 5, seed=9))
    activated = ["activate_residual", "linear_activate_residual"]
    assert sorted(name for name, root in calls(A @ gelu + B) if root) == [
        *activated,
        "linear_residual",
        "residual",
        "residual",
    ]
    assert sorted(name for name, root in calls(A @ gelu + A @ gelu) if root) == [*activated, "residual"]


def test_what_is_entrywise_is_no_matrix():
    for term in (I * 3.0, centre, gelu):
        assert not any(name.startswith("linear") for name, _ in calls(term))


@pytest.mark.parametrize(
    "where, kernels", [(sequence, {"attention", "weigh"}), (everyone, {"interpreted"}), (causal, {"interpreted"})]
)
def test_attention_is_matched_within_sentences_alone(where, kernels):
    q, k, v = (weight(numbers(2, 6, 3, seed=s)) for s in range(3))
    term = product(q, turn(k), where=everyone)
    assert {name for name, root in calls(product(term, v, over=softmax, where=where)) if root} == kernels


def test_a_sum_over_values_is_no_attention():
    q, k, v = (weight(numbers(2, 6, 3, seed=s)) for s in range(3))
    assert {name for name, root in calls(product(product(q, turn(k)), v)) if root} == {"interpreted"}


def test_heads_tell_one_matrix_from_several():
    one, several = weight(numbers(6, 5)), weight(numbers(2, 6, 5))
    assert {name for name, root in calls(one) if root} == {"linear"}
    assert {name for name, root in calls(several) if root} == {"linear_to_heads"}
    assert {name for name, root in calls(one @ heads(5)) if root} >= {"to_heads"}


def test_a_table_is_gathered_from_and_not_multiplied():
    graph = saturate(template := Template.of({"full": given("tokens", 6) @ weight(numbers(6, 4))}), ())
    names = [
        call.implementation.name for _, call in Lowering(graph, template, Prices(Round(), counted([1, 3, 4]))).calls
    ]
    assert names == ["embed1"]


def test_columns_of_an_import_stay_where_they_are():
    """A cut by numbers is no joined product's half: no kernel is claimed for it."""
    assert not [name for name, _ in calls(weight(numbers(6, 5)) @ gelu @ cols(0, 2)) if "columns" in name]


# ---- guards between laws


def test_laws_are_values_that_add():
    assert EXACT_LAWS[: len(ring.RING_LAWS)] == ring.RING_LAWS
    assert len({law.name for law in EXACT_LAWS}) == len(EXACT_LAWS)
    assert replace(ring.RING_LAWS[0], phase=SIMPLIFY) != ring.RING_LAWS[0]


@law()
def fold(x: value[n], A: matrix[n, p], c: constant[p]):
    """Two rules of one law, in one direction each."""
    return x @ A + c, c + x @ A


def test_a_law_in_one_direction_matches_no_other():
    (A,), c = matrices(6, 5), const(numbers(5))
    graph, _ = graph_of(c + A, (fold,))
    assert graph.matches["fold"] == 0
    graph, _ = graph_of(A + c, (fold,))
    assert graph.matches["fold"] == 1 and kinds(graph, graph.named["$full"]) == ["add", "add"]


# ---- threads


def in_another(work):
    """What it gives in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def unraised(monkeypatch):
    """What Python says of objects that could not be dropped. Nothing is collected meanwhile but by whoever asks."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


def explored():
    """A search's engine, held by what holds itself."""
    explorer = Explorer(())
    explorer.graphs["itself"], explorer.graphs["engine"] = explorer, engine(())


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("makes", [explored, lambda: prove(I, I @ I) and prover.cache_clear()], ids=["search", "prove"])
def test_an_engine_that_another_thread_collects_is_dropped_by_its_own(makes, unraised):
    """Without a word on standard error, by the next one at the latest."""
    engine(())
    there = {*ENGINES.by_number}
    makes()
    in_another(gc.collect)
    engine(())
    assert {*ENGINES.by_number} <= there and not unraised


def test_an_engine_that_outlives_its_thread_is_refused(unraised):
    made = in_another(lambda: engine(()))
    with pytest.raises(RuntimeError, match="a thread that did not make it"):
        made.parse_program("(push)")
    del made
    gc.collect()
    assert not unraised


def test_threads_prove_one_after_another():
    assert prove(I, I @ I) and in_another(lambda: prove(I, I @ I)) and prove(I @ I, I)
