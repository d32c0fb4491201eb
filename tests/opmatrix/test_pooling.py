"""What makes one embedding of a text: every mode by its definition, what the files of sentence-transformers say, what
is refused, and that a saved program keeps it."""

import json
import math

import checkpoints
import numpy as np
import pytest
from programs import bert_program

from formats.core.errors import InputError
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.pooling import MEAN, MODES, Pooling
from opmatrix.runtime.program import Program
from rewrites.workload.resolve import open_arguments, source

STARTS = np.array([0, 4, 5, 9])
BY_HAND = {  # of one sentence's rows, a column at a time
    "cls": lambda column: column[0],
    "lasttoken": lambda column: column[-1],
    "max": max,
    "mean": lambda column: sum(column) / len(column),
    "mean_sqrt_len_tokens": lambda column: sum(column) / math.sqrt(len(column)),
    "weightedmean": lambda column: sum(k * v for k, v in enumerate(column, 1)) / sum(range(1, len(column) + 1)),
}


def hidden(number=np.float64):
    return np.random.default_rng(0).normal(size=(9, 5)).astype(number)


def by_hand(mode, rows):
    return np.array([[BY_HAND[mode](column) for column in part.T.tolist()] for part in np.split(rows, STARTS[1:-1])])


def unit(vectors):
    return vectors / np.sqrt((vectors**2).sum(1, keepdims=True))


# ---- how rows become one


def test_every_mode_is_tested():
    assert MODES.keys() == BY_HAND.keys()


@pytest.mark.parametrize("number, exact", [(np.float64, 1e-14), (np.float32, 1e-6)])
@pytest.mark.parametrize("mode", BY_HAND)
def test_a_mode_is_its_definition(mode, number, exact):
    rows = hidden(number)
    wanted, found = by_hand(mode, rows), Pooling((mode,), False)(rows, STARTS)
    assert found.dtype == number and found.shape == (3, 5)
    np.testing.assert_allclose(found, wanted, rtol=exact, atol=exact)
    np.testing.assert_allclose(Pooling((mode,))(rows, STARTS), unit(wanted), rtol=exact, atol=exact)


def test_several_modes_stand_side_by_side_and_have_length_one_together():
    wanted = np.concatenate([by_hand(mode, hidden()) for mode in ("max", "cls")], 1)
    np.testing.assert_allclose(Pooling(("max", "cls"), False)(hidden(), STARTS), wanted)
    np.testing.assert_allclose(Pooling(("max", "cls"))(hidden(), STARTS), unit(wanted))


@pytest.mark.parametrize("mode", BY_HAND)
def test_rows_of_zeros_give_zeros(mode):
    assert not Pooling((mode,))(np.zeros((3, 2)), np.array([0, 3])).any()


def test_a_sentence_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"\[2, 0, 1\]"):
        MEAN(np.ones((3, 2)), np.array([0, 2, 2, 3]))


# ---- what the files say


def read(place, *arguments, **named):
    return Checkpoint.open(checkpoints.pool(checkpoints.write(place), *arguments, **named)).pooling()


FLAGS = "cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"


def test_without_files_it_is_the_mean_of_length_one(tmp_path):
    assert Checkpoint.open(checkpoints.write(tmp_path)).pooling() == Pooling(("mean",), True, None, "", False) == MEAN
    assert "pooling" not in source(Checkpoint.open(tmp_path))


@pytest.mark.parametrize("mode", BY_HAND)
@pytest.mark.parametrize("kind", ["sentence_transformers.models", "sentence_transformers.base.modules.pooling"])
def test_modes_are_read(tmp_path, mode, kind):
    assert read(tmp_path, mode, kind=kind) == Pooling((mode,), True, 20)
    assert read(tmp_path, [mode], normalise=False) == Pooling((mode,), False, 20)


@pytest.mark.parametrize(
    "flags, wanted",
    [
        (["cls_token"], ["cls"]),
        (["max_tokens"], ["max"]),
        (["mean_tokens"], ["mean"]),
        (["lasttoken"], ["lasttoken"]),
        (["weightedmean_tokens"], ["weightedmean"]),
        (["mean_sqrt_len_tokens"], ["mean_sqrt_len_tokens"]),
        ([], ["mean"]),
        (["mean_tokens", "cls_token"], ["cls", "mean"]),
    ],
)
def test_flags_of_older_versions_are_read(tmp_path, flags, wanted):
    said = {"word_embedding_dimension": 24} | {f"pooling_mode_{flag}": flag in flags for flag in FLAGS}
    assert read(tmp_path, files={"1_Pooling/config.json": json.dumps(said)}).modes == tuple(wanted)


ASKED = {"q": "ask:\n", "d": ""}
BERT, TOKENS, PROMPTS = "sentence_bert_config.json", "tokenizer_config.json", "config_sentence_transformers.json"
POOL, NORM = "1_Pooling/config.json", "2_Normalize/config.json"


