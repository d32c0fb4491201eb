"""What is read from disk: regular files alone, within bounds, and nothing that a later change of a file could make
unsafe."""

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from children import ROOT
from programs import bert_program, fused_layer, unfused_layer

from formats import CSR, FORMATS
from formats.core.errors import InputError
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.files.loading import PROGRAM, WEIGHTS
from opmatrix.files.tensors import header
from opmatrix.runtime.program import Program

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]
MAPS = Path("/proc/self/maps")


def sparse(layer=fused_layer):
    return bert_program(CONFIG, arrays(CONFIG), layer, lambda W: CSR.approximate(W, density=0.4))


@pytest.fixture
def saved(tmp_path):
    sparse().replace(tokenizer="{}").save(tmp_path / "p")
    return tmp_path / "p"


# ---- what else lies where a file should


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def directory(path):
    path.mkdir()


def circle(path):
    path.symlink_to(path)


def nowhere(path):
    path.symlink_to("absent")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize(
    "put, words", [(pipe, "it is a pipe"), (device, "it is a device"), (directory, "it is a directory")]
)
@pytest.mark.parametrize("name", [PROGRAM, WEIGHTS, "tokenizer.json", "config.json"])
def test_only_regular_files_of_a_program_are_read(saved, name, put, words):
    (saved / name).unlink()
    put(saved / name)
    with pytest.raises(InputError, match=rf"{name}: {words}"):
        Program.load(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize("put", [pipe, device, directory, circle, nowhere])
@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors", "model.safetensors.index.json"])
def test_only_regular_files_of_a_checkpoint_are_read(tmp_path, name, put):
    (checkpoints.write(tmp_path, shards=3) / name).unlink()
    put(tmp_path / name)
    with pytest.raises(InputError) as refused:
        Checkpoint.open(tmp_path)
    assert name in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["..", ".", "", "../x.safetensors", "/etc/passwd", "a\0b", "n" * 300, 3, None])
def test_an_index_names_files_of_its_directory(tmp_path, name):
    file = checkpoints.write(tmp_path, shards=3) / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] = {key: name for key in index["weight_map"]}
    file.write_text(json.dumps(index))
    with pytest.raises(InputError) as refused:
        Checkpoint.open(tmp_path)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_linked_model_is_read(tmp_path):
    """As a cache of downloads holds it."""
    real = checkpoints.write(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for file in real.iterdir():
        (tmp_path / "linked" / file.name).symlink_to(file)
    assert Checkpoint.open(tmp_path / "linked").at("embeddings.LayerNorm.bias").shape == (24,)


# ---- JSON within bounds

NAMES = ["\0", "a\0b", "n" * 300, "", "two\nlines", "\ud800"]
TEXTS = [
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"kind": 1' + "0" * 400 + "}",
    '{"kind": NaN}',
    '{"kind": 1e999}',
    "{}{}",
    "\xff",
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:9])
@pytest.mark.parametrize("name", [PROGRAM, "config.json"])
def test_json_beyond_bounds_is_refused_in_a_line(saved, name, text):
    (saved / name).write_text(text, "latin-1")
    with pytest.raises(InputError, match=name) as refused:
        Program.load(saved)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize("deep", [200, 400, 900, 950, 990])
def test_nested_meta_is_read_or_refused(saved, deep):
    found = json.loads((saved / PROGRAM).read_text())
    text = json.dumps(found | {"meta": {"deep": "HERE"}}).replace('"HERE"', "[" * deep + "]" * deep)
    (saved / PROGRAM).write_text(text)
    with pytest.raises(InputError, match=r"hash is|nested too deeply"):
        Program.load(saved)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("of", ["constant", "value"])
def test_names_that_cannot_be_shown_are_refused(saved, name, of):
    found = json.loads((saved / PROGRAM).read_text())
    if of == "value":
        found["steps"][1][3] = name
    else:
        found["constants"][name] = found["constants"].pop("word")
    (saved / PROGRAM).write_text(json.dumps(found))
    with pytest.raises(InputError, match=PROGRAM) as refused:
        Program.load(saved)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "meta", [{"rows": 3}, {"rows": [1]}, {"rows": "12"}, {"tokenizer": 5}, {"config": []}, {"certificate": 1}], ids=str
)
def test_meta_is_of_its_type(saved, meta):
    found = json.loads((saved / PROGRAM).read_text())
    (saved / PROGRAM).write_text(json.dumps(found | {"meta": meta}))
    with pytest.raises(InputError, match=f"meta: .*{next(iter(meta))}"):
        Program.load(saved)


@pytest.mark.parametrize("limit", [0, -1, True, "512", 1.5, [512]], ids=str)
def test_a_limit_of_positions_is_a_number(saved, limit):
    (saved / "config.json").write_text(json.dumps({"max_position_embeddings": limit}))
    with pytest.raises(InputError, match=r"config\.json: max_position_embeddings is"):
        Program.load(saved)


