"""benchmarks/paired.py: what it tells from noise, what it says of two trees, that a planted change is seen."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest
import searched
import standin
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import engines, inside, pairing, peers, trees, workloads
from lib.paired_rows import Row, told
from lib.peers import Absent

import paired

from formats.core.errors import InputError
from formats.machine.model import Machine, here, machine_file
from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.runtime.pricing import catalogue

# A clock that goes by the work alone, and results times a factor: whatever the machine does, what is planted is seen.
PLANTED = """
import time
CLOCK = time.__dict__.setdefault("CLOCK", [0.0])
time.perf_counter = lambda: CLOCK[0]
def run(self, batch, run=Program.run):
    CLOCK[0] += {call}
    return run(self, batch) * {factor}
Program.run = run
"""


def series(ratio, seed, rounds=3, starts=10, noise=0.015, lies=0.01):
    """Rounds of pairs of processes: both sides of a round are disturbed alike, each by a per cent or two alone, and
    each process is faster or slower as long as it lives."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(starts):
        first, second = 1 + lies * rng.normal(size=2)
        busy = 1 + 5 * rng.random(rounds) ** 4
        own = np.exp(noise * rng.normal(size=(2, rounds)))
        made.append([*zip(first * busy * own[0], ratio * second * busy * own[1], strict=True)])
    return made


@pytest.mark.parametrize("ratio, said", [(1.05, "slower"), (0.95, "faster"), (1.0, "same")])
def test_five_per_cent_are_told_from_noise(ratio, said):
    found = [pairing.verdict(*pairing.interval(series(ratio, seed))[1:]) for seed in range(20)]
    assert found.count(said) >= 18 and set(found) <= {said, "same"}, "noise alone is never called a change"


def test_a_busy_round_changes_no_interval():
    quiet = series(1.03, 0)
    busy = [[(7 * a, 7 * b) if i == 1 else (a, b) for i, (a, b) in enumerate(taken)] for taken in quiet]
    assert pairing.interval(busy) == pytest.approx(pairing.interval(quiet))


def test_processes_that_lie_differently_widen_an_interval():
    """Rounds of one start agree, starts do not: ten rounds of two starts are no twenty witnesses."""
    apart = [[(1.0, 1.06)] * 10, [(1.0, 0.97)] * 10]
    _, low, high = pairing.interval(apart)
    assert (low, high) == pytest.approx((0.97, 1.06)) and pairing.verdict(low, high) == "same"
    assert pairing.interval([[(2.0, 2.1)], [(1.0, 1.05)] * 3]) == pytest.approx((1.05,) * 3)


@pytest.mark.parametrize(
    "low, high, said",
    [(1.021, 1.5, "slower"), (0.5, 0.979, "faster"), (1.019, 1.05, "same"), (0.95, 0.981, "same"), (0.9, 1.1, "wide")],
)
def test_an_interval_reaches_into_one_or_does_not(low, high, said):
    assert pairing.verdict(low, high) == said


def test_sides_take_turns():
    asked = []
    side = lambda name, seconds: SimpleNamespace(ask=lambda word, **given: asked.append((name, word)) or seconds)
    pair = side("a", [1.0, 3.0, 8.0]), side("b", [2.0])
    assert [*pairing.rounds(pair, 2, 1, seconds=0.0)] == [(3.0, 2.0)] * 2
    assert "".join(name for name, _ in asked) == "baababba" and {word for _, word in asked} == {"turn"}


def test_what_others_took(monkeypatch):
    counts = iter([(100, 5, 200, 40), (180, 15, 300, 70)])
    monkeypatch.setattr(pairing.Others, "now", lambda self: next(counts, None))
    assert (others := pairing.Others([])).shares() == (0.5, 0.1)
    assert others.shares() is None, "a system that does not tell"


def test_how_far_results_are_apart():
    first = np.float32([[1, -4], [2, 0]])
    assert pairing.apart(first, first) == 0 and pairing.apart(first, first + np.float32(1)) == 0.25
    assert pairing.apart(first, first[:1]) == np.inf


