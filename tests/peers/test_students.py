"""Modules of `to_torch` that come back, and students: trained, certified, resumed, interrupted, refused."""

import copy
import os
import signal
import threading

import checkpoints
import numpy as np
import pytest
import standin
from checkpoints import CONFIG, arrays
from padded import feed, ragged
from programs import bert_program
from test_families import model as family
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.exports.program_graph import MASK, read_program
from opmatrix.models import head
from rewrites.approximate.students.training import TrainingPlan, TrainingState
from rewrites.approximate.students.training_text import read_training_text
from rewrites.cli.commands import app
from rewrites.metrics.check_table import FAILS
from rewrites.metrics.recheck import of_directory

torch = pytest.importorskip("torch", reason="needs peers: torch")

FAMILIES = ["roberta", "distilbert", "albert", "t5", "gpt2", "llama", "qwen3"]
RAGGED = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
SPEAKS = "gpt2", "llama", "qwen3"


@pytest.fixture
def checkpoint(tmp_path):
    return checkpoints.write(tmp_path / "bert", vocab_size=44)


@pytest.fixture
def text(tmp_path):
    """Three hundred different lines of the words that the tokenizer has."""
    rng, file = np.random.default_rng(0), tmp_path / "lines.txt"
    words = [word for word in checkpoints.WORDS if not word.startswith("#")]
    lines = {" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(500)}
    file.write_text("\n".join(sorted(lines)[:300]), "utf-8")
    return file


def distil(checkpoint, text, out=None, **options):
    asked = {"steps": 4, "batch": 256, "tokens": 16, "machine": standin.machine()} | options
    return om.distil(checkpoint, text, out, **asked)


# ---- modules that come back


@pytest.mark.parametrize("case", FAMILIES)
def test_an_operator_comes_back_with_the_numbers_of_its_module(case):
    config, operator, at, _ = family(case)
    whole = operator @ head(config, at) if case in SPEAKS else operator
    module = om.to_torch(whole)
    assert om.from_torch(module) == whole
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    back = om.from_torch(copy.deepcopy(module))
    assert back != whole
    inputs = {"input_ids": np.zeros((len(RAGGED), 9), np.int64), MASK: np.zeros((len(RAGGED), 9), np.int64)}
    for at, row in enumerate(RAGGED):
        inputs["input_ids"][at, : len(row)], inputs[MASK][at, : len(row)] = row, 1
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    given = [torch.from_numpy(inputs.get(name, 0 * inputs[MASK])) for name in names]
    rows = module(*given).detach().numpy()
    wanted = om.dense(back, om.Batch(RAGGED))
    np.testing.assert_allclose(ragged(rows, inputs[MASK]), wanted, atol=2e-5 * abs(wanted).max())


def test_a_tied_head_is_one_weight():
    table = Data(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), "table")
    module = om.to_torch(om.weight(table) @ om.relu @ om.weight(table.T))
    [weight] = module.parameters()
    weight.data *= 2
    twice = Data(2 * table.array, "table")
    assert om.from_torch(module) == om.weight(twice) @ om.relu @ om.weight(twice.T)


def test_what_is_computed_is_no_weight():
    config, operator, at, _ = family("llama")
    assert not [weight for weight in om.to_torch(operator).parameters() if tuple(weight.shape) == (20, 3)]  # rotations


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_a_program_comes_back_with_the_numbers_of_its_module(form):
    program = bert_program(CONFIG, arrays(CONFIG), pack=FORMATS[form].approximate)
    module = om.to_torch(program)
    assert om.from_torch(module).hash == program.hash
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(1.125)
    back, inputs = om.from_torch(module), feed(read_program(program), RAGGED)
    rows = module(*map(torch.from_numpy, inputs.values())).detach().numpy()
    np.testing.assert_allclose(ragged(rows, inputs[MASK]), back.run(RAGGED), atol=1e-5 * abs(rows).max())


def test_weights_that_do_not_fit_are_refused():
    program = bert_program(CONFIG, arrays(CONFIG), pack=FORMATS["int8"].approximate)
    with pytest.raises(InputError, match=r"^from_torch: \w+ is stored as int8, which rounds"):
        om.from_torch(om.to_torch(program))
    module = om.to_torch(om.weight(np.ones((9, 4))) @ om.relu)
    [weight] = module.parameters()
    weight.data = torch.full((9, 4), torch.nan)
    with pytest.raises(InputError, match="not finite: train with a smaller rate"):
        om.from_torch(module)
    weight.data = torch.ones(8, 4)
    with pytest.raises(InputError, match=r"is \(8, 4\), not \(9, 4\)"):
        om.from_torch(module)


# ---- students


def test_a_student_is_smaller_nearer_than_before_and_certified(checkpoint, text, tmp_path):
    before = distil(checkpoint, text, steps=0)
    trained = distil(checkpoint, text, tmp_path / "small", steps=40, rate=3e-3)
    assert trained.training.step == 40 and trained.training.first == pytest.approx(before.training.best)
    assert trained.training.best < 0.8 * trained.training.first
    assert trained.stated < before.stated
    whole = om.schedule(om.open_model(checkpoint).operator(True), om.Batch([[1, 2]]), machine=standin.machine()).program
    assert trained.program.stored_bytes < 0.9 * whole.stored_bytes
    saved = om.load(tmp_path / "small")
    assert saved.hash == trained.program.hash
    np.testing.assert_array_equal(saved.embed(["the bank"]), trained.program.embed(["the bank"]))
    assert not [check for check in of_directory(tmp_path / "small", str(checkpoint)) if check.verdict == FAILS]
    assert [*tmp_path.glob("*training*")] == []
    assert "40 steps" in str(trained)


