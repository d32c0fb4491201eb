"""What a step of training takes and holds: formulas that are read off a model, at numbers, arrays and symbols."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import sympy
from children import ROOT

from formats.core.errors import InputError
from formats.machine.collectives import collective_seconds
from formats.machine.datasheets import datasheet, load_clusters
from formats.machine.links import levels_of
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.models import known, promised
from opmatrix.parallel.cost.constants import CONSTANTS_FILE, Constants, load_constants
from opmatrix.parallel.cost.layer_work import model_work
from opmatrix.parallel.cost.level_seconds import collective_parts, units_of
from opmatrix.parallel.cost.memory_parts import MEMORY_KINDS, allocatable, driver_bytes, reserved_bytes
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.quantities import Formula, least, most, step_at
from opmatrix.parallel.cost.step_costs import BACKWARD, training_step
from opmatrix.parallel.cost.step_parts import cast_bytes, product_rate, products_during, step_parts, sustained_rate
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.search.plans import model_operations
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

sys.path.append(str(ROOT / "benchmarks"))
from lib.fit_constants import FRACTIONS, fit_constants

GPT = dict(model_type="gpt2", vocab_size=51200, n_embd=2048, n_positions=1024, n_head=16, n_layer=24)
HOW = Strategy(dp=2, tp=2, pp=2, micro_batch=2, recompute="full", context="ulysses", precision="float16", overlap=False)
SIDES = "rows", "inner", "cols", "batch"
SIZES = dict(b=3, s=64, t=2, c=1)


@pytest.fixture(scope="module")
def work():
    return model_work(GPT, dropout=0.1)


@pytest.fixture(scope="module")
def found(work):
    return predict(work, "A100", HOW, 32, 1024)


BERT = dict(model_type="bert", vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
BERT |= dict(
    intermediate_size=3072, max_position_embeddings=512, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12
)
LLAMA = dict(model_type="llama", vocab_size=32000, hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
LLAMA |= dict(intermediate_size=2048, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False)


@pytest.mark.parametrize("config, gates, head, seen", [(BERT, 1, 768 * 768, 1), (LLAMA, 2, 0, 1 / 2)])
def test_encoders_meet_all_pairs_of_tokens(config, gates, head, seen):
    """Operations counted by hand: an encoder has scores of all pairs, a decoder of half of them; the head of masked
    tokens has a product of its own before the table."""
    b, s, h, f, v = 3, 384, 768, config["intermediate_size"], config["vocab_size"]
    layer = 4 * h * h + (1 + gates) * h * f + 2 * seen * s * h
    work = model_work(config)
    layer_work, count = work.layers[0]
    pairs = [product for product in layer_work.products if product.between]
    assert {product.causal for product in pairs} == {seen < 1}
    assert model_operations(work, b, s, forward=True, flash=True) == 2 * b * s * (12 * layer + head + h * v)

    def seconds(causal):
        """Seconds of a step of the same layers, with scores of all pairs of tokens or of half of them."""
        products = (replace(product, causal=causal and product.between) for product in layer_work.products)
        layers = ((replace(layer_work, products=tuple(products)), count),)
        return predict(work._replace(layers=layers), "A100", Strategy(flash=True), 8, 4096).step_seconds

    assert seconds(False) > seconds(True)


def test_work_is_what_the_literature_says(work):
    """Operations of a layer, what it keeps, its parameters: of Korthikanti et al. 2022, for t tensor ranks."""
    (layer, count), b, s, h, t, a = work.layers[0], 3, 64, 2048, 2, 16

    def operations(during):
        return sum(
            2 * each.count * np.prod([getattr(each, side).at(SIZES) for side in SIDES])
            for each in layer.products
            if each.during == during
        )

    assert count == 24 and work.tied and (work.heads, work.key_heads) == (16, 16)
    assert operations("forward") == (24 * b * s * h**2 + 4 * b * s**2 * h) / t
    assert operations("backward") == 2 * operations("forward")
    kept, masks = (sum(each.at(SIZES) for each in held.values()) for held in (layer.kept, layer.masks))
    assert 2 * kept + masks == s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    assert layer.parameters.at(SIZES) == 12 * h**2 / t + 7 * h / t + 6 * h
    assert [(each.op, each.count) for each in layer.crossings if each.axis == "tp"] == [("all_reduce", 2)] * 2


def test_layers_that_are_alike_are_read_once(work):
    """As many layers as the configuration has, of the same formulas."""
    shallow = model_work(GPT | dict(n_layer=3), dropout=0.1)
    assert shallow.layers[0][0] == work.layers[0][0] and shallow.count == 3


def test_arrays_and_symbols_say_what_numbers_do(work, found):
    """One declaration, three readings."""
    sizes = dict(dp=[2.0, 4.0, 1.0], tp=[2.0, 1.0, 8.0], pp=[2.0, 2.0, 1.0], cp=[1.0] * 3, micro_batch=[2.0, 1.0, 4.0])
    rows = predict(work, "A100", replace(HOW, **{name: np.array(each) for name, each in sizes.items()}), 32, 1024)
    for at in range(3):
        one = predict(work, "A100", replace(HOW, **{name: int(each[at]) for name, each in sizes.items()}), 32, 1024)
        assert rows.step_seconds[at] == pytest.approx(one.step_seconds)
        assert rows.driver[at] == pytest.approx(one.driver)
    d, b = sympy.symbols("d b", positive=True)
    named = predict(work, "A100", replace(HOW, dp=d, micro_batch=b), 32, 1024)
    assert float(named.step_seconds.subs({d: 2, b: 2})) == pytest.approx(found.step_seconds)
    assert float(sympy.sympify(named.allocated).subs({d: 2, b: 2})) == pytest.approx(found.allocated)


def test_an_allocator_retains_free_blocks_while_there_is_room(work):
    """Twice the fragments, down to the fragments alone where a device is full."""
    constants, room = load_constants(), datasheet("A100").memory[-1][1]
    setting = predict(work, "A100", HOW, 32, 1024).setting
    spare = room - HOW.process_bytes
    for share in np.linspace(0.1, 1.2, 45):
        allocated = float(share * room)
        reserved, reported = reserved_bytes(setting, allocated), driver_bytes(setting, allocated)
        assert (
            1 + constants.fragments <= reserved / allocated * (1 + 1e-12) <= (1 + 2 * constants.fragments) * (1 + 1e-9)
        )
        assert reported == reserved + HOW.process_bytes
        assert (reported <= room) == (allocated <= allocatable(setting, room) * (1 + 1e-12))
        assert reserved <= max(spare, (1 + constants.fragments) * allocated)


def test_parts_add_up_and_move_as_they_should(work, found):
    """More of what is slow takes longer; what is computed again is not kept; what is stored once is smaller."""
    assert found.step_seconds == pytest.approx(sum(found.seconds.values()))
    assert found.allocated == pytest.approx(sum(found.memory.values())) and found.reserved > found.allocated
    assert found.driver == found.reserved + HOW.process_bytes
    assert [found.bytes_of(kind) for kind in MEMORY_KINDS] == [found.allocated, found.reserved, found.driver]
    assert all(seconds >= 0 for seconds in found.seconds.values())
    plain = predict(work, "A100", replace(HOW, recompute="none"), 32, 1024)
    assert plain.step_seconds < found.step_seconds and plain.memory["kept"] > 10 * found.memory["kept"]
    stored = predict(work, "A100", replace(HOW, zero=1), 32, 1024)
    assert stored.memory["optimiser"] == found.memory["optimiser"] / 2
    assert stored.memory["weights"] == found.memory["weights"]
    deeper = predict(work, "A100", replace(HOW, virtual=2), 32, 1024)
    assert deeper.seconds["bubble"] < found.seconds["bubble"]


def test_a_mesh_gives_a_group_the_links_among_its_own():
    """Two of eight have one link of seven, all eight have what a switch of that bandwidth gives."""
    full = Constants(1, 0, 1, 1, 0, 0, 0)
    links = datasheet("Ascend910B").links
    switched = [link._replace(meshed=False) for link in links]
    assert links[0].meshed and not links[1].meshed
    for n, share in ((2, 1 / 7), (4, 3 / 7), (8, 1)):
        for op in ("all_reduce", "all_to_all"):
            own, other = (collective_parts(op, 1e9, n, 1, each, full).moved[0][1] for each in (links, switched))
            assert own == pytest.approx(other / share)


def test_sums_over_data_cross_the_levels_that_data_lies_on(work):
    """Ranks of data are 8 devices apart where stages lie between them; neighbours otherwise."""

    def crossed(order):
        own = predict(work, "A100", replace(HOW, dp=4, tp=1, pp=8, order=order), 64, 1024).seconds
        return {level for level in ("NVLink 3", "InfiniBand HDR") if own[f"gradients over {level}"] > 0}

    assert crossed(("tp", "cp", "dp", "pp")) == {"NVLink 3"} and crossed(("tp", "cp", "pp", "dp")) == {"InfiniBand HDR"}


def test_gradients_that_wait_fill_the_bubble(work):
    """ZB-H1 waits for less than 1F1B by two gradients of weights a stage (Qi et al. 2023, table 2), and takes no less
    memory; where there is one micro-batch there is nothing to fill it with but what follows the last."""
    plain, filled = (
        predict(work, "A100", replace(HOW, schedule=name, recompute="none", pp=4), 64, 1024)
        for name in ("1f1b", "zb-h1")
    )
    assert filled.seconds["bubble"] < 0.7 * plain.seconds["bubble"] and filled.memory == plain.memory
    assert {name for name in plain.seconds if plain.seconds[name] != filled.seconds[name]} == {"bubble"}


MIXTURE = dict(
    model_type="mixtral",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=8,
    num_experts_per_tok=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)


@pytest.mark.parametrize("sequence", [False, True])
def test_work_of_experts_is_what_ranks_of_them_do(sequence):
    """Operations, what crosses and what is stored, of the formulas of ranks whose numbers are given: 2 of data x 2 of
    tensor, among which 2 have all experts. As many answers are asked for as a gate names, however many there are."""
    tensor = "sequence-vocabulary" if sequence else "tensor-vocabulary"
    mesh = Mesh.of(d=(2, "data"), t=(2, tensor), e=(2, "experts"))
    step = training_step(partition(promised(MIXTURE, scores=True), mesh, BatchSizes(6, 16)))
    work, sizes = model_work(MIXTURE, sequence=sequence), dict(b=3, s=16, t=2, c=1, e=2)
    every = [work.first, *(layer for layer, _ in work.layers), work.last]
    assert work.asks and float(even(sum(step.flops().values()))) == sum(
        2 * each.count * np.prod([getattr(each, side).at(sizes) for side in SIDES])
        for layer in every
        for each in layer.products
    )
    booked = [chunk.booked for chunk in step.stages[0]]

    def whole(axis):
        own = {"d": "dp", "t": "tp", "e": "ep"}[axis]
        read = sum(each.count * each.whole.at(sizes) for layer in every for each in layer.crossings if each.axis == own)
        return read, float(
            sum(
                even(each.whole)
                for chunk in booked
                for each in chunk.crossings_of("forward", *BACKWARD)
                if each.axis == axis
            )
        )

    for axis in "te":
        assert whole(axis)[0] == whole(axis)[1] > 0
    ((layer, _),) = work.layers
    assert layer.experts.at(sizes) == 8 * 3 * 32 * 48 / 4 and layer.made.at(sizes) == 3 * 16 * 2 * (3 * 24 + 24 + 32)
    assert layer.parameters.at(sizes) - layer.experts.at(sizes) == layer.parameters.at(
        sizes | dict(e=1)
    ) - layer.experts.at(sizes | dict(e=1))


def test_experts_over_ranks_are_stored_once_and_asked(work):
    """With all ranks of data among them a rank has an eighth of the experts, whose gradients nobody sums; what rows
    send and receive is priced, and state that is cut anyway is as small."""
    how = Strategy(dp=8, micro_batch=2, flash=True, context="ulysses")
    alone, shared = (predict(MIXTURE, "A100", replace(how, ep=n), 64, 64) for n in (1, 8))
    experts = 8 * 3 * 32 * 48
    assert alone.memory["optimiser"] - shared.memory["optimiser"] == 12 * experts * 7 / 8
    assert shared.seconds["ep over NVLink 3"] > 0 == alone.seconds["ep over NVLink 3"]
    assert shared.seconds["gradients over NVLink 3"] < alone.seconds["gradients over NVLink 3"]
    once = [predict(MIXTURE, "A100", replace(how, ep=n, zero=3), 64, 64).memory["weights"] for n in (1, 8)]
    assert once[0] == once[1]


def test_ragged_heads_leave_the_matrix_unit():
    """27 heads of 54 columns, 108 bytes each, beside 27 of 56."""

    def attention(width):
        own = predict(GPT | dict(n_embd=27 * width, n_head=27, n_layer=2), "A100", replace(HOW, tp=1), 32, 1024)
        return own.seconds["computation"] / width**2

    assert attention(54) > 1.2 * attention(56)


def test_collectives_are_those_of_the_links():
    """At full rates and without a wait of their own they take what the network's formulas say."""
    links, full = datasheet("A100").links, Constants(1, 0, 1, 1, 0, 0, 0)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for stride, n in ((1, 8), (8, 4), (1, 32), (4, 4)):
            assert tuple(units_of(n, stride, links)) == levels_of(stride, n, links)
            own = collective_parts(op, 1e9, n, stride, links, full)
            told = collective_seconds(op, 1e9, levels_of(stride, n, links), links)
            assert [seconds for _, seconds in own.moved] == pytest.approx(list(told.transfer))
            far = own.waited - told.latency[0]  # between nodes sums go over trees, others round a ring
            units = levels_of(stride, n, links)[1]
            assert far == pytest.approx(
                2 * np.log2(units) * links[1].latency if op == "all_reduce" else told.latency[1], abs=1e-15
            )
    near, far = (collective_parts("send", 1e9, 2, stride, links, full).moved for stride in (1, 8))
    crossed = [[bool(seconds) for _, seconds in own] for own in (near, far)]
    assert crossed == [[True, False], [False, True]]


