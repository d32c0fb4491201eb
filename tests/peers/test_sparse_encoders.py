"""`om.SparseEncoder` against sentence-transformers: parameters of every call, and sparse rows over families, forms of
pooling, heads that are tied and not, prompts and lengths."""

import inspect
import json
from importlib.util import find_spec

import checkpoints
import encoders
import numpy as np
import pytest
from test_cross_encoders import BEHIND, BERT_SIZES, MODERN, SPECIAL

import opmatrix as om
from formats.core.errors import InputError

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

CALLS = (
    "__init__",
    "encode",
    "encode_query",
    "encode_document",
    "similarity",
    "similarity_pairwise",
    "get_embedding_dimension",
    "get_sentence_embedding_dimension",
)
TEXTS = ["", "a", "the bank", "The River runs dry.", "the bank of a river " * 9, "rivers runs dry ?"]
PROMPTS = {"query": "the bank: ", "document": "a "}
DISTIL = dict(vocab_size=41, dim=24, hidden_dim=20, n_layers=2, n_heads=3, max_position_embeddings=20)
NARROW = dict(embedding_size=16)
SHIFTED = dict(classifier_bias=True, norm_bias=True, classifier_activation="relu", decoder_bias=False)
MODELS = {
    "bert": ("Bert", BERT_SIZES),
    "bert, relu": ("Bert", BERT_SIZES | dict(hidden_act="relu")),
    "bert, not tied": ("Bert", BERT_SIZES | dict(tie_word_embeddings=False)),
    "roberta": ("Roberta", BEHIND | dict(pad_token_id=0)),
    "xlm-roberta": ("XLMRoberta", BEHIND | dict(pad_token_id=0)),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert, not tied": ("DistilBert", DISTIL | dict(tie_word_embeddings=False, activation="relu")),
    "electra": ("Electra", BERT_SIZES | NARROW),
    "electra, not tied": ("Electra", BERT_SIZES | NARROW | dict(tie_word_embeddings=False, hidden_act="relu")),
    "albert": ("Albert", BERT_SIZES | NARROW),
    "albert, not tied": ("Albert", BERT_SIZES | NARROW | dict(tie_word_embeddings=False, hidden_act="relu")),
    "mpnet": ("MPNet", BEHIND | dict(pad_token_id=1)),
    "mpnet, not tied": ("MPNet", BEHIND | dict(pad_token_id=1, tie_word_embeddings=False)),
    "modernbert": ("ModernBert", MODERN),
    "modernbert, not tied": ("ModernBert", MODERN | SHIFTED | dict(tie_word_embeddings=False)),
    "gte": ("Gte", BERT_SIZES),
    "gte, not tied": ("Gte", BERT_SIZES | dict(tie_word_embeddings=False)),
}
FORMS = [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu"), ("sum", "log1p_relu")]


def write(place, family, form=None, **more):
    """A random model, as transformers saves it, or, with a form of pooling, as sentence-transformers does."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    name, sizes = MODELS[family]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForMaskedLM")(getattr(transformers, f"{name}Config")(**sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place / "plain")
    checkpoints.write_pair_tokenizer(place / "plain" / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast
    fast(tokenizer_file=str(place / "plain" / "tokenizer.json"), **SPECIAL, model_max_length=20).save_pretrained(
        place / "plain"
    )
    if form is None:
        return place / "plain"
    modules = [Transformer(str(place / "plain"), transformer_task="fill-mask"), SpladePooling(*form)]
    SparseEncoder(modules=modules, device="cpu", **more).save(str(place / "saved"), create_model_card=False)
    return place / "saved"


def both(home, tmp_path, monkeypatch, **more):
    """Our encoder and the peer's of a directory."""
    from sentence_transformers import SparseEncoder

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    return om.SparseEncoder(str(home), **more), SparseEncoder(str(home), device="cpu", **more)


def dense(rows):
    """Rows of torch as an array."""
    return (rows.to_dense() if rows.layout != torch.strided else rows).numpy()


@pytest.mark.parametrize("call", CALLS)
def test_parameters_are_those_of_the_peer(call):
    import sentence_transformers

    def told(owner):
        parameters = inspect.signature(getattr(owner, call)).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters]

    assert told(om.SparseEncoder) == told(sentence_transformers.SparseEncoder)


