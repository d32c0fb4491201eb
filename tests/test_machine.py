"""The machine model: prices are what the features say, fits find what made the data, files are trusted only if ours."""
import json
from itertools import product

import numpy as np
import pytest
import sympy

from formats import calibrate as calibration
from formats import machine as machines
from formats.machine import FEATURES, FUSED, Machine, NotThisMachine, evaluate, features, this_machine

SIZES = {"n": 384, "p": 1536, "nnz": 9000, "blocks": 70, "r": 16, "c": 16, "kept": 2, "group": 4, "S2": 20000,
         "h": 12, "d": 32}
RATES = (2e-11, 3e-10, 1e-9, 2e-9, 1e-5)                    # seconds for one of each feature, as plain as any


def rates(kernel): return [*RATES[:len(features(kernel)) - 1], RATES[-1]] if kernel not in FUSED else [1e-9]


def known(**more):
    """This machine with coefficients that were not measured."""
    name, threads, versions = machines.identity()
    return Machine(name, threads, dict(versions), {kernel: rates(kernel) for kernel in FEATURES}, **more)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kernel", FEATURES)
def test_every_price_is_its_expression(kernel):
    for T in (1, 16, 17, 1000):
        sizes = {str(symbol): ({"T": T} | SIZES)[str(symbol)] for f in features(kernel) for symbol in f.free_symbols}
        machine, values = known(), [sympy.Symbol(name) for name in sizes]
        named = {symbol: sizes[str(symbol)] for f in features(kernel) for symbol in f.free_symbols}
        want = float(machine.expression(kernel).subs(named))
        assert machine.seconds(kernel, **sizes, other=3) == pytest.approx(want, rel=1e-3) and len(values) == len(named)
        assert all(0 < feature < np.inf for feature in evaluate(kernel, sizes))


@pytest.mark.parametrize("kernel", FEATURES)
def test_more_rows_never_cost_less(kernel):
    prices = [known().seconds(kernel, T=T, **(SIZES | {"S2": T * T})) for T in range(1, 200)]
    assert prices == sorted(prices)


def test_a_missing_size_and_an_unknown_kernel_are_named():
    with pytest.raises(ValueError, match=r"price of linear\.dense needs n; given were T, p"):
        evaluate("linear.dense", {"T": 1, "p": 2})
    with pytest.raises(KeyError, match=r"linear\.sparse.*there are linear\.dense"): features("linear.sparse")


