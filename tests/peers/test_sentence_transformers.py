"""Embeddings of checkpoints that sentence-transformers writes, against its own: every mode, lengths, cutting, prompts,
old files."""

import json
from importlib.util import find_spec

import checkpoints
import numpy as np
import pytest
import standin

from formats.core.errors import InputError
from opmatrix.runtime.program import Program
from rewrites.metrics import evaluate
from rewrites.metrics.evaluate import open_program

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

MOST = 12  # tokens; the model has positions for 20
TEXTS = [
    "",
    "a",
    "the bank",
    "The River runs dry.",
    "the bank of a river " * 2,
    "rivers runs dry ? " * 3,
    "dry " * 10,
    "dry " * 11,
    "the bank of the river " * 30,
]
OLD = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A random BERT with a tokenizer, as transformers saves them."""
    place = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(**{key: value for key, value in checkpoints.CONFIG.items() if key != "model_type"})
    model = transformers.BertModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place)
    checkpoints.write_tokenizer(place / "tokenizer.json")
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), **names).save_pretrained(place)
    return place


def written(bert, place, modes, normalise=True, most=MOST, **more):
    """The checkpoint that sentence-transformers saves."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    transformer = Transformer(str(bert), max_seq_length=most)
    modules = [transformer, Pooling(checkpoints.CONFIG["hidden_size"], modes), *[Normalize()] * normalise]
    SentenceTransformer(modules=modules, device="cpu", **more).save(str(place), create_model_card=False)
    return place


def compare(place, monkeypatch, texts=TEXTS):
    """Both embeddings of the texts: the program's, also once it was saved and loaded, and the peer's."""
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
    program = open_program(str(place))
    program.save(place / "program")
    found, wanted = program.embed(texts), SentenceTransformer(str(place), device="cpu").encode(texts)
    np.testing.assert_array_equal(Program.load(place / "program").embed(texts), found)
    assert found.shape == wanted.shape and np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    return program, wanted


@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "as they are"])
@pytest.mark.parametrize("mode", OLD)
def test_every_mode(bert, tmp_path, monkeypatch, mode, normalise):
    _, wanted = compare(written(bert, tmp_path / "model", mode, normalise), monkeypatch)
    assert np.allclose(np.linalg.norm(wanted, axis=1), 1) == normalise


@pytest.mark.parametrize("mode", OLD)
def test_every_mode_as_older_versions_write_it(bert, tmp_path, monkeypatch, mode):
    """Flags, no config of Normalize, the length and lower case in a file of their own; the tokenizer keeps capitals."""
    place = written(bert, tmp_path / "model", "mean", most=None)
    flags = {flag: name == mode for name, flag in OLD.items()}
    (place / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **flags}))
    (place / "2_Normalize" / "config.json").unlink()
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}))
    listed = json.loads((place / "modules.json").read_text())
    for module in listed:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (place / "modules.json").write_text(json.dumps(listed))
    cased = (place / "tokenizer.json").read_text().replace('"lowercase": true', '"lowercase": false')
    assert '"lowercase": false' in cased
    (place / "tokenizer.json").write_text(cased)
    program, _ = compare(place, monkeypatch)
    assert program.pooling.modes == (mode,) and program.pooling.max_seq_length == 9 and program.pooling.lower


def test_several_modes_stand_side_by_side(bert, tmp_path, monkeypatch):
    _, wanted = compare(written(bert, tmp_path / "model", ("lasttoken", "mean", "max")), monkeypatch)
    assert wanted.shape == (len(TEXTS), 72)


def test_a_default_prompt_stands_before_every_text(bert, tmp_path, monkeypatch):
    prompts = {"query": "the bank: ", "document": ""}
    place = written(bert, tmp_path / "model", "mean", prompts=prompts, default_prompt_name="query")
    assert compare(place, monkeypatch)[0].pooling.prompt == "the bank: "
    file = place / "1_Pooling" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"include_prompt": False}))
    compare(place, monkeypatch, [text for text in TEXTS if text])


def test_without_a_length_texts_are_cut_where_positions_end(bert, tmp_path, monkeypatch):
    program, _ = compare(written(bert, tmp_path / "model", "mean", most=None), monkeypatch)
    assert program.pooling.max_seq_length == 20


def test_a_dense_layer_is_not_behind_rows(bert, tmp_path, monkeypatch):
    """Programs that pool have it: test_encoder_calls.py."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    modules = [Transformer(str(bert)), Pooling(24, "cls"), Dense(24, 8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path), create_model_card=False)
    monkeypatch.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
    with pytest.raises(InputError, match=r"2_Dense: it comes behind the pooled rows"):
        open_program(str(tmp_path)).embed(TEXTS)
