"""Plans of decoders behind towers, and of encoders with a decoder: parameters as published, operations by hand, stages
of unlike layers, memory and time of both, and what is refused."""

import re
from copy import deepcopy
from math import gcd

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from formats.machine.datasheets import datasheet
from opmatrix.models import known
from opmatrix.models.encoders.encoder_decoders import read_halves
from opmatrix.parallel.axes.known_axes import PLANNED_AXES
from opmatrix.parallel.cost.layer_work import axes_read, model_work, read_layer
from opmatrix.parallel.cost.memory_parts import kept_bytes, state_bytes
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.source_rows import SOURCE_ROWS, with_source
from opmatrix.parallel.cost.step_costs import training_step
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.questions.layouts import find_layout, layout_lines, read_layout
from opmatrix.parallel.search.forms import FormMasks, StrategyForm
from opmatrix.parallel.search.inference import next_token_seconds
from opmatrix.parallel.search.legal_sizes import limits_of
from opmatrix.parallel.search.plan_text import plan_text
from opmatrix.parallel.search.plans import PlanChoice, StrategyPlan, model_operations
from opmatrix.parallel.search.stage_times import StageCut, best_cut, layer_bytes, layer_seconds, run_stages
from opmatrix.parallel.search.strategy_search import SIZE_NAMES, PlanQuestion, compile_forms
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

ONE = {name: 1 for name in ("b", "s", SOURCE_ROWS, *(axis.letter for axis in PLANNED_AXES if axis.letter))}
BIASES = 2 * 32  # numbers of T5's tables for each head, which are left out
PUBLISHED = {  # as transformers counts models of these configurations
    "llava-1.5-7b": 7_063_427_072,
    "llava-1.5-13b": 13_351_494_656,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2-audio-7b": 8_397_094_912,
    "whisper-large-v2": 1_543_304_960,
    "t5-base": 222_903_552 - BIASES * 12,
    "t5-large": 737_668_096 - BIASES * 16,
    "t5-3b": 2_851_598_336 - BIASES * 32,
    "t5-11b": 11_307_321_344 - BIASES * 128,
}


@pytest.mark.parametrize("name", known.names(planned_only=True))
def test_parameters_are_those_published(name):
    """All weights count once: a head that is a table of tokens has its norm alone besides."""
    config, work = known.configuration(name), model_work(known.configuration(name))
    layers = [(work.first, 1), *work.layers, (work.last, 1)]
    stored = sum(count * layer.parameters.at(ONE) for layer, count in layers)
    if work.tied:
        text = config.get("text_config", config)
        stored -= text["vocab_size"] * (text.get("hidden_size") or text["d_model"])
    assert stored == PUBLISHED[name]
    assert known.find_known(name).source and known.find_known(name).outside


@pytest.mark.parametrize(
    "name, bert", [("bert-base", 109_482_240 - 768 * 769), ("bert-large", 335_141_888 - 1024 * 1025)]
)
def test_encoders_have_their_published_sizes_in_plans(name, bert):
    """The head of masked tokens has a product and a norm of its own, and a bias for each token, besides the table."""
    config, work = known.configuration(name), model_work(known.configuration(name))
    n, v = config["hidden_size"], config["vocab_size"]
    stored = sum(count * layer.parameters.at(ONE) for layer, count in [(work.first, 1), *work.layers])
    assert stored == bert and work.tied
    assert work.last.parameters.at(ONE) == v * n + n * (n + 1) + 2 * n + v


def llava_operations(b, s):
    """Multiplications and additions of LLaVA-1.5-7B forward by hand: patches of 588 numbers with a row more, 24 layers
    of 1,024 columns on 577 rows, a perceptron on 576; LLaMA's 32 layers, whose rows see those before."""
    n, f, u, m, g = 1024, 4096, 577, 4096, 11008
    tower = u * (3 * 14 * 14 + 1) * n + 24 * (u * (4 * n * n + 2 * n * f) + 2 * u * u * n)
    decoder = 32 * (s * (4 * m * m + 3 * m * g) + s * s * m) + s * m * 32064
    return 2 * b * (tower + 576 * (n * m + m * m) + decoder)


def whisper_operations(b, s):
    """The same of Whisper: of windows of frames, and of layers that have keys of 1,500 rows besides."""
    n, f, u = 1280, 5120, 1500
    stem = u * (3 * 3 * 80 * n + 3 * n * n)
    encoder = 32 * (u * (4 * n * n + 2 * n * f) + 2 * u * u * n)
    decoder = 32 * (s * (6 * n * n + 2 * n * f) + 2 * u * n * n + s * s * n + 2 * s * u * n)
    return 2 * b * (stem + encoder + decoder + s * n * 51865)