@pytest.mark.parametrize("kernel", sorted(set(FEATURES) - set(FUSED)))
def test_a_fit_finds_what_made_the_data(kernel):
    """Exactly without noise; within a few per cent where a fifth of the measurements were disturbed."""
    rng, machine = np.random.default_rng(5), known()
    shapes = [SIZES | {"T": T, "n": n, "p": p, "nnz": n * p // 9, "blocks": n * p // 1024, "S2": T * s, "d": d, "h": h}
              for T, n, p, s, d, h in product((4, 24, 100, 400), (200, 900), (300, 1000), (10, 80), (32, 64), (3, 12))]
    rows = [(kernel, sizes, machine.seconds(kernel, **sizes)) for sizes in shapes]
    found = calibration.fit(kernel, rows)
    assert all(abs(np.dot(found, evaluate(kernel, sizes)) / taken - 1) < 1e-6 for _, sizes, taken in rows)
    noisy = [(kernel, sizes, taken * (rng.uniform(2, 6) if rng.random() < 0.2 else 1)) for _, sizes, taken in rows]
    found = calibration.fit(kernel, noisy)
    wrong = [abs(np.dot(found, evaluate(kernel, sizes)) / taken - 1) for _, sizes, taken in rows]
    assert np.median(wrong) < 0.05 and min(found) >= 0


def test_calibration_recovers_a_machine(monkeypatch):
    """Every case runs; with a clock that follows the features, nothing is mispriced, not even new shapes."""
    truth, ran = known(), set()
    def measured(cases, progress=lambda *_: None, most=0):
        for kernel, _, call in cases:
            if kernel not in ran: call()
            ran.add(kernel)
        progress(len(cases), len(cases))
        return [(kernel, sizes, truth.seconds(kernel, **sizes)) for kernel, sizes, _ in cases]
    monkeypatch.setattr(calibration, "measured", measured)
    monkeypatch.setattr(calibration, "timed", lambda call, seconds=0: [call() is None or 1e-3] * 3)
    told = []
    found = calibration.calibrate(lambda *what: told.append(what))
    assert ran == set(FEATURES) - set(FUSED) == set(found.interval) and max(found.interval.values()) < 1e-6
    assert set(found.coefficients) == set(FEATURES) and found.identity == machines.identity()
    assert any(len(what) == 2 for what in told) and any("compiled dense" in what for what in told)


def test_what_is_judged_was_not_fitted():
    assert not set(calibration.SHAPES + calibration.LARGE) & set(calibration.JUDGED_SHAPES)
    assert not set(calibration.BATCHES) & set(calibration.JUDGED_BATCHES)


def test_a_file_gives_the_same_machine(tmp_path):
    machine = known(interval={"scale": 0.1})
    machine.save(file := tmp_path / "new" / "machine.json")
    assert Machine.load(file) == machine and [path.name for path in file.parent.iterdir()] == ["machine.json"]


def spoiled(text, **changes): return json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize("spoil, said", [
    (lambda text: text[:100], "JSONDecodeError"), (lambda text: "[]", "TypeError"),
    (lambda text: "", "JSONDecodeError"), (lambda text: spoiled(text, beads=3), "TypeError"),
    (lambda text: spoiled(text, name="abacus"), "another machine"),
    (lambda text: spoiled(text, threads=99), "another machine"),
    (lambda text: spoiled(text, versions={}), "another machine"),
    (lambda text: spoiled(text, features=1), "another machine"),
    (lambda text: spoiled(text, coefficients={}), "KeyError"),
    (lambda text: text.replace("2e-11", '"much"'), "ValueError"),
    (lambda text: text.replace("2e-11", "-2e-11"), "no prices of"),
    (lambda text: text.replace("2e-11", "NaN"), "no prices of"),
    (lambda text: text.replace("2e-11,", ""), "no prices of")])
def test_foreign_and_damaged_files_are_measured_again(cache, monkeypatch, spoil, said):
    known().save(file := cache / "machine.json")
    good = file.read_text()
    file.write_text(spoil(good))
    with pytest.raises(NotThisMachine, match=said): Machine.load(file)
    monkeypatch.setattr(calibration, "calibrate", lambda progress: known())
    told = []
    assert this_machine() == known()
    [kept] = (cache / "machines").iterdir()
    kept.write_text(spoil(good))
    assert this_machine(told.append) == known()
    assert said in told[0] and "measured again" in told[0] and Machine.load(kept) == known()


def test_a_calibration_is_kept(cache, monkeypatch):
    runs = []
    monkeypatch.setattr(calibration, "calibrate", lambda progress: runs.append(1) or known())
    assert this_machine() == this_machine() == known() and len(runs) == 1


def test_a_change_of_kernels_is_another_machine(cache, monkeypatch):
    known().save(file := cache / "machine.json")
    monkeypatch.setattr("formats.kernels.digest", lambda: "changed")
    with pytest.raises(NotThisMachine, match="other versions"): Machine.load(file)


def test_a_slow_machine_measures_fewer_rounds(monkeypatch):
    """The first round is whole, the rest end with the time; progress still reaches its end."""
    now, told = [0.0], []
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])
    def slow(): now[0] += 1.0
    cases = [("scale", {"T": T, "p": 1}, slow) for T in range(1, 6)]
    rows = calibration.measured(cases, lambda *what: told.append(what), most=3.0)
    assert [taken for *_, taken in rows] == [1.0] * 5 and told[-1] == (15, 15)
    assert [done for done, _ in told[:-1]] == [1, 2, 3, 4, 5]
