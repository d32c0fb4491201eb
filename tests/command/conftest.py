"""What tests of files that users give share: a program with a tokenizer, a search that may not begin."""

import checkpoints
import pytest
from programs import bert_program


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program that embeds texts, as it is in memory."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    checkpoints.write_tokenizer(path)
    return bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG), tokenizer=path.read_text())


@pytest.fixture
def unsearched(monkeypatch):
    """Fails where a search begins."""

    def begun(*_, **__):
        raise AssertionError("the search has begun")

    monkeypatch.setattr("rewrites.run.optimize", begun)
