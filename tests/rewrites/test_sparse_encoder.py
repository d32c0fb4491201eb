"""Sparse rows over the vocabulary: the paper's formula in plain numpy, CSR out, and what is refused, in a line."""

import json
import sys

import checkpoints
import encoders
import numpy as np
import pytest
from scipy.special import erf

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.pooling import Pooling
from rewrites.encoders.kept_programs import as_encoder

TEXTS = ["the bank of a river", "dry", "", "The River runs dry ? " * 9, "a bank runs"]
HEAD = "cls.predictions."
FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_SpladePooling",
            "type": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
        },
    ],
    "1_SpladePooling/config.json": {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
    "config_sentence_transformers.json": {"model_type": "SparseEncoder", "prompts": {"query": "the bank: "}},
    "sentence_bert_config.json": {"transformer_task": "fill-mask"},
}


def head(d, v):
    """Random numbers of a head that scores masked tokens."""
    rng = np.random.default_rng(7)
    shapes = {
        "transform.dense.weight": (d, d),
        "transform.dense.bias": (d,),
        "transform.LayerNorm.weight": (d,),
        "transform.LayerNorm.bias": (d,),
        "bias": (v,),
    }
    return {HEAD + name: rng.normal(size=shape).astype("<f4") / 2 for name, shape in shapes.items()}


def write(place, files=None, d=24, **changed):
    """A BERT with such a head, and files of sentence-transformers beside it."""
    tensors = head(d, checkpoints.CONFIG["vocab_size"])
    checkpoints.write(
        place, tensors=tensors, prefix="", **(dict(architectures=["BertForMaskedLM"], hidden_size=d) | changed)
    )
    for name, entries in (files or {}).items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(entries))
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("sparse")


@pytest.fixture(scope="module", autouse=True)
def kept(place):
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, place / "cache")
        yield


@pytest.fixture(scope="module")
def encoder(place, kept):
    return om.SparseEncoder(str(write(place / "model")))


def by_hand(home, text, strategy="max", logs=1, d=24):
    """The numbers of a text: logarithms of scores of the vocabulary, pooled."""
    checkpoint = open_model(str(home))
    tokens = checkpoint.tokenizer().cut(text, 20)
    rows = om.dense(checkpoint.operator(), om.Batch([tokens]))
    numbers = {name.removeprefix(HEAD): array.astype(float) for name, array in head(d, 41).items()}
    x = rows @ numbers["transform.dense.weight"].T + numbers["transform.dense.bias"]
    x = x * 0.5 * (1 + erf(x / 2**0.5))
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12)
    x = x * numbers["transform.LayerNorm.weight"] + numbers["transform.LayerNorm.bias"]
    table = checkpoints.arrays(checkpoints.CONFIG | {"hidden_size": d})["embeddings.word_embeddings.weight"]
    scores = np.maximum(x @ table.T.astype(float) + numbers["bias"], 0)
    for _ in range(logs):
        scores = np.log1p(scores)
    return getattr(scores, strategy)(0)


def test_rows_are_the_papers_formula(place, encoder):
    rows = encoder.encode_csr(TEXTS)
    wanted = np.stack([by_hand(place / "model", text) for text in TEXTS])
    assert rows.format == "csr" and rows.dtype == np.float32 and rows.shape == (5, 41)
    assert rows.nnz == np.count_nonzero(rows.toarray()) and 0.2 < rows.nnz / wanted.size < 0.9
    np.testing.assert_allclose(rows.toarray(), wanted, atol=1e-5)


