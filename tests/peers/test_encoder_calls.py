"""`om.SentenceTransformer` and `om.CrossEncoder` against sentence-transformers: parameters of every call, embeddings
and scores over configurations of modules, prompts and forms."""

import inspect
from importlib.util import find_spec

import checkpoints
import encoders
import numpy as np
import pytest

import opmatrix as om

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

CALLS = {
    "SentenceTransformer": (
        "__init__",
        "encode",
        "encode_query",
        "encode_document",
        "similarity",
        "similarity_pairwise",
        "get_embedding_dimension",
        "get_sentence_embedding_dimension",
        "truncate_embeddings",
    ),
    "CrossEncoder": ("__init__", "predict", "rank"),
}
TEXTS = ["", "a", "the bank", "The River runs dry.", "the bank of a river " * 9, "rivers runs dry ?"]
PROMPTS = {"query": "the bank: ", "document": "a ", "passage": "dry "}
ONE, SEVERAL = ("mean",), ("cls", "max", "lasttoken")
TANH, IDENTITY = torch.nn.Tanh(), torch.nn.Identity()
# modes, Dense layers (columns, activation, bias, residual), normalised, files about prompts and width, prompts pooled
MODELS = {
    "mean": (ONE, (), True, {}, True),
    "as they are": (("cls",), (), False, {"similarity_fn_name": "euclidean"}, True),
    "several, a layer": (SEVERAL, ((10, TANH, True, False),), True, {}, True),
    "two layers": (("max",), ((24, IDENTITY, False, True), (7, torch.nn.GELU(), True, True)), False, {}, True),
    "prompts": (("weightedmean",), (), True, {"prompts": PROMPTS, "default_prompt_name": "query"}, True),
    "shorter": (("mean_sqrt_len_tokens",), (), True, {"truncate_dim": 9, "similarity_fn_name": "manhattan"}, True),
    "prompts left out, mean": (ONE, (), True, {"prompts": PROMPTS}, False),
    "prompts left out, several": (("weightedmean", "cls", "max"), (), False, {"prompts": PROMPTS}, False),
}
FORMS = [
    {},
    {"normalize_embeddings": True, "truncate_dim": 5},
    {"precision": "int8"},
    {"precision": "uint8", "truncate_dim": 6},
    {"precision": "binary"},
    {"precision": "ubinary", "convert_to_tensor": True},
    {"convert_to_numpy": False, "batch_size": 2},
]


@pytest.mark.parametrize("name, call", [(name, call) for name, calls in CALLS.items() for call in calls])
def test_parameters_are_those_of_the_peer(name, call):
    import sentence_transformers

    def told(owner):
        parameters = inspect.signature(getattr(owner, call)).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters]

    assert told(getattr(om, name)) == told(getattr(sentence_transformers, name))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A random BERT with a tokenizer, as transformers saves them."""
    place = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {key: value for key, value in checkpoints.CONFIG.items() if key != "model_type"}
    model = transformers.BertModel(transformers.BertConfig(**sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place)
    checkpoints.write_pair_tokenizer(place / "tokenizer.json")
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), **names).save_pretrained(place)
    return place


def write(bert, place, modes, layers, normalised, said, pooled):
    """A model as the peer saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(1)
    modules, width = [Transformer(str(bert)), Pooling(24, modes, include_prompt=pooled)], 24 * len(modes)
    for columns, act, bias, residual in layers:
        modules.append(Dense(width, columns, bias, act, use_residual=residual))
        width = columns
    SentenceTransformer(modules=[*modules, *[Normalize()] * normalised], device="cpu", **said).save(
        str(place), create_model_card=False
    )


@pytest.mark.parametrize("case", MODELS)
def test_embeddings_are_those_of_the_peer(bert, tmp_path, monkeypatch, case):
    from sentence_transformers import SentenceTransformer

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    write(bert, tmp_path / "model", *MODELS[case])
    ours = om.SentenceTransformer(str(tmp_path / "model"))
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert ours.prompts == theirs.prompts and ours.max_seq_length == theirs.max_seq_length
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    for call in ("encode", "encode_query", "encode_document"):
        found, wanted = getattr(ours, call)(TEXTS), getattr(theirs, call)(TEXTS)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    for name in theirs.prompts:
        np.testing.assert_allclose(
            ours.encode(TEXTS[2], prompt_name=name), theirs.encode(TEXTS[2], prompt_name=name), atol=1e-5
        )
    vectors = theirs.encode(TEXTS)
    for call in ("similarity", "similarity_pairwise"):
        found, wanted = (
            getattr(ours, call)(vectors, vectors[::-1].copy()),
            getattr(theirs, call)(vectors, vectors[::-1].copy()),
        )
        assert isinstance(found, torch.Tensor) and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)