def test_a_fit_finds_what_rows_were_made_with(work):
    """From predictions of other constants; rows that are too few, alike or no seconds are refused."""
    sizes = {
        name: np.array(each, float)
        for name, each in dict(
            dp=[1, 2, 1, 2, 4, 1, 2, 8, 1, 1, 1, 4],
            tp=[1, 1, 2, 2, 1, 4, 4, 1, 8, 2, 8, 2],
            pp=[2, 1, 1, 2, 2, 1, 1, 1, 1, 4, 1, 1],
            cp=[1] * 12,
            micro_batch=[1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 8, 4],
            virtual=[1] * 12,
        ).items()
    }

    def seconds(constants):
        return predict(work, "A100", replace(HOW, **sizes), 64, 1024, constants=constants).step_seconds

    true = load_constants()._replace(idle=0.7, memory=0.7, superstep=4e-5, gap=2e-5)
    fitted = fit_constants(seconds, seconds(true))
    assert fitted == pytest.approx(true, rel=0.02)
    for rows, said in (
        ([1, 2, 3], "3 rows for 4 constants: give at least 8"),
        ([2] * 12, "all 12 rows take 2 seconds"),
        ([*range(1, 12), -1], "-1.0 seconds: give positive"),
    ):
        with pytest.raises(InputError, match=f"fit: {said}"):
            fit_constants(seconds, rows)