@pytest.mark.parametrize(
    "files, wanted",
    [
        ({BERT: {"max_seq_length": 7, "do_lower_case": True}}, (7, "", True)),
        ({BERT: {"max_seq_length": 512, "do_lower_case": False}}, (20,)),
        ({BERT: {"max_seq_length": None}, TOKENS: {"model_max_length": 9}}, (9,)),
        ({BERT: {"max_seq_length": 11}, TOKENS: {"model_max_length": 9}}, (11,)),
        ({TOKENS: {"model_max_length": 10**30}}, (20,)),
        ({TOKENS: {"model_max_length": 1e30, "truncation_side": "right"}}, (20,)),
        ({BERT: {"processor_kwargs": {}, "query_length": 4, "transformer_task": "feature-extraction"}}, (20,)),
        ({PROMPTS: {"prompts": {"query": "q: "}, "default_prompt_name": None}}, (20, "", False, {"query": "q: "})),
        ({PROMPTS: {"prompts": {"q": "ask:\n", "d": None}, "default_prompt_name": "q"}}, (20, "ask:\n", False, ASKED)),
        ({PROMPTS: {"prompts": [], "truncate_dim": 8}}, (20, "", False, {}, True, (), 8)),
        ({PROMPTS: {"similarity_fn_name": "dot"}}, (20, "", False, {}, True, (), None, "dot")),
        ({PROMPTS: {"similarity_fn_name": "maxsim"}}, (20,)),
        ({POOL: {"include_prompt": False}}, (20, "", False, {}, False)),
        ({NORM: {"module_input_name": "sentence_embedding", "module_output_name": None}}, (20,)),
    ],
)
def test_settings_are_read(tmp_path, files, wanted):
    assert read(tmp_path, files=files) == Pooling(("cls",), True, *wanted)


def typed(*types):
    return [{"path": "1_Pooling" * (at > 0), "type": kind} for at, kind in enumerate(types)]


