"""What programs of a front share is in files of its own: stored once, loaded bit for bit, mistrusted as all other
files."""

import json
import shutil

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from programs import bert_program, unfused_layer
from safetensors.numpy import load_file, save_file

from formats import Dense, Half
from formats.core.errors import InputError
from opmatrix.files import saving
from opmatrix.files.loading import PROGRAM, SHARDS, VERSION, WEIGHTS
from opmatrix.runtime.program import Program

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]


@pytest.fixture(scope="module")
def programs():
    """Three programs: the second differs from the first in its weights, the third is the first with another
    constant."""
    first, second = (
        bert_program(CONFIG, arrays(CONFIG), unfused_layer, form) for form in (Dense.pack, Half.approximate)
    )
    name = next(
        name
        for name, constant in first.constants.items()
        if isinstance(constant, np.ndarray) and constant.dtype == np.float32
    )
    third = Program(first.steps, {**first.constants, name: first.constants[name] * 2}, first.output, first.meta)
    return first, second, third


@pytest.fixture
def place(programs, tmp_path):
    with saving.replacing_program(tmp_path / "p") as fresh:
        saving.write_front({fresh: programs[2]} | {fresh / f"front/{i}": each for i, each in enumerate(programs)})
    return tmp_path / "p"


def test_every_program_is_the_same_to_the_bit(place, programs):
    for directory, program in [
        (place, programs[2]),
        *((place / f"front/{i}", each) for i, each in enumerate(programs)),
    ]:
        loaded = Program.load(directory)
        assert loaded.hash == program.hash and np.array_equal(loaded.run(RAGGED), program.run(RAGGED))
        for (name, array), (other, kept) in zip(program.arrays(), loaded.arrays(), strict=True):
            assert name == other and array.dtype == kept.dtype and array.tobytes() == kept.tobytes()


def test_no_array_is_stored_twice(place, programs):
    """Bytes on the disk, each file counted once: no more than the arrays that differ, and headers."""
    files = {path.stat().st_ino: path for path in place.rglob("*.safetensors")}.values()
    different = {(name, array.dtype.str, array.tobytes()) for program in programs for name, array in program.arrays()}
    stored = [
        (name, array.dtype.str, array.tobytes())
        for file in files
        for name, array in load_file(file).items()
        if not name.startswith("padding")
    ]
    assert sorted(stored) == sorted(different)
    assert len(stored) < 0.6 * sum(len(list(program.arrays())) for program in (*programs, programs[2]))


def test_a_program_of_the_front_is_saved_alone(place, programs, tmp_path):
    Program.load(place / "front/0").save(tmp_path / "again")
    shutil.rmtree(place)
    assert Program.load(tmp_path / "again").hash == programs[0].hash
    assert sorted(path.name for path in (tmp_path / "again").glob("*.safetensors")) == [WEIGHTS]
    assert json.loads((tmp_path / "again" / PROGRAM).read_text())["version"] == VERSION, "which older ones read, too"


def test_what_was_shared_does_not_outlive_the_program(place, programs):
    programs[0].save(place)
    assert not list(place.glob("shared*")) and Program.load(place).hash == programs[0].hash


def described(**changes):
    def spoil(place):
        file = place / PROGRAM
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def twice(place):
    """An array of one file in the other, too."""
    first, second = (load_file(file) for file in (place / SHARDS[0], place / WEIGHTS))
    name = min(name for name in first if not name.startswith("padding"))
    save_file(
        {**{key: array for key, array in second.items() if not key.startswith("padding")}, name: first[name]},
        place / WEIGHTS,
    )


def flipped(place):
    raw = bytearray((place / SHARDS[0]).read_bytes())
    raw[-100] ^= 1
    (place / SHARDS[0]).unlink()
    (place / SHARDS[0]).write_bytes(raw)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda place: (place / SHARDS[0]).unlink(), r"shared\.0\.safetensors: No such file"),
        (
            lambda place: (place / SHARDS[0]).write_bytes(b"hello, world"),
            r"shared\.0\.safetensors: 12 bytes that are no whole",
        ),
        (
            lambda place: shutil.copy(place / SHARDS[0], place / SHARDS[1]),
            r"shared\.1\.safetensors: array .* is in another file, too",
        ),
        (flipped, "hash is .* but the files have|which is not finite"),
        (twice, "is in another file, too"),
        (described(shared=0), "shared is 0, not from 1 to 64"),
        (described(shared=65), "shared is 65"),
        (described(shared=True), "shared is True"),
        (described(shared="../front/0/shared"), "'shared' is a str, not a int"),
        (described(shared=10**9), "shared is 1000000000, not"),
        (described(version=3), "is missing, which program.json names"),
        (described(version=9), "version is 9"),
        (described(version=5), "'inputs' is missing"),
    ],
)
def test_damage_is_named(place, spoil, said):
    spoil(place)
    with pytest.raises(InputError, match=said):
        Program.load(place)