def test_a_broken_tokenizer_is_named(saved):
    with pytest.raises(InputError, match=r"tokenizer\.json of this program: no tokenizer"):
        Program.load(saved).embed("a")


def test_what_is_no_json_is_not_saved():
    with pytest.raises(ValueError, match="JSON compliant"):
        sparse().replace(error=float("nan"))


# ---- headers of safetensors

BODY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = {
    "a list": [],
    "no entry": {"a": 3},
    "nothing": {"a": {}},
    "overlapping": {"a": BODY, "b": BODY},
    "a hole": {"a": BODY | {"data_offsets": [8, 16]}},
    "too long": {"a": BODY | {"shape": [3], "data_offsets": [0, 12]}},
    "another size": {"a": BODY | {"shape": [3]}},
    "negative": {"a": BODY | {"shape": [-2], "data_offsets": [0, -8]}},
    "2 modulo 2^64": {"a": BODY | {"shape": [1 << 62, 4, 2]}},
    "true": {"a": BODY | {"shape": [True, 2]}},
    "nothing of much": {"a": BODY | {"shape": [1 << 62, 0], "data_offsets": [0, 0]}},
    "half": {"a": BODY | {"shape": [2.0]}},
    "axes": {"a": BODY | {"shape": [2] + [1] * 70}},
    "a type": {"a": BODY | {"dtype": "F999"}},
    "a name": {"n" * 300: BODY},
    "NUL": {"a\0": BODY},
    "more": {"a": BODY | {"run": "eval"}},
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_is_checked(tmp_path, case):
    file = tmp_path / "x.safetensors"
    write = lambda said: file.write_bytes(
        len(text := json.dumps(said).encode()).to_bytes(8, "little") + text + bytes(8)
    )
    write({"a": BODY, "__metadata__": {"format": "pt"}})
    assert header(file)["a"].shape == (2,)
    write(HEADERS[case])
    with pytest.raises(InputError, match=r"x\.safetensors: \d+ bytes that are no whole safetensors file"):
        header(file)


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_length_of_a_header_is_checked(tmp_path, length):
    (tmp_path / "x").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match=f"its header is of {length} bytes"):
        header(tmp_path / "x")


# ---- files that change while a program is loaded

CHANGED = """
import sys
from opmatrix.runtime.program import Program
from opmatrix.files.loading import WEIGHTS
for directory in sys.argv[1:]:
    program = Program.load(directory)
    with open(directory + "/" + WEIGHTS, "r+b") as file:
        body = 8 + int.from_bytes(file.read(8), "little")
        size = file.seek(0, 2) - body
        for byte in (b"\\xff", b"\\x7f", b"\\x00"):
            file.seek(body)
            file.write(byte * size)
            file.flush()
            print(program.run([[3, 4, 5], [8]]).shape, program.run([[3]]).shape, program.run([[*range(20)]] * 9).shape)
"""


@pytest.mark.deep
def test_a_file_that_changes_may_change_numbers_but_not_what_is_read(tmp_path):
    """Whatever is written over the weights of a loaded program, it runs to its end, in every format."""
    for name, F in FORMATS.items():
        bert_program(CONFIG, arrays(CONFIG), fused_layer, F.approximate).save(tmp_path / name)
    run = subprocess.run(
        [sys.executable, "-c", CHANGED, *(str(tmp_path / name) for name in FORMATS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.splitlines() == ["(4, 24) (1, 24) (180, 24)"] * 3 * len(FORMATS)


def test_a_copy_outlives_any_change_of_its_file(saved):
    loaded, wanted = Program.load(saved, copy=True), Program.load(saved).run(RAGGED)
    os.truncate(saved / WEIGHTS, 0)
    assert np.array_equal(loaded.run(RAGGED), wanted)
    del loaded.hash
    assert loaded.hash == json.loads((saved / PROGRAM).read_text())["hash"]


@pytest.mark.parametrize("copy", [False, True])
def test_damage_is_found_in_a_copy_too(saved, copy):
    raw = bytearray((saved / WEIGHTS).read_bytes())
    raw[-3000] ^= 16
    (saved / WEIGHTS).write_bytes(raw)
    with pytest.raises(InputError):
        Program.load(saved, copy)


@pytest.mark.skipif(not MAPS.exists(), reason="this system does not tell what is mapped")
@pytest.mark.parametrize("layer", [fused_layer, unfused_layer])
def test_a_dropped_program_frees_its_mapping_at_once(tmp_path, layer):
    sparse(layer).save(tmp_path / "p")
    mapped = lambda: str(tmp_path) in MAPS.read_text()
    gc.disable()
    try:
        program = Program.load(tmp_path / "p")
        program.run(RAGGED), program.peak_bytes(RAGGED), program.cost(RAGGED), str(program), program.exact(RAGGED)
        with pytest.raises(ValueError, match="outside"):
            program.run([[10**6]])
        held = weakref.ref(program.schedule)
        assert mapped()
        del program
        assert not mapped() and held() is None
    finally:
        gc.enable()
