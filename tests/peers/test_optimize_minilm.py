"""MiniLM made cheapest, end to end, against transformers' own BertModel: all of the front, on texts and on ids."""
import numpy as np
import pytest
import standin
from data import minilm

from opmatrix.checkpoint import open_model
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.text import sentences
from rewrites.optimize import Run, optimize
from rewrites.results import as_json, save

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS = [1, 2, 3, 7, 32, 101, 255, 400]


@pytest.fixture(scope="module")
def result():
    """With prices that nobody measured: what is right does not depend on them."""
    minilm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "saved", lambda run: [])
        return optimize("minilm", machine=standin.machine(), tokens=32, rounds=1)


@pytest.fixture(scope="module")
def peer():
    directory = open_model("minilm").directory
    model = transformers.BertModel.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()

    def run(rows):
        with torch.no_grad():
            return np.concatenate([model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in rows])
    return run


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(11)
    return [rng.integers(0, 30522, length) for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(peer, rows): return peer(rows)


def relative(found, wanted): return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_exact_programs_agree_on_a_ragged_batch(result, rows, expected):
    for program in (result.imported.program, result.points[0].program):
        found = program.run(Batch(rows))
        assert relative(found, expected) < 2e-6
        assert abs(found - expected).max() < 1e-5 * abs(expected).max()


@pytest.mark.parametrize("at", range(len(LENGTHS)), ids=[f"{n} tokens" for n in LENGTHS])
def test_the_exact_program_agrees_singly(result, rows, expected, at):
    lo = sum(LENGTHS[:at])
    found, wanted = result.points[0].program.run(Batch([rows[at]])), expected[lo:lo + LENGTHS[at]]
    assert abs(found - wanted).max() < 1e-5 * abs(wanted).max()


def test_errors_are_those_against_the_peer(result, peer):
    held_out = result.workload.verify
    wanted = peer(np.split(held_out.tokens, held_out.starts[1:-1]))
    for point in result.points:
        assert point.verified and point.measured_error <= 1.3 * point.predicted_error
        assert relative(point.program.run(held_out), wanted) == pytest.approx(point.measured_error, rel=1e-3, abs=1e-6)


def test_the_front_is_as_promised(result):
    assert len(result.points) >= 3 and not result.points[0].methods and result.points[0].measured_error < 1e-5
    assert len({tuple(sorted(point.methods.items())) for point in result.points}) >= 3
    inside = [point for point in result.points if point.measured_error <= 0.02]
    least = min(point.program.stored_bytes for point in inside)
    assert least <= 0.52 * result.points[0].program.stored_bytes
    assert result.best.measured_error <= 0.02


def test_saved_programs_embed_texts_as_the_peer_does(result, peer, tmp_path):
    places = save(result, tmp_path / "minilm")
    assert [entry["program"] for entry in as_json(result, places)["front"]] == [str(place) for place in places]
    texts = [*sentences()[:4], "", "word " * 200]
    tokenizer = open_model("minilm").tokenizer()
    batch = tokenizer.encode(texts)
    hidden = np.split(peer(np.split(batch.tokens, batch.starts[1:-1])), batch.starts[1:-1])
    means = np.stack([each.mean(0) for each in hidden])
    wanted = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(Program.load(places[0]).embed(texts), wanted, atol=1e-5)
    assert (np.sum(Program.load(tmp_path / "minilm").embed(texts) * wanted, axis=1) > 0.998).all()
