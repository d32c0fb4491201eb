"""Many calls of one program: memory stays flat, threads that share it disturb nothing, the same batch gives the same
bits, in this process and in another."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Barrier

import checkpoints
import numpy as np
import pytest
from children import ROOT, SUPPORT
from programs import bert_program, fused_layer, unfused_layer

from formats import FORMATS
from opmatrix.runtime.program import Program

CONFIG = checkpoints.CONFIG | {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
}
STATUS = Path("/proc/self/statm")
FLAT = 2**19  # bytes: 50 a call would be seen
PACKED = ["packed", "bf16", "int8"]


def program(pack="packed", layer=fused_layer):
    return bert_program(CONFIG, checkpoints.arrays(CONFIG), layer, FORMATS[pack].approximate)


def batches(count, seed=0, longest=64):
    """Of one to six sentences, of one token to the longest."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(0, CONFIG["vocab_size"], length).tolist()
            for length in rng.integers(1, longest + 1, rng.integers(1, 7))
        ]
        for _ in range(count)
    ]


def resident():
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(call, given, count):
    """Bytes that so many calls add, once each has been made twice."""
    for each in 2 * given:
        call(each)
    before = resident()
    for at in range(count):
        call(given[at % len(given)])
    return resident() - before


# ---- memory


@pytest.mark.deep
@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell how much is resident")
@pytest.mark.parametrize(
    "layer, count", [(fused_layer, 10_000), (unfused_layer, 300)], ids=["recorded", "step by step"]
)
def test_thousands_of_calls_leave_memory_flat(layer, count):
    assert grown(program(layer=layer).run, batches(40, longest=6), count) < FLAT


@pytest.mark.deep
@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell how much is resident")
def test_more_sizes_than_a_program_remembers_leave_memory_flat():
    sizes = [[[5] * 60] * (rows // 60) + [[7] * (rows % 60 + 1)] for rows in range(300)]
    assert grown(program().run, sizes, 2 * len(sizes)) < 4 * FLAT


@pytest.mark.deep
@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell how much is resident")
def test_programs_that_are_gone_leave_nothing():
    one = batches(1)

    def use(batch):
        program().run(batch)

    assert grown(use, one * 50, 50) < 4 * FLAT


# ---- threads


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("pack", PACKED)
def test_threads_that_share_a_new_program_get_what_one_gets(pack):
    """Nobody called it before, so threads find nothing prepared, and prepare it for one another."""
    given, alone, shared, callers = batches(24, seed=1), program(pack), program(pack), 4
    wanted, start = [alone.run(batch) for batch in given], Barrier(callers)

    def work(offset):
        start.wait()
        places = np.roll(np.tile(np.arange(len(given)), 5), offset)
        return [at for at in places if not np.array_equal(shared.run(given[at]), wanted[at])]

    with ThreadPoolExecutor(callers) as pool:
        assert [*pool.map(work, range(0, 6 * callers, 6))] == [[]] * callers


def test_threads_that_use_different_programs_get_what_one_gets():
    given, alone = batches(8, seed=2), [program(pack) for pack in PACKED]
    wanted = [[each.run(batch) for batch in given] for each in alone]

    def work(at):
        mine = program(PACKED[at])
        return all(
            np.array_equal(mine.run(batch), right)
            for _ in range(20)
            for batch, right in zip(given, wanted[at], strict=True)
        )

    with ThreadPoolExecutor(len(PACKED)) as pool:
        assert all(pool.map(work, range(len(PACKED))))


def test_an_error_in_one_thread_is_its_own():
    shared, given = program(), batches(6, seed=3)
    wanted = [program().run(batch) for batch in given]

    def work(spoils):
        for _ in range(60):
            if spoils:
                with pytest.raises(ValueError, match="outside"):
                    shared.run([[CONFIG["vocab_size"]]])
            elif not all(np.array_equal(shared.run(batch), right) for batch, right in zip(given, wanted, strict=True)):
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, (True, False)))


# ---- bits


def digest(program):
    """Of what a program gives for some batches."""
    told = blake2b(digest_size=16)
    for batch in batches(12, seed=4):
        told.update(np.ascontiguousarray(program.run(batch)).tobytes())
    return told.hexdigest()


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("pack", PACKED)
def test_the_same_bits_from_run_to_run(pack, tmp_path):
    """In this process, of the program read again, and, of one kind of numbers, in two others."""
    made = program(pack)
    wanted = digest(made)
    made.save(tmp_path / "program")
    for batch in batches(30, seed=5):
        made.run(batch)  # other sizes in between
    assert digest(made) == wanted == digest(Program.load(tmp_path / "program"))
    code = f"import test_calls\nprint(test_calls.digest(test_calls.Program.load({str(tmp_path / 'program')!r})))"
    paths = os.pathsep.join(map(str, [Path(__file__).parent, SUPPORT, ROOT]))
    for _ in range(2 if pack == "packed" else 0):
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
        )
        assert ran.stdout.strip() == wanted, ran.stderr
