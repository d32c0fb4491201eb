"""What is asked of a tree in its own environment (see trees.py): a word and its arguments in, a line of JSON out.

    ENVIRONMENT/bin/python -P benchmarks/lib/inside.py WORD JSON

Nothing of this folder is imported here: what answers is the tree, whichever it is."""

import hashlib
import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path

TABLE = Path(__file__).parents[2] / "formats" / "core" / "moved.json"
MOVED = {new: [old] for old, new in json.loads(TABLE.read_text()).items()}  # names that modules had before 0.21
for now, before in {
    "formats.machine.model": "formats.machine",
    "formats.machine.calibration": "formats.calibration",
    "rewrites.explain.derivations.schedules": "rewrites.schedules",
    "rewrites.explain.derivations.stages": "rewrites.stages",
}.items():  # and before 0.8
    MOVED.setdefault(now, []).append(before)


def module(name):
    """A module of this tree, by the first of its names that the tree has; ModuleNotFoundError where it has none."""
    names = [name, *MOVED.get(name, ())]
    for each in names:
        try:
            return import_module(each)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"this tree has none of {', '.join(names)}")


def catalogue():
    """What a calibration is handed, in a tree since 0.13. Before, kernels of programs entered a table of prices when
    they were imported."""
    try:
        return [module("opmatrix.runtime.pricing").catalogue()]
    except ModuleNotFoundError:
        module("opmatrix.runtime.program")
    return []


def origins():
    """Where the three packages come from."""
    return [str(Path(find_spec(name).origin).parent) for name in ("formats", "opmatrix", "rewrites")]


def priced():
    """The file that this tree looks for its calibration in, and whether it can use what is there. One that was only
    begun is of no use: what it lacks each tree would measure by itself."""
    file = module("formats.machine.model").machine_file()
    return {"file": str(file), "wrong": unusable(file) or begun(file)}


def begun(file):
    """What a calibration lacks of all that its tree prices; nothing where it is full."""
    prices = import_module("formats.machine.prices")
    names = {*catalogue()[0].prices} if catalogue() else {*prices.PRICES, *getattr(prices, "LATER", ())}
    lacking = names - json.loads(Path(file).read_text())["coefficients"].keys()
    return f"{file}: it lacks prices of {', '.join(sorted(lacking))}" if lacking else None


def unusable(file):
    """Why this tree cannot use a calibration; nothing where it can."""
    model = module("formats.machine.model")
    try:
        model.Machine.load(file, *catalogue())
    except (model.NotThisMachine, OSError) as error:
        return " ".join(str(error).split())


def calibrate():
    """Takes a calibration, full where this tree knows such, so that no side measures a price by itself, and says where
    it is kept. It is not marked as taken while busy, or one side would take it anew."""
    model, measure = module("formats.machine.model"), module("formats.machine.calibration").calibrate
    most = next((word for word in ("full", "whole") if word in signature(measure).parameters), None)
    machine = measure(*catalogue(), **{most: True}) if most else model.this_machine()
    (replace(machine, busy="") if hasattr(machine, "busy") else machine).save(model.machine_file())
    return str(model.machine_file())


def adopt(file):
    """Takes a calibration of other kernels for one of its own, as prices decide which programs are found. Why it
    cannot, where the features that are priced, the machine or the packages are others."""
    from formats.kernels import digest

    given = json.loads(Path(file).read_text())
    given["versions"]["kernels"] = digest()
    given.pop("busy", None)  # or one side would take it anew
    (own := module("formats.machine.model").machine_file()).parent.mkdir(parents=True, exist_ok=True)
    own.write_text(json.dumps(given))
    if wrong := unusable(own):
        own.unlink()
    return wrong


def schedule(model, target):
    """Saves a schedule by hand, verified: one that every tree can make."""
    stages = module("rewrites.explain.derivations.stages")
    made = module("rewrites.explain.derivations.schedules").schedule(model, tokens=128)
    made = made | stages.join_qkv | stages.prune(0.5, "intermediate") | stages.tile(64)
    made.verify()
    made.program.save(target)


def shown(directories):
    """Of each saved program its steps as text, and a digest of its constants' names, types, shapes and numbers."""
    Program = module("opmatrix.runtime.program").Program
    return [described(Program.load(directory)) for directory in directories]


def described(program):
    numbers = hashlib.blake2b(digest_size=12)
    for name, array in sorted(program.arrays()):
        numbers.update(f"{name} {array.dtype} {array.shape}".encode())
        numbers.update(array.tobytes())
    return {"steps": [step.show(program.constants) for step in program.steps], "numbers": numbers.hexdigest()}


WORDS = {each.__name__: each for each in (origins, priced, calibrate, adopt, schedule, shown)}

if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    answer = WORDS[sys.argv[1]](**json.loads(sys.argv[2]))
    replies.write(json.dumps({"answer": answer, "origins": origins()}) + "\n")