def row(**given):
    return Row("minilm", "exact", "1x16", **given)


@pytest.mark.parametrize(
    "given, said",
    [
        (dict(taken=[[(1.0, 1.0)] * 3], bits="equal", saved="equal"), ""),
        (dict(taken=[[(1.0, 1.0)] * 3], bits="equal", saved="refused: version is 3"), ""),
        (dict(taken=[[(1.0, 1.1)] * 3], bits="equal", saved="equal"), "slower"),
        (dict(taken=[[(1.0, 0.9)] * 3], bits="equal", saved="equal"), "faster"),
        (dict(taken=[[(1.0, 1.0)] * 3], bits="1.2e-07", saved="equal"), "bits: 1.2e-07"),
        (dict(taken=[[(1.0, 1.0)] * 3], bits="equal", saved="fails: KeyError: 'x'"), "saved: fails: KeyError: 'x'"),
        (dict(taken=[[(1.0, 1.0)] * 3], bits="equal", saved="3.0e-08"), "saved: 3.0e-08"),
        (dict(bits="no result: ended with status -11"), "absent, bits: no result: ended with status -11"),
    ],
)
def test_what_counts_as_a_change(given, said):
    words, changed = told([row(**given)], "old", "new")
    assert changed == bool(said) and (f"NOT THE SAME  minilm exact 1x16: {said}\n" in words + "\n") == changed
    assert len(row(**given).csv()) == len(paired.COLUMNS)


def test_noise_is_said():
    words, _ = told([row(taken=[[(1.0, 0.8)], [(1.0, 1.2)]], bits="equal", shares=(0.3, 0.1))], "old", "new")
    assert "others took over 5 % of the processors' time in 1 of 1 rows" in words
    assert "wide, so that little is shown: minilm exact 1x16" in words and "40 %" in words
    assert "in 0 of 1 rows" in words


# ---- trees


class Told:
    """A tree that answers as it was told to, and remembers what it was asked."""

    def __init__(self, name, **answers):
        self.name, self.answers, self.asked = name, answers, []

    def ask(self, word, **given):
        self.asked.append((word, *given.values()))
        return self.answers[word]


def test_two_trees_search_with_one_calibration():
    there, lost = (lambda name: {"file": f"/{name}.json", "wrong": None}), {"file": "/b.json", "wrong": "no such file"}
    say = [].append
    assert trees.priced_alike(Told("old", priced=there("a")), Told("new", priced=there("a")), say) == "one calibration"
    for old, new, taker in ((there("a"), there("b"), 1), (there("a"), lost, 1), (lost, there("a"), 0)):
        both = Told("old", priced=old, adopt=None), Told("new", priced=new, adopt=None)
        assert trees.priced_alike(*both, say).startswith("one calibration, taken with")
        assert both[taker].asked[1:] == [("adopt", "/a.json")] and len(both[1 - taker].asked) == 1
    both = Told("old", priced=lost, calibrate="/c"), Told("new", priced=lost, adopt="other features", calibrate="/d")
    assert trees.priced_alike(*both, say).startswith("DIFFERENT")
    assert both[1].asked[1:] == [("adopt", "/c"), ("calibrate",)]


def test_a_calibration_is_taken_where_features_and_packages_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "cache"))
    own = here()
    prices = standin.machine().coefficients
    made = lambda **other: Machine(prices, **own | {"versions": own["versions"] | {"kernels": "others"} | other})
    made().save(file := tmp_path / "given.json")
    assert inside.priced()["wrong"] and inside.adopt(str(file)) is None
    assert Machine.load(machine_file(), catalogue()).coefficients == prices and inside.priced()["wrong"] is None
    given = dict(prices)
    del given["linear.dense"]
    Machine(given, **own).save(machine_file())
    assert inside.priced()["wrong"] == f"{machine_file()}: it lacks prices of linear.dense"
    assert inside.unusable(machine_file()) is None  # each side would measure what it lacks
    machine_file().unlink()
    made(numpy="another").save(file)
    assert "other versions" in inside.adopt(str(file)) and not machine_file().exists()


