"""Questions to a plan: one layout, a stack, measured steps of one's own, intervals."""

from dataclasses import replace

import numpy as np
import pytest
from planned_models import MODEL

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.parallel.cost.constants import constants_version
from opmatrix.parallel.cost.intervals import (
    NEAREST_KINDS,
    SourceResiduals,
    StepKind,
    find_interval,
    interval_of,
    kind_of,
    load_residuals,
)
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.stacks import STACKS, stack_named, stack_of_source
from opmatrix.parallel.cost.step_parts import fullest_share
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.questions.fewest_devices import counts_up_to, fewest_devices
from opmatrix.parallel.questions.layouts import against_table, find_layout, layout_lines, read_layout
from opmatrix.parallel.search.forms import FormMasks
from opmatrix.parallel.search.plan_text import plan_json
from opmatrix.parallel.search.stage_times import even_cut, even_stages, run_stages
from opmatrix.parallel.search.step_factors import StepFactors, scale_question
from opmatrix.parallel.search.strategy_search import compile_forms
from opmatrix.parallel.settings.planned_layouts import layout_of, planned_settings
from opmatrix.parallel.settings.run_layout import RunFacts

MIXTURE = MODEL | dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)


def ask(model=MODEL, devices=16, **more):
    return om.plan(model, devices, "H100", batch=32, seq=2048, keep=3, **more)


@pytest.fixture(scope="module")
def free():
    return ask()


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_has_only_what_it_runs(name):
    """All forms that apply are of the stack, and columns are what each strategy is predicted alone."""
    model = MIXTURE if STACKS[name].folds_experts or STACKS[name].relays else MODEL
    plan = ask(model, stack=name)
    stack, question = plan.question.stack, plan.question
    for choice in plan.best:
        sizes, form = choice.sizes, choice.form
        assert sizes["pp"] == 1 or form.schedule in stack.schedules
        assert sizes["cp"] == 1 or form.context in stack.contexts
        assert form.zero in (stack.zero if sizes["pp"] == 1 else stack.pipelined_zero)
        assert not form.sequence or stack.sequence
        strategy = choice.prediction.setting.strategy
        assert (strategy.beside, strategy.gradient_bytes) == (stack.beside, stack.gradient_bytes)
    choices = dict(choices=question.choices, batch=question.batch)
    masks = FormMasks(question.forms, question.limits, question.seq, **choices)(question.sizes)
    programs = compile_forms(question, question.forms)
    values = programs.values_at(question.sizes, question.batch)
    drawn = np.random.default_rng(3).permutation(np.argwhere(masks))[:60]
    for form, row in drawn:
        alone = question.predicted(question.forms[form], question.sizes.row(row))
        assert values[programs.times[form], row] == pytest.approx(alone.step_seconds, rel=1e-12)
        assert values[programs.peaks[form], row] == pytest.approx(alone.driver, rel=1e-12)
    assert f"by {stack.title} ({stack.version})" in str(plan) and plan_json(plan)["stack"] == name


def test_no_ring_leaves_only_exchanges_of_heads():
    """Context ranks remain, and all of them exchange heads."""
    plan = ask(no_ring=True)
    rows = plan.found.sizes.cp[np.isfinite(plan.found.seconds)]
    used = {
        plan.question.forms[form].context
        for form, cp in zip(plan.found.forms, plan.found.sizes.cp, strict=True)
        if cp > 1
    }
    assert (rows > 1).any() and used == {"ulysses"}
    ringed = ask(no_ring=True, stack="torchtitan").found
    assert {*ringed.sizes.cp[np.isfinite(ringed.peaks)]} == {1}


def test_headroom_stays_free():
    """What fits has the share free; what needs it is left out."""
    plan, roomy = ask(memory=20e9), ask(memory=20e9, headroom=0.25)
    assert roomy.question.room == 15e9 and roomy.found.fit < plan.found.fit
    assert all(choice.bytes <= 15e9 for choice in roomy.best)
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match=r"--headroom .*: a share of the memory"):
            ask(headroom=share)