def test_constants_are_fractions_and_latencies():
    """Each is a fraction, a latency or operations a joule, and there are at most twelve."""
    constants = load_constants()
    assert len(constants) == 12 and all(0 < getattr(constants, name) <= 1 for name in FRACTIONS)
    assert all(0 < getattr(constants, name) < 1e-3 for name in ("superstep", "gap"))
    assert all(1e11 < getattr(constants, name) < 1e13 for name in ("joule", "joule_ascend"))
    assert {*FRACTIONS, "superstep", "gap", "joule", "joule_ascend"} == {*constants._fields}
    assert constants.a_joule("n4") == constants.joule and constants.a_joule("") is None
    told = json.loads(CONSTANTS_FILE.read_text())["source"]
    assert all(name in told for name in constants._fields)


LLAMA = dict(
    model_type="llama",
    vocab_size=1024,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
LATE = Strategy(dp=2, tp=2, sequence=True, flash=True, context="ring", schedule="1f1b")


def test_watts_bound_the_rate_of_products():
    """A cap of the power slows products down where they are bound by it; an A100 has no such constant."""
    constants = load_constants()
    for name, joule in (("H100", constants.joule), ("B200", constants.joule), ("Ascend910B", constants.joule_ascend)):
        sheet = datasheet(name)
        setting = predict(LLAMA, sheet, LATE, 8, 4096).setting
        rate = sheet.matrix["bf16"]
        assert sustained_rate(setting, rate) == min(constants.matrix * rate, joule * sheet.watts)
        capped = setting._replace(machine=replace(sheet, watts=sheet.watts / 2))
        assert sustained_rate(capped, rate) == joule * sheet.watts / 2
        assert step_parts(capped)["computation"] > 1.2 * step_parts(setting)["computation"]
    free = predict(LLAMA, "A100", LATE, 8, 4096).setting
    assert sustained_rate(free, 312e12) == constants.matrix * 312e12
    assert datasheet("GrandTeton-H100").watts == 500


def test_fused_attention_computes_scores_again_at_a_share_of_the_rate():
    """Two products forward and five backward, each of half of the pairs, however the other products are."""
    setting = predict(LLAMA, "H100", LATE, 8, 8192).setting
    ((layer, _),) = setting.model.layers
    rate = sustained_rate(setting, datasheet("H100").matrix["bf16"]) * setting.constants.attention
    pairs = 8192**2 * 2048 / 2  # of a micro-batch, by columns of all heads of a tensor rank
    full = Constants(0.95, 0, 1e9, 1, 0, 0, 0, setting.constants.attention, 1, setting.constants.joule)
    bare = setting._replace(constants=full)
    both = [
        products_during(bare, replace(layer, products=tuple(each for each in layer.products if each.between)), during)
        for during in ("forward", "backward")
    ]
    assert both == pytest.approx([2 * pairs / rate, 5 * pairs / rate])


def test_eight_bits_speed_products_of_weights_alone():
    """Attention stays in sixteen; what is rounded passes through memory; an A100 has no such products."""
    setting = predict(LLAMA, "H100", replace(LATE, precision="fp8"), 8, 4096).setting
    ((layer, _),) = setting.model.layers
    sixteen = setting._replace(strategy=replace(setting.strategy, precision="bf16"))
    for product in layer.products:
        rates = product_rate(setting, product), product_rate(sixteen, product)
        assert rates[0] == rates[1] if product.between else rates[0] > 1.5 * rates[1]
    assert setting.number == 2 and cast_bytes(sixteen, layer, "forward") == 0
    rows, hidden, inner = 4096, 2048, 5632
    read_once = 2 * hidden + hidden / 2 + inner / 2  # attention, its output, gate and up together, down: by tp 2
    assert cast_bytes(setting, layer, "forward") == 4 * rows * read_once
    mx = predict(LLAMA, "H100", replace(LATE, precision="mxfp8"), 8, 4096).step_seconds
    assert mx == predict(LLAMA, "H100", replace(LATE, precision="fp8"), 8, 4096).step_seconds
    with pytest.raises(InputError, match="A100: its data sheet has no rate of fp8 products"):
        predict(LLAMA, "A100", replace(LATE, precision="fp8"), 8, 4096)


WIDE_MIXTURE = LLAMA | dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)


