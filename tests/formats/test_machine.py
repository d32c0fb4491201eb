"""The machine model: prices are what the features say, fits find what made the data, files are trusted only if ours."""

import json
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import sympy

from formats.host.threads import threads
from formats.machine import calibration, local, predictor
from formats.machine import model as machines
from formats.machine.features import even, locate_call
from formats.machine.local import learning
from formats.machine.model import Machine, NotThisMachine, Rates, UnknownPrice, record
from formats.machine.predictor import Correction
from formats.machine.prices import Catalogue
from opmatrix.runtime.pricing import catalogue, this_machine

SIZES = {
    "g": 2,
    "n": 384,
    "p": 1536,
    "nnz": 9000,
    "blocks": 70,
    "r": 16,
    "c": 16,
    "kept": 2,
    "group": 4,
    "S2": 20000,
    "h": 12,
    "d": 32,
    "k": 2,
    "S": 5,
    "E": 8,
    "moved": 96,
    "written": 32,
    "operands": 3,
    "simple": 200,
    "slow": 7,
    "deep": 40,
    "merged": 9,
    "loops": 5,
}
RATES = (2e-11, 3e-10, 1e-9, 2e-9, 3e-9, 4e-9, 1e-5)  # seconds for one of each feature, as plain as any


CATALOGUE = catalogue()
PRICES, LAZY = CATALOGUE.common, CATALOGUE.lazy
RECORDED = {name for name in PRICES if CATALOGUE[name].recorded}
OWN = {name for name in PRICES if not CATALOGUE[name].rides}


def features(kernel):
    return CATALOGUE[kernel].terms


def rates(kernel):
    return [1e-9] if CATALOGUE[kernel].rides else [*RATES[: len(features(kernel)) - 1], RATES[-1]]


def known(**more):
    """This machine with coefficients that were not measured."""
    coefficients = {kernel: rates(kernel) for kernel in more.pop("names", PRICES)}
    return Machine(coefficients, **machines.here(), **{"catalogue": CATALOGUE} | more)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kernel", [*PRICES, *LAZY])
def test_every_price_is_its_expression(kernel):
    for T in (1, 16, 17, 1000):
        sizes = {str(symbol): ({"T": T} | SIZES)[str(symbol)] for f in features(kernel) for symbol in f.free_symbols}
        machine, values = known(names=[kernel]), [sympy.Symbol(name) for name in sizes]
        named = {symbol: sizes[str(symbol)] for f in features(kernel) for symbol in f.free_symbols}
        want = float(machine.expression(kernel).subs(named))
        assert machine.seconds(kernel, **sizes, other=3) == pytest.approx(want, rel=1e-3) and len(values) == len(named)
        assert all(0 < feature < np.inf for feature in CATALOGUE.evaluate_features(kernel, sizes))


@pytest.mark.parametrize("kernel", [*PRICES, *LAZY])
def test_more_rows_never_cost_less(kernel):
    """Of few rows those that are one tile: three take longer than four where they are two."""
    machine, few = known(names=[kernel]), CATALOGUE[kernel].few
    rows = [T for T in range(1, 200) if T > few or T & (T - 1) == 0]
    prices = [machine.seconds(kernel, T=T, **(SIZES | {"S2": T * T})) for T in rows]
    assert prices == sorted(prices) and len(rows) == 199 - (few > 1) * 4


def test_a_missing_size_and_an_unknown_kernel_are_named():
    with pytest.raises(ValueError, match=r"price of linear\.dense needs n, got T, p"):
        CATALOGUE.evaluate_features("linear.dense", {"T": 1, "p": 2})
    with pytest.raises(ValueError, match=r"linear\.sparse.*there are linear\.dense"):
        features("linear.sparse")