def t5_operations(b, s):
    """The same of T5-11B, whose 128 heads have 16 times the model's columns, with 512 tokens of the source."""
    n, m, f, u = 1024, 128 * 128, 65536, 512
    encoder = 24 * (u * (4 * n * m + 2 * n * f) + 2 * u * u * m)
    decoder = 24 * (s * (6 * n * m + 2 * n * f) + 2 * u * n * m + s * s * m + 2 * s * u * m)
    return 2 * b * (encoder + decoder + s * n * 32128)


@pytest.mark.parametrize(
    "name, by_hand",
    [("llava-1.5-7b", llava_operations), ("whisper-large-v2", whisper_operations), ("t5-11b", t5_operations)],
)
def test_operations_are_those_by_hand(name, by_hand):
    """At lengths of a decoder that are not those of its source, so that no two rows are confused."""
    work = model_work(known.configuration(name))
    for b, s in ((1, 114), (3, 448)):
        assert model_operations(work, b, s, forward=True, flash=True) == by_hand(b, s)


def test_qwen_merges_squares_of_patches():
    """Four of 1,024 patches become one of 256 rows; the 28 and 16 heads are cut by what divides both."""
    config = known.configuration("qwen2-vl-7b")
    work = model_work(config)
    entered, width = work.layers[1][0], 4 * 1280
    merger = [p for p in entered.products if p.during == "forward" and p.inner.at(ONE) == width]
    assert {(p.rows.at(ONE | {SOURCE_ROWS: 1024}), p.cols.at(ONE)) for p in merger} == {(256, width), (256, 3584)}
    assert work.source == 1024 and limits_of(config).heads == work.heads == gcd(28, 16)
    assert (limits_of(config).layers, work.tower, work.count) == (60, 32, 60)


@pytest.mark.parametrize("context, sequence", [("ring", False), ("ring", True), ("ulysses", True)])
@pytest.mark.parametrize("name", ["t5-base", "whisper-large-v2"])
def test_rows_of_a_source_are_told_from_tokens(name, context, sequence):
    """With as many rows as tokens a decoder's layer is what it is read as; steps and collectives that grow with either
    alone are the same number times both."""
    half = read_halves(known.configuration(name)).decoder
    plan = partition(half.layer, Mesh.of(**axes_read(context, sequence, False)), tokens=False)
    (chunk,) = (chunk for stage in training_step(plan).stages for chunk in stage)
    plain, told = read_layer(chunk.booked, True), read_layer(with_source(chunk.booked, half.width), True)
    alike = {name: 64 if name in ("s", SOURCE_ROWS) else 2 for name in ONE}

    def figures(work):
        """All sizes of a layer, at as many rows as tokens."""
        products = sorted(
            (p.during, *(side.at(alike) for side in (p.rows, p.inner, p.cols, p.numbers)))
            for p in work.products
            for _ in range(p.count)
        )
        crossings = sorted((c.during, c.op, c.axis, c.whole.at(alike)) for c in work.crossings for _ in range(c.count))
        return products, crossings, {unit: held.at(alike) for unit, held in work.kept.items()}, work.parameters

    assert figures(plain) == figures(told)
    n = half.width
    longer = alike | {SOURCE_ROWS: 128}
    forward = [p for p in told.products if p.during == "forward"]
    by_source = [p for p in forward if p.rows.at(longer) != p.rows.at(alike)]
    assert sum(p.count for p in by_source) == 2 and {p.inner.at(ONE) for p in by_source} == {n}  # keys and values
    scores = [p for p in forward if p.makes_scores]
    assert sorted(p.causal for p in scores) == [False, True]
    assert [p.cols.at(longer) > p.cols.at(alike) for p in scores] == [not p.causal for p in scores]


@pytest.fixture(scope="module")
def question():
    """LLaVA on 16 devices: a few forms at all sizes."""
    return PlanQuestion(known.configuration("llava-1.5-7b"), datasheet("A100"), 16, 64, 2048, 80e9)


FORMS = [
    StrategyForm(),
    StrategyForm("full", 1, sequence=True),
    StrategyForm("selective", 0, context="ulysses", balanced=True),
]


