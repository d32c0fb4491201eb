"""A saved program in a container: the page that says how is followed, by another user, without a home, where nothing
can be written."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from children import LIMIT, ROOT
from strangers import OTHER, as_stranger
from test_cli import command, patched  # noqa: F401
from test_user_files import contents

from formats import kernels
from formats.kernels.engine import objects
from formats.kernels.engine.compiled import FUNCTIONS
from opmatrix.runtime.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files here do not say who owns them")
PAGE = (ROOT / "docs" / "guide" / "deploying.md").read_text("utf-8")
DOCKERFILE = [line.partition(" ") for line in re.search(r"```dockerfile\n(.*?)```", PAGE, re.S)[1].splitlines()]
TEXTS = ["the bank of the river", "a river runs dry", "the bank"]


def run_command(arguments, cwd, umask=0o022, **variables):
    """A command by this user, as an image is built."""
    code = f"import os; os.umask({umask}); from rewrites.cli.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


def everything(directory):
    return [directory, *directory.rglob("*")]


@pytest.fixture(scope="module")
def image(program):
    """What the page's Dockerfile makes, below a directory that is all that a container would have: read-only, owned by
    the user who builds; and its environment. The umask is as strict as can be while kernels are compiled. Most of them
    are there, closed to others, as older versions made them."""
    with tempfile.TemporaryDirectory() as place:
        (root := Path(place)).chmod(0o755)
        (root / "app").mkdir()
        variables = {}
        kernels.warm()
        (there := root / "app" / "cache" / "kernels" / objects.key()).mkdir(parents=True)
        common = sorted(function.symbol for function in FUNCTIONS.values() if not function.rare)
        for each in common[3:]:
            shutil.copy(objects.file(objects.home(), each), there)
        for each in everything(root / "app" / "cache"):
            each.chmod(0o700 if each.is_dir() else 0o600)
        for word, _, rest in DOCKERFILE:
            rest = rest.replace("/app", f"{root}/app")
            if word == "COPY":
                program.save(rest.split()[1])
            elif word == "ENV":
                variables |= [rest.split("=")]
            elif word == "RUN" and rest.startswith("opmatrix "):
                ran = run_command(shlex.split(rest)[1:], root, 0o077, **variables)
                assert ran.returncode == 0, ran.stderr
                assert 3 <= int(re.search(r"(\d+) of them compiled now", ran.stdout)[1]) < 20
        (root / "data").mkdir()
        (root / "data" / "lines.txt").write_text("\n".join(TEXTS))
        if not os.geteuid():
            os.chown(root / "data", OTHER, OTHER)
        for each in everything(root / "app"):
            each.chmod(each.stat().st_mode & ~0o222)
        yield root, variables
        for each in everything(root / "app"):
            each.chmod(0o755)


def follow(root, variables):
    """Run what the page says as another user: what it says, and the modules that it imports. Rows are right."""
    line = next(rest for word, _, rest in DOCKERFILE if word == "CMD")
    words = [word.replace("/app", f"{root}/app").replace("/data", f"{root}/data") for word in shlex.split(line)[1:]]
    _, said, modules = as_stranger(words, root / "data", **variables)
    return words[1], said, modules


def test_the_page_is_followed_and_nothing_is_compiled(image):
    root, variables = image
    before = contents(root / "app")
    directory, said, modules = follow(root, variables)
    assert not said and "formats.kernels.engine.compiler" not in modules
    assert not {"numba", "llvmlite"} & {*modules}, "the processor's name is kept, too"
    assert np.array_equal(np.load(root / "data" / "vectors.npy"), Program.load(directory).embed(TEXTS))
    assert contents(root / "app") == before
    owner = (root / "data" / "vectors.npy").stat().st_uid
    assert owner == (OTHER if not os.geteuid() else os.geteuid())


def kernels_of(variables):
    return Path(variables["OPMATRIX_CACHE"]) / "kernels" / objects.key()


def test_what_it_compiled_all_may_read_and_nobody_else_may_write(image):
    _, variables = image
    folder = kernels_of(variables)
    assert len([each for each in folder.iterdir() if objects.CODES.fullmatch(each.name)]) > 20
    for each in (*everything(folder), folder.parent, folder.parent.parent):
        mode = stat.S_IMODE(each.stat().st_mode)
        assert mode & 0o222 == 0 and mode & 0o044 == 0o044 and (each.is_file() or mode & 0o055 == 0o055), each


def writable_file(folder):
    next(folder.glob("*.o")).chmod(0o664)


def writable_folder(folder):
    folder.chmod(0o775)


def writable_parent(folder):
    folder.parent.parent.chmod(0o777)


def link(folder):
    file = next(folder.glob("*.o"))
    file.rename(folder.parent.parent / "elsewhere.o")
    file.symlink_to(folder.parent.parent / "elsewhere.o")


@pytest.mark.parametrize(
    "plant, words",
    [
        (writable_file, "other users may write to it"),
        (writable_folder, "other users may write there"),
        (writable_parent, "other users may write there"),
        (link, "it is a symbolic link"),
    ],
)
def test_what_others_could_have_written_is_named(image, tmp_path, plant, words):
    """By whoever would read it, here the user who made it: it is not loaded, although it is what was compiled."""
    shutil.copytree(image[1]["OPMATRIX_CACHE"], cache := tmp_path / "cache")
    for each in everything(cache):
        each.chmod(0o755 if each.is_dir() else 0o644)
    plant(cache / "kernels" / objects.key())
    code = (
        "from formats.kernels.engine import objects\nimport formats.kernels\n"
        f"names = [each.stem for each in objects.Path({str(cache / 'kernels' / objects.key())!r}).glob('*.o')]\n"
        "loaded = [name for name in names if objects.load_function(name)]\n"
        "try: objects.guarded(objects.home())\nexcept objects.Distrusted as error: print(error)\n"
        "print(len(names) - len(loaded), len(names))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPMATRIX_CACHE": str(cache)},
    )
    *_, refused, names = ran.stdout.split()
    assert words in ran.stdout + ran.stderr
    assert int(refused) == (1 if plant in (writable_file, link) else int(names))


@pytest.mark.parametrize(
    "place, words", [("file", "Not a directory"), ("/proc/none", "No such file"), ("file/below", "Not a directory")]
)
def test_a_place_that_keeps_nothing_is_refused(command, program, tmp_path, place, words):  # noqa: F811
    program.save(tmp_path / "program")
    (tmp_path / "file").touch()
    ran = command("compile", "program", "--into", place)
    assert ran.status == 2 and words in ran.err.splitlines()[-1] and not ran.out
    assert sorted(os.listdir(tmp_path)) == ["file", "program"]