def test_rows_of_experts_are_those_of_a_tensor_rank():
    """Where norms are cut a rank sends a half of the rows to experts over data ranks; whole experts are laid over
    tensor ranks first, so that neighbours exchange, and nothing is gathered for them; both compute as much."""
    near, far = (f"ep over {link.name}" for link in datasheet("H100").links)

    def step(**how):
        return predict(WIDE_MIXTURE, "H100", replace(LATE, **how), 64, 4096)

    cut, alike = step(dp=8, tp=8, ep=8), step(dp=8, tp=8, ep=8, launched=True)
    moved = [float(each.seconds[far]) for each in (cut, alike)]
    assert moved[0] == pytest.approx(moved[1] * (4 / 5) / 8, rel=1e-3)  # forward 2 and backward 2 of 3, a tensor rank
    folded = step(dp=8, tp=8, ep=8, whole_experts=True)
    assert folded.seconds[far] == 0 < folded.seconds[near] < moved[0]
    assert folded.seconds["tp over NVLink 4"] < cut.seconds["tp over NVLink 4"]
    once = [step(dp=8, tp=8, ep=8, zero=1, whole_experts=whole).memory["optimiser"] for whole in (False, True)]
    assert once[0] == pytest.approx(once[1]) and folded.memory["weights"] > 4 * cut.memory["weights"]
    busier = step(dp=8, tp=8, ep=8, load=1.2)
    assert cut.seconds["computation"] < busier.seconds["computation"] < 1.2 * cut.seconds["computation"]
    assert busier.seconds[far] == pytest.approx(1.2 * moved[0])