@pytest.mark.parametrize("kernel", sorted(OWN))
def test_a_fit_finds_what_made_the_data(kernel):
    """Exactly without noise; within a few per cent where a fifth of the measurements were disturbed."""
    rng, machine = np.random.default_rng(5), known()
    shapes = [
        SIZES
        | {"T": T, "n": n, "p": p, "nnz": n * p // 9, "blocks": n * p // 1024, "S2": T * s, "d": d, "h": h, "S": s}
        for T, n, p, s, d, h in product((4, 24, 100, 400), (200, 900), (300, 1000), (10, 80), (32, 64), (3, 12))
    ]
    rows = [(kernel, sizes, machine.seconds(kernel, **sizes)) for sizes in shapes]
    found = calibration.fit(CATALOGUE, kernel, rows)
    evaluate = partial(CATALOGUE.evaluate_features, kernel)
    assert all(abs(np.dot(found, evaluate(sizes)) / taken - 1) < 1e-6 for _, sizes, taken in rows)
    noisy = [(kernel, sizes, taken * (rng.uniform(2, 6) if rng.random() < 0.2 else 1)) for _, sizes, taken in rows]
    found = calibration.fit(CATALOGUE, kernel, noisy)
    wrong = [abs(np.dot(found, evaluate(sizes)) / taken - 1) for _, sizes, taken in rows]
    assert np.median(wrong) < 0.05 and min(found) >= 0


def test_calibration_recovers_a_machine(monkeypatch):
    """Every case runs; with a clock that follows the features, nothing is mispriced, not even new shapes."""
    truth, ran = known(), set()
    monkeypatch.setattr(calibration, "QUICK", calibration.Effort(3, 3, 256, 100))

    def measured(catalogue, cases, progress=lambda *_: None, most=0, watch=None, firsts=None):
        watch.note([[1.0, 1.0, 2.0, 3.0, 3.0]])
        for kernel, _, call in cases:
            if kernel not in ran:
                call()
            ran.add(kernel)
        progress(len(cases), len(cases))
        return [(kernel, sizes, truth.seconds(kernel, **sizes)) for kernel, sizes, _ in cases]

    monkeypatch.setattr(calibration, "measured", measured)
    monkeypatch.setattr(calibration, "timed", lambda call, *_: [call() is None or 1e-3] * 3)
    monkeypatch.setattr(calibration, "INSIDE", calibration.Effort(3, 3, 256, 100))
    inside = []

    def replayed(cases, memory, apart, seconds, progress, reads, doubtful):
        assert len(reads) == len(cases) and min(reads) > 0
        inside.append(({kernel for kernel, *_ in cases}, apart))

        def seconds(kernel, sizes):
            if kernel not in PRICES:
                return 1e-6 * len(kernel)
            return truth.seconds(kernel, **even(CATALOGUE[kernel], sizes, 1 if apart else threads()))

        rows = [(kernel, sizes, seconds(kernel, sizes)) for kernel, sizes, _ in cases]
        assert doubtful(rows) == [], "of what follows the features"
        return rows

    monkeypatch.setattr(calibration, "inside", replayed)

    def cold(call):
        return 3e-5 if call() is not None else 0.0

    monkeypatch.setattr(calibration, "cold_cache_seconds", cold)
    told = []
    found = calibration.calibrate(CATALOGUE, lambda *what: told.append(what), whole=True)
    assert ran == OWN == set(found.interval) and max(found.interval.values()) < 1e-6
    assert "the middle half of repeated timings is 100% wide" in found.busy, "and it is marked"
    assert set(found.coefficients) == set(PRICES) and found.identity == machines.identity()
    assert any(len(what) == 2 for what in told) and any("compiled dense_by_blocks" in what for what in told)
    assert [apart for _, apart in inside] == [True, False] and inside[0][0] & set(PRICES) <= RECORDED
    for way in machines.WAYS:
        rates = found.ways[way]
        assert set(rates.coefficients) == RECORDED and max(rates.interval.values()) < 1e-6
        assert all(rates.coefficients[stage][0] > 0 for stage in set(PRICES) - OWN) and rates.start == 3e-5


def wavy(sizes):
    """What a closed form leaves out: smooth in the octaves of rows and inputs, and more for one row."""
    return 0.3 * np.sin(np.log2(sizes["T"])) + 0.1 * np.log2(sizes["n"] / 500) + 0.2 * (sizes["T"] == 1)


def calls(rng, count):
    for _ in range(count):
        T, n, p = (int(2 ** rng.uniform(low, high)) for low, high in ((0, 9), (6, 11), (6, 11)))
        yield {"T": T if rng.random() > 0.3 else 1, "n": n, "p": p}


def test_a_correction_learns_what_is_left_and_says_how_well():
    rng = np.random.default_rng(3)
    seen, new = [*calls(rng, 120)], [*calls(rng, 150)]
    noisy = [wavy(sizes) + rng.normal(0, 0.03) for sizes in seen]
    place = partial(locate_call, CATALOGUE["linear.dense"])
    found = predictor.fit_correction([place(sizes) for sizes in seen], noisy, product=True)
    off = np.array([found(place(sizes)) - wavy(sizes) - rng.normal(0, 0.03) for sizes in new])
    wide = np.array([found.deviation(place(sizes)) for sizes in new])
    assert np.median(abs(off)) < 0.05 < np.median([abs(wavy(sizes)) for sizes in new])
    assert 0.75 <= np.mean(abs(off) <= wide) <= 0.97
    assert found.deviation(place({"T": 1e7, "n": 1e6, "p": 1e6})) > 2 * np.median(wide)


def test_one_row_has_a_price_of_its_own():
    machine, sizes = known(one_row={"linear.dense": [0.0, 0.0, 0.0, 7.0]}), {"n": 64, "p": 32}
    assert machine.seconds("linear.dense", T=1, **sizes) == 7
    assert machine.seconds("linear.dense", T=2, **sizes) == known().seconds("linear.dense", T=2, **sizes)
    few = known(names=["linear.q4_1"], few={"linear.q4_1": [0.0, 0.0, 0.0, 5.0, 0.0]})
    own = known(names=["linear.q4_1"])
    assert [few.seconds("linear.q4_1", T=T, **sizes) == 5 for T in (1, 2, 8, 9)] == [False, True, True, False]
    assert all(few.seconds("linear.q4_1", T=T, **sizes) == own.seconds("linear.q4_1", T=T, **sizes) for T in (1, 9))


def test_a_weight_beyond_the_cache_costs_more_by_the_byte():
    machine = known(far={"linear.dense": [1e-10, 1e-11]})

    def more(n, T):
        return machine.seconds("linear.dense", T=T, n=n, p=n) - known().seconds("linear.dense", T=T, n=n, p=n)

    assert more(20000, 1) == pytest.approx(1e-10 * 4 * 20000**2, rel=0.3)
    assert more(20000, 1) == pytest.approx(10 * more(20000, 2))
    assert more(100, 1) < 1e-10 * 4 * 100**2 / 3


def test_a_price_lies_within_its_interval_and_follows_the_correction():
    correction = Correction([1.0] * 2, 0.05, 0.2, 1.3, 0.1, [[5.0, 8.0]], [0.3])
    machine, plain = known(interval={"activation": 0.1}, corrections={"scale": correction}), known()
    near, far = {"T": 32, "p": 256}, {"T": 2**20, "p": 2**18}
    place_of = dict(zip(CATALOGUE["scale"].compiled[0], locate_call(CATALOGUE["scale"], near), strict=True))
    assert place_of == {"T": 5, "p": 8}
    assert machine.seconds("scale", **near) > 1.2 * plain.seconds("scale", **near)
    assert machine.seconds("scale", **far) == pytest.approx(plain.seconds("scale", **far))
    for kernel, sizes in (("scale", near), ("scale", far), ("activation", near), ("softmax", SIZES)):
        low, high = machine.between(kernel, **sizes)
        assert low < machine.seconds(kernel, **sizes) < high
    ratio = lambda sizes: machine.between("scale", **sizes)[1] / machine.seconds("scale", **sizes)
    assert ratio(far) > ratio(near)


def test_a_file_gives_the_same_machine(tmp_path):
    correction = Correction([1.0, 2.0], 0.05, 0.2, 1.3, 0.1, [[3.0, 8.0]], [0.1])
    dense = Correction([1.0] * 5, 0.05, 0.2, 1.3, 0.1, [[1.0] * 5], [0.1])
    corrections = {"scale": correction, "linear.blas": dense}
    ways = {"apart": Rates({"scale": [1e-9, 1e-6]}, corrections={"scale": correction})}
    machine = known(interval={"scale": 0.1}, corrections=corrections, one_row={"linear.dense": [1e-9] * 4}, ways=ways)
    machine.save(file := tmp_path / "new" / "machine.json")
    assert Machine.load(file, CATALOGUE) == machine
    assert [path.name for path in file.parent.iterdir()] == ["machine.json"]


def spoiled(text, **changes):
    return json.dumps(json.loads(text) | changes)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda text: text[:100], "not JSON"),
        (lambda text: "[]", "TypeError"),
        (lambda text: "", "not JSON"),
        (lambda text: spoiled(text, beads=3), "TypeError"),
        (lambda text: spoiled(text, versions=json.loads(text)["versions"] | {"flags": "abacus"}), "another machine"),
        (lambda text: spoiled(text, ways={"uphill": record(Rates({}))}), "no prices of uphill"),
        (lambda text: spoiled(text, ways={"apart": record(Rates({"scale": [-1, 1]}))}), "no prices of scale"),
        (lambda text: spoiled(text, start=-1), "no prices of start"),
        (lambda text: spoiled(text, ways={"apart": {}}), "KeyError"),
        (lambda text: spoiled(text, ways=[1]), "AttributeError"),
        (lambda text: spoiled(text, threads=99), "another machine"),
        (lambda text: spoiled(text, versions={}), "another machine"),
        (lambda text: spoiled(text, features=1), "another machine"),
        (lambda text: spoiled(text, corrections={"scale": {"left": [0.1]}}), "no prices of scale"),
        (lambda text: spoiled(text, corrections={"beads": {}}), "no prices of beads"),
        (lambda text: spoiled(text, corrections={"scale": {"trust": 1.0}}), "TypeError"),
        (lambda text: spoiled(text, corrections={"scale": {"scale": ["long"]}}), "no prices of scale"),
        (lambda text: spoiled(text, corrections=7), "AttributeError"),
        (lambda text: spoiled(text, far={"linear.dense": [1e-10]}), "no prices of linear.dense"),
        (lambda text: spoiled(text, one_row={"linear.dense": [-1, 1, 1, 1]}), "no prices of linear.dense"),
        (lambda text: spoiled(text, few={"linear.dense": [1e-9] * 3}), "no prices of linear.dense"),
        (lambda text: text.replace("2e-11", '"much"'), "no prices of"),
        (lambda text: text.replace("2e-11", '"2e-11"'), "no prices of"),
        (lambda text: text.replace("2e-11", "true"), "no prices of"),
        (lambda text: text.replace("2e-11", "-2e-11"), "no prices of"),
        (lambda text: text.replace("2e-11", "NaN"), "NaN is not a finite number"),
        (lambda text: text.replace("2e-11", "1e999"), "1e999 is not a finite number"),
        (lambda text: "[" * 100_000, "nested too deeply"),
        (lambda text: spoiled(text, coefficients=[[]] * 3), "AttributeError"),
        (lambda text: spoiled(text, interval={"linear.dense": -1}), "no prices of linear.dense"),
        (lambda text: spoiled(text, interval={"linear.dense": 1e300}), "no prices of linear.dense"),
        (lambda text: spoiled(text, interval={"linear.dense": "wide"}), "no prices of linear.dense"),
        (lambda text: spoiled(text, corrections={"linear.dense": {"noise": 1e-200}}), "no prices of linear.dense"),
        (
            lambda text: spoiled(text, corrections={"linear.dense": {"left": [-1e300], "places": [[]]}}),
            "no prices of linear.dense",
        ),
        (lambda text: spoiled(text, corrections={"linear.dense": {"amplitude": "full"}}), "no prices of linear.dense"),
        (lambda text: spoiled(text, busy=["load"]), "a busy machine"),
        (lambda text: spoiled(text, busy="load\n\033[2J"), "a busy machine"),
        (lambda text: spoiled(text, busy="load" * 1000), "a busy machine"),
        *((lambda text, pace=pace: spoiled(text, pace=pace), "a pace") for pace in ("1", -0.1, 2.0, True, None)),
        (lambda text: text.replace("2e-11,", ""), "no prices of"),
    ],
)
def test_foreign_and_damaged_files_are_measured_again(cache, monkeypatch, caplog, spoil, said):
    known().save(file := cache / "machine.json")
    good = file.read_text()
    file.write_text(spoil(good))
    with pytest.raises(NotThisMachine, match=said):
        Machine.load(file, CATALOGUE)
    monkeypatch.setattr(local, "calibrate", lambda catalogue, progress: known())
    assert this_machine() == known()
    [file] = (cache / "machines").iterdir()
    file.write_text(spoil(good))
    assert this_machine() == known()
    [told] = caplog.messages
    assert said in told and "measured again" in told and "\n" not in told and Machine.load(file, CATALOGUE) == known()


