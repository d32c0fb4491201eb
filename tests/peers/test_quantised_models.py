"""Scores of quantised checkpoints: those of transformers' model of the numbers that they stand for."""

import numpy as np
import pytest
import quantised_files
import standin
from quantised_files import SCHEMES

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.files.checkpoint import open_model
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")


def peer(plain):
    """The model of transformers with these tensors."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**quantised_files.LLAMA)).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in plain.items()})
    return model


USUAL = "gptq", "awq", "int4", "int8 by channel", "fp8 in blocks"
DEEP = [pytest.param(name, marks=pytest.mark.deep) for name in SCHEMES if name not in USUAL]


@pytest.mark.parametrize("name", [*USUAL, *DEEP])
def test_scores_are_those_of_transformers(rng, tmp_path, name):
    """Of a program that keeps blocks, within 1e-4 of the largest score."""
    plain = quantised_files.write(tmp_path, SCHEMES[name])
    tokens = rng.integers(0, quantised_files.WORDS, 60)
    with torch.no_grad():
        wanted = peer(plain)(torch.from_numpy(tokens)[None]).logits[0].numpy()
    operator = open_model(tmp_path).operator()
    extents, methods = counted([60], patterns(operator)), Representable(in_blocks=True)
    program = search(operator, EXACT_LAWS, standin.machine(), extents, methods=methods).program({})[0]
    assert np.abs(program.run(Batch([tokens])) - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_float8_is_that_of_torch():
    """All bytes but those of NaN, which no file may hold."""
    from opmatrix.files.methods.float8 import FLOAT8_NUMBERS

    wanted = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.flatnonzero(np.isnan(wanted)).tolist() == [127, 255]
    assert np.array_equal(np.where(np.isnan(wanted), wanted, FLOAT8_NUMBERS), wanted, equal_nan=True)


def test_experts_of_float4_are_those_of_transformers(tmp_path):
    """By its own conversion, to bfloat16, which holds such numbers."""
    packed = pytest.importorskip("transformers.integrations.mxfp4", reason="needs peers: transformers")
    codes, exponents, numbers = quantised_files.float4_groups(np.random.default_rng(2), 3, 48, 64)
    blocks, scales = torch.from_numpy(codes.astype(np.uint8)), torch.from_numpy(exponents.astype(np.uint8))
    found = packed.convert_moe_packed_tensors(blocks.reshape(3, 48, 2, 16), scales).float().numpy()
    assert np.array_equal(found, numbers.swapaxes(1, 2))