def test_what_runs_beside_products_is_seen_less():
    plain, beside = (predict(LLAMA, "H100", replace(LATE, tp=8, beside=axes), 8, 4096) for axes in ((), ("tp",)))
    hidden = load_constants().hidden
    assert beside.seconds["tp over NVLink 4"] == pytest.approx((1 - hidden) * plain.seconds["tp over NVLink 4"])
    assert beside.seconds["computation"] == plain.seconds["computation"]


def test_sharded_weights_wait_for_each_layer():
    """ZeRO 3 among many ranks: twice the layers have twice the messages."""

    def waits(layers):
        deep = LLAMA | dict(num_hidden_layers=layers)
        return [
            float(
                predict(deep, "H100", replace(LATE, dp=1024, tp=1, sequence=False, zero=zero), 1024, 512).seconds[
                    "synchronisation"
                ]
            )
            for zero in (1, 3)
        ]

    shallow, deep = waits(4), waits(8)
    assert deep[0] == pytest.approx(shallow[0]) and deep[1] - deep[0] == pytest.approx(2 * (shallow[1] - shallow[0]))


def test_machines_have_sources_and_clusters_links():
    """Each number of a data sheet has a source; an unknown name is told of its like; no links, no step."""
    for name in ("A100-40", "H800", "H200", "B200", "GH200", "V100", "L4", "Ascend910B1", "Ascend910B3", "Ascend910C"):
        sheet = datasheet(name)
        assert sheet.source and sheet.costs and sheet.watts > 0 and sheet.hourly > 0 and sheet.links
    assert datasheet("jeanzay-a100").links[1].bandwidth == 6.25e9 and len(load_clusters()) > 2
    with pytest.raises(InputError, match="machine 'A1000': there is no data sheet of this name: did you mean A100"):
        datasheet("A1000")
    with pytest.raises(InputError, match="A100: its data sheet declares no links"):
        predict(GPT, replace(datasheet("A100"), links=()), HOW, 32, 1024)
    with pytest.raises(ValueError, match="A100: watts -1"):
        replace(datasheet("A100"), watts=-1)
    assert json.dumps(datasheet("A100").watts) == "400"


