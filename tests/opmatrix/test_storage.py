"""Programs on disk: the same bits back, whole or not at all, and one line that names what is wrong with a file."""

import json
import mmap
import shutil
import subprocess
import sys

import numpy as np
import pytest
from checkpoints import CONFIG, arrays, write_tokenizer
from children import ROOT
from programs import bert_program, fused_layer, unfused_layer
from safetensors.numpy import load_file, save_file

from formats import CSR, NM, Block, Dense, Half, LowRank
from formats import FORMATS as ALL
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.files import saving
from opmatrix.files.loading import PROGRAM, WEIGHTS
from opmatrix.runtime.program import Program
from rewrites.verify import certificate

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]
FORMATS = {
    "dense": Dense.pack,
    "half": Half.approximate,
    "csr": lambda W: CSR.approximate(W, density=0.4),
    "block": lambda W: Block.approximate(W, density=0.5, tile=(4, 8)),
    "nm": NM.approximate,
    "lowrank": lambda W: LowRank.approximate(W, rank=7),
}
FORMATS = {name: form.approximate for name, form in ALL.items()} | FORMATS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def program(tokenizer):
    made = bert_program(CONFIG, arrays(CONFIG), tokenizer=tokenizer, rows=[1, 512])
    return certificate.certify(made, {"error": 0.1 + 0.2, "rows": [1, 20]}, [Batch(RAGGED)])


@pytest.fixture
def saved(program, tmp_path):
    program.save(tmp_path / "small.opmatrix")
    return tmp_path / "small.opmatrix"


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("layer", [fused_layer, unfused_layer])
def test_bit_for_bit(tmp_path, format, layer):
    program = bert_program(CONFIG, arrays(CONFIG), layer, FORMATS[format])
    program.save(tmp_path / "p")
    loaded = Program.load(tmp_path / "p")
    assert loaded.hash == program.hash and str(loaded) == str(program) and loaded.meta == program.meta
    for (name, array), (other, kept) in zip(program.arrays(), loaded.arrays(), strict=True):
        assert name == other and array.dtype == kept.dtype and array.tobytes() == kept.tobytes()
    assert np.array_equal(loaded.run(RAGGED), program.run(RAGGED))
    assert loaded.stored_bytes == program.stored_bytes


def test_every_file_beside_it(saved, program, tokenizer):
    assert sorted(p.name for p in saved.iterdir()) == [
        "certificate.json",
        "config.json",
        PROGRAM,
        "tokenizer.json",
        WEIGHTS,
    ]
    assert (saved / "tokenizer.json").read_text("utf-8") == tokenizer
    assert json.loads((saved / "config.json").read_text()) == CONFIG
    assert Program.load(saved).meta == program.meta
    assert sorted(p.name for p in saved.parent.iterdir()) == ["small.opmatrix"], "nothing temporary is left"


def with_front(program, other, directory):
    """A directory as `optimize` leaves it: the chosen program, and a front of two that it is one of."""
    with saving.replacing_program(directory) as fresh:
        saving.write_front({fresh: program, fresh / "front/0": other, fresh / "front/1": program})
    return directory


@pytest.fixture
def other(tokenizer):
    return bert_program(CONFIG, arrays(CONFIG), unfused_layer, FORMATS["half"], tokenizer=tokenizer, rows=[1, 512])


def test_what_programs_of_a_front_share_is_stored_once(program, other, tmp_path):
    """The chosen program is one of its front; every program has the tokenizer."""
    place = with_front(program, other, tmp_path / "p")
    listed = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    shared = [name for name in listed if name.startswith("shared.")]
    assert shared and listed == sorted(
        [
            "certificate.json",
            "config.json",
            PROGRAM,
            "tokenizer.json",
            WEIGHTS,
            *shared,
            f"front/0/{PROGRAM}",
            f"front/0/{WEIGHTS}",
            f"front/1/{PROGRAM}",
        ]
    )
    assert all(path.stat().st_nlink == 1 for path in place.rglob("*") if path.is_file())


