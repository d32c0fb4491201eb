"""Exports in the runtimes that they are for: every reading, models of every family, files that are refused."""

import numpy as np
import pytest
from alone import alone
from padded import feed, ragged
from searched import TYPE_IDS as SEARCHES
from searched import structure
from terms_of_rows import random_term
from test_families import RAGGED as SENTENCES
from test_families import model as model_of
from test_padded import PATTERNS, RAGGED, REFUSED, TERMS, attending, attending_once, begun, interpreted, pooling, x

import opmatrix as om
from formats.core.reductions import HOW
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
    "t5",
    "gpt2",
    "bloom",
    "llama",
    "mistral",
    "qwen3",
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


def session(model):
    """A model of ONNX, checked, in ONNX Runtime."""
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


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


@pytest.mark.parametrize("case", FAMILIES)
def test_models_of_every_family_are_exported(case):
    """Encoders' rows, pooled by their mean; language models' scores of what comes next."""
    config, operator, at, _ = model_of(case)
    speaks = config["model_type"] in ("gpt2", "bloom", "llama", "mistral", "qwen3")
    behind = (
        head(config, at) if speaks else om.formula(lambda x: om.product(om.given("members"), x, over=om.monoids.mean))
    )
    program, _ = structure(operator @ behind, *SEARCHES["exact"], batch=SENTENCES).program({"model": case})
    rng = np.random.default_rng(1)
    check_both(program, *(sentences(rng, 50, 17, count) for count in (1, 7, 32)))