def test_experts_are_loaded_as_routers_do(free):
    """13 % longer than even ones by default, within the 8 to 20 % that are measured."""
    real, even, heavy = ask(MIXTURE), ask(MIXTURE, load=1.0), ask(MIXTURE, load=2.0)
    choice = even.best[0]
    assert real.question.load == 1.2 and free.question.load == 1
    longer = real.question.predicted(choice.form, choice.sizes).step_seconds / choice.seconds
    assert 1.08 <= longer <= 1.2
    assert heavy.question.predicted(choice.form, choice.sizes).step_seconds > longer * choice.seconds
    for load in (0.5, 1e4, float("nan")):
        with pytest.raises(InputError, match=r"--load .*over the mean"):
            ask(MIXTURE, load=load)
    with pytest.raises(InputError, match="the model has no experts"):
        ask(load=2.0)


@pytest.mark.deep
def test_the_fewest_devices_are_the_first_that_fit(free):
    """Of the counts that are tried; a plan of fewer ones is refused, or too slow."""
    question = replace(free.question, room=10e9)
    fewest = fewest_devices(question)
    assert counts_up_to(16) == [1, 2, 3, 4, 6, 8, 12, 16] and fewest.devices in counts_up_to(16)
    for devices in counts_up_to(16):
        if devices < fewest.devices:
            with pytest.raises(InputError):
                ask(devices=devices, memory=10e9)
    again = ask(devices=fewest.devices, memory=10e9)
    assert again.best[0].seconds == fewest.choice.seconds and f": {fewest.devices}, of 1, 2" in str(fewest)
    quick = fewest_devices(question, within=0.7 * fewest.choice.seconds)
    assert quick.devices > fewest.devices and quick.choice.seconds <= quick.within
    never = fewest_devices(question, within=1e-6)
    assert never.devices is None and "none of 1, 2" in str(never)
    with pytest.raises(InputError, match="--within"):
        fewest_devices(question, within=-1.0)


def test_limits_hold(free):
    assert all(choice.sizes["tp"] <= 2 for choice in ask(max_tp=2).best)
    for choice in ask(schedule="interleaved").best:
        assert choice.sizes["pp"] == 1 or choice.form.schedule == "interleaved"
    for change, words in (
        (dict(schedule="dualpip"), "--schedule dualpip: did you mean dualpipe.*there are 1f1b"),
        (dict(stack="megatrn"), "stack 'megatrn': did you mean megatron"),
        (dict(precision="fp9"), "precision 'fp9'"),
    ):
        with pytest.raises(InputError, match=words):
            ask(**change)
    with pytest.raises(InputError, match="A100: its data sheet has no rate of fp8"):
        om.plan(MODEL, 16, "A100", batch=32, seq=2048, precision="fp8")
    assert ask(precision="fp8").best[0].seconds < free.best[0].seconds


def test_sources_name_their_stack():
    for source, notes, name in (
        ("torchtitan benchmarks", "FSDP", "torchtitan"),
        ("NVIDIA DGXC llama3-70b bf16", "tp/dp overlap on", "nemo"),
        ("Megatron-Bridge performance summary", "", "nemo"),
        ("FlagPerf llama3-8b A800", "no overlap in this version", "megatron-plain"),
        ("MindSpeed-LLM measured", "", "mindspeed"),
        ("somebody", "", "megatron"),
    ):
        assert stack_of_source(source, notes).name == name
    assert stack_of_source("torchtitan", "2D+AsyncTP").beside == ("tp",)
    again = Strategy(recompute="selective", flash=True)
    assert stack_named("megatron").habits(again).recompute == "core_attention"
    assert stack_named("torchtitan").habits(again).recompute == "selective"


# ---- one layout