def count_bytes(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_a_copy_of_a_program_with_its_front_is_as_large(program, other, tmp_path):
    """However it is copied; and whole."""
    place = with_front(program, other, tmp_path / "p")
    subprocess.run(["cp", "-r", place, tmp_path / "copied"], check=True)
    shutil.copytree(place, tmp_path / "again")
    shutil.rmtree(place)
    for copy in (tmp_path / "copied", tmp_path / "again"):
        blocks = sum(path.stat().st_blocks for path in copy.rglob("*") if path.is_file())
        assert 512 * blocks <= count_bytes(copy) + 4096 * len([*copy.rglob("*")])
        for each, expected in ((copy, program), (copy / "front/0", other), (copy / "front/1", program)):
            assert Program.load(each).hash == expected.hash
    assert count_bytes(tmp_path / "copied") == count_bytes(tmp_path / "again")


def test_a_chosen_program_needs_no_front_and_a_front_no_chosen_program(program, other, tmp_path):
    """That is removed, or replaced; a point that is saved anew needs nothing else."""
    place = with_front(program, other, tmp_path / "p")
    Program.load(place / "front/1").save(tmp_path / "alone")
    shutil.copytree(place, tmp_path / "without")
    shutil.rmtree(tmp_path / "without/front")
    (third := program.replace(model="third")).save(place)
    third.save(place)
    for each, expected in (
        (tmp_path / "alone", program),
        (tmp_path / "without", program),
        (place, third),
        (place / "front/0", other),
        (place / "front/1", program),
    ):
        loaded = Program.load(each)
        assert loaded.hash == expected.hash and np.array_equal(loaded.run(RAGGED), expected.run(RAGGED))
    assert "certificate" in Program.load(place / "front/1").meta
    with_front(other, program, place)
    assert {path.name for path in (place / "front").iterdir()} == {"0", "1"}, "nothing outlives its front"


def test_a_point_without_what_it_has_in_common_says_so(program, other, tmp_path):
    place = with_front(program, other, tmp_path / "p")
    for number in (0, 1):
        (place / f"front/{number}").rename(tmp_path / f"{number}")
    for number in (0, 1):
        with pytest.raises(
            InputError,
            match=rf"^\S*/{number}: [\w.]+ is missing, a file that this program shares .*: "
            "copy the whole directory of the front, or save the program alone",
        ):
            Program.load(tmp_path / f"{number}")


@pytest.mark.parametrize(
    "names, words",
    [
        ("tokenizer.json", "'above' is a str, not a list"),
        (["../../../etc/passwd"], r"'\.\./\.\./\.\./etc/passwd' is no"),
        (["/etc/passwd"], "'/etc/passwd' is not a file"),
        ([PROGRAM], "'program.json' is not a file"),
        ([3], "3 is not a file"),
        ([["tokenizer.json"]], "is not a file"),
        ([], "hash is|shared.0.safetensors: No such file"),
        (None, "'above' is missing"),
    ],
)
def test_what_a_point_says_of_files_above_it_is_mistrusted(program, other, tmp_path, names, words):
    place = with_front(program, other, tmp_path / "p") / "front" / "0"
    said = json.loads((place / PROGRAM).read_text()) | {"above": names}
    if names is None:
        del said["above"]
    (place / PROGRAM).write_text(json.dumps(said))
    with pytest.raises(InputError, match=words):
        Program.load(place)


@pytest.mark.parametrize("numbers", [[64], [-1], [0, 0], [True], ["0"], [0.0], [[0]]])
def test_numbers_of_shared_files_are_mistrusted(program, other, tmp_path, numbers):
    place = with_front(program, other, tmp_path / "p") / "front" / "0"
    said = json.loads((place / PROGRAM).read_text()) | {"shared": numbers}
    (place / PROGRAM).write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"shared is .*, not different numbers below 64"):
        Program.load(place)


def test_it_embeds_texts(saved):
    program = Program.load(saved)
    texts = ["the river runs dry", "a bank", "of"]
    found = program.embed(texts)
    assert found.shape == (3, 24) and found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(program.embed(texts, rows=5), found, atol=1e-6)
    np.testing.assert_allclose(program.embed("a bank"), found[1:2], atol=1e-6)
    rows = program.exact(program.tokenizer.encode("a bank")).mean(0)
    np.testing.assert_allclose(found[1], rows / np.linalg.norm(rows), atol=1e-6)


@pytest.mark.parametrize("texts, complaint", [("river " * 30, "positions for 20"), ([3], "text 0 is 3")])
def test_texts_that_cannot_be_embedded(saved, texts, complaint):
    with pytest.raises(InputError, match=complaint):
        Program.load(saved).embed(texts)


def test_without_a_tokenizer():
    with pytest.raises(InputError, match="no tokenizer"):
        bert_program(CONFIG, arrays(CONFIG)).embed("a bank")