def price(kernel, machine=None, **sizes):
    """What a kernel takes, measured if need be."""
    machine = machine or this_machine()
    return learning(lambda: machine.seconds(kernel, **sizes))


def teaching(monkeypatch, **rates):
    """What is asked of `calibrate_more`, which finds these."""
    asked = []

    def more(catalogue, names, way, progress):
        asked.append(([*names], way))
        return known(**rates)

    monkeypatch.setattr(local, "calibrate_more", more)
    return asked


def test_what_a_calibration_lacks_is_measured_when_somebody_asks_and_kept_beside_it(cache, monkeypatch):
    """A kernel that was declared since; nothing that was measured before changes, and nothing is measured twice."""
    sizes, asked = SIZES | {"T": 16}, teaching(monkeypatch)
    before = replace(known(), coefficients={name: rates(name) for name in PRICES if name != "pool"})
    before.save(machines.machine_file())
    with pytest.raises(UnknownPrice, match="pool"):
        this_machine().seconds("pool", **sizes)
    assert not asked, "looking up measures nothing"
    for _ in range(2):
        assert price("pool", **sizes) == known().seconds("pool", **sizes)
    assert this_machine() == before and asked == [(["pool"], "called")]
    [beside] = set(machines.machine_file().parent.iterdir()) - {machines.machine_file()}
    beside.write_text(spoiled(beside.read_text(), coefficients={}))
    assert price("pool", **sizes) > 0 and asked == 2 * [(["pool"], "called")]