def test_a_batch_is_where_a_commit_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opmatrix.algebra.batch.batch", None)
    monkeypatch.setattr("opmatrix.algebra.positions.patterns.Batch", Batch, raising=False)
    assert engines.Ragged(None).ready([[1, 2], [3]]).rows == 3


def test_a_workload_asks_the_model_how_long_texts_may_be(tmp_path):
    """Families call it differently."""
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, max_position_embeddings=40))
    named = SimpleNamespace(positions=checkpoint.positions, config={"n_positions": 40}, tokenizer=checkpoint.tokenizer)
    assert workloads.made("1x40", named, None, 0).shape == [1, 40]
    with pytest.raises(InputError, match="of 1 to 40 tokens"):
        workloads.made("1x41", named, None, 0)


def test_another_point_of_the_same_front_is_taken(tmp_path, capsys):
    (tmp_path / "front" / "0").mkdir(parents=True)
    shown = lambda steps, numbers="1": {"steps": steps, "numbers": numbers}
    old = Told("old", shown=[shown(["a", "b"])])
    place = lambda *answers: paired.alike("int8", [Path("first"), tmp_path], (old, Told("new", shown=[*answers])))
    assert place(shown(["a", "b"]), shown(["c"])) == tmp_path
    assert place(shown(["c"]), shown(["a", "b"])) == tmp_path / "front" / "0"
    assert "another point of the same front" in capsys.readouterr().err
    assert place(shown(["a", "c"]), shown(["d"])) is None and "-b\n+c" in capsys.readouterr().out
    assert place(shown(["a", "b"], "2"), shown(["d"])) is None
    assert "the same steps, other numbers" in capsys.readouterr().out


def test_other_programs_are_also_run_as_the_first_found_them(monkeypatch):
    tree = lambda name: SimpleNamespace(name=name, cache=Path(name), find=lambda program, model: Path(name) / program)
    monkeypatch.setattr(
        paired, "served", lambda name, checkpoint, works, found, trees, given: [(name, *map(str, found))]
    )
    trees, checkpoint = [tree("a"), tree("b")], SimpleNamespace(name="m", directory="m")
    for same, rows in (
        (Path("b/front/1"), [("int8", "a/int8", "b/front/1")]),
        (None, [("int8", "a/int8", "b/int8"), ("int8 of a", "a/int8", "a/int8")]),
    ):
        monkeypatch.setattr(paired, "alike", lambda *given, same=same: same)
        assert paired.compared("int8", checkpoint, [], trees, None) == rows


def test_a_saved_program_may_be_refused_but_not_fail(monkeypatch):
    def refuses(job, tree):
        raise Absent(tree)

    monkeypatch.setattr(paired, "opened", refuses)
    assert paired.resaved(None, "InputError: a: version is 3", None) == "refused: a: version is 3"
    assert paired.resaved(None, "KeyError: 'version'", None) == "fails: KeyError: 'version'"


