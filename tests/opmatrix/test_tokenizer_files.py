"""tokenizer.json against the files beside it: which of them counts, by the class that reads them. The ids are those
that transformers 5.23.0 gives of the same files; tests/peers/test_changed_files.py asks it again."""

import json

import checkpoints
import pytest
from tokenizers import Tokenizer

from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.files.directory.tokenizer_classes import MISNAMED, PLAIN_CLASS, REGISTERED, TOKENIZER_CLASSES
from opmatrix.files.directory.tokenizer_files import TokenizerFiles, class_of, effective_text
from opmatrix.models import FAMILIES

CONFIG, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TOKEN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
THE, BANK, RIVER, A, E = 4, 5, 7, 14, 18  # ids of words and of a letter


def ids(place, text, files, **config):
    """The ids of a text by a checkpoint with more files."""
    checkpoints.write(place, vocab_size=60, **config)
    for name, content in files.items():
        if name == "tokenizer.json":
            content = edited(place / name, content)
        (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return open_model(place).tokenizer().encode(text).tokens.tolist()


def edited(file, changed):
    """A tokenizer.json some of whose parts are others."""
    return json.loads(file.read_text()) | changed


NORMAL = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
CASED = {"tokenizer.json": {"normalizer": NORMAL | {"lowercase": False}}}
PLAINLY = {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.mark.parametrize(
    "files, text, wanted",
    [
        ({}, "The bank", [2, THE, BANK, 3]),
        (CASED, "The bank", [2, THE, BANK, 3]),  # a BERT without the file is in lower case
        (CASED | {CONFIG: {"do_lower_case": False}}, "The bank", [2, 1, BANK, 3]),
        ({CONFIG: {"do_lower_case": False}}, "The bank", [2, 1, BANK, 3]),
        (CASED | {CONFIG: PLAINLY | {"do_lower_case": True}}, "The bank", [2, 1, BANK, 3]),
        ({CONFIG: {"strip_accents": False}}, "\u00e9", [2, 1, 3]),
        ({CONFIG: {"strip_accents": None}}, "\u00e9", [2, E, 3]),
        (
            {"tokenizer.json": {"normalizer": None, "pre_tokenizer": None, "post_processor": None}},
            "The bank",
            [2, THE, BANK, 3],
        ),
        ({CONFIG: {"cls_token": "river", "sep_token": "the"}}, "bank", [RIVER, BANK, THE]),
        ({CONFIG: {"cls_token": None}}, "bank", [2, BANK, 3]),
        (
            {SPECIAL: {"cls_token": {"content": "river"} | TOKEN}, CONFIG: {"cls_token": "the"}},
            "bank",
            [RIVER, BANK, 3],
        ),
        ({SPECIAL: {"cls_token": "river"}, CONFIG: {"added_tokens_decoder": {}}}, "bank", [2, BANK, 3]),
        ({CONFIG: {"added_tokens_decoder": {"40": TOKEN | {"content": "thebank"}}}}, "a thebank", [2, A, 40, 3]),
        ({ADDED: {"thebank": 40}}, "a thebank", [2, A, 40, 3]),
        ({CONFIG: {"additional_special_tokens": ["thebank"]}}, "a thebank", [2, A, 41, 3]),  # behind [MASK]
        ({CONFIG: {"extra_special_tokens": {"x_token": "thebank"}}}, "thebank", [2, 41, 3]),
        ({CONFIG: {"image_token": "thebank"}}, "thebank", [2, 41, 3]),
        ({CONFIG: PLAINLY | {"image_token": "thebank"}}, "thebank", [2, 40, 3]),
        ({SPECIAL: {"additional_special_tokens": ["thebank"]}}, "thebank", [2, 41, 3]),
    ],
)
def test_ids_are_those_of_the_files_together(tmp_path, files, text, wanted):
    assert ids(tmp_path, text, files) == wanted


def test_a_checkpoint_that_names_a_plain_class_in_its_config_is_read_as_it_is(tmp_path):
    assert ids(tmp_path, "The bank", CASED, tokenizer_class="PreTrainedTokenizerFast") == [2, 1, BANK, 3]


def test_a_plain_tokenizer_to_which_nothing_is_added_is_its_file(tmp_path):
    home = checkpoints.write(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    (home / "tokenizer.json").write_text(json.dumps(edited(home / "tokenizer.json", {"padding": None})))
    assert open_model(home).tokenizer_text == (home / "tokenizer.json").read_text()


def ids_as(place, family, rows, source, config):
    """The ids of "bank" by a tokenizer.json of a family beside one tokenizer_config.json, for so many rows."""
    (place / CONFIG).write_text(json.dumps(config))
    text = effective_text(json.dumps(source), place, {"model_type": family, "vocab_size": rows})
    return Tokenizer.from_str(text).encode("bank").ids


WHOLE_WORDS = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "bank": 1}, "unk_token": "[UNK]"},
}
BETWEEN = [4, 1, 2]  # [CLS] and [SEP], which the class adds