def test_what_is_not_common_is_measured_alone(cache, monkeypatch):
    """Each once, and only for the machine at hand."""
    asked, more = teaching(monkeypatch, names=LAZY), known(names=LAZY)
    known().save(machines.machine_file())
    machine, sizes, [kernel, other, *_] = this_machine(), SIZES | {"T": 16}, LAZY
    assert {"linear.int4", "linear.q4_1", "rotate", "link"} < {*LAZY}
    assert machine.seconds("linear.dense", **sizes) > 0 and not asked
    for each in (machine, this_machine()):
        assert price(kernel, each, **sizes) == more.seconds(kernel, **sizes)
        assert each.between(kernel, **sizes) == more.between(kernel, **sizes)
    assert asked == [([kernel], "called")] and price(other, machine, **sizes) > 0
    assert asked == [([each], "called") for each in (kernel, other)]
    with pytest.raises(KeyError, match=kernel):
        price(kernel, replace(machine, versions={}), **sizes)


def test_a_way_of_running_is_measured_when_something_runs_so(cache, monkeypatch):
    """With all that every search meets, once; what is never recorded is asked of calls, and measures nothing."""
    way = Rates({name: rates(name) for name in RECORDED}, start=2e-5)
    asked = teaching(monkeypatch, ways={"together": way})
    replace(known(), ways={each: Rates({}) for each in machines.WAYS}).save(machines.machine_file())
    machine = this_machine()
    assert machine.holding("scores", "together") == Rates({}) and not asked
    opened, again = (learning(partial(each.opened, "together")) for each in (machine, this_machine()))
    assert opened == machine.holding("pool", "together") == again == way
    assert asked == [([name for name in PRICES if name in RECORDED], "together")] and machine.opened("together").start


