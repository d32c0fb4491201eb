"""Two thousand hostile texts as rows of tokens, against the tokenizers of transformers: word pieces, byte pairs and
unigrams, each trained by the test."""

import json
import random
import sys

import numpy as np
import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import saved_models

from opmatrix.files.directory.tokenizer_files import effective_text
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.text import LineReading, Tokenizer

transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

MADE = {  # a maker of the tokenizer, and the model_type that its directory names
    "word pieces": (saved_models.bert_words, "bert"),
    "byte pairs": (saved_models.roberta_words, "roberta"),
    "unigrams": (saved_models.xlm_words, "bert"),
    "unigrams of deberta": (saved_models.deberta_words, "deberta-v2"),
    "unigrams of t5": (saved_models.t5_words, "t5"),
}
TEXTS, MOST = 2000, 64
PLANES = [  # ranges of letters and signs
    (0x20, 0x7F),
    (0x80, 0x24F),
    (0x300, 0x36F),  # combining marks
    (0x400, 0x4FF),
    (0x590, 0x6FF),  # from right to left
    (0x900, 0x97F),
    (0x1100, 0x11FF),
    (0x2000, 0x206F),
    (0x3040, 0x30FF),
    (0x4E00, 0x4FFF),
    (0xAC00, 0xACFF),
    (0xFB00, 0xFB4F),
    (0xFE00, 0xFE0F),
    (0xFF00, 0xFFEF),
    (0x1D400, 0x1D4FF),
    (0x1F300, 0x1F6FF),  # emoji
    (0x1F900, 0x1F9FF),
    (0xE0100, 0xE01EF),
    (0, 0x1F),
]
PIECES = [
    *("\r\n", "\u200d", "\u0301\u0327", "\ufeff", "\u00ad", "  ", "\t", "\u2581", "\u0130"),
    *("[CLS]", "[MASK]", "<s>", "</s>", "<pad>", "the bank", " of a River ", "I'm don't", "3.14e-5"),
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
]


def hostile_texts(seed):
    """Texts of random letters of many planes, of pieces that tokenizers treat as special, and of great length."""
    rng = random.Random(seed)

    def letters():
        low, high = rng.choice(PLANES)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))

    def text():
        return "".join(
            rng.choice(PIECES) if rng.random() < 0.4 else letters() for _ in range(rng.choice([1, 2, 5, 12]))
        )

    made = ["", " ", "\r\n", "\x00", "a" * 10**5, "the bank \u0301" * 10**4, "\U0001f600" * 5000]
    return made + [text() for _ in range(TEXTS - len(made))]


@pytest.mark.parametrize("name", MADE)
def test_tokens_are_those_of_transformers(tmp_path, name):
    make, model = MADE[name]
    make().train_new_from_iterator(hostile_texts(0)[7:400], 4000).save_pretrained(tmp_path)
    config = {"model_type": model}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = effective_text((tmp_path / "tokenizer.json").read_text("utf-8"), tmp_path, config)
    theirs, texts = transformers.AutoTokenizer.from_pretrained(tmp_path), hostile_texts(len(name))
    for most in (None, MOST):
        ours = Tokenizer.from_text(text, "tokenizer.json", pooling=Pooling(("cls",), False, most))
        wanted = theirs(texts, truncation=most is not None, max_length=most)["input_ids"]
        rows = ours.rows(texts, reading := LineReading(skip_bad=True))
        read = [at for at in range(TEXTS) if at not in {*reading.skipped}]
        assert len(read) > 0.99 * TEXTS and np.ptp([len(row) for row in rows]) > 50
        assert [rows[at] for at in read] == [wanted[at] for at in read]
        assert all(not wanted[at] for at in reading.skipped)
