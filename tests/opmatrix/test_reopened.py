"""Programs in other processes: by the directory that they lie in."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from programs import bert_program

from formats.core.errors import InputError
from opmatrix.runtime.program import Program

RAGGED = [[3, 4, 5], [8]]


def run(program):
    return program.run(RAGGED)


@pytest.fixture
def program():
    return bert_program(CONFIG, arrays(CONFIG))


def test_a_spawned_process_has_the_same_program(program, tmp_path):
    program.save(tmp_path / "p")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for each in (program, Program.load(tmp_path / "p")):
            assert np.array_equal(pool.submit(run, each).result(), program.run(RAGGED))


def test_nothing_of_the_program_is_in_a_pickle(program, tmp_path, monkeypatch):
    program.save(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    for each in (program, Program.load("p")):
        pickled = pickle.dumps(each)
        assert len(pickled) < 500 and str(tmp_path / "p").encode() in pickled
        assert pickle.loads(pickled).hash == program.hash
    again = pickle.loads(pickle.dumps(pickle.loads(pickled)))
    assert np.array_equal(again.run(RAGGED), program.run(RAGGED))


def test_a_copy_is_the_program_itself(program):
    assert copy.copy(program) is program and copy.deepcopy([program])[0] is program


def test_one_that_lies_nowhere_is_named(program, tmp_path):
    program.save(tmp_path / "p")
    for other in (bert_program(CONFIG, arrays(CONFIG)), program.replace(note="another")):
        with pytest.raises(TypeError, match=r"this one has none: program\.save\(DIR\) first"):
            pickle.dumps(other)


def test_another_program_in_its_place_is_named(program, tmp_path):
    program.save(tmp_path / "p")
    pickled = pickle.dumps(program)
    program.replace(note="another").save(tmp_path / "p")
    with pytest.raises(InputError, match=f"/p: it holds the program .*, and {program.hash} was pickled"):
        pickle.loads(pickled)
    for file in (tmp_path / "p").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"/p: no program\.json in it"):
        pickle.loads(pickled)