def test_a_calibration_begins_with_what_is_never_recorded(monkeypatch):
    monkeypatch.setattr(calibration, "QUICK", calibration.Effort(3, 3, 256, 100, seconds=0))
    found = calibration.calibrate(CATALOGUE)
    assert set(found.coefficients) == set(PRICES) - RECORDED and not found.wrong
    assert found.ways == {way: Rates({}) for way in machines.WAYS}


def test_what_nobody_declares_is_left_out(cache, monkeypatch):
    known().save(file := cache / "machine.json")
    fewer = replace(CATALOGUE, prices={name: each for name, each in CATALOGUE.prices.items() if name != "pool"})
    assert Machine.load(file, fewer) == known(names=fewer.common) and "pool" not in fewer


@pytest.mark.parametrize("way, found", (("called", {"pool", "link"}), ("together", {"pool"}), ("apart", {"pool"})))
def test_kernels_are_calibrated_alone(monkeypatch, way, found):
    """Those that are asked for; inside runs where they are recorded."""
    monkeypatch.setattr(calibration, "INSIDE", calibration.Effort(3, 3, 256, 100, seconds=0))
    monkeypatch.setattr(calibration, "MORE", 0)
    machine = calibration.calibrate_more(CATALOGUE, ["pool", "link"], way)
    assert set(machine.rates(way).coefficients) == found and not machine.wrong and not machine.rates(way).wrong