@pytest.mark.parametrize(
    "text, fixed",
    [
        ("tp 8 pp 2", dict(tp=8, pp=2)),
        (
            "tp 2 × pp 2 × dp 4; micro-batch 8, zb-h1, ZeRO 1",
            dict(tp=2, pp=2, dp=4, micro_batch=8, schedule="zb-h1", zero=1),
        ),
        ("pp 2, 4 chunks a stage, norms cut, full again", dict(pp=2, virtual=4, sequence=True, recompute="full")),
        ("cp=2 ulysses recompute none", dict(cp=2, context="ulysses", recompute="none")),
        ("pp 4, 2 chunks a stage, ends counted", dict(pp=4, virtual=2, balanced=True)),
    ],
)
def test_a_layout_is_read_as_it_is_printed(text, fixed):
    assert read_layout(text, "--only").fixed == fixed


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "--only '': it states nothing"),
        ("tp", "--only: tp : give a whole number"),
        ("tp two", "--only: tp two: give a whole number"),
        ("tpp 2", "--only: tpp: did you mean tp"),
    ],
)
def test_words_that_name_nothing_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_layout(text, "--only")


@pytest.mark.parametrize(
    "text, words",
    [
        ("tp 3", "tp 3: 16 heads|are 3 ranks on 16 devices"),
        ("tp 2 dp 4 pp 1 cp 1", "dp 4 x tp 2 .* are 8 ranks on 16 devices"),
        ("tp 16", "tp 16"),
        ("dp 16 micro-batch 3", "batch 32: dp 16 ranks with micro-batches of 3"),
        ("pp 16 virtual 4", "virtual 4: 16 stages of 4 chunks are more than 16 layers"),
    ],
)
def test_a_layout_that_is_not_legal_is_refused_by_its_rule(free, text, words):
    if text == "tp 16":  # each rank of a pair has copies of one of 8 heads of keys: it is legal
        assert find_layout(free.question, read_layout(text, "--only")).sizes["tp"] == 16
        return
    with pytest.raises(InputError, match=words) as error:
        find_layout(free.question, read_layout(text, "--only"))
    assert "\n" not in str(error.value)


def test_a_layout_is_judged_beside_the_first(free):
    """It has what is stated, the rest is the best; what does not fit is said to."""
    layout = read_layout("tp 4 pp 2 full again", "--only")
    choice = find_layout(free.question, layout)
    assert (choice.sizes["tp"], choice.sizes["pp"], choice.form.recompute) == (4, 2, "full")
    assert choice.seconds > free.best[0].seconds
    text = layout_lines(free, layout, choice)
    assert "it fits" in text and "% slower" in text and "more computation" in text
    small = replace(free.question, room=5e9)
    held = find_layout(small, read_layout("dp 16 zero 0", "--only"))
    assert held.bytes > 5e9 and "does not fit" in layout_lines(replace(free, question=small), layout, held)
    rows = against_table(free.best[0], choice)
    assert f"{choice.seconds:.4g}" in rows and "GB by the driver" in rows


# ---- intervals


def test_intervals_are_of_the_nearest_rows():
    kind = StepKind("n4", "nemo", "dense", "sixteen")
    rows = [
        SourceResiduals(f"table {at}", kind._replace(stack=stack), (mean, mean * 1.02), ())
        for at, (stack, mean) in enumerate(
            [("nemo", 1.0), ("nemo", 1.04), ("nemo", 0.98), ("other", 2.0), ("other", 0.5)]
        )
    ]
    near = find_interval(kind, residuals=rows)
    assert near.shared == NEAREST_KINDS[0] and (near.rows, near.sources) == (6, 3) and near.low < 1 < near.high
    wide = find_interval(kind._replace(stack="third"), residuals=rows)
    assert wide.shared == NEAREST_KINDS[1] and wide.sources == 5 and wide.high / wide.low > near.high / near.low
    assert find_interval(kind, residuals=rows[:2]) is None
    groups = [(row.source, row.seconds) for row in rows[:3]]
    often = interval_of([(source, ratios * 50) for source, ratios in groups], groups, ())
    assert often.high == pytest.approx(interval_of(groups, groups, ()).high)  # rows of a source weigh together


