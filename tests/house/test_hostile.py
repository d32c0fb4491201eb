"""A thousand mutated files of every kind that is read: no code run, no crash, no hang, nothing accepted with other
numbers."""

import json
import os

import numpy as np
import pytest
from children import ROOT
from hostile import BAD, GOOD, Watch, judged, table
from mutations import CODE, RAW, Mutator

FILES, SEED = 1000, 12
DOCUMENT = {"a": [1, 2.5, "x", {"b": None}], "term": '[["value",0],["heads",[],[2]]]'}


@pytest.fixture(scope="module")
def outcomes():
    return [*judged(SEED, 0, FILES)]


@pytest.mark.deep
def test_every_file_is_refused_in_words_or_safe(outcomes):
    assert len(outcomes) == FILES
    assert not [each for each in outcomes if each.outcome in BAD]


@pytest.mark.deep
def test_mutations_are_of_every_kind_and_most_are_damage(outcomes):
    rows = table(outcomes)
    assert len(rows) > 20 and all(files >= FILES // len(rows) - 1 for _, files, *_ in rows)
    assert rows[-1][2] > FILES / 2, "mutations that nobody refuses try nothing"
    assert sum(rows[-1][2:]) == FILES and {each.outcome for each in outcomes} == {*GOOD}


# ---- what would be seen, is seen


def test_mutations_are_the_same_of_the_same_seed(tmp_path):
    made = [
        [Mutator(np.random.default_rng([seed, k]), tmp_path).document(DOCUMENT) for k in range(300)]
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    said = b"\n".join(made[0])
    assert str(tmp_path).encode() in said and b"[[[[[[[" in said and b"CANARY" not in said and b"@raw" not in said
    assert all(any(raw.encode() in text for text in made[0] + made[2]) for raw in ("NaN", "1e999", RAW[0]))


FAULTS = {  # what a reader might do, the outcome, and words of it
    "time.sleep(999)": ("hang", ""),
    "os.abort()": ("crash", "exit -6"),
    "bytearray(1 << 36)": ("memory", ""),
    "1 / 0": ("error", "ZeroDivision"),
    "float('x')": ("error", "ValueError"),
    "eval('1')": ("code", "compile"),
    "os.system('true')": ("code", "os.system"),
    "subprocess.run(['true'])": ("code", "subprocess"),
    "open(self.room.parent / 'canary', 'w')": ("code", "open"),
    "self.refused('two\\nlines')": ("error", "no line that names"),
    "self.wanted": ("same", ""),
}
PLANT = """
import os, subprocess, sys, time, encodings.idna
from importlib.machinery import PathFinder
FAULTS, DONE = [lambda self: {}], []
def read(self):
    if not hasattr(self, "content"): return "good"          # before anything was spoilt
    DONE.append(None)
    return FAULTS[int(sys.argv[2]) + len(DONE) - 1](self)
class Finder:
    def find_spec(name, path, target=None):
        if name != "hostile_kinds": return None
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def planted(module):
            run(module)
            module.Lines.read, module.Lines.outcome = read, outcome
            module.KINDS[:] = [module.Lines]
        outcome = lambda self: found if isinstance(found := self.read(), tuple) else ("same", "")
        spec.loader.exec_module = planted
        return spec
sys.meta_path.insert(0, Finder)
"""


def test_every_fault_of_a_reader_is_seen(monkeypatch, tmp_path):
    """A file after another is read by a reader with another fault; those after a crash and a hang are read all the
    same."""
    (tmp_path / "sitecustomize.py").write_text(PLANT.format(", lambda self: ".join(FAULTS)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    found = [*judged(3, 0, len(FAULTS), silent=10)]
    assert [each.at for each in found] == [*range(len(FAULTS))]
    assert [each.outcome for each in found] == [outcome for outcome, _ in FAULTS.values()]
    assert all(words in each.said for each, (_, words) in zip(found, FAULTS.values(), strict=True))


def test_what_no_file_may_cause_is_refused(tmp_path):
    watch = Watch(tmp_path, tmp_path / "canary")
    for code in CODE[:3]:
        watch.on = True
        try:
            with pytest.raises(PermissionError, match="refused: "):
                eval(code.replace("CANARY", str(tmp_path / "canary")))
        finally:
            watch.on = False
    assert len(watch.caught) == 3 and not any(tmp_path.iterdir())


@pytest.mark.deep
def test_a_row_for_each_kind(outcomes):
    assert json.dumps(table(outcomes[:2])) and table(outcomes[:2])[-1][:2] == ("all", 2)
