"""A program as a module of sentence-transformers: the same embeddings as ours, evaluators, and a directory that its
class opens."""

from importlib.util import find_spec

import checkpoints
import encoders
import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError

torch = pytest.importorskip("torch", reason="needs peers: torch")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

TEXTS = ["the bank of a river", "dry", "", "The River runs dry ? " * 9, "a bank runs"]
FILES = {
    "config_sentence_transformers.json": {
        "prompts": {"query": "the bank: ", "document": "a "},
        "default_prompt_name": "document",
        "similarity_fn_name": "dot",
        "truncate_dim": 11,
    }
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def both(place):
    """Our encoder, and the peer's class around the same program."""
    from rewrites.encoders.torch_module import as_sentence_transformer

    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, place / "cache")
        home = str(checkpoints.pool(checkpoints.write(place / "model"), "mean", True, FILES))
        return om.SentenceTransformer(home), as_sentence_transformer(home)


def compare(ours, theirs):
    """Embeddings of every call are equal to the bit."""
    for call in ("encode", "encode_query", "encode_document"):
        for form in ({}, {"batch_size": 2}, {"normalize_embeddings": True}, {"precision": "ubinary"}):
            rows, wanted = getattr(theirs, call)(TEXTS, **form), getattr(ours, call)(TEXTS, **form)
            assert rows.shape == wanted.shape and rows.dtype == wanted.dtype
            np.testing.assert_allclose(rows, wanted, atol=2e-7)
    np.testing.assert_array_equal(theirs.encode(TEXTS[0]), ours.encode(TEXTS[0]))


def test_the_module_gives_our_embeddings(both):
    ours, theirs = both
    assert theirs.prompts == ours.prompts and theirs.similarity_fn_name == "dot"
    assert theirs.max_seq_length == 20 and theirs.get_embedding_dimension() == 11
    compare(ours, theirs)
    assert theirs.encode([]).shape == (0,)


def test_rows_that_leave_a_prompt_out_are_pooled_without_it(place, monkeypatch):
    from rewrites.encoders.torch_module import as_sentence_transformer

    encoders.keep_in(monkeypatch, place / "cache")
    files = FILES | {"1_Pooling/config.json": {"include_prompt": False}}
    home = str(checkpoints.pool(checkpoints.write(place / "unprompted"), "mean", False, files))
    short = [text for text in TEXTS if len(text) < 40]
    ours, theirs = om.SentenceTransformer(home), as_sentence_transformer(home)
    np.testing.assert_allclose(theirs.encode_query(short), ours.encode_query(short), atol=1e-7)


def test_an_evaluator_runs_it(both):
    from sentence_transformers.sentence_transformer.evaluation import (
        EmbeddingSimilarityEvaluator,
        InformationRetrievalEvaluator,
    )

    ours, theirs = both
    scores = EmbeddingSimilarityEvaluator(TEXTS[:4], TEXTS[1:], [0.1, 0.9, 0.4, 0.6], write_csv=False)(theirs)
    assert all(np.isfinite(value) for value in scores.values())
    corpus = {str(at): text for at, text in enumerate(TEXTS)}
    found = InformationRetrievalEvaluator({"q": "dry"}, corpus, {"q": {"1"}}, write_csv=False)(theirs)
    order = np.argsort(-np.asarray(ours.similarity(ours.encode_query("dry"), ours.encode_document(TEXTS)))[0])
    rank = 1 + [*order].index(1)
    assert found["dot_mrr@10"] == pytest.approx(1 / rank)


def test_a_saved_directory_is_opened_by_the_peers_class(both, place):
    from sentence_transformers import SentenceTransformer

    ours, theirs = both
    theirs.save(str(place / "saved"), create_model_card=False)
    again = SentenceTransformer(str(place / "saved"), device="cpu", trust_remote_code=True)
    assert type(again[0]) is type(theirs[0]) and again.prompts == ours.prompts
    compare(ours, again)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(place / "saved"), device="cpu")
    [folder] = place.glob("saved/0_*")
    np.testing.assert_array_equal(om.SentenceTransformer(str(folder)).encode(TEXTS), ours.encode(TEXTS))


def test_what_does_not_embed_is_refused(both, place, monkeypatch):
    from rewrites.encoders.torch_module import as_sentence_transformer

    encoders.keep_in(monkeypatch, place / "cache")
    home = str(checkpoints.classify(place / "reranker", 1))
    with pytest.raises(InputError, match="it scores texts and has no embedding"):
        as_sentence_transformer(om.CrossEncoder(home).program)
    with pytest.raises(InputError, match="text 1 is"):
        both[1][0].preprocess(["a", ("b", "c")])