def test_a_plan_says_its_intervals(free):
    seconds, sizes = free.intervals
    assert seconds.low < seconds.high and sizes.low < sizes.high
    assert "intervals that hold 80 % of measured steps" in str(free) and seconds.text in str(free)
    told = plan_json(free)
    first = told["strategies"][0]
    assert (
        first["seconds from"] == seconds.low * first["seconds"] and told["version of constants"] == constants_version()
    )
    assert kind_of(free.best[0].prediction.setting).family == "n4"
    assert ask(infer=True).intervals == (None, None)
    assert all(len(row.seconds) + len(row.bytes) for row in load_residuals())


# ---- measured steps of one's own

HEAD = "dp,tp,pp,cp,ep,micro_batch,virtual,zero,recompute,schedule,context,sequence,step_s"
ROWS = ("16,1,1,1,1,1,1,1,none,1f1b,ring,no", "2,8,1,1,1,1,1,1,none,1f1b,ring,no", "4,2,2,1,1,2,1,1,none,1f1b,ring,no")
HOWS = (Strategy(dp=16, zero=1), Strategy(dp=2, tp=8, zero=1), Strategy(dp=4, tp=2, pp=2, micro_batch=2, zero=1))


def steps_file(tmp_path, seconds, rows=ROWS):
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([HEAD, *(f"{row},{took}" for row, took in zip(rows, seconds, strict=True))]) + "\n")
    return file


def seconds_on(how, machine="H100", slower=1):
    step = predict(MODEL, machine, replace(how, flash=True), 32, 2048)
    return slower * float(step.step_seconds)


def test_one_step_scales_all(tmp_path, free):
    file = steps_file(tmp_path, [seconds_on(HOWS[0], slower=1.3)], ROWS[:1])
    plan = ask(calibrate=file)
    assert plan.best[0].seconds == pytest.approx(1.3 * free.best[0].seconds, rel=1e-6)
    interval, before = plan.intervals[0], free.intervals[0]
    assert interval.high / interval.low < before.high / before.low and interval.rows == 1
    assert "calibrated by 1 rows of 1 strategies, one factor" in str(plan)
    assert plan.costs(plan.best[0])["kWh"] == pytest.approx(1.3 * free.costs(free.best[0])["kWh"], rel=1e-6)


def test_several_steps_tell_links_from_computation(tmp_path, free):
    """Of rows that were made with a factor for each, both are found, and all rows are predicted."""
    true = StepFactors(1.2, 2.5)
    slow = scale_question(free.question, true)

    def seconds(question):
        return [
            float(predict(MODEL, question.machine, how, 32, 2048, constants=question.constants).step_seconds)
            for how in (replace(how, flash=True) for how in HOWS)
        ]

    plan = ask(calibrate=steps_file(tmp_path, seconds(slow)))
    assert plan.learned.factors == pytest.approx(true, rel=0.05)
    assert seconds(plan.question) == pytest.approx(seconds(slow), rel=0.03)
    assert "3 rows of 3 strategies, two factors" in str(plan)
    assert plan.intervals[0].high < 1.1


