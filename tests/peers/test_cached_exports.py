"""Exports with caches: one graph of new rows for prompts and steps, in each runtime, against the program on whole
texts."""

import numpy as np
import pytest
from padded import padded
from searched import structure
from speakers import BYTES, SHORT, gpt2, llama
from test_families import model
from test_latent import found as latent
from test_session_states import programs as states_programs
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.operators import pick
from opmatrix.exports.cached_graph import find_caches, read_cached
from opmatrix.exports.exported_files import export_onnx, export_torch
from opmatrix.exports.program_graph import IDS, MASK, read_program
from opmatrix.exports.runtimes import RUNTIMES, STORED_SPELLING, WIDENED, make_feed
from opmatrix.inference.pooling import LAST
from opmatrix.models import head
from opmatrix.runtime.program import Program
from rewrites.metrics import targets
from rewrites.metrics.exported import compare_export, rounding_of

for needed in ("torch", "onnx", "onnxruntime", "openvino"):
    pytest.importorskip(needed, reason=f"needs peers: {needed}")

STEPS = 8
SPEAKING = ["llama", "qwen2, windows", "qwen3", "gemma2", "gemma3", "gpt2", "cohere2", "granite", "olmo2"]
PROMPTS = [[3, 9, 22, 4, 4], [8], [29, 2, 11]]


def speaker(case, every=True):
    """A program of scores of what comes next: behind every token, or behind the last."""
    config, operator, at, _ = model(case)
    rows = operator if every else operator @ pick("last")
    meta = {"config": config, "pooling": LAST.described()}
    return structure(rows @ head(config, at), (), batch=SHORT).program(meta)[0]


def opened(program, name, room, spelling=WIDENED):
    """An export with caches in a runtime."""
    read, runtime = read_cached(program, spelling), RUNTIMES[name]
    room.mkdir(exist_ok=True)
    write = export_torch if runtime.ending == ".pt2" else export_onnx
    [file] = write(read, room / f"{name}{runtime.ending}")
    return runtime.open(file, 1), read


def last_scores(program, texts):
    """The scores behind each text by the program's meaning."""
    return np.stack([program.exact([text], rounded=False)[-1] for text in texts])


def whole_texts(program, name, room):
    """The scores behind texts by the export without caches in a runtime."""
    runtime, read = RUNTIMES[name], read_program(program)
    write = export_torch if runtime.ending == ".pt2" else export_onnx
    [file] = write(read, room / f"{name}-whole{runtime.ending}")
    run = runtime.open(file, 1)

    def scores(texts):
        [rows] = run(make_feed([*read.inputs], *padded(texts, left=True), {}))
        return rows[:, -1]

    return scores


def check_steps(program, run, read, prompts, whole=None):
    """A prompt that is padded before it, from caches without rows, and greedy steps have the program's scores and
    tokens; of a model that rounding moves further, to four times of what `whole` texts are off by in the runtime."""
    caches, texts = [*find_caches(program).values()], [[*prompt] for prompt in prompts]
    ids, mask = padded(prompts, left=True)
    held = {cache.past: cache.zeros(len(prompts)) for cache in caches}
    for _ in range(STEPS):
        scores, *present = run(make_feed([*read.inputs], ids, mask, held))
        scores, wanted = scores[:, -1] if scores.ndim > 2 else scores, last_scores(program, texts)
        rounding = 4 * abs(whole(texts) - wanted).max() if whole else 0
        np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max() + rounding)
        tokens = scores.argmax(-1)
        assert tokens.tolist() == wanted.argmax(-1).tolist()
        for text, token in zip(texts, tokens, strict=True):
            text.append(int(token))
        ids, mask = tokens[:, None], np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        held = {cache.past: rows for cache, rows in zip(caches, present, strict=True)}
        for cache, rows in zip(caches, present, strict=True):
            assert rows.shape == cache.zeros(len(prompts), mask.shape[1] - 1).shape


@pytest.mark.deep(every=9)
@pytest.mark.parametrize("case", SPEAKING)
def test_prompts_and_steps_are_the_program(case, tmp_path):
    program = speaker(case)
    for name in RUNTIMES:
        run, read = opened(program, name, tmp_path / name)
        check_steps(program, run, read, PROMPTS)
        check_steps(program, run, read, PROMPTS[1:2])


def test_of_the_last_row_alone_there_is_one_row_of_scores(tmp_path):
    program = llama().program
    run, read = opened(program, "onnxruntime", tmp_path)
    assert next(iter(read.outputs.values())).shape == ("batch", 50)
    check_steps(program, run, read, PROMPTS)


def test_names_and_sizes_are_those_that_other_libraries_expect():
    read = read_cached(llama().program)
    layers = [f"{layer}.{name}" for layer in range(2) for name in ("key", "value")]
    assert [*read.inputs] == [IDS, MASK, *(f"past_key_values.{each}" for each in layers)]
    assert [*read.outputs] == ["logits", *(f"present.{each}" for each in layers)]
    assert read.inputs[MASK].shape == ("batch", "total")
    assert read.inputs["past_key_values.0.key"].shape == ("batch", 2, "past", 6)
    assert read.outputs["present.1.value"].shape == ("batch", 2, "total", 6)