def test_formulas_are_sums_of_products():
    b, s = sympy.symbols("b s")
    formula = Formula.of(3 * b * s**2 + b / s)
    assert formula.at(dict(b=2, s=4)) == 96.5 and "3·b·s^2" in str(formula)
    with pytest.raises(InputError, match="is not a product of powers"):
        Formula.of(sympy.Max(b, s))
    assert (most(1, 5, 2), least(4, 3), step_at(3, 2), step_at(1, 2)) == (5, 3, 1, 0)


@pytest.mark.parametrize("name", ["llama2-7b", "llama3-8b", "mixtral-8x7b"])
def test_tables_of_rotations_are_no_parameters(name):
    """They have no gradients; parameters are those of the configuration, whatever the number of positions."""
    config = known.configuration(name)
    n, f, d = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    kv = n * config["num_key_value_heads"] // config["num_attention_heads"]
    experts = config.get("num_local_experts", 1)
    layer = 2 * n * n + 2 * n * kv + 3 * n * f * experts + 2 * n + (n * experts if experts > 1 else 0)
    work = model_work(config, "ulysses", True)
    sizes = dict(b=1, s=64, t=1, c=1, e=1)
    assert work.layers[0][0].parameters.at(sizes) == layer and work.count == d
    short = model_work({**config, "max_position_embeddings": 128}, "ulysses", True)
    assert short.layers[0][0].parameters == work.layers[0][0].parameters
