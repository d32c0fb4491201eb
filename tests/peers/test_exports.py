"""Exports in the runtimes that they are for: every reading, models of every family, files that are refused."""

import numpy as np
import pytest
from alone import alone
from checkpoints import CONFIG, arrays
from padded import feed, ragged
from programs import bert_program
from searched import KINDS as SEARCHES
from searched import structure
from terms_of_rows import random_term
from test_families import RAGGED as SENTENCES
from test_families import model
from test_padded import PATTERNS, RAGGED, REFUSED, TERMS, attending, attending_once, begun, interpreted, pooling, x
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from formats.core.reductions import HOW
from opmatrix.exports import onnx_file
from opmatrix.exports.exported_files import export_onnx, export_torch
from opmatrix.exports.fx_module import make_module
from opmatrix.exports.onnx_file import make_onnx
from opmatrix.exports.program_graph import MASK, read_program
from opmatrix.models import head
from opmatrix.runtime.kernels import KERNELS

torch = pytest.importorskip("torch", reason="needs peers: torch")
onnx = pytest.importorskip("onnx", reason="needs peers: onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs peers: onnxruntime")

FAMILIES = [
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "modernbert",
    "jina",
    "jina, normed",
    "nomic",
    "gte",
    "gemma3, both ways",
    "deberta, published",
    "nomic, experts",
    "t5",
    "gpt2",
    "bloom",
    "llama",
    "mistral",
    "qwen3",
    "cohere2",
    "gemma2",
    "smollm3",
]
SEEDS = range(0, 30, 3)
PROGRAMS = {
    **{name: lambda rng, name=name: alone(name, rng) for name in KERNELS if name not in REFUSED},
    **{f"pattern {name}": lambda rng, name=name: attending(name, 1, rng) for name in PATTERNS},
    **{f"pool {how}": lambda rng, how=how: pooling(how, rng) for how in HOW},
    **{f"{end} query": lambda rng, end=end: attending_once(end, rng) for end in ("first", "last")},
    **{f"term {name}": lambda rng, name=name: interpreted(begun(rng), TERMS[name], [x]) for name in TERMS},
    **{f"random {seed}": lambda rng, seed=seed: random_of(seed) for seed in SEEDS},
}


def random_of(seed):
    rng = np.random.default_rng(seed)
    return interpreted(begun(rng), *random_term(rng, 12))


def session(made):
    """A model of ONNX, checked, in ONNX Runtime."""
    onnx.checker.check_model(made, full_check=True)
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def run_torch(module, inputs):
    with torch.no_grad():
        return module(*map(torch.from_numpy, inputs.values())).numpy()


