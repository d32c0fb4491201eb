"""Three of the random BERTs of benchmarks/widths.py, from transformers' save_pretrained to a program that runs."""

import sys

import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import widths as berts

pytest.importorskip("torch", reason="needs peers: torch")
pytest.importorskip("transformers", reason="needs peers: transformers")


@pytest.mark.parametrize(
    "number, said",
    [
        (1, ("BertForMaskedLM", "float16", "fresh", "one")),
        (3, ("BertForSequenceClassification", "float32", "zero biases", "shards")),
        (20, ("BertLMHeadModel", "bfloat16", "random", "one")),
    ],
)
def test_what_transformers_saves_is_optimised_and_agrees(tmp_path, number, said, laws_known, machine_known):
    made, result, exact, chosen = berts.berts_compared(number, tmp_path / "model")
    assert (made.saved, made.number, made.filled, made.files) == said
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == (made.files == "shards")
    assert exact < berts.BERTS_EXACT and chosen < berts.BERTS_EXACT and all(point.verified for point in result.points)
