"""The search of strategies: what is found over columns is what each strategy is predicted alone, and nothing is better;
lines of an explanation add up to it."""

import ast
import csv
import io
import json
import operator
import re
from math import prod

import numpy as np
import pytest
from partitioned import RATES

import opmatrix as om
from opmatrix.models import known
from opmatrix.parallel.cost.constants import load_constants
from opmatrix.parallel.launch.local_ranks import launch_job, launch_line, local_plan
from opmatrix.parallel.search.explained import explain_choice
from opmatrix.parallel.search.forms import FormMasks
from opmatrix.parallel.search.inference import next_token_seconds, predict_forward
from opmatrix.parallel.search.named_collectives import named_collectives
from opmatrix.parallel.search.plan_text import plan_csv, plan_json, stages_text
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.stage_times import StageCut, best_cut, draw_step, run_stages
from opmatrix.parallel.search.strategy_search import compile_forms
from opmatrix.parallel.search.tapes import CompiledTape, Tape
from opmatrix.parallel.train.requested_steps import TrainPlan
from opmatrix.runtime.pricing import datasheet


@pytest.fixture(scope="module")
def found():
    """GPT-2 on 16 devices."""
    return om.plan("gpt2", 16, "A100", batch=32, seq=512, memory=6e9)


def test_columns_are_what_one_is_predicted(found):
    """Drawn strategies of all forms, in numbers, one after the other."""
    question, sizes = found.question, found.question.sizes
    forms = question.forms
    programs = compile_forms(question, forms)
    legal = FormMasks(forms, question.limits, question.seq)(sizes)
    values = programs.values_at(sizes, question.batch)
    rng = np.random.default_rng(1)
    drawn = rng.permutation(np.argwhere(legal))[:150]
    for form, row in drawn:
        alone = question.predicted(forms[form], sizes.row(row))
        assert values[programs.times[form], row] == pytest.approx(alone.step_seconds, rel=1e-12)
        assert values[programs.peaks[form], row] == pytest.approx(alone.driver, rel=1e-12)
    assert {forms[form].balanced for form, _ in drawn} == {False, True}
    assert len({form for form, _ in drawn}) > 50 and found.found.count == legal.sum()


def test_nothing_that_fits_is_faster(found):
    """Every form is tried for the sizes of the first, and no way to factor the devices is left out that is faster."""
    best, question, rows = found.best, found.question, found.found
    assert [each.seconds for each in best] == sorted(each.seconds for each in best)
    assert all(each.bytes <= question.room for each in best)
    at = next(row for row in range(len(rows.sizes)) if rows.sizes.row(row) == best[0].sizes)
    legal = FormMasks(question.forms, question.limits, question.seq)(rows.sizes[np.array([at])])[:, 0]
    tried = [question.predicted(form, best[0].sizes) for form, met in zip(question.forms, legal, strict=True) if met]
    assert len(tried) > 5
    assert min(each.step_seconds for each in tried if each.driver <= question.room) == best[0].seconds
    axes = "dp", "tp", "pp", "cp", "ep"
    layouts = {tuple(each.sizes[name] for name in axes) for each in best}
    faster = np.flatnonzero(rows.seconds < best[-1].seconds)
    assert len(layouts) == len(best) == 10
    assert {tuple(rows.sizes.row(row)[name] for name in axes) for row in faster} <= layouts


SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
FUNCTIONS = {"max": max, "min": min, "ceil": np.ceil, "power": pow, "log2": np.log2}


def added_up(text, names):
    """A printed formula as a number, by nothing but names and arithmetic."""

    def read(node):
        match node:
            case ast.Expression(body):
                return read(body)
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return names[name]
            case ast.BinOp(left, op, right):
                return SIGNS[type(op)](read(left), read(right))
            case ast.Call(ast.Name(name), args):
                return FUNCTIONS[name](*map(read, args))
            case ast.UnaryOp(ast.USub(), operand):
                return -read(operand)
        raise AssertionError(ast.dump(node))

    return read(ast.parse(text, mode="eval"))


def test_what_is_explained_adds_up(found):
    """From what is printed alone: constants, numbers of the data sheet, formulas; parts sum to the prediction."""
    choice = next(each for each in found.best if each.sizes["pp"] > 1)
    said = explain_choice(found, choice)
    printed = str(said).split("\n")
    names, parts = {}, {"seconds": 0.0, "bytes": 0.0}
    for each in said.given:
        assert any(line.split()[:1] == [each.name] and each.source.split()[0] in line for line in printed)
        names[each.name] = each.value
    for each in said.lines:
        assert f"{each.name} = {each.formula} = {each.value:.8g}" in printed
        names[each.name] = added_up(each.formula, names)
        assert names[each.name] == pytest.approx(each.value, rel=1e-9)
        if each.name.startswith("seconds of"):
            parts["seconds"] += names[each.name]
    assert names["seconds"] == pytest.approx(choice.seconds, rel=1e-9) == pytest.approx(parts["seconds"], rel=1e-9)
    assert names["bytes"] == pytest.approx(choice.bytes, rel=1e-9)
    assert {*datasheet("A100").source.split()[:3]} <= {*said.source.split()}


