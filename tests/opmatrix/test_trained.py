"""A GPT-2, a Pangu-alpha and a Mixtral that were trained a little (tests/support/train_models.py): how well the
programs of their stored files foresee a text that they have not seen."""

import json
from pathlib import Path

import numpy as np
import plain
import plain_experts
import pytest
import standin
from safetensors.numpy import load_file

from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.files.checkpoint import open_model
from rewrites.lowering.lower import plainly
from rewrites.metrics.perplexity import of_text
from rewrites.search.search import search
from rewrites.workload.resolve import source

DATA = Path(__file__).parents[1] / "data"
RECORD = json.loads((DATA / "record.json").read_text())
MODELS = {"gpt2": plain.gpt2, "pangu": plain.pangu_alpha, "mixtral": plain_experts.mixtral}
BYTES = 1 << 11  # of the text, of which plain numpy scores each


@pytest.fixture(scope="module")
def text():
    return (DATA / "held_out.txt").read_text()


def numbers(family):
    """What the file holds, in float64; experts with three axes, by the names of plain_experts."""
    found = {
        name: each.astype(np.float64)
        for name, each in load_file(DATA / f"{family}_bytes" / "model.safetensors").items()
    }
    parts = {name.replace(".experts.0.", ".experts.#.") for name in found if ".experts.0." in name}
    own = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for name in parts:
        stem, part = name.removesuffix(".weight").split(".experts.#.")
        found[f"{stem}.experts.{own[part]}"] = np.stack([found.pop(name.replace("#", str(e))) for e in range(8)])
    return {name.replace(".block_sparse_moe.", ".mlp."): each for name, each in found.items()}


def plain_nats(family, text, side):
    """The sum of -log p of every byte of a window but the first, and how many, by plain numpy in float64."""
    config = json.loads((DATA / f"{family}_bytes" / "config.json").read_text())
    w = numbers(family)
    total, count, whole = 0.0, 0, np.frombuffer(text.encode(), np.uint8)
    for window in np.split(whole, range(side, len(whole), side)):
        scores = (
            MODELS[family](config, w, window)[:-1] @ w["embed_tokens.weight" if family == "mixtral" else "wte.weight"].T
        )
        top = scores.max(1)
        logs = top + np.log(np.exp(scores - top[:, None]).sum(1))
        total, count = total + (logs - scores[np.arange(len(scores)), window[1:]]).sum(), count + len(scores)
    return total / count


@pytest.mark.deep
@pytest.mark.parametrize("family", MODELS)
def test_a_trained_model_foresees_text_as_plain_numpy_does(family, text):
    """Far better than 5.55 nats, which is to know nothing of a byte; and what was written down after training."""
    checkpoint, side = open_model(DATA / f"{family}_bytes"), RECORD["models"][family]
    model = checkpoint.operator()
    program, fused = (
        search(
            model, (), standin.machine(), counted([side["window"]], patterns(model)), methods=plainly, fusion=fusion
        ).program(source(checkpoint))[0]
        for fusion in (False, True)
    )
    found = of_text(family, program, text[:BYTES], "held_out.txt")
    assert found.bytes_a_token == 1 and found.count == BYTES - BYTES // side["window"]
    assert found.nats == pytest.approx(plain_nats(family, text[:BYTES], side["window"]), rel=1e-5)
    whole = of_text(family, fused, text, "held_out.txt")
    assert whole.nats == pytest.approx(side["held_out_nats"], rel=1e-4) and whole.nats < 1.7 < 0.4 * np.log(256)


def test_the_files_are_small_and_half():
    """Their parameters are those that the record counts; the text is all ASCII, and as long as it says."""
    for family in MODELS:
        place = DATA / f"{family}_bytes"
        stored = load_file(place / "model.safetensors")
        assert {each.dtype for each in stored.values()} == {np.dtype(np.float16)}
        assert sum(each.size for each in stored.values()) == RECORD["models"][family]["parameters"] < 500_000
        assert sum(file.stat().st_size for file in place.iterdir()) < 1 << 20
    whole = (DATA / "held_out.txt").read_bytes()
    assert whole.isascii() and len(whole) == RECORD["held_out_bytes"] == 1 << 16