@pytest.mark.parametrize("family", MODELS)
def test_rows_of_a_checkpoint_of_transformers_are_those_of_the_peer(tmp_path, monkeypatch, family):
    ours, theirs = both(write(tmp_path, family), tmp_path, monkeypatch)
    rows, wanted = ours.encode(TEXTS), theirs.encode(TEXTS)
    assert rows.layout == wanted.layout and rows.shape == wanted.shape and rows.dtype == wanted.dtype
    assert 0.2 < (dense(wanted) > 0).mean() < 0.95
    np.testing.assert_allclose(dense(rows), dense(wanted), atol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_of_pooling_is_that_of_the_peer(tmp_path, monkeypatch, form):
    said = dict(prompts=PROMPTS, default_prompt_name="document", similarity_fn_name="cosine", max_active_dims=9)
    ours, theirs = both(write(tmp_path, "bert", form, **said), tmp_path, monkeypatch)
    assert (ours.prompts, ours.similarity_fn_name) == (theirs.prompts, theirs.similarity_fn_name)
    assert ours.max_active_dims == 9 and ours.max_seq_length == theirs.max_seq_length
    assert ours.get_embedding_dimension() == 41
    for call in ("encode", "encode_query", "encode_document"):
        rows, wanted = getattr(ours, call)(TEXTS), getattr(theirs, call)(TEXTS)
        np.testing.assert_allclose(dense(rows), dense(wanted), atol=1e-5)
        assert (dense(rows) != 0).sum(1).max() <= 9
    np.testing.assert_allclose(
        dense(ours.encode(TEXTS, max_active_dims=3)), dense(theirs.encode(TEXTS, max_active_dims=3)), atol=1e-5
    )


def test_every_form_of_results_and_similarities_is_that_of_the_peer(tmp_path, monkeypatch):
    ours, theirs = both(write(tmp_path, "bert", FORMS[0]), tmp_path, monkeypatch)
    for form in ({}, dict(convert_to_sparse_tensor=False), dict(convert_to_tensor=False), dict(batch_size=2)):
        rows, wanted = ours.encode(TEXTS, **form), theirs.encode(TEXTS, **form)
        assert type(rows) is type(wanted) and len(rows) == len(wanted)
        for row, other in zip(rows, wanted, strict=True):
            assert row.layout == other.layout
            np.testing.assert_allclose(dense(row), dense(other), atol=1e-5)
        one, other = ours.encode(TEXTS[2], **form), theirs.encode(TEXTS[2], **form)
        assert one.layout == other.layout and one.shape == other.shape == (41,)
        np.testing.assert_allclose(dense(one), dense(other), atol=1e-5)
    vectors = theirs.encode(TEXTS)
    for name in ("dot", "cosine", "euclidean", "manhattan"):
        ours.similarity_fn_name = theirs.similarity_fn_name = name
        torch.testing.assert_close(
            ours.similarity(vectors, vectors), theirs.similarity(vectors, vectors), atol=1e-4, rtol=1e-5
        )
    ours.similarity_fn_name = theirs.similarity_fn_name = "dot"
    torch.testing.assert_close(
        ours.similarity_pairwise(vectors, vectors), theirs.similarity_pairwise(vectors, vectors), atol=1e-4, rtol=1e-5
    )


def test_older_files_give_the_same_rows(tmp_path, monkeypatch):
    """Files of versions whose module was called MLMTransformer."""
    home = write(tmp_path, "distilbert", FORMS[0])
    listed = json.loads((home / "modules.json").read_text())
    listed[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    listed[1]["type"] = "sentence_transformers.sparse_encoder.models.SpladePooling"
    (home / "modules.json").write_text(json.dumps(listed))
    (home / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    ours, theirs = both(home, tmp_path, monkeypatch)
    assert ours.max_seq_length == theirs.max_seq_length == 12
    np.testing.assert_allclose(dense(ours.encode(TEXTS)), dense(theirs.encode(TEXTS)), atol=1e-5)


def test_a_head_that_no_file_has_is_refused(tmp_path, monkeypatch):
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    with pytest.raises(InputError, match=r"no head that scores its vocabulary: om\.SentenceTransformer"):
        om.SparseEncoder(str(checkpoints.write(tmp_path / "bare")))
