"""Trees of this repository, each in an environment of its own: a copy of its files, a virtual environment that holds
the copy, a cache, and the programs that it finds. What runs there is inside.py, serve.py and the tree's command line.

Third-party packages are those of this interpreter, so they are alike; isolated trees are installed by pip, with what
each asks for."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from functools import cached_property
from pathlib import Path

from lib.engines import ROWS, SEARCH

from formats.core.errors import InputError
from formats.disk.cache import cache_directory
from formats.host.threads import command_line_environment

ROOT, LIB = Path(__file__).parents[2], Path(__file__).parent
PACKAGES = "formats", "opmatrix", "rewrites"
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later
FILES = *PACKAGES, "pyproject.toml", "README.md", "LICENSE"
PARTS = "files", "env", "cache", "programs"  # of the directory of a tree
SEEDS = "kernels", "machines", "errors"  # of the user's cache, what a new one begins with
SCHEDULE = "schedule"
PROGRAMS = {"exact": SEARCH["float32"], "bf16": SEARCH["bf16"], "int8": SEARCH["int8"], "default": (), SCHEDULE: None}


class Fault(RuntimeError):
    """What a tree could not do, in its own words."""


class Tree:
    """A tree: `commit`, or the files as they are where that is None, in a directory of `room` that holds all of it."""

    def __init__(self, commit, room, threads, isolated=False):
        self.commit, self.isolated = commit, isolated
        self.name = f"{commit:.7}" if commit else "here"
        self.place = Path(room).resolve() / f"{commit or fingerprint():.16}-{threads}{'-isolated' * isolated}"
        self.files, self.env, self.cache, self.programs = (self.place / part for part in PARTS)
        self.python = python(self.env)
        self.environment = command_line_environment() | {
            "OPMATRIX_CACHE": str(self.cache),
            "PYTHONPATH": "",
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": str(threads),
            "NUMBA_NUM_THREADS": str(threads),
        }

    def made(self):
        """Itself, with what is not there yet: files, environment, a cache that begins with what the user's has."""
        for part, make in zip(PARTS, (self.copied, self.installed, self.seeded, Path.mkdir), strict=True):
            if (self.place / part).exists():
                continue
            shutil.rmtree(fresh := self.place / f".{part}", ignore_errors=True)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            make(fresh)
            fresh.rename(self.place / part)
        return self

    def copied(self, target):
        target.mkdir()
        if not self.commit:
            for name in listed():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target / name)
            return
        there = {*git("ls-tree", "--name-only", self.commit).decode().split("\n")}
        packed = git("archive", "--format=tar", self.commit, "--", *(name for name in FILES if name in there))
        with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
            opened.extractall(target, **SAFELY)

    def installed(self, target):
        """An environment that finds the files, and the packages of this interpreter; or for which pip installed all."""
        venv.create(target, with_pip=self.isolated, symlinks=os.name != "nt")
        if self.isolated:
            return told(self, ["-m", "pip", "install", "--quiet", str(self.files)], python(target))
        others = [path for path in dict.fromkeys(sys.path) if Path(path).name in ("site-packages", "dist-packages")]
        own = sysconfig.get_path("purelib", vars={"base": str(target), "platbase": str(target)})
        (Path(own) / "tree.pth").write_text("".join(f"{path}\n" for path in [self.files, *others]))

    def seeded(self, target):
        target.mkdir(mode=0o700)
        for name in SEEDS:
            if (known := cache_directory() / name).is_dir():
                shutil.copytree(known, target / name)

    def ask(self, word, /, **arguments):
        """What inside.py answers in this tree's environment. Raises Fault where it fails, or another tree answers."""
        said = json.loads(told(self, [str(LIB / "inside.py"), word, json.dumps(arguments)]).splitlines()[-1])
        self.checked(said["origins"])
        return said["answer"]

    def checked(self, origins):
        """Raises Fault for packages that are not this tree's."""
        for origin in origins:
            if not Path(origin).resolve().is_relative_to(self.place.resolve()):
                raise Fault(f"{self.name}: {origin} was imported, which is not in {self.place}")

    @cached_property
    def rows(self):
        """How its `optimize` is asked for a row a token: before 0.7 it knew nothing else."""
        return ROWS if ROWS[0] in told(self, ["-m", "rewrites.cli", "optimize", "--help"]) else ()

    def find(self, name, model):
        """The directory of the program of that name for a checkpoint's directory, found in this tree if need be."""
        target, fresh = (self.programs / f"{before}{Path(model).name}-{name}" for before in ("", "."))
        if not target.exists():
            shutil.rmtree(fresh, ignore_errors=True)
            if name == SCHEDULE:
                self.ask("schedule", model=model, target=str(fresh))
            else:
                told(self, ["-m", "rewrites.cli", "optimize", model, *PROGRAMS[name], *self.rows, "--out", str(fresh)])
            fresh.rename(target)
        return target


def python(env):
    return str(env / ("Scripts" if os.name == "nt" else "bin") / "python")


def listed():
    """The files of the tree as it is, without what git ignores."""
    names = git("ls-files", "-zco", "--exclude-standard", "--", *FILES).decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def fingerprint():
    """A name for the files as they are."""
    found = hashlib.blake2b(digest_size=16)
    for name in listed():
        found.update(f"{name}\0".encode() + hashlib.blake2b((ROOT / name).read_bytes()).digest())
    return f"here-{found.hexdigest()}"


def git(*words):
    """What git says about this repository. Raises InputError, in its words, where it refuses."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True)
    if not done.returncode:
        return done.stdout
    raise InputError(f"git {words[0]}: {' '.join(done.stderr.decode(errors='replace').split())[:300]}")


def commit(name):
    """The commit that a name means. Raises InputError where there is none."""
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except InputError:
        raise InputError(f"{name}: no commit of {ROOT}: give one that git log shows") from None


def told(tree, words, python=None):
    """What a command of a tree's Python prints. Raises Fault with its last words where it fails."""
    done = subprocess.run(
        [python or tree.python, "-P", *words],
        cwd=tree.place,
        env=os.environ | tree.environment,
        text=True,
        capture_output=True,
    )
    if not done.returncode:
        return done.stdout
    last = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
    raise Fault(f"{tree.name}: {' '.join(last.split())[:400]}")


def priced_alike(old, new, say):
    """Has both trees search with one calibration, what was measured with one's kernels taken for the other's; returns
    what is to be said of it in a line."""
    first, second = old.ask("priced"), new.ask("priced")
    if first["wrong"] and second["wrong"]:
        say(f"{old.name}: calibrates and compiles kernels")
        first = {"file": old.ask("calibrate"), "wrong": None}
    giver, taker, file = (new, old, second["file"]) if first["wrong"] else (old, new, first["file"])
    if Path(first["file"]).name == Path(second["file"]).name and not second["wrong"]:
        return "one calibration"
    if not (wrong := taker.ask("adopt", file=file)):
        return f"one calibration, taken with the kernels of {giver.name}"
    say(f"{taker.name}: calibrates and compiles kernels")
    taker.ask("calibrate")
    return f"DIFFERENT, so other programs may be found: {taker.name} cannot use those of {giver.name}: {wrong}"


def shared_errors(giver, taker):
    """Hands on what approximations were measured to change, in files named by program, rows and prices."""
    given, taken = giver.cache / "errors", taker.cache / "errors"
    if given.is_dir() and given != taken:
        shutil.copytree(given, taken, dirs_exist_ok=True)