@pytest.mark.parametrize("name", ["llava-1.5-7b", "t5-base"])
def test_columns_are_what_one_is_predicted(name):
    question = PlanQuestion(known.configuration(name), datasheet("A100"), 16, 64, 512, 80e9)
    programs, sizes = compile_forms(question, FORMS), question.sizes
    legal = FormMasks(FORMS, question.limits, question.seq)(sizes)
    values = programs.values_at(sizes, question.batch)
    for form, row in np.random.default_rng(0).permutation(np.argwhere(legal))[:30]:
        alone = question.predicted(FORMS[form], sizes.row(row))
        assert values[programs.times[form], row] == pytest.approx(alone.step_seconds, rel=1e-12)
        assert values[programs.peaks[form], row] == pytest.approx(alone.driver, rel=1e-12)


def choice_of(question, **sizes):
    """A strategy of a question, with one of every size that is not stated."""
    sizes = dict.fromkeys(SIZE_NAMES, 1) | sizes
    form = StrategyForm()
    return PlanChoice(form, sizes, question.predicted(form, sizes))


def test_stages_of_unlike_layers_are_cut_exactly(question):
    """Of all cuts of 56 layers into two stages none has a slower stage that is faster; the tower's layers are a twelfth
    of a decoder's, so half of the layers is no half of the work."""
    choice = choice_of(question, pp=2, dp=8, micro_batch=2)
    setting = choice.prediction.setting
    cut = best_cut(choice, 1e15)
    seconds = [sum(passes) for passes in layer_seconds(setting)]
    assert len(seconds) == 56 and max(seconds[:24]) < min(seconds[25:]) / 4
    whole = {n: run_stages(choice, StageCut((n, 56 - n), ("none", "none"))).seconds for n in range(32, 48)}
    assert cut.layers[0] > 34 and run_stages(choice, cut).seconds <= 1.001 * min(whole.values())
    assert run_stages(choice).seconds > 1.2 * run_stages(choice, cut).seconds  # 28 layers each


def test_stages_have_the_memory_of_their_layers(question):
    """A stage with the tower alone stores a tenth of what another stage does: weights, gradients and moments of its
    layers, and what they save of micro-batches in flight."""
    choice = choice_of(question, pp=3, dp=1, tp=4, micro_batch=1)
    setting, cut = choice.prediction.setting, StageCut((24, 16, 16), ("none",) * 3)
    run = run_stages(choice, cut, 6)
    works = [work for work, count in setting.model.layers for _ in range(count)]
    tower = sum(state_bytes(setting, work) for work in works[:24]) + state_bytes(setting, setting.model.first)
    held = layer_bytes(setting)
    assert run.ran.peaks[0] == pytest.approx(tower + 3 * sum(held[:24]))
    assert held[:24] == [kept_bytes(setting, works[0])] * 24 and run.ran.peaks[0] < run.ran.peaks[1] / 2
    assert run.allocated == max(run.ran.peaks)


def test_a_layout_is_judged_with_an_even_cut_and_the_fastest(question):
    """A layout of two stacks is printed with both, each with its time and memory."""
    plan = StrategyPlan("llava", question, None, (choice_of(question, dp=16),))
    layout = read_layout("dp 4 tp 1 cp 1 pp 4 virtual 1 recompute none zero 1 1f1b", "--only")
    text = layout_lines(plan, layout, find_layout(question, layout))
    cuts = re.findall(r"with stages of (.*): ([\d.]+) s a step, ([\d.]+) GB: it fits", text)
    layers = [
        [int(n) * int(times or 1) for n, times in re.findall(r"(\d+) layers(?: x (\d))?", cut)] for cut, *_ in cuts
    ]
    assert [sum(each) for each in layers] == [56, 56] and layers[1][0] > 24 > layers[0][0]
    assert float(cuts[1][1]) < 0.9 * float(cuts[0][1])


@pytest.mark.parametrize("name, seq", [("llava-1.5-7b", 2048), ("t5-3b", 114), ("whisper-large-v2", 448)])
def test_more_rows_of_a_source_take_more(name, seq):
    """Time and memory of twice the rows are more, of a model without them less, and all are finite."""
    work = model_work(known.configuration(name))
    rows = [predict(work._replace(source=count), "A100", Strategy(flash=True), 8, seq) for count in (64, 576, 1152)]
    assert [0.0, *(each.step_seconds for each in rows)] == sorted({0.0, *(each.step_seconds for each in rows)})
    assert [0.0, *(each.memory["kept"] for each in rows)] == sorted({0.0, *(each.memory["kept"] for each in rows)})
    full = predict(work, "A100", Strategy(flash=True, recompute="full"), 8, seq)
    plain = predict(work, "A100", Strategy(flash=True), 8, seq)
    assert full.memory["kept"] < plain.memory["kept"] / 4 and full.step_seconds > plain.step_seconds