def test_a_student_that_is_a_program_is_trained_as_it_is(checkpoint, text, tmp_path):
    distil(checkpoint, text, tmp_path / "first", steps=2)
    again = distil(checkpoint, text, student=tmp_path / "first", steps=10, rate=2e-3)
    assert again.training.best < again.training.first
    assert len(again.program.steps) == len(om.load(tmp_path / "first").steps)


def test_pruning_leaves_the_share_that_is_asked_for(checkpoint, text):
    pruned = distil(checkpoint, text, steps=30, sparsity=0.5).program
    matrices = [c.wide() for name, c in pruned.constants.items() if hasattr(c, "wide") and "embeddings" not in name]
    zeros = sum((matrix == 0).sum() for matrix in matrices) / sum(matrix.size for matrix in matrices)
    assert 0.4 < zeros < 0.55


@pytest.mark.parametrize("steps", [1, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(checkpoint, text, tmp_path, steps, monkeypatch):
    whole = distil(checkpoint, text, steps=8)
    monkeypatch.setattr("rewrites.approximate.students.training.TrainingPlan.rate_at", lambda plan, done: 5e-4)
    steady = distil(checkpoint, text, steps=8)
    part = tmp_path / "small"
    with monkeypatch.context() as patch:
        patch.setattr("rewrites.approximate.students.distilled.find_program", None)  # it is killed behind its training
        with pytest.raises(TypeError):
            distil(checkpoint, text, part, steps=steps)
    assert [file.name for file in tmp_path.glob("*training*")] == ["small.training.safetensors"]
    gone_on = distil(checkpoint, text, part, steps=8)
    assert gone_on.training.step == 8 and gone_on.program.hash == steady.program.hash != whole.program.hash
    with pytest.raises(InputError, match="it exists, and a student replaces nothing"):
        distil(checkpoint, text, part)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_the_training_and_keeps_the_best(checkpoint, text, number, monkeypatch):
    taken = []

    def step(trainer, rows):
        trainer.state.step += 1
        taken.append(rows)
        if len(taken) == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr("rewrites.approximate.students.training.Trainer.step", step)
    before = signal.getsignal(number)
    assert distil(checkpoint, text, steps=10**6).training.step == 3
    assert signal.getsignal(number) is before


def test_another_thread_trains_too(checkpoint, text):
    made = []
    worker = threading.Thread(target=lambda: made.append(distil(checkpoint, text, steps=1)))
    worker.start()
    worker.join()
    assert made[0].training.step == 1


def test_texts_train_choose_and_state_apart(checkpoint, text):
    parts = read_training_text(om.open_model(checkpoint), text, 16)
    rows = [{tuple(row) for row, _ in part} for part in parts]
    assert not (rows[0] & rows[1] or rows[0] & rows[2] or rows[1] & rows[2])
    assert min(map(len, rows)) >= 16 and max(len(row) for part in rows for row in part) <= 16
    epoch = len(parts.train)
    batches, seen = parts.batches(0, 64), []
    while len(seen) < epoch:
        seen += next(batches)
    assert sorted(map(str, seen)) == sorted(map(str, parts.train))


def test_the_rate_warms_up_and_falls():
    plan = TrainingPlan(steps=100, rate=1.0, sparsity=0.5)
    rates = [plan.rate_at(step / 100) for step in range(101)]
    assert rates[0] < 0.05 and max(rates) == pytest.approx(1, abs=0.02) and rates[100] == 0
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert plan.sparsity_at(0) == 0 and plan.sparsity_at(0.7) == plan.sparsity_at(1) == 0.5
    assert plan.done(TrainingState(step=25)) == 0.25
    assert TrainingPlan(minutes=2).done(TrainingState(seconds=30)) == 0.25


# ---- what is refused


def test_a_text_that_is_too_short_is_refused(checkpoint, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("\n".join(f"the bank {'a ' * at}" for at in range(9)))
    with pytest.raises(InputError, match=r"--text .*short.txt: \d+ different texts of at most 16 tokens are too few"):
        distil(checkpoint, short)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"units": 0.01}, "--units 0.01: a student keeps a share from 0.125 to 1"),
        ({"units": 1, "heads": 1}, "--units 1 --heads 1: the student would be the model"),
        ({"steps": -1}, "--steps -1: give a number from 0 on"),
        ({"rate": float("nan")}, "--rate nan: give a number above 0"),
        ({"batch": 0}, "--batch 0: give tokens"),
        ({"sparsity": 1}, "--sparsity 1: give a share from 0 to below 1"),
    ],
)
def test_numbers_that_no_training_has_are_refused(checkpoint, text, options, words):
    with pytest.raises(InputError, match=words):
        distil(checkpoint, text, **options)


def test_a_damaged_file_of_a_training_is_refused(checkpoint, text, tmp_path):
    (tmp_path / "small.training.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="no file of a training"):
        distil(checkpoint, text, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_the_command_says_what_it_saved(checkpoint, text, tmp_path):
    out = tmp_path / "small"
    line = ["distil", str(checkpoint), "--text", str(text), "--out", str(out), "--steps", "1", "--tokens", "16"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0 and f"saved     {out}" in done.stdout and "1 steps" in done.stdout
    refused = CliRunner().invoke(app, line)
    assert isinstance(refused.exception, InputError) and "--out" in str(refused.exception)
