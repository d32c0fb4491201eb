"""The exact search: equal programs, from the import with one kernel an operator to the cheapest that the laws reach."""

import numpy as np
import pytest
from searched import KINDS, RAGGED, Round, found, model, relative, structure
from test_families import CASES, made

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.operators import attention
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import everyone, mask, sequence
from opmatrix.models import build
from rewrites.egraph.borders import FULL, normed
from rewrites.egraph.layers import Explorer, parts, states
from rewrites.extraction import Infeasible, verify
from rewrites.laws import EXACT_LAWS, without
from rewrites.laws.law import find
from rewrites.lowering.lower import Lowering, Method, plainly
from rewrites.lowering.price import Prices
from rewrites.search.emit import Emitter
from rewrites.search.search import shortest

OPERATOR = model()


@pytest.fixture(scope="module")
def wanted():
    return dense(OPERATOR, RAGGED)


def kernels(program):
    return [step.kernel for step in program.steps]


# ---- the programs are the model


@pytest.mark.parametrize("kind", KINDS)
def test_every_program_is_the_model(kind, wanted):
    _, program, _ = found()[1][kind]
    assert relative(program.run(RAGGED), wanted) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_any_batch(kind):
    _, program, _ = found()[1][kind]
    for batch in (Batch([[1]]), Batch([[1]] * 9), Batch([list(range(20)), [3]])):
        assert relative(program.run(batch), dense(OPERATOR, batch)) < 1e-6


@pytest.mark.deep
@pytest.mark.parametrize("part", range(6))
def test_any_law_that_fired_may_be_left_out(part, wanted):
    exact = found()[1]["exact"][0]
    assert len(exact.fired) > 12
    for name in sorted(exact.fired)[part::6]:
        each = structure(OPERATOR, without(EXACT_LAWS, [name]))
        assert each.time >= exact.time * (1 - 1e-9), name
        assert relative(each.program({})[0].run(RAGGED), wanted) < 1e-6, name


def test_laws_that_did_not_fire_may_all_be_left_out(wanted):
    """What finds nothing changes nothing: not a node, not a second."""
    exact = found()[1]["exact"][0]
    idle = [law.name for law in EXACT_LAWS if law.name not in exact.fired]
    each = structure(OPERATOR, without(EXACT_LAWS, idle))
    assert len(idle) > 12 and (each.time, each.nodes, each.classes) == (exact.time, exact.nodes, exact.classes)
    assert each.fired == exact.fired and relative(each.program({})[0].run(RAGGED), wanted) < 1e-6


# ---- they are what a person would have written


def test_the_import_has_one_kernel_for_each_operator():
    _, program, _ = found()[1]["imported"]
    for step in program.steps:
        parts = [name for name in ("bias", "residual") if name in step.operands]
        assert len(parts) + (step.attributes.get("activation") == "gelu") + ("eps" in step.attributes) <= 1
        assert step.kernel != "linear" or (not parts and not step.attributes)
    assert kernels(program).count("linear") == 2 * 6 and "attention" not in kernels(program)


def test_fusion_puts_passes_into_products():
    _, program, _ = found()[1]["fused"]
    assert "pointwise" not in kernels(program) and kernels(program).count("attention") == 2
    assert kernels(program).count("embed") == 1


def test_laws_join_products_and_drop_biases():
    """One product for q, k and v; no bias of keys or values; 1/√d and a shift are in a weight or a bias."""
    _, program, _ = found()[1]["exact"]
    layer = [step for step in program.steps if step.kernel in ("linear", "attention")][:4]
    assert [step.kernel for step in layer] == ["linear", "attention", "linear", "linear"]
    joined, attend, mixed, up = layer
    assert program.constants[joined.operands["weight"]].shape == (24, 72) and "scale" not in attend.attributes
    bias = program.constants[joined.operands["bias"]]
    assert bias.shape == (72,) and not bias[24:].any() and bias[:24].all()
    assert "gain" in mixed.operands and "shift" not in mixed.operands
    assert "bias" in up.operands


def test_laws_and_fusion_only_help():
    times = [found()[1][kind][0].time for kind in KINDS]
    assert times == sorted(times, reverse=True) and len(set(times)) == 3


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "case, law",
    [("gpt2", "value_bias"), ("pangu-alpha", "value_bias"), ("qwen2", "value_bias"), ("qwen2", "repeat_shift")],
)
def test_no_law_is_in_the_way(case, law):
    """What a norm's shift adds to values comes late, and once kept products apart that are joined without this law; a
    bias of shared values costs nothing beside that of queries, and once came behind a product that has none."""
    family, config, _ = CASES[case]
    operator = build(config | dict(model_type=family), made(config))
    cheapest = structure(operator).time
    assert structure(operator, without(EXACT_LAWS, [law])).time >= cheapest * (1 - 1e-9)


def test_shared_constants_are_stored_once():
    _, program, emitter = found()[1]["exact"]
    assert len({id(constant) for constant in program.constants.values()}) == len(program.constants)
    assert program.stored_bytes == sum(c.nbytes for c in emitter.constants.values())


# ---- what was found is proved


@pytest.mark.parametrize("kind", KINDS)
def test_extractions_are_what_they_say(kind):
    each, _, _ = found()[1][kind]
    rows = zip(each.lowerings, each.extractions, each.parts, each.path, strict=True)
    for lowering, extraction, part, (_, after) in rows:
        named = lowering.graph.named
        problem = lowering.problem([named[part.roots[after]]], [named[part.border]] if part.border else [], plainly)
        verify(problem, extraction)
    assert each.bound <= each.time <= each.greedy and each.gap < 1e-6