@pytest.mark.parametrize("ratios, said", [([1.0], "same"), ([1.2, 1.0], "wide"), ([1.2, 1.2], "slower")])
def test_what_lies_outside_is_raced_again(ratios, said, tmp_path, monkeypatch):
    """A disturbed race is not held against the second tree; what it lost it loses again."""
    left = iter(ratios)
    monkeypatch.setattr(paired, "raced", lambda row, *_: row.taken.extend([[(1.0, next(left))] * 10] * 5))
    given = SimpleNamespace(rounds=10, threads=1, startup=False)
    tree = SimpleNamespace(place=tmp_path / "t", python="", environment={})
    work, saved = workloads.Workload("1x3", [[1, 2, 3]], [[0]]), tmp_path / "saved"
    saved.mkdir()
    [row] = paired.served("exact", SimpleNamespace(name="m", directory="m"), [work], [saved] * 2, [tree] * 2, given)
    assert len(row.taken) == 5 * len(ratios) and row.verdict == said


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    (script := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 3600\n")
    script.chmod(0o700)
    monkeypatch.setattr(peers, "SILENT", 0.1)
    with pytest.raises(Absent, match="ended with status -9"):
        peers.Process(peers.Job("opmatrix", "any", "m", python=str(script)))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with this tree as its commit, a small BERT, and a program of it."""
    place = tmp_path_factory.mktemp("paired")
    for name in trees.PACKAGES:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "opmatrix" / "runtime" / "program.py").open("a").write(PLANTED.format(call=1e-3, factor=1.0))
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "as it was"]):
        subprocess.run(["git", "-C", place, *words], check=True)
    checkpoint = Checkpoint.open(
        checkpoints.write(place.with_name(f"{place.name}-small"), num_hidden_layers=1, max_position_embeddings=160)
    )
    structure = searched.structure(checkpoint.operator(), batch=Batch([[3, 4, 5]]))
    structure.program({})[0].save(place.with_name(f"{place.name}-program"))
    return place


@pytest.fixture
def run(repository, monkeypatch, tmp_path):
    """The benchmark over this repository, whose searches are done: (exit status, rows)."""
    monkeypatch.setattr(trees, "ROOT", repository)
    monkeypatch.setattr(paired, "pinned", lambda threads: None)
    monkeypatch.setattr(paired, "priced_alike", lambda old, new, say: "one calibration")
    program = repository.with_name(f"{repository.name}-program")
    monkeypatch.setattr(trees.Tree, "find", lambda self, name, model: program)

    def run(*words):
        given = "--workloads 2x6 --only exact --rounds 3 --threads 1".split()
        places = ["--models", f"{repository}-small", "--csv", str(tmp_path / "out.csv")]
        monkeypatch.setattr(sys, "argv", ["paired.py", *given, *places, *words])
        status = paired.main()
        with (tmp_path / "out.csv").open(newline="") as file:
            return status, [*csv.DictReader(file)]

    return run


@pytest.mark.deep
def test_a_planted_change_is_seen(repository, run, capsys):
    file = repository / "opmatrix" / "runtime" / "program.py"
    before = file.read_text()
    try:
        file.write_text(before + PLANTED.format(call=5e-5, factor=1.000001))
        status, [row] = run("HEAD")
    finally:
        file.write_text(before)
    assert status == 1 and row["verdict"] == "slower" and float(row["ratio"]) == pytest.approx(1.05)
    assert 1e-7 < float(row["bits"]) < 1e-5 and row["saved"] == row["bits"]
    assert "and 1 files changed since" in (said := capsys.readouterr().out) and "NOT THE SAME" in said


def test_a_commit_is_the_same_as_itself(run, capsys):
    status, [row] = run("HEAD", "HEAD")
    assert status == 0 and float(row["ratio"]) == 1
    assert (row["verdict"], row["bits"], row["saved"]) == ("same", "equal", "equal")
    assert (
        "no change: equal bits and narrow intervals that reach into 1.00 ± 0.02 in 1 of 1 rows"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (["no-such"], "no-such: no commit of"),
        (["--", "--output=x"], "--output=x: no commit of"),
        (["HEAD", "--only", "fp8"], "--only fp8: exact, bf16"),
        (["HEAD", "--rounds", "2"], "--rounds 2: 3 to"),
        (["HEAD", "--models", ","], "--models: it names nothing"),
        (["HEAD", "--patience", "-1"], "--patience -1.0: 0 to"),
        (["HEAD", "--csv", "nowhere/out.csv"], "--csv nowhere/out.csv: it is to be"),
        (["HEAD", "--keep", __file__], f"--keep {__file__}: it is no directory"),
    ],
)
def test_bad_options_are_refused(words, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paired.py", *words])
    with pytest.raises(InputError) as error:
        paired.main()
    assert str(error.value).startswith(said)


def test_a_workload_is_made_of_real_tokens(run):
    with pytest.raises(InputError, match="--workloads file: SENTENCESxTOKENS or texts"):
        run("HEAD", "--workloads", "file")