MODULE = "sentence_transformers.models.{}".format
TRANSFORMER, POOLING = MODULE("Transformer"), MODULE("Pooling")
REFUSED = [
    ("modules.json", typed(TRANSFORMER, POOLING, MODULE("LSTM")), "type '.*LSTM' is not supported"),
    ("modules.json", typed(TRANSFORMER, MODULE("Dense")), "Dense is out of order"),
    ("modules.json", typed(TRANSFORMER, POOLING, MODULE("Normalize"), MODULE("Dense")), "Dense is out of order"),
    ("modules.json", typed(TRANSFORMER, "os.system"), "type 'os.system' is not supported"),
    ("modules.json", typed(TRANSFORMER, "elsewhere.Pooling"), "type 'elsewhere.Pooling'"),
    ("modules.json", typed(TRANSFORMER, 7), "type 7 is"),
    ("modules.json", typed(TRANSFORMER), "no Pooling.* --output rows"),
    ("modules.json", [], "no Pooling"),
    ("modules.json", [3], "not a list of modules"),
    ("modules.json", typed(POOLING, TRANSFORMER), "Pooling is out of order"),
    ("modules.json", typed(TRANSFORMER, POOLING, POOLING), "Pooling is out of order"),
    ("modules.json", typed(TRANSFORMER, POOLING, MODULE("Normalize"), POOLING), "Pooling is out of order"),
    ("modules.json", [{"type": TRANSFORMER, "path": "../other"}], "path is '../other'"),
    ("modules.json", [{"type": TRANSFORMER, "path": "0_Bert"}, {"type": POOLING, "path": "1"}], "move its files"),
    ("modules.json", [{"type": TRANSFORMER}], "path is None"),
    ("modules.json", "[" * 10**5, "nested too deeply"),
    ("modules.json", "[1, ", "not JSON"),
    (POOL, {"pooling_mode": "first"}, "pooling_mode is 'first', not of cls, max"),
    (POOL, {"pooling_mode": ["cls", []]}, "pooling_mode is"),
    (POOL, {"pooling_mode": []}, "pooling_mode is \\[\\]"),
    (POOL, {"pooling_mode": ["cls"] * 7}, "pooling_mode is"),
    (POOL, {"pooling_mode_attention": True}, "pooling_mode_attention is True: it is not supported"),
    (POOL, {"pooling_mode_cls_token": "false"}, "pooling_mode_cls_token is 'false', not true or false"),
    (POOL, {"include_prompt": 0}, "include_prompt is 0"),
    (POOL, [], "not a JSON object"),
    (NORM, {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
    (NORM, {"p": 1}, "p is 1: it is not supported"),
    (BERT, {"max_seq_length": 0}, "max_seq_length is 0, not a whole number"),
    (BERT, {"max_seq_length": "128"}, "max_seq_length is '128'"),
    (BERT, {"max_seq_length": True}, "max_seq_length is True"),
    (BERT, {"max_seq_length": 12.5}, "max_seq_length is 12.5"),
    (BERT, {"do_lower_case": "no"}, "do_lower_case is 'no'"),
    (BERT, {"processor_kwargs": {"model_max_length": 4}}, "processor_kwargs is .* not supported"),
    (BERT, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
    (BERT, {"modality_config": {}}, "modality_config is {}"),
    (TOKENS, {"truncation_side": "left"}, "truncation_side is 'left'"),
    (TOKENS, {"model_max_length": "many"}, "model_max_length is 'many'"),
    (PROMPTS, {"default_prompt_name": "query"}, "default_prompt_name is 'query', not one of its prompts"),
    (PROMPTS, {"prompts": ["q"], "default_prompt_name": "q"}, "default_prompt_name is 'q'"),
    (PROMPTS, {"prompts": {"q": 5}, "default_prompt_name": "q"}, "prompts: q is 5"),
    (PROMPTS, {"prompts": {"q": "\ud800"}, "default_prompt_name": "q"}, "prompts: q is .*not valid Unicode"),
    (PROMPTS, {"truncate_dim": 0}, "truncate_dim is 0"),
    (PROMPTS, {"prompts": {"q": 5}}, "prompts: q is 5"),
    (PROMPTS, {"model_type": "MultiVectorEncoder"}, "model_type is 'MultiVectorEncoder'"),
    (PROMPTS, {"model_type": "CrossEncoder"}, "model_type is 'CrossEncoder': it scores pairs .* --output rows"),
]


@pytest.mark.parametrize("file, entries, words", REFUSED)
def test_what_is_not_known_is_refused_by_file_and_entry(tmp_path, file, entries, words):
    with pytest.raises(InputError, match=rf"{file}.*{words}"):
        read(tmp_path, files={file: entries})


def test_a_pooling_without_its_file_is_refused(tmp_path):
    checkpoints.pool(checkpoints.write(tmp_path))
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/config\.json: No such file"):
        Checkpoint.open(tmp_path).pooling()


# ---- what a program keeps

WHOLE = Pooling(("max", "cls"), False, 9, "the ", True, {"a": "the ", "b": ""}, False, ("2_Dense",), 4, "manhattan")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    checkpoints.write_tokenizer(path := tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    return path.read_text()


def program(tokenizer, **meta):
    return bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG), tokenizer=tokenizer, **meta)


def test_a_program_pools_as_its_checkpoint_also_after_loading(tmp_path, tokenizer):
    model = checkpoints.pool(checkpoints.write(tmp_path / "model"), ["lasttoken", "max"], normalise=False)
    checkpoint = Checkpoint.open(model)
    made = program(tokenizer, pooling=source(checkpoint)["pooling"])
    made.save(tmp_path / "program")
    loaded, texts = Program.load(tmp_path / "program"), ["the river", "", "a bank runs dry"]
    assert loaded.pooling == made.pooling == checkpoint.pooling() == Pooling(("lasttoken", "max"), False, 20)
    for at, text in enumerate(texts):
        rows = made.run(made.tokenizer.encode(text))
        np.testing.assert_allclose(loaded.embed(texts)[at], np.concatenate([rows[-1], rows.max(0)]), atol=2e-6)


def test_what_is_optimised_pools_as_its_checkpoint_and_is_measured_on_cut_texts(tmp_path):
    model = checkpoints.pool(checkpoints.write(tmp_path / "model"), "max", files={BERT: {"max_seq_length": 5}})
    (tmp_path / "lines.txt").write_text("dry " * 30 + "\nthe bank\nthe\n")
    _, workload, meta = open_arguments(str(model), None, str(tmp_path / "lines.txt"), None)
    assert Pooling.parsed(meta["pooling"], "meta") == Pooling(("max",), True, 5)
    assert workload.timed.starts.tolist() == [0, 5, 9, 12]


def test_json_keeps_every_entry():
    assert Pooling.parsed(json.loads(json.dumps(WHOLE.described())), "here") == WHOLE
    assert Pooling.parsed(None, "here") == MEAN == Pooling.parsed(MEAN.described(), "here")
    assert MEAN.described().keys() == {"modes", "normalise", "max_seq_length", "prompt", "lower"}  # as before 0.21


@pytest.mark.parametrize(
    "entries",
    [
        {"modes": "none"},
        {"modes": ["cls", 4]},
        {"modes": {}},
        {"normalise": 1},
        {"max_seq_length": -1},
        {"max_seq_length": "9"},
        {"prompt": 3},
        {"prompt": "\udc80"},
        {"lower": None},
        {"prompts": []},
        {"prompts": {"a": 5}},
        {"include_prompt": 1},
        {"layers": "2_Dense"},
        {"width": 0},
        {"similarity": "angle"},
        {"other": 1},
    ],
)
def test_a_program_of_another_pooling_is_not_loaded(tmp_path, tokenizer, entries):
    made = program(tokenizer, pooling=WHOLE.described() | entries)
    made.save(tmp_path / "program")
    with pytest.raises(InputError, match=rf"program\.json: pooling.*({next(iter(entries))}|an object of)"):
        Program.load(tmp_path / "program")
    with pytest.raises(InputError, match="meta: pooling"):
        made.embed(["the bank"])


@pytest.mark.parametrize("given", [7, "mean", [], {}])
def test_a_pooling_that_is_no_object_is_named(given):
    with pytest.raises(InputError, match=r"here is .*not an object of modes"):
        Pooling.parsed(given, "here")