def test_a_calibration_is_kept(cache, monkeypatch):
    runs = []
    monkeypatch.setattr(local, "calibrate", lambda catalogue, progress: runs.append(1) or known())
    assert this_machine() == this_machine() == known() and len(runs) == 1


def test_a_calibration_taken_while_busy_is_used_marked_and_taken_anew_when_quiet(cache, monkeypatch, caplog):
    runs, now, answers = [], ["the load was 8"], iter([known(busy="the load was 8"), known()])
    monkeypatch.setattr(local, "calibrate", lambda catalogue, progress: runs.append(1) or next(answers))
    looked = []
    monkeypatch.setattr(local, "probe", lambda: looked.append(1) or now[0])
    local.find_others.cache_clear()
    assert this_machine() == this_machine() == known(busy="the load was 8") and len(runs) == 1
    assert json.loads(machines.machine_file().read_text())["busy"] == "the load was 8"
    assert len(looked) == 1, "once a process"
    now[0] = ""
    local.find_others.cache_clear()  # another process
    assert this_machine() == this_machine() == known() and len(runs) == 2
    assert Machine.load(machines.machine_file(), CATALOGUE) == known()
    [anew] = caplog.messages
    local.find_others.cache_clear()
    assert "measured again" in anew


def test_marks_of_every_table_of_prices_are_kept_and_none_is_said(cache, monkeypatch, caplog):
    """Prices come from one file or from several; a command says once what their marks mean for its figures."""
    seen = {"linear": "the load was 8", "pool": "the load was 9", "link": ""}
    monkeypatch.setattr(
        local, "load_or_measure", lambda file, prices, measure, progress, names, way: known(busy=seen[names[0]])
    )
    prices = Catalogue({name: replace(CATALOGUE[name], common=False) for name in ("pool", "link")})
    bare = replace(known(names=()), catalogue=prices, busy="the load was 7")
    for name in ("pool", "link", "pool"):
        learning(lambda name=name: bare.holding(name))
    assert bare.marks == ["the load was 7", "the load was 9"] and not caplog.messages


def test_a_machine_is_what_it_can_do_and_not_its_name(cache, monkeypatch):
    known().save(file := cache / "machine.json")
    monkeypatch.setattr(machines, "cpu", lambda: "the same under another name")
    assert Machine.load(file, CATALOGUE).name != machines.cpu()
    monkeypatch.setattr(machines, "caches", lambda: [1 << 15, 1 << 21])
    with pytest.raises(NotThisMachine, match="another machine"):
        Machine.load(file, CATALOGUE)


def test_a_change_of_kernels_is_another_machine(cache, monkeypatch):
    known().save(file := cache / "machine.json")
    monkeypatch.setattr("formats.kernels.digest", lambda: "changed")
    with pytest.raises(NotThisMachine, match="other versions"):
        Machine.load(file, CATALOGUE)


def test_a_slow_machine_measures_fewer_rounds(monkeypatch):
    """The first round is whole, the rest end with the time; progress still reaches its end."""
    now, told = [0.0], []
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])

    def slow():
        now[0] += 1.0

    cases = [("scale", {"T": T, "p": 1}, slow) for T in range(1, 6)]
    rows = calibration.measured(CATALOGUE, cases, lambda *what: told.append(what), most=3.0)
    assert [taken for *_, taken in rows] == [1.0] * 5 and told[-1] == (15, 15)
    assert [done for done, _ in told[:-1]] == [1, 2, 3, 4, 5]