def test_predicted_bytes_are_stored_bytes():
    for each, program, _ in found()[1].values():
        assert abs(each.memory / program.stored_bytes - 1) < 0.02  # a row that two parts hold is stored twice


def test_the_front_door_says_what_it_did():
    each = found()[1]["exact"][0]
    assert {"flatten", "extract", "rules", "load", "simplify", "restructure", "join", "freeze"} <= set(each.seconds)
    assert each.nodes > each.classes > 100 and not each.cut
    assert {"spread", "shift_scores", "value_bias", "join_bias"} <= each.fired <= {law.name for law in EXACT_LAWS}


# ---- layers


@pytest.mark.parametrize("layers", [3, 12])
def test_one_graph_for_each_signature(layers, graphs_anew):
    explorer, found_parts = Explorer(EXACT_LAWS), parts(model(num_hidden_layers=layers))
    for number, before, _ in states(found_parts):
        explorer.graph(found_parts[number][before])
    assert len(found_parts) == layers + 1 and len(explorer.graphs) == 3  # embeddings, and a layer behind each state


def test_borders_hand_on_the_full_value_or_the_normed_one():
    found_parts = parts(model())
    assert [set(part) for part in found_parts] == [{FULL}, {FULL, normed.name}, {FULL, normed.name}]
    assert all(set(part.roots) == {FULL, normed.name} for by_state in found_parts for part in by_state.values())
    assert {after for number, _, after in states(found_parts) if number == 2} == {FULL}


def test_a_model_that_ends_in_a_norm_ends_in_the_full_value():
    each = found()[1]["exact"][0]
    assert each.path[0][0] == each.path[-1][1] == FULL
    assert all(after == before for (_, after), (before, _) in zip(each.path, each.path[1:], strict=False))


def test_the_cheapest_chain_of_states():
    stages = [{("full", "full"): 1.0, ("full", "normed"): 2.0}, {("full", "full"): 5.0, ("normed", "full"): 1.0}]
    assert shortest(stages) == [(0, ("full", "normed")), (1, ("normed", "full"))]
    with pytest.raises(Infeasible, match="part 1 of the model has no program"):
        shortest([*stages[:1], {}])


# ---- what has no kernel


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "where",
    [everyone, sequence & (mask(np.eye(15)) | mask(np.tri(15)) & mask(np.tri(15).T))],
    ids=("everyone", "three masks"),
)
def test_patterns_that_attention_does_not_know_have_a_kernel_written(where, kind):
    """As much of the model as needs these patterns, and no more, is one step, which a kernel of its own computes."""
    operator = OPERATOR @ attention(*(np.eye(24) for _ in range(3)), 2, where)
    program, _ = structure(operator, *KINDS[kind]).program({})
    written = kernels(program)
    assert "interpret" not in written and [each for each in written if each.startswith("fold_")] == [
        "fold_batch" if where is everyone else "fold_term"
    ]
    assert relative(program.run(RAGGED), dense(operator, RAGGED)) < 1e-6


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("changed", [{"is_decoder": True}, {"hidden_act": "relu"}], ids=str)
def test_masks_and_activations_are_those_of_the_model(changed):
    operator = model(**changed)
    assert relative(structure(operator).program({})[0].run(RAGGED), dense(operator, RAGGED)) < 1e-6


# ---- prices and methods


def test_prices_follow_the_workload():
    one, many = (structure(OPERATOR, batch=Batch([list(range(1, 1 + rows))])) for rows in (2, 20))
    assert many.time > one.time and many.bound > one.bound


def test_a_method_is_stored_and_priced():
    half = Method("half")
    each = structure(OPERATOR, methods=lambda lowering, use: (half,))
    program, emitter = each.program({})
    formats = {constant.name for constant in program.constants.values() if hasattr(constant, "unpack")}
    assert formats == {"half"} and abs(each.memory / program.stored_bytes - 1) < 0.02
    assert 1e-5 < relative(program.run(RAGGED), dense(OPERATOR, RAGGED)) < 1e-2
    assert {stored.method.format for _, _, stored, _ in emitter.sources} == {"half"}


def test_methods_may_be_decided_afterwards():
    each = found()[1]["exact"][0]
    program, _ = each.program({}, lambda part, use, method: Method("half") if part == 1 else method)
    stored = [constant.name for constant in program.constants.values() if hasattr(constant, "unpack")]
    assert 0 < stored.count("half") < len(stored)


def test_fitted_weights_are_kept_between_programs():
    each, kept = found()[1]["exact"][0], {}
    first, _ = each.program({}, fitted=kept)
    second, _ = each.program({}, fitted=kept)
    assert all(first.constants[name] is second.constants[name] for name in first.constants)


def test_a_layer_s_prices_are_sums_of_its_kernels():
    part = parts(model())[1][FULL]
    explorer = Explorer(EXACT_LAWS)
    lowering = Lowering(explorer.graph(part), part.template, Prices(Round(), RAGGED.extents(patterns(model()))))
    assert all(lowering.prices.kernel(lowering, cls, call) >= 0 for cls, call in lowering.calls)
    assert len(lowering.calls) > 50 and sum(explorer.seconds().values()) > 0


def test_weights_of_heads_are_laid_out_as_kernels_want():
    each, _, emitter = found()[1]["exact"]
    assert isinstance(emitter, Emitter)
    for _, part, stored, _ in emitter.sources:
        matrix = each.lowerings[part].matrix(stored.weight, stored.layout)
        assert matrix.dtype == np.float64 and matrix.ndim == 2
    assert find(EXACT_LAWS, "join_bias").name in each.fired