@pytest.mark.parametrize("d", [12, 96])
def test_sums_of_two_logarithms_at_other_widths(place, d):
    home = write(place / f"sums {d}", FILES, d)
    encoder = om.SparseEncoder(str(home))
    wanted = np.stack([by_hand(home, text, "sum", 2, d) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode_csr(TEXTS).toarray(), wanted, atol=3e-5)
    np.testing.assert_array_equal(
        encoder.encode_csr(["dry"], "query").toarray(), encoder.encode_csr(["the bank: dry"]).toarray()
    )


def test_texts_have_the_same_bits_alone_and_in_any_batch(encoder):
    alone = np.concatenate([encoder.encode_csr([text]).toarray() for text in TEXTS])
    for batch_size in (1, 2, 32):
        np.testing.assert_array_equal(encoder.encode_csr(TEXTS, batch_size=batch_size).toarray(), alone)
    assert encoder.encode_csr([]).shape == (0, 41)


def test_only_the_greatest_numbers_are_kept(encoder):
    whole, most = encoder.encode_csr(TEXTS).toarray(), encoder.encode_csr(TEXTS, max_active_dims=4).toarray()
    for row, part in zip(whole, most, strict=True):
        assert sorted(part[part > 0]) == sorted(row)[-4:] and (row[part > 0] == part[part > 0]).all()
    np.testing.assert_array_equal(encoder.encode_csr(TEXTS, max_active_dims=41).toarray(), whole)


def test_without_torch_rows_are_of_scipy_and_numpy(encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    whole = encoder.encode_csr(TEXTS).toarray()
    np.testing.assert_array_equal(encoder.encode(TEXTS).toarray(), whole)
    np.testing.assert_array_equal(encoder.encode(TEXTS, convert_to_sparse_tensor=False), whole)
    assert [row.shape for row in encoder.encode(TEXTS, convert_to_tensor=False)] == [(1, 41)] * 5
    np.testing.assert_array_equal(encoder.encode(TEXTS[0]).toarray(), whole[:1])
    rows = encoder.encode(TEXTS)
    products = encoder.similarity(rows, rows[[0]])
    assert isinstance(products, np.ndarray) and products.dtype == np.float32
    np.testing.assert_allclose(products, whole @ whole[:1].T, rtol=1e-5)
    np.testing.assert_allclose(encoder.similarity_pairwise(rows, rows), (whole * whole).sum(1), rtol=1e-5)
    with pytest.raises(InputError, match="rows of 41 and of 40 columns"):
        encoder.similarity(rows, rows[:, :40])


def test_a_saved_directory_is_a_name_too(place, encoder):
    encoder.program.save(place / "saved")
    again = om.SparseEncoder(str(place / "saved"))
    np.testing.assert_array_equal(again.encode_csr(TEXTS).toarray(), encoder.encode_csr(TEXTS).toarray())
    pooling = Pooling.parsed(json.loads(json.dumps(again.program.pooling.described())), "")
    assert pooling == encoder.program.pooling and pooling.sparse == "relu"


def test_the_same_files_give_means_to_another_class(place, encoder):
    mean = om.SentenceTransformer(str(place / "model"))
    assert mean.encode(TEXTS).shape == (5, 24) and encoder.encode_csr(TEXTS).shape == (5, 41)


def changed(name, **entries):
    """The files with other entries."""
    return FILES | {name: FILES[name] | entries}


WRONG = [
    (
        changed("1_SpladePooling/config.json", pooling_strategy="mean"),
        "pooling_strategy is 'mean', not one of max, sum",
    ),
    (changed("1_SpladePooling/config.json", activation_function="gelu"), "activation_function is 'gelu'"),
    (changed("1_SpladePooling/config.json", other=1), "other is 1: it is not supported"),
    (FILES | {"modules.json": FILES["modules.json"][:1]}, "it names no SpladePooling"),
    (FILES | {"modules.json": FILES["modules.json"][::-1]}, "SpladePooling is out of order"),
    (changed("config_sentence_transformers.json", max_active_dims=0.5), "max_active_dims is 0.5"),
    (changed("sentence_bert_config.json", transformer_task="feature-extraction"), "transformer_task is 'feature"),
]


@pytest.mark.parametrize("files, words", WRONG)
def test_files_that_say_something_else_are_refused(tmp_path, files, words):
    with pytest.raises(InputError, match=words) as error:
        om.SparseEncoder(str(write(tmp_path / "model", files)))
    assert "\n" not in str(error.value)


def test_other_models_name_the_class_that_opens_them(place, encoder):
    with pytest.raises(InputError, match=r"om\.SentenceTransformer"):
        om.SparseEncoder(str(checkpoints.write(place / "bare")))
    with pytest.raises(InputError, match=r"om\.CrossEncoder"):
        om.SparseEncoder(str(checkpoints.classify(place / "classifier", 1)))
    home = write(place / "declared", FILES)
    with pytest.raises(InputError, match=r"sparse rows over its vocabulary: om\.SparseEncoder"):
        om.SentenceTransformer(str(home))
    with pytest.raises(InputError, match="the head of sparse rows: it comes behind the pooled rows"):
        as_encoder(open_model(str(home))).pooling()(np.ones((3, 24)), np.array([0, 3]))
    with pytest.raises(InputError, match="max_active_dims 0"):
        encoder.encode(TEXTS, max_active_dims=0)
    with pytest.raises(InputError, match="text 0 is"):
        encoder.encode([("a", "b")])
