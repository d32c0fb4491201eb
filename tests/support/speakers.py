"""Small language models, each as a program and in plain numpy: a GPT-2 of bytes that was trained a little, and a random
LLaMA, which reads token ids alone."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import plain
from safetensors.numpy import load_file
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import pick, weight
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.pooling import LAST
from opmatrix.models import build, tensors
from rewrites.workload.resolve import source

BYTES = Path(__file__).parents[1] / "data" / "gpt2_bytes"
LLAMA = dict(
    model_type="llama",
    vocab_size=50,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=300.0,
)
SHORT = Batch([[3, 4, 5], [6] * 7])


@cache
def gpt2():
    """`program`, and `scores` of every token of a text."""
    checkpoint, numbers = open_model(BYTES), load_file(BYTES / "model.safetensors")
    wide = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in numbers.items()}
    program, _ = structure(checkpoint.operator(True), (), batch=SHORT).program(source(checkpoint))
    top = wide["wte.weight"].T
    return SimpleNamespace(program=program, scores=lambda ids: plain.gpt2(checkpoint.config, wide, ids) @ top)


@cache
def llama():
    """As `gpt2`; scores lie far apart."""
    rng = np.random.default_rng(3)
    numbers = {
        name: (rng.normal(size=shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1)).astype(np.float32)
        for name, shape in tensors(LLAMA).items()
    }
    top = (3 * rng.normal(size=(24, 50))).astype(np.float32)
    wide = {name: array.astype(np.float64) for name, array in numbers.items()}
    model = build(LLAMA, lambda name, *shape: Data(numbers[name], name)) @ pick("last") @ weight(Data(top, "top"))
    program, _ = structure(model, (), batch=SHORT).program({"config": LLAMA, "pooling": LAST.described()})
    return SimpleNamespace(program=program, scores=lambda ids: plain.llama(LLAMA, wide, ids) @ top)


def greedy(scores, prompt, count):
    """The likeliest tokens, one after another, each of all rows anew."""
    ids = [*prompt]
    for _ in range(count):
        ids.append(int(scores(np.array(ids))[-1].argmax()))
    return ids[len(prompt) :]