@pytest.fixture(scope="module")
def mixed():
    """A mixture of 8 experts on 16 devices."""
    config = dict(
        model_type="mixtral",
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    return om.plan(config, 16, "A100", batch=16, seq=1024)


def test_experts_lie_over_ranks_where_that_is_quicker(mixed):
    """The same sizes with all experts on each rank take longer. What is explained adds up."""
    choice = mixed.best[0]
    assert choice.sizes["ep"] > 1 and f"ep {choice.sizes['ep']}" in str(mixed)
    assert mixed.question.predicted(choice.form, {**choice.sizes, "ep": 1}).step_seconds > choice.seconds
    said = explain_choice(mixed, choice)
    names = {each.name: each.value for each in said.given}
    for each in said.lines:
        names[each.name] = added_up(each.formula, names)
    assert names["seconds"] == pytest.approx(choice.seconds, rel=1e-9) and "ep" in names
    met = [*named_collectives(choice)]
    assert any(each.what == "ep" and each.op == "all_to_all" and each.ranks == choice.sizes["ep"] for each in met)
    assert all(str(each) in str(mixed) for each in met)


def test_collectives_have_names(found):
    """Sums over data go round a ring near, over trees between nodes; their ranks at all levels multiply."""
    choice = next(each for each in found.best if each.sizes["dp"] == 16)
    [sums] = [each for each in named_collectives(choice) if each.what == "gradients"]
    assert (
        sums.levels == (("NVLink 3", 8, "a ring"), ("InfiniBand HDR", 2, "trees"))
        and sums.beside == load_constants().hidden
    )
    assert str(sums) == (
        "gradients: all_reduce among 16: a ring of 8 over NVLink 3, trees of 2 over InfiniBand HDR; "
        "55 % beside backward"
    )


def test_what_is_sensitive_is_what_is_waited_for(found):
    """Twice the bandwidth takes no longer, half takes no less, and each halves its own part at most."""
    for what, low, high in found.sensitivity(found.best[0]):
        if "latency" in what:
            low, high = high, low
        assert high <= 1 <= low < 2.001, what


def test_files_say_what_the_text_says(found):
    said = json.loads(json.dumps(plan_json(found)))
    rows = [*csv.DictReader(io.StringIO(plan_csv(found)))]
    assert len(rows) == len(said["strategies"]) == 10
    for row, each, choice in zip(rows, said["strategies"], found.best, strict=True):
        assert float(row["seconds"]) == each["seconds"] == choice.seconds
        assert sum(each["seconds by part"].values()) == pytest.approx(choice.seconds)
        assert str(choice) in str(found)


@pytest.mark.parametrize(
    "asked, said",
    [
        (dict(machine="A10"), "machine 'A10': .*did you mean A100.*"),
        (dict(devices=17), "--devices 17: no strategy divides them: .* work are 16 and 18"),
        (dict(memory=1e9), "--memory 1: no strategy of 16 devices fits: .* GB are missing .* would do"),
        (dict(seq=4096), "--seq 4096: the model has 1024 positions"),
    ],
)
def test_what_cannot_be_planned_is_refused(asked, said):
    with pytest.raises(om.InputError, match=said):
        om.plan("gpt2", **(dict(devices=16, machine="A100", batch=32, seq=512) | asked))


def test_a_forward_pass_is_a_part_of_a_step(found):
    """It takes less than the step of its strategy, its caches are keys and values, and local ranks run all of it."""
    asked = local_plan("gpt2", 4, RATES, batch=8, seq=256, infer=True)
    best = asked.best[0]
    assert all(each.sizes["micro_batch"] * each.sizes["dp"] == 8 for each in asked.best)
    one = next(each for each in asked.best if each.sizes["dp"] == 4)
    assert one.prediction.memory["caches"] == 4 * 2 * 12 * 768 * 2 * 256  # bytes, keys and values, layers, sequences
    line = launch_line(asked, best, "tiny.json")
    assert line.startswith("opmatrix launch tiny.json --ranks 4 ") and line.endswith("--batch 8 --tokens 256")
    assert prod(int(n) for n in re.findall(r"--(?:dp|tp|pp|cp) (\d+)", line)) == 4
    step = found.question.predicted(found.best[0].form, found.best[0].sizes)
    passes = predict_forward(step.setting, found.question.limits.head)
    assert passes.step_seconds < step.step_seconds / 2
    assert 0 < next_token_seconds(step.setting, 64) < passes.step_seconds


def test_latent_rows_stay_for_the_next_token():
    """Every head reads the row of 512 numbers and the key of 64 that turn, so each tensor rank has a copy of them."""
    config = known.configuration("deepseek-v3") | dict(num_hidden_layers=8, first_k_dense_replace=0)
    asked = om.plan(config, devices=16, machine="H100", batch=32, seq=1024, infer=True, keep=20)
    assert {each.sizes["tp"] for each in asked.best} > {1}
    for each in asked.best:
        rows = 32 // each.sizes["dp"] * 1024 // each.prediction.setting.strategy.token_ranks
        caches = 2 * 576 * 8 / each.sizes["pp"] * rows
        assert each.prediction.memory["caches"] == pytest.approx(caches)


def test_local_ranks_train_by_each_plan():
    """Jobs of all plans are partitions that there are, of as many ranks; what ranks of one machine wait for each
    other's turn is a part of the time, unless each has a processor."""
    config = dict(model_type="gpt2", vocab_size=23, n_embd=8, n_positions=8, n_head=4, n_layer=4)
    asked = local_plan(config, 4, RATES, batch=8, seq=8)
    assert len(asked.best) == 10 and any(each.form.zero for each in asked.best)
    for choice in asked.best:
        job = launch_job(asked, choice, [[0] * 9] * 8, 1)
        plan = TrainPlan(job.plan(), job.learns)
        assert plan.mesh.ranks == 4 and plan.asked.micro_batches * plan.plan.sizes.sequences == 8
        assert choice.prediction.seconds["turns"] >= 0 and launch_line(asked, choice, "m").count("--train") == 1
    apart = local_plan(config, 4, RATES._replace(processors=9.0), batch=8, seq=8)
    assert all(each.prediction.seconds["turns"] == 0 for each in apart.best)
    spread = next(each for each in asked.best if each.sizes["dp"] == 4)
    parts = {name: float(part) for name, part in spread.prediction.seconds.items()}
    busy = sum(parts[name] for name in parts if name.startswith(("computation", "loss", "host", "optimiser")))
    assert parts["turns"] == pytest.approx(busy * (4 / 1.8 - 1))


def test_pipelines_run_as_formulas_say(found):
    """Task by task, where stages are nearly alike; a cut that moves layers from a stage with a head, and stages that
    compute less again where they have room, are quicker."""
    first = next(each for each in found.best if each.sizes["pp"] > 1 and each.sizes["virtual"] == 1)

    def changed(**form):
        own = first.form._replace(balanced=False, **form)
        return PlanChoice(own, first.sizes, found.question.predicted(own, first.sizes))

    for schedule in ("1f1b", "gpipe", "zb-h1"):
        choice = changed(schedule=schedule)
        ran = run_stages(choice)
        assert ran.seconds == pytest.approx(choice.seconds, rel=0.1) and sum(ran.cut) == 12
    full = changed(schedule="1f1b", recompute="full")
    cut, even = best_cut(full, (full.bytes + changed(schedule="1f1b", recompute="none").bytes) / 2), run_stages(full)
    assert sum(cut.layers) == 12 and len(cut.again) == first.sizes["pp"] and cut.again[-1] != "full"
    assert run_stages(full, cut).seconds < even.seconds
    assert "again" in stages_text(StageCut((3, 3), ("full", "full"))) and best_cut(full, 4.1e9) is None


def test_the_last_stage_has_fewer_layers_and_the_head(found):
    """12 layers on 8 stages: the slowest has two, or one and the head, which one after the other would be 3 or so."""
    form = found.best[0].form._replace(recompute="none", zero=0, schedule="1f1b", sequence=False)
    sizes = {**found.best[0].sizes, "dp": 2, "tp": 1, "cp": 1, "ep": 1, "pp": 8, "micro_batch": 1, "virtual": 1}
    choice = PlanChoice(form, sizes, found.question.predicted(form, sizes))
    assert run_stages(choice).cut == (2, 2, 2, 2, 1, 1, 1, 1)
    assert run_stages(choice).seconds == pytest.approx(choice.seconds, rel=0.1)


def test_a_picture_is_drawn(found, tmp_path):
    choice = next(each for each in found.best if each.sizes["pp"] > 1)
    text = draw_step(choice, tmp_path / "step.svg", "a step").read_text()
    assert text.count("<title>") >= 2 * choice.sizes["pp"] and "stage 0" in text


def test_a_tape_computes_what_numpy_does():
    """Shared steps, buffers that are used again, results that are columns and numbers."""
    tape, rng = Tape("a", "b"), np.random.default_rng(0)
    a, b = tape.columns["a"], tape.columns["b"]

    def results(a, b):
        c = a * b + 2
        return [c, np.maximum(c, a / b) - c**2, a, np.ceil(b**-1) + 0 * a, np.minimum(3.0, c) / 1, 1 - (a - 1 * b)]

    columns = {name: rng.uniform(1, 2, 5000) for name in "ab"}
    out = np.empty((7, 5000))
    CompiledTape(tape, [*results(a, b), 5.0])(columns, out)
    assert np.array_equal(out, [*results(columns["a"], columns["b"]), np.full(5000, 5.0)])
    assert a * 0 == 0 and (a + 0) is a and (a * b).at == (b * a).at