def test_contradictory_repeats_widen_the_interval(tmp_path):
    one = seconds_on(HOWS[0])
    alike = ask(calibrate=steps_file(tmp_path, [one, one], [ROWS[0]] * 2))
    apart = ask(calibrate=steps_file(tmp_path, [0.8 * one, 1.2 * one], [ROWS[0]] * 2))
    spans = [plan.intervals[0].high / plan.intervals[0].low for plan in (alike, apart)]
    assert spans[1] > 1.2 * spans[0] and "contradictory: one strategy took" in str(apart)
    assert "contradictory" not in str(alike)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "it has no rows"),
        (f"{HEAD}\n{ROWS[0]},\n", "a row has no seconds"),
        (f"{HEAD}\n{ROWS[0]},-3\n", "a row has no seconds"),
        (f"{HEAD}\n{ROWS[0]},4000\n", "its steps take .* times what is predicted"),
        (f"{HEAD},machine\n{ROWS[0]},1,A100\n", "row 1: it is of A100, and the plan of H100"),
        (f"{HEAD}\n8,1,1,1,1,1,1,1,none,1f1b,ring,no,1\n", "are 8 ranks, and the row has 16 devices"),
        (f"{HEAD},config\n{ROWS[0]},1,llama9\n", "llama9: there is no well-known model"),
        (f"{HEAD}\n16,1,1,1,1,1,1,1,none,zigzag,ring,no,1\n", "schedule 'zigzag'"),
    ],
)
def test_rows_that_teach_nothing_are_refused(tmp_path, text, words):
    file = tmp_path / "steps.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        ask(calibrate=file)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="No such file"):
        ask(calibrate=tmp_path / "none.csv")


# ---- stages that count the ends


UNEVEN = MODEL | dict(num_hidden_layers=14)  # 16 places with table and head
COUNTED = read_layout("pp 4 dp 4 virtual 2 micro-batch 1 ends counted", "--only")


def test_chunks_divide_layers_with_table_and_head():
    """14 layers on 4 stages have no chunks of their own; with table and head there are 16 places, and the pipeline that
    is run task by task has the layers that the settings say."""
    plan = ask(UNEVEN, stack="megatron")
    choice = find_layout(plan.question, COUNTED)
    assert choice.form.balanced and str(choice).count("ends counted") == 1
    assert even_stages(choice).layers == (1, *[2] * 6, 1)
    assert layout_of(choice, 32, 2048).cut == (1, *[2] * 6, 1)
    ran = run_stages(choice)
    assert ran.cut == (1, *[2] * 6, 1) and ran.seconds == pytest.approx(choice.seconds, rel=0.1)
    with pytest.raises(InputError, match="no such strategy"):
        find_layout(replace(plan.question, stack=stack_named("deepspeed")), COUNTED)
    with pytest.raises(InputError):
        find_layout(
            plan.question,
            read_layout("pp 4 dp 4 virtual 2", "--only")._replace(fixed=dict(pp=4, dp=4, virtual=2, balanced=False)),
        )


@pytest.mark.parametrize("layers, pp", [(14, 2), (14, 4), (15, 4), (17, 4), (16, 16), (30, 8), (31, 8), (29, 2)])
def test_the_slowest_stage_is_that_of_the_cut(layers, pp):
    """The layers of the fullest stage, by formula and by the cut itself."""
    config = MODEL | dict(num_hidden_layers=layers)
    strategy = Strategy(pp=pp, micro_batch=1, flash=True, balanced=True)
    setting = predict(config, "H100", strategy, 64, 2048).setting
    assert round(layers * fullest_share(setting), 9) == max(even_cut(layers, pp, 1, 1))


@pytest.mark.parametrize("stack, name", [("megatron", "run.sh"), ("torchtitan", "run.toml")])
def test_settings_with_counted_ends_are_read_back(stack, name, tmp_path):
    """A written layout is judged as the same strategy."""
    plan = ask(UNEVEN, stack=stack)
    choice = find_layout(plan.question, COUNTED)
    facts = RunFacts(14, 16)
    written = planned_settings(stack, None, facts).text(choice, 32, 2048, tmp_path / name)
    (tmp_path / name).write_text(written)
    again = planned_settings(stack, tmp_path / name, facts)
    assert again.stated().fixed["balanced"] is True
    assert find_layout(plan.question, again.stated()).sizes == choice.sizes