def test_a_tower_runs_once_before_tokens_are_generated():
    """A forward pass computes the tower, a next token does not; caches are of the decoder's layers."""
    config = known.configuration("llava-1.5-7b")
    plan, alone = (
        om.plan(said, 4, "A100", batch=8, seq=1024, infer=True, keep=1) for said in (config, config["text_config"])
    )
    sizes = plan.best[0].sizes | dict(dp=4, tp=1, pp=1, cp=1, micro_batch=1)
    both = [each.question.predicted(StrategyForm(), sizes) for each in (plan, alone)]
    assert both[0].step_seconds > 1.05 * both[1].step_seconds
    assert both[0].memory["caches"] == both[1].memory["caches"]
    after = [next_token_seconds(each.setting, 128) for each in both]
    assert after[0] == pytest.approx(after[1], rel=0.02)
    assert "the first 24 of 56 layers are a tower's, on 577 rows of a sequence" in plan_text(plan)


def changed(name, **keys):
    """A configuration with some keys of its tower changed, or left out where they are None."""
    config = deepcopy(known.configuration(name))
    part = next((config[key] for key in ("vision_config", "audio_config") if key in config), config)
    part |= keys
    for key in [key for key, value in part.items() if value is None]:
        del part[key]
    return config


def without_tower(name):
    """A configuration that does not describe its tower."""
    return {key: value for key, value in known.configuration(name).items() if key != "vision_config"}


@pytest.mark.parametrize(
    "config, words",
    [
        (
            changed("llava-1.5-7b", image_size=330),
            r"vision_config: config: image_size is 330: it must be a multiple of",
        ),
        (changed("llava-1.5-7b", num_hidden_layers=0), r"vision_config: config: num_hidden_layers is 0: .* from 1"),
        (changed("llava-1.5-7b", num_attention_heads=7), r"vision_config: .* a divisor of the 1024 columns"),
        (changed("qwen2-vl-7b", image_size=None), r"vision_config: config: 'image_size' is missing"),
        (changed("qwen2-vl-7b", image_size=42), r"vision_config: .*2 patches, or a multiple, to a side"),
        (changed("qwen2-audio-7b", d_model="wide"), r"audio_config: config: d_model is the name wide"),
        (changed("whisper-large-v2", decoder_layers=0), r"config: decoder_layers is 0: it must be"),
        (without_tower("llava-1.5-7b"), r"config: 'vision_config' is missing: llava has a tower"),
        ({**known.configuration("llava-1.5-7b"), "model_type": "lava"}, r"model_type 'lava' has none here: .*llava"),
        ({**known.configuration("llava-1.5-7b"), "text_config": 3}, r"text_config is 3: it must be an object"),
    ],
)
def test_wrong_towers_are_one_line(config, words):
    with pytest.raises(InputError, match=words) as error:
        om.plan(config, 4, "A100", batch=8, seq=256)
    assert "\n" not in str(error.value)


def test_a_tower_without_a_stage_is_one_line():
    """A cut of the decoder's layers alone, and more tensor ranks than divide the heads of both."""
    work = model_work(known.configuration("llava-1.5-7b"))
    with pytest.raises(InputError, match=r"its 32 layers are the decoder's, and the 24 of the tower have no stage.*56"):
        predict(work, "A100", Strategy(pp=2, flash=True, cut=(16, 16)), 8, 512)
    assert predict(work, "A100", Strategy(pp=2, flash=True, cut=(40, 16)), 8, 512).step_seconds > 0
    with pytest.raises(InputError, match=r"tp 32: .*16 heads"):
        predict(work, "A100", Strategy(tp=32, flash=True), 8, 512)
    with pytest.raises(InputError, match=r"--seq 575: a prompt of 575 tokens, of which 576 are rows of the tower"):
        om.plan("llava-1.5-7b", 4, "A100", batch=8, seq=575)
    with pytest.raises(InputError, match=r"--infer: t5 attends to keys of its encoder"):
        om.plan("t5-base", 4, "A100", batch=8, seq=114, infer=True)
