"""MiniLM, and every BERT that transformers writes, by the float64 oracle against transformers' own BertModel."""

import checkpoints
import numpy as np
import pytest
from fetched import minilm

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.inference.pooling import MEAN
from opmatrix.inference.text import sentences

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS = [1, 2, 3, 7, 32, 101, 255, 400]


def peer(directory, batch):
    """transformers' hidden states in double, one sentence after another."""
    model = transformers.BertModel.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()
    rows = np.split(batch.tokens, batch.starts[1:-1])
    with torch.no_grad():
        return np.concatenate([model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in rows])


def ours(checkpoint, batch):
    return dense(checkpoint.operator(), batch.selection("tokens", checkpoint.config["vocab_size"]), batch)


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.fixture(scope="module")
def model():
    minilm()
    return open_model("minilm")


@pytest.fixture(scope="module")
def rows(model):
    rng = np.random.default_rng(3)
    return [rng.integers(0, model.config["vocab_size"], length) for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(model, rows):
    return peer(model.directory, Batch(rows))


def test_minilm_as_a_ragged_batch(model, rows, expected):
    assert relative(ours(model, Batch(rows)), expected) < 1e-11


@pytest.mark.parametrize("at", range(len(LENGTHS)), ids=[f"{n} tokens" for n in LENGTHS])
def test_minilm_singly(model, rows, expected, at):
    lo = sum(LENGTHS[:at])
    assert relative(ours(model, Batch([rows[at]])), expected[lo : lo + LENGTHS[at]]) < 1e-11


def test_minilm_on_texts(model):
    texts = [*sentences()[:6], "", "Größe naïve 東京 🙂 ", "word " * 300]
    theirs = transformers.AutoTokenizer.from_pretrained(model.directory)
    theirs.backend_tokenizer.no_padding()
    theirs.backend_tokenizer.no_truncation()
    batch = model.tokenizer().encode(texts)
    ids = [theirs(text)["input_ids"] for text in texts]
    assert [row.tolist() for row in np.split(batch.tokens, batch.starts[1:-1])] == ids
    embedded = MEAN(ours(model, batch), batch.starts)
    hidden = np.split(peer(model.directory, batch), batch.starts[1:-1])
    means = torch.from_numpy(np.stack([rows.mean(0) for rows in hidden]))
    np.testing.assert_allclose(embedded, torch.nn.functional.normalize(means).numpy(), atol=1e-12)


@pytest.mark.parametrize("way", ["plain", "shards", "masked", "bfloat16"])
def test_what_transformers_writes(tmp_path, way):
    torch.manual_seed(0)
    config = transformers.BertConfig(**{key: value for key, value in checkpoints.CONFIG.items() if key != "model_type"})
    theirs = (transformers.BertForMaskedLM if way == "masked" else transformers.BertModel)(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if way == "bfloat16":
        theirs = theirs.to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB" if way == "shards" else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (way == "shards")
    batch = Batch([np.array([2, 7, 19, 3]), np.array([40]), np.arange(20)])
    assert relative(ours(Checkpoint.open(tmp_path), batch), peer(tmp_path, batch)) < 1e-12
