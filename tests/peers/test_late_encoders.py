"""`om.MultiVectorEncoder` against sentence-transformers: parameters of every call, rows of queries and documents over
fillings, lengths and left-out tokens, and scores by late interaction."""

import inspect
import json
from importlib.util import find_spec

import checkpoints
import encoders
import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

CALLS = ("__init__", "encode", "encode_query", "encode_document", "similarity", "similarity_pairwise")
TEXTS = ["", "a", "the bank", "The River runs dry.", "the bank of a river " * 9, "rivers runs dry ?"]
SPECIAL = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
SIZES = dict(hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, vocab_size=41)
FILLED = dict(strategy="fixed", attend=True, length=12, token="river")
FORMS = {
    "plain": ({}, {}),
    "lengths": (dict(query_length=6, document_length=9), dict(skiplist_words=["bank", "dry", "no token"])),
    "both tasks": ({}, dict(skiplist_words=["bank", "the", "[CLS]", "[SEP]"], skiplist_tasks=["query", "document"])),
    "fixed": (dict(query_expansion=FILLED), dict(skiplist_words=["river"])),
    "at least": (dict(query_expansion=FILLED | dict(strategy="min", length=7), query_length=11), {}),
}


def write(place, form, **more):
    """A random model with its modules, as sentence-transformers saves it."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, max_position_embeddings=20, type_vocab_size=2)
    model = transformers.BertModel(config, add_pooling_layer=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place / "plain")
    checkpoints.write_pair_tokenizer(place / "plain" / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(place / "plain" / "tokenizer.json"), **SPECIAL, model_max_length=20
    )
    fast.save_pretrained(place / "plain")
    texts, mask = FORMS[form]
    tokens = dict(module_input_name="token_embeddings")
    modules = [
        Transformer(str(place / "plain"), **texts),
        Dense(24, 16, bias=False, activation_function=torch.nn.Identity(), **tokens),
        MultiVectorMask(**mask),
        Normalize(**tokens),
    ]
    saved = MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "the bank: ", "document": "a "}, **more)
    saved.save(str(place / "saved"), create_model_card=False)
    return place / "saved"


def both(home, tmp_path, monkeypatch):
    """Our encoder and the peer's of a directory."""
    from sentence_transformers import MultiVectorEncoder

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    return om.MultiVectorEncoder(str(home)), MultiVectorEncoder(str(home), device="cpu")


def check_equal(rows, wanted):
    assert [text.shape for text in rows] == [text.shape for text in wanted]
    for text, other in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(text), np.asarray(other), atol=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_parameters_are_those_of_the_peer(call):
    import sentence_transformers

    def told(owner):
        parameters = inspect.signature(getattr(owner, call)).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters]

    assert told(om.MultiVectorEncoder) == told(sentence_transformers.MultiVectorEncoder)


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_scores_are_those_of_the_peer(tmp_path, monkeypatch, form):
    ours, theirs = both(write(tmp_path, form), tmp_path, monkeypatch)
    assert ours.prompts == theirs.prompts and ours.get_embedding_dimension() == 16
    for call in ("encode_query", "encode_document", "encode"):
        rows = getattr(ours, call)(TEXTS)
        check_equal(rows, getattr(theirs, call)(TEXTS))
        alone = [getattr(ours, call)(text, convert_to_numpy=True) for text in TEXTS]
        for text, other in zip(rows, alone, strict=True):  # to the bit, in any batch
            np.testing.assert_array_equal(text.numpy(), other)
    queries, documents = theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)
    for name in ("maxsim", "meanmaxsim"):
        ours.similarity_fn_name = theirs.similarity_fn_name = name
        torch.testing.assert_close(ours.similarity(queries, documents), theirs.similarity(queries, documents))
        torch.testing.assert_close(
            ours.similarity_pairwise(queries, documents), theirs.similarity_pairwise(queries, documents)
        )


def test_a_saved_program_is_a_name_too_and_has_no_embedding(tmp_path, monkeypatch):
    ours, theirs = both(write(tmp_path, "fixed", similarity_fn_name="meanmaxsim"), tmp_path, monkeypatch)
    ours.program.save(tmp_path / "program")
    again = om.MultiVectorEncoder(str(tmp_path / "program"))
    assert (again.late, again.similarity_fn_name) == (ours.late, theirs.similarity_fn_name)
    check_equal(again.encode_query(TEXTS), ours.encode_query(TEXTS))
    with pytest.raises(InputError, match=r"rows for late interaction: om\.MultiVectorEncoder"):
        om.SentenceTransformer(str(tmp_path / "program"))
    with pytest.raises(InputError, match=r"no embedding of a text: om\.MultiVectorEncoder"):
        om.load(tmp_path / "program").embed(["a"])


def test_scores_take_every_form_of_rows(tmp_path, monkeypatch):
    """Padded arrays, one text alone, documents without rows, no texts."""
    ours, theirs = both(write(tmp_path, "plain"), tmp_path, monkeypatch)
    rng = np.random.default_rng(0)
    padded, one = rng.normal(size=(3, 4, 16)).astype("<f4"), rng.normal(size=(5, 16)).astype("<f4")
    ragged = [one, padded[0][:0], padded[1][:1]]
    for queries, documents in [(padded, padded), (one, padded), (ragged[:1], ragged), ([], ragged), (one, [])]:
        torch.testing.assert_close(ours.similarity(queries, documents), theirs.similarity(queries, documents))
    torch.testing.assert_close(
        ours.similarity(padded, one, length_normalize=True), theirs.similarity(padded, one, length_normalize=True)
    )
    with pytest.raises(InputError, match="rows of 15 and of 16 columns"):
        ours.similarity(padded, one[:, :15])


REFUSED = {
    "tokens that no other sees": (
        "sentence_bert_config.json",
        {"query_expansion": FILLED | {"attend": False}},
        "attend is False: tokens that fill queries and that no other token sees are not supported",
    ),
    "another filling": ("sentence_bert_config.json", {"query_expansion": FILLED | {"strategy": "max"}}, "strategy is"),
    "beyond the positions": (
        "sentence_bert_config.json",
        {"query_expansion": FILLED | {"length": 21}},
        "length is 21: the model has 20 positions",
    ),
    "a shorter query": ("sentence_bert_config.json", {"query_length": 3}, "query_length is 3: queries are filled up"),
    "tokens of images": ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [5]}, "keep_only_token_ids is"),
    "another model": ("config_sentence_transformers.json", {"model_type": "ColBERT"}, "no file declares rows for late"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return write(tmp_path_factory.mktemp("late"), "fixed")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_a_line(saved, monkeypatch, tmp_path, case):
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    name, entries, words = REFUSED[case]
    before = (saved / name).read_text()
    (saved / name).write_text(json.dumps(json.loads(before) | entries))
    try:
        with pytest.raises(InputError, match=words) as caught:
            om.MultiVectorEncoder(str(saved))
    finally:
        (saved / name).write_text(before)
    assert "\n" not in str(caught.value)
