"""Heads that score texts and pairs of texts: their formula in plain numpy, in every family that declares one; pairs as
rows of tokens; what files say about labels and activations; what is refused, in a line."""

import json

import checkpoints
import numpy as np
import pytest
import standin
from scipy.special import erf
from test_families import BERT, CASES

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Promised
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.scores.scoring import IDENTITY, TORCH_CLASSES, Scoring, apply_activation, torch_activation
from opmatrix.inference.scores.text_pairs import divide_room, pair_rows
from opmatrix.inference.text import LineReading
from opmatrix.models import FAMILIES, classify, tensors
from opmatrix.runtime.program import Program
from rewrites.metrics import evaluate
from rewrites.metrics.texts_run import run_texts
from rewrites.workload.workload import Workload

CONFIGS = {"bert": BERT} | {family: config for family, config, _ in reversed(CASES.values())}
CLASSIFIERS = [name for name, family in FAMILIES.items() if family.layout.classifier]
BATCH = Batch([[3, 4, 5, 6, 7], [8]])
PAIRS = [
    ("the bank", "a river"),
    ("the bank of a river " * 5, "dry runs"),
    ("dry", "the bank " * 20),
    ("dry " * 30, "bank " * 31),
    "the river runs dry",
    ("", ""),
]
CONFIG, SENTENCES = "config.json", "config_sentence_transformers.json"


def affine(numbers, name, x):
    """x @ W + b of a stored product."""
    return x @ numbers[f"{name}.weight"].T + numbers[f"{name}.bias"]


def first_row(inner, act, scores):
    """The formula of a head that reads the row of the first token."""
    return lambda numbers, first: affine(numbers, scores, act(affine(numbers, inner, first)))


def modernbert(numbers, first):
    """A product without a bias, gelu, a norm without a shift, a product."""
    x = first @ numbers["head.dense.weight"].T
    x = x * (1 + erf(x / 2**0.5)) / 2
    x = x - x.mean(1, keepdims=True)
    normed = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * numbers["head.norm.weight"]
    return affine(numbers, "classifier", normed)


POOLED, ON_TOP = (
    first_row("pooler.dense", np.tanh, "classifier"),
    first_row("classifier.dense", np.tanh, "classifier.out_proj"),
)
FORMULAS = {
    **dict.fromkeys(["bert", "gte", "new"], POOLED),
    **dict.fromkeys(["roberta", "xlm-roberta", "camembert", "mpnet"], ON_TOP),
    "distilbert": first_row("pre_classifier", lambda u: np.maximum(u, 0), "classifier"),
    "electra": first_row("classifier.dense", lambda u: u * (1 + erf(u / 2**0.5)) / 2, "classifier.out_proj"),
    "deberta-v2": first_row("pooler.dense", lambda u: u * (1 + erf(u / 2**0.5)) / 2, "classifier"),
    "albert": first_row("pooler", np.tanh, "classifier"),
    "modernbert": modernbert,
}


def write(home, family, labels):
    """A checkpoint of a family with its head on top."""
    config = CONFIGS[family] | {"model_type": family, "architectures": ["AnyForSequenceClassification"]}
    config["id2label"] = {str(n): f"L{n}" for n in range(labels)}
    rng, prefix, shapes = np.random.default_rng(labels), FAMILIES[family].layout.prefix, tensors(config)

    def promise(name, *shape):
        """Notes the shape of an array of the head."""
        shapes[name] = shape
        return Promised(name, shape)

    classify(config, promise, labels)
    on_top = ("classifier", "pre_classifier", "head")
    shapes = {("" if name.split(".")[0] in on_top else prefix) + name: shape for name, shape in shapes.items()}
    numbers = {name: rng.normal(size=shape).astype("<f4") / 4 for name, shape in shapes.items()}
    home.mkdir()
    (home / CONFIG).write_text(json.dumps(config))
    checkpoints.safetensors(home / "model.safetensors", numbers)
    return home, {name.removeprefix(prefix): array for name, array in numbers.items()}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program that scores pairs by three labels."""
    return made(checkpoints.classify(tmp_path_factory.mktemp("scores"), 3))


def made(home):
    """The imported program of a checkpoint."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluate, "calibrated", lambda progress, *batches: standin.machine())
        return evaluate.open_program(str(home))


@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_scores_are_products_of_the_row_of_the_first_token(tmp_path, family, labels):
    home, numbers = write(tmp_path / "model", family, labels)
    checkpoint = open_model(home)
    first = dense(checkpoint.operator(), BATCH)[BATCH.starts[:-1]]
    wanted = FORMULAS[family](numbers, first)
    np.testing.assert_allclose(dense(checkpoint.operator(pooled=True), BATCH), wanted, rtol=1e-12, atol=1e-12)
    assert wanted.shape == (2, labels) and len(checkpoint.scoring.labels) == labels


