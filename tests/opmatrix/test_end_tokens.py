"""The tokens that end a text, wherever files name them."""

import json
import shutil

import ggufs
import pytest
from speakers import BYTES, gpt2

from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.files.end_tokens import end_tokens
from opmatrix.inference.generation import find_ends
from rewrites.workload.resolve import source


@pytest.mark.parametrize(
    "said, ends",
    [
        ({}, []),
        ({"config.json": {"eos_token_id": 7}}, [7]),
        ({"generation_config.json": {"eos_token_id": [9, 7]}}, [7, 9]),
        (
            {
                "config.json": {"eos_token_id": 3},
                "tokenizer_config.json": {"eos_token": "A", "model_max_length": 10**30},
            },
            [3, 65],
        ),
        ({"tokenizer_config.json": {"eos_token": {"content": "!"}}}, [33]),
        ({"tokenizer_config.json": {"eos_token": "no token"}, "config.json": {"eos_token_id": 256}}, []),
        ({"config.json": {"eos_token_id": None}, "generation_config.json": {"eos_token_id": [True, -1, 2.5, "x"]}}, []),
    ],
)
def test_they_are_what_any_file_calls_so(tmp_path, said, ends):
    directory = shutil.copytree(BYTES, tmp_path / "it")
    for name, entries in said.items():
        file = directory / name
        file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | entries))
    checkpoint = open_model(directory)
    assert end_tokens(checkpoint) == ends == source(checkpoint)["ends"]


def test_a_file_that_is_no_json_is_named(tmp_path):
    directory = shutil.copytree(BYTES, tmp_path / "it")
    (directory / "generation_config.json").write_text("{")
    with pytest.raises(InputError, match=r"generation_config.json: not JSON"):
        end_tokens(open_model(directory))


def test_programs_that_were_saved_before_have_those_of_their_config():
    program = gpt2().program
    meta = {name: entry for name, entry in program.meta.items() if name != "ends"}
    old = type(program)(
        program.steps, program.constants, program.outputs, meta | {"config": meta["config"] | {"eos_token_id": 5}}
    )
    assert find_ends(old) == {5} and find_ends(program) == frozenset()
    assert find_ends(program.replace(ends=[4, "x", None])) == {4}


def test_of_a_gguf_file(tmp_path):
    file = ggufs.write(tmp_path / "small.gguf", {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 7})
    assert source(open_model(file))["ends"] == [1, 7]
    assert end_tokens(open_model(ggufs.write(tmp_path / "other.gguf"))) == []
