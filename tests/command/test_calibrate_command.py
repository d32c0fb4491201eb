"""`opmatrix calibrate`: what it keeps is what later commands read; nothing is set behind a user's back."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from children import ROOT

from formats import kernels
from formats.disk import cache
from formats.host import blas
from formats.host.blas import Blas
from formats.host.host import caches
from formats.machine import peaks
from formats.machine.model import Machine, here, machine_file
from formats.machine.peaks import Peaks, Rate
from opmatrix.runtime.pricing import catalogue, this_machine
from rewrites.cli import __main__ as cli
from rewrites.cli.machine import environment

RATES = {"": 1e11, "ZEN": 1.5e11}


def machine():
    prices = catalogue()
    return Machine({kernel: [1e-9] * len(prices[kernel].terms) for kernel in prices.common}, **here(), catalogue=prices)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch):
    """What a calibration would measure, at once; whether it was a full one."""
    found = Peaks("chip", 2, {"vector": Rate(2e11, 4e11)}, [("L1", 1 << 15, Rate(3e11, 6e11))], {"call": 1.2e-5})
    monkeypatch.setattr(kernels, "warm", lambda progress: progress("none", 0.0))
    monkeypatch.setattr(peaks, "measure_peaks", lambda progress: progress(1, 1) or found)
    monkeypatch.setattr(blas, "fastest", lambda progress: progress(1, 1) or Blas("ZEN", RATES))
    runs = []

    def calibrated(catalogue, progress, full):
        progress(1, 1)
        runs.append(full)
        return machine()

    monkeypatch.setattr("rewrites.cli.machine.calibrate.calibrate", calibrated)
    monkeypatch.setattr(sys, "argv", ["opmatrix", "calibrate"])
    return runs


def test_what_cannot_be_kept_is_told_all_the_same(measured, monkeypatch, capsys, caplog):
    monkeypatch.setenv("OPMATRIX_CACHE", "/proc/none")
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().out
    assert end.value.code in (None, 0) and "linear.dense" in said and said.endswith("not kept\n")
    assert [line.split(": ")[1] for line in caplog.messages] == ["the calibration", "peaks", "the setting of BLAS"]
    assert all("/proc/none" in line and "OPMATRIX_CACHE" in line for line in caplog.messages)


def test_a_command_measures_keeps_and_tells(kept, measured, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().out
    assert end.value.code in (None, 0) and measured == [True]
    for words in (
        "vector",
        "200  400",
        "L1 (32 KiB)",
        "300  600",
        "12.0",
        "* ZEN",
        "150",
        "linear.dense",
        str(machine_file()),
    ):
        assert words in said
    assert this_machine() == machine(), "later commands read what was measured"
    again = json.loads(machine_file().with_suffix(".peaks.json").read_text())
    assert again["rates"] == {"vector": {"one": 2e11, "all": 4e11}} and again["bandwidth"][0][:2] == ["L1", 1 << 15]
    assert environment.blas() == {"OPENBLAS_CORETYPE": "ZEN"}


def test_what_is_measured_is_written_as_figures(kept, measured, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["opmatrix", "calibrate", "--json", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    found = json.loads((tmp_path / "found.json").read_text())
    assert end.value.code in (None, 0) and found["peaks"]["rates"] == {"vector": {"one": 2e11, "all": 4e11}}
    assert found["blas"] == {"core": "ZEN", "rates": RATES} and found["kept"] == str(machine_file())
    assert found["kernels"].keys() == machine().coefficients.keys()
    dense = found["kernels"]["linear.dense"]
    assert dense["within"] is None and "1.0e-9*" in dense["seconds"]


def test_commands_run_with_the_setting_unless_the_user_set_one(kept):
    assert environment.blas() == {}
    environment.remember("ZEN", RATES)
    mine = {"OPENBLAS_NUM_THREADS": "7"}
    environment.prepare(mine)
    assert mine["OPENBLAS_NUM_THREADS"] == "7" and mine["OPENBLAS_CORETYPE"] == "ZEN" and mine["MKL_NUM_THREADS"] == "1"
    mine = {"OPENBLAS_CORETYPE": "HASWELL"}
    environment.prepare(mine)
    assert mine["OPENBLAS_CORETYPE"] == "HASWELL"
    environment.remember("", {})
    assert environment.blas() == {}, "the library's own choice is no setting"


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda text: text[:20],
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"processor": "another"}),
        lambda text: json.dumps(json.loads(text) | {"core": 3}),
        lambda text: json.dumps(json.loads(text) | {"core": "a b;c"}),
        lambda text: json.dumps(json.loads(text) | {"core": ["ZEN"]}),
        lambda text: text.replace("ZEN", "UNHEARD"),
        lambda text: "[" * 100_000,
        lambda text: '{"processor": 1' + "0" * 400 + "}",
        lambda text: text.replace("150000000000.0", "NaN"),
        lambda text: text + " " * (1 << 20),
        lambda text: "\0\udcff",
    ],
)
def test_a_setting_of_another_processor_or_damaged_is_not_used(kept, spoiled):
    environment.remember("ZEN", RATES)
    file = environment.file()
    file.write_text(spoiled(file.read_text()), errors="surrogateescape")
    assert environment.blas() == {}


def test_a_setting_that_is_no_file_or_could_be_of_others_is_not_used(kept):
    environment.remember("ZEN", RATES)
    file = environment.file()
    file.chmod(0o666)
    assert environment.blas() == {}
    file.unlink()
    os.mkfifo(file)
    assert environment.blas() == {}, "and no writer is waited for"


def test_both_names_of_the_cache_are_one(kept, monkeypatch):
    assert environment.file().parent.parent == cache.cache_directory() == kept
    monkeypatch.delenv("OPMATRIX_CACHE")
    monkeypatch.setattr("pathlib.Path.mkdir", lambda *_, **__: None)
    assert environment.file().parent.parent == cache.cache_directory()


def test_numpy_comes_after_the_environment():
    asked = (
        "import sys, rewrites.cli.machine.environment as e\ne.prepare({}); assert 'numpy' not in sys.modules, 'numpy'"
    )
    subprocess.run([sys.executable, "-c", asked], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "rates, best",
    [
        ({"": 1.0, "HASWELL": 1.5, "ZEN": 1.2}, "HASWELL"),
        ({"": 1.0, "HASWELL": 1.01}, ""),
        ({"": 1.0}, ""),
        ({}, ""),
        ({"ZEN": 1.0}, "ZEN"),
    ],
)
def test_the_fastest_setting_must_win_clearly_and_run(monkeypatch, rates, best):
    monkeypatch.setattr(blas, "adjustable", lambda: True)
    monkeypatch.setattr(blas.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(blas, "rate", lambda core: rates.get(core))
    steps = []
    found = blas.fastest(lambda *step: steps.append(step))
    assert found.core == best and set(found.rates) == set(rates) and steps[-1][0] == steps[-1][1] == len(steps)
    assert found.environment == ({"OPENBLAS_CORETYPE": best} if best else {})


def test_another_blas_is_left_alone(monkeypatch):
    monkeypatch.setattr(blas, "adjustable", lambda: False)
    asked = []
    monkeypatch.setattr(blas, "rate", lambda core: asked.append(core) or 1.0)
    assert blas.fastest(rounds=1).core == "" and asked == [""]


def test_a_setting_is_tried_in_a_process_of_its_own(monkeypatch):
    """One that dies has no rate."""
    assert blas.rate("") > 1e6
    monkeypatch.setattr(blas, "TRIAL", "import os; os.abort()")
    assert blas.rate("ZEN") is None
    monkeypatch.setattr(blas, "TRIAL", "import os; print(len(os.environ['OPENBLAS_CORETYPE']))")
    assert blas.rate("ZEN") == 3.0


def test_what_is_measured_is_what_is_said(monkeypatch):
    """With a clock that ticks evenly, rates are work over ticks."""
    now = [0.0]

    def tick():
        now[0] += 1e-3
        return now[0]

    monkeypatch.setattr(peaks.time, "perf_counter", tick)
    from formats.machine.rates import CHAINS

    assert peaks.vector_rate().one == pytest.approx(2 * CHAINS * (1 << 19) / 1e-3)
    array, _ = peaks.filled(1 << 16)
    assert array.nbytes == 1 << 16 and peaks.traffic(array) == 1 << 26
    assert peaks.bandwidth(1 << 16).one == pytest.approx((1 << 26) / 1e-3)


def test_reading_reads_everything():
    array, end = peaks.filled(1 << 16)
    array[...] = np.arange(array.size).reshape(array.shape)
    times = peaks.traffic(array) // array.nbytes
    peaks.sweep(array, end)
    assert end == pytest.approx(array.astype(float).sum(0), rel=1e-4) and times > 1


def test_caches_grow():
    sizes = caches()
    assert [*sizes] == sorted(sizes) and sizes[0] >= 1 << 12
    assert [name for name, _ in peaks.memory_levels()][-1] == "memory"
    assert peaks.format_bytes(1 << 20) == "1 MiB" and peaks.format_bytes(100) == "100 B"
