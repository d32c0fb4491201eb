"""SmolLM2 with its real weights: 64 greedy tokens are transformers', up to the first whose two best scores are as good
as equal."""
import numpy as np
import pytest
from fetched import smollm2
from searched import structure
from transformed import llama_of

from opmatrix.batch import Batch
from opmatrix.files.checkpoint import open_model
from opmatrix.pipelines.generation import find_ends
from rewrites.workload.resolve import source

torch = pytest.importorskip("torch", reason="needs peers: torch")
pytest.importorskip("transformers", reason="needs peers: transformers")
TOKENS, EQUAL = 64, 1e-3
PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "2 + 2 =", "Water boils at",
           "The opposite of hot is", "My favourite colour is", "In 1969, people", "The largest planet is", "Dear Sir,",
           "A haiku about rain:", "To make bread you need", "The three laws of motion", "Bonjour, je",
           "SELECT name FROM", "The history of mathematics", "She opened the door and", "An atom consists of",
           "1, 2, 3, 4,", "The moon is"]


def test_greedy_tokens_are_those_of_transformers():
    """Their scores are of all rows at once, of our tokens: each is their likeliest where it is one by more than what
    float32 rounds; from the first that is as good as equal on, texts may differ."""
    smollm2()
    checkpoint = open_model("smollm2")
    program, _ = structure(checkpoint.operator(True), (), batch=Batch([[1] * 16])).program(source(checkpoint))
    assert len(find_ends(program)) >= 1
    model = llama_of(checkpoint)
    compared = 0
    for reply in program.replace(ends=[]).generate(PROMPTS, max_tokens=TOKENS):
        ids = [*reply.prompt, *reply.ids]
        with torch.no_grad(): scores = model(torch.tensor([ids])).logits[0, len(reply.prompt) - 1:-1].numpy()
        best = np.sort(scores, 1)[:, -2:]
        near = np.flatnonzero(best[:, 1] - best[:, 0] < EQUAL)
        until = int(near[0]) if len(near) else TOKENS
        assert reply.ids[:until] == scores.argmax(1)[:until].tolist(), reply.text
        compared += until
        if reply.number == 0: assert "Paris" in reply.text
    assert compared > 0.8 * TOKENS * len(PROMPTS)
