"""Scores of checkpoints that transformers and sentence-transformers write, against the scores of sentence-transformers:
families, labels, activations, prompts, lengths; and pairs as rows of tokens, against the tokenizer of transformers."""

import json
from importlib.util import find_spec

import checkpoints
import numpy as np
import pytest
import standin
from test_encoders import APART
from test_families import BERT

from opmatrix.inference.scores.text_pairs import pair_rows
from opmatrix.inference.text import LineReading
from rewrites.metrics import evaluate
from rewrites.metrics.evaluate import open_program

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

SPECIAL = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
SIZES = {key: BERT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
BERT_SIZES = SIZES | dict(vocab_size=41, max_position_embeddings=20, type_vocab_size=2)
SHORT_SIZES = SIZES | dict(vocab_size=41, max_position_embeddings=20)
BEHIND = BERT_SIZES | dict(max_position_embeddings=22)  # positions behind the padding's
MODERN = SHORT_SIZES | dict(local_attention=4, global_attn_every_n_layers=2, pad_token_id=0)


def classifier(name, sizes, **more):
    """A function that makes a random classifier of that family of transformers, for a number of labels."""

    def make(labels):
        config = getattr(transformers, f"{name}Config")(**sizes, **more, num_labels=labels)
        return getattr(transformers, f"{name}ForSequenceClassification")(config)

    return make


MODELS = {
    "bert": classifier("Bert", BERT_SIZES),
    "roberta": classifier("Roberta", BEHIND, pad_token_id=0),
    "distilbert": classifier(
        "DistilBert", dict(vocab_size=41, dim=24, hidden_dim=20, n_layers=2, n_heads=3, max_position_embeddings=20)
    ),
    "xlm-roberta": classifier("XLMRoberta", BEHIND, pad_token_id=0),
    "camembert": classifier("Camembert", BEHIND, pad_token_id=0),
    "electra": classifier("Electra", BERT_SIZES, embedding_size=16),
    "albert": classifier("Albert", BERT_SIZES, embedding_size=16),
    "mpnet": classifier("MPNet", BEHIND, pad_token_id=1),
    "modernbert": classifier("ModernBert", MODERN),
    "modernbert of means": classifier(
        "ModernBert",
        MODERN,
        classifier_pooling="mean",
        classifier_activation="relu",
        classifier_bias=True,
        norm_bias=True,
    ),
    "deberta-v2": classifier("DebertaV2", SHORT_SIZES, **APART),
    "gte": classifier("Gte", BERT_SIZES, pad_token_id=0),
}
PAIRS = [
    ("the bank", "a river"),
    ("", "a"),
    ("The River runs dry.", ""),
    ("the bank of a river " * 5, "dry runs"),
    ("dry", "the bank " * 20),
    ("dry " * 30, "bank " * 31),
    ("a b c d e f g h", "i j k l m n o p q"),
]


def write(place, family, labels, activation=None, prompts=None):
    """A random classifier, as sentence-transformers saves it."""
    from sentence_transformers import CrossEncoder

    torch.manual_seed(labels)
    model = MODELS[family](labels)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place / "plain")
    checkpoints.write_pair_tokenizer(place / "plain" / "tokenizer.json")
    tokenizer = transformers.BertTokenizer if family == "bert" else transformers.PreTrainedTokenizerFast
    tokenizer.from_pretrained(place / "plain", **SPECIAL, model_max_length=20).save_pretrained(place / "plain")
    more = dict(prompts=prompts, default_prompt_name=next(iter(prompts), None)) if prompts else {}
    peer = CrossEncoder(str(place / "plain"), device="cpu", activation_fn=activation, **more)
    peer.save(str(place / "saved"), create_model_card=False)
    return peer


@pytest.fixture(scope="module", params=[(family, labels) for family in MODELS for labels in (1, 3)], ids=str)
def written(request, tmp_path_factory):
    """Where a random classifier of a family lies in both forms, its labels, and the peer."""
    family, labels = request.param
    place = tmp_path_factory.mktemp("classifier")
    return place, labels, write(place, family, labels)


@pytest.mark.parametrize("saved", ["plain", "saved"])
def test_scores_are_those_of_the_peer(written, monkeypatch, saved):
    """As transformers saves a model, without a word about pairs, and as sentence-transformers does."""
    place, labels, peer = written
    monkeypatch.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
    program = open_program(str(place / saved))
    wanted = peer.predict(PAIRS).reshape(len(PAIRS), labels)
    assert np.ptp(wanted, axis=0).min() > 1e-3
    np.testing.assert_allclose(program.score(PAIRS), wanted, atol=1e-5)
    ours = [ids for ids, _ in pair_rows(program.tokenizer, PAIRS, LineReading())]
    theirs = peer.tokenizer([[*pair] for pair in PAIRS], truncation="longest_first", max_length=20)["input_ids"]
    assert ours == theirs


@pytest.mark.parametrize("name", ["Identity", "Tanh", "GELU"])
def test_the_activation_and_the_prompt_are_the_saved_ones(tmp_path, monkeypatch, name):
    peer = write(tmp_path, "bert", 1, getattr(torch.nn, name)(), {"query": "the bank: "})
    monkeypatch.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
    program = open_program(str(tmp_path / "saved"))
    assert program.pooling.prompt == "the bank: "
    np.testing.assert_allclose(program.score(PAIRS)[:, 0], peer.predict(PAIRS), atol=1e-5)


def test_the_older_entry_of_an_activation_counts(tmp_path, monkeypatch):
    from sentence_transformers import CrossEncoder

    write(tmp_path, "bert", 1)
    file = tmp_path / "plain" / "config.json"
    named = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    file.write_text(json.dumps(json.loads(file.read_text()) | named))
    monkeypatch.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
    peer = CrossEncoder(str(tmp_path / "plain"), device="cpu")
    np.testing.assert_allclose(open_program(str(tmp_path / "plain")).score(PAIRS)[:, 0], peer.predict(PAIRS), atol=1e-5)