def check_both(program, *batches, rtol=1e-5):
    """Torch and ONNX Runtime compute what the program means, of batches of sentences, padded on either side."""
    read = read_program(program)
    module, ready = make_module(read), session(make_onnx(read, "weights"))
    for sentences in batches:
        wanted = program.exact(sentences, rounded=False)
        size = abs(wanted[np.isfinite(wanted)]).max()
        for left in (False, True):
            inputs = feed(read, sentences, left)
            [rows] = ready.run(None, inputs)
            assert rows.dtype == np.float32
            for computed in (rows, run_torch(module, inputs)):
                np.testing.assert_allclose(ragged(computed, inputs[MASK]), wanted, rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_reading_is_computed_as_it_means(name):
    check_both(PROGRAMS[name](np.random.default_rng(5)), RAGGED, RAGGED[1:2], rtol=2e-5)


def sentences(rng, words, longest, count):
    return [rng.integers(0, words, length).tolist() for length in rng.integers(1, longest + 1, count)]


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("case", FAMILIES)
def test_models_of_every_family_are_exported(case):
    """Encoders' rows, pooled by their mean; language models' scores of what comes next."""
    config, operator, at, _ = model(case)
    speaks = config["model_type"] in ("gpt2", "bloom", "llama", "mistral", "qwen3", "cohere2", "gemma2", "smollm3")
    behind = (
        head(config, at) if speaks else om.formula(lambda x: om.product(om.given("members"), x, over=om.monoids.mean))
    )
    program, _ = structure(operator @ behind, *SEARCHES["fused"], batch=SENTENCES).program({"model": case})
    rng = np.random.default_rng(1)
    check_both(program, *(sentences(rng, 50, 17, count) for count in (1, 7, 32)))


# ---- what search leaves: formats, front, terms of one's own


@pytest.mark.parametrize("form", ["half", "bf16", "int8", "lowrank", "lowrankint8", "csr", "balancedint8"])
def test_a_format_is_exported_as_the_numbers_that_it_holds(form):
    program = bert_program(CONFIG, arrays(CONFIG), pack=FORMATS[form].approximate)
    read = read_program(program)
    assert read.widened == ({} if form == "lowrank" else {form: 8})
    factors = {name for name in read.graph.constants if name.endswith((".u", ".v"))}
    assert len(factors) == (16 if form.startswith("lowrank") else 0)
    check_both(program, RAGGED)


def test_openvino_computes_the_same():
    openvino = pytest.importorskip("openvino", reason="needs peers: openvino")
    program = bert_program(CONFIG, arrays(CONFIG))
    read = read_program(program)
    core = openvino.Core()
    ready = core.compile_model(
        core.read_model(make_onnx(read, "weights").SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    inputs = feed(read, RAGGED)
    [rows] = ready(inputs).values()
    np.testing.assert_allclose(ragged(rows, inputs[MASK]), program.exact(RAGGED), atol=1e-5)


def test_a_module_is_trained():
    program = bert_program(CONFIG, arrays(CONFIG))
    module, inputs = om.to_torch(program), feed(read_program(program), RAGGED)
    weights = {name.translate(str.maketrans(".+", "__")) for name in program.constants}
    assert {name for name, _ in module.named_parameters()} == weights
    module(*map(torch.from_numpy, inputs.values())).square().sum().backward()
    [table] = [weight for weight in module.parameters() if len(weight) == CONFIG["vocab_size"]]
    assert table.grad[RAGGED[0][0]].abs().sum() > 0


def test_weights_keep_apart_whatever_their_names_and_numbers():
    """Names that are one identifier, names of a module's own, and equal numbers."""
    write = begun(np.random.default_rng(5))
    last = "h0"
    for name in ("a.b", "a_b", "forward", "1"):
        write.constants[name] = np.full(12, 0.5, np.float32)
        last = write.step("pointwise", x=last, bias=name)
    program = om.Program(write.steps, write.constants, last)
    assert len([*om.to_torch(program).parameters()]) == 5
    check_both(program, RAGGED)


# ---- files


@pytest.fixture(scope="module")
def read():
    return read_program(bert_program(CONFIG, arrays(CONFIG)))


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "beside"])
def test_a_file_of_onnx_holds_the_program(read, outside, tmp_path, monkeypatch):
    if outside:
        monkeypatch.setattr(onnx_file, "MAX_INSIDE", 10_000)
    files = export_onnx(read, tmp_path / "model.onnx")
    assert [file.name for file in files] == ["model.onnx", "model.onnx.data"][: 1 + outside]
    assert sorted(tmp_path.iterdir()) == files
    (moved := tmp_path / "moved").mkdir()
    for file in files:
        file.rename(moved / file.name)
    inputs = feed(read, RAGGED)
    ready = onnxruntime.InferenceSession(str(moved / "model.onnx"), providers=["CPUExecutionProvider"])
    [rows] = ready.run(None, inputs)
    np.testing.assert_allclose(rows, run_torch(make_module(read), inputs), atol=1e-5)


def test_a_program_of_torch_export_takes_any_batch(read, tmp_path):
    [file] = export_torch(read, tmp_path / "model.pt2")
    module = torch.export.load(str(file)).module()
    for sentences_of in (RAGGED, RAGGED[:1], RAGGED[1:2]):
        inputs = feed(read, sentences_of)
        np.testing.assert_allclose(run_torch(module, inputs), run_torch(make_module(read), inputs), atol=1e-5)


def test_a_file_that_exists_stays_and_a_full_disk_leaves_none(read, tmp_path, monkeypatch):
    (tmp_path / "there.onnx").write_text("mine")
    with pytest.raises(InputError, match=r"there\.onnx: it exists, and an export replaces no file"):
        export_onnx(read, tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_text() == "mine"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opmatrix.exports.exported_files.write_weights", full)
    with pytest.raises(InputError, match=r"model\.onnx: not writable: No space left on device"):
        export_onnx(read, tmp_path / "model.onnx")
    with pytest.raises(InputError, match=r"nowhere.model\.onnx: not writable: No such file"):
        export_onnx(read, tmp_path / "nowhere" / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["there.onnx"]


def test_a_package_that_is_absent_is_named(read, tmp_path, monkeypatch):
    monkeypatch.setattr("opmatrix.exports.fx_module.find_spec", lambda name: None)
    monkeypatch.setattr("opmatrix.exports.onnx_file.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^torch is not installed: pip install"):
        export_torch(read, tmp_path / "model.pt2")
    with pytest.raises(InputError, match=r"^onnx is not installed: pip install"):
        export_onnx(read, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_both_and_says_so(tmp_path, monkeypatch):
    from rewrites.cli.commands import app

    monkeypatch.chdir(tmp_path)
    program = bert_program(CONFIG, arrays(CONFIG), pack=FORMATS["int8"].approximate)
    program.save("small")
    done = CliRunner().invoke(app, ["export", "small", "--onnx", "small.onnx", "--torch", "small.pt2"])
    assert done.exit_code == 0, done.output
    assert "small.onnx, " in done.stdout and "small.pt2, " in done.stdout
    assert "inputs   input_ids int64[batch, length]" in done.stdout
    assert f"last_hidden_state float32[batch, length, {CONFIG['hidden_size']}]" in done.stdout
    assert "float32  the numbers of int8 x8" in done.stdout
    for words, said in ((["small"], "nothing to write"), (["small", "--onnx", "small.onnx"], "it exists")):
        error = CliRunner().invoke(app, ["export", *words]).exception
        assert isinstance(error, InputError) and said in str(error)