def test_new_rows_may_be_several_and_behind_caches():
    """A module of torch, in parts of any number of rows."""
    import torch

    program, text = gpt2().program, [*b"a text in parts"]
    module, caches = om.to_torch(program, caches=True), [*find_caches(program).values()]
    held, begun = [torch.from_numpy(cache.zeros(1)) for cache in caches], 0
    for end in (1, 6, 7, len(text)):
        with torch.no_grad():
            scores, *held = module(torch.tensor([text[begun:end]]), torch.ones(1, end, dtype=int), *held).values()
        begun = end
        wanted = last_scores(program, [text[:end]])[0]
        last = scores[0, -1] if scores.ndim > 2 else scores[0]
        np.testing.assert_allclose(last, wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_number_types_are_spelled_as_without_caches(name, form, tmp_path):
    """Each spelling of a runtime computes the program, texts alone as in a batch."""
    exact = speaker("llama")
    pack = FORMATS[form].approximate
    constants = {
        key: pack(np.asarray(each.wide(), np.float32)) if "proj" in key else each
        for key, each in exact.constants.items()
    }
    program = Program(exact.steps, constants, exact.outputs, exact.meta)
    for named, spelling in RUNTIMES[name].spellings.items():
        run, read = opened(program, name, tmp_path / named, spelling)
        compared = compare_export(run, program, [*read.inputs], rounding_of(read), [*find_caches(program).values()])
        assert compared.error <= compared.allowed, (named, compared)


@pytest.mark.deep
@pytest.mark.parametrize("request_of, names", [((16, 512), ["key"]), ((512, 1), ["key", "value"])])
def test_latent_attention_is_exported_in_both_forms(request_of, names, tmp_path):
    """Absorbed, with one cache of one head that holds keys and values; expanded, with keys and values."""
    program = latent(*request_of)[1]
    columns = program.schedule.calls[program.schedule.result].shape.cols
    program = program.replace(
        config={"vocab_size": columns}, pooling=LAST.described()
    )  # its rows, as if they were scores
    run, read = opened(program, "onnxruntime", tmp_path)
    assert [*read.inputs][2:] == [f"past_key_values.{layer}.{name}" for layer in range(2) for name in names]
    check_steps(program, run, read, PROMPTS)


RECURRENT = {"mamba": {"conv", "ssm"}, "mamba2": {"conv", "ssm"}, "qwen3-next": {"key_values", "conv", "ssm"}}


def recurrent(case):
    """A program with states; a gated delta net between attention gives rows, as if they were scores."""
    if case in ("mamba", "mamba2"):
        return speaker(case)
    program, _ = states_programs(case)
    columns = program.schedule.calls[program.schedule.result].shape.cols
    return program.replace(config={"vocab_size": columns}, pooling=LAST.described())


@pytest.mark.deep
@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("case", RECURRENT)
def test_states_go_on_as_the_whole_text(case, name, tmp_path):
    """Last rows of shifts, results of scans, sums of recurrences: prompts with padding, then steps, in each runtime."""
    program = recurrent(case)
    run, read = opened(program, name, tmp_path)
    kinds = {entry.split("_", 1)[1].split(".")[0] for entry in read.inputs if entry.startswith("past")}
    assert kinds == RECURRENT[case]
    check_steps(program, run, read, PROMPTS, whole_texts(program, name, tmp_path))


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("case", ["mamba2", "mamba", "qwen3-next"])
def test_states_are_those_of_any_parts(case):
    """A module of torch, in parts of any number of rows: shorter than a state's rows, too, and padded behind."""
    import torch

    program, text = recurrent(case), [3, 9, 2, 4, 4, 8, 7, 2, 11]
    module, caches = om.to_torch(program, caches=True), [*find_caches(program).values()]
    for ends in ((1, 2, 4, 9), (5, 9), (9,)):
        held, begun = [torch.from_numpy(cache.zeros(2)) for cache in caches], 0
        for end in ends:
            ids, mask = torch.tensor([text[begun:end], text[begun:end]]), torch.ones(2, end, dtype=int)
            mask[1, 4:] = 0  # the second text has ended
            with torch.no_grad():
                scores, *held = module(ids, mask, *held).values()
            begun = end
        wanted = last_scores(program, [text])[0]
        np.testing.assert_allclose(scores[0, -1], wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())
        with torch.no_grad():
            padding = torch.zeros(2, 10, dtype=int)
            padding[0, :9], padding[1, :4], padding[:, 9] = 1, 1, 1
            scores, *_ = module(torch.tensor([[7], [7]]), padding, *held).values()
        wanted = last_scores(program, [[*text, 7], [*text[:4], 7]])
        np.testing.assert_allclose(scores[:, -1], wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())


def test_encoders_are_refused():
    with pytest.raises(InputError, match="--caches: this program gives no logits of next tokens"):
        read_cached(structure(model("roberta")[1], (), batch=SHORT).program({})[0])


def test_the_command_writes_them_and_verify_steps_over_them(tmp_path, monkeypatch):
    from rewrites.cli.commands import app

    monkeypatch.chdir(tmp_path)
    gpt2().program.save("small")
    call = CliRunner().invoke
    done = call(app, ["export", "small", "--caches", "--onnx", "small.onnx"])
    assert done.exit_code == 0, done.output
    assert "past_key_values.0.key float32[batch, " in done.stdout and ", total, " in done.stdout
    checked = call(app, ["verify", "small.onnx", "--program", "small"])
    assert checked.exit_code == 0, checked.output
    assert "12 texts off by " in checked.stdout
    error = call(app, ["export", "small", "--caches", "--hf", "plain"]).exception
    assert isinstance(error, InputError) and "--caches is for --onnx FILE and --torch FILE" in str(error)
    assert not (tmp_path / "plain").exists() and BYTES.exists()


@pytest.mark.deep
def test_for_a_runtime_a_step_is_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "probing", lambda rows, threads: STORED_SPELLING)
    gpt2().program.save(tmp_path / "small")
    told = targets.export_for(tmp_path / "small", "onnxruntime", tmp_path / "x.onnx", None, ((1, 9),), None, True)
    assert "ms at 1x9" in told and "present.0.key" in told
