"""Pairs of texts as rows of tokens with their kinds, against the tokenizers of transformers, a class each: templates,
kinds, and truncation of the longer text, on hostile pairs."""

import json
import random
import sys

import checkpoints
import numpy as np
import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import saved_models

from opmatrix.files.directory.tokenizer_classes import TOKENIZER_CLASSES
from opmatrix.files.directory.tokenizer_files import effective_text, gives_kinds
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.scores.text_pairs import pair_rows
from opmatrix.inference.text import LineReading, Tokenizer

transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

MADE = {  # a maker of the tokenizer for each class, and the model_type that its directory names
    "BertTokenizer": (saved_models.bert_words, "bert"),
    "RobertaTokenizer": (saved_models.roberta_words, "roberta"),
    "XLMRobertaTokenizer": (saved_models.xlm_words, "bert"),
    "T5Tokenizer": (saved_models.t5_words, "t5"),
    "plain": (None, "bert"),
}
WITHOUT_PAIRS = {"GPT2Tokenizer", "Qwen2Tokenizer"}  # families without a classifier
UNTAUGHT = {"DistilBertTokenizer"}  # the words of BertTokenizer
PIECES = [
    "the bank",
    " of a river ",
    "",
    "runs dry?",
    "\r\n",
    "\u0301\u0327",
    "\U0001f600\U0001f3fd",
    "\u4e2d\u6587",
    "\u00a0\u200b",
    "<s> [SEP] </s>",
    "RIVER",
    "x" * 60,
    "\t.\n",
]
PAIRS = 400
MOST = 24  # tokens of a pair


def drawn(seed):
    """Pairs of texts, from empty ones to ones far longer than a pair may be."""
    rng = random.Random(seed)
    text = lambda: "".join(rng.choices(PIECES, k=rng.choice([0, 1, 2, 4, 9, 20])))
    return [(text(), text()) for _ in range(PAIRS)]


def test_every_class_is_here():
    assert TOKENIZER_CLASSES.keys() == (MADE.keys() - {"plain"}) | WITHOUT_PAIRS | UNTAUGHT


@pytest.mark.parametrize("name", MADE)
def test_pairs_have_the_tokens_and_kinds_of_transformers(tmp_path, name):
    make, model = MADE[name]
    if make:
        make().save_pretrained(tmp_path)
    else:
        checkpoints.write_pair_tokenizer(tmp_path / "tokenizer.json")
        words = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
        peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **words)
        peer.save_pretrained(tmp_path)
    config = {"model_type": model}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = effective_text((tmp_path / "tokenizer.json").read_text("utf-8"), tmp_path, config)
    ours = Tokenizer.from_text(text, "tokenizer.json", pooling=Pooling(("cls",), False, MOST))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pairs = drawn(len(name))
    wanted = theirs([[*pair] for pair in pairs], truncation="longest_first", max_length=MOST)
    found = pair_rows(ours, pairs, reading := LineReading(skip_bad=True))
    assert reading.truncated > PAIRS // 4 and np.ptp([len(ids) for ids, _ in found]) > 10
    assert [ids for ids, _ in found] == wanted["input_ids"]
    assert gives_kinds(tmp_path, config) == ("token_type_ids" in wanted)
    if "token_type_ids" in wanted:
        assert [kinds for _, kinds in found] == wanted["token_type_ids"]