def test_the_hash_is_of_everything_but_the_certificate(program):
    assert program.replace(certificate={"other": 1}).hash == program.hash
    assert "certificate" in program.meta and "certificate" not in program.replace(rows=[1, 511]).meta
    changed = dict(program.constants)
    changed["word"] = Dense.pack(np.nextafter(program.constants["word"].unpack(), np.float32(9)))
    others = [
        program.replace(rows=[1, 511]),
        program.replace(tokenizer=None),
        Program(program.steps, changed, program.output, program.meta),
        Program(program.steps, program.constants, program.steps[0].output, program.meta),
    ]
    assert len({program.hash, *(other.hash for other in others)}) == 5


# ---- arrays in a file


def lies_in(array):
    """What a view is a view of, in the end."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


@pytest.mark.parametrize("format", FORMATS)
def test_arrays_are_mapped_and_begin_on_cache_lines(tmp_path, format):
    bert_program(CONFIG, arrays(CONFIG), fused_layer, FORMATS[format]).save(tmp_path / "p")
    program = Program.load(tmp_path / "p")
    loaded = dict(program.arrays())
    stored = {name: array for name, array in loaded.items() if array.size}
    assert all(array.ctypes.data % 64 == 0 and not array.flags.writeable for array in stored.values())
    copied = {f"{name}.{field}" for name, c in program.constants.items() for field in getattr(c, "indices", list)()}
    assert {name for name, array in stored.items() if not isinstance(lies_in(array), mmap.mmap)} == copied & {*stored}
    assert {name for name in load_file(tmp_path / "p" / WEIGHTS) if not name.startswith("padding")} == set(loaded)


def test_arrays_that_lie_anywhere_are_copied(tmp_path):
    program = bert_program(CONFIG, arrays(CONFIG), fused_layer, FORMATS["csr"])
    program.save(tmp_path / "p")
    save_file({"shift": np.zeros(3, np.uint8)} | dict(program.arrays()), file := tmp_path / "p" / WEIGHTS)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert any((8 + length + entry["data_offsets"][0]) % 64 for entry in json.loads(raw[8 : 8 + length]).values())
    with pytest.raises(InputError, match="array 'shift' belongs to no"):
        Program.load(tmp_path / "p")
    save_file(dict(program.arrays()), file)
    loaded = Program.load(tmp_path / "p")
    assert all(array.ctypes.data % 64 == 0 for _, array in loaded.arrays())
    assert np.array_equal(loaded.run(RAGGED), program.run(RAGGED))


def test_what_cannot_be_mapped_is_read(saved, program, monkeypatch):
    def none(*_, **__):
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", none)
    loaded = Program.load(saved)
    assert all(array.ctypes.data % 64 == 0 and isinstance(lies_in(array), np.ndarray) for _, array in loaded.arrays())
    assert loaded.hash == program.hash and np.array_equal(loaded.run(RAGGED), program.run(RAGGED))


@pytest.mark.parametrize(
    "harm",
    [
        lambda saved, other: other.save(saved),
        lambda saved, other: shutil.rmtree(saved),
        lambda saved, other: (saved / WEIGHTS).unlink(),
    ],
    ids=["replaced", "removed", "weights removed"],
)
def test_a_loaded_program_outlives_its_files(saved, program, harm):
    loaded = Program.load(saved)
    harm(
        saved,
        Program(
            program.steps,
            program.constants | {"word": Dense.pack(0 * program.constants["word"].unpack())},
            program.output,
            program.meta,
        ),
    )
    assert np.array_equal(loaded.run(RAGGED), program.run(RAGGED))


@pytest.mark.parametrize("piece", [1 << 20, 256, 4096])
def test_the_hash_of_the_files_is_that_of_the_program(saved, program, monkeypatch, piece):
    monkeypatch.setattr("opmatrix.files.mapped.PIECE", piece)
    program.replace(model="other").save(saved)
    loaded = Program.load(saved)
    said = loaded.hash
    del loaded.hash
    assert loaded.hash == said


def test_arrays_of_another_number_type_are_not_stored(program, tmp_path):
    def holding(array):
        return Program(program.steps, {**program.constants, "odd": array}, program.output, program.meta)

    odd = holding(wide := np.zeros(3, np.longdouble))
    with pytest.raises(InputError, match=f"array 'odd' is of {wide.dtype}"):
        odd.save(tmp_path / "odd")
    with pytest.raises(ValueError, match="odd: given complex64; give real numbers"):
        holding(np.zeros(3, np.complex64))
    assert not list(tmp_path.iterdir())


def test_loading_imports_nothing_heavy(saved):
    heavy = "{'sympy', 'scipy', 'numba', 'llvmlite', 'egglog', 'rich', 'tokenizers', 'torch', 'matplotlib'}"
    code = (
        f"import sys; from opmatrix.runtime.program import Program; program = Program.load({str(saved)!r}); "
        f"print(*{heavy} & set(sys.modules)); program.run([[3, 4], [5]]); program.cost([[3]]); print('sympy' in "
        "sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.split() == ["False"], run.stdout + run.stderr


# ---- what was there before


def test_a_program_is_replaced_and_what_else_was_there_is_kept(saved, program):
    (saved / "notes.txt").write_text("mine")
    other = program.replace(model="other", certificate=None)
    other.save(saved)
    assert Program.load(saved).hash == other.hash
    assert (saved / "notes.txt").read_text() == "mine" and not (saved / "certificate.json").exists()
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("a file"),
        lambda path: (path.mkdir(), (path / "thesis.tex").write_text("years")),
        lambda path: (path.mkdir(), (path / PROGRAM).write_text('{"kind": "another"}')),
    ],
)
def test_anything_else_is_left_alone(program, tmp_path, make):
    make(path := tmp_path / "taken")
    with pytest.raises(InputError, match=r"taken: it exists and is no opmatrix program"):
        program.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_an_empty_directory_is_filled(program, tmp_path):
    (tmp_path / "empty").mkdir()
    program.save(tmp_path / "empty")
    assert Program.load(tmp_path / "empty").hash == program.hash


def test_a_failed_save_leaves_the_old_one(saved, program, monkeypatch):
    before = {p.name: p.read_bytes() for p in saved.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opmatrix.files.saving.write_tensors", full)
    with pytest.raises(InputError, match="No space left on device"):
        program.replace(model="other").save(saved)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


# ---- what is wrong with a file


def edit(change):
    """A way to damage program.json: the object is changed in place."""

    def damage(directory):
        found = json.loads((directory / PROGRAM).read_text())
        change(found)
        (directory / PROGRAM).write_text(json.dumps(found))

    return damage


def tensors(change):
    """A way to damage the weights: the arrays are changed in place."""

    def damage(directory):
        found = load_file(directory / WEIGHTS)
        change(found)
        save_file(found, directory / WEIGHTS)

    return damage


def cut(name, size):
    return lambda d: (d / name).write_bytes((d / name).read_bytes()[:size])


WORD, BIAS = "word.w", "encoder.layer.0.output.dense.bias"
DAMAGE = {
    "no directory": (shutil.rmtree, "no such directory: program.json was looked for, and .* is empty: give"),
    "no program": (lambda d: (d / PROGRAM).unlink(), "no program.json in it"),
    "no weights": (lambda d: (d / WEIGHTS).unlink(), "weights.safetensors: No such file"),
    "program cut": (cut(PROGRAM, 300), "program.json: not JSON"),
    "program empty": (cut(PROGRAM, 0), "program.json: not JSON"),
    "program is a list": (lambda d: (d / PROGRAM).write_text("[]"), "program.json: it holds a list, not an object"),
    "another kind": (edit(lambda p: p.update(kind="cake")), "program.json: kind is 'cake'"),
    "another version": (edit(lambda p: p.update(version=99)), "program.json: version is 99, but this opmatrix reads 3"),
    "no steps": (edit(lambda p: p.pop("steps")), "program.json: 'steps' is missing"),
    "steps are no list": (edit(lambda p: p.update(steps={})), "program.json: 'steps' is a dict, not a list"),
    "a step is no step": (edit(lambda p: p["steps"].insert(2, ["scale"])), r"program.json: steps\[2\] is \['scale'\]"),
    "an operand is no name": (edit(lambda p: p["steps"][1][1].update(x=1)), r"program.json: steps\[1\] is \["),
    "an unknown kernel": (
        edit(lambda p: p["steps"].insert(1, ["exec", {}, {}, "y"])),
        "program.json: steps: step 1, y = exec: there is no such kernel",
    ),
    "a step undefined": (edit(lambda p: p["steps"].pop(0)), "program.json: steps: step 0"),
    "no such output": (edit(lambda p: p.update(output="zz")), "program.json: steps: output: no step gives 'zz'"),
    "output is no name": (edit(lambda p: p.update(output=3)), "program.json: 'output' is a int, not a str"),
    "a step changed": (edit(lambda p: p["steps"][0][2].update(eps=1e-3)), "program.json: hash is '[0-9a-f]{32}', but"),
    "meta changed": (edit(lambda p: p["meta"].update(model="other")), "program.json: hash is"),
    "no hash": (edit(lambda p: p.pop("hash")), "program.json: 'hash' is missing"),
    "a format of before": (
        edit(lambda p: p["constants"]["word"].update(format="coo")),
        "program.json: constants: "
        r"'word': there is no format 'coo' in this version: create the program again; there are array, ",
    ),
    "a constant is no object": (edit(lambda p: p["constants"].update(word=3)), "'word': there is no format 'None'"),
    "a shape changed": (
        edit(lambda p: p["constants"]["word"].update(shape=[24, 41])),
        r"weights.safetensors: constant 'word': dense.w",
    ),
    "a constant more": (
        edit(lambda p: p["constants"].update(more={"format": "array"})),
        "weights.safetensors: array 'more' is missing",
    ),
    "weights cut": (cut(WEIGHTS, 5000), "weights.safetensors: 5000 bytes that are no whole safetensors file"),
    "weights empty": (cut(WEIGHTS, 0), "weights.safetensors: 0 bytes that are no whole"),
    "weights are text": (lambda d: (d / WEIGHTS).write_text("hello, world"), "weights.safetensors: 12 bytes that are"),
    "an array lost": (tensors(lambda t: t.pop(WORD)), "weights.safetensors: array 'word.w' is missing"),
    "an array more": (tensors(lambda t: t.update(extra=t[WORD])), "weights.safetensors: array 'extra' belongs to no"),
    "padding that is none": (
        tensors(lambda t: next(v for k, v in t.items() if k.startswith("padding")).__setitem__(0, 1)),
        "array 'padding[0-9]+' belongs to no constant",
    ),
    "an array shorter": (tensors(lambda t: t.update({WORD: t[WORD][1:].copy()})), "safetensors: constant 'word'"),
    "an array in float64": (
        tensors(lambda t: t.update({BIAS: t[BIAS].astype("f8")})),
        "program.json: steps: step .* must be Vector",
    ),
    "a table in float64": (tensors(lambda t: t.update({WORD: t[WORD].astype("f8")})), "safetensors: constant 'word'"),
    "one number changed": (tensors(lambda t: t[WORD].__setitem__((3, 4), 1.5)), "program.json: hash is"),
    "nan": (tensors(lambda t: t[WORD].__setitem__((3, 4), np.nan)), "weights.safetensors: constant 'word': .*nan"),
    "config cut": (cut("config.json", 10), "config.json: not JSON"),
    "tokenizer changed": (lambda d: (d / "tokenizer.json").write_text("{}"), "program.json: hash is"),
    "tokenizer is not a string": (
        lambda d: (d / "tokenizer.json").write_bytes(b"\xff\xfe"),
        "tokenizer.json: byte 0 is not UTF-8",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(saved, damage):
    harm, complaint = DAMAGE[damage]
    harm(saved)
    with pytest.raises(InputError, match=complaint) as error:
        Program.load(saved)
    assert str(saved) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("at", range(0, 1000, 37))
def test_no_flipped_bit_is_loaded(saved, at):
    """Wherever a bit of the weights is flipped, loading says so."""
    raw = bytearray((saved / WEIGHTS).read_bytes())
    raw[at * (len(raw) - 1) // 999] ^= 16
    (saved / WEIGHTS).write_bytes(raw)
    with pytest.raises(InputError):
        Program.load(saved)


def places(value, path=()):
    """Every path into a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from [(*path, key), *places(entry, (*path, key))]


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("value", [None, True, -1, 2.5, 10**30, "x", "gelu", [], {}, [1, 2], {"a": 1}], ids=repr)
def test_no_other_error_escapes(saved, program, value):
    """Whatever takes the place of any entry of program.json, the program is the same or refused in one line."""
    good = (saved / PROGRAM).read_text()
    for path in list(places(json.loads(good)))[::7]:
        found = entry = json.loads(good)
        for key in path[:-1]:
            entry = entry[key]
        entry[path[-1]] = value
        (saved / PROGRAM).write_text(json.dumps(found))
        try:
            assert Program.load(saved).hash == program.hash
        except InputError as error:
            assert str(saved) in str(error) and "\n" not in str(error)
