"""T5s whose decoder scores pairs by its first word, as monoT5 does, beside transformers' whole models."""

import encoders
import numpy as np
import pytest
from test_encoders import relative

import opmatrix as om
from formats.core.errors import InputError

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

WORDS = ["true", "false", "Query:", "Document:", "Relevant:", "the", "bank", "of", "a", "river", "runs", "dry"]
SMALL = dict(d_model=24, d_kv=10, d_ff=20, num_layers=2, num_heads=3, relative_attention_num_buckets=8)
SHAPES = {
    "small": SMALL | dict(num_decoder_layers=3),
    "one layer": SMALL | dict(num_layers=1, num_decoder_layers=1),
    "gated, not scaled": SMALL | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "another start": SMALL | dict(decoder_start_token_id=5),
    "real": dict(d_model=768, d_kv=64, d_ff=3072, num_layers=2, num_heads=12),
}
LONG = "the bank of a river runs dry " * 6
PAIRS = [("the bank", "of a river"), ("a", ""), ("", "dry"), ("river bank", LONG), ("x", "the Bank?")]


def tokenizer_of():
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *(f"\u2581{word}" for word in WORDS), *"abdehiknrstuv:"]
    return transformers.T5Tokenizer(vocab=[(piece, -float(at)) for at, piece in enumerate(pieces)])


def write(place, shape, architecture="T5ForConditionalGeneration"):
    """A random T5 with its tokenizer, as transformers saves both."""
    tokenizer = tokenizer_of()
    torch.manual_seed(0)
    start = dict(decoder_start_token_id=0, vocab_size=len(tokenizer) + 3, n_positions=80)
    model = getattr(transformers, architecture)(transformers.T5Config(**start | SHAPES[shape])).eval()
    for name, parameter in model.named_parameters():
        wide = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 and "relative" not in name else 0.4
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 3 * wide if "shared" in name else wide)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return tokenizer, model.double()


def shares(tokenizer, model, pairs):
    """The share of true beside false in the first word of an answer, computed by the whole model."""
    columns = [tokenizer.convert_tokens_to_ids(f"\u2581{word}") for word in ("false", "true")]
    scored = []
    for query, document in pairs:
        read = tokenizer(f"Query: {query} Document: {document} Relevant:", return_tensors="pt")
        start = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            logits = model(**read, decoder_input_ids=start).logits[0, -1, columns]
        scored.append(torch.softmax(logits, 0)[1].item())
    return np.array(scored)


def older_files(place, numbers):
    """A config of a version that told the scaling by the tied head, with a matrix for the head."""
    import json

    import checkpoints
    from safetensors.numpy import load_file

    config = json.loads((place / "config.json").read_text())
    del config["scale_decoder_outputs"]
    (place / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    tensors = load_file(place / "model.safetensors") | {"lm_head.weight": numbers}
    checkpoints.safetensors(place / "model.safetensors", tensors)


def test_a_head_of_its_own_scores(tmp_path, monkeypatch):
    """As files of T5 1.1 hold it, whose rows are not scaled."""
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    tokenizer, model = write(tmp_path / "model", "gated, not scaled")
    head = model.lm_head.weight.detach().numpy()[::-1].copy()
    older_files(tmp_path / "model", head.astype("<f4"))
    model.lm_head.weight = torch.nn.Parameter(torch.tensor(head))
    scores = om.CrossEncoder(str(tmp_path / "model")).predict(PAIRS)
    assert np.abs(scores - shares(tokenizer, model, PAIRS)).max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_the_whole_model(tmp_path, monkeypatch, shape):
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    tokenizer, model = write(tmp_path / "model", shape)
    encoder = om.CrossEncoder(str(tmp_path / "model"))
    scores, wanted = encoder.predict(PAIRS), shares(tokenizer, model, PAIRS)
    assert np.ptp(wanted) > 1e-3 and np.abs(scores - wanted).max() < 1e-5
    np.testing.assert_array_equal(np.array([encoder.predict(pair) for pair in PAIRS]), scores)
    assert "interpret" not in {step.kernel for step in encoder.program.steps}
    encoder.program.save(tmp_path / "saved")
    np.testing.assert_array_equal(om.CrossEncoder(str(tmp_path / "saved")).predict(PAIRS), scores)
    best = encoder.rank("the bank", [document for _, document in PAIRS], top_k=1)
    assert best[0]["corpus_id"] == int(np.argmax(encoder.predict([("the bank", text) for _, text in PAIRS])))


def test_long_pairs_keep_the_words_that_every_pair_ends_with(tmp_path, monkeypatch):
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    write(tmp_path / "model", "one layer")
    encoder = om.CrossEncoder(str(tmp_path / "model"))
    cut = [encoder.predict(("bank", "the " * count)) for count in (200, 300)]
    assert cut[0] == cut[1] != encoder.predict(("bank", "the " * 20))


def test_an_encoder_alone_has_no_answer(tmp_path, monkeypatch):
    """Nor has a tokenizer without both words."""
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    write(tmp_path / "encoder", "one layer", "T5EncoderModel")
    with pytest.raises(InputError, match="it embeds texts and has no head that scores them"):
        om.CrossEncoder(str(tmp_path / "encoder"))
    tokenizer, _ = write(tmp_path / "whole", "one layer")
    text = tokenizer.backend_tokenizer.to_str().replace("\u2581true", "\u2581tree")
    (tmp_path / "whole" / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match="no tokens '\u2581true' and '\u2581false', by which a language model scores"):
        om.CrossEncoder(str(tmp_path / "whole"))


def test_a_whole_model_still_embeds_by_its_encoder(tmp_path, monkeypatch):
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    tokenizer, model = write(tmp_path / "model", "small")
    rows = om.SentenceTransformer(str(tmp_path / "model")).encode(["the bank"])
    with torch.inference_mode():
        hidden = model.encoder(**tokenizer("the bank", return_tensors="pt")).last_hidden_state[0].mean(0)
    assert relative(rows[0], hidden.numpy()) < 1e-5