def test_a_checkpoint_of_transformers_alone_is_embedded_as_the_peer_does(bert, tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    wanted = SentenceTransformer(str(bert), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(om.SentenceTransformer(str(bert)).encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("case", [None, "several, a layer", "prompts", "shorter", "prompts left out, mean"])
def test_rows_of_tokens_are_those_of_the_peer(bert, tmp_path, monkeypatch, case):
    from sentence_transformers import SentenceTransformer

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    home = bert if case is None else tmp_path / "model"
    if case is not None:
        write(bert, home, *MODELS[case])
    ours, theirs = om.SentenceTransformer(str(home)), SentenceTransformer(str(home), device="cpu")
    asked = dict(output_value="token_embeddings", batch_size=2)
    for call in ("encode", "encode_query"):
        for form in ({}, dict(convert_to_numpy=False)):
            rows, wanted = (getattr(model, call)(TEXTS, **asked, **form) for model in (ours, theirs))
            assert type(rows) is type(wanted) and [*map(type, rows)] == [*map(type, wanted)]
            assert [text.shape for text in rows] == [text.shape for text in wanted]
            for text, other in zip(rows, wanted, strict=True):
                torch.testing.assert_close(text, other, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.encode(TEXTS[3], **asked), theirs.encode(TEXTS[3], **asked), atol=1e-5, rtol=0)
    assert ours.encode([], **asked) == theirs.encode([], **asked) == []


def test_every_form_is_that_of_the_peer(bert, tmp_path, monkeypatch):
    """Bytes may be a step apart where a number lies between two."""
    from sentence_transformers import SentenceTransformer

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    write(bert, tmp_path / "model", *MODELS["as they are"])
    ours, theirs = (
        om.SentenceTransformer(str(tmp_path / "model")),
        SentenceTransformer(str(tmp_path / "model"), device="cpu"),
    )
    for form in FORMS:
        found, wanted = ours.encode(TEXTS, **form), theirs.encode(TEXTS, **form)
        assert type(found) is type(wanted), form
        if isinstance(found, list):
            assert all(isinstance(row, torch.Tensor) for row in found)
            found, wanted = torch.stack(found), torch.stack(wanted)
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, form
        steps = 1 if form.get("precision", "").endswith("int8") else 0
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), atol=max(1e-5, steps))
        assert (found != wanted).mean() < 0.05 or found.dtype == np.float32
    for form in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
        found, wanted = ours.encode(TEXTS[2], **form), theirs.encode(TEXTS[2], **form)
        assert type(found) is type(wanted) and found.shape == wanted.shape == (24,)
    assert ours.encode([]).shape == theirs.encode([]).shape == (0,)


@pytest.mark.parametrize("labels", [1, 3])
def test_scores_are_those_of_the_peer(tmp_path, monkeypatch, labels):
    from sentence_transformers import CrossEncoder

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    home, prompts = str(checkpoints.classify(tmp_path / "model", labels)), {"ask": "the bank: "}
    ours, theirs = om.CrossEncoder(home, prompts=prompts), CrossEncoder(home, device="cpu", prompts=prompts)
    pairs = [(first, second) for first in TEXTS[1:] for second in TEXTS[:3]]
    forms = [{}, {"activation_fn": torch.nn.Tanh()}, {"activation_fn": torch.nn.Softsign()}, {"prompt_name": "ask"}]
    for form in [*forms, {"apply_softmax": True}, {"convert_to_tensor": True}]:
        found, wanted = ours.predict(pairs, **form), theirs.predict(pairs, **form)
        assert type(found) is type(wanted) and found.shape == wanted.shape
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-5)
    np.testing.assert_allclose(ours.predict(pairs[0]), theirs.predict(pairs[0]), atol=1e-5)
    if labels == 1:
        documents = [second for _, second in pairs[:5]]
        found, wanted = (model.rank("dry", documents, 3, True, prompt_name="ask") for model in (ours, theirs))
        assert [entry.keys() for entry in found] == [entry.keys() for entry in wanted]
        assert [entry["text"] for entry in found] == [entry["text"] for entry in wanted]
        np.testing.assert_allclose([each["score"] for each in found], [each["score"] for each in wanted], atol=1e-5)


def test_lengths_of_calls_are_those_of_the_peer(tmp_path, monkeypatch):
    from sentence_transformers import CrossEncoder

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    home = str(checkpoints.classify(tmp_path / "model", 1))
    ours, theirs = om.CrossEncoder(home, max_length=9), CrossEncoder(home, device="cpu", max_length=9)
    pairs = [
        ("the bank of a river", "dry"),
        ("dry", "the bank of a river"),
        ("a river runs dry", "the bank of a river"),
    ]
    np.testing.assert_allclose(ours.predict(pairs), theirs.predict(pairs), atol=1e-5)