@pytest.mark.parametrize(
    "config, rows, wanted",
    [
        ({}, 2, [1]),
        ({"do_lower_case": True}, 2, [1]),
        ({}, 4, [1]),
        ({}, 5, BETWEEN),
        ({}, None, BETWEEN),
        ({"tokenizer_class": "BertTokenizer"}, 2, BETWEEN),
        ({"cls_token": "bank", "sep_token": "bank"}, 2, [1, 1, 1]),
    ],
)
def test_a_family_s_class_counts_where_the_model_has_rows_for_the_tokens_around_a_text(tmp_path, config, rows, wanted):
    """A class that files name counts anyway: a text is then refused, as transformers does."""
    assert ids_as(tmp_path, "bert", rows, WHOLE_WORDS, config) == wanted


@pytest.mark.parametrize("family", sorted(name for name, made in REGISTERED.items() if made != "BertTokenizer"))
def test_word_pieces_beside_a_family_of_other_parts_are_read_as_they_are(tmp_path, family):
    checkpoints.write_tokenizer(tmp_path / "tokenizer.json")
    source = edited(tmp_path / "tokenizer.json", {"padding": None, "post_processor": None})
    assert ids_as(tmp_path, family, 60, source, {}) == [BANK]


def test_what_is_made_is_made_of_itself(tmp_path):
    """A program that keeps it, or a model that is saved with it, is read as before."""
    files = {CONFIG: {"do_lower_case": False, "image_token": "thebank"}}
    first = ids(tmp_path / "first", "The thebank", files)
    made = json.loads(open_model(tmp_path / "first").tokenizer_text)
    assert ids(tmp_path / "again", "The thebank", {"tokenizer.json": made, **files}) == first
    assert ids(tmp_path / "plain", "The thebank", {"tokenizer.json": made, CONFIG: PLAINLY}) == first


@pytest.mark.parametrize(
    "files, words",
    [
        ({CONFIG: {"do_lower_case": None}}, rf"{CONFIG}: do_lower_case is null: it must be true or false"),
        ({SPECIAL: {"do_lower_case": "no"}}, rf'{SPECIAL}: do_lower_case is "no": it must be'),
        ({CONFIG: {"split_special_tokens": True}}, rf"{CONFIG}: split_special_tokens is true: .* set it to false"),
        ({CONFIG: {"tokenizer_class": 3}}, rf"{CONFIG}: tokenizer_class is 3: it must be a name"),
        ({CONFIG: {"cls_token": 3}}, rf"{CONFIG}: cls_token is 3: it must be a token"),
        ({SPECIAL: {"cls_token": ["a"]}}, rf"{SPECIAL}: cls_token is \['a'\]: it must be a token"),
        ({SPECIAL: {"cls_token": {"lstrip": True}}}, rf"{SPECIAL}: cls_token is .* it must be a token"),
        (
            {CONFIG: {"additional_special_tokens": "a"}},
            rf"{CONFIG}: additional_special_tokens is 'a': it must be a list",
        ),
        ({CONFIG: {"added_tokens_decoder": {"x": {}}}}, r"tokenizer\.json: no tokenizer|it must be a token"),
        ({CONFIG: "[]"}, rf"{CONFIG}: list, not a JSON object"),
        ({ADDED: "{"}, rf"{ADDED}: not JSON"),
        ({"tokenizer.json": {"model": {"type": "BPE"}}}, r"tokenizer\.json: no tokenizer \(.*: get the file again"),
        (
            {"tokenizer.json": {"model": {"type": "BPE"}}, CONFIG: {"tokenizer_class": "BertTokenizer"}},
            r"its model is 'BPE', .*tokenizer_class to 'TokenizersBackend'",
        ),
    ],
)
def test_what_no_tokenizer_is_made_of_is_a_line(tmp_path, files, words):
    with pytest.raises(InputError, match=words) as caught:
        ids(tmp_path, "bank", files)
    assert "\n" not in str(caught.value)


def test_a_word_that_is_not_known_by_a_token_that_is_not_there_is_a_line(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer\.json contradicts itself \(.*\[UNK\]"):
        ids(tmp_path, "1", {CONFIG: {"unk_token": "[NONE]"}})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name", [None, *TOKENIZER_CLASSES, "BertTokenizerFast", PLAIN_CLASS, "PreTrainedTokenizerFast", "Other"]
)
def test_the_class_that_reads(tmp_path, family, name):
    """The one that files name, but of families whose own is the plain one, and of those whose names are wrong."""
    files = TokenizerFiles(tmp_path, {"tokenizer_class": name}, {}, {})
    usual = TOKENIZER_CLASSES.get(REGISTERED.get(family, PLAIN_CLASS))
    wanted = TOKENIZER_CLASSES.get(str(name).removesuffix("Fast")) if name and family in REGISTERED else usual
    assert class_of({"model_type": family}, files) is (usual if family in MISNAMED else wanted)
