"""SmolLM2 with its real weights: 64 greedy tokens are transformers', up to the first whose two best scores are as good
as equal."""

import pytest
from fetched import smollm2
from searched import structure
from transformed import PROMPTS, TOKENS, replies_beside

from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.generation import find_ends
from rewrites.workload.resolve import source

pytest.importorskip("torch", reason="needs peers: torch")
pytest.importorskip("transformers", reason="needs peers: transformers")


def test_greedy_tokens_are_those_of_transformers():
    """Each is their likeliest where it is one by more than what float32 rounds; from the first that is as good as equal
    on, texts may differ."""
    smollm2()
    checkpoint = open_model("smollm2")
    program, _ = structure(checkpoint.operator(True), (), batch=Batch([[1] * 16])).program(source(checkpoint))
    assert len(find_ends(program)) >= 1
    compared = 0
    for reply, likeliest in replies_beside(checkpoint, program):
        assert reply.ids[: len(likeliest)] == likeliest, reply.text
        compared += len(likeliest)
        if reply.number == 0:
            assert "Paris" in reply.text
    assert compared > 0.8 * TOKENS * len(PROMPTS)
