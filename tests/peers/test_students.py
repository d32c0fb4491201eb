"""Modules of `to_torch` that come back, and students: trained, certified, resumed, interrupted, refused."""

import copy
import os
import signal
import threading
from dataclasses import replace

import checkpoints
import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from padded import feed, ragged
from programs import bert_program
from safetensors.numpy import load_file
from test_families import model as family
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.display.progress import unheard
from opmatrix.exports.program_graph import MASK, read_program
from opmatrix.models import head
from rewrites.approximate.students.distilled import (
    TRAINING_FILE,
    Pupil,
    Teacher,
    certify_student,
    few_texts,
    open_student,
    prune_model,
    teach,
)
from rewrites.approximate.students.smaller import KeptShares
from rewrites.approximate.students.training import TrainingPlan, TrainingState
from rewrites.cli.commands import app
from rewrites.metrics.check_table import FAILS
from rewrites.metrics.recheck import import_program, of_directory

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

FAMILIES = ["roberta", "distilbert", "albert", "t5", "gpt2", "llama", "qwen3"]
RAGGED = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
SPEAKS = "gpt2", "llama", "qwen3"
LLAMA = dict(
    vocab_size=44,
    hidden_size=24,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A directory with a checkpoint and three hundred different lines of the words that its tokenizer has."""
    place = tmp_path_factory.mktemp("students")
    checkpoints.write(place / "bert", vocab_size=44)
    (place / "lines.txt").write_text("\n".join(drawn_lines(300)), "utf-8")
    return place


def drawn_lines(count):
    """So many different lines of the words that checkpoints have."""
    rng, words = np.random.default_rng(0), [word for word in checkpoints.WORDS if not word.startswith("#")]
    lines = {" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(2 * count)}
    return sorted(lines)[:count]


@pytest.fixture(scope="module")
def pupil(room):
    """A teacher, and its model with half of the units and heads."""
    teacher = Teacher.open(room / "bert", room / "lines.txt", 16)
    return teacher, prune_model(teacher, KeptShares(), False)


def train(pupil, room, out=None, **plan):
    return teach(*pupil, TrainingPlan(**{"steps": 4, "batch": 256} | plan), room / "lines.txt", out, unheard)


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
    _, operator, _, _ = family("llama")
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
    with pytest.raises(InputError, match=r"^from_torch: \S+ is stored as int8, which rounds"):
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


def count_numbers(term):
    return sum(node.args[0].array.size for node in term.walk() if node.kind.name == "weight")


def test_a_student_is_smaller_and_comes_nearer(pupil, room):
    teacher, small = pupil
    assert count_numbers(small.source) < 0.8 * count_numbers(teacher.operator)
    trained, state = train(pupil, room, steps=40, rate=3e-3)
    assert state.step == 40 and state.best < 0.8 * state.first
    few = few_texts(teacher.text)
    wanted, before, after = (om.dense(term, few) for term in (teacher.operator, small.source, trained))
    assert np.linalg.norm(after - wanted) < np.linalg.norm(before - wanted)


def test_the_best_state_is_kept(pupil, room):
    trained, state = train(pupil, room, steps=3, rate=5.0)  # far too large: it can only get worse
    assert state.best_step == 0 and trained == pupil[1].source


def test_pruning_leaves_the_share_that_is_asked_for(pupil, room):
    trained, _ = train(pupil, room, steps=20, sparsity=0.5)
    weights = [node.args[0] for node in trained.walk() if node.kind.name == "weight"]
    pruned = [data.array for data in weights if "embeddings" not in data.label]
    assert {round(float((array == 0).mean()), 2) for array in pruned} <= {0.48, 0.49, 0.5}
    assert not any((data.array == 0).mean() > 0.1 for data in weights if "embeddings" in data.label)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(pupil, room, tmp_path, steps, monkeypatch):
    monkeypatch.setattr("rewrites.approximate.students.training.TrainingPlan.rate_at", lambda plan, done: 5e-4)
    train(pupil, room, tmp_path / "whole", steps=8)
    train(pupil, room, tmp_path / "small", steps=steps)
    assert train(pupil, room, tmp_path / "small", steps=8)[1].step == 8
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}{TRAINING_FILE}" for name in ("small", "whole")]
    whole, small = (load_file(tmp_path / f"{name}{TRAINING_FILE}") for name in ("whole", "small"))
    numbers = [name for name in whole if not name.startswith("best.")]  # they are looked at after other steps
    assert whole.keys() == small.keys() and all(np.array_equal(whole[name], small[name]) for name in numbers)
    teacher, student = pupil
    shorter = replace(teacher, text=teacher.text._replace(train=teacher.text.train[1:]))
    by_size = replace(student, removed=f"{student.removed}, by size alone")
    for who, options in ((pupil, {"batch": 128}), ((shorter, student), {}), ((teacher, by_size), {})):
        with pytest.raises(InputError, match=r"it is of another training: give its model, text and shares"):
            train(who, room, tmp_path / "small", **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_the_training(pupil, room, number, monkeypatch):
    def step(trainer, rows):
        trainer.state.step += 1
        if trainer.state.step == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr("rewrites.approximate.students.training.Trainer.step", step)
    before = signal.getsignal(number)
    assert train(pupil, room, steps=10**6)[1].step == 3
    assert signal.getsignal(number) is before


def test_another_thread_trains_too(pupil, room):
    states = []
    worker = threading.Thread(target=lambda: states.append(train(pupil, room, steps=1)[1]))
    worker.start()
    worker.join()
    assert states[0].step == 1


def test_a_program_is_trained_as_it_is(pupil, room):
    program = import_program(pupil[1].source)
    trained, state = train((pupil[0], Pupil(program, "")), room, steps=10, rate=2e-3)
    assert state.best < state.first and len(trained.steps) == len(program.steps)
    with pytest.raises(InputError, match="--student: program: it is no program of bert"):
        open_student(program, pupil[0])


@pytest.mark.deep
def test_a_student_is_saved_and_verified(room, tmp_path):
    line = ["distil", str(room / "bert"), "--text", str(room / "lines.txt"), "--out", str(tmp_path / "small")]
    done = CliRunner().invoke(app, [*line, "--steps", "20", "--rate", "3e-3", "--tokens", "16", "--batch", "256"])
    assert done.exit_code == 0 and f"saved     {tmp_path / 'small'}" in done.stdout and "20 steps" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["small"]
    assert om.load(tmp_path / "small").embed(["the bank"]).shape == (1, 24)
    checks = of_directory(tmp_path / "small", str(room / "bert"))
    assert not [check for check in checks if check.verdict == FAILS]
    refused = CliRunner().invoke(app, line)
    assert isinstance(refused.exception, InputError) and "it exists, and a student replaces" in str(refused.exception)


def test_a_student_that_is_far_off_has_no_certificate(pupil, room):
    teacher, _ = pupil
    far = import_program(teacher.operator @ (-1.0 * om.I)).replace(**teacher.imported.meta)
    with pytest.raises(InputError, match=r"the student is off by 200 %.*: train longer, or keep more"):
        certify_student(far, teacher, {}, room / "lines.txt")


def test_texts_train_choose_and_state_apart(pupil):
    parts = pupil[0].text
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


def test_a_text_that_is_too_short_is_refused(room, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("\n".join(f"the bank {'a ' * at}" for at in range(9)))
    with pytest.raises(InputError, match=r"--text .*short.txt: \d+ different texts of at most 16 tokens are too few"):
        om.distil(room / "bert", short, tokens=16)


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
def test_numbers_that_no_training_has_are_refused(room, options, words):
    with pytest.raises(InputError, match=words):
        om.distil(room / "bert", room / "lines.txt", **options)


def test_a_student_without_weights_is_refused(pupil, room, monkeypatch):
    monkeypatch.setattr("rewrites.approximate.students.distilled.to_torch", lambda source: torch.nn.Module())
    with pytest.raises(InputError, match="the student has no weights to train"):
        train(pupil, room)


def test_a_damaged_file_of_a_training_is_refused(pupil, room, tmp_path):
    (tmp_path / "small.training.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="no file of a training"):
        train(pupil, room, tmp_path / "small")


def test_without_torch_a_line_says_what_to_install(room, monkeypatch):
    monkeypatch.setattr("opmatrix.exports.fx_module.find_spec", lambda name: None)
    with pytest.raises(InputError, match="torch is not installed: pip install torch"):
        om.distil(room / "bert", room / "lines.txt")


def test_a_language_model_teaches_its_next_tokens(tmp_path):
    """The divergence falls."""
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(tmp_path / "llama")
    checkpoints.write_tokenizer(tmp_path / "llama" / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("\n".join(drawn_lines(1200)), "utf-8")
    teacher = Teacher.open(tmp_path / "llama", tmp_path / "lines.txt", 16)
    _, state = train((teacher, prune_model(teacher, KeptShares(), False)), tmp_path, steps=30, rate=3e-3)
    assert teacher.checkpoint.speaks and 0 < state.best < 0.9 * state.first