def test_a_program_scores_pairs_by_their_kinds_and_is_kept(program, tmp_path):
    wanted = [dense_scores(program, *row) for row in pair_rows(program.tokenizer, PAIRS, LineReading())]
    found = program.score(PAIRS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    program.save(tmp_path / "kept")
    np.testing.assert_array_equal(Program.load(tmp_path / "kept").score(PAIRS), found)
    assert program.score([]).shape == (0, 3)


def dense_scores(program, ids, kinds):
    """The scores of one row of tokens, in float64."""
    return program.exact(Batch([ids], [kinds]))[0]


def test_a_pair_has_the_same_bits_alone_and_in_any_batch(program):
    drawn = [PAIRS[k] for k in np.random.default_rng(0).integers(0, len(PAIRS), 40)]
    alone = {pair: program.score([pair])[0] for pair in PAIRS}
    for rows in (1, 50, 4096):
        np.testing.assert_array_equal(program.score(drawn, rows), [alone[pair] for pair in drawn])


def test_kinds_change_scores_only_where_the_tokenizer_gives_them(program, tmp_path):
    names = {"tokenizer_config.json": checkpoints.KINDS_GIVEN | {"model_input_names": ["input_ids", "attention_mask"]}}
    without = made(checkpoints.classify(tmp_path / "without", 3, files=names))
    assert program.scoring.kinds and not without.scoring.kinds
    pair = [("the bank", "a river")]
    assert not np.allclose(program.score(pair), without.score(pair))
    ids, kinds = pair_rows(program.tokenizer, pair, LineReading())[0]
    assert kinds == [0, 0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(without.score(pair)[0], dense_scores(program, ids, [0] * 7), atol=1e-5)


@pytest.mark.parametrize("lengths", [(3, 9), (9, 3), (6, 9), (5, 5), (0, 20), (4, 4), (1, 0)])
def test_the_longer_text_is_truncated_first(lengths):
    """Token by token, of the longer one, the second of two that are equally long, as the library says of its rule."""
    for room in range(1, 12):
        kept = [*lengths]
        while sum(kept) > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        assert sum(divide_room(lengths, room)) == sum(kept) and max(divide_room(lengths, room)) - max(kept) in (0, 1)


def test_a_pair_is_truncated_to_the_positions_and_keeps_its_special_tokens(program):
    for ids, kinds in pair_rows(program.tokenizer, PAIRS[1:4], LineReading()):
        assert len(ids) == len(kinds) == 20 and ids[0] == 2 and ids.count(3) == 2 and ids[-1] == 3


# ---- what files say


@pytest.mark.parametrize(
    "labels, changed, files, wanted",
    [
        (1, {}, {}, "sigmoid"),
        (3, {}, {}, IDENTITY),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, {}, IDENTITY),
        (1, {"sbert_ce_default_activation_function": "torch.nn.Tanh"}, {}, "tanh"),
        (1, {"sentence_transformers": {"version": "5"}}, {SENTENCES: {"model_type": "CrossEncoder"}}, "sigmoid"),
        (3, {"sbert_ce_default_activation_function": "torch.nn.Tanh"}, {SENTENCES: {"activation_fn": "torch.nn.ReLU",
         "model_type": "CrossEncoder"}}, "relu"),
    ],
)  # fmt: skip
def test_the_activation_is_the_declared_one(tmp_path, labels, changed, files, wanted):
    scoring = open_model(checkpoints.classify(tmp_path, labels, files=files, **changed)).scoring
    assert scoring.activation == wanted and scoring.labels == tuple(f"L{n}" for n in range(labels))


@pytest.mark.parametrize("changed, count", [({"id2label": None}, 2), ({"id2label": None, "num_labels": 5}, 5)])
def test_labels_without_names_are_numbered(tmp_path, changed, count):
    scoring = open_model(checkpoints.classify(tmp_path, count, **changed)).scoring
    assert scoring.labels == tuple(f"LABEL_{n}" for n in range(count))


@pytest.mark.parametrize("name", TORCH_CLASSES)
def test_every_class_of_an_activation_is_known_by_both_of_its_names(name):
    assert torch_activation(f"torch.nn.{name}", "here") == torch_activation(f"torch.nn.modules.some.{name}", "here")
    scores = np.linspace(-3, 3, 7, dtype=np.float32)
    assert apply_activation(TORCH_CLASSES[name], scores).dtype == np.float32


REFUSED = [
    ({"id2label": {"1": "a"}}, {}, "id2label is"),
    ({"id2label": {}}, {}, "id2label is"),
    ({"id2label": {"0": 5}}, {}, "id2label is 5"),
    ({"id2label": None, "num_labels": 0}, {}, "num_labels is 0"),
    ({"id2label": {"0": "a", "1": "b"}}, {}, r"tensor 'classifier.weight' is 1 × 24, but .* leads to 2 × 24"),
    ({"sbert_ce_default_activation_function": "os.system"}, {}, "'os.system': it is named, and never run"),
    ({"sbert_ce_default_activation_function": "torch.nn.functional.tanh"}, {}, "named, and never run"),
    ({"sbert_ce_default_activation_function": 7}, {}, "is 7: it is named"),
    ({"sentence_transformers": {"activation_fn": "mine.Act"}}, {}, "activation_fn is 'mine.Act'"),
    ({}, {SENTENCES: {"model_type": "SentenceTransformer"}}, "model_type is 'SentenceTransformer'"),
    ({}, {SENTENCES: {"keep_in_fp32_modules": ["a"]}}, "keep_in_fp32_modules is"),
    ({}, {"sentence_bert_config.json": {"transformer_task": "text-generation"}}, "transformer_task is"),
    ({}, {SENTENCES: "["}, "not JSON"),
]


@pytest.mark.parametrize("changed, files, words", REFUSED)
def test_what_is_not_known_is_refused_by_file_and_entry(tmp_path, changed, files, words):
    home = checkpoints.classify(tmp_path, 1, files=files, **changed)
    with pytest.raises(InputError, match=words) as error:
        checkpoint = open_model(home)
        checkpoint.operator(pooled=True), checkpoint.pooling()
    assert "\n" not in str(error.value) and str(home) in str(error.value)


@pytest.mark.parametrize("missing", ["pooler.dense.weight", "classifier.bias"])
def test_a_head_that_lacks_a_tensor_is_refused_by_its_name(tmp_path, missing):
    home = checkpoints.classify(tmp_path)
    numbers = {name: tensor.read() for name, tensor in open_model(home).tensors.items() if name != missing}
    checkpoints.safetensors(home / "model.safetensors", numbers)
    with pytest.raises(InputError, match=f"tensor '{missing}' is missing"):
        open_model(home).operator(pooled=True)


def test_a_reranker_does_not_embed_and_an_embedder_does_not_score(program, tmp_path):
    with pytest.raises(InputError, match=r"it scores texts and pairs .* has no embedding: program\.score"):
        program.embed(["the bank"])
    embedder = made(checkpoints.write(tmp_path))
    with pytest.raises(InputError, match=r"embeds texts and has no head that scores"):
        embedder.score(PAIRS)


@pytest.mark.parametrize(
    "pairs, error, words",
    [
        ("the bank", TypeError, "give an iterable"),
        ([("a", "b", "c")], InputError, r"pair 0 is \('a', 'b', 'c'\): give two texts"),
        (["a", ("b",)], InputError, "pair 1 is"),
        ([("a", 5)], InputError, "pair 0 is"),
        ([("a", "\ud800")], InputError, "text 0.* is no valid Unicode"),
        ([b"ab"], InputError, "pair 0 is b'ab'"),
    ],
)
def test_what_is_no_pair_is_refused(program, pairs, error, words):
    with pytest.raises(error, match=words):
        program.score(pairs)


def test_the_command_scores_each_text_with_the_first(program, tmp_path):
    texts = ["the bank", "a river", "dry"]
    told, figures = run_texts(program, texts, None)
    wanted = program.score([("the bank", "a river"), ("the bank", "dry")])
    assert [entry["scores"] for entry in figures["texts"]] == wanted.tolist() and "'a river'" in told
    assert run_texts(program, texts[:1], None)[1]["texts"][0]["scores"] == program.score(["the bank"])[0].tolist()
    assert figures["labels"] == ["L0", "L1", "L2"] and all(f"{score:.4f}" in told for score in wanted[1])


def test_a_pair_that_cannot_be_read_has_a_row_of_nan(program):
    found = program.score([PAIRS[0], ("a", "\ud800"), PAIRS[2]], skip_bad=True)
    assert np.isnan(found).any(1).tolist() == [False, True, False]
    np.testing.assert_array_equal(found[[0, 2]], program.score([PAIRS[0], PAIRS[2]]))


def test_a_model_that_scores_is_optimised_for_pairs(tmp_path):
    """Every batch that errors come from holds pairs, with their kinds: those of lines that follow each other."""
    home = checkpoints.classify(tmp_path / "model")
    lines = ["the bank", "a river", "dry", "the river runs", "a bank", "runs dry"] * 3
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    workload = Workload.of(open_model(home), text=str(tmp_path / "lines.txt"))
    tokenizer, part = open_model(home).tokenizer(), lines[1::2]
    wanted = pair_rows(tokenizer, [*zip(part, [*part[1:], part[0]], strict=True)], LineReading())
    found = [(row.tokens.tolist(), row.kinds.tolist()) for row in workload.state]
    assert found == wanted and all(1 in row.kinds for batch in (workload.fit, workload.probe) for row in batch)


def test_without_truncation_a_pair_that_is_too_long_is_refused(program):
    with pytest.raises(InputError, match="has 36 tokens, and the model has positions for 20"):
        program.score([("dry " * 30, "bank a bank")], truncate=False)


@pytest.mark.parametrize("value", [7, {}, {"labels": [], "activation": "tanh", "kinds": True},
                                   {"labels": ["a"], "activation": "run", "kinds": True},
                                   {"labels": ["a"], "activation": "tanh", "kinds": 1}])  # fmt: skip
def test_a_program_of_another_scoring_is_refused(value):
    with pytest.raises(InputError, match="here"):
        Scoring.parsed(value, "here")
    assert Scoring.parsed(None, "here") is None


def test_json_keeps_a_scoring():
    scoring = Scoring(("a", "b"), "tanh", True)
    assert Scoring.parsed(json.loads(json.dumps(scoring.described())), "here") == scoring
